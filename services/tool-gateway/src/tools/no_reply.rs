//! `no_reply`: the call's record is its only effect. Delivery reads the record when the turn ends.

use serde_json::{Map, Value, json};

use super::{Running, ToolOutcome};
use crate::call::Effect;

#[expect(clippy::unused_async, reason = "a handler like the others")]
pub(super) async fn run(_running: Running<'_>, _arguments: Map<String, Value>) -> ToolOutcome {
    let note = "Recorded. Nothing of this turn will be posted; end it now.";
    Ok(Effect::new(json!({"recorded": true, "note": note}), Vec::new()))
}
