//! Rows that stay until their message was read: the broker has the message, and no other row would lead its reader to
//! it.
//!
//! The message carries the row's id as its receipt ([`header::RECEIPT`]). The reader deletes the row in the transaction
//! in which it processes the message, with any result: accepted, duplicate or refused, it was read. Usually that is
//! before the relay marks the row as stored, so that the row is never updated. A sweep checks the rows that stay
//! longer.

use contracts::{Headers, header};
use domain::AccountId;
use sea_orm::FromQueryResult;
use uuid::Uuid;

use super::{OUTBOX_DELETE, OutboxRow, columns};
use crate::{Database, StorageError, Tx, accounts::OPERATOR};

/// The key of the row of an unread message.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Receipt {
    account: String,
    id: Uuid,
}

impl Receipt {
    /// The receipts that a message of this account asks for: one or none, as for a publisher outside. A message that
    /// the operator redrove from a dead letter without an account is stored under the operator's account.
    pub fn of(account: Option<&AccountId>, headers: &Headers) -> Vec<Receipt> {
        let Some(id) = headers.get(header::RECEIPT).and_then(|text| Uuid::try_parse(text).ok()) else {
            return Vec::new();
        };
        let is_redrive = headers.get(header::REDRIVE).is_some();
        let operator = is_redrive.then_some(OPERATOR);
        account
            .map(AccountId::as_str)
            .into_iter()
            .chain(operator)
            .map(|owner| Receipt {
                account: owner.to_owned(),
                id,
            })
            .collect()
    }
}

/// Deletes the rows of messages that were read, in the transaction that processes them. One statement a batch, none
/// without receipts. The transaction must have declared the accounts.
pub async fn outbox_receive(tx: &Tx, mut receipts: Vec<Receipt>) -> Result<(), StorageError> {
    if receipts.is_empty() {
        return Ok(());
    }
    // In one order, so that two readers of the same messages do not deadlock.
    receipts.sort_unstable();
    receipts.dedup();
    let keys = receipts.into_iter().map(|receipt| (receipt.account, receipt.id));
    let given = tx.execute("delete read messages", OUTBOX_DELETE, columns(keys.collect()));
    given.await.map(|_| ())
}

/// The stream sequence of a published message.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredRow {
    pub account: String,
    pub id: Uuid,
    pub sequence: i64,
}

pub(super) async fn outbox_stored(database: &Database, rows: Vec<StoredRow>, look_ms: i64) -> Result<(), StorageError> {
    if rows.is_empty() {
        return Ok(());
    }
    let sequences: Vec<i64> = rows.iter().map(|row| row.sequence).collect();
    let [accounts, ids] = columns(rows.into_iter().map(|row| (row.account, row.id)).collect());
    let values = [accounts, ids, sequences.into(), look_ms.into()];
    database
        .execute_alone("mark messages as stored", OUTBOX_STORED, values)
        .await
        .map(|_| ())
}

/// Relies on the primary key. A locked row is being read right now, and is skipped.
pub const OUTBOX_STORED: &str = "
    with there as (
        select o.account_id, o.id, r.sequence
        from unnest($1::text[], $2::uuid[], $3::bigint[]) as r (account_id, id, sequence)
        join outbox o on o.account_id = any (array[r.account_id]) and o.id = r.id
        for update of o skip locked
    )
    update outbox o
    set stored_at = now(), stored_sequence = there.sequence, look_at = now() + $4 * interval '1 millisecond'
    from there where o.account_id = any (array[there.account_id]) and o.id = there.id";

/// When to check unread messages.
#[derive(Clone, Copy, Debug)]
pub struct UnreadCheck {
    /// The time between two checks; up to six times this for old messages.
    pub every_ms: i64,
    /// Published again after this long, whatever the broker says.
    pub again_ms: i64,
    /// Buried at this age.
    pub kept_ms: i64,
    pub rows_max: i64,
    /// Bytes of payloads. The row that reaches the limit is included.
    pub bytes_max: i64,
}

/// A published message that was not read yet.
#[derive(Clone, PartialEq, Debug)]
pub struct UnreadRow {
    pub row: OutboxRow,
    pub sequence: u64,
    pub due: Due,
}

/// The next step for an unread message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Ask the broker whether it still has the message.
    Check,
    /// Publish the message again.
    Again,
    GiveUp,
}

#[derive(FromQueryResult)]
struct Looked {
    #[sea_orm(nested)]
    row: OutboxRow,
    stored_sequence: i64,
    is_again: bool,
    is_over: bool,
}

/// Claims rows that are due for a check; they are due again after a while.
pub async fn outbox_look(database: &Database, look: &UnreadCheck) -> Result<Vec<UnreadRow>, StorageError> {
    let values = [
        database.role().service().into(),
        look.every_ms.into(),
        look.again_ms.into(),
        look.kept_ms.into(),
        look.rows_max.into(),
        look.bytes_max.into(),
    ];
    let looked: Vec<Looked> = database
        .query_alone("claim unread messages", OUTBOX_LOOK, values)
        .await?;
    let unread = |looked: Looked| UnreadRow {
        row: looked.row,
        sequence: looked.stored_sequence.unsigned_abs(),
        due: match (looked.is_over, looked.is_again) {
            (true, _) => Due::GiveUp,
            (false, true) => Due::Again,
            (false, false) => Due::Check,
        },
    };
    Ok(looked.into_iter().map(unread).collect())
}

/// Relies on index outbox_unread. A payload's length is known without reading it. Old rows are checked less often:
/// checks would only add load while a reader is far behind.
pub const OUTBOX_LOOK: &str = "
    with locked as (
        select account_id, id, look_at, octet_length(payload) as bytes from outbox
        where service = $1 and stored_at is not null and look_at < now()
        order by look_at limit $5 for update skip locked
    ), due as (
        select account_id, id
        from (select account_id, id, bytes, sum(bytes) over (order by look_at rows unbounded preceding) as total
              from locked) l
        where l.total - l.bytes < $6
    )
    update outbox o set look_at = now() + least(greatest($2 * interval '1 millisecond', now() - o.stored_at),
                                                6 * $2 * interval '1 millisecond')
    from due
    where o.account_id = any (array[due.account_id]) and o.id = due.id
    returning o.account_id, o.id, o.service, o.subject, o.headers, o.payload, coalesce(o.stored_sequence, 0) as stored_sequence,
              o.stored_at < now() - $3 * interval '1 millisecond' as is_again,
              o.created_at < now() - $4 * interval '1 millisecond' as is_over";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_message_with_the_header_has_a_receipt() {
        let account = AccountId::parse("acme").unwrap();
        let id = Uuid::from_u128(7);
        let check = |headers: &[(&str, &str)], account: Option<&AccountId>, owners: &[&str]| {
            let mut map = Headers::default();
            for (name, value) in headers {
                map.set(name, *value);
            }
            let expected: Vec<Receipt> = owners
                .iter()
                .map(|owner| Receipt {
                    account: (*owner).to_owned(),
                    id,
                })
                .collect();
            assert_eq!(Receipt::of(account, &map), expected, "{headers:?}");
        };
        let asks = (header::RECEIPT, id.to_string());
        let asks = (asks.0, asks.1.as_str());
        check(&[], Some(&account), &[]);
        check(&[(header::RECEIPT, "acme")], Some(&account), &[]);
        check(&[asks], Some(&account), &["acme"]);
        check(&[asks], None, &[]);
        check(&[asks, (header::REDRIVE, "letter")], Some(&account), &["acme", "-"]);
        check(&[asks, (header::REDRIVE, "letter")], None, &["-"]);
    }
}
