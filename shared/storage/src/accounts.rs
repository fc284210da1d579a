//! The accounts that a transaction works for, and the person whose own it may see. Row-level security compares every row with them.

use domain::{AccountId, UserId};

use crate::{StorageError, Tx};

/// The values of `signalbox.accounts` and `signalbox.person` for the length of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accounts {
    names: String,
    /// Whose orchestrator's rows the orchestrator service sees: empty, none.
    person: String,
}

impl Accounts {
    pub fn one(account: &AccountId) -> Accounts {
        Accounts::of(account.to_string())
    }

    fn of(names: String) -> Accounts {
        Accounts {
            names,
            person: String::new(),
        }
    }

    /// And what is the person's own.
    #[must_use]
    pub fn with_person(self, user: &UserId) -> Accounts {
        let person = user.to_string();
        Accounts { person, ..self }
    }

    /// And what is every person's own.
    #[must_use]
    pub fn with_everybody(self) -> Accounts {
        let person = EVERYBODY.to_owned();
        Accounts { person, ..self }
    }

    /// A batch may work for several accounts at once; a request works for one.
    pub fn many<'a>(accounts: impl IntoIterator<Item = &'a AccountId>) -> Accounts {
        let mut names: Vec<&str> = accounts.into_iter().map(AccountId::as_str).collect();
        names.sort_unstable();
        names.dedup();
        Accounts::of(names.join(","))
    }

    /// The same accounts and the operator's rows (dead letters without an account).
    pub fn with_operator(self) -> Accounts {
        let names = match self.names.is_empty() {
            true => OPERATOR.to_owned(),
            false => format!("{},{OPERATOR}", self.names),
        };
        Accounts { names, ..self }
    }

    /// Only the operator's rows.
    pub fn operator() -> Accounts {
        Accounts::of(OPERATOR.to_owned())
    }

    /// For tables without an account: replicas, partitions, the relay's own rows.
    pub fn none() -> Accounts {
        Accounts::of(String::new())
    }

    pub(crate) fn names(&self) -> &str {
        &self.names
    }

    pub(crate) fn person(&self) -> &str {
        &self.person
    }
}

/// No id of a person has this form.
const EVERYBODY: &str = "*";

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
