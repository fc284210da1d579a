//! Branches: parts of a turn's work that it gives to other agents, or to itself, to be done at the same time. Each runs in a session
//! of its own, from what its parent knew when it made the branch, and its result comes back as an item of its parent's queue. Those
//! of one call are a group. Pure.

use uuid::{Builder, Uuid, Version};

use crate::{BranchId, CloseReason, Depth, NotificationId, SessionId, TurnId, string_enum::string_enum};

string_enum! {
    BranchState {
        Live = "live",
        /// Its last turn has ended, and nothing is left to do.
        Finished = "finished",
        /// Its last turn was given up.
        Failed = "failed",
        /// By its parent, by a person, or with what it belongs to.
        Cancelled = "cancelled",
        /// Its time was over.
        Expired = "expired",
    }
}

string_enum! {
    /// What happens to a branch.
    BranchEvent {
        /// A turn of it has ended, and it has nothing more to do ([`Rest`]).
        Rested = "rested",
        /// The same, after a turn that was given up.
        GivenUp = "given_up",
        /// Its parent or a person cancels it, its turn was stopped, or its parent, its task or its agent is gone.
        Cancelled = "cancelled",
        DeadlinePassed = "deadline_passed",
    }
}

string_enum! {
    /// When the results of a group come back.
    JoinMode {
        /// Together, when the last one has ended.
        All = "all",
        /// Each by itself.
        Each = "each",
    }
}

string_enum! {
    /// What a branch starts from.
    BranchContext {
        /// An assembled context: its parent's turns, and what the spawning turn was about and has said.
        Snapshot = "snapshot",
        /// Its parent's thread at the provider, where the provider can start a thread from another.
        Fork = "fork",
    }
}

impl BranchState {
    pub fn is_live(self) -> bool {
        self == BranchState::Live
    }

    /// The transition table. None: it has ended before, and stays as it is; what comes is late.
    pub fn on(self, event: BranchEvent) -> Option<BranchState> {
        match (self, event) {
            (Self::Live, BranchEvent::Rested) => Some(Self::Finished),
            (Self::Live, BranchEvent::GivenUp) => Some(Self::Failed),
            (Self::Live, BranchEvent::Cancelled) => Some(Self::Cancelled),
            (Self::Live, BranchEvent::DeadlinePassed) => Some(Self::Expired),
            (
                Self::Finished | Self::Failed | Self::Cancelled | Self::Expired,
                BranchEvent::Rested | BranchEvent::GivenUp | BranchEvent::Cancelled | BranchEvent::DeadlinePassed,
            ) => None,
        }
    }

    /// Why its session closes; none: it is open.
    pub fn closes(self) -> Option<CloseReason> {
        match self {
            Self::Live => None,
            Self::Finished | Self::Failed => Some(CloseReason::Folded),
            Self::Cancelled => Some(CloseReason::Cancelled),
            Self::Expired => Some(CloseReason::Expired),
        }
    }
}

/// What a branch may still have to do when a turn of it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "columns", derive(sea_orm::FromQueryResult))]
pub struct Rest {
    /// Items wait in its queue.
    pub queued: bool,
    /// It has live branches of its own.
    pub branches: bool,
    pub questions: bool,
    pub timers: bool,
}

impl Rest {
    pub fn is_all_done(self) -> bool {
        !(self.queued || self.branches || self.questions || self.timers)
    }
}

/// The ids of the branches of a call follow from it: a call that runs again finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spawn {
    /// The parent.
    pub session: SessionId,
    pub turn: TurnId,
    /// Id of the call's record: also the group's.
    pub call: Uuid,
}

impl Spawn {
    /// The n-th branch of the call, from 1, and its session.
    pub fn ids(self, ordinal: usize) -> (BranchId, SessionId) {
        (
            BranchId(self.following(&format!("branch:{ordinal}"))),
            SessionId(self.following(&format!("session:{ordinal}"))),
        )
    }

    /// With the time of the turn, and later than its session, whatever the clocks say: who locks a session and then those of its
    /// branches does so in the order of their ids.
    fn following(self, name: &str) -> Uuid {
        let mut bytes = *Uuid::new_v5(&self.call, name.as_bytes()).as_bytes();
        let millis = |id: Uuid| id.as_u128() >> 80;
        let time = millis(self.turn.uuid()).max(millis(self.session.uuid()) + 1) << 80;
        bytes[..6].copy_from_slice(&time.to_be_bytes()[..6]);
        Builder::from_bytes(bytes).with_version(Version::SortRand).into_uuid()
    }
}

/// How deep branches of branches go where nothing else is set.
pub const DEPTH_MAX_DEFAULT: Depth = Depth::new(1);

/// The type of the item that asks a branch.
pub const REQUEST: &str = "subagent";
/// The type of the item that brings results.
pub const RESULT: &str = "branch_result";
/// Why an item of a branch was cancelled.
pub const BRANCH_ENDED: &str = "branch ended";

/// The id of the item that asks a branch.
pub fn request_id(branch: BranchId) -> NotificationId {
    named(format!("subagent:{branch}"))
}

/// The id of the item with the results of a group.
pub fn join_id(group: Uuid) -> NotificationId {
    named(format!("join:{group}"))
}

/// The id of the item with the result of one branch.
pub fn result_id(branch: BranchId) -> NotificationId {
    named(format!("branch:{branch}"))
}

fn named(text: String) -> NotificationId {
    NotificationId::parse(&text).expect("a word and a UUID are printable and short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_ends_once() {
        let ends = [
            (BranchEvent::Rested, BranchState::Finished),
            (BranchEvent::GivenUp, BranchState::Failed),
            (BranchEvent::Cancelled, BranchState::Cancelled),
            (BranchEvent::DeadlinePassed, BranchState::Expired),
        ];
        assert_eq!(ends.len(), BranchEvent::ALL.len());
        for (event, state) in ends {
            assert_eq!(BranchState::Live.on(event), Some(state));
            assert!(!state.is_live() && state.closes().is_some());
            for &later in BranchEvent::ALL {
                assert_eq!(state.on(later), None, "{state} {later}");
            }
        }
        assert_eq!(BranchState::Live.closes(), None);
    }

    #[test]
    fn a_branch_rests_when_nothing_of_it_is_left() {
        assert!(Rest::default().is_all_done());
        let parts: [fn(&mut Rest); 4] = [
            |rest| rest.queued = true,
            |rest| rest.branches = true,
            |rest| rest.questions = true,
            |rest| rest.timers = true,
        ];
        for part in parts {
            let mut rest = Rest::default();
            part(&mut rest);
            assert!(!rest.is_all_done(), "{rest:?}");
        }
    }

    #[test]
    fn the_ids_of_a_call_are_its_own_and_come_after_its_turn() {
        let turn = TurnId(Uuid::parse_str("0190b5a8-0000-7000-8000-000000000001").unwrap());
        let parent = SessionId(Uuid::parse_str("0190b5a7-0000-7000-8000-000000000001").unwrap());
        let spawn = |call| Spawn {
            session: parent,
            turn,
            call: Uuid::from_u128(call),
        };
        assert_eq!(spawn(1).ids(1), spawn(1).ids(1));
        let (branch, session) = spawn(1).ids(1);
        let all = [
            branch.uuid(),
            session.uuid(),
            spawn(1).ids(2).0.uuid(),
            spawn(2).ids(1).0.uuid(),
        ];
        for (n, id) in all.iter().enumerate() {
            assert_eq!(id.get_version_num(), 7);
            assert_eq!(id.as_bytes()[..6], turn.uuid().as_bytes()[..6]);
            assert!(!all[..n].contains(id));
        }
        let later = TurnId(Uuid::parse_str("0190b5a9-0000-7000-8000-000000000000").unwrap());
        let child = Spawn {
            turn: later,
            ..spawn(1)
        };
        assert!(child.ids(1).1 > session, "a branch's session comes after its parent's");
        let sooner = Spawn {
            session: SessionId(Uuid::parse_str("0190b5a9-0001-7fff-bfff-ffffffffffff").unwrap()),
            ..child
        };
        assert!(sooner.ids(1).1 > sooner.session, "whose clock is ahead");
    }
}
