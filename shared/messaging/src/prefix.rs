//! The prefixes of a user's JetStream API and of its inboxes.

use contracts::User;

/// The prefix of the JetStream API in the accounts of services. Not `$JS.API`: each account has the server's own import
/// there, and would get two replies.
pub(crate) const API_IMPORTED: &str = "JS.API";
/// The API in the account that holds JetStream.
pub(crate) const API: &str = "$JS.API";

/// The prefix of the JetStream API for a user. A user that is none of ours is on a server without accounts.
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
