//! Holds: sets and releases them, and does what follows in pieces. A claim reads the active holds under its session's lock, in
//! a snapshot that is newer than the lock, and only for accounts that have any (`account.holds`).
//!
//! A claim that was in flight when a hold was made may begin a turn that the hold did not see, and one in flight when it was
//! released may park a session that the release did not see. So a hold stays unsettled until [`SETTLED_AFTER_S`] have passed and
//! nothing is left to do; until then a sweep looks again ([`hold_settle`]).
//!
//! A hold goes with its session to the next generation (`session_succeed`), which locks the session and then its holds. So a hold on
//! a session is set under the session's lock, and not on a generation that has ended: nothing would take it along.
//!
//! Lock order: account, the session that a hold is on, hold, other sessions. Other sessions that are locked are left to the sweep.

use std::collections::HashMap;

use contracts::{
    Timestamp,
    event::{Event, HoldChanged},
};
use domain::{
    AccountId, Actor, ActorKind, Gate, Generation, HoldId, HoldRunning, HoldScope, SessionId, StopKind, StopThen,
    TaskId, TurnId, hold::Hold,
};
use sea_orm::{FromQueryResult, Value};
use time::OffsetDateTime;

use crate::{
    Setting, StorageError, Tx,
    accounts::account_lock,
    outbox::Owned,
    session::{
        SessionName,
        sessions_lock::{LockedSession, SESSIONS_LOCK, SESSIONS_LOCK_FREE, sessions_lock},
        sessions_park::{IS_PARKING, sessions_open},
        turn_stop::{StopRequest, turn_stop},
    },
    setting::fresh_id,
};

/// Active holds of an account.
pub const HOLDS_MAX: i32 = 100;
/// Sessions that one transaction stops or unparks: their messages are built while they are locked.
pub const SESSIONS_MAX: i64 = 250;
/// Longer than any transaction that read the holds before the change.
pub const SETTLED_AFTER_S: f64 = 30.0;

/// A hold to set.
#[derive(Clone, Debug)]
pub struct NewHold<'a> {
    pub account: &'a AccountId,
    pub scope: HoldScope,
    /// As it is compared.
    pub scope_id: &'a str,
    pub reason: &'a str,
    pub by: &'a Actor,
    pub running: HoldRunning,
    pub until: Option<OffsetDateTime>,
}

/// A hold's row.
#[derive(Clone, Debug, FromQueryResult)]
pub struct HoldRow {
    pub id: HoldId,
    pub scope_kind: HoldScope,
    pub scope_id: String,
    pub reason: String,
    pub by_kind: ActorKind,
    pub by_id: String,
    pub by_name: String,
    pub running: HoldRunning,
    pub until: Option<OffsetDateTime>,
    pub created_at: OffsetDateTime,
    pub released_at: Option<OffsetDateTime>,
    pub released_by: Option<String>,
}

macro_rules! returning {
    () => {
        " returning id, scope_kind, scope_id, reason, by_kind, by_id, by_name, running, until, created_at, released_at, released_by"
    };
}

/// Why a hold was not set.
#[derive(Debug)]
pub enum NotSet {
    /// The account has [`HOLDS_MAX`] others.
    TooMany {
        oldest: String,
    },
    NoAccount,
    /// The session's generation has ended.
    Closed(SessionId, Generation),
}

/// Holds whose time is over. Relies on index hold_active.
pub const HOLDS_EXPIRE: &str = concat!(
    "update hold set released_at = until, unsettled = true
     where account_id = $1 and released_at is null and until <= now()",
    returning!()
);

/// The same person's hold on the same thing is changed. Relies on index hold_active.
const HOLD_SET: &str = concat!(
    "insert into hold as h (account_id, id, scope_kind, scope_id, reason, by_kind, by_id, by_name, running, until, user_id, unsettled)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $9 = 'stop')
     on conflict (account_id, scope_kind, scope_id, by_kind, by_id) where released_at is null
     do update set reason = excluded.reason, by_name = excluded.by_name, running = excluded.running, until = excluded.until,
         unsettled = h.unsettled or excluded.unsettled",
    returning!()
);

/// Also says which hold is the oldest. Relies on index hold_active.
pub const HOLDS_COUNT: &str = "
    update account a set holds = c.holds
    from (select count(*) as holds,
                 (array_agg(concat(h.id, ' on ', h.scope_kind, ' ', h.scope_id, ', by ', h.by_name, ' since ',
                                   to_char(h.created_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'))
                            order by h.created_at, h.id))[1] as oldest
          from hold h where h.account_id = $1 and h.released_at is null) c
    where a.id = $1 returning a.holds, c.oldest";

const HOLD_RELEASE: &str = concat!(
    "update hold set released_at = now(), released_by = $3, unsettled = true
     where account_id = $1 and id = $2 and released_at is null",
    returning!()
);

#[derive(FromQueryResult)]
struct Count {
    holds: i32,
    oldest: Option<String>,
}

/// Locks the account, so that its count of holds is exact, and marks the holds whose time is over. `None`: there is no such account.
async fn lock(tx: &Tx, account: &AccountId, setting: &Setting<'_>) -> Result<Option<Vec<Owned>>, StorageError> {
    if !account_lock(tx, account).await? {
        return Ok(None);
    }
    let expired: Vec<HoldRow> = tx.rows("expire holds", HOLDS_EXPIRE, [account.into()]).await?;
    Ok(Some(
        expired.iter().map(|hold| changed(account, hold, setting)).collect(),
    ))
}

async fn count(tx: &Tx, account: &AccountId) -> Result<Count, StorageError> {
    const ATTEMPT: &str = "count holds";
    let count = tx.one(ATTEMPT, HOLDS_COUNT, [account.into()]).await?;
    count.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}

/// Marks the account's holds whose time is over.
pub async fn holds_expire(tx: &Tx, account: &AccountId, setting: &Setting<'_>) -> Result<Vec<Owned>, StorageError> {
    let expired = lock(tx, account, setting).await?.unwrap_or_default();
    if !expired.is_empty() {
        count(tx, account).await?;
    }
    Ok(expired)
}

/// Sets a hold, and asks the first turns that it ends to stop; the sweep does the rest. After a refusal the caller rolls back.
pub async fn hold_set(
    tx: &Tx,
    new: &NewHold<'_>,
    setting: &Setting<'_>,
) -> Result<Result<(HoldRow, Vec<Owned>), NotSet>, StorageError> {
    const ATTEMPT: &str = "set hold";
    let account = new.account;
    let Some(mut messages) = lock(tx, account, setting).await? else {
        return Ok(Err(NotSet::NoAccount));
    };
    let mut owner = None;
    if new.scope == HoldScope::Session
        && let Ok(session) = SessionId::parse(new.scope_id)
    {
        let locked = sessions_lock(tx, SESSIONS_LOCK, &[(account.clone(), session)]).await?;
        if let Some(ended) = locked.iter().find(|session| session.facts.closed) {
            return Ok(Err(NotSet::Closed(ended.id, ended.generation)));
        }
        owner = locked.into_iter().find_map(|session| session.owner);
    }
    let values: [Value; 11] = [
        account.into(),
        HoldId(fresh_id()).into(),
        new.scope.into(),
        new.scope_id.into(),
        new.reason.into(),
        new.by.kind.into(),
        new.by.id.clone().into(),
        new.by.name.clone().into(),
        new.running.into(),
        new.until.into(),
        owner.into(),
    ];
    let row: Option<HoldRow> = tx.one(ATTEMPT, HOLD_SET, values).await?;
    let row = row.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))?;
    let Count { holds, oldest } = count(tx, account).await?;
    // What stops everything at once has its place.
    if holds > HOLDS_MAX && new.scope != HoldScope::Account {
        let oldest = oldest.unwrap_or_default();
        return Ok(Err(NotSet::TooMany { oldest }));
    }
    messages.push(changed(account, &row, setting));
    if row.running == HoldRunning::Stop {
        messages.extend(turns_stop(tx, account, &row, setting).await?.1);
    }
    Ok(Ok((row, messages)))
}

/// Releases a hold, and unparks the first sessions that it keeps; the sweep does the rest. `false`: it was not active.
pub async fn hold_release(
    tx: &Tx,
    account: &AccountId,
    hold: HoldId,
    by: &str,
    setting: &Setting<'_>,
) -> Result<(bool, Vec<Owned>), StorageError> {
    let Some(mut messages) = lock(tx, account, setting).await? else {
        return Ok((false, Vec::new()));
    };
    let values = [account.into(), hold.into(), by.into()];
    let released: Option<HoldRow> = tx.one("release hold", HOLD_RELEASE, values).await?;
    count(tx, account).await?;
    if let Some(row) = &released {
        messages.push(changed(account, row, setting));
        messages.extend(
            sessions_open(tx, account, (Gate::Pause, row.id.into()), SESSIONS_MAX, setting)
                .await?
                .1,
        );
    }
    Ok((released.is_some(), messages))
}

fn changed(account: &AccountId, hold: &HoldRow, setting: &Setting<'_>) -> Owned {
    let data = HoldChanged {
        hold_id: hold.id,
        scope: hold.scope_kind,
        scope_id: hold.scope_id.clone(),
        running: hold.running,
        until: hold.until.map(Timestamp::from),
        by: Actor {
            kind: hold.by_kind,
            id: hold.by_id.clone(),
            name: hold.by_name.clone(),
            via: None,
        },
        released: hold.released_at.is_some(),
        released_by: hold.released_by.clone(),
    };
    setting.event(account, None, &fresh_id().to_string(), Event::HoldChanged(data))
}

#[derive(FromQueryResult)]
struct TurnRow {
    session_id: SessionId,
    turn_id: TurnId,
    /// As its client spelled it.
    task: Option<TaskId>,
}

/// Turns in progress in a scope that are not asked to stop. Relies on index turn_open, whose order is requested, and on primary
/// keys.
pub const TURNS_IN_SCOPE: &str = "
    select t.session_id, t.id as turn_id, k.display_id as task
    from (select t.account_id, t.session_id, t.id, t.task_id from turn t
          where t.account_id = $1 and t.finished_at is null
            and case $2 when 'account' then true when 'task' then t.task_id = $3 when 'agent' then t.agent_id::text = $3
                        else t.session_id::text = $3 end
          order by t.account_id, t.session_id offset 0) t
    cross join lateral (
        select from session s
        where s.account_id = t.account_id and s.id = t.session_id and s.active_turn_id = t.id and s.stop_turn_id is distinct from t.id
        limit 1) s
    left join task k on k.account_id = any (array[t.account_id]) and k.id = t.task_id
    limit $4";

/// Asks turns in the scope of a hold to stop. Gives how many were found. A turn that somebody else has asked to stop is left:
/// what follows it is theirs to say.
async fn turns_stop(
    tx: &Tx,
    account: &AccountId,
    hold: &HoldRow,
    setting: &Setting<'_>,
) -> Result<(usize, Vec<Owned>), StorageError> {
    let values: [Value; 4] = [
        account.into(),
        hold.scope_kind.into(),
        hold.scope_id.clone().into(),
        SESSIONS_MAX.into(),
    ];
    let found: Vec<TurnRow> = tx.rows("find turns of a hold", TURNS_IN_SCOPE, values).await?;
    if found.is_empty() {
        return Ok((0, Vec::new()));
    }
    let names: Vec<SessionName> = found.iter().map(|row| (account.clone(), row.session_id)).collect();
    let locked: HashMap<SessionId, LockedSession> = sessions_lock(tx, SESSIONS_LOCK_FREE, &names)
        .await?
        .into_iter()
        .map(|session| (session.id, session))
        .collect();
    let is_theirs = |row: &&TurnRow| {
        let session = locked.get(&row.session_id);
        session.is_some_and(|session| session.active_turn == Some(row.turn_id) && !session.facts.stopping)
    };
    let asked: Vec<StopRequest<'_>> = found
        .iter()
        .filter(is_theirs)
        .map(|row| StopRequest {
            session: (account.clone(), row.session_id),
            turn: Some(row.turn_id),
            kind: StopKind::Paused,
            by: &hold.by_name,
            then: StopThen::Continue,
            task: row.task.as_ref(),
        })
        .collect();
    let stops = turn_stop(tx, &asked).await?;
    let messages = stops.iter().map(|stop| setting.message(&stop.message_id(), stop));
    Ok((found.len(), messages.collect()))
}

const UNSETTLED: &str = "
    select id, scope_kind, scope_id, reason, by_kind, by_id, by_name, running, until, created_at, released_at, released_by
    from hold where account_id = $1 and id = $2 and unsettled for update skip locked";

const SETTLE: &str = "
    update hold set unsettled = false
    where account_id = $1 and id = $2 and coalesce(released_at, created_at) < now() - $3 * interval '1 second'";

/// What was done for a hold.
#[derive(Clone, Copy, Default, Debug)]
pub struct Piece {
    /// Sessions found.
    pub sessions: usize,
    /// Those of them that start again.
    pub opened: i64,
    /// The next piece may follow at once. Stops do; sessions that start again come a piece at a look, so that other accounts
    /// keep most of the installation.
    pub goes_on: bool,
}

/// One piece of what a hold has still to do: at most [`SESSIONS_MAX`] stops, or so many sessions that start again.
pub async fn hold_settle(
    tx: &Tx,
    account: &AccountId,
    hold: HoldId,
    open_max: i64,
    setting: &Setting<'_>,
) -> Result<(Piece, Vec<Owned>), StorageError> {
    let values = [account.into(), hold.into()];
    let Some(row) = tx.one::<HoldRow>("lock hold", UNSETTLED, values).await? else {
        return Ok((Piece::default(), Vec::new()));
    };
    let (found, messages) = match row.released_at {
        Some(_) => sessions_open(tx, account, (Gate::Pause, hold.into()), open_max, setting).await?,
        None if row.running == HoldRunning::Stop => turns_stop(tx, account, &row, setting).await?,
        None => (0, Vec::new()),
    };
    // A session that another transaction has locked was not found.
    let values = [account.into(), hold.into()];
    let is_left = found > 0 || row.released_at.is_some() && tx.exists("find kept sessions", IS_PARKING, values).await?;
    if !is_left {
        let values = [account.into(), hold.into(), SETTLED_AFTER_S.into()];
        tx.execute("settle hold", SETTLE, values).await?;
    }
    let piece = Piece {
        sessions: found,
        opened: if row.released_at.is_some() { found as i64 } else { 0 },
        goes_on: row.released_at.is_none() && found as i64 == SESSIONS_MAX,
    };
    Ok((piece, messages))
}

/// An active hold.
#[derive(Clone, Debug, FromQueryResult)]
pub struct ActiveHold {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    #[sea_orm(nested)]
    pub hold: Hold,
    /// Until its end.
    pub left_ms: Option<i64>,
}

impl AsRef<Hold> for ActiveHold {
    fn as_ref(&self) -> &Hold {
        &self.hold
    }
}

/// Relies on index hold_active, whose order is requested. One whose time is over covers nothing, marked or
/// not; a scope of a later version is left to that version.
pub const HOLDS_ACTIVE: &str = "
    select h.account_id, h.id, h.scope_kind, h.scope_id, case h.running when 'stop' then 'stop' else 'finish' end as running,
           h.until, h.by_name, ceil(extract(epoch from h.until - now()) * 1000)::bigint as left_ms
    from unnest($1::text[]) as w (account_id)
    cross join lateral (
        select * from hold h where h.account_id = w.account_id and h.released_at is null
        order by h.account_id, h.scope_kind, h.scope_id) h
    where coalesce(h.until > now(), true) and h.scope_kind in ('account', 'task', 'agent', 'session')";

pub async fn holds_active(tx: &Tx, accounts: Vec<AccountId>) -> Result<Vec<ActiveHold>, StorageError> {
    tx.rows("read holds", HOLDS_ACTIVE, [accounts.into()]).await
}
