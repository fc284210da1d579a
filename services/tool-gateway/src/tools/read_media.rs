//! `read_media`: an external model looks at files of the task, or at one at an address.

use domain::ModelKind;
use serde_json::{Map, Value};

use super::{
    Running, ToolOutcome,
    models::{one_of_two, start},
};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    one_of_two(&arguments)?;
    start(running, &arguments, ModelKind::OpenResponses).await
}
