//! `list_personas`: the personas that an orchestrator may give to the sessions that it creates.

use contracts::tools::list_personas::LISTED_MAX;
use serde_json::{Map, Value, json};

use super::{Running, ToolOutcome, children::owner};
use crate::{call::Effect, store::personas_for};

pub(super) async fn run(running: Running<'_>, _: Map<String, Value>) -> ToolOutcome {
    let found = personas_for(running.questions.tx, running.account, &owner(running)?, LISTED_MAX).await?;
    let personas: Vec<Value> = found
        .iter()
        .map(|persona| {
            json!({
                "slug": persona.slug,
                "name": persona.name,
                "description": persona.description,
                "visibility": persona.visibility,
                "is_default": persona.is_default,
            })
        })
        .collect();
    Ok(Effect::new(json!({"personas": personas}), Vec::new()))
}
