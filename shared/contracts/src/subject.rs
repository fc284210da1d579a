//! Subjects. Ids are checked types, so a subject built here cannot contain a wildcard, an empty token or a blank. A
//! parsed subject may come from any publisher and is checked token by token.

use std::fmt;

use domain::{AccountId, TaskId};

use crate::{dead::DeadLetter, message::Message};

/// The first token of every subject; `signalbox` by default.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Root(String);

impl Root {
    /// A root is one token: letters, digits, `-` and `_`.
    pub fn parse(text: &str) -> Result<Root, SubjectError> {
        let fits = !text.is_empty()
            && text.len() <= 64
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if fits {
            Ok(Root(text.to_owned()))
        } else {
            Err(SubjectError::Root)
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Root {
    fn default() -> Self {
        Root("signalbox".to_owned())
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    #[error("the root of the subjects is 1-64 characters of A-Z, a-z, 0-9, - and _")]
    Root,
    #[error("the subject does not have the form {{root}}.notification.{{account}}.{{task}}")]
    Shape,
    #[error("the account in the subject is not an account id")]
    Account,
    #[error("the task in the subject is neither a task id nor -")]
    Task,
}

/// The account in the subject of what belongs to no account.
pub const NO_ACCOUNT: &str = "-";

/// The task in a subject: `-` if there is none.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TaskToken(pub Option<TaskId>);

impl TaskToken {
    pub fn parse(text: &str) -> Result<TaskToken, SubjectError> {
        if text == "-" {
            return Ok(TaskToken(None));
        }
        TaskId::parse(text)
            .map(|task| TaskToken(Some(task)))
            .map_err(|_| SubjectError::Task)
    }
}

impl fmt::Display for TaskToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(task) => task.fmt(f),
            None => f.write_str("-"),
        }
    }
}

/// The partition token that the notification stream inserts into the stored subject.
pub const PARTITION_TOKEN: &str = "partition";

impl Root {
    /// `{root}.{kind}.{account}.{task}`.
    pub fn subject<M: Message>(&self, account: &AccountId, task: Option<&TaskId>) -> String {
        self.address(M::KIND, Some(account), task)
    }
    /// `{root}.event.{account}.{task}.{noun}.{fact}`. `kind` is `noun.fact`. An event of no account goes to `{root}.event.-.-.…`.
    pub fn event(&self, account: Option<&AccountId>, task: Option<&TaskId>, kind: &str) -> String {
        format!("{}.{kind}", self.address("event", account, task))
    }
    /// `{root}.dead.{account}.{task}`. A letter without an account goes to `{root}.dead.-.-`.
    pub fn dead(&self, account: Option<&AccountId>, task: Option<&TaskId>) -> String {
        self.address(DeadLetter::KIND, account, task)
    }

    pub(crate) fn address(&self, kind: &str, account: Option<&AccountId>, task: Option<&TaskId>) -> String {
        let account = account.map_or(NO_ACCOUNT, AccountId::as_str);
        match task {
            Some(task) => format!("{self}.{kind}.{account}.{task}"),
            None => format!("{self}.{kind}.{account}.-"),
        }
    }

    /// Parses a notification's subject, as published or as its stream stores it:
    /// `{root}.notification.{account}.{task}` or `{root}.partition.{p}.{account}.{task}`.
    pub fn read_notification(&self, subject: &str) -> Result<(AccountId, TaskToken), SubjectError> {
        let published = self.notification_published(subject);
        let tokens: Vec<&str> = published.split('.').collect();
        match tokens[..] {
            [root, "notification", account, task] if root == self.as_str() => Ok((
                AccountId::parse(account).map_err(|_| SubjectError::Account)?,
                TaskToken::parse(task)?,
            )),
            _ => Err(SubjectError::Shape),
        }
    }

    /// The published subject of a stored notification: the stream adds the partition. Any other subject is returned
    /// unchanged.
    pub fn notification_published(&self, stored: &str) -> String {
        let tokens: Vec<&str> = stored.splitn(4, '.').collect();
        match tokens[..] {
            [root, PARTITION_TOKEN, _partition, address] if root == self.as_str() => {
                format!("{self}.notification.{address}")
            }
            _ => stored.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notification::NotificationMessage;

    #[test]
    fn a_stored_subject_says_where_it_was_published() {
        let root = Root::default();
        let check = |stored: &str, published: &str| assert_eq!(root.notification_published(stored), published);
        check(
            "signalbox.partition.3.acme.PROJ-7",
            "signalbox.notification.acme.PROJ-7",
        );
        check("signalbox.partition.3.ACME.*", "signalbox.notification.ACME.*");
        check("signalbox.notification.acme.-", "signalbox.notification.acme.-");
        check("other.partition.3.acme.-", "other.partition.3.acme.-");
    }

    #[test]
    fn a_notification_subject_reads_back_in_both_forms() {
        let (root, account) = (Root::default(), AccountId::parse("acme").unwrap());
        let task = TaskId::parse("PROJ-7").unwrap();
        let published = root.subject::<NotificationMessage>(&account, Some(&task));
        assert_eq!(published, "signalbox.notification.acme.PROJ-7");
        for subject in [published.as_str(), "signalbox.partition.3.acme.PROJ-7"] {
            assert_eq!(
                root.read_notification(subject),
                Ok((account.clone(), TaskToken(Some(task.clone()))))
            );
        }
        assert_eq!(
            root.read_notification("signalbox.notification.acme.-"),
            Ok((account, TaskToken(None)))
        );
    }

    #[test]
    fn a_stranger_s_subject_is_checked_token_by_token() {
        let root = Root::default();
        let check = |subject: &str, expected: SubjectError| {
            assert_eq!(root.read_notification(subject), Err(expected), "{subject}");
        };
        check("other.notification.acme.t", SubjectError::Shape);
        check("signalbox.notification.acme", SubjectError::Shape);
        check("signalbox.notification.acme.t.u", SubjectError::Shape);
        check("signalbox.notification.ACME.t", SubjectError::Account);
        check("signalbox.notification..t", SubjectError::Account);
        check("signalbox.notification.acme.*", SubjectError::Task);
        check("signalbox.notification.acme.", SubjectError::Task);
    }
}
