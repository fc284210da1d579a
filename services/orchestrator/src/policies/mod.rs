//! Tool policies: which tools agents see, and which calls run, are asked about or are refused. `storage::tool_policy` changes them,
//! delivery and the tool-gateway obey them; here they are requested and listed.

pub mod http;
pub mod store;

use runtime::http::Problem;
use storage::tool_policy::{NotSet, POLICIES_MAX};

/// Why a policy was not set or changed, for the client.
pub fn problem(not_set: NotSet) -> Problem {
    match not_set {
        NotSet::NoAccount | NotSet::Missing => Problem::not_found(),
        NotSet::TooMany => {
            let what = format!("the account has {POLICIES_MAX} rules about tools, as many as it may have: remove one");
            Problem::conflict("too_many_policies", what)
        }
        NotSet::Exists { id, verdict, .. } => {
            let says = verdict.map_or_else(String::new, |verdict| format!(" and says {verdict}"));
            let what = format!("rule {id} is for the same scope and tool{says}: change it, or remove it");
            Problem::conflict("policy_exists", what)
        }
        NotSet::Changed { revision } => {
            let what = format!("the rule was changed since it was read: it has revision {revision}; read it again");
            Problem::conflict("policy_changed", what)
        }
    }
}
