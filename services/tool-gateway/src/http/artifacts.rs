//! `POST /agent/artifacts?name=`: an agent uploads a file of its task, with the same rights as a tool that writes. It is an artifact
//! like any other; its id follows from the request's key, so that a repeated request is the same one.

use axum::{
    Json,
    extract::{FromRequestParts, Query, Request, State},
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use domain::{ArtifactId, ArtifactSource, FileName, SessionId, TaskId};
use messaging::trace::current_trace;
use runtime::http::{Problem, Route};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use storage::{
    Accounts,
    lifecycle::artifact_store::{File, NewArtifact, NotStored, Stored, artifact_store},
    outbox::outbox_insert,
};
use uuid::Uuid;

use super::{
    caller::{Caller, caller, no_session},
    openapi::describe_key,
    routes::{Agents, failed, idempotency_key, problem},
};
use crate::{capability::Capability, store};

/// Its bodies have a limit of their own.
pub(crate) const UPLOAD_PATH: &str = "/agent/artifacts";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UploadQuery {
    /// The name of the file; required.
    name: Option<FileName>,
}

/// A file of the session's task.
#[derive(Serialize, JsonSchema)]
struct Uploaded {
    id: ArtifactId,
    task: TaskId,
    name: FileName,
    /// As read from the content.
    media_type: domain::MediaType,
    bytes: i32,
}

pub(super) fn route() -> Route<Agents> {
    Route::new(
        (Method::POST, UPLOAD_PATH),
        upload,
        ("agent", "artifact_upload"),
        "Uploads a file of the session's task: the body is its content. Its type is read from the content: PNG, JPEG, GIF, WebP, PDF, or text in UTF-8. An `Idempotency-Key` makes a repeated request the same upload.",
        |operation| {
            operation.query::<UploadQuery>();
            describe_key(operation);
            operation.body_of_bytes();
            operation.answers::<Uploaded>(StatusCode::CREATED, "Made");
            operation.refuses(&[408, 409, 413, 415, 422]);
        },
    )
}

async fn upload(State(agents): State<Agents>, request: Request) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let executor = &agents.executor;
    let Caller {
        account,
        session,
        under_way,
    } = caller(&agents.callers, &parts).await?;
    let query = Query::<UploadQuery>::from_request_parts(&mut parts, &()).await;
    let Query(UploadQuery { name }) = query.map_err(|rejection| invalid_field(rejection.body_text()))?;
    let name = name.ok_or_else(|| invalid_field("name: missing; add ?name= to the path"))?;
    let key = idempotency_key(&parts.headers)?;
    let share = under_way.share();
    let _room = share.room(&body)?;
    let content: Vec<u8> = runtime::http::body(body).await?.into();
    if content.is_empty() {
        return Err(invalid_field("the body, which is the file, is empty"));
    }
    let file = File::of(content).await.ok_or_else(|| {
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type")
            .detail("the content is none of PNG, JPEG, GIF, WebP, PDF and text in UTF-8")
    })?;
    let _connection = share.take().await?;
    let accounts = Accounts::one(&account);
    let tx = executor.database.begin(&accounts).await.map_err(failed)?;
    // Without its lock: a session that closes meanwhile leaves its task a file, as one that closes a moment later.
    let facts = store::session_facts(&tx, &account, session, executor.branches.depth_max)
        .await
        .map_err(failed)?;
    let facts = facts.ok_or_else(no_session)?;
    let capability = Capability { session, facts: &facts };
    let task = capability
        .adds_to()
        .map_err(|refusal| problem(&refusal.told().text()))?;
    let task =
        task.ok_or_else(|| Problem::conflict("no_task", "this session works on no task, and files are of tasks"))?;
    let id = id_of(session, key.as_deref());
    let new = NewArtifact {
        account: &account,
        task,
        id,
        name: &name,
        file: &file,
        source: ArtifactSource::Upload,
        source_ref: None,
        by: &facts.actor(),
    };
    let turn = facts.turn.as_ref().map(|turn| turn.id);
    let setting = facts.setting(&executor.root, (turn, id.uuid()), current_trace());
    let room = executor.artifact_account_bytes_max;
    let stored = artifact_store(&tx, &new, room, &setting).await.map_err(failed)?;
    let Stored { task, event } = stored.map_err(refused)?;
    let outbox = outbox_insert(&tx, event.into_iter().collect()).await.map_err(failed)?;
    executor.shutdown.crash_point("tool_gateway.effect_written").await;
    tx.commit().await.map_err(failed)?;
    executor.shutdown.crash_point("tool_gateway.effect_committed").await;
    executor.outbox.publish_soon(outbox);
    tracing::info!(%account, session_id = %session, artifact_id = %id, file = ?file, "stored an artifact");
    let uploaded = Uploaded {
        id,
        task,
        name,
        media_type: file.media_type,
        bytes: file.bytes(),
    };
    Ok(under_way.hold((StatusCode::CREATED, Json(uploaded)).into_response()))
}

fn id_of(session: SessionId, key: Option<&str>) -> ArtifactId {
    ArtifactId(match key {
        Some(key) => Uuid::new_v5(&session.uuid(), format!("artifact\n{key}").as_bytes()),
        None => Uuid::now_v7(),
    })
}

fn invalid_field(what: impl Into<String>) -> Problem {
    Problem::unprocessable("invalid_field", what)
}

fn refused(why: NotStored) -> Problem {
    match why {
        NotStored::TaskNotThere => Problem::not_found(),
        NotStored::Another => Problem::unprocessable(
            "idempotency_key_reused",
            "this Idempotency-Key was used in this session for another file",
        ),
        NotStored::Quota { bytes, bytes_max } => Problem::conflict(
            "artifact_quota",
            format!("the account's artifacts would have {bytes} bytes, of {bytes_max} that they may"),
        ),
    }
}
