//! `ask_model`: an external model answers in text.

use domain::ModelKind;
use serde_json::{Map, Value};

use super::{Running, ToolOutcome, models::start};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    start(running, &arguments, ModelKind::OpenResponses).await
}
