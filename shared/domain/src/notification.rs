//! The states of a notification.

use crate::string_enum::string_enum;

string_enum! {
    /// `delivered`, `failed`, `refused` and `cancelled` are outcomes: exactly one of them is reached, once.
    NotificationState {
        Queued = "queued", Running = "running", Delivered = "delivered", Failed = "failed", Refused = "refused",
        Cancelled = "cancelled",
    }
}

impl NotificationState {
    pub fn is_outcome(self) -> bool {
        match self {
            Self::Queued | Self::Running => false,
            Self::Delivered | Self::Failed | Self::Refused | Self::Cancelled => true,
        }
    }
}

string_enum! {
    /// A step of a notification's route.
    RouteStage {
        /// The mail that it is of: its address, and whom that reaches.
        Mail = "mail",
        /// It is to several agents: the notifications that came of it.
        Parts = "parts",
        Persona = "persona",
        Mode = "mode",
        Refused = "refused",
        Session = "session",
        /// In the queue, or how it left it without a turn.
        Place = "place",
        Turn = "turn",
    }
}

string_enum! {
    /// How something came that the routing log lists.
    RouteSource { Mail = "mail" }
}

string_enum! {
    /// How a notification meets a session that is busy. `interrupt` is read as `steer`, `enqueue` as `followup`.
    QueueMode { Followup = "followup" | "enqueue", Collect = "collect", Steer = "steer" | "interrupt", Inject = "inject" }
}

string_enum! {
    /// When an agent gets what is written to it: in a turn, after the next tool of the turn in progress, or at once.
    Deliver { Turn = "turn", Tool = "tool", Interrupt = "interrupt" }
}

impl Deliver {
    /// The mode of an item that waits for its turn is `in_turn`.
    pub fn mode(self, in_turn: QueueMode) -> QueueMode {
        match self {
            Self::Turn => in_turn,
            Self::Tool => QueueMode::Inject,
            Self::Interrupt => QueueMode::Steer,
        }
    }
}

/// Steers stand before all other items: their positions are this much less than their numbers.
const STEER_OFFSET: i64 = 1 << 40;

impl QueueMode {
    /// The position in its queue of the item that was accepted as `number`, counted from 1: the order of a queue is that
    /// of its positions.
    pub fn position(self, number: i64) -> i64 {
        match self {
            Self::Followup | Self::Collect | Self::Inject => number,
            Self::Steer => number - STEER_OFFSET,
        }
    }

    /// The position of an item of this mode and position that gets mode `to`: that of its number.
    pub fn position_as(self, to: QueueMode, position: i64) -> i64 {
        match (self == Self::Steer, to == Self::Steer) {
            (false, true) if position > 0 => position - STEER_OFFSET,
            (true, false) if position <= 0 => position + STEER_OFFSET,
            _ => position,
        }
    }

    /// The mode of an item in an agent's name: an agent ends no turn, and speaks into none.
    pub fn of_agent(self) -> QueueMode {
        match self {
            Self::Followup | Self::Steer | Self::Inject => Self::Followup,
            Self::Collect => Self::Collect,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steers_stand_first_and_in_their_order() {
        let positions = [
            QueueMode::Steer.position(7),
            QueueMode::Steer.position(9),
            QueueMode::Followup.position(1),
            QueueMode::Collect.position(8),
        ];
        assert!(positions.is_sorted(), "{positions:?}");
    }
}
