//! What moves a thing next, and what it waits for: from rows that are read anyway. Pure. Text in replies, messages or logs
//! decides nothing.

use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Gate, NotificationState, SessionPhase, Timestamp, TurnId, string_enum::string_enum};

string_enum! {
    NextCode {
        /// A turn in progress.
        Running = "running",
        /// Its turn comes by itself.
        Queued = "queued",
        /// It waits: see `on`.
        Waiting = "waiting",
    }
}

string_enum! {
    WaitsOn {
        /// Further items of the same author, which are answered together.
        Collect = "collect",
        /// The next attempt.
        Retry = "retry",
        /// A hold is released, or ends.
        Pause = "pause",
        /// A person has to do something.
        Person = "person",
        /// Its plan is decided.
        Approval = "approval",
        /// The agent's provider answers again.
        Provider = "provider",
        /// The agent's provider is in the settings.
        Config = "config",
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
            text: format!("{place}a person paused it: release the hold, or wait for its end"),
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
            "waiting pause 20 0 place 1: a person paused it: release the hold, or wait for its end",
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
}
