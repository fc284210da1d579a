//! The plan of a new turn: the one source of its context, and its thread. Pure.
//!
//! | asked | provider's `thread` | thread of the generation | this turn's thread | assembled | `used` / `reason` |
//! |---|---|---|---|---|---|
//! | continue | durable | live | goes on | no | continue / – |
//! | continue | durable | none yet: opened, reopened, reset | new | no | continue / `first` |
//! | continue | durable | none yet: rotated | new | past | continue / `rotated:{rule}` |
//! | continue | durable | lost, ran elsewhere, another provider's | new | past | continue / `thread_lost`, `ran_elsewhere` |
//! | continue | durable | lost in two turns running | new each turn | past | assembled / `thread_unreliable` |
//! | continue | process, none | any | new | past | assembled / `provider_thread_process`, `…_none` |
//! | assembled | any | any | new | past | assembled / – |
//! | snapshot, until its first answer | any | | new | base | assembled / – |
//! | fork, until its first answer | durable, by response id, same as the parent's | parent's is live | starts from the parent's response id | the spawning turn | fork / – |
//! | fork, until its first answer | anything else | | new | base | assembled / `fork_unsupported`, `fork_no_thread` |
//!
//! Later turns of a branch are planned by the policy, as any others; where their past is assembled, the base is a part of it.

use domain::{
    BranchContext, ContextMode, ContextPolicy, ContextReason, RotationRule, ThreadName, TurnContext,
    context::THREADS_LOST_MAX,
};
use storage::session::sessions_lock::SessionThread;

use crate::providers::{Continuation, Thread};

/// What decides the plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanFacts<'a> {
    pub asked: ContextPolicy,
    /// What the turn's provider keeps, and how a thread is found there.
    pub keeps: Thread,
    pub found_by: Continuation,
    pub provider: &'a str,
    pub thread: &'a SessionThread,
    /// The rule by which the generation before was closed, if it was.
    pub rotated: Option<RotationRule>,
    pub branch: Option<BranchFacts<'a>>,
}

/// What a branch starts from.
#[derive(Clone, Copy, Debug)]
pub struct BranchFacts<'a> {
    pub context: BranchContext,
    /// The branch has had no turn.
    pub is_first: bool,
    /// The provider of its parent's thread, and the response at which that was.
    pub provider: Option<&'a str>,
    pub at: Option<&'a str>,
    pub base_sha256: &'a str,
}

/// The source of a turn's context.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    pub context: TurnContext,
    /// The turn is the thread's first.
    pub is_new: bool,
    /// The generation had another thread before this one.
    pub is_later: bool,
}

pub fn plan(facts: &PlanFacts<'_>) -> Plan {
    let mut plan = match facts.branch {
        Some(branch) if begins(facts, branch) => first_of_branch(facts, branch),
        Some(_) | None => by_policy(facts),
    };
    plan.context.base_sha256 = facts.branch.map(|branch| branch.base_sha256.to_owned());
    plan
}

/// Whether no turn of the branch has had an answer. Where no thread shows it, its second turn is planned by the policy: its past has
/// the base, too.
fn begins(facts: &PlanFacts<'_>, branch: BranchFacts<'_>) -> bool {
    let thread = facts.thread;
    match facts.keeps {
        Thread::Durable => !thread.live && !had_another(facts),
        Thread::Process | Thread::None => branch.is_first,
    }
}

fn first_of_branch(facts: &PlanFacts<'_>, branch: BranchFacts<'_>) -> Plan {
    use ContextMode::{Assembled, Fork};
    let number = facts.thread.number + 1;
    let forks = facts.keeps == Thread::Durable
        && facts.found_by == Continuation::Response
        && branch.provider == Some(facts.provider);
    let (asked, used, reason) = match (branch.context, forks, branch.at) {
        (BranchContext::Snapshot, _, _) => (Assembled, Assembled, None),
        (BranchContext::Fork, true, Some(_)) => (Fork, Fork, None),
        (BranchContext::Fork, true, None) => (Fork, Assembled, Some(ContextReason::ForkNoThread)),
        (BranchContext::Fork, false, _) => (Fork, Assembled, Some(ContextReason::ForkUnsupported)),
    };
    let from = branch.at.filter(|_| used == Fork).map(str::to_owned);
    Plan {
        context: TurnContext {
            from,
            asked,
            ..context(facts.asked, used, reason, number)
        },
        is_new: true,
        is_later: had_another(facts),
    }
}

fn by_policy(facts: &PlanFacts<'_>) -> Plan {
    use ContextMode::{Assembled, Continue};
    use ContextReason::{
        First, ProviderThreadNone, ProviderThreadProcess, RanElsewhere, Rotated, ThreadLost, ThreadUnreliable,
    };
    let thread = facts.thread;
    let next = thread.number + 1;
    let (used, reason, number) = match (facts.asked, facts.keeps) {
        (ContextPolicy::Assembled, Thread::Durable | Thread::Process | Thread::None) => (Assembled, None, next),
        (ContextPolicy::Continue, Thread::Process) => (Assembled, Some(ProviderThreadProcess), next),
        (ContextPolicy::Continue, Thread::None) => (Assembled, Some(ProviderThreadNone), next),
        (ContextPolicy::Continue, Thread::Durable) if thread.lost >= THREADS_LOST_MAX => {
            (Assembled, Some(ThreadUnreliable), next)
        }
        (ContextPolicy::Continue, Thread::Durable) if goes_on(thread, facts.keeps, facts.found_by) && is_its(facts) => {
            let from = thread.at.clone().filter(|_| facts.found_by == Continuation::Response);
            let context = TurnContext {
                from,
                ..context(facts.asked, Continue, None, thread.number)
            };
            return Plan {
                context,
                is_new: false,
                is_later: thread.told.is_later,
            };
        }
        // It is there, and cannot be gone on in.
        (ContextPolicy::Continue, Thread::Durable) if thread.live || thread.lost > 0 || is_another_providers(facts) => {
            (Continue, Some(ThreadLost), next)
        }
        (ContextPolicy::Continue, Thread::Durable) if thread.elsewhere => (Continue, Some(RanElsewhere), next),
        // The one after it has had no answer.
        (ContextPolicy::Continue, Thread::Durable) if thread.told.is_later => (Continue, Some(ThreadLost), next),
        // A turn that had no answer may have begun it.
        (ContextPolicy::Continue, Thread::Durable) => (
            Continue,
            Some(facts.rotated.map_or(First, Rotated)),
            thread.number.max(1),
        ),
    };
    Plan {
        context: context(facts.asked, used, reason, number),
        is_new: true,
        is_later: thread.live || had_another(facts),
    }
}

/// Whether the generation had another thread before the one that its row names, which may have had no answer yet.
fn had_another(facts: &PlanFacts<'_>) -> bool {
    let thread = facts.thread;
    thread.told.is_later || thread.lost > 0 || thread.elsewhere || is_another_providers(facts)
}

/// Whether the generation has had turns, and none of them is in a thread of this provider.
fn is_another_providers(facts: &PlanFacts<'_>) -> bool {
    facts.thread.number > 0 && facts.thread.told.provider.as_deref() != Some(facts.provider)
}

/// Whether a turn can go on in the generation's thread, if its provider's is the thread.
pub fn goes_on(thread: &SessionThread, keeps: Thread, found_by: Continuation) -> bool {
    let is_named = thread.at.is_some() || found_by != Continuation::Response;
    keeps == Thread::Durable && thread.live && thread.lost < THREADS_LOST_MAX && is_named
}

/// Whether the generation's thread is this provider's. A version before this one said nothing of providers.
fn is_its(facts: &PlanFacts<'_>) -> bool {
    let its = facts.thread.told.provider.as_deref();
    its.is_none_or(|provider| provider == facts.provider)
}

fn context(asked: ContextPolicy, used: ContextMode, reason: Option<ContextReason>, thread: i32) -> TurnContext {
    TurnContext {
        asked: asked.into(),
        used,
        reason,
        thread,
        from: None,
        base_sha256: None,
        lost_after: None,
        unconfirmed: false,
    }
}

/// The thread's name at its provider. One that keeps no thread, or finds it by a response, gets the plain key.
pub fn thread_name(key: &str, thread: i32, keeps: Thread, found_by: Continuation) -> String {
    match (keeps, found_by) {
        (Thread::Durable | Thread::Process, Continuation::Key) => ThreadName::text(key, thread),
        (Thread::None, _) | (_, Continuation::Response | Continuation::Whole) => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use domain::context::Told;

    use super::*;

    fn live(number: i32) -> SessionThread {
        SessionThread {
            number,
            live: true,
            at: Some("resp_1".to_owned()),
            told: Told {
                provider: Some("default".to_owned()),
                ..Told::default()
            },
            ..SessionThread::default()
        }
    }

    fn dead(number: i32, lost: i32) -> SessionThread {
        SessionThread {
            number,
            lost,
            told: live(number).told,
            ..SessionThread::default()
        }
    }

    /// Used, reason and thread, as the plan names them; `+`: the thread goes on, `past`: it is assembled.
    fn line(facts: &PlanFacts<'_>) -> String {
        let Plan { context, is_new, .. } = plan(facts);
        let reason = context
            .reason
            .map_or_else(|| "-".to_owned(), |reason| reason.to_string());
        let goes_on = if is_new { "new" } else { "+" };
        let past = if context.is_assembled() { "past" } else { "no" };
        let from = context.from.as_deref().unwrap_or("-");
        format!("{}/{reason} t{} {goes_on} {past} {from}", context.used, context.thread)
    }

    fn facts<'a>(asked: ContextPolicy, keeps: Thread, thread: &'a SessionThread) -> PlanFacts<'a> {
        PlanFacts {
            asked,
            keeps,
            found_by: match keeps {
                Thread::Durable | Thread::Process => Continuation::Key,
                Thread::None => Continuation::Whole,
            },
            provider: "default",
            thread,
            rotated: None,
            branch: None,
        }
    }

    #[test]
    fn every_row_of_the_table() {
        use ContextPolicy::{Assembled, Continue};
        use Thread::{Durable, None, Process};
        let check = |asked, keeps, thread: &SessionThread, expected: &str| {
            assert_eq!(
                line(&facts(asked, keeps, thread)),
                expected,
                "{asked} {keeps:?} {thread:?}"
            );
        };
        let none_yet = SessionThread::default();
        check(Continue, Durable, &live(1), "continue/- t1 + no -");
        check(Continue, Durable, &live(4), "continue/- t4 + no -");
        check(Continue, Durable, &none_yet, "continue/first t1 new no -");
        // Its first turn had no answer.
        check(Continue, Durable, &dead(1, 0), "continue/first t1 new no -");
        check(Continue, Durable, &dead(2, 1), "continue/thread_lost t3 new past -");
        check(
            Continue,
            Durable,
            &dead(3, 2),
            "assembled/thread_unreliable t4 new past -",
        );
        let unreliable = SessionThread { lost: 2, ..live(3) };
        check(
            Continue,
            Durable,
            &unreliable,
            "assembled/thread_unreliable t4 new past -",
        );
        let elsewhere = SessionThread {
            elsewhere: true,
            ..dead(1, 0)
        };
        check(Continue, Durable, &elsewhere, "continue/ran_elsewhere t2 new past -");
        // The thread after another one has had no answer.
        let later = SessionThread {
            told: Told {
                is_later: true,
                ..live(2).told
            },
            ..dead(2, 0)
        };
        check(Continue, Durable, &later, "continue/thread_lost t3 new past -");
        // The thread after that one is the generation's.
        let found = SessionThread {
            elsewhere: true,
            ..live(2)
        };
        check(Continue, Durable, &found, "continue/- t2 + no -");
        for thread in [&none_yet, &live(1), &dead(2, 1), &elsewhere] {
            let next = thread.number + 1;
            let of = |what: &str| format!("assembled/{what} t{next} new past -");
            check(Continue, Process, thread, &of("provider_thread_process"));
            check(Continue, None, thread, &of("provider_thread_none"));
            for keeps in [Durable, Process, None] {
                check(Assembled, keeps, thread, &of("-"));
            }
        }
    }

    #[test]
    fn a_rotated_generation_begins_with_what_the_one_before_knew() {
        let thread = SessionThread::default();
        for &rule in RotationRule::ALL {
            let rotated = PlanFacts {
                rotated: Some(rule),
                ..facts(ContextPolicy::Continue, Thread::Durable, &thread)
            };
            assert_eq!(line(&rotated), format!("continue/rotated:{rule} t1 new past -"));
        }
    }

    #[test]
    fn a_thread_that_is_found_by_a_response_goes_on_from_it() {
        let by_response = |thread: &SessionThread| {
            line(&PlanFacts {
                found_by: Continuation::Response,
                ..facts(ContextPolicy::Continue, Thread::Durable, thread)
            })
        };
        assert_eq!(by_response(&live(1)), "continue/- t1 + no resp_1");
        let nameless = SessionThread { at: None, ..live(1) };
        assert_eq!(by_response(&nameless), "continue/thread_lost t2 new past -");
    }

    #[test]
    fn a_branch_starts_from_its_base() {
        use BranchContext::{Fork, Snapshot};
        let check = |context, thread: &SessionThread, found_by, at, provider, expected: &str| {
            let facts = PlanFacts {
                found_by,
                branch: Some(BranchFacts {
                    context,
                    is_first: false,
                    provider: Some(provider),
                    at,
                    base_sha256: "0f",
                }),
                ..facts(ContextPolicy::Continue, Thread::Durable, thread)
            };
            assert_eq!(line(&facts), expected, "{context} {thread:?}");
            assert_eq!(plan(&facts).context.base_sha256.as_deref(), Some("0f"));
        };
        let none = SessionThread::default();
        let (key, response) = (Continuation::Key, Continuation::Response);
        let at = Some("resp_9");
        check(Snapshot, &none, key, None, "default", "assembled/- t1 new past -");
        check(Snapshot, &none, response, at, "default", "assembled/- t1 new past -");
        check(Fork, &none, response, at, "default", "fork/- t1 new no resp_9");
        check(
            Fork,
            &none,
            response,
            None,
            "default",
            "assembled/fork_no_thread t1 new past -",
        );
        check(
            Fork,
            &none,
            response,
            at,
            "other",
            "assembled/fork_unsupported t1 new past -",
        );
        check(
            Fork,
            &none,
            key,
            None,
            "default",
            "assembled/fork_unsupported t1 new past -",
        );
        // Its first turn had no answer.
        check(Fork, &dead(1, 0), response, at, "default", "fork/- t2 new no resp_9");
        // A thread after the one that it began had none.
        let later = SessionThread {
            told: Told {
                is_later: true,
                ..live(2).told
            },
            ..dead(2, 0)
        };
        check(
            Fork,
            &later,
            response,
            at,
            "default",
            "continue/thread_lost t3 new past -",
        );
        // Later turns.
        check(Fork, &live(1), response, at, "default", "continue/- t1 + no resp_1");
        check(Snapshot, &live(1), key, None, "default", "continue/- t1 + no -");
        check(
            Snapshot,
            &dead(1, 1),
            key,
            None,
            "default",
            "continue/thread_lost t2 new past -",
        );
    }

    #[test]
    fn another_provider_has_no_thread_of_the_session() {
        let thread = live(1);
        let moved = PlanFacts {
            provider: "other",
            ..facts(ContextPolicy::Continue, Thread::Durable, &thread)
        };
        assert_eq!(line(&moved), "continue/thread_lost t2 new past -");
        // Its turns had a provider that keeps none.
        let none = SessionThread {
            told: Told::default(),
            ..dead(1, 0)
        };
        for provider in ["default", "other"] {
            let moved = PlanFacts {
                provider,
                ..facts(ContextPolicy::Continue, Thread::Durable, &none)
            };
            assert_eq!(line(&moved), "continue/thread_lost t2 new past -");
        }
    }

    #[test]
    fn a_thread_has_a_name_where_keys_name_threads() {
        use Continuation::{Key, Response, Whole};
        let check = |keeps, found_by, expected| assert_eq!(thread_name("k", 3, keeps, found_by), expected);
        check(Thread::Durable, Key, "k:t3");
        check(Thread::Process, Key, "k:t3");
        check(Thread::Durable, Response, "k");
        check(Thread::None, Whole, "k");
        assert_eq!(thread_name("k", 1, Thread::Durable, Key), "k");
    }
}
