//! Every query on providers and the breakers of their accounts.

use std::collections::HashMap;

use api::providers::{Provider, ProviderAccount};
use domain::{AccountId, BreakerState};
use sea_orm::FromQueryResult;
use storage::{Database, StorageError, Tx, breaker::breaker_ref, directory::session_parked};

/// Names of providers that are read for an account.
const PROVIDERS_MAX: usize = 200;
/// Agents that one statement reads for them.
const AGENTS_MAX: i64 = 1_000;
/// Breakers that are read: more than settings have provider accounts.
const BREAKERS_MAX: i64 = 1_000;
/// Sessions that are counted for each.
const PARKED_MAX: i32 = 10_000;

/// The providers that an account's agents name, after a name: those of so many agents. Relies on index agent_provider, whose order
/// is requested.
pub const PROVIDERS_OF: &str = "
    select g.provider as name, count(*) as agents from (
        select g.provider from agent g where g.account_id = $1 and g.removed_at is null and g.provider > $2
        order by g.account_id, g.provider limit $3) g
    group by g.provider order by g.provider";

#[derive(FromQueryResult)]
struct Named {
    name: String,
    agents: i64,
}

/// A name that many agents have is passed in one step.
async fn named(tx: &Tx, account: &AccountId) -> Result<Vec<String>, StorageError> {
    let mut names: Vec<String> = Vec::new();
    while names.len() < PROVIDERS_MAX {
        let after = names.last().cloned().unwrap_or_default();
        let values = [account.into(), after.into(), AGENTS_MAX.into()];
        let page: Vec<Named> = tx.rows("list providers", PROVIDERS_OF, values).await?;
        let agents: i64 = page.iter().map(|named| named.agents).sum();
        names.extend(page.into_iter().map(|named| named.name));
        if agents < AGENTS_MAX {
            break;
        }
    }
    names.truncate(PROVIDERS_MAX);
    Ok(names)
}

/// Those whose calls are not made: few. What a provider said is not among it.
const NOT_CLOSED: &str = "
    select p.name, b.state, b.class, b.reset_at, case b.state when 'open' then b.probe_at else b.probe_until end as until
    from (select * from provider_breaker where state <> 'closed' order by changed_at limit $1) b cross join unnest(b.providers) as p (name)";

pub async fn providers_of(tx: &Tx, account: &AccountId) -> Result<Vec<Provider>, StorageError> {
    let waiting = [BREAKERS_MAX.into()];
    let waiting: Vec<Provider> = tx.rows("list open breakers", NOT_CLOSED, waiting).await?;
    let mut waiting: HashMap<String, Provider> = waiting.into_iter().map(|one| (one.name.clone(), one)).collect();
    let shown = |name: String| {
        waiting.remove(&name).unwrap_or(Provider {
            name,
            state: BreakerState::Closed.to_string(),
            class: None,
            until: None,
            reset_at: None,
        })
    };
    Ok(named(tx, account).await?.into_iter().map(shown).collect())
}

macro_rules! columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " key, providers, state, class, detail, failures, opens, reset_at, probe_at, probe_until, changed_at ",
            $after
        )
    };
}

const ACCOUNTS: &str = columns!("select", "from provider_breaker order by key limit $1");
/// Delivery's sweep wakes a session for a breaker that may be tried.
const PROBE: &str = columns!(
    "update provider_breaker set probe_at = least(probe_at, now()) where key = $1 and state = 'open' returning",
    ""
);
const FIND: &str = columns!("select", "from provider_breaker where key = $1");

pub async fn accounts(tx: &Tx) -> Result<Vec<ProviderAccount>, StorageError> {
    tx.rows("list provider accounts", ACCOUNTS, [BREAKERS_MAX.into()]).await
}

/// The next turn may try at once, if the breaker is open. None: there is no such provider account.
pub async fn probe(tx: &Tx, key: &str) -> Result<Option<ProviderAccount>, StorageError> {
    const ATTEMPT: &str = "bring a probe forward";
    match tx.one(ATTEMPT, PROBE, [key.into()]).await? {
        Some(probed) => Ok(Some(probed)),
        None => tx.one(ATTEMPT, FIND, [key.into()]).await,
    }
}

/// Sessions that wait for a breaker, counted up to a limit.
pub async fn parked(database: &Database, key: &str) -> Result<u64, StorageError> {
    Ok(session_parked(database, breaker_ref(key), PARKED_MAX).await?.len() as u64)
}
