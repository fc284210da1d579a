//! `attribute_user`: which person of the account is known by a name from outside. Code decides, and no model.

use domain::Email;
use serde_json::{Map, Value, json};

use super::{Running, ToolOutcome};
use crate::{call::Effect, store::member_by_address};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    // The only provider yet: the schema refuses others.
    let address = Email::parse(arguments["external_id"].as_str().unwrap_or_default().trim());
    let found = match address {
        Ok(address) => member_by_address(running.questions.tx, running.account, &address).await?,
        Err(_) => None,
    };
    let (user, handle) = found.map_or((None, None), |found| (Some(found.user_id), found.handle));
    Ok(Effect::new(json!({"user_id": user, "handle": handle}), Vec::new()))
}
