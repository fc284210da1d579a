//! The accounts that a transaction works for. Row-level security compares every row with them.

use domain::AccountId;

use crate::{StorageError, Tx};

/// The value of `signalbox.accounts` for the length of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accounts(String);

impl Accounts {
    pub fn one(account: &AccountId) -> Accounts {
        Accounts(account.to_string())
    }

    /// A batch may work for several accounts at once; a request works for one.
    pub fn many<'a>(accounts: impl IntoIterator<Item = &'a AccountId>) -> Accounts {
        let mut names: Vec<&str> = accounts.into_iter().map(AccountId::as_str).collect();
        names.sort_unstable();
        names.dedup();
        Accounts(names.join(","))
    }

    /// The same accounts and the operator's rows (dead letters without an account).
    pub fn with_operator(self) -> Accounts {
        if self.0.is_empty() {
            Accounts::operator()
        } else {
            Accounts(format!("{},{OPERATOR}", self.0))
        }
    }

    /// Only the operator's rows.
    pub fn operator() -> Accounts {
        Accounts(OPERATOR.to_owned())
    }

    /// For tables without an account: replicas, partitions, the relay's own rows.
    pub fn none() -> Accounts {
        Accounts(String::new())
    }

    pub(crate) fn setting(&self) -> &str {
        &self.0
    }
}

/// The `account_id` of rows without an existing account; no account can have this name.
pub const OPERATOR: &str = contracts::subject::NO_ACCOUNT;

/// Whether the account exists. The transaction must have declared it. An account in a subject is unverified until this
/// was called.
pub async fn account_exists(tx: &Tx, account: &AccountId) -> Result<bool, StorageError> {
    const SQL: &str = "select 1 from account where id = $1";
    tx.exists("look up account", SQL, [account.into()]).await
}

/// For changes that concern the whole account, as who its last admin is: two at one time come one after the other. Before locks of
/// other rows. `false`: there is no such account.
pub async fn account_lock(tx: &Tx, account: &AccountId) -> Result<bool, StorageError> {
    const SQL: &str = "select 1 from account where id = $1 for no key update";
    tx.exists("lock account", SQL, [account.into()]).await
}
