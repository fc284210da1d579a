//! Every query on accounts. The transaction has already declared its account, and the guard has checked that the account exists.

use api::accounts::{Account, AccountChange};
use domain::{AccountId, AgentId, TaskId};
use sea_orm::Value;
use storage::{StorageError, Tx};
use time::OffsetDateTime;

const ACCOUNT_INSERT: &str = "
    insert into account (id, name, created_at) values ($1, $2, $3) on conflict do nothing";

/// `false`: an account of that id exists.
pub async fn account_insert(
    tx: &Tx,
    account: &AccountId,
    name: &str,
    now: OffsetDateTime,
) -> Result<bool, StorageError> {
    let values = [account.into(), name.into(), now.into()];
    Ok(tx.execute("make account", ACCOUNT_INSERT, values).await? == 1)
}

macro_rules! columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " id, name, session_scope, instruction_layout, auto_create_tasks, coordinator_task, briefing,
                turns_in_flight_max, plan_gate, plan_audience, liveness, context_policy, task_context_layer, rotation, default_agent,
                orchestrator_provider, orchestrators_visible_to_admins, created_at ",
            $after
        )
    };
}

const FIND: &str = columns!("select", "from account where id = $1");

pub async fn account_find(tx: &Tx, account: &AccountId) -> Result<Account, StorageError> {
    let found = tx.one("read account", FIND, [account.into()]).await?;
    found.ok_or_else(|| StorageError::unreadable("read account", "the row is missing"))
}

const CHANGE: &str = columns!(
    "update account set name = coalesce($2, name), session_scope = coalesce($3, session_scope),
         instruction_layout = coalesce($4, instruction_layout), auto_create_tasks = coalesce($5, auto_create_tasks),
         coordinator_task = case when $6 then $7 else coordinator_task end, briefing = coalesce($8, briefing),
         turns_in_flight_max = case when $9 then $10 else turns_in_flight_max end, plan_gate = coalesce($11, plan_gate),
         plan_audience = case when $11 is null then plan_audience else $12 end, liveness = coalesce($13, liveness),
         context_policy = coalesce($14, context_policy), rotation = coalesce($15, rotation),
         task_context_layer = coalesce($16, task_context_layer), default_agent = case when $17 then $18 else default_agent end,
         orchestrator_provider = case when $19 then $20 else orchestrator_provider end,
         orchestrators_visible_to_admins = coalesce($21, orchestrators_visible_to_admins)
     where id = $1 returning",
    ""
);

/// `coordinator_task` is stored as a task key, the spelling that is compared. `agent`: the one that the change names.
pub async fn account_change(
    tx: &Tx,
    account: &AccountId,
    change: AccountChange,
    agent: Option<AgentId>,
) -> Result<Account, StorageError> {
    let (task, turns) = (change.coordinator_task, change.turns_in_flight_max);
    let (gate, provider) = (change.plan_gate, change.orchestrator_provider);
    let values: [Value; 21] = [
        account.into(),
        change.name.map(String::from).into(),
        change.session_scope.into(),
        change.instruction_layout.into(),
        change.auto_create_tasks.into(),
        task.is_some().into(),
        task.flatten().as_ref().map(TaskId::key).into(),
        change.briefing.map(String::from).into(),
        turns.is_some().into(),
        turns.flatten().map(i32::from).into(),
        gate.as_ref().map(|gate| gate.mode.as_str().to_owned()).into(),
        gate.and_then(|gate| gate.audience).map(|audience| audience.0).into(),
        change.liveness.into(),
        change.context_policy.into(),
        change.rotation.map(|rotation| rotation.stored()).into(),
        change.task_context_layer.into(),
        change.default_agent.is_some().into(),
        agent.into(),
        provider.is_some().into(),
        provider.flatten().map(String::from).into(),
        change.orchestrators_visible_to_admins.into(),
    ];
    let changed = tx.one("change account", CHANGE, values).await?;
    changed.ok_or_else(|| StorageError::unreadable("change account", "the row is missing"))
}
