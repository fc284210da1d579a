//! Raw statements: a named SQL constant and its values, through sea-orm's connection.

use sea_orm::{DbBackend, Statement, Value};

/// A Postgres statement. `sql` is a constant on purpose: no text is ever put together from input.
pub fn statement(sql: &'static str, values: impl IntoIterator<Item = Value>) -> Statement {
    Statement::from_sql_and_values(DbBackend::Postgres, sql, values)
}
