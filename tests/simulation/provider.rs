//! The agents' providers: requests, effects and answers. Each request is open from its first byte to its answer or to the end of
//! its connection; a run may outlive its connection, since a provider need not notice.

use std::collections::BTreeMap;

use delivery::{
    providers::{FailureClass, FunctionCall, ProviderAnswer, ProviderError, Reconciled, Sent, Usage},
    turn::work::Work,
};
use domain::{AccountId, AgentId, Conversation, Generation, SessionScope, TaskId, TurnId};

use super::{random::Random, settings::Rates};

/// One call, as the provider sees it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) session_key: String,
    pub(crate) turn: TurnId,
    pub(crate) attempt: i32,
    pub(crate) round: usize,
    /// The process at the other end.
    pub(crate) holder: usize,
    pub(crate) open: bool,
    /// The answer was given, or never will be.
    pub(crate) over: bool,
}

/// An event of a call at the provider.
#[derive(Clone, Debug)]
enum Run {
    Running,
    Answered(ProviderAnswer),
    Failed(ProviderError),
}

/// What the caller sees.
#[derive(Debug)]
pub(crate) enum Seen {
    Answer(ProviderAnswer),
    Error(ProviderError),
}

#[derive(Debug, Default)]
pub(crate) struct Provider {
    pub(crate) requests: Vec<Request>,
    record: BTreeMap<(TurnId, i32), Run>,
    /// Times that the agent began to act, by turn and round.
    pub(crate) begun: BTreeMap<(TurnId, usize), u32>,
    next: u64,
}

impl Provider {
    /// Accepts a call. Gives its number.
    pub(crate) fn request(&mut self, work: &Work, holder: usize) -> u64 {
        self.next += 1;
        self.requests.retain(|request| request.open || !request.over);
        self.requests.push(Request {
            id: self.next,
            session_key: work.turn.key.clone(),
            turn: work.turn.id,
            attempt: work.attempt,
            round: work.journal.rounds.len(),
            holder,
            open: true,
            over: false,
        });
        self.next
    }

    /// Ends a connection from our side.
    pub(crate) fn hang_up(&mut self, of: impl Fn(&Request) -> bool, random: &mut Random) {
        for request in self.requests.iter_mut().filter(|request| request.open && of(request)) {
            request.open = false;
            // A provider that notices stops; the call had begun, or never begins.
            if random.chance(500) {
                request.over = true;
                if self.record.contains_key(&(request.turn, request.attempt)) {
                    continue;
                }
                if random.chance(300) {
                    *self.begun.entry((request.turn, request.round)).or_default() += 1;
                    let error = error(FailureClass::Failed, Sent::Yes);
                    self.record.insert((request.turn, request.attempt), Run::Failed(error));
                }
            }
        }
    }

    /// An event of a call. Gives what its connection shows, if it still exists.
    pub(crate) fn proceed(
        &mut self,
        n: usize,
        rates: &Rates,
        tools: impl FnOnce(&mut Random, usize) -> Vec<FunctionCall>,
        random: &mut Random,
    ) -> Option<(u64, Seen)> {
        let request = &mut self.requests[n];
        let key = (request.turn, request.attempt);
        let open = std::mem::take(&mut request.open);
        request.over = true;
        let (id, turn, round) = (request.id, request.turn, request.round);
        if random.chance(rates.refused) {
            let class = *random.pick(&[
                FailureClass::Refused,
                FailureClass::RateLimited,
                FailureClass::ServerError,
                FailureClass::Unauthorized,
                FailureClass::BadRequest,
                FailureClass::ThreadLost,
            ]);
            return open.then(|| (id, Seen::Error(error(class, Sent::No))));
        }
        *self.begun.entry((turn, round)).or_default() += 1;
        if random.chance(rates.failed) {
            let class = *random.pick(&[
                FailureClass::ServerError,
                FailureClass::RateLimited,
                FailureClass::Failed,
            ]);
            let error = error(class, Sent::Yes);
            self.record.insert(key, Run::Failed(error.clone()));
            return open.then_some((id, Seen::Error(error)));
        }
        let calls = if random.chance(rates.calls_tools) {
            tools(random, round)
        } else {
            Vec::new()
        };
        let answer = ProviderAnswer {
            // Names its turn, so that a misplaced reply shows.
            text: format!("{turn}"),
            calls,
            usage: Some(Usage {
                total_tokens: 10,
                ..Usage::default()
            }),
            ..ProviderAnswer::default()
        };
        self.record.insert(key, Run::Answered(answer.clone()));
        if random.chance(rates.broken) {
            let class = *random.pick(&[FailureClass::Timeout, FailureClass::Truncated, FailureClass::Malformed]);
            // The connection breaks while the agent works, or after it.
            if random.chance(300) {
                self.record.insert(key, Run::Running);
                self.requests[n].over = false;
                self.begun.entry((turn, round)).and_modify(|count| *count -= 1);
            }
            return open.then(|| (id, Seen::Error(error(class, Sent::Maybe))));
        }
        open.then_some((id, Seen::Answer(answer)))
    }

    /// The provider's record of a call.
    pub(crate) fn reconcile(&self, turn: TurnId, attempt: i32, has_record: bool, random: &mut Random) -> Reconciled {
        if !has_record {
            return Reconciled::Unknown {
                reason: "this provider keeps no record",
            };
        }
        if random.chance(100) {
            return Reconciled::Unreachable(error(FailureClass::Refused, Sent::No));
        }
        match self.record.get(&(turn, attempt)) {
            Some(Run::Answered(answer)) => Reconciled::Ran(answer.clone()),
            Some(Run::Failed(error)) => Reconciled::Failed(error.clone()),
            Some(Run::Running) => Reconciled::StillRunning,
            None if self.is_running(turn, attempt) => Reconciled::StillRunning,
            None => Reconciled::DidNotRun,
        }
    }

    fn is_running(&self, turn: TurnId, attempt: i32) -> bool {
        self.requests
            .iter()
            .any(|request| request.turn == turn && request.attempt == attempt && !request.over)
    }
}

fn error(class: FailureClass, sent: Sent) -> ProviderError {
    ProviderError {
        class,
        sent,
        retry_after: None,
        response_id: None,
        detail: String::new(),
    }
}

/// An address; `{task}`: that of the session of some agent on a task of an account.
pub(crate) fn address(random: &mut Random, to: &str, agents: &[(AccountId, AgentId)]) -> String {
    if to != "{task}" {
        return to.to_owned();
    }
    let tasks = ["t-1", "t-1", "t-2", "b-1"];
    let task = *random.pick(&tasks);
    let task = TaskId::parse(task).expect("a task");
    let (account, agent) = random.pick(agents);
    let of_task = Conversation::of(account, SessionScope::Task, Some(&task), *agent);
    of_task.key(Generation::FIRST).to_string()
}

/// Possible tool calls of an agent: tools with effects, unknown tools, reused ids; and often calls that depend on their order, a
/// message and then the end of the task.
/// `people`: the chance in a thousand that a call is for mail, a child or a board.
pub(crate) fn calls(random: &mut Random, agents: &[(AccountId, AgentId)], people: u32) -> Vec<FunctionCall> {
    if random.chance(200) {
        let call = |n: usize, name: &str, arguments: &str| FunctionCall {
            call_id: format!("call_{n}"),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        return vec![call(0, "task_message", ""), call(1, "task_status", "done")];
    }
    let count = 1 + random.below(2);
    (0..count)
        .map(|n| {
            let (name, arguments) = match random.below(19) {
                _ if random.chance(people) => people_call(random, agents),
                0 | 1 => ("task_status", "done".to_owned()),
                2 => ("task_status", "in_progress".to_owned()),
                3 => ("task_status", "cancelled".to_owned()),
                4 | 5 => {
                    let (_, agent) = random.pick(agents);
                    // Also ids of another account, which are unknown here.
                    ("response_request", agent.to_string())
                }
                6 | 7 => ("task_message", String::new()),
                8 => ("no_reply", String::new()),
                9 => ("no_such_tool", String::new()),
                10 | 12 => ("ask_question", (*random.pick(&["", "2000", "30000"])).to_owned()),
                13..=15 => {
                    let (_, agent) = random.pick(agents);
                    let of = random.pick(&["1 all 5000", "2 all 30000", "2 each 30000", "3 all 60000"]);
                    ("subagent_spawn", format!("{of} {agent}"))
                }
                16 => ("subagent_cancel", String::new()),
                11 => ("check_later", (*random.pick(&["500", "5000", "60000"])).to_owned()),
                _ => ("task_history", String::new()),
            };
            FunctionCall {
                call_id: format!("call_{n}"),
                name: name.to_owned(),
                arguments,
            }
        })
        .collect()
}

/// A call for mail, for a child, or for a task of a board.
fn people_call(random: &mut Random, agents: &[(AccountId, AgentId)]) -> (&'static str, String) {
    match random.below(8) {
        0 | 1 => {
            let to = random.pick(&[
                "@user:ann",
                "@ann",
                "@bob",
                "orchestrator:ann",
                "orchestrator:bob",
                "{task}",
            ]);
            ("send_message", address(random, to, agents))
        }
        2..=4 => ("check_messages", String::new()),
        5 | 6 => ("create_session", random.pick(agents).1.to_string()),
        _ => {
            let task = *random.pick(&["t-1", "b-1", "b-2", "b-3"]);
            let to = *random.pick(&["done", "in_progress", "failed"]);
            ("update_task", format!("{task} {to}"))
        }
    }
}
