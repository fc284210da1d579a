//! Where a user of the broker finds the JetStream API, and where its answers come in.

use contracts::User;

/// Where the accounts of services have the JetStream API. Not at `$JS.API`: there each account, those without JetStream
/// too, has the server's own import, and would be answered twice.
pub(crate) const API_IMPORTED: &str = "JS.API";
/// The API where JetStream is.
pub(crate) const API: &str = "$JS.API";

/// Where this user finds the JetStream API. A user of no service is one of a server without accounts.
pub(crate) fn api_prefix(user: Option<User>) -> &'static str {
    match user {
        Some(User::Operator) | None => API,
        Some(_) => API_IMPORTED,
    }
}

/// The inboxes of a user.
pub(crate) fn inbox_prefix(user: &str) -> String {
    format!("_I.{user}")
}
