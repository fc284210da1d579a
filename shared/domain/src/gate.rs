//! Gates: what keeps a session with queued items from starting a turn. Such a session is parked: in phase `backoff`, without
//! a turn, with the gate in its row.

use crate::{QueueMode, string_enum::string_enum};

string_enum! {
    Gate else Later {
        /// A hold covers its session, its agent, the task of its next item, or the account.
        Pause = "pause",
        /// A person stopped a turn, and items waited behind it.
        Stopped = "stopped",
        /// Agents or timers woke it again and again for the same reason, and its turns changed nothing.
        NoProgress = "no_progress",
        /// The agent's provider is not in the settings.
        Config = "config",
        /// The breaker of the agent's provider is open.
        Provider = "provider",
        /// The plan of its task awaits approval.
        Approval = "approval",
        /// The head is a run of `collect` items that may still grow.
        Collect = "collect",
        /// A gate of a later version: only that version opens it.
        Later = "later",
    }
}

/// A new item of a parked session, as far as it may open the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    pub mode: QueueMode,
    pub from_person: bool,
    /// Nothing else waits: what the gate kept is gone.
    pub alone: bool,
}

impl Gate {
    /// Whether a new item opens the gate. A steer starts before all other items, so no run makes it wait.
    pub fn is_opened_by(self, arrival: Arrival) -> bool {
        match self {
            Gate::Stopped | Gate::NoProgress => {
                arrival.from_person || arrival.alone || matches!(arrival.mode, QueueMode::Steer | QueueMode::Inject)
            }
            Gate::Approval => arrival.from_person,
            Gate::Collect => arrival.mode == QueueMode::Steer,
            Gate::Pause | Gate::Config | Gate::Provider | Gate::Later => false,
        }
    }

    /// Whether parking and release are announced: a run that grows is no news.
    pub fn is_announced(self) -> bool {
        match self {
            Gate::Pause | Gate::Stopped | Gate::NoProgress | Gate::Config | Gate::Provider | Gate::Approval => true,
            Gate::Collect | Gate::Later => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_opened_by_its_own_kind_of_item() {
        let check = |gate: Gate, mode, from_person, expected| {
            let arrival = Arrival {
                mode,
                from_person,
                alone: false,
            };
            assert_eq!(gate.is_opened_by(arrival), expected, "{gate} {arrival:?}");
        };
        use QueueMode::{Collect, Followup, Inject, Steer};
        for mode in QueueMode::ALL {
            check(Gate::Pause, *mode, true, false);
            check(Gate::Config, *mode, true, false);
            check(Gate::Provider, *mode, true, false);
            check(Gate::Approval, *mode, true, true);
            check(Gate::Approval, *mode, false, false);
        }
        check(Gate::NoProgress, Followup, false, false);
        check(Gate::NoProgress, Followup, true, true);
        check(Gate::NoProgress, Steer, false, true);
        check(Gate::Stopped, Followup, false, false);
        check(Gate::Stopped, Followup, true, true);
        check(Gate::Stopped, Collect, true, true);
        check(Gate::Stopped, Steer, false, true);
        check(Gate::Stopped, Inject, false, true);
        check(Gate::Later, Steer, true, false);
        let alone = Arrival {
            mode: Followup,
            from_person: false,
            alone: true,
        };
        assert!(Gate::Stopped.is_opened_by(alone) && !Gate::Later.is_opened_by(alone));
        check(Gate::Collect, Followup, true, false);
        check(Gate::Collect, Collect, true, false);
        check(Gate::Collect, Steer, false, true);
    }
}
