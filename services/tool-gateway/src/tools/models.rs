//! What the tools of external models have in common: their start, under the checks of their call. The model, the task's context and
//! the artifacts are found here; the call itself runs after the commit (`external`).

use domain::{ArtifactId, MediaType, ModelKind};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use storage::lifecycle::task_context_find;

use super::{Running, ToolError, ToolOutcome, body};
use crate::{
    arguments::invalid_field,
    call::{Effect, ModelRequest, Outside, ToolAnswer},
    models::{INPUT_BYTES_MAX, form, input_of},
    refusal::{Refusal, takes_no},
    store,
};

/// Starts a call of a model of this kind.
pub(super) async fn start(running: Running<'_>, arguments: &Map<String, Value>, kind: ModelKind) -> ToolOutcome {
    let request = body(arguments, "request")?;
    let facts = running.facts;
    let task = facts.task().ok_or_else(no_task)?;
    let tx = running.questions.tx;
    let mut of = task_context_find(tx, running.account, task)
        .await?
        .ok_or_else(no_task)?;
    if let Some(branch) = facts.branch {
        of.newest = store::context_of_branch(tx, running.account, branch.id).await?;
    }
    if let Some(refusal) = Refusal::of_context(&of) {
        return Err(refusal.told().into());
    }
    let named = arguments.get("model").and_then(Value::as_str);
    let models = running.models;
    let (name, model) = models.find(running.account, kind, named).ok_or_else(|| {
        unknown_model(
            named,
            models.of(running.account).filter(|(_, model)| model.kind == kind),
        )
    })?;
    let artifacts = named_artifacts(arguments)?;
    let found = store::artifacts_find(tx, running.account, task, &artifacts).await?;
    for id in &artifacts {
        if !found.iter().any(|row| row.id == *id) {
            return Err(not_found(*id).into());
        }
    }
    let refused = |media_type: &MediaType| !model.accepts.contains(&input_of(*media_type));
    if let Some(media_type) = found.iter().map(|row| row.media_type).find(refused) {
        return Err(takes_no(name, media_type).into());
    }
    let bytes: i64 = found.iter().map(|row| i64::from(row.bytes)).sum();
    if bytes > INPUT_BYTES_MAX {
        let answer = ToolAnswer::failed(
            "artifact_too_large",
            format!("The artifacts have {bytes} bytes together; a model is shown at most {INPUT_BYTES_MAX}."),
            "Nothing was sent. Show fewer of them at one time.",
        );
        return Err(answer.into());
    }
    let text = form(of.newest.as_ref().map(|context| context.body.as_str()), request);
    let outside = Outside {
        model: name.to_owned(),
        timeout: model.timeout,
        request: ModelRequest {
            task: task.clone(),
            context_version: of.newest.map(|context| context.version),
            artifacts,
            text_sha256: hex::encode(Sha256::digest(text.as_bytes())),
            tries: 1,
        },
    };
    Ok(Effect::outside(outside))
}

/// The artifacts that the arguments name, each once.
fn named_artifacts(arguments: &Map<String, Value>) -> Result<Vec<ArtifactId>, ToolError> {
    let named = arguments.get("artifacts").and_then(Value::as_array);
    let mut ids: Vec<ArtifactId> = Vec::new();
    for text in named.into_iter().flatten().filter_map(Value::as_str) {
        let id = ArtifactId::parse(text).map_err(|_| not_found_named(text))?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// The same for an artifact of another task or account and for one that nobody has.
fn not_found(id: ArtifactId) -> ToolAnswer {
    not_found_named(&id.to_string())
}

fn not_found_named(id: &str) -> ToolAnswer {
    ToolAnswer::refused(
        "not_found",
        format!("There is no artifact {id} that you can use here."),
        "Nothing was sent. Use ids of artifacts of your task.",
    )
}

fn no_task() -> ToolAnswer {
    ToolAnswer::refused(
        "no_task",
        "This conversation is about no task, and a model is told the context of one.",
        "Nothing was sent. Go on without it.",
    )
}

fn unknown_model<'m, M>(named: Option<&str>, there: impl Iterator<Item = (&'m str, M)>) -> ToolAnswer {
    let names: Vec<&str> = there.map(|(name, _)| name).collect();
    ToolAnswer::failed(
        "unknown_model",
        format!(
            "There is no model {} that you can use here.",
            named.unwrap_or("of this kind")
        ),
        format!("Nothing was sent. Use one of: {}.", names.join(", ")),
    )
}

/// The address in the arguments, if there is one; with one of two.
pub(super) fn one_of_two(arguments: &Map<String, Value>) -> Result<(), ToolError> {
    match (arguments.contains_key("artifacts"), arguments.contains_key("url")) {
        (true, false) | (false, true) => Ok(()),
        (true, true) => Err(invalid_field("url", "give artifacts or url, not both").into()),
        (false, false) => Err(invalid_field("artifacts", "missing: give artifacts or url").into()),
    }
}
