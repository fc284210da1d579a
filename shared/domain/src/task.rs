//! A task's status. The pipeline depends on one distinction only: whether the task has ended.

use crate::string_enum::string_enum;

string_enum! {
    /// The board's `completed` is read as `done`.
    TaskStatus {
        Inbox = "inbox", Assigned = "assigned", Pending = "pending", InProgress = "in_progress", Review = "review",
        Blocked = "blocked", AwaitingApproval = "awaiting_approval", Done = "done" | "completed", Failed = "failed",
        Cancelled = "cancelled", Archived = "archived",
    }
}

impl TaskStatus {
    /// Reaching one of these closes the task's sessions, in the same transaction (S3). `failed` is not one: a failed
    /// task waits for a decision and has not ended.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Done | Self::Cancelled | Self::Archived => true,
            Self::Inbox
            | Self::Assigned
            | Self::Pending
            | Self::InProgress
            | Self::Review
            | Self::Blocked
            | Self::AwaitingApproval
            | Self::Failed => false,
        }
    }
}

/// The characters of a title that is made of a request.
pub const TITLE_CHARACTERS_MAX: usize = 200;

/// The title of a task that is made for a request: its first line that is not blank.
pub fn title_of(request: &str) -> String {
    let line = request.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or_default().chars().take(TITLE_CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_the_first_line() {
        assert_eq!(title_of("\n  Fix the tests.  \nAll of them."), "Fix the tests.");
        assert_eq!(title_of(&"é".repeat(300)).chars().count(), TITLE_CHARACTERS_MAX);
    }

    #[test]
    fn completed_is_read_as_done() {
        assert_eq!(TaskStatus::parse("completed"), Some(TaskStatus::Done));
        assert_eq!(serde_test_read("\"completed\""), TaskStatus::Done);
        assert_eq!(TaskStatus::Done.as_str(), "done");
    }

    fn serde_test_read(json: &str) -> TaskStatus {
        use serde::Deserialize;
        use serde::de::IntoDeserializer;
        let text = json.trim_matches('"');
        let deserializer: serde::de::value::StrDeserializer<'_, serde::de::value::Error> = text.into_deserializer();
        TaskStatus::deserialize(deserializer).unwrap()
    }
}
