//! Tells a person of mail outside of Signalbox, where the person wishes it: a row for the sender, in the transaction of the mail.

use domain::{AccountId, MailId};
use uuid::Uuid;

use crate::{StorageError, Tx};

/// Relies on primary keys and outbound_delivery_pending. A function, since whoever writes mail may not read what its recipient wishes.
const ANNOUNCE: &str = "select mail_announce($1, $2, $3)::text as announced";

/// The delivery of mail by a way: the same, however often it is asked for.
fn delivery_id(mail: MailId, way: &str) -> Uuid {
    Uuid::new_v5(&mail.0, way.as_bytes())
}

/// Writes the e-mail of mail to a person. Nothing is written where no e-mail is sent, and for a person without an address.
pub async fn announce(tx: &Tx, account: &AccountId, mail: MailId) -> Result<(), StorageError> {
    let values = [account.into(), mail.into(), delivery_id(mail, "email").into()];
    tx.execute("announce mail", ANNOUNCE, values).await.map(drop)
}
