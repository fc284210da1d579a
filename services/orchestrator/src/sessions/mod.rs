//! Sessions and their generations. The resolver opens them, delivery runs them; here they are read, stopped and resumed.

pub mod http;
pub mod prompt;
pub mod store;

use domain::{AccountId, Generation, SessionId};
use runtime::http::Problem;
use storage::{StorageError, Tx};

pub const SESSION_CLOSED: &str = "session_closed";

pub fn generation_is_closed(generation: Generation) -> String {
    format!("generation {generation} is closed")
}

/// The refusal of a change of this session, which names the open one.
pub async fn not_the_open_one(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    (code, why): (&'static str, &str),
) -> Result<Problem, StorageError> {
    let open = store::session_open_of(tx, account, session).await?;
    let open = open.map(|open| open.to_string());
    let which = open.as_ref().map_or_else(
        || "its agent has no open session on the task".to_owned(),
        |open| format!("the open session of its agent on the task is {open}"),
    );
    Ok(Problem::conflict(code, format!("{why}; {which}")).with("session", open))
}
