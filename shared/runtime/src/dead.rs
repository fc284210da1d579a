//! Dead letters of the consumer loops and of the relay: the row, the message on `{root}.dead.…` and the event
//! `message.died`, in one transaction. What a service refuses for reasons of its own it buries itself, in its own.

use std::sync::LazyLock;

use contracts::{
    Headers, Outgoing, Root, Timestamp,
    event::{Event, EventMessage, MessageDied},
    header,
    outgoing::Origin,
};
use domain::{AccountId, TaskId};
use futures::{FutureExt, future::BoxFuture};
use messaging::{BuryError, DeadLetterSink, DeadMessage, Incoming, UNAUTHENTICATED};
use opentelemetry::{KeyValue, global, metrics::Counter};
use storage::{
    Accounts, Database, StorageError, Tx,
    accounts::account_exists,
    dead_letter::{Given, dead_letter_insert},
    outbox::{
        OutboxRow, Owned, outbox_insert,
        unread::{Receipt, outbox_receive},
    },
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::Outbox;

/// What a consumer gives its dead messages to.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    database: Database,
    outbox: Outbox,
    root: Root,
}

impl DeadLetters {
    pub fn new(database: Database, outbox: Outbox, root: Root) -> DeadLetters {
        DeadLetters { database, outbox, root }
    }
}

impl DeadLetterSink for DeadLetters {
    fn bury(&self, dead: DeadMessage) -> BoxFuture<'_, Result<(), BuryError>> {
        async move {
            let owner = Owner::of_dead(&self.root, &dead);
            let fallen = Fallen {
                owner: &owner,
                subject: &dead.incoming.subject,
                headers: &dead.incoming.headers,
                payload: &dead.incoming.payload,
                reason: &dead.reason,
                detail: &dead.detail,
                attempts: i32::try_from(dead.attempts).unwrap_or(i32::MAX),
                cause: cause_of(&dead.incoming),
            };
            let tx = self.database.begin(&owner.accounts()).await?;
            let rows = write(&tx, &self.root, &fallen).await?;
            // Given up is read: its row must not bring it back.
            let receipts = Receipt::of(owner.account.as_ref(), &dead.incoming.headers);
            outbox_receive(&tx, receipts).await?;
            tx.commit().await?;
            buried(&self.database, &dead.reason);
            self.outbox.publish_soon(rows);
            Ok(())
        }
        .boxed()
    }
}

/// For a message of the outbox that the broker will never take, or that nobody ever read. Its row stays: the caller deletes it, and the letter's
/// id follows from the message, so that a crash in between buries it no second time.
pub(crate) async fn bury_outgoing(
    database: &Database,
    root: &Root,
    row: &OutboxRow,
    reason: &str,
    detail: &str,
) -> Result<(), StorageError> {
    let Outgoing {
        subject,
        headers,
        payload,
    } = &row.outgoing;
    let owner = Owner::of(root, subject);
    if owner.is_dead_letter {
        // The letter itself is a row already; only its announcement does not fit.
        tracing::warn!(
            message = row.outgoing.id(),
            detail,
            "a dead letter could not be announced"
        );
        return Ok(());
    }
    let mut headers = headers.clone();
    if headers.get(header::REDRIVE).is_none() {
        // A service's own words, which no publisher said; one that was sent again has this from its letter.
        headers.set(header::VOUCHED, "1");
    }
    let fallen = Fallen {
        owner: &owner,
        subject,
        headers: &headers,
        payload,
        reason,
        detail,
        attempts: 1,
        cause: headers.get(header::CAUSE).map(str::to_owned),
    };
    let tx = database.begin(&owner.accounts()).await?;
    // The sweep takes these rows up, in a process that has nothing else in hand for this message.
    write(&tx, root, &fallen).await?;
    tx.commit().await?;
    buried(database, reason);
    Ok(())
}

static BURIED: LazyLock<Counter<u64>> = LazyLock::new(|| {
    global::meter("runtime")
        .u64_counter("signalbox.dead_letters.buried")
        .with_description("Messages that a consumer or the relay gave up, by reason")
        .build()
});

fn buried(database: &Database, reason: &str) {
    let service = KeyValue::new("service", database.role().service());
    BURIED.add(1, &[service, KeyValue::new("reason", reason.to_owned())]);
}

struct Fallen<'a> {
    owner: &'a Owner,
    subject: &'a str,
    headers: &'a Headers,
    payload: &'a [u8],
    reason: &'a str,
    detail: &'a str,
    attempts: i32,
    cause: Option<String>,
}

async fn write(tx: &Tx, root: &Root, fallen: &Fallen<'_>) -> Result<Vec<OutboxRow>, StorageError> {
    // A subject is a stranger's word: what names no account that exists is the operator's to read.
    let account = match &fallen.owner.account {
        Some(account) if account_exists(tx, account).await? => Some(account),
        Some(_) | None => None,
    };
    let task = fallen.owner.task.as_ref().filter(|_| account.is_some());
    let origin = Origin {
        cause: fallen.cause.clone(),
        hops: fallen.headers.hops(),
        trace: fallen.headers.trace(),
    };
    let at = OffsetDateTime::now_utc();
    let given = Given {
        account,
        task,
        subject: fallen.subject,
        headers: fallen.headers,
        payload: fallen.payload,
        reason: fallen.reason,
        detail: fallen.detail,
        attempts: fallen.attempts,
        origin: origin.clone(),
        at,
    };
    let (id, message) = dead_letter_insert(tx, root, &given).await?;
    let mut messages = vec![message];
    // Events belong to an account; what belongs to none is on the dead subject alone.
    if let Some(account) = account {
        messages.push(died(tx.role().service(), root, account, &given, id));
    }
    outbox_insert(tx, messages).await
}

fn died(service: &str, root: &Root, account: &AccountId, given: &Given<'_>, id: Uuid) -> Owned {
    let event = EventMessage {
        account: account.clone(),
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

fn cause_of(incoming: &Incoming) -> Option<String> {
    incoming
        .id()
        .or_else(|| incoming.headers.get(contracts::header::CAUSE))
        .map(str::to_owned)
}

/// Whom a message on one of our subjects is for, as far as its subject says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Owner {
    account: Option<AccountId>,
    task: Option<TaskId>,
    is_dead_letter: bool,
}

impl Owner {
    /// A forged message may be another account's, put on this subject so that its content is shown here.
    fn of_dead(root: &Root, dead: &DeadMessage) -> Owner {
        if dead.reason == UNAUTHENTICATED {
            Owner::default()
        } else {
            Owner::of(root, &dead.incoming.subject)
        }
    }

    fn of(root: &Root, subject: &str) -> Owner {
        let Some(rest) = subject
            .strip_prefix(root.as_str())
            .and_then(|rest| rest.strip_prefix('.'))
        else {
            return Owner::default();
        };
        let tokens: Vec<&str> = rest.split('.').collect();
        // How many tokens stand before the account.
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

    /// What a transaction about it declares: the account may turn out not to exist.
    fn accounts(&self) -> Accounts {
        Accounts::many(&self.account).with_operator()
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
