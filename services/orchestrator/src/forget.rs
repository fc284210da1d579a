//! Forgets what was kept for a time: stored answers of POSTs, notifications' acceptances, dead letters. Safe to run
//! twice, and in every replica at once.

use std::time::Duration;

use domain::AccountId;
use sea_orm::ConnectionTrait;
use storage::{Accounts, StorageError, directory::account_directory, error::Attempt, statement};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::app::App;

/// Accounts looked at in one go.
const ACCOUNTS_MAX: i32 = 500;

pub async fn forget(app: App, stop: CancellationToken) {
    let mut ticks = interval(app.settings.forget_interval_ms.duration());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        if let Err(error) = forget_once(&app, &stop).await {
            let error = format!("{:#}", anyhow::Error::new(error));
            tracing::warn!(error, "could not forget old answers; next time");
        }
    }
}

/// All accounts, one after the other, and the operator's place.
pub async fn forget_once(app: &App, stop: &CancellationToken) -> Result<(), StorageError> {
    forget_of(app, &Accounts::operator(), storage::accounts::OPERATOR).await?;
    let mut after: Option<String> = None;
    loop {
        let entries = account_directory(&app.database, after.as_deref(), ACCOUNTS_MAX).await?;
        for entry in &entries {
            if stop.is_cancelled() {
                return Ok(());
            }
            if let Ok(account) = AccountId::parse(&entry.id) {
                forget_of(app, &Accounts::one(&account), account.as_str()).await?;
            }
        }
        match entries.last() {
            Some(last) if entries.len() == usize::try_from(ACCOUNTS_MAX).unwrap_or(usize::MAX) => {
                after = Some(last.id.clone());
            }
            Some(_) | None => return Ok(()),
        }
    }
}

/// Both rely on the account in front of the primary key: what is kept of one account is little.
const ANSWERS: &str = "
    delete from idempotency where account_id = $1 and created_at < now() - $2 * interval '1 second'";
const ACCEPTED: &str = "
    delete from accepted_notification where account_id = $1 and created_at < now() - $2 * interval '1 second'";

/// Relies on dead_letter_newest.
const LETTERS: &str = "
    delete from dead_letter where account_id = $1 and id in (
        select id from dead_letter where account_id = $1 and created_at < now() - $2 * interval '1 second'
        order by created_at, id limit $3)";
/// Dead letters are large: so many in one transaction.
const LETTERS_MAX: i64 = 1_000;

async fn letters_forget(app: &App, accounts: &Accounts, owner: &str) -> Result<(), StorageError> {
    let kept = Duration::from_secs(u64::from(app.settings.dead_letters_kept_days.get()) * 24 * 3600);
    loop {
        let tx = app.database.begin(accounts).await?;
        let values = [owner.into(), kept.as_secs_f64().into(), LETTERS_MAX.into()];
        let forgotten = tx
            .execute_raw(statement(LETTERS, values))
            .await
            .attempt("forget dead letters")?
            .rows_affected();
        tx.commit().await?;
        if i64::try_from(forgotten).is_ok_and(|forgotten| forgotten < LETTERS_MAX) {
            return Ok(());
        }
    }
}

async fn forget_of(app: &App, accounts: &Accounts, owner: &str) -> Result<(), StorageError> {
    let hours = |hours: u32| Duration::from_secs(u64::from(hours) * 3600).as_secs_f64();
    let tx = app.database.begin(accounts).await?;
    for (sql, kept_hours) in [
        (ANSWERS, app.settings.answers_kept_hours.get()),
        (ACCEPTED, app.settings.accepted_kept_hours.get()),
    ] {
        let values = [owner.into(), hours(kept_hours).into()];
        tx.execute_raw(statement(sql, values))
            .await
            .attempt("forget what was kept for a time")?;
    }
    tx.commit().await?;
    letters_forget(app, accounts, owner).await
}
