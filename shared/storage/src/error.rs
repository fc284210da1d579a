//! Errors of the database, sorted by whether a retry may help.

use sea_orm::{DbErr, RuntimeErr, SqlErr};

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("database {attempt} failed")]
    Database { attempt: &'static str, source: DbErr },
    #[error("cannot connect to the database")]
    Connect { source: sqlx::Error },
    #[error("{attempt}: a stored value is not valid for this version: {what}")]
    Unreadable { attempt: &'static str, what: String },
}

impl StorageError {
    /// Serialization failures, deadlocks, lost connections, a full pool: the whole transaction may be retried.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. } => true,
            Self::Unreadable { .. } => false,
            Self::Database { source, .. } => match sqlstate(source) {
                // class 08 connection, 40 rollback, 53 resources, 55P03 lock timeout, 57 operator intervention and
                // statement timeout
                Some(code) => {
                    code.starts_with("08")
                        || code.starts_with("40")
                        || code.starts_with("53")
                        || code == "55P03"
                        || code.starts_with("57")
                }
                None => matches!(
                    source,
                    DbErr::Conn(_) | DbErr::ConnectionAcquire(_) | DbErr::Exec(_) | DbErr::Query(_)
                ),
            },
        }
    }

    /// The server rolled the transaction back in favour of another (serialization failure, deadlock). It has released
    /// all its locks, and an immediate retry is likely to succeed.
    pub fn is_rollback(&self) -> bool {
        matches!(self, Self::Database { source, .. } if matches!(sqlstate(source).as_deref(), Some("40001" | "40P01" | "55P03")))
    }

    /// The server ended a statement at its timeout.
    pub fn is_statement_timeout(&self) -> bool {
        matches!(self, Self::Database { source, .. } if sqlstate(source).as_deref() == Some("57014"))
    }

    /// The server lacked the time, the memory or the space for the statement. A smaller statement may succeed where the
    /// same one will not; the server may also lack the resource as a whole.
    pub fn is_too_much(&self) -> bool {
        // 57014 statement timeout, 53200 out of memory, 54 program limit
        matches!(self, Self::Database { source, .. }
            if sqlstate(source).is_some_and(|code| code == "57014" || code == "53200" || code.starts_with("54")))
    }

    /// Another transaction holds a lock for longer than the lock timeout: statements that do not need the lock may
    /// succeed.
    pub fn waits_for_lock(&self) -> bool {
        matches!(self, Self::Database { source, .. } if sqlstate(source).is_some_and(|code| code == "55P03"))
    }

    /// The statement's content or size caused the error: parts of it may succeed.
    pub fn blames_batch(&self) -> bool {
        self.blames_values() || self.is_too_much()
    }

    /// The values caused the error: the same ones will fail again, others may succeed. An error of the schema or of
    /// rights is neither this nor solved by a retry.
    pub fn blames_values(&self) -> bool {
        match self {
            // class 22 data, 23 constraint, 54 program limit, P0 raised by a trigger
            Self::Database { source, .. } => sqlstate(source)
                .is_some_and(|code| ["22", "23", "54", "P0"].iter().any(|class| code.starts_with(class))),
            Self::Unreadable { .. } => true,
            Self::Connect { .. } => false,
        }
    }

    /// Another transaction wrote that key first.
    pub fn is_unique_violation(&self) -> bool {
        matches!(self, Self::Database { source, .. } if matches!(source.sql_err(), Some(SqlErr::UniqueConstraintViolation(_))))
    }

    pub fn unreadable(attempt: &'static str, what: impl ToString) -> StorageError {
        StorageError::Unreadable {
            attempt,
            what: what.to_string(),
        }
    }
}

/// The connection had ended, or ended now: a stopping server reports it to the next statement, or does not answer any
/// more.
pub(crate) fn is_connection_lost(error: &DbErr) -> bool {
    if let DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error)) = error
        && matches!(**error, sqlx::Error::Io(_) | sqlx::Error::Protocol(_))
    {
        return true;
    }
    // 57P01 shutdown, 57P02 crash of another, class 08 connection
    sqlstate(error).is_some_and(|code| code == "57P01" || code == "57P02" || code.starts_with("08"))
}

/// The server's SQLSTATE, if the server answered.
fn sqlstate(error: &DbErr) -> Option<String> {
    let (DbErr::Exec(runtime) | DbErr::Query(runtime) | DbErr::Conn(runtime)) = error else {
        return None;
    };
    match runtime {
        RuntimeErr::SqlxError(error) => error
            .as_database_error()
            .and_then(|error| error.code())
            .map(|code| code.into_owned()),
        RuntimeErr::Internal(_) => None,
    }
}

/// Names the value of a row that is missing or not of its type. Retrying the batch in parts finds the row.
fn unreadable(error: &DbErr) -> Option<String> {
    match error {
        DbErr::Type(what) => Some(what.clone()),
        DbErr::Query(RuntimeErr::SqlxError(error)) if matches!(**error, sqlx::Error::ColumnDecode { .. }) => {
            Some(error.to_string())
        }
        _ => None,
    }
}

/// Adds what was attempted to an error of the database.
pub trait Attempt<T> {
    fn attempt(self, attempt: &'static str) -> Result<T, StorageError>;
}

impl<T> Attempt<T> for Result<T, DbErr> {
    fn attempt(self, attempt: &'static str) -> Result<T, StorageError> {
        self.map_err(|source| match unreadable(&source) {
            Some(what) => StorageError::Unreadable { attempt, what },
            None => StorageError::Database { attempt, source },
        })
    }
}
