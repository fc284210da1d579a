//! Finds tasks that an agent has and that nothing moves on, and recoveries whose facts have changed. Idempotent, and safe in
//! several replicas at once: a recovery is a row of its facts.

use std::str::FromStr;

use contracts::notification::NotificationMessage;
use domain::{
    AccountId, Actor, AgentId, Audience, Conversation, NextCode, QuestionId, QueueLimits, RecoveryCause, RecoveryState,
    TaskId, TaskStatus, error_chain, next::task_next,
};
use runtime::sweep::{Parts, Sweep, Ticks};
use storage::{
    Role, Setting, StorageError, Tx,
    directory::ShareRound,
    outbox::Owned,
    question::asked_id,
    recovery::{Stuck, recoveries_supersede, recovery_note},
    session::{
        item_enter::{Entered, NewEntry, item_enter},
        sessions_lock::conversations_lock,
    },
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use super::store::{self, ReviewRow};
use crate::{
    app::{App, database_now},
    tasks::next::{Facts, tasks_now},
};

/// Accounts of one query, and rows of an account in a round: one account with very many delays no other.
const PAGE: (i32, i32) = (50, 200);
/// The type of the items that a recovery sends.
const RECOVERY: &str = "recovery";

pub async fn sweep(app: App, stop: CancellationToken) {
    let sweep = Sweep::new(Role::Orchestrator.service(), "liveness");
    let mut ticks = Ticks::every(app.settings.liveness_interval_ms.duration(), stop.clone());
    let mut rounds = Rounds::default();
    while ticks.next().await {
        sweep.once(look_once(&app, &mut rounds, &stop)).await;
    }
}

/// How far each search has come: a share of every account in a round.
#[derive(Debug)]
pub struct Rounds([(Search, ShareRound); 3]);

#[derive(Clone, Copy, Debug)]
enum Search {
    /// Recoveries whose facts have changed.
    Recoveries,
    /// Reviews whose agent had its turn and gave no verdict.
    Reviews,
    /// Tasks that nothing moves on.
    Tasks,
}

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds([
            (Search::Recoveries, ShareRound::of_recoveries()),
            (Search::Reviews, ShareRound::of_reviews()),
            (Search::Tasks, ShareRound::of_tasks()),
        ])
    }
}

/// One round over all accounts; gives the number of recoveries that changed. Each account's share is a transaction of its own: an account
/// that fails does not stop the others.
pub async fn look_once(app: &App, rounds: &mut Rounds, stop: &CancellationToken) -> Result<u64, StorageError> {
    let mut parts = Parts::default();
    for (search, round) in &mut rounds.0 {
        let mut after: Option<AccountId> = None;
        while !stop.is_cancelled() {
            let found = round.look(&app.database, after.as_ref(), PAGE).await?;
            let Some(last) = found.keys().next_back().cloned() else {
                break;
            };
            for (account, ids) in found.into_iter().filter(|(_, ids)| !ids.is_empty()) {
                let mut stranded = Vec::new();
                let done = in_account(app, &account, async |tx, setting| match search {
                    Search::Recoveries => recoveries_supersede(tx, &account, parsed(&ids), setting).await,
                    Search::Reviews => undecided_note(tx, &account, &parsed(&ids), setting).await,
                    Search::Tasks => stranded_find(app, tx, (&account, &parsed(&ids)), &mut stranded, setting).await,
                });
                parts.note(&account, done.await);
                // Each locks its agent's session, so each has a transaction of its own.
                for facts in stranded {
                    let done = in_account(app, &account, async |tx, setting| {
                        stranded_note(tx, &account, &facts, setting).await
                    });
                    parts.note(&account, done.await);
                }
            }
            after = Some(last);
        }
    }
    parts.end()
}

/// Ids that rows have.
fn parsed<T: FromStr>(ids: &[String]) -> Vec<T> {
    ids.iter().filter_map(|id| id.parse().ok()).collect()
}

/// Commits what the work writes in the account; gives the number of its messages.
async fn in_account(
    app: &App,
    account: &AccountId,
    work: impl AsyncFnOnce(&Tx, &Setting<'_>) -> Result<Vec<Owned>, StorageError>,
) -> Result<u64, StorageError> {
    let tx = app.begin_sweep(account).await?;
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

/// Finds those of these tasks that are stalled. Writes nothing.
async fn stranded_find(
    app: &App,
    tx: &Tx,
    (account, tasks): (&AccountId, &[TaskId]),
    stranded: &mut Vec<Facts>,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let keys = tasks.iter().map(|task| task.key().into()).collect();
    let facts = tasks_now(tx, account, keys).await?.into_values();
    let after = app.settings.stall_after_ms.duration();
    stranded.extend(facts.filter(|facts| is_stranded(facts, setting.now, after)));
    Ok(Vec::new())
}

/// Notes a task that is stalled, and tells its agent where the account wants that.
async fn stranded_note(
    tx: &Tx,
    account: &AccountId,
    facts: &Facts,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
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
    let conversation = facts
        .agent
        .map(|agent| Conversation::of(account, facts.scope, Some(&facts.task), agent));
    if let Some(conversation) = conversation.as_ref().filter(|_| state == RecoveryState::Open) {
        // The session before the recovery, as whoever ends the task locks.
        conversations_lock(tx, &[conversation]).await?;
    }
    let (noted, mut messages) = recovery_note(tx, &stuck, state, setting).await?;
    let Some(row) = noted.filter(|row| row.is_new && row.state == RecoveryState::Open) else {
        return Ok(messages);
    };
    if let (Some(conversation), Some(id)) = (conversation, &row.notification_id) {
        let item = NewEntry {
            id,
            task: Some(&facts.task),
            message: told_to_agent(facts),
        };
        let (entered, told) = item_enter(tx, &conversation, item, &QueueLimits::OWN, setting).await?;
        messages.extend(told);
        match entered {
            Entered::Refused(refusal) => {
                tracing::warn!(%account, task = %facts.task, recovery = %row.id, %refusal, "a recovery's item was refused");
            }
            Entered::Placed { .. } | Entered::Known(_) | Entered::Sent => {
                tracing::info!(%account, task = %facts.task, recovery = %row.id, "tells an agent that its task does not move on");
            }
        }
    }
    Ok(messages)
}

/// Notes the reviews whose agent had its turn and gave no verdict, and asks such an agent once more; then a person.
async fn undecided_note(
    tx: &Tx,
    account: &AccountId,
    reviews: &[QuestionId],
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let rows = store::reviews_read(tx, account, reviews).await?;
    let asked: Vec<(&ReviewRow, AgentId)> = rows
        .iter()
        .flat_map(|row| row.audience.iter().map(move |asked| (row, asked)))
        .filter_map(|(row, asked)| match asked.parse() {
            Ok(Audience::Agent(agent)) => Some((row, agent)),
            _ => None,
        })
        .collect();
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let item = |row: &ReviewRow, agent: AgentId| asked_id(row.id, agent).to_string();
    let ids: Vec<String> = asked.iter().map(|(row, agent)| item(row, *agent)).collect();
    let ended = store::items_ended(tx, account, ids).await?;
    let mut messages = Vec::new();
    for (row, agent) in asked {
        if !ended.contains(&item(row, agent)) {
            continue;
        }
        let stuck = Stuck {
            account,
            task: &row.task,
            agent: Some(agent),
            cause: RecoveryCause::ReviewUndecided,
            detail: RecoveryCause::ReviewUndecided.told(),
            since: setting.now,
            items: &[],
        };
        let (noted, told) = recovery_note(tx, &stuck, RecoveryState::Open, setting).await?;
        messages.extend(told);
        if let Some(id) = noted
            .filter(|row| row.is_new && row.state == RecoveryState::Open)
            .and_then(|row| row.notification_id)
        {
            let body = format!(
                "You were asked for a verdict on question {}, and your turn ended without one. Give it now, by the tool \
                 answer_question. A reply alone is no verdict. If you give none, a person is asked.",
                row.id
            );
            let title = format!("Your verdict is missing: {}", row.title);
            let message = NotificationMessage::new(RECOVERY, Actor::system(), title, body)
                .with("reopen", false)
                .with("question_id", row.id.to_string());
            messages.push(setting.agent_told((account, Some(&row.task)), (agent, &id), message));
        }
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
    let title = format!("{} does not move on", facts.task);
    NotificationMessage::new(RECOVERY, Actor::system(), title, body).with("reopen", false)
}
