//! Finds tasks that an agent has and that nothing moves on, and recoveries whose facts have changed. Idempotent, and safe in
//! several replicas at once: a recovery is a row of its facts.

use std::collections::{BTreeMap, HashMap};

use contracts::notification::NotificationMessage;
use domain::{
    AccountId, Actor, Conversation, NextCode, QueueLimits, RecoveryCause, RecoveryId, RecoveryState, TaskId,
    TaskStatus, error_chain, next::task_next,
};
use runtime::sweep::{Parts, Sweep, Ticks};
use serde_json::{Map, json};
use storage::{
    Accounts, Role, Setting, StorageError, Tx,
    directory::{TasksRound, Unclosed, recovery_unclosed},
    outbox::Owned,
    recovery::{Stuck, recoveries_supersede, recovery_note},
    session::item_enter::{Entered, NewEntry, item_enter},
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::{
    app::{App, database_now},
    tasks::next::{Facts, tasks_now},
};

/// Accounts of one query, and tasks of an account in a round: one account with very many delays no other.
const PAGE: (i32, i32) = (50, 200);
/// Recoveries of one query.
const RECOVERIES_MAX: i32 = 500;
pub async fn sweep(app: App, stop: CancellationToken) {
    let sweep = Sweep::new(Role::Orchestrator.service(), "liveness");
    let mut ticks = Ticks::every(app.settings.liveness_interval_ms.duration(), stop.clone());
    let mut round = TasksRound::default();
    while ticks.next().await {
        sweep.once(look_once(&app, &mut round, &stop)).await;
    }
}

/// One round over all accounts; gives the number of recoveries that changed. An account that fails does not stop the others.
pub async fn look_once(app: &App, round: &mut TasksRound, stop: &CancellationToken) -> Result<u64, StorageError> {
    let mut parts = Parts::default();
    let mut after: Option<Unclosed> = None;
    while !stop.is_cancelled() {
        let found = recovery_unclosed(&app.database, after.as_ref(), RECOVERIES_MAX).await?;
        let mut of: BTreeMap<AccountId, Vec<RecoveryId>> = BTreeMap::new();
        for unclosed in &found {
            of.entry(unclosed.account.clone()).or_default().push(unclosed.recovery);
        }
        for (account, recoveries) in of {
            let closed = in_account(app, &account, async |tx, setting| {
                recoveries_supersede(tx, &account, recoveries.clone(), setting).await
            });
            parts.note(&account, closed.await);
        }
        let is_whole = i32::try_from(found.len()).is_ok_and(|found| found >= RECOVERIES_MAX);
        after = found.into_iter().last().filter(|_| is_whole);
        if after.is_none() {
            break;
        }
    }
    let mut after: Option<AccountId> = None;
    while !stop.is_cancelled() {
        let found = round.look(&app.database, after.as_ref(), PAGE).await?;
        let Some(last) = found.keys().next_back().cloned() else {
            break;
        };
        for (account, tasks) in found.into_iter().filter(|(_, tasks)| !tasks.is_empty()) {
            let noted = in_account(app, &account, async |tx, setting| {
                stranded_note(app, tx, (&account, &tasks), setting).await
            });
            parts.note(&account, noted.await);
        }
        after = Some(last);
    }
    parts.end()
}

/// Commits what the work writes in the account; gives the number of its messages.
async fn in_account(
    app: &App,
    account: &AccountId,
    work: impl AsyncFnOnce(&Tx, &Setting<'_>) -> Result<Vec<Owned>, StorageError>,
) -> Result<u64, StorageError> {
    let tx = app.database.begin(&Accounts::one(account)).await?;
    let setting = app.setting(None, database_now(&tx).await?);
    match work(&tx, &setting).await {
        Ok(messages) => {
            let changes = messages.len() as u64;
            app.commit_free(tx, messages).await?;
            Ok(changes)
        }
        Err(error) => {
            if let Err(failed) = tx.rollback().await {
                tracing::debug!(error = error_chain(&failed), "could not roll back");
            }
            Err(error)
        }
    }
}

/// Notes those of these tasks that are stalled, and tells their agents where the account wants that.
async fn stranded_note(
    app: &App,
    tx: &Tx,
    (account, tasks): (&AccountId, &[TaskId]),
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let keys = tasks.iter().map(|task| task.key().into()).collect();
    let facts: HashMap<String, Facts> = tasks_now(tx, account, keys).await?;
    let mut messages = Vec::new();
    // In one order, so that two replicas do not wait for each other.
    for task in tasks {
        let Some(facts) = facts.get(task.key().as_str()) else {
            continue;
        };
        if !is_stranded(facts, setting.now, app.settings.stall_after_ms.duration()) {
            continue;
        }
        let state = match RecoveryCause::Stranded.is_tried(facts.liveness) && facts.agent.is_some() {
            true => RecoveryState::Open,
            false => RecoveryState::Person,
        };
        let stuck = Stuck {
            account,
            task: &facts.task,
            agent: facts.agent,
            cause: RecoveryCause::Stranded,
            detail: RecoveryCause::Stranded.told(),
            since: facts.now.since.0,
            items: &[],
        };
        let (noted, told) = recovery_note(tx, &stuck, state, setting).await?;
        messages.extend(told);
        let Some(row) = noted.filter(|row| row.is_new && row.state == RecoveryState::Open) else {
            continue;
        };
        if let (Some(agent), Some(id)) = (facts.agent, &row.notification_id) {
            let conversation = Conversation::of(account, facts.scope, Some(&facts.task), agent);
            let item = NewEntry {
                id,
                task: Some(&facts.task),
                message: told_to_agent(facts),
            };
            let (entered, told) = item_enter(tx, &conversation, item, &QueueLimits::OWN, setting).await?;
            messages.extend(told);
            if let Entered::Refused(refusal) = entered {
                tracing::warn!(%account, task = %facts.task, recovery = %row.id, %refusal, "a recovery's item was refused");
            }
        }
        tracing::info!(%account, task = %facts.task, recovery = %row.id, "told an agent that its task does not move on");
    }
    Ok(messages)
}

/// Whether nothing has moved the task on for so long. A recovery of it moves it on.
fn is_stranded(facts: &Facts, now: OffsetDateTime, after: std::time::Duration) -> bool {
    let is_worked = match facts.now.status {
        TaskStatus::Assigned | TaskStatus::Pending | TaskStatus::InProgress => true,
        TaskStatus::Inbox
        | TaskStatus::Review
        | TaskStatus::Blocked
        | TaskStatus::AwaitingApproval
        | TaskStatus::Done
        | TaskStatus::Failed
        | TaskStatus::Cancelled
        | TaskStatus::Archived => false,
    };
    let unhelped = domain::next::TaskNow {
        recovery: None,
        ..facts.now.clone()
    };
    is_worked && now - facts.now.since.0 >= after && task_next(&unhelped).code == NextCode::Stalled
}

fn told_to_agent(facts: &Facts) -> NotificationMessage {
    let body = format!(
        "Task {} has status {} and nothing moves it on: no turn is due, no question is open, no timer is set. Go on with it now. \
         If it is finished, give it its status. If you wait for somebody, ask, or set it to blocked and name who has to do what. \
         If you wait for a time, set a timer. A reply alone changes nothing.",
        facts.task, facts.now.status
    );
    let metadata = Map::from_iter([("reopen".to_owned(), json!(false))]);
    NotificationMessage {
        id: None,
        kind: Some("recovery".to_owned()),
        agent: None,
        agents: Vec::new(),
        title: Some(format!("{} does not move on", facts.task)),
        body,
        message_id: None,
        sender: Some(Actor::system()),
        queue_mode: None,
        metadata,
    }
}
