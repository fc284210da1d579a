//! What people are told outside of Signalbox: by e-mail. Rows are written with what they are about (`storage::lifecycle::announce`, and
//! [`store::sign_in_insert`] for sign-in links) and sent from here, at least once.
//!
//! In reading order: [`schedule`] (when a failed attempt is followed by another one), [`text`] (what an e-mail says), [`smtp`] (the mail
//! server), [`store`] (every query), [`compose`] (from a row to an e-mail), [`sender`] (who sends what is due).

pub mod compose;
pub mod schedule;
pub mod sender;
pub mod smtp;
pub mod store;
pub mod text;

use storage::{Accounts, StorageError};

use crate::app::App;

/// Notes whether e-mail is sent here, for whoever writes mail, in any service. Of processes that are started with different settings, the
/// last one counts.
pub async fn sends_email(app: &App, pending_account_max: Option<i64>) -> Result<(), StorageError> {
    let tx = app.database.begin(&Accounts::none()).await?;
    let set = store::way_set(&tx, pending_account_max).await;
    tx.commit_or_rollback(set).await?;
    if let Some(most) = pending_account_max {
        app.emails_max_set(most);
    }
    Ok(())
}
