//! What moves a thing next, and what it waits for: from rows that are read anyway. Pure. Text in replies, messages or logs
//! decides nothing.

use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    BranchId, Gate, NotificationState, QuestionId, QuestionKind, RecoveryCause, RecoveryId, RecoveryState,
    SessionPhase, TaskId, TaskStatus, TimerId, Timestamp, TurnId, string_enum::string_enum,
};

string_enum! {
    NextCode {
        /// A turn in progress.
        Running = "running",
        /// Its turn comes by itself.
        Queued = "queued",
        /// It waits: see `on`.
        Waiting = "waiting",
        /// Signalbox does something about it.
        Recovery = "recovery",
        /// No agent has it, or it has ended.
        Nothing = "nothing",
        /// An agent has it, and nothing moves it on.
        Stalled = "stalled",
    }
}

string_enum! {
    WaitsOn {
        /// Somebody answers a question.
        Question = "question",
        /// A plan, or a tool call, is decided.
        Approval = "approval",
        /// Finished work is reviewed.
        Review = "review",
        /// The results of tool calls.
        Tools = "tools",
        /// Further items of the same author, which are answered together.
        Collect = "collect",
        /// Its time comes.
        Timer = "timer",
        /// Another task is done.
        Blocker = "blocker",
        /// The next attempt.
        Retry = "retry",
        /// A hold is released, or ends.
        Pause = "pause",
        /// A person has to do something.
        Person = "person",
        /// The agent's provider answers again.
        Provider = "provider",
        /// The agent's provider is in the settings.
        Config = "config",
        /// Subagents end.
        Branches = "branches",
    }
}

/// What moves it next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Next {
    pub code: NextCode,
    pub on: Option<WaitsOn>,
    /// The id of what it waits for.
    pub of: Option<String>,
    pub text: String,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

/// An item, as far as its next step goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemNow {
    pub state: NotificationState,
    /// The turn that has it.
    pub turn: Option<TurnId>,
    pub created_at: Timestamp,
    /// Its place in its queue, from 1, if it was read.
    pub place: Option<u64>,
}

/// The session of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "columns", derive(sea_orm::FromQueryResult))]
pub struct SessionNow {
    pub phase: SessionPhase,
    pub active_turn: Option<TurnId>,
    /// Its turn in progress is to end.
    pub stopping: bool,
    pub gate: Option<Gate>,
    /// What keeps it: a hold, a question, a provider.
    pub gate_ref: Option<Uuid>,
    pub gated_since: Option<Timestamp>,
    pub wake_at: Option<Timestamp>,
    /// That time has come.
    pub due: bool,
}

/// The next step of an item that waits or is in a turn. `session`: none as long as the resolver has not placed it.
pub fn item_next(item: &ItemNow, session: Option<&SessionNow>) -> Option<Next> {
    match item.state {
        NotificationState::Queued => Some(waiting(item, session)),
        NotificationState::Running => {
            let turn = item
                .turn
                .map_or_else(|| "a turn".to_owned(), |turn| format!("turn {turn}"));
            Some(Next {
                code: NextCode::Running,
                on: None,
                of: item.turn.map(|turn| turn.to_string()),
                text: format!("{turn} is in progress with it"),
                since: item.turn.and_then(began),
                until: None,
            })
        }
        NotificationState::Delivered
        | NotificationState::Failed
        | NotificationState::Refused
        | NotificationState::Cancelled => None,
    }
}

fn waiting(item: &ItemNow, session: Option<&SessionNow>) -> Next {
    let place = item.place.map_or_else(String::new, |place| format!("place {place}: "));
    let queued = Next {
        code: NextCode::Queued,
        on: None,
        of: None,
        text: format!("{place}its turn starts when a place is free"),
        since: Some(item.created_at),
        until: None,
    };
    let Some(session) = session else {
        let text = "the resolver has not read it yet".to_owned();
        return Next { text, ..queued };
    };
    if let Some(turn) = session.active_turn {
        let ends = if session.stopping { ", which is stopping" } else { "" };
        return Next {
            of: Some(turn.to_string()),
            text: format!("{place}behind turn {turn}{ends}"),
            since: began(turn),
            ..queued
        };
    }
    let since = session.gated_since.or(queued.since);
    match (session.gate, session.phase) {
        (Some(Gate::Stopped), _) => Next {
            code: NextCode::Waiting,
            on: Some(WaitsOn::Person),
            text: format!("{place}a person stopped the session: resume it, promote an item, or send a new one"),
            since,
            ..queued
        },
        (Some(Gate::Pause), _) => Next {
            code: NextCode::Waiting,
            on: Some(WaitsOn::Pause),
            of: session.gate_ref.map(|hold| hold.to_string()),
            text: format!(
                "{place}a person paused it: release the hold (`signalbox holds` has it), or wait for its end"
            ),
            since,
            ..queued
        },
        (Some(Gate::NoProgress), _) => Next {
            code: NextCode::Waiting,
            on: Some(WaitsOn::Person),
            text: format!("{place}the agent went round without progress: resume the session, or send a new item"),
            since,
            ..queued
        },
        (Some(Gate::Config), _) => Next {
            code: NextCode::Waiting,
            on: Some(WaitsOn::Config),
            text: format!("{place}the agent's provider is not in the operator's settings"),
            since,
            until: session.wake_at,
            ..queued
        },
        (Some(Gate::Provider), _) => Next {
            code: NextCode::Waiting,
            on: Some(WaitsOn::Provider),
            text: format!("{place}the agent's provider takes no calls at the moment: it is tried again at `until`"),
            since,
            until: session.wake_at,
            ..queued
        },
        (Some(Gate::Approval), _) => Next {
            code: NextCode::Waiting,
            on: Some(WaitsOn::Approval),
            of: session.gate_ref.map(|question| question.to_string()),
            text: format!("{place}the task's plan awaits approval: answer the question, or send a message"),
            since,
            ..queued
        },
        (Some(Gate::Later), _) => Next {
            code: NextCode::Waiting,
            text: format!("{place}a later version of Signalbox keeps it"),
            since,
            ..queued
        },
        (Some(Gate::Collect), _) => Next {
            code: NextCode::Waiting,
            on: Some(WaitsOn::Collect),
            text: format!("{place}more items may come, to be answered in one turn"),
            since,
            until: session.wake_at,
            ..queued
        },
        (None, SessionPhase::Backoff) if !session.due => Next {
            code: NextCode::Waiting,
            on: Some(WaitsOn::Retry),
            text: format!("{place}the last turn was interrupted: the next attempt is due at `until`"),
            until: session.wake_at,
            ..queued
        },
        (None, SessionPhase::Backoff | SessionPhase::Idle | SessionPhase::Running | SessionPhase::Waiting) => queued,
    }
}

/// A session of a task, or that works on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "columns", derive(sea_orm::FromQueryResult))]
pub struct SessionOfTask {
    #[cfg_attr(feature = "columns", sea_orm(nested))]
    pub now: SessionNow,
    pub queued: i32,
    /// When its newest item came.
    pub opened_at: Timestamp,
}

/// An open question.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "columns", derive(sea_orm::FromQueryResult))]
pub struct AskedNow {
    pub id: QuestionId,
    pub kind: QuestionKind,
    pub title: String,
    pub since: Timestamp,
    pub until: Option<Timestamp>,
}

/// Live branches of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "columns", derive(sea_orm::FromQueryResult))]
pub struct BranchesNow {
    pub count: i64,
    /// The one whose time is over first.
    pub id: BranchId,
    pub since: Timestamp,
    pub until: Timestamp,
}

/// A task, as far as its next step goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskNow {
    pub status: TaskStatus,
    /// An agent is assigned.
    pub is_assigned: bool,
    /// A session of the task has had a turn.
    pub has_worked: bool,
    /// The newest fact that could have moved it on.
    pub since: Timestamp,
    /// Who moves it on while it is blocked, and what that person or agent has to do.
    pub blocked_on: Option<(String, String)>,
    /// Its open sessions, those with work first.
    pub sessions: Vec<SessionOfTask>,
    /// The oldest open question.
    pub question: Option<AskedNow>,
    pub branches: Option<BranchesNow>,
    /// The task at the end of what it waits for: that one waits for no other.
    pub blocker: Option<(TaskId, TaskStatus)>,
    /// The next timer, with its note.
    pub timer: Option<(TimerId, Timestamp)>,
    pub recovery: Option<(RecoveryId, RecoveryState, RecoveryCause)>,
}

impl TaskNow {
    fn next(&self, code: NextCode, text: &str) -> Next {
        Next {
            code,
            on: None,
            of: None,
            text: text.to_owned(),
            since: Some(self.since),
            until: None,
        }
    }

    fn waiting(&self, on: WaitsOn, text: &str) -> Next {
        Next {
            on: Some(on),
            ..self.next(NextCode::Waiting, text)
        }
    }

    fn asked(&self) -> Option<Next> {
        let asked = self.question.as_ref()?;
        let (on, what) = match asked.kind {
            QuestionKind::Question => (WaitsOn::Question, "an answer to"),
            QuestionKind::Plan => (WaitsOn::Approval, "a decision on the plan"),
            QuestionKind::Tool => (WaitsOn::Approval, "a decision on the call"),
            QuestionKind::Review => (WaitsOn::Review, "the review"),
        };
        Some(Next {
            of: Some(asked.id.to_string()),
            since: Some(asked.since),
            until: asked.until,
            ..self.waiting(on, &format!("it waits for {what} \"{}\"", asked.title))
        })
    }

    fn branched(&self) -> Option<Next> {
        let live = self.branches?;
        let subagents = if live.count == 1 { "subagent" } else { "subagents" };
        Some(Next {
            of: Some(live.id.to_string()),
            since: Some(live.since),
            until: Some(live.until),
            ..self.waiting(WaitsOn::Branches, &format!("it waits for {} {subagents}", live.count))
        })
    }

    /// Whether an agent is to move it on.
    fn is_agents(&self) -> bool {
        self.is_assigned || self.has_worked
    }

    /// What a person has to do, by the status.
    fn person(&self) -> Option<&'static str> {
        match self.status {
            TaskStatus::Inbox => Some("a person takes it up: assign it"),
            TaskStatus::Review => Some("a person reviews it"),
            TaskStatus::Failed => Some("it failed: a person decides what becomes of it"),
            TaskStatus::Pending if !self.is_agents() => Some("nobody has it: assign it"),
            TaskStatus::AwaitingApproval => Some("a person approves it, or gives it another status"),
            TaskStatus::Assigned
            | TaskStatus::Pending
            | TaskStatus::InProgress
            | TaskStatus::Blocked
            | TaskStatus::Done
            | TaskStatus::Cancelled
            | TaskStatus::Archived => None,
        }
    }
}

/// What moves a task next. The first that holds, from what runs by itself to what nobody does.
pub fn task_next(task: &TaskNow) -> Next {
    let steps: Vec<Next> = task.sessions.iter().filter_map(session_next).collect();
    let first = |code| steps.iter().find(|step| step.code == code).cloned();
    if task.status.is_terminal() {
        // What came since is answered in a new session.
        let ended = task.next(NextCode::Nothing, "the task has ended");
        return first(NextCode::Running)
            .or_else(|| first(NextCode::Queued))
            .unwrap_or(ended);
    }
    let waits = |on: &[WaitsOn]| {
        steps
            .iter()
            .find(|step| step.on.is_some_and(|one| on.contains(&one)))
            .cloned()
    };
    let timer = || {
        let (id, due) = task.timer?;
        Some(Next {
            of: Some(id.to_string()),
            until: Some(due),
            ..task.waiting(WaitsOn::Timer, "an agent looks again at `until`")
        })
    };
    let blocker = || {
        let (id, status) = task.blocker.as_ref()?;
        Some(Next {
            of: Some(id.to_string()),
            ..task.waiting(WaitsOn::Blocker, &format!("it waits for task {id}, which is {status}"))
        })
    };
    let blocked = || {
        let (owner, action) = task
            .blocked_on
            .as_ref()
            .filter(|_| task.status == TaskStatus::Blocked)?;
        Some(Next {
            of: Some(owner.clone()),
            ..task.waiting(WaitsOn::Person, &format!("{owner} has to: {action}"))
        })
    };
    let recovery = || {
        let (id, state, cause) = task.recovery?;
        let code = match state {
            RecoveryState::Open => NextCode::Recovery,
            RecoveryState::Person => NextCode::Waiting,
            RecoveryState::Closed => return None,
        };
        let text = match state {
            RecoveryState::Open => "its agent was told that nothing moves the task on",
            RecoveryState::Person | RecoveryState::Closed => "a person moves it on, or dismisses the recovery",
        };
        Some(Next {
            code,
            on: (state == RecoveryState::Person).then_some(WaitsOn::Person),
            of: Some(id.to_string()),
            ..task.next(code, &format!("{}: {text}", cause.told()))
        })
    };
    first(NextCode::Running)
        .or_else(|| first(NextCode::Queued))
        .or_else(|| task.asked())
        .or_else(|| waits(&[WaitsOn::Tools, WaitsOn::Retry, WaitsOn::Collect]))
        .or_else(|| task.branched())
        .or_else(timer)
        .or_else(blocker)
        .or_else(|| first(NextCode::Waiting))
        .or_else(blocked)
        .or_else(|| Some(task.waiting(WaitsOn::Person, task.person()?)))
        .or_else(recovery)
        .unwrap_or_else(|| match task.is_agents() {
            true => task.next(NextCode::Stalled, "an agent has it, and nothing moves it on"),
            false => task.next(NextCode::Nothing, "no agent has it"),
        })
}

/// What moves a session next; none: it has nothing to do.
pub fn session_next(session: &SessionOfTask) -> Option<Next> {
    let now = &session.now;
    let Some(turn) = now.active_turn else {
        let item = ItemNow {
            state: NotificationState::Queued,
            turn: None,
            created_at: session.opened_at,
            place: None,
        };
        return (session.queued > 0).then(|| waiting(&item, Some(now)));
    };
    let step = |code, on, text: &str| Next {
        code,
        on,
        of: Some(turn.to_string()),
        text: text.to_owned(),
        since: began(turn),
        until: None,
    };
    Some(match now.phase {
        SessionPhase::Waiting => step(
            NextCode::Waiting,
            Some(WaitsOn::Tools),
            "the turn waits for its tool calls",
        ),
        SessionPhase::Backoff if !now.due => Next {
            until: now.wake_at,
            ..step(
                NextCode::Waiting,
                Some(WaitsOn::Retry),
                "the turn's next attempt is due at `until`",
            )
        },
        SessionPhase::Backoff | SessionPhase::Idle | SessionPhase::Running => {
            step(NextCode::Running, None, "a turn is in progress")
        }
    })
}

/// When the turn began: the time in its id.
pub fn began(turn: TurnId) -> Option<Timestamp> {
    let (seconds, nanos) = turn.uuid().get_timestamp()?.to_unix();
    let at = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    OffsetDateTime::from_unix_timestamp_nanos(at)
        .ok()
        .and_then(Timestamp::checked)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const TURN: &str = "0190b5a8-0000-7000-8000-000000000001";

    #[test]
    fn each_item_says_why_it_waits() {
        let at = |seconds| Timestamp(OffsetDateTime::from_unix_timestamp(seconds).unwrap());
        let turn = TurnId(Uuid::parse_str(TURN).unwrap());
        let idle = SessionNow {
            phase: SessionPhase::Idle,
            active_turn: None,
            stopping: false,
            gate: None,
            gate_ref: None,
            gated_since: None,
            wake_at: None,
            due: false,
        };
        let parked = |gate, wake_at| SessionNow {
            phase: SessionPhase::Backoff,
            gate: Some(gate),
            gated_since: Some(at(20)),
            wake_at,
            ..idle
        };
        let check = |state, place, session: Option<SessionNow>, expected: &str| {
            let item = ItemNow {
                state,
                turn: Some(turn).filter(|_| state == NotificationState::Running),
                created_at: at(10),
                place,
            };
            let said = item_next(&item, session.as_ref()).map_or_else(String::new, |next| {
                let on = next.on.map_or("-", WaitsOn::as_str);
                let second = |at: Option<Timestamp>| at.map_or(0, |at| at.0.unix_timestamp());
                format!(
                    "{} {on} {} {} {}",
                    next.code,
                    second(next.since),
                    second(next.until),
                    next.text
                )
            });
            assert_eq!(said.replace(TURN, "T"), expected, "{state} {session:?}");
        };
        use NotificationState::{Delivered, Queued, Running};
        check(Queued, None, None, "queued - 10 0 the resolver has not read it yet");
        check(
            Queued,
            Some(2),
            Some(idle),
            "queued - 10 0 place 2: its turn starts when a place is free",
        );
        let busy = SessionNow {
            phase: SessionPhase::Running,
            active_turn: Some(turn),
            ..idle
        };
        check(
            Queued,
            Some(1),
            Some(busy),
            "queued - 1721034604 0 place 1: behind turn T",
        );
        let stopping = SessionNow { stopping: true, ..busy };
        check(
            Queued,
            None,
            Some(stopping),
            "queued - 1721034604 0 behind turn T, which is stopping",
        );
        check(
            Queued,
            Some(1),
            Some(parked(Gate::Stopped, None)),
            "waiting person 20 0 place 1: a person stopped the session: resume it, promote an item, or send a new one",
        );
        check(
            Queued,
            Some(1),
            Some(parked(Gate::Pause, Some(at(30)))),
            "waiting pause 20 0 place 1: a person paused it: release the hold (`signalbox holds` has it), or wait for its end",
        );
        check(
            Queued,
            Some(1),
            Some(parked(Gate::NoProgress, None)),
            "waiting person 20 0 place 1: the agent went round without progress: resume the session, or send a new item",
        );
        check(
            Queued,
            Some(1),
            Some(parked(Gate::Config, Some(at(30)))),
            "waiting config 20 30 place 1: the agent's provider is not in the operator's settings",
        );
        check(
            Queued,
            Some(1),
            Some(parked(Gate::Provider, Some(at(30)))),
            "waiting provider 20 30 place 1: the agent's provider takes no calls at the moment: it is tried again at `until`",
        );
        check(
            Queued,
            Some(1),
            Some(parked(Gate::Approval, None)),
            "waiting approval 20 0 place 1: the task's plan awaits approval: answer the question, or send a message",
        );
        check(
            Queued,
            None,
            Some(parked(Gate::Later, None)),
            "waiting - 20 0 a later version of Signalbox keeps it",
        );
        check(
            Queued,
            None,
            Some(parked(Gate::Collect, Some(at(30)))),
            "waiting collect 20 30 more items may come, to be answered in one turn",
        );
        let interrupted = SessionNow {
            phase: SessionPhase::Backoff,
            wake_at: Some(at(30)),
            ..idle
        };
        check(
            Queued,
            None,
            Some(interrupted),
            "waiting retry 10 30 the last turn was interrupted: the next attempt is due at `until`",
        );
        let due = SessionNow {
            due: true,
            ..interrupted
        };
        check(
            Queued,
            None,
            Some(due),
            "queued - 10 0 its turn starts when a place is free",
        );
        check(
            Running,
            None,
            Some(busy),
            "running - 1721034604 0 turn T is in progress with it",
        );
        check(Delivered, None, Some(idle), "");
    }

    #[test]
    fn each_task_says_what_moves_it() {
        let at = |seconds| Timestamp(OffsetDateTime::from_unix_timestamp(seconds).unwrap());
        let turn = TurnId(Uuid::parse_str(TURN).unwrap());
        let session = |phase, active_turn, queued| SessionOfTask {
            now: SessionNow {
                phase,
                active_turn,
                stopping: false,
                gate: None,
                gate_ref: None,
                gated_since: None,
                wake_at: Some(at(90)),
                due: false,
            },
            queued,
            opened_at: at(1),
        };
        let gated = |gate| {
            let parked = session(SessionPhase::Backoff, None, 1);
            SessionOfTask {
                now: SessionNow {
                    gate: Some(gate),
                    ..parked.now
                },
                ..parked
            }
        };
        let asked = |kind| AskedNow {
            id: QuestionId(Uuid::from_u128(9)),
            kind,
            title: "Which?".to_owned(),
            since: at(3),
            until: None,
        };
        let task = TaskNow {
            status: TaskStatus::InProgress,
            is_assigned: true,
            has_worked: true,
            since: at(2),
            blocked_on: None,
            sessions: Vec::new(),
            question: None,
            branches: None,
            blocker: None,
            timer: None,
            recovery: None,
        };
        let check = |task: &TaskNow, expected: &str| {
            let next = task_next(task);
            let on = next.on.map_or("-", WaitsOn::as_str);
            assert_eq!(format!("{} {on} {}", next.code, next.text), expected, "{task:?}");
        };
        let of = |sessions: Vec<SessionOfTask>| TaskNow {
            sessions,
            ..task.clone()
        };
        let with = |status| TaskNow { status, ..task.clone() };
        let done = TaskNow {
            sessions: vec![session(SessionPhase::Running, Some(turn), 0)],
            ..with(TaskStatus::Done)
        };
        // What came since has its turn in a new session.
        check(&done, "running - a turn is in progress");
        check(&with(TaskStatus::Done), "nothing - the task has ended");
        let tools = session(SessionPhase::Waiting, Some(turn), 0);
        let running = session(SessionPhase::Running, Some(turn), 0);
        let queued = session(SessionPhase::Idle, None, 2);
        check(&of(vec![tools, queued, running]), "running - a turn is in progress");
        check(
            &of(vec![tools, queued]),
            "queued - its turn starts when a place is free",
        );
        check(&of(vec![tools]), "waiting tools the turn waits for its tool calls");
        let call = TaskNow {
            question: Some(asked(QuestionKind::Tool)),
            ..of(vec![tools])
        };
        check(&call, "waiting approval it waits for a decision on the call \"Which?\"");
        for (kind, expected) in [
            (
                QuestionKind::Question,
                "waiting question it waits for an answer to \"Which?\"",
            ),
            (
                QuestionKind::Plan,
                "waiting approval it waits for a decision on the plan \"Which?\"",
            ),
            (
                QuestionKind::Review,
                "waiting review it waits for the review \"Which?\"",
            ),
        ] {
            let question = Some(asked(kind));
            check(
                &TaskNow {
                    question,
                    ..task.clone()
                },
                expected,
            );
        }
        let retry = session(SessionPhase::Backoff, Some(turn), 0);
        check(
            &of(vec![retry]),
            "waiting retry the turn's next attempt is due at `until`",
        );
        let branches = |count| BranchesNow {
            count,
            id: BranchId(Uuid::from_u128(7)),
            since: at(4),
            until: at(50),
        };
        for (count, expected) in [
            (1, "waiting branches it waits for 1 subagent"),
            (3, "waiting branches it waits for 3 subagents"),
        ] {
            let split = TaskNow {
                branches: Some(branches(count)),
                timer: Some((TimerId(Uuid::from_u128(1)), at(60))),
                ..task.clone()
            };
            check(&split, expected);
        }
        let timer = TaskNow {
            timer: Some((TimerId(Uuid::from_u128(1)), at(60))),
            ..of(vec![gated(Gate::Pause)])
        };
        check(&timer, "waiting timer an agent looks again at `until`");
        check(
            &of(vec![gated(Gate::Stopped)]),
            "waiting person a person stopped the session: resume it, promote an item, or send a new one",
        );
        let blocked = TaskNow {
            blocked_on: Some(("user:ann".to_owned(), "buy it".to_owned())),
            ..with(TaskStatus::Blocked)
        };
        check(&blocked, "waiting person user:ann has to: buy it");
        let behind = TaskNow {
            blocker: Some((TaskId::parse("PROJ-8").unwrap(), TaskStatus::InProgress)),
            ..with(TaskStatus::Blocked)
        };
        check(
            &behind,
            "waiting blocker it waits for task PROJ-8, which is in_progress",
        );
        check(
            &with(TaskStatus::Inbox),
            "waiting person a person takes it up: assign it",
        );
        check(&with(TaskStatus::Review), "waiting person a person reviews it");
        check(
            &with(TaskStatus::Failed),
            "waiting person it failed: a person decides what becomes of it",
        );
        let free = |status| TaskNow {
            is_assigned: false,
            has_worked: false,
            ..with(status)
        };
        check(&free(TaskStatus::Pending), "waiting person nobody has it: assign it");
        check(&free(TaskStatus::InProgress), "nothing - no agent has it");
        for status in [
            TaskStatus::Pending,
            TaskStatus::Assigned,
            TaskStatus::InProgress,
            TaskStatus::Blocked,
        ] {
            check(&with(status), "stalled - an agent has it, and nothing moves it on");
        }
        for (state, expected) in [
            (
                RecoveryState::Open,
                "recovery - an agent has the task, and nothing moves it on: its agent was told that nothing moves the task on",
            ),
            (
                RecoveryState::Person,
                "waiting person an agent has the task, and nothing moves it on: a person moves it on, or dismisses the recovery",
            ),
            (
                RecoveryState::Closed,
                "stalled - an agent has it, and nothing moves it on",
            ),
        ] {
            let recovery = Some((RecoveryId(Uuid::from_u128(2)), state, RecoveryCause::Stranded));
            check(
                &TaskNow {
                    recovery,
                    ..task.clone()
                },
                expected,
            );
        }
    }
}
