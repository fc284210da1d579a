//! Every query on orchestrators' sessions, and on the hidden agent that runs them.

use std::time::Duration;

use domain::{AccountId, AgentId, Owner, SessionId, SessionPhase};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};
use time::OffsetDateTime;

use crate::identities::key;

/// Relies on agent_orchestrator.
const AGENT: &str = "select id from agent where account_id = $1 and kind = 'orchestrator'";

#[derive(FromQueryResult)]
struct Id {
    id: AgentId,
}

/// The agent that runs all of the account's orchestrators. None: no member or admin has made one yet.
pub async fn hidden_agent(tx: &Tx, account: &AccountId) -> Result<Option<AgentId>, StorageError> {
    let found: Option<Id> = tx.one("find hidden agent", AGENT, [account.into()]).await?;
    Ok(found.map(|found| found.id))
}

const PROVIDER: &str = "
    update agent set provider = coalesce($2, $3) where account_id = $1 and kind = 'orchestrator'";

/// The provider of the orchestrators' turns from the next one on; none: the default one.
pub async fn provider_change(tx: &Tx, account: &AccountId, provider: Option<String>) -> Result<(), StorageError> {
    let values = [account.into(), provider.into(), crate::agents::PROVIDER_DEFAULT.into()];
    tx.execute("change provider of orchestrators", PROVIDER, values)
        .await
        .map(drop)
}

const WAKE: &str = "update orchestrator_identity set woken_at = $3 where account_id = $1 and owner = $2";

pub async fn woken_note(tx: &Tx, account: &AccountId, owner: &Owner, now: OffsetDateTime) -> Result<(), StorageError> {
    let values = [account.into(), key(owner).into(), now.into()];
    tx.execute("note that an orchestrator was woken", WAKE, values)
        .await
        .map(drop)
}

/// The open session of an orchestrator.
#[derive(FromQueryResult)]
pub struct Now {
    pub id: SessionId,
    pub key: String,
    phase: SessionPhase,
    pub queued: i32,
    /// For so many seconds nothing has happened in it.
    rests_s: f64,
}

impl Now {
    /// In the API's word.
    pub fn state(&self, idle: Duration) -> &'static str {
        match (self.phase, self.queued) {
            (SessionPhase::Idle, 0) if self.rests_s >= idle.as_secs_f64() => "hibernated",
            (SessionPhase::Idle, 0) => "idle",
            (SessionPhase::Idle | SessionPhase::Running | SessionPhase::Waiting | SessionPhase::Backoff, _) => {
                "running"
            }
        }
    }
}

/// Relies on session_active_orchestrator and on turn_number, whose orders are requested, and on primary keys.
pub const NOW: &str = "
    select s.id, s.key, s.phase, s.queued,
           extract(epoch from now() - greatest(s.opened_at, i.woken_at, (
               select t.finished_at from turn t where t.account_id = s.account_id and t.session_id = s.id
               order by t.number desc limit 1)))::double precision as rests_s
    from (
        (select * from session s
         where s.account_id = $1 and s.user_id = $2 and s.kind = 'orchestrator' and s.closed_at is null offset 0)
        union all
        (select * from session s
         where $2 = '' and s.account_id = $1 and s.user_id is null and s.kind = 'orchestrator' and s.closed_at is null
         order by s.user_id offset 0)) s
    join orchestrator_identity i on i.account_id = s.account_id and i.owner = $2";

pub async fn orchestrator_now(tx: &Tx, account: &AccountId, owner: &Owner) -> Result<Option<Now>, StorageError> {
    tx.one("find orchestrator's session", NOW, [account.into(), key(owner).into()])
        .await
}
