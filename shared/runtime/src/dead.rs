//! Dead letters of the consumer loops, with the receipts for their messages. A service buries the messages that it
//! refuses itself, in its own transaction.

use contracts::{Root, header};
use futures::{FutureExt, future::BoxFuture};
use messaging::{BuryError, DeadLetterSink, DeadMessage, Incoming, UNAUTHENTICATED};
use storage::{
    Database,
    dead_letter::Given,
    outbox::unread::{Receipt, outbox_receive},
};
use time::OffsetDateTime;

use crate::{
    Outbox,
    bury::{Owner, buried, origin_of, write},
};

/// Writes the dead messages of a consumer.
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
            let owner = owner_of(&self.root, &dead);
            let Incoming {
                subject,
                headers,
                payload,
                ..
            } = &dead.incoming;
            let letter = Given {
                account: owner.account.as_ref(),
                task: owner.task.as_ref(),
                subject,
                headers,
                payload,
                reason: &dead.reason,
                detail: &dead.detail,
                attempts: i32::try_from(dead.attempts).unwrap_or(i32::MAX),
                origin: origin_of(headers, dead.incoming.id().or_else(|| headers.get(header::CAUSE))),
                at: OffsetDateTime::now_utc(),
            };
            let tx = self.database.begin(&owner.accounts()).await?;
            let rows = write(&tx, &self.root, letter).await?;
            // A dead message counts as read: its outbox row must not publish it again.
            let receipts = Receipt::of(owner.account.as_ref(), headers);
            outbox_receive(&tx, receipts).await?;
            tx.commit().await?;
            buried(&self.database, &dead.reason);
            self.outbox.publish_soon(rows);
            Ok(())
        }
        .boxed()
    }
}

/// A forged message may hold another account's content, published on this account's subject to show it here.
fn owner_of(root: &Root, dead: &DeadMessage) -> Owner {
    if dead.reason == UNAUTHENTICATED {
        Owner::default()
    } else {
        Owner::of(root, &dead.incoming.subject)
    }
}
