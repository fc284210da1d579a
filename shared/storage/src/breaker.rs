//! The breakers of provider accounts (`domain::breaker`). Rows of no account: a claim reads the state of its agents' providers
//! with what it reads anyway ([`breaker_of!`]), and writes only where a turn takes the probe; a record writes where a call says
//! something of its provider. The row's lock makes one decision of all replicas.
//!
//! Lock order: sessions, then breakers by key.

use contracts::{
    Timestamp,
    event::{Event, ProviderChanged},
};
use domain::{
    AccountId, BreakerState, Gate,
    breaker::{Breaker, Standing},
};
use sea_orm::{FromQueryResult, TryGetableFromJson, Value};
use serde::Deserialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Accounts, Database, Setting, StorageError, Tx,
    directory::session_parked_shares,
    outbox::Owned,
    session::{
        SessionName,
        sessions_park::{sessions_look, sessions_open},
    },
};

/// Namespace of [`breaker_ref`].
const BREAKERS: Uuid = Uuid::from_u128(0x51b0_b4ea_0000_4000_8000_0000_0000_0001);

/// What parked sessions name as the breaker that keeps them.
pub fn breaker_ref(key: &str) -> Uuid {
    Uuid::new_v5(&BREAKERS, key.as_bytes())
}

/// SQL: what a claim has to know of a provider's breaker ([`Seen`]), as JSON; null if the provider has none. Parameters: the
/// keys by the names of providers as a JSON object, and the name. Relies on the primary key.
#[macro_export]
macro_rules! breaker_of {
    ($keys:literal, $provider:literal) => {
        concat!(
            "(select json_build_object('state', b.state, 'epoch', b.epoch, 'probe_turn', b.probe_turn,
                     'left_ms', greatest(ceil(extract(epoch from
                         case b.state when 'open' then b.probe_at when 'probing' then b.probe_until end - now()) * 1000), 0)::bigint)
              from provider_breaker b where b.key = ",
            $keys,
            "::json ->> ",
            $provider,
            " offset 0)"
        )
    };
}

/// A breaker as a claim reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(transparent)]
pub struct Seen(pub Standing);

impl TryGetableFromJson for Seen {}

/// A breaker, locked until the end of the transaction.
#[derive(Clone, PartialEq, Debug, FromQueryResult)]
pub struct LockedBreaker {
    pub key: String,
    #[sea_orm(nested)]
    pub breaker: Breaker,
    /// When it was locked.
    pub now: OffsetDateTime,
}

/// Makes the rows that are missing. Relies on the primary key.
pub const BREAKERS_LOCK: &str = "
    insert into provider_breaker as b (key)
    select k.key from unnest($1::text[]) as k (key) order by k.key
    on conflict (key) do update set key = excluded.key
    returning b.key, b.state, b.epoch, b.failures, b.window_at, b.reset_at, b.probe_at, b.probe_turn, b.probe_until, b.opens,
              clock_timestamp() as now";

/// `keys`: each once.
pub async fn breakers_lock(tx: &Tx, keys: Vec<String>) -> Result<Vec<LockedBreaker>, StorageError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    tx.rows("lock breakers", BREAKERS_LOCK, [keys.into()]).await
}

/// Why a breaker counts a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Because {
    pub class: &'static str,
    pub detail: String,
}

/// Relies on the primary key.
pub const BREAKER_WRITE: &str = "
    update provider_breaker b set state = $2, epoch = $3, failures = $4, window_at = $5, reset_at = $6, probe_at = $7, probe_turn = $8,
        probe_until = $9, opens = $10, class = coalesce($11, b.class), detail = coalesce($12, b.detail), providers = $13,
        unsettled = b.unsettled or ($2 = 'closed' and b.state <> 'closed'), changed_at = now()
    where b.key = $1";

/// Writes what became of a locked breaker. `providers`: those that share it. Gives the event, if its state changed.
pub async fn breaker_write(
    tx: &Tx,
    before: &LockedBreaker,
    after: &Breaker,
    because: Option<&Because>,
    providers: Vec<String>,
    setting: &Setting<'_>,
) -> Result<Option<Owned>, StorageError> {
    let values: [Value; 13] = [
        before.key.as_str().into(),
        after.state.into(),
        after.epoch.into(),
        after.failures.into(),
        after.window_at.into(),
        after.reset_at.into(),
        after.probe_at.into(),
        after.probe_turn.into(),
        after.probe_until.into(),
        after.opens.into(),
        because.map(|because| because.class).into(),
        because.map(|because| because.detail.as_str()).into(),
        providers.into(),
    ];
    tx.execute("write breaker", BREAKER_WRITE, values).await?;
    Ok(changed(before, after, because, setting))
}

fn changed(before: &LockedBreaker, after: &Breaker, because: Option<&Because>, setting: &Setting<'_>) -> Option<Owned> {
    let is_news = (before.breaker.state, before.breaker.epoch) != (after.state, after.epoch);
    let changed = ProviderChanged {
        key: before.key.clone(),
        state: after.state,
        class: because.map(|because| because.class.to_owned()),
        until: after.probe_until.or(after.probe_at).map(Timestamp::from),
    };
    let id = format!("{}:{}", before.key, after.epoch);
    let (id, event) = match after.state {
        BreakerState::Open if before.breaker.state == BreakerState::Probing && before.breaker.epoch == after.epoch => {
            // The probe was given back: the next one follows at once.
            return None;
        }
        BreakerState::Open => (id, Event::ProviderOpened(changed)),
        BreakerState::Probing => {
            let turn = after.probe_turn.unwrap_or_default();
            (format!("{id}:{turn}"), Event::ProviderProbing(changed))
        }
        BreakerState::Closed => (id, Event::ProviderClosed(changed)),
    };
    is_news.then(|| setting.event_of_all(&id, event))
}

/// A breaker as the sweep of a replica reads it.
#[derive(Clone, PartialEq, Eq, Debug, FromQueryResult)]
pub struct BreakerRow {
    pub key: String,
    pub state: BreakerState,
    pub failures: i32,
    /// It has closed, and sessions may still wait for it.
    pub unsettled: bool,
    /// A turn may try.
    pub due: bool,
}

/// As many rows as the settings ever had provider accounts.
const BREAKERS_READ: &str = "
    select key, state, failures, unsettled, coalesce(case state when 'open' then probe_at when 'probing' then probe_until end <= now(), false) as due
    from provider_breaker order by key limit 1000";

pub async fn breakers_read(database: &Database) -> Result<Vec<BreakerRow>, StorageError> {
    database.query_alone("read breakers", BREAKERS_READ, []).await
}

/// Some of the sessions that a breaker keeps, of the accounts after one: see [`session_parked_shares`].
pub async fn breaker_parked(
    database: &Database,
    key: &str,
    after: Option<&AccountId>,
    limit: i32,
) -> Result<Vec<SessionName>, StorageError> {
    session_parked_shares(database, breaker_ref(key), after, limit).await
}

/// Unparks so many sessions of an account that a closed breaker kept. Sessions that are locked, or that a claim parks meanwhile, look
/// again by themselves.
pub async fn breaker_open(
    tx: &Tx,
    account: &AccountId,
    sessions: usize,
    key: &str,
    setting: &Setting<'_>,
) -> Result<(usize, Vec<Owned>), StorageError> {
    let sessions = i64::try_from(sessions).unwrap_or(i64::MAX);
    sessions_open(tx, account, (Gate::Provider, breaker_ref(key)), sessions, setting).await
}

/// Nothing waits for it any more.
pub async fn breaker_settled(database: &Database, key: &str) -> Result<(), StorageError> {
    const SETTLE: &str = "update provider_breaker set unsettled = false where key = $1 and state = 'closed'";
    let tx = database.begin(&Accounts::none()).await?;
    tx.execute("settle breaker", SETTLE, [key.into()]).await?;
    tx.commit().await
}

/// Accounts of which a session is woken at one look.
const LOOKS_MAX: usize = 5;

/// Makes a few sessions look again whose breaker may be tried: one of each of the first accounts. Gives their names.
pub async fn breaker_try(database: &Database, key: &str) -> Result<Vec<SessionName>, StorageError> {
    let parked = breaker_parked(database, key, None, 100).await?;
    let firsts = parked
        .chunk_by(|one, other| one.0 == other.0)
        .map(|of_account| of_account[0].clone());
    let names: Vec<SessionName> = firsts.take(LOOKS_MAX).collect();
    if !names.is_empty() {
        let tx = database
            .begin(&Accounts::many(names.iter().map(|(account, _)| account)))
            .await?;
        sessions_look(&tx, &names).await?;
        tx.commit().await?;
    }
    Ok(names)
}
