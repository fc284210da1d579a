//! Settles mail to sessions whose items have ended. Idempotent, and safe in several replicas at once: mail settles once.

use domain::{AccountId, MailId, error_chain};
use runtime::sweep::{Parts, Sweep, Ticks};
use storage::{Parts as Batch, Role, StorageError, directory::ShareRound, lifecycle::mail_settle::mail_settle};
use tokio_util::sync::CancellationToken;

use crate::app::{App, database_now};

/// Accounts of one query, and mail of an account in a round: one account with very much delays no other.
const PAGE: (i32, i32) = (50, 500);

pub async fn sweep(app: App, stop: CancellationToken) {
    let sweep = Sweep::new(Role::Orchestrator.service(), "mail");
    let mut ticks = Ticks::every(app.settings.timer_interval_ms.duration(), stop.clone());
    let mut round = ShareRound::of_mail();
    while ticks.next().await {
        sweep.once(settle_once(&app, &mut round, &stop)).await;
    }
}

/// One round over all accounts; gives the number of messages. An account that fails does not stop the others.
pub async fn settle_once(app: &App, round: &mut ShareRound, stop: &CancellationToken) -> Result<u64, StorageError> {
    let mut parts = Parts::default();
    let mut after: Option<AccountId> = None;
    while !stop.is_cancelled() {
        let found = round.look(&app.database, after.as_ref(), PAGE).await?;
        let Some(last) = found.keys().next_back().cloned() else {
            break;
        };
        for (account, ids) in found.into_iter().filter(|(_, ids)| !ids.is_empty()) {
            let mail: Vec<MailId> = ids.iter().filter_map(|id| MailId::parse(id).ok()).collect();
            // Mail that cannot be settled keeps no other from it.
            let mut batch = Batch::of(&mail);
            while let Some(part) = batch.next() {
                match settle(app, &account, part.to_vec()).await {
                    Err(error) if error.blames_batch() && batch.halve(part) => {
                        let error = error_chain(&error);
                        tracing::warn!(%account, mail = part.len(), error, "could not settle mail; retrying in halves");
                    }
                    ended => {
                        parts.note(&account, ended);
                    }
                }
            }
        }
        after = Some(last);
    }
    parts.end()
}

async fn settle(app: &App, account: &AccountId, mail: Vec<MailId>) -> Result<u64, StorageError> {
    let tx = app.begin_sweep(account).await?;
    let setting = app.setting(None, database_now(&tx).await?);
    match mail_settle(&tx, account, mail, &setting).await {
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
