//! Every query on deliveries, for the accounts, and for the operator's place, where sign-in links wait.
//!
//! One column says when a row is due (`next_at`): to be sent, to be joined to a digest, or to be sent again since its sender ended. A sender
//! writes an end only while its lease stands.

use domain::{AccountId, DeliveryState, Email, MailId, MessageType, TaskId};
use sea_orm::FromQueryResult;
use storage::{Accounts, StorageError, Tx, accounts::OPERATOR};
use time::OffsetDateTime;
use uuid::Uuid;

use super::smtp::{Class, Failure};
use crate::members::store::Membership;

/// Items of one digest.
pub const DIGEST_MAX: i64 = 200;
/// Sign-in links by e-mail, an hour and address.
pub const SIGN_INS_HOUR_MAX: i64 = 5;
/// Accounts of one address that are read.
const ACCOUNTS_MAX: i32 = 200;
/// Of mail in a digest, whose first line is shown.
const BEGINS_CHARACTERS: i32 = 1_000;

/// What the rows of this owner are seen by: an account's with what is everybody's own.
pub fn accounts_of(owner: &str) -> Accounts {
    AccountId::parse(owner).map_or_else(
        |_| Accounts::operator(),
        |account| Accounts::one(&account).with_everybody(),
    )
}

/// Relies on the primary key.
pub const WAY_SET: &str = "
    insert into outbound_way (way, pending_account_max) values ('email', $1)
    on conflict (way) do update set pending_account_max = excluded.pending_account_max";
pub const WAY_END: &str = "delete from outbound_way where way = 'email'";

/// Says whether e-mail is sent. Whoever writes mail reads it.
pub async fn way_set(tx: &Tx, pending_account_max: Option<i64>) -> Result<(), StorageError> {
    let set = match pending_account_max {
        Some(most) => tx.execute("say that e-mail is sent", WAY_SET, [most.into()]).await,
        None => tx.execute("say that no e-mail is sent", WAY_END, []).await,
    };
    set.map(drop)
}

/// The due items of the person whose item is due first; the oldest one brings them all. Relies on outbound_delivery_held and
/// outbound_delivery_held_of.
pub const DIGEST: &str = "
    with due as (
        select d.destination_id from outbound_delivery d
        where d.account_id = $1 and d.state = 'held' and d.next_at > '-infinity' and d.next_at <= now()
        order by d.next_at limit 1
    ), items as (
        select d.ctid, d.id, d.next_at from outbound_delivery d
        where d.account_id = $1 and d.state = 'held' and d.destination_id = (select destination_id from due) and d.next_at <= now()
        order by d.next_at, d.id limit $2 for update skip locked
    ), first as (
        select i.id from items i order by i.next_at, i.id limit 1
    )
    update outbound_delivery d
    set digest_id = f.id, state = case when d.id = f.id then 'waiting' else 'held' end, next_at = case when d.id = f.id then now() end
    from items i, first f
    where d.ctid = i.ctid";

/// Joins one person's due items; gives how many. None are due: 0.
pub async fn digest_join(tx: &Tx, owner: &str) -> Result<u64, StorageError> {
    tx.execute("join a digest", DIGEST, [owner.into(), DIGEST_MAX.into()])
        .await
}

/// A delivery that this process sends, while its lease stands.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Claimed {
    pub id: Uuid,
    pub what: String,
    pub destination_id: String,
    pub digest_id: Option<Uuid>,
    /// Attempts that were begun, this one included.
    pub attempts: i32,
    pub lease_owner: Uuid,
}

/// What a sign-in link is as a delivery.
pub const SIGN_IN: &str = "sign_in";

/// Relies on outbound_delivery_pending, whose order is requested.
pub const CLAIM: &str = "
    update outbound_delivery d
    set state = 'sending', attempts = d.attempts + 1, lease_owner = $2, next_at = now() + $3 * interval '1 second'
    from (
        select w.ctid from outbound_delivery w
        where w.account_id = $1 and w.next_at <= now() and w.state <> 'held'
        order by w.next_at limit $4 for update skip locked) w
    where d.ctid = w.ctid
    returning d.id, d.type as what, d.destination_id, d.digest_id, d.attempts, d.lease_owner";

/// Leases what is due first.
pub async fn claim(tx: &Tx, owner: &str, (lease_s, most): (f64, i64)) -> Result<Vec<Claimed>, StorageError> {
    let values = [owner.into(), Uuid::now_v7().into(), lease_s.into(), most.into()];
    tx.rows("claim deliveries", CLAIM, values).await
}

/// Mail that a delivery brings to its person.
#[derive(Debug, FromQueryResult)]
pub struct Item {
    pub delivery: Uuid,
    pub mail: MailId,
    pub kind: MessageType,
    pub from_name: String,
    pub task: Option<TaskId>,
    pub content: String,
    pub email: String,
}

/// What a delivery brings, without what its person has read or archived, and nothing for a person who was removed. Relies on primary keys
/// and outbound_delivery_digest.
pub const ITEMS: &str = "
    select d.id as delivery, m.id as mail, m.message_type as kind, m.from_name, m.context_task_id as task,
           case when d.digest_id is null then m.content else left(m.content, $3) end as content, p.email
    from (select $2::uuid as id union all
          select i.id from outbound_delivery i where i.account_id = $1 and i.digest_id = $2 and i.id <> $2) w
    cross join lateral (select * from outbound_delivery d where d.account_id = $1 and d.id = w.id offset 0) d
    cross join lateral (select * from mail m where m.account_id = d.account_id and m.id = d.about_id offset 0) m
    cross join lateral (select * from member p where p.account_id = d.account_id and p.user_id = d.destination_id offset 0) p
    where m.read_at is null and m.archived_at is null and p.removed_at is null and p.email is not null
    order by m.context_task_id nulls first, m.created_at, m.id";

pub async fn items(tx: &Tx, owner: &str, delivery: Uuid) -> Result<Vec<Item>, StorageError> {
    let values = [owner.into(), delivery.into(), BEGINS_CHARACTERS.into()];
    tx.rows("read what is delivered", ITEMS, values).await
}

/// How a delivery goes on.
#[derive(Clone, PartialEq, Debug)]
pub struct Ended<'a> {
    pub state: DeliveryState,
    pub reason: Option<&'a str>,
    /// When it is due again, if it waits.
    pub again_s: f64,
    /// Deliveries that it brought: the other ones of its digest are superseded.
    pub brought: &'a [Uuid],
}

/// How an attempt went.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub at: OffsetDateTime,
    pub ms: i64,
    pub failure: Option<Failure>,
}

/// Ended deliveries are kept 30 days, dead ones 90; sign-in links, which have an address, one day. Relies on the primary key.
pub const END: &str = "
    update outbound_delivery set state = $4, reason = $5, lease_owner = null,
        next_at = case when $4 = 'waiting' then now() + $6 * interval '1 second' end,
        ended_at = case when $4 <> 'waiting' then now() end,
        kept_until = case when $4 <> 'waiting' then
            now() + case when type = 'sign_in' then 1 when $4 = 'dead' then 90 else 30 end * interval '1 day' end
    where account_id = $1 and id = $2 and lease_owner = $3";
/// Relies on outbound_delivery_digest.
pub const END_DIGEST: &str = "
    update outbound_delivery set state = case when id = any ($4) then $3 else 'superseded' end, reason = $5, ended_at = now(),
        kept_until = now() + case when $3 = 'dead' then 90 else 30 end * interval '1 day'
    where account_id = $1 and digest_id = $2 and id <> $2 and ended_at is null";
const ATTEMPT: &str = "
    insert into outbound_attempt (account_id, delivery_id, number, at, ms, status, class) values ($1, $2, $3, $4, $5, $6, $7)
    on conflict do nothing";

/// Writes how a delivery goes on. `false`: its lease has expired, and another sender has it.
pub async fn end(
    tx: &Tx,
    owner: &str,
    claimed: &Claimed,
    (ended, attempt): (&Ended<'_>, Option<Attempt>),
) -> Result<bool, StorageError> {
    let state = ended.state.as_str();
    // Whichever item of a digest is sent for all: its own mail may have been read before.
    let is_left_out = claimed.digest_id.is_some() && !ended.brought.contains(&claimed.id);
    let own = match ended.state {
        DeliveryState::Sent if is_left_out => DeliveryState::Superseded,
        state => state,
    };
    let values = [
        owner.into(),
        claimed.id.into(),
        claimed.lease_owner.into(),
        own.as_str().into(),
        ended.reason.into(),
        ended.again_s.into(),
    ];
    if tx.execute("end delivery", END, values).await? == 0 {
        return Ok(false);
    }
    if claimed.digest_id.is_some() && ended.state != DeliveryState::Waiting {
        let values = [
            owner.into(),
            claimed.id.into(),
            state.into(),
            ended.brought.to_vec().into(),
            ended.reason.into(),
        ];
        tx.execute("end items of a digest", END_DIGEST, values).await?;
    }
    if let Some(attempt) = attempt {
        let failure = attempt.failure;
        let status = failure.and_then(|failure| failure.status);
        let values = [
            owner.into(),
            claimed.id.into(),
            claimed.attempts.into(),
            attempt.at.into(),
            i32::try_from(attempt.ms).unwrap_or(i32::MAX).into(),
            status.and_then(|status| i16::try_from(status).ok()).into(),
            failure
                .map_or("accepted", |failure: Failure| Class::as_str(failure.class))
                .into(),
        ];
        tx.execute("note attempt", ATTEMPT, values).await?;
    }
    Ok(true)
}

const SIGN_IN_LOCK: &str =
    "select pg_advisory_xact_lock(hashtextextended('sign-in link for ' || $1, 0))::text as locked";

/// Relies on outbound_delivery_sign_in and outbound_delivery_pending, whose orders are requested, the address as a range.
pub const SIGN_IN_INSERT: &str = "
    insert into outbound_delivery (account_id, id, kind, destination_id, type, state, next_at)
    select $1, $2, 'email', $3, 'sign_in', 'waiting', now()
    where (select count(*) from (
              select from outbound_delivery d
              where d.account_id = $1 and d.type = 'sign_in' and d.destination_id >= $3 and d.destination_id <= $3
                and d.created_at > now() - interval '1 hour'
              order by d.destination_id, d.created_at limit $4) d) < $4
      and (select count(*) from (
              select from outbound_delivery d where d.account_id = $1 and d.next_at is not null order by d.next_at limit $5) d) < $5";

/// Asks for links for whoever has this address, which is not looked up here: nothing of the answer, its time included, says whether anybody
/// has it. `false`: too many were asked for.
pub async fn sign_in_insert(tx: &Tx, email: &Email, pending_max: i64) -> Result<bool, StorageError> {
    tx.execute("lock address", SIGN_IN_LOCK, [email.as_str().into()])
        .await?;
    let values = [
        OPERATOR.into(),
        Uuid::now_v7().into(),
        email.as_str().into(),
        SIGN_INS_HOUR_MAX.into(),
        pending_max.into(),
    ];
    Ok(tx.execute("ask for sign-in links", SIGN_IN_INSERT, values).await? == 1)
}

/// The members whom a sign-in link may be mailed to at this address.
pub async fn members_mailed(tx: &Tx, address: &str) -> Result<Vec<Membership>, StorageError> {
    const SQL: &str = "select * from member_mailed($1, $2)";
    let values = [address.into(), ACCOUNTS_MAX.into()];
    tx.rows("find members by address", SQL, values).await
}
