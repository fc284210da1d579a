//! Holds: what a person has paused. No turn starts in a session that an active hold covers.

use time::OffsetDateTime;

use crate::{AgentId, HoldId, SessionId, TaskId, string_enum::string_enum};

string_enum! {
    /// What a hold covers.
    HoldScope {
        /// Every session of the account.
        Account = "account",
        /// Sessions whose next item is on the task.
        Task = "task",
        /// Every session of the agent.
        Agent = "agent",
        /// One session.
        Session = "session",
    }
}

string_enum! {
    /// What becomes of the turns that are in progress.
    HoldRunning {
        /// They go on to their end, tools included.
        Finish = "finish",
        /// They are ended.
        Stop = "stop",
    }
}

/// An active hold, as far as it decides.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "columns", derive(sea_orm::FromQueryResult))]
pub struct Hold {
    pub id: HoldId,
    pub scope_kind: HoldScope,
    /// As it is compared: a task's key, an id.
    pub scope_id: String,
    pub running: HoldRunning,
    /// None: until it is released.
    pub until: Option<OffsetDateTime>,
    /// The name of who made it.
    pub by_name: String,
}

/// A session, with the task of the item or the turn that is to go on.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    pub session: SessionId,
    pub agent: Option<AgentId>,
    pub task: Option<&'a TaskId>,
}

impl Hold {
    pub fn covers(&self, held: Held<'_>) -> bool {
        let is = |id: Option<String>| id.is_some_and(|id| id == self.scope_id);
        match self.scope_kind {
            HoldScope::Account => true,
            HoldScope::Task => is(held.task.map(|task| task.key().to_string())),
            HoldScope::Agent => is(held.agent.map(|agent| agent.to_string())),
            HoldScope::Session => is(Some(held.session.to_string())),
        }
    }
}

/// Which of these active holds keeps the session from starting: of several, the one that lasts longest, so that the session is
/// not looked at before it may start.
pub fn kept_by<'h, H: AsRef<Hold>>(holds: &'h [H], held: Held<'_>) -> Option<&'h H> {
    let covering = holds.iter().filter(|hold| hold.as_ref().covers(held));
    covering.max_by_key(|hold| {
        let Hold { id, until, .. } = hold.as_ref();
        (until.is_none(), *until, *id)
    })
}

/// Which of these active holds ends the session's turn in progress.
pub fn stopped_by<'h, H: AsRef<Hold>>(holds: &'h [H], held: Held<'_>) -> Option<&'h H> {
    let stops = |hold: &Hold| hold.running == HoldRunning::Stop && hold.covers(held);
    holds.iter().find(|hold| stops(hold.as_ref()))
}

impl AsRef<Hold> for Hold {
    fn as_ref(&self) -> &Hold {
        self
    }
}

#[cfg(test)]
mod tests {
    use time::Duration;
    use uuid::Uuid;

    use super::*;

    fn hold(id: u128, scope_kind: HoldScope, scope_id: impl ToString) -> Hold {
        Hold {
            id: HoldId(Uuid::from_u128(id)),
            scope_kind,
            scope_id: scope_id.to_string(),
            running: HoldRunning::Finish,
            until: None,
            by_name: "Ann".to_owned(),
        }
    }

    const SESSION: SessionId = SessionId(Uuid::from_u128(7));
    const AGENT: AgentId = AgentId(Uuid::from_u128(8));

    #[test]
    fn a_hold_covers_its_scope() {
        let task = TaskId::parse("PROJ-7").unwrap();
        let held = Held {
            session: SESSION,
            agent: Some(AGENT),
            task: Some(&task),
        };
        let check = |kind, id: String, held, expected| {
            assert_eq!(hold(1, kind, &id).covers(held), expected, "{kind} {id} {held:?}");
        };
        use HoldScope::{Account, Agent, Session, Task};
        check(Account, "acme".to_owned(), held, true);
        check(Task, "proj-7".to_owned(), held, true);
        check(Task, "proj-77".to_owned(), held, false);
        check(Task, "proj-7".to_owned(), Held { task: None, ..held }, false);
        check(Agent, AGENT.to_string(), held, true);
        check(Agent, SESSION.to_string(), held, false);
        check(Agent, AGENT.to_string(), Held { agent: None, ..held }, false);
        check(Session, SESSION.to_string(), held, true);
        check(Session, AGENT.to_string(), held, false);
    }

    #[test]
    fn the_hold_that_lasts_longest_keeps_a_session() {
        let held = Held {
            session: SESSION,
            agent: Some(AGENT),
            task: None,
        };
        let until = |id, seconds: i64| Hold {
            until: Some(OffsetDateTime::UNIX_EPOCH + Duration::seconds(seconds)),
            ..hold(id, HoldScope::Account, "acme")
        };
        let check = |holds: &[Hold], expected: Option<u128>| {
            let kept = kept_by(holds, held).map(|hold| hold.id.0.as_u128());
            assert_eq!(kept, expected, "{holds:?}");
        };
        check(&[], None);
        check(&[hold(1, HoldScope::Task, "other")], None);
        check(&[until(1, 5), until(2, 9), until(3, 7)], Some(2));
        check(&[until(1, 5), hold(2, HoldScope::Agent, AGENT), until(3, 9)], Some(2));
        check(&[until(1, 5), hold(2, HoldScope::Agent, SESSION)], Some(1));
    }

    #[test]
    fn one_hold_that_stops_ends_a_turn() {
        let held = Held {
            session: SESSION,
            agent: Some(AGENT),
            task: None,
        };
        let stop = |scope_id: String| Hold {
            running: HoldRunning::Stop,
            ..hold(2, HoldScope::Agent, scope_id)
        };
        let finish = || hold(1, HoldScope::Account, "acme");
        assert_eq!(stopped_by(&[finish()], held), None);
        assert_eq!(stopped_by(&[finish(), stop(SESSION.to_string())], held), None);
        let stops = [finish(), stop(AGENT.to_string())];
        assert_eq!(stopped_by(&stops, held), Some(&stops[1]));
    }
}
