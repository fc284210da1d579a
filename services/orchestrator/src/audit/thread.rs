//! The rule for a turn's thread: what its provider keeps of earlier calls was said by turns of this session only.
//!
//! A thread is found by its session's key, or by a response. The key names account, task, agent and generation, and is one session's. A
//! response from which a turn goes on has to be one of an earlier turn of the session: so was the one before it, to the first, which went
//! on from none. A turn of a branch or of a replay is about the task of the branch or of its source turn. The newest thousand earlier
//! turns are looked at: what may be of older ones is not proven.

use domain::{ContextMode, SessionKey, SessionOf, TaskId};

use super::{
    judge::{Ruling, foreign, gone, proven, whole},
    store::{AuditedTurn, TURNS_LOOKED_AT},
    verdict::{
        Doubt::{Mismatch, Retention, ThreadUnconfirmed, UnknownSource, Unread},
        Fault::{ForeignAccount, ForeignTask, ForeignThread},
        Judged, Policy,
        Verdict::{ByPolicy, Unproven, Violation},
    },
};

pub(super) fn thread(turn: &AuditedTurn) -> Judged {
    let from = turn.context.as_ref().and_then(|context| context.from.as_deref());
    let name = from.or(turn.session_key.as_deref()).unwrap_or_default();
    Judged {
        source: name.to_owned(),
        ..whole("thread", 0, ruling(turn, from))
    }
}

fn ruling(turn: &AuditedTurn, from: Option<&str>) -> Ruling {
    let Some(key) = &turn.session_key else {
        return (Unproven(Retention), "its session was removed".to_owned());
    };
    if let Some(ruling) = of_key(turn, key) {
        return ruling;
    }
    if let Some(from) = from.filter(|_| !turn.from_is_own) {
        return not_found(turn, from);
    }
    if turn.is_mismatched {
        return (
            Unproven(Mismatch),
            "its provider was seen to run another session than the key's".to_owned(),
        );
    }
    if turn.context.as_ref().is_some_and(|context| context.unconfirmed) {
        let found = "its provider's answer did not name the response that it was to go on from";
        return (Unproven(ThreadUnconfirmed), found.to_owned());
    }
    let keeps = turn.context.as_ref().is_none_or(|context| !context.is_assembled());
    if turn.mixes_tasks && keeps {
        let found = "the account has one session for all tasks of an agent";
        return (ByPolicy(Policy::SessionScope), found.to_owned());
    }
    if turn.home_kind.as_deref() == Some("system") && has_older(turn.home_number) && keeps {
        let found = "a session for all tasks of an agent, with more earlier turns than are looked at";
        return (ByPolicy(Policy::SessionScope), found.to_owned());
    }
    proven()
}

/// Whether there are turns before this one at which nobody looked.
fn has_older(number: i64) -> bool {
    number > TURNS_LOOKED_AT + 1
}

/// No turn that was looked at has the response from which it goes on.
fn not_found(turn: &AuditedTurn, from: &str) -> Ruling {
    let is_fork = turn
        .context
        .as_ref()
        .is_some_and(|context| context.used == ContextMode::Fork);
    let branch = turn.branch_id.filter(|_| is_fork);
    let of_parent = match (branch, turn.spawning_number) {
        (Some(branch), None) => return gone(turn, &format!("branch/{branch}")),
        (Some(_), Some(number)) => has_older(number),
        (None, _) => false,
    };
    match of_parent || has_older(turn.home_number) {
        true => (
            Unproven(Unread),
            format!("older turns than were looked at may have the response {from}"),
        ),
        false => (
            Violation(ForeignThread),
            format!("no earlier turn of its session has the response {from}"),
        ),
    }
}

/// What is wrong with the name of a thread, if anything.
fn of_key(turn: &AuditedTurn, text: &str) -> Option<Ruling> {
    let Ok(key) = SessionKey::parse(text) else {
        let is_known = ["task", "system", "branch", "replay", "orchestrator", "guest"]
            .contains(&turn.session_kind.as_deref().unwrap_or_default());
        return Some(match is_known {
            true => (
                Violation(ForeignThread),
                "its session's key names no session".to_owned(),
            ),
            false => (
                Unproven(UnknownSource),
                "the audit of this version does not know this kind of session".to_owned(),
            ),
        });
    };
    if key.account != turn.account {
        return Some((
            Violation(ForeignAccount),
            format!("its session's key is of the account {}", key.account),
        ));
    }
    if let Some(ruling) = of_home(turn) {
        return Some(ruling);
    }
    let own = turn.task.as_ref().map(TaskId::key);
    let agent = match &key.of {
        SessionOf::Task { task, agent } => {
            if own.as_ref() != Some(&task.key()) {
                return Some((Violation(ForeignTask), format!("its session's key is of task {task}")));
            }
            *agent
        }
        SessionOf::Agent(agent) => *agent,
        // A branch has one session, on one task.
        SessionOf::Branch { branch, agent } => {
            if turn.branch_id != Some(branch.uuid()) {
                let found = format!("its session's key is of branch {branch}");
                return Some((Violation(ForeignThread), found));
            }
            *agent
        }
        SessionOf::Replay(replay) => {
            let is_own = turn.replay_id == Some(*replay) && key.generation == turn.generation;
            let found = format!("its session's key is of replay {replay}");
            return (!is_own).then_some((Violation(ForeignThread), found));
        }
        // Its agent is the account's hidden one, whose name no key has.
        SessionOf::Orchestrator(owner) => {
            if turn.session_kind.as_deref() != Some("orchestrator") {
                let found = format!("its session's key is of the orchestrator of {owner}");
                return Some((Violation(ForeignThread), found));
            }
            turn.agent
        }
        SessionOf::Guest { owner, guest } => {
            if turn.session_kind.as_deref() != Some("guest") {
                let found = format!("its session's key is of {guest}, a guest of {owner}");
                return Some((Violation(ForeignThread), found));
            }
            turn.agent
        }
    };
    let is_own = agent == turn.agent && key.generation == turn.generation;
    (!is_own).then(|| {
        let found = format!(
            "its session's key is of agent {agent} and generation {}",
            key.generation
        );
        (Violation(ForeignThread), found)
    })
}

/// What is wrong with the task of a turn whose session's key names none, if anything.
fn of_home(turn: &AuditedTurn) -> Option<Ruling> {
    let of = match (turn.replay_id, turn.branch_id) {
        (Some(_), _) if turn.home_kind.is_none() => return Some(gone(turn, "the source turn")),
        (Some(_), _) => "its source turn".to_owned(),
        (None, Some(branch)) if turn.home_task.is_none() => return Some(gone(turn, &format!("branch/{branch}"))),
        (None, Some(branch)) => format!("branch/{branch}"),
        (None, None) => return None,
    };
    foreign(turn, turn.home_task.as_ref(), &of)
}

#[cfg(test)]
mod tests {
    use domain::{Generation, TaskId, TurnContext};
    use serde_json::json;

    use super::{
        super::judge::tests::{AGENT, turn, words},
        *,
    };

    fn context(from: Option<&str>, used: &str) -> Option<TurnContext> {
        serde_json::from_value(json!({"asked": "continue", "used": used, "thread": 1, "from": from})).unwrap()
    }

    #[test]
    fn a_key_names_the_turn_s_own_session() {
        let check = |change: &dyn Fn(&mut AuditedTurn), expected: &str| {
            let mut turn = turn();
            change(&mut turn);
            let from = turn.context.as_ref().and_then(|context| context.from.clone());
            assert_eq!(
                words(&ruling(&turn, from.as_deref())),
                expected,
                "{:?}",
                turn.session_key
            );
        };
        let key = |text: String| move |turn: &mut AuditedTurn| turn.session_key = Some(text.clone());
        check(&|_| {}, "proven");
        check(
            &key(format!("task:t-2:agent:{AGENT}:acme:v1")),
            "violation foreign_task",
        );
        check(
            &key(format!("task:t-1:agent:{AGENT}:umbra:v1")),
            "violation foreign_account",
        );
        check(
            &key(format!("task:t-1:agent:{AGENT}:acme:v2")),
            "violation foreign_thread",
        );
        check(
            &key(format!("task:t-1:agent:{}:acme:v1", uuid::Uuid::nil())),
            "violation foreign_thread",
        );
        check(&key("nonsense".to_owned()), "violation foreign_thread");
        let of_account = "orchestrator:org:acme:v1".to_owned();
        check(&key(of_account.clone()), "violation foreign_thread");
        let orchestrator = |turn: &mut AuditedTurn| {
            turn.session_key = Some(of_account.clone());
            turn.session_kind = Some("orchestrator".to_owned());
        };
        check(&orchestrator, "proven");
        // A guest is told what is its own, and an owner what is theirs.
        let guest = |turn: &mut AuditedTurn| {
            turn.session_key = Some("orchestrator:acme:ann:guest:bob:v1".to_owned());
            turn.session_kind = Some("guest".to_owned());
        };
        check(&guest, "proven");
        let in_own_session = |turn: &mut AuditedTurn| {
            turn.session_key = Some("orchestrator:acme:ann:guest:bob:v1".to_owned());
            turn.session_kind = Some("orchestrator".to_owned());
        };
        check(&in_own_session, "violation foreign_thread");
        check(&|turn| turn.session_key = None, "unproven retention");
        check(&|turn| turn.generation = Generation(2), "violation foreign_thread");
        check(&|turn| *turn.task = TaskId::parse("t-2").ok(), "violation foreign_task");
        let other_kind = |turn: &mut AuditedTurn| {
            turn.session_key = Some("visitor:x".to_owned());
            turn.session_kind = Some("visitor".to_owned());
        };
        check(&other_kind, "unproven unknown_source");
        let of_branch = |key: String| {
            move |turn: &mut AuditedTurn| {
                turn.session_key = Some(key.clone());
                turn.session_kind = Some("branch".to_owned());
                turn.branch_id = Some(uuid::Uuid::nil());
            }
        };
        let branch = uuid::Uuid::nil();
        let other = uuid::Uuid::max();
        check(
            &of_branch(format!("branch:{other}:agent:{AGENT}:acme:v1")),
            "violation foreign_thread",
        );
        let of_other_task = |turn: &mut AuditedTurn| {
            of_branch(format!("branch:{branch}:agent:{AGENT}:acme:v1"))(turn);
            *turn.home_task = TaskId::parse("t-2").ok();
        };
        check(&of_other_task, "violation foreign_task");
        let without_its_row = |turn: &mut AuditedTurn| {
            of_other_task(turn);
            *turn.home_task = None;
        };
        check(&without_its_row, "violation source_missing");
        let of_replay = |turn: &mut AuditedTurn| {
            turn.session_key = Some(format!("replay:{branch}:acme:v1"));
            turn.replay_id = domain::ReplayId::parse(&branch.to_string()).ok();
        };
        check(&of_replay, "proven");
        let of_other_task = |turn: &mut AuditedTurn| {
            of_replay(turn);
            *turn.home_task = TaskId::parse("t-2").ok();
        };
        check(&of_other_task, "violation foreign_task");
        let without_source = |turn: &mut AuditedTurn| {
            of_replay(turn);
            turn.home_kind = None;
        };
        check(&without_source, "unproven retention");
        check(&of_branch(format!("branch:{branch}:agent:{AGENT}:acme:v1")), "proven");
        check(
            &of_branch(format!("branch:{branch}:agent:{branch}:acme:v1")),
            "violation foreign_thread",
        );
        check(&of_branch("branch:x".to_owned()), "violation foreign_thread");
        let shared = |turn: &mut AuditedTurn| {
            turn.session_key = Some(format!("system:agent:{AGENT}:acme:v1"));
            turn.mixes_tasks = true;
        };
        check(&shared, "by_policy session_scope");
        let shared_and_assembled = |turn: &mut AuditedTurn| {
            shared(turn);
            *turn.context = context(None, "assembled");
        };
        check(&shared_and_assembled, "proven");
        // Nobody looked at its first turn.
        let of_number = |kind: &str, number: i64| {
            let kind = kind.to_owned();
            move |turn: &mut AuditedTurn| {
                turn.home_kind = Some(kind.clone());
                turn.home_number = number;
            }
        };
        check(&of_number("system", 1_001), "proven");
        check(&of_number("system", 1_002), "by_policy session_scope");
        check(&of_number("task", 1_002), "proven");
        let assembled = |turn: &mut AuditedTurn| {
            of_number("system", 1_002)(turn);
            *turn.context = context(None, "assembled");
        };
        check(&assembled, "proven");
    }

    #[test]
    fn a_response_is_of_an_earlier_turn() {
        let check = |is_own: bool, change: &dyn Fn(&mut AuditedTurn), expected: &str| {
            let mut turn = turn();
            *turn.context = context(Some("resp_1"), "continue");
            turn.from_is_own = is_own;
            change(&mut turn);
            assert_eq!(words(&ruling(&turn, Some("resp_1"))), expected);
        };
        check(true, &|_| {}, "proven");
        check(false, &|_| {}, "violation foreign_thread");
        check(true, &|turn| turn.is_mismatched = true, "unproven mismatch");
        check(false, &|turn| turn.is_mismatched = true, "violation foreign_thread");
        let unconfirmed = |turn: &mut AuditedTurn| {
            if let Some(context) = &mut *turn.context {
                context.unconfirmed = true;
            }
        };
        check(true, &unconfirmed, "unproven thread_unconfirmed");
    }

    #[test]
    fn a_response_of_a_turn_that_was_not_looked_at_is_not_known_to_be_foreign() {
        let check = |used: &str, number: i64, spawning: Option<i64>, expected: &str| {
            let mut turn = turn();
            *turn.context = context(Some("resp_1"), used);
            turn.home_number = number;
            turn.branch_id = Some(uuid::Uuid::from_u128(1));
            turn.spawning_number = spawning;
            assert_eq!(
                words(&ruling(&turn, Some("resp_1"))),
                expected,
                "{used} {number} {spawning:?}"
            );
            turn.from_is_own = true;
            assert_eq!(words(&ruling(&turn, Some("resp_1"))), "proven");
        };
        let violation = "violation foreign_thread";
        check("continue", 1_001, Some(5_000), violation);
        check("continue", 1_002, Some(1), "unproven unread");
        check("continue", 7, None, violation);
        check("fork", 1, Some(1_001), violation);
        check("fork", 1, Some(1_002), "unproven unread");
        check("fork", 1_002, Some(1), "unproven unread");
        check("fork", 1, None, "violation source_missing");
    }
}
