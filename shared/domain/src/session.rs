//! A session's kinds, phases and endings, and its transitions: [`SessionState::on`]. An arrived tool result or a due
//! retry changes no phase; the claim does.

use crate::{Actor, ActorKind, Count, CountOrNone, step::ImpossibleStep, string_enum::string_enum};

string_enum! {
    SessionKind {
        Task = "task", System = "system", Orchestrator = "orchestrator",
        /// A person's orchestrator, as it answers one other person.
        Guest = "guest",
        /// Parallel work that a turn has spawned.
        Branch = "branch",
        /// A turn that is run again without effects.
        Replay = "replay",
    }
}

string_enum! {
    /// The phases of a session. A lease is held in `running` only.
    SessionPhase {
        /// No turn in progress; claimable when its queue is not empty.
        Idle = "idle",
        /// A replica holds the lease.
        Running = "running",
        /// The turn waits for tool results; the lease is released.
        Waiting = "waiting",
        /// The turn waits for its next attempt.
        Backoff = "backoff",
    }
}

string_enum! {
    CloseReason {
        TaskDone = "task_done", TaskCancelled = "task_cancelled", TaskArchived = "task_archived",
        AgentRemoved = "agent_removed", MemberRemoved = "member_removed",
        /// Whose orchestrator it is lets nobody ask it any more.
        Unreachable = "unreachable",
        Reset = "reset", Rotated = "rotated",
        /// A branch whose result is in its parent's queue.
        Folded = "folded",
        /// A branch, before its work was done.
        Cancelled = "cancelled", Expired = "expired",
        /// A replay that has ended.
        Replayed = "replayed",
        /// Another agent has its task.
        HandedOver = "handed_over",
    }
}

string_enum! {
    /// What happens to a session.
    SessionEvent {
        /// An item was appended to its queue.
        Entered = "entered",
        /// A replica takes the lease.
        Claimed = "claimed",
        /// A replica takes over the lease of a dead holder.
        LeaseLost = "lease_lost",
        /// The provider requested tools.
        ToolsAsked = "tools_asked",
        /// A missing result is requested again.
        AwaitedLonger = "awaited_longer",
        /// The turn is resumed after a delay.
        RetryScheduled = "retry_scheduled",
        TurnEnded = "turn_ended",
        /// The turn ended and its items are queued again, after a delay.
        TurnInterrupted = "turn_interrupted",
        /// The generation ended.
        Closed = "closed",
        /// Items of the ended generation moved to the next one.
        Succeeded = "succeeded",
        /// A gate keeps its queue from starting.
        Parked = "parked",
        /// The gate was opened.
        Unparked = "unparked",
        /// Its turn in progress is to end.
        StopAsked = "stop_asked",
        /// Its last waiting item was withdrawn, and it has no turn.
        Emptied = "emptied",
        /// An admin took the lease from its holder.
        LeaseReleased = "lease_released",
        /// Its turn in progress waits for its provider.
        Deferred = "deferred",
    }
}

/// The state on which the possible events depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionState {
    pub phase: SessionPhase,
    pub closed: bool,
}

impl SessionState {
    /// The transition table. A closed session accepts no item and starts no turn, but its turn in progress runs to its
    /// end.
    pub fn on(self, event: SessionEvent) -> Result<SessionState, ImpossibleStep> {
        use SessionEvent::{
            AwaitedLonger, Claimed, Closed, Deferred, Emptied, Entered, LeaseLost, LeaseReleased, Parked,
            RetryScheduled, StopAsked, Succeeded, ToolsAsked, TurnEnded, TurnInterrupted, Unparked,
        };
        use SessionPhase::{Backoff, Idle, Running, Waiting};
        let phase = |phase| Ok(SessionState { phase, ..self });
        let impossible = || {
            let state = if self.closed { "closed" } else { self.phase.as_str() };
            Err(ImpossibleStep::new("session", state, event.as_str()))
        };
        match (event, self.phase, self.closed) {
            (Entered, Idle | Running | Waiting | Backoff, false) => Ok(self),
            (Entered, Idle | Running | Waiting | Backoff, true) => impossible(),
            (Claimed, Idle, false) | (Claimed, Waiting | Backoff, false | true) => phase(Running),
            (Claimed, Idle, true) | (Claimed, Running, false | true) => impossible(),
            (LeaseLost, Running, false | true) => phase(Running),
            (ToolsAsked, Running, false | true) => phase(Waiting),
            (AwaitedLonger, Waiting, false | true) => phase(Waiting),
            (RetryScheduled | TurnInterrupted, Running, false | true) => phase(Backoff),
            (TurnEnded, Running, false | true) => phase(Idle),
            (AwaitedLonger, Idle | Running | Backoff, false | true) => impossible(),
            (
                LeaseLost | ToolsAsked | RetryScheduled | TurnInterrupted | TurnEnded,
                Idle | Waiting | Backoff,
                false | true,
            ) => impossible(),
            (Closed, Idle | Running | Waiting | Backoff, false) => Ok(SessionState { closed: true, ..self }),
            (Closed, Idle | Running | Waiting | Backoff, true) => impossible(),
            (Succeeded, Idle | Running | Waiting | Backoff, true) => Ok(self),
            (Succeeded, Idle | Running | Waiting | Backoff, false) => impossible(),
            // From running: with the end of its turn.
            (Parked, Idle | Running | Backoff, false) => phase(Backoff),
            (Unparked, Backoff, false) => phase(Backoff),
            (Parked, Waiting, false) | (Unparked, Idle | Running | Waiting, false) => impossible(),
            (Parked | Unparked, Idle | Running | Waiting | Backoff, true) => impossible(),
            (StopAsked, Running | Waiting | Backoff, false | true) => Ok(self),
            (StopAsked, Idle, false | true) => impossible(),
            (Emptied, Idle | Backoff, false) => phase(Idle),
            (Emptied, Running | Waiting, false) | (Emptied, Idle | Running | Waiting | Backoff, true) => impossible(),
            (LeaseReleased, Running, false | true) => phase(Backoff),
            (LeaseReleased, Idle | Waiting | Backoff, false | true) => impossible(),
            // From running: its holder is dead.
            (Deferred, Running | Backoff, false | true) => phase(Backoff),
            (Deferred, Waiting, false | true) => Ok(self),
            (Deferred, Idle, false | true) => impossible(),
        }
    }
}

/// The limits of a session's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLimits {
    /// Wake-ups of agents by agents that led to an item (B5).
    pub hops_max: u16,
    /// Items queued in one session. The last tenth is for people; Signalbox's own items may exceed the limit.
    pub items_max: u32,
}

/// Hops of an item where nothing else is set.
pub const HOPS_MAX_DEFAULT: CountOrNone = CountOrNone::new(8);
/// Open sessions on the board of one orchestrator, where nothing else is set.
pub const CHILDREN_OPEN_MAX_DEFAULT: Count = Count::new(20);

impl QueueLimits {
    /// For Signalbox's own items: they must reach their agents whatever else waits, and no agent wakes another by them.
    pub const OWN: QueueLimits = QueueLimits {
        hops_max: u16::MAX,
        items_max: u32::MAX,
    };

    /// How many items may be queued if `sender` adds one; none: any number.
    pub fn items_max_for(&self, sender: &Actor) -> Option<u32> {
        if *sender == Actor::system() {
            None
        } else if sender.kind == ActorKind::User {
            Some(self.items_max)
        } else {
            Some(self.items_max - self.items_max / 10)
        }
    }
}

/// Why an item may not enter a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inadmissible {
    HopLimit { hops: u16, max: u16 },
    QueueFull { waiting: u32, max: u32 },
}

/// Whether an item after `hops` wake-ups of agents by agents may enter a queue of `waiting` items. The one rule for the
/// resolver and for callers that append to a known session.
pub fn admission(hops: u16, sender: &Actor, waiting: u32, limits: &QueueLimits) -> Result<(), Inadmissible> {
    if hops > limits.hops_max {
        let max = limits.hops_max;
        return Err(Inadmissible::HopLimit { hops, max });
    }
    match limits.items_max_for(sender) {
        Some(max) if waiting >= max => Err(Inadmissible::QueueFull { waiting, max }),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_given_back_by_every_outcome() {
        let running = SessionState {
            phase: SessionPhase::Running,
            closed: false,
        };
        for event in [
            SessionEvent::ToolsAsked,
            SessionEvent::RetryScheduled,
            SessionEvent::TurnEnded,
            SessionEvent::TurnInterrupted,
        ] {
            let after = running.on(event).unwrap();
            assert_ne!(after.phase, SessionPhase::Running, "{event}");
            assert_eq!(after.on(SessionEvent::Claimed), Ok(running), "{event}");
        }
        assert!(
            running.on(SessionEvent::Claimed).is_err(),
            "another replica holds the lease"
        );
    }

    #[test]
    fn a_closed_session_ends_its_turn_and_accepts_no_item() {
        let closed = SessionState {
            phase: SessionPhase::Idle,
            closed: true,
        };
        for event in [SessionEvent::Entered, SessionEvent::Claimed, SessionEvent::Closed] {
            let error = closed.on(event).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("impossible step: a session in state closed, step {event}")
            );
        }
        for phase in [SessionPhase::Waiting, SessionPhase::Backoff] {
            let state = SessionState { phase, ..closed }.on(SessionEvent::Claimed).unwrap();
            assert_eq!(state.on(SessionEvent::TurnEnded), Ok(closed));
        }
    }

    #[test]
    fn the_last_places_of_a_queue_are_for_people() {
        let limits = QueueLimits {
            hops_max: 3,
            items_max: 20,
        };
        let person = Actor {
            kind: ActorKind::User,
            ..Actor::publisher()
        };
        let check = |hops, sender: &Actor, waiting, expected| {
            assert_eq!(
                admission(hops, sender, waiting, &limits),
                expected,
                "{sender:?} {waiting}"
            );
        };
        let full = |waiting, max| Err(Inadmissible::QueueFull { waiting, max });
        check(3, &Actor::publisher(), 17, Ok(()));
        check(3, &Actor::publisher(), 18, full(18, 18));
        check(3, &person, 19, Ok(()));
        check(3, &person, 20, full(20, 20));
        check(3, &Actor::system(), 20, Ok(()));
        check(4, &Actor::system(), 0, Err(Inadmissible::HopLimit { hops: 4, max: 3 }));
    }
}
