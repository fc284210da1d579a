//! The active holds of accounts, read under the locks of the sessions that they may keep.

use std::collections::{BTreeSet, HashMap};

use domain::{
    AccountId,
    hold::{Held, kept_by, stopped_by},
};
use storage::{
    StorageError, Tx,
    hold::{ActiveHold, holds_active},
};

/// The holds of the accounts that a transaction has asked about.
#[derive(Debug, Default)]
pub struct Holds(HashMap<AccountId, Vec<ActiveHold>>);

impl Holds {
    /// Reads the holds of accounts that have any. Without such an account, or once they are read, there is no statement.
    pub async fn read(
        &mut self,
        tx: &Tx,
        accounts: impl Iterator<Item = (&AccountId, i32)>,
    ) -> Result<(), StorageError> {
        let with_holds = accounts.filter(|(account, holds)| *holds > 0 && !self.0.contains_key(account));
        let accounts: BTreeSet<AccountId> = with_holds.map(|(account, _)| account.clone()).collect();
        if accounts.is_empty() {
            return Ok(());
        }
        let accounts: Vec<AccountId> = accounts.into_iter().collect();
        let active = holds_active(tx, accounts.clone()).await?;
        self.0.extend(accounts.into_iter().map(|account| (account, Vec::new())));
        for hold in active {
            self.0.entry(hold.account.clone()).or_default().push(hold);
        }
        Ok(())
    }

    /// The hold that keeps a session from starting.
    pub fn keeping(&self, account: &AccountId, held: Held<'_>) -> Option<&ActiveHold> {
        kept_by(self.of(account), held)
    }

    /// The hold that ends a session's turn in progress.
    pub fn stopping(&self, account: &AccountId, held: Held<'_>) -> Option<&ActiveHold> {
        stopped_by(self.of(account), held)
    }

    fn of(&self, account: &AccountId) -> &[ActiveHold] {
        self.0.get(account).map_or(&[], Vec::as_slice)
    }
}
