//! The outbox: messages of a transaction are rows of that transaction.
//!
//! The service hands the rows to its relay right after commit; the relay publishes them and deletes them. Rows that a
//! crash left are claimed by age, never by position: ids do not commit in order. No transaction is open while a message
//! is being published: a claim is one short update, and an old claim counts as abandoned.
//!
//! The messages of a transaction and an account share rows (ADR 53): a row goes when all its messages were published. A
//! row whose message is awaited ([`awaited`]) has no other, and is deleted by its reader: see [`unread`].

pub mod unread;

use std::{collections::HashMap, time::Duration};

use unread::{StoredRow, outbox_stored};

use contracts::{
    Headers, Outgoing, header,
    message::{Stream, awaited},
};
use domain::AccountId;
use sea_orm::{DbErr, FromQueryResult, QueryResult, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Database, StorageError, Tx, accounts::OPERATOR, error::Attempt, statement, statement::column};

/// A committed row of messages that may be unpublished.
#[derive(Clone, PartialEq, Debug)]
pub struct OutboxRow {
    pub account: String,
    pub id: Uuid,
    /// Empty in a row that another version has packed.
    pub messages: Vec<Outgoing>,
}

impl FromQueryResult for OutboxRow {
    fn from_query_result(row: &QueryResult, prefix: &str) -> Result<OutboxRow, DbErr> {
        let service: String = row.try_get(prefix, "service")?;
        let subject: String = row.try_get(prefix, "subject")?;
        let payload: Vec<u8> = row.try_get(prefix, "payload")?;
        let messages = if service.ends_with(BATCH) {
            unpacked(&subject, &payload).unwrap_or_default()
        } else {
            let headers = serde_json::from_value(row.try_get(prefix, "headers")?);
            vec![Outgoing {
                subject,
                headers: headers.map_err(|error| DbErr::Type(error.to_string()))?,
                payload,
            }]
        };
        Ok(OutboxRow {
            account: row.try_get(prefix, "account_id")?,
            id: row.try_get(prefix, "id")?,
            messages,
        })
    }
}

impl OutboxRow {
    pub fn key(self) -> OutboxKey {
        (self.account, self.id)
    }

    /// Whether it stays until its message was read.
    pub fn is_awaited(&self) -> bool {
        let asks = |message: &Outgoing| message.headers.get(header::RECEIPT).is_some();
        self.messages.iter().any(asks)
    }

    pub fn bytes(&self) -> usize {
        self.messages.iter().map(|message| message.payload.len()).sum()
    }
}

/// Ends the service of a row of several messages. An earlier version, which could not read such a row, does not see it.
pub const BATCH: &str = ".batch";
/// Limits of a row of several messages.
const BATCH_MESSAGES_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 256 * 1024;
/// First byte of the packed form. A change of the form needs another.
const PACKED: u8 = 1;

/// Headers and payloads of several messages. Their subjects stand in the row's, one space between, since policies
/// compare them.
fn packed(messages: &[Outgoing]) -> Vec<u8> {
    let messages: Vec<(&Headers, &[u8])> = messages.iter().map(|one| (&one.headers, &*one.payload)).collect();
    postcard::to_extend(&messages, vec![PACKED]).expect("messages serialise: texts and bytes")
}

fn unpacked(subjects: &str, packed: &[u8]) -> Option<Vec<Outgoing>> {
    let (&PACKED, packed) = packed.split_first()? else {
        return None;
    };
    let messages: Vec<(Headers, Vec<u8>)> = postcard::from_bytes(packed).ok()?;
    let subjects: Vec<&str> = subjects.split(' ').collect();
    let of = |(subject, (headers, payload)): (&str, (Headers, Vec<u8>))| Outgoing {
        subject: subject.to_owned(),
        headers,
        payload,
    };
    (subjects.len() == messages.len()).then(|| subjects.into_iter().zip(messages).map(of).collect())
}

/// A message with its account; without one it is the operator's.
pub type Owned = (Option<AccountId>, Outgoing);

/// Writes messages into the transaction and returns the rows for the relay. Awaited messages ask for a receipt. The
/// transaction must have declared the accounts.
pub async fn outbox_insert(tx: &Tx, messages: Vec<Owned>) -> Result<Vec<OutboxRow>, StorageError> {
    let rows = outbox_rows(messages);
    if !rows.is_empty() {
        tx.execute("write outbox", OUTBOX_INSERT, outbox_values(tx, &rows))
            .await?;
    }
    Ok(rows)
}

/// Takes back rows that this transaction has written.
pub async fn outbox_withdraw(tx: &Tx, rows: Vec<OutboxRow>) -> Result<(), StorageError> {
    let keys = columns(rows.into_iter().map(OutboxRow::key).collect());
    tx.execute("take back outbox rows", OUTBOX_DELETE, keys)
        .await
        .map(|_| ())
}

/// The rows of messages: one for the messages of an account, as far as its limits go, and one for each awaited message.
pub fn outbox_rows(messages: Vec<Owned>) -> Vec<OutboxRow> {
    let mut rows: Vec<OutboxRow> = Vec::new();
    // Of each account the row that takes more messages, and its bytes.
    let mut open: HashMap<String, (usize, usize)> = HashMap::new();
    for (account, mut outgoing) in messages {
        let account = account.map_or_else(|| OPERATOR.to_owned(), String::from);
        let id = Uuid::now_v7();
        // The end of a turn was awaited in an earlier version, whose rows are still read.
        if awaited(&outgoing.subject) == Some(Stream::Notification) {
            outgoing.headers.set(header::RECEIPT, id.to_string());
        } else {
            let more = outgoing.payload.len();
            if let Some((row, bytes)) = open.get_mut(&account)
                && rows[*row].messages.len() < BATCH_MESSAGES_MAX
                && *bytes + more <= BATCH_BYTES_MAX
            {
                *bytes += more;
                rows[*row].messages.push(outgoing);
                continue;
            }
            open.insert(account.clone(), (rows.len(), more));
        }
        let messages = vec![outgoing];
        rows.push(OutboxRow { account, id, messages });
    }
    rows
}

/// The parameters of `messages_insert!`.
pub fn outbox_values(tx: &Tx, rows: &[OutboxRow]) -> [Value; 6] {
    let service = tx.role().service();
    let (mut services, mut subjects) = (Vec::new(), Vec::new());
    let (mut headers, mut payloads) = (Vec::new(), Vec::new());
    for row in rows {
        let all: Vec<&str> = row.messages.iter().map(|message| &*message.subject).collect();
        subjects.push(all.join(" "));
        if let [one] = &row.messages[..] {
            services.push(service.to_owned());
            headers.push(serde_json::to_string(&one.headers).expect("headers are texts"));
            payloads.push(one.payload.clone());
        } else {
            services.push(format!("{service}{BATCH}"));
            headers.push("{}".to_owned());
            payloads.push(packed(&row.messages));
        }
    }
    [
        column(rows, |row| row.account.clone()),
        column(rows, |row| row.id),
        services.into(),
        subjects.into(),
        headers.into(),
        payloads.into(),
    ]
}

/// SQL: inserts rows, from the first of six parameters on.
macro_rules! messages_insert {
    ($a:literal, $b:literal, $c:literal, $d:literal, $e:literal, $f:literal) => {
        concat!(
            "
    insert into outbox (account_id, id, service, subject, headers, payload, is_notification)
    select m.account_id, m.id, m.service, m.subject, m.headers::jsonb, m.payload, split_part(m.subject, '.', 2) = 'notification'
    from unnest(",
            $a, "::text[], ", $b, "::uuid[], ", $c, "::text[], ", $d, "::text[], ", $e, "::text[], ", $f,
            "::bytea[])
        as m (account_id, id, service, subject, headers, payload)"
        )
    };
}
pub(crate) use messages_insert;

const OUTBOX_INSERT: &str = messages_insert!("$1", "$2", "$3", "$4", "$5", "$6");

/// A row's key.
pub type OutboxKey = (String, Uuid);

/// Two arrays for `unnest`.
fn columns(keys: Vec<OutboxKey>) -> [Value; 2] {
    let (accounts, ids): (Vec<String>, Vec<Uuid>) = keys.into_iter().unzip();
    [accounts.into(), ids.into()]
}

/// The results of published rows.
#[derive(Debug, Default)]
pub struct Settled {
    /// Published and not awaited, or buried: these are deleted.
    pub over: Vec<OutboxKey>,
    /// Published, and kept until they were read.
    pub stored: Vec<StoredRow>,
}

impl Settled {
    pub fn count(&self) -> usize {
        self.over.len() + self.stored.len()
    }

    pub fn append(&mut self, other: &mut Settled) {
        self.over.append(&mut other.over);
        self.stored.append(&mut other.stored);
    }
}

/// Deletes settled rows, and marks those that the broker has stored; a row that was read meanwhile is gone and is not
/// written again. After `look_ms` a sweep checks the marked rows.
pub async fn outbox_settle(database: &Database, settled: Settled, look_ms: i64) -> Result<(), StorageError> {
    if !settled.over.is_empty() {
        let keys = columns(settled.over);
        database
            .execute_alone("delete from outbox", OUTBOX_DELETE, keys)
            .await?;
    }
    outbox_stored(database, settled.stored, look_ms).await
}

/// Relies on the primary key. The relay's policy limits it to the service's own rows, a writer's and a reader's to those
/// of the accounts that they work for.
pub const OUTBOX_DELETE: &str = "
    delete from outbox o using unnest($1::text[], $2::uuid[]) as r (account_id, id)
    where o.account_id = any (array[r.account_id]) and o.id = r.id";

/// The unread notifications of an account in the service's outbox: waiting for the broker, or for their reader.
#[derive(Clone, PartialEq, Eq, Debug, FromQueryResult)]
pub struct Share {
    pub account_id: String,
    pub bytes: i64,
    pub rows: i64,
}

/// The maximum number of an account's notifications in a service's outbox; no more are counted.
pub const SHARE_ROWS_MAX: i64 = 100_000;

/// The unread notifications of these accounts; an account without any has no row. Reads no payload.
pub async fn outbox_shares(database: &Database, accounts: Vec<String>) -> Result<Vec<Share>, StorageError> {
    let values = [accounts.into(), database.role().service().into(), SHARE_ROWS_MAX.into()];
    database
        .query_alone("read shares of the outbox", OUTBOX_SHARES, values)
        .await
}

/// Relies on the primary key.
pub const OUTBOX_SHARES: &str = "
    select a.account_id, sum(w.bytes)::bigint as bytes, count(*) as rows
    from unnest($1::text[]) as a (account_id) cross join lateral (
        select octet_length(o.payload) as bytes from outbox o
        where o.account_id = any (array[a.account_id]) and o.service = $2 and split_part(o.subject, '.', 2) = 'notification'
        order by o.id limit $3) w
    group by a.account_id";

#[derive(FromQueryResult)]
struct Waiting {
    rows: i64,
    unsent: i64,
}

/// The reason why a message's row still exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitsFor {
    /// The broker is unavailable, or its stream is full.
    Broker,
    Reader,
}

/// The tolerance between the writer's clock and the clock of the ids.
const WAITING_SLACK: Duration = Duration::from_secs(60);
const WAITING_ROWS_MAX: i64 = 20_000;

/// What blocks the message of this id, which the account's transaction wrote at about this time. None: it was read, or
/// too many messages were written around that time for a cheap search.
pub async fn outbox_waits_for(
    tx: &Tx,
    account: &AccountId,
    message_id: &str,
    written: OffsetDateTime,
) -> Result<Option<WaitsFor>, StorageError> {
    let values = [
        account.into(),
        id_at(written - WAITING_SLACK).into(),
        id_at(written + WAITING_SLACK).into(),
        tx.role().service().into(),
        WAITING_ROWS_MAX.into(),
        header::MESSAGE_ID.into(),
        message_id.into(),
    ];
    let waiting = tx.one("look up unread message", OUTBOX_WAITS_FOR, values);
    Ok(match waiting.await? {
        Some(Waiting { unsent: 1.., .. }) => Some(WaitsFor::Broker),
        Some(Waiting { rows: 1.., .. }) => Some(WaitsFor::Reader),
        Some(_) | None => None,
    })
}

/// The first of the ids that are made at a time: ids begin with their time.
fn id_at(moment: OffsetDateTime) -> Uuid {
    let millis = u128::try_from(moment.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
    Uuid::from_u128(millis << 80)
}

/// Relies on the primary key.
const OUTBOX_WAITS_FOR: &str = "
    select count(*) as rows, count(*) filter (where o.stored_at is null) as unsent
    from (select headers, stored_at from outbox
          where account_id = $1 and id >= $2 and id < $3 and service = $4 order by id limit $5) o
    where o.headers ->> $6 = $7";

#[derive(FromQueryResult)]
struct Age {
    seconds: Option<f64>,
}

/// The age of the oldest of the service's own rows that the broker has not acknowledged; none if there is none. One
/// statement without a transaction, so that it may be dropped half-way.
pub async fn outbox_age(database: &Database) -> Result<Option<Duration>, StorageError> {
    let values = [services(database)];
    let oldest = Age::find_by_statement(statement(OUTBOX_AGE, values)).one(database.connection());
    let oldest = oldest.await.attempt("read outbox age")?;
    // Not negative: a transaction may have begun after the one of this query.
    let seconds = oldest.and_then(|age| age.seconds);
    Ok(seconds.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))))
}

/// Relies on index outbox_unsent.
const OUTBOX_AGE: &str = "
    select extract(epoch from now() - min(o.created_at))::double precision as seconds
    from unnest($1::text[], array[false, true, false]) as k (service, is_notification) cross join lateral (
        select o.created_at from outbox o
        where o.service = k.service and o.stored_at is null and o.is_notification = k.is_notification
        order by o.created_at limit 1) o";

/// Which unacknowledged rows to claim.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Minimum age.
    pub age_ms: i64,
    /// Not claimed by any replica for this long.
    pub taken_ms: i64,
    /// For single messages, notifications, and rows of several messages each.
    pub rows_max: i64,
    /// Bytes of payloads, for each of the three as well. The row that reaches the limit is included.
    pub bytes_max: i64,
}

/// The parameter of statements about all rows of a service: see [`OUTBOX_CLAIM`].
fn services(database: &Database) -> Value {
    let service = database.role().service();
    vec![service.to_owned(), service.to_owned(), format!("{service}{BATCH}")].into()
}

/// Claims rows, the oldest first: of notifications, whose stream refuses them when it is full, and of everything else,
/// which must not wait for that.
pub async fn outbox_claim(database: &Database, claim: &Claim) -> Result<Vec<OutboxRow>, StorageError> {
    let values = [
        services(database),
        claim.age_ms.into(),
        claim.taken_ms.into(),
        claim.rows_max.into(),
        claim.bytes_max.into(),
    ];
    database.query_alone("claim outbox", OUTBOX_CLAIM, values).await
}

/// Relies on index outbox_unsent. A payload's length is known without reading it.
pub const OUTBOX_CLAIM: &str = "
    with locked as (
        select k.service, k.is_notification, o.*
        from unnest($1::text[], array[false, true, false]) as k (service, is_notification) cross join lateral (
            select o.account_id, o.id, o.created_at, octet_length(o.payload) as bytes from outbox o
            where o.service = k.service and o.stored_at is null and o.is_notification = k.is_notification
              and o.created_at < now() - $2 * interval '1 millisecond'
              and (o.claimed_at is null or o.claimed_at < now() - $3 * interval '1 millisecond')
            order by o.created_at limit $4 for update skip locked) o
    ), due as (
        select account_id, id
        from (select account_id, id, bytes,
                     sum(bytes) over (partition by service, is_notification order by created_at rows unbounded preceding) as total
              from locked) l
        where l.total - l.bytes < $5
    )
    update outbox o set claimed_at = now() from due
    where o.account_id = any (array[due.account_id]) and o.id = due.id
    returning o.account_id, o.id, o.service, o.subject, o.headers, o.payload";

#[cfg(test)]
mod tests {
    use super::*;

    fn message(subject: &str, payload: &[u8]) -> Outgoing {
        let mut headers = Headers::default();
        headers.set(header::MESSAGE_ID, subject);
        Outgoing {
            subject: subject.to_owned(),
            headers,
            payload: payload.to_owned(),
        }
    }

    #[test]
    fn an_account_s_messages_share_a_row_within_its_limits() {
        let account = |name: &str| Some(AccountId::parse(name).unwrap());
        let notification = "signalbox.notification.acme.-";
        let large = vec![b'x'; BATCH_BYTES_MAX - 2];
        let rows = outbox_rows(vec![
            (account("acme"), message("a", &large)),
            (account("acme"), message(notification, b"n")),
            (account("beta"), message("b", b"2")),
            (account("acme"), message("c", b"3")),
            (account("acme"), message("d", b"45")),
            (None, message("e", b"6")),
            (account("acme"), message("f", b"7")),
        ]);
        let shown: Vec<(&str, Vec<&str>)> = rows
            .iter()
            .map(|row| (&*row.account, row.messages.iter().map(|one| &*one.subject).collect()))
            .collect();
        let expected = [
            ("acme", vec!["a", "c"]),
            ("acme", vec![notification]),
            ("beta", vec!["b"]),
            ("acme", vec!["d", "f"]),
            ("-", vec!["e"]),
        ];
        assert_eq!(shown, expected);
        assert_eq!(
            rows.iter().map(OutboxRow::is_awaited).collect::<Vec<_>>(),
            [false, true, false, false, false]
        );
        let many = (0..=BATCH_MESSAGES_MAX).map(|_| (None, message("a", b""))).collect();
        let counts: Vec<usize> = outbox_rows(many).iter().map(|row| row.messages.len()).collect();
        assert_eq!(counts, [BATCH_MESSAGES_MAX, 1]);
    }

    #[test]
    fn a_packed_row_gives_its_messages_again() {
        let messages = vec![message("a.b", b"{}"), message("c", &[0, 255]), message("d", b"")];
        let bytes = packed(&messages);
        assert_eq!(unpacked("a.b c d", &bytes), Some(messages));
        assert_eq!(unpacked("a.b c", &bytes), None, "a subject is missing");
        assert_eq!(unpacked("a.b c d", &bytes[..9]), None);
        assert_eq!(unpacked("a.b c d", &[2]), None, "another version");
        assert_eq!(unpacked("a", b""), None);
    }

    /// Rows of this form are stored: a change of these bytes needs another version byte.
    #[test]
    fn the_packed_form_stays() {
        let packed = packed(&[message("a", b"{}"), message("b", &[0, 255])]);
        let expected = "0102010b4e6174732d4d73672d49640161027b7d010b4e6174732d4d73672d496401620200ff";
        assert_eq!(hex::encode(packed), expected);
    }
}
