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
    /// How a notification meets a session that is busy. `interrupt` is read as `steer`.
    QueueMode { Followup = "followup", Collect = "collect", Steer = "steer" | "interrupt", Inject = "inject" }
}
