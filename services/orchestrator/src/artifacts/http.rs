//! `/api/orgs/{account}/tasks/{task}/artifacts`, `/api/orgs/{account}/artifacts`. An upload's body is the file itself; a content is
//! answered as a file to save, which no browser runs.

use api::artifacts::Artifact;
use axum::{
    Json,
    extract::{FromRequest, FromRequestParts, Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, NoContent, Response},
};
use domain::{ArtifactId, ArtifactSource, FileName, MediaType, TaskId};
use runtime::http::{AccountShare, Problem, openapi::Operation};
use schemars::JsonSchema;
use serde::Deserialize;
use storage::lifecycle::artifact_store::{
    File, NewArtifact, NotStored, artifact_content, artifact_remove, artifact_store,
};
use uuid::Uuid;

use super::store::{LIST, artifact_find};
use crate::{
    app::{App, database_now},
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    idempotency::{Answer, Done, Once},
    paging::{List, ListQuery, Shown},
    route::{Described, routes},
    tasks::store::task_find,
};

/// Where files are uploaded: its bodies have a limit of their own.
pub const UPLOAD_PATH: &str = "/api/orgs/{account}/tasks/{task}/artifacts";
/// A content is neither run, nor does it load anything, nor is it a part of a page.
const CONTENT_POLICY: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

routes! {
    "artifacts": "Files of tasks: uploaded, fetched, or made by models";
    /// The artifacts of a task, oldest first.
    GET "/api/orgs/{account}/tasks/{task}/artifacts" Read => list;
    /// Upload a file of a task: the body is its content. Its type is read from the content, whatever the request says: PNG, JPEG, GIF, WebP, PDF, and text in UTF-8, as which any markup counts. An account stores the same content once. 409 `artifact_quota`: the account has no room for it.
    POST "/api/orgs/{account}/tasks/{task}/artifacts" ChangeTasks => upload;
    /// An artifact, without its content.
    GET "/api/orgs/{account}/artifacts/{artifact}" Read => show;
    /// Remove an artifact. Its content goes with the last artifact that has it.
    DELETE "/api/orgs/{account}/artifacts/{artifact}" ChangeTasks => remove;
    /// The content of an artifact, as a file to save.
    GET "/api/orgs/{account}/artifacts/{artifact}/content" Read => content;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UploadQuery {
    /// The name of the file; required.
    name: Option<FileName>,
}

/// An uploaded file.
struct Upload {
    name: FileName,
    content: Vec<u8>,
    parts: Parts,
}

impl Described for Upload {
    fn describe(operation: &mut Operation<'_>) {
        operation.query::<UploadQuery>();
        Once::describe(operation);
        operation.body_of_bytes();
    }
}

impl<S: Send + Sync> FromRequest<S> for Upload {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let Query(UploadQuery { name }) = Query::from_request_parts(&mut parts, state).await?;
        let name =
            name.ok_or_else(|| Problem::unprocessable("invalid_field", "name: missing; add ?name= to the path"))?;
        let content = runtime::http::body(body).await?;
        if content.is_empty() {
            return Err(Problem::unprocessable(
                "invalid_field",
                "the body, which is the file, is empty",
            ));
        }
        Ok(Upload {
            name,
            content: content.into(),
            parts,
        })
    }
}

/// The caller's room for large answers; the operator needs none.
struct Room(Option<AccountShare>);

impl Described for Room {
    fn describe(_: &mut Operation<'_>) {}
}

impl<S: Send + Sync> FromRequestParts<S> for Room {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        Ok(Room(parts.extensions.get().cloned()))
    }
}

async fn list(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Artifact>, ApiError> {
    let page = query.page(&app, List::of(&LIST, "artifacts", &access.account, task.key()))?;
    let tx = app.begin_list(&access.accounts()).await?;
    task_find(&tx, &access.account, &task)
        .await?
        .ok_or_else(Problem::not_found)?;
    let rows = page.read(&tx, &LIST, [task.key().into()], "list artifacts").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn upload(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    Upload { name, content, parts }: Upload,
) -> Result<Answer<201, Artifact>, ApiError> {
    let (account, by) = (&access.account, access.caller.actor());
    let file = File::of(content).await.ok_or_else(|| {
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type")
            .detail("the content is none of PNG, JPEG, GIF, WebP, PDF and text in UTF-8")
    })?;
    let digest = hex::encode(file.sha256);
    let once = Once::of(
        &parts.headers,
        parts.uri.path(),
        format!("{} {digest}", &*name).as_bytes(),
    )?;
    once.run(&app, access.party(), async |work| {
        let new = NewArtifact {
            account,
            task: &task,
            id: ArtifactId(Uuid::now_v7()),
            name: &name,
            file: &file,
            source: ArtifactSource::Upload,
            source_ref: None,
            by: &by,
        };
        let setting = app.setting(None, work.now);
        let stored = artifact_store(&work.tx, &new, app.settings.artifact_account_bytes_max, &setting).await?;
        let stored = stored.map_err(refused)?;
        tracing::info!(%account, task = %stored.task, artifact_id = %new.id, file = ?file, "stored an artifact");
        let answer = Artifact {
            id: new.id,
            task: stored.task.to_string(),
            name: name.to_string(),
            media_type: file.media_type.to_string(),
            bytes: file.bytes(),
            sha256: digest.clone(),
            source: new.source.to_string(),
            source_ref: None,
            created_by: by.clone(),
            created_at: work.now.into(),
        };
        Ok(Done::new(answer).with(stored.event.into_iter().collect()))
    })
    .await
}

fn refused(why: NotStored) -> Problem {
    match why {
        NotStored::TaskNotThere => Problem::not_found(),
        NotStored::Another => unreachable!("a new artifact has a random id"),
        NotStored::Quota { bytes, bytes_max } => {
            let what = format!(
                "the account's artifacts would have {bytes} bytes, of {bytes_max} that they may: remove some that are no longer needed"
            );
            Problem::conflict("artifact_quota", what)
        }
    }
}

async fn show(
    State(app): State<App>,
    access: Access,
    Named(artifact): Named<ArtifactId>,
) -> Result<Json<Artifact>, ApiError> {
    let tx = access.begin(&app).await?;
    let found = artifact_find(&tx, &access.account, artifact).await?;
    tx.commit().await?;
    Ok(Json(found.ok_or_else(Problem::not_found)?))
}

async fn remove(
    State(app): State<App>,
    access: Access,
    Named(artifact): Named<ArtifactId>,
) -> Result<NoContent, ApiError> {
    let account = &access.account;
    let tx = access.begin(&app).await?;
    let setting = app.setting(None, database_now(&tx).await?);
    let removed = artifact_remove(&tx, account, artifact, &access.caller.actor(), &setting).await?;
    let removed = removed.ok_or_else(Problem::not_found)?;
    app.commit(tx, vec![removed]).await?;
    tracing::info!(%account, artifact_id = %artifact, "removed an artifact");
    Ok(NoContent)
}

async fn content(
    State(app): State<App>,
    access: Access,
    Room(room): Room,
    Named(artifact): Named<ArtifactId>,
) -> Result<Content, ApiError> {
    let tx = access.begin(&app).await?;
    let found = artifact_find(&tx, &access.account, artifact).await?;
    let found = found.ok_or_else(Problem::not_found)?;
    // Counted before it is read: many contents at one time are more than a process holds.
    let bytes = usize::try_from(found.bytes).unwrap_or_default();
    let _room = room.map(|room| room.room_for(bytes)).transpose()?;
    let content = artifact_content(&tx, &access.account, artifact).await?;
    tx.commit().await?;
    let content = content.ok_or_else(Problem::not_found)?;
    Ok(Content {
        name: found.name,
        media_type: found.media_type,
        content,
    })
}

/// The content of an artifact, with what keeps a browser from running it.
struct Content {
    name: String,
    media_type: String,
    content: Vec<u8>,
}

impl Described for Content {
    fn describe(operation: &mut Operation<'_>) {
        let types = MediaType::ALL.iter().map(|one| one.as_str());
        operation.answers_bytes(types, "The content");
    }
}

impl IntoResponse for Content {
    fn into_response(self) -> Response {
        let value = |text: String| HeaderValue::from_str(&text).expect("made of printable characters");
        let media_type = match self.media_type.as_str() {
            "text/plain" => "text/plain; charset=utf-8".to_owned(),
            other => other.to_owned(),
        };
        let headers: [(HeaderName, HeaderValue); 4] = [
            (header::CONTENT_TYPE, value(media_type)),
            (header::CONTENT_DISPOSITION, value(disposition(&self.name))),
            (
                header::CONTENT_SECURITY_POLICY,
                HeaderValue::from_static(CONTENT_POLICY),
            ),
            (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        ];
        (headers, self.content).into_response()
    }
}

/// RFC 6266: the name in the form that holds any of them.
fn disposition(name: &str) -> String {
    // The characters of RFC 8187 that stand for themselves.
    let escaped: String = name
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'~' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    format!("attachment; filename*=UTF-8''{escaped}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_no_header() {
        assert_eq!(disposition("plan.pdf"), "attachment; filename*=UTF-8''plan.pdf");
        assert_eq!(
            disposition("a\"; x=\r\n'\u{e9}/..\\"),
            "attachment; filename*=UTF-8''a%22%3B%20x%3D%0D%0A%27%C3%A9%2F..%5C"
        );
    }
}
