//! Writes the dead letters of the consumer loops and of the relay: the row, the message on `{root}.dead.…` and the
//! event `message.died`, in one transaction.

use std::sync::LazyLock;

use contracts::{
    Headers, Outgoing, Root, Timestamp,
    event::{Event, EventMessage, MessageDied},
    header,
    outgoing::Origin,
};
use domain::{AccountId, TaskId};
use opentelemetry::{KeyValue, global, metrics::Counter};
use storage::{
    Accounts, Database, StorageError, Tx,
    accounts::account_exists,
    dead_letter::{Given, dead_letter_insert},
    outbox::{OutboxRow, Owned, outbox_insert},
};
use time::OffsetDateTime;
use uuid::Uuid;

/// Buries an outbox message that the broker will never accept, or that was not read in time. Its row stays: the caller
/// deletes it. The letter's id follows from the message, so burying it again after a crash writes no second letter.
pub(crate) async fn bury_outgoing(
    database: &Database,
    root: &Root,
    message: &Outgoing,
    reason: &str,
    detail: &str,
) -> Result<(), StorageError> {
    let Outgoing {
        subject,
        headers,
        payload,
    } = message;
    let owner = Owner::of(root, subject);
    if owner.is_dead_letter {
        // The letter's row is stored already. Only its announcement exceeds the size limit.
        tracing::warn!(
            message = message.id(),
            detail,
            "could not publish a dead letter's announcement"
        );
        return Ok(());
    }
    let mut headers = headers.clone();
    if headers.get(header::REDRIVE).is_none() {
        // The service wrote this message itself, so it is vouched for. A redriven message has this header from its
        // letter.
        headers.set(header::VOUCHED, "1");
    }
    let letter = Given {
        account: owner.account.as_ref(),
        task: owner.task.as_ref(),
        subject,
        headers: &headers,
        payload,
        reason,
        detail,
        attempts: 1,
        origin: origin_of(&headers, headers.get(header::CAUSE)),
        at: OffsetDateTime::now_utc(),
    };
    let tx = database.begin(&owner.accounts()).await?;
    // The rows of this transaction are not handed to the relay; the outbox sweep publishes them.
    write(&tx, root, letter).await?;
    tx.commit().await?;
    buried(database, reason);
    Ok(())
}

static BURIED: LazyLock<Counter<u64>> = LazyLock::new(|| {
    global::meter("runtime")
        .u64_counter("signalbox.dead_letters.buried")
        .with_description("Messages that became dead letters in a consumer or the relay, by reason")
        .build()
});

pub(crate) fn buried(database: &Database, reason: &str) {
    let service = KeyValue::new("service", database.role().service());
    BURIED.add(1, &[service, KeyValue::new("reason", reason.to_owned())]);
}

/// The trace and the hops that the headers name go on.
pub(crate) fn origin_of(headers: &Headers, cause: Option<&str>) -> Origin {
    Origin {
        cause: cause.map(str::to_owned),
        hops: headers.hops(),
        trace: headers.trace(),
    }
}

pub(crate) async fn write(tx: &Tx, root: &Root, mut letter: Given<'_>) -> Result<Vec<OutboxRow>, StorageError> {
    // The account in a subject is not verified. A letter whose account does not exist belongs to the operator.
    let is_known = match letter.account {
        Some(account) => account_exists(tx, account).await?,
        None => false,
    };
    if !is_known {
        (letter.account, letter.task) = (None, None);
    }
    let (id, message) = dead_letter_insert(tx, root, &letter).await?;
    let mut messages = vec![message];
    // An event belongs to an account. A letter without an account is announced on the dead subject only.
    if let Some(account) = letter.account {
        messages.push(died(tx.role().service(), root, account, &letter, id));
    }
    outbox_insert(tx, messages).await
}

fn died(service: &str, root: &Root, account: &AccountId, given: &Given<'_>, id: Uuid) -> Owned {
    let event = EventMessage {
        account: Some(account.clone()),
        task: given.task.cloned(),
        at: Timestamp::from(given.at),
        event: Event::MessageDied(MessageDied {
            dead_letter_id: id,
            subject: given.subject.to_owned(),
            reason: given.reason.to_owned(),
            detail: given.detail.to_owned(),
        }),
    };
    let (id, source) = (format!("died:{id}"), format!("/signalbox/{service}"));
    let message = Outgoing::of(root, &id, &source, &given.origin, event.at, &event);
    (Some(account.clone()), message)
}

/// The account and task of a message on one of our subjects, as far as its subject names them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) account: Option<AccountId>,
    pub(crate) task: Option<TaskId>,
    is_dead_letter: bool,
}

impl Owner {
    pub(crate) fn of(root: &Root, subject: &str) -> Owner {
        let Some(rest) = subject
            .strip_prefix(root.as_str())
            .and_then(|rest| rest.strip_prefix('.'))
        else {
            return Owner::default();
        };
        let tokens: Vec<&str> = rest.split('.').collect();
        // The number of tokens before the account.
        let before = match tokens[0] {
            "session" | "tool" | contracts::subject::PARTITION_TOKEN => 2,
            _ => 1,
        };
        Owner {
            account: tokens.get(before).and_then(|token| AccountId::parse(token).ok()),
            task: tokens.get(before + 1).and_then(|token| TaskId::parse(token).ok()),
            is_dead_letter: tokens[0] == "dead",
        }
    }

    /// The accounts that a transaction about the message declares: the account may turn out not to exist.
    pub(crate) fn accounts(&self) -> Accounts {
        Accounts::many(&self.account).with_operator().with_everybody()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_says_whose_a_message_is() {
        let root = Root::default();
        let check = |subject: &str, account: Option<&str>, task: Option<&str>| {
            let owner = Owner::of(&root, subject);
            assert_eq!(owner.account.as_ref().map(AccountId::as_str), account, "{subject}");
            assert_eq!(owner.task.as_ref().map(TaskId::as_str), task, "{subject}");
        };
        check("signalbox.notification.acme.PROJ-7", Some("acme"), Some("PROJ-7"));
        check("signalbox.partition.3.acme.PROJ-7", Some("acme"), Some("PROJ-7"));
        check("signalbox.session.resolved.acme.t", Some("acme"), Some("t"));
        check("signalbox.tool.requested.acme.-", Some("acme"), None);
        check("signalbox.event.acme.t.turn.finished", Some("acme"), Some("t"));
        check("signalbox.dead.-.-", None, None);
        check("signalbox.session.resolved.ACME.t", None, Some("t"));
        check("signalbox.session", None, None);
        check("other.notification.acme.t", None, None);
        check("signalbox", None, None);
        assert!(Owner::of(&root, "signalbox.dead.acme.t").is_dead_letter);
    }
}
