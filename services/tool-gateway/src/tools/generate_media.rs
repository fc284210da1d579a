//! `generate_media`: an external model makes images, which become artifacts of the task.

use domain::{FileName, ModelKind};
use serde_json::{Map, Value};

use super::{Running, ToolOutcome, models::start};
use crate::arguments::invalid_field;

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    if let Some(name) = text("name") {
        FileName::try_from(name.to_owned()).map_err(|what| invalid_field("name", &what))?;
    }
    let named = running.models.find(running.account, ModelKind::Images, text("model"));
    if let (Some(size), Some((_, model))) = (text("size"), named)
        && !model.sizes.is_empty()
        && !model.sizes.iter().any(|known| known == size)
    {
        let what = format!("not a size of this model; use one of {}", model.sizes.join(", "));
        return Err(invalid_field("size", &what).into());
    }
    start(running, &arguments, ModelKind::Images).await
}
