//! The routes. A tool's result is returned unchanged; a tool's error is returned as a problem with the tool's own code
//! and hint.

use std::{error::Error as StdError, time::Duration};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use contracts::tool::tool_call_id;
use domain::{CallId, QuestionId, ToolCallState};
use messaging::trace::current_trace;
use runtime::http::{Problem, Route, only};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use storage::{Accounts, Database, StorageError};
use uuid::Uuid;

use super::{
    caller::{Caller, caller, no_session},
    openapi::{declared, openapi},
};
use crate::{
    call::{CallRequest, Origin, Record},
    capability::Capability,
    execute::{Executed, Executor},
    store,
};

const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// How long a request waits for an external call, less than a request may take.
const RUNNING_WAIT_MAX: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub(super) struct Agents {
    pub(super) executor: Executor,
    /// Connections for authenticating callers.
    pub(super) callers: Database,
}

pub(crate) fn routes(executor: Executor, callers: Database) -> Router {
    Route::router(declared())
        .route("/agent/openapi.json", get(|| async { Json(openapi()) }))
        .with_state(Agents { executor, callers })
}

/// A tool that can be called in this session.
#[derive(Serialize, JsonSchema)]
struct ToolOffer {
    name: &'static str,
    description: &'static str,
    /// JSON Schema of the body to post.
    parameters: serde_json::Value,
}

/// The call has no result yet. The same request with its `Idempotency-Key` has it, once there is one.
#[derive(Serialize, JsonSchema)]
pub(super) struct AskedCall {
    /// `asked`: somebody is asked about the call; `running`: it runs.
    state: &'static str,
    /// Id of the call's record.
    call: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    question_id: Option<QuestionId>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ToolOffers {
    items: Vec<ToolOffer>,
    next_cursor: Option<String>,
}

pub(super) async fn tools_list(State(agents): State<Agents>, request: Request) -> Result<Response, Problem> {
    let database = &agents.executor.database;
    let (parts, _) = request.into_parts();
    let caller = caller(&agents.callers, &parts).await?;
    let _connection = caller.under_way.share().take().await?;
    let tx = database.begin(&Accounts::one(&caller.account)).await.map_err(failed)?;
    let facts = store::session_facts(&tx, &caller.account, caller.session, agents.executor.branches.depth_max).await;
    tx.commit().await.map_err(failed)?;
    let mut facts = facts.map_err(failed)?.ok_or_else(no_session)?;
    facts.models = agents.executor.external.models.settings.kinds_of(&caller.account);
    let capability = Capability {
        session: caller.session,
        facts: &facts,
    };
    let allowed = capability.tools().map_err(|refusal| problem(&refusal.told().text()))?;
    let items = allowed
        .into_iter()
        .map(|tool| ToolOffer {
            name: tool.name,
            description: tool.description,
            parameters: tool.parameters.clone(),
        })
        .collect();
    let offers = ToolOffers {
        items,
        next_cursor: None,
    };
    Ok(caller.under_way.hold(Json(offers).into_response()))
}

/// The body is read after authentication, within the account's limit of bodies.
pub(super) async fn call(State(agents): State<Agents>, name: String, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let executor = &agents.executor;
    let Caller {
        account,
        session,
        under_way,
    } = caller(&agents.callers, &parts).await?;
    let call_id = idempotency_key(&parts.headers)?;
    let share = under_way.share();
    let _room = share.room(&body)?;
    let body = runtime::http::body(body).await?;
    let connection = share.take().await?;
    let call_id = call_id.unwrap_or_else(|| Uuid::now_v7().to_string());
    let arguments = std::str::from_utf8(&body).map_err(|_| Problem::invalid("the body is not UTF-8"))?;
    let call_id = CallId(call_id);
    let asked = CallRequest {
        account,
        session,
        // The id does not depend on a running turn: a repeated request must have the same id.
        id: tool_call_id(session, None, 0, &call_id),
        call_id,
        ordinal: 0,
        name,
        arguments: arguments.to_owned(),
        origin: Origin::Http,
        trace: current_trace(),
    };
    let (record, is_replay) = match executor.execute(&asked).await {
        Ok(Executed::Over { record, is_replay }) => (record, is_replay),
        Ok(Executed::Asked { question }) => {
            return Ok(under_way.hold(not_yet("asked", &asked, Some(question))));
        }
        Ok(Executed::Running) => {
            // It waits for others, not for the database.
            drop(connection);
            match executor.awaited(&asked, RUNNING_WAIT_MAX).await.map_err(failed)? {
                Some(record) => (record, false),
                None => return Ok(under_way.hold(not_yet("running", &asked, None))),
            }
        }
        Ok(Executed::Left) => return Err(Problem::unavailable()),
        Ok(Executed::UnknownSession) => return Err(no_session()),
        Ok(Executed::OutOfTurn | Executed::Unowned(_)) => {
            unreachable!("a call over HTTP claims nothing and waits for no earlier one")
        }
        Err(error) => return Err(failed(error)),
    };
    if is_replay && !store::is_same_request(&asked, &record) {
        return Err(Problem::unprocessable(
            "idempotency_key_reused",
            "this Idempotency-Key was used in this session for another request",
        ));
    }
    Ok(under_way.hold(answer(record)?))
}

fn not_yet(state: &'static str, asked: &CallRequest, question_id: Option<QuestionId>) -> Response {
    let asked = AskedCall {
        state,
        call: asked.id,
        question_id,
    };
    (StatusCode::ACCEPTED, Json(asked)).into_response()
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = only(headers, &HeaderName::from_static(IDEMPOTENCY_KEY_HEADER))? else {
        return Ok(None);
    };
    let printable = |key: &&str| {
        !key.is_empty() && key.len() <= IDEMPOTENCY_KEY_BYTES_MAX && key.bytes().all(|b| (b' '..=b'~').contains(&b))
    };
    match value.to_str().ok().filter(printable) {
        Some(key) => Ok(Some(key.to_owned())),
        None => Err(Problem::invalid(format!(
            "an Idempotency-Key is 1 to {IDEMPOTENCY_KEY_BYTES_MAX} printable characters"
        ))),
    }
}

#[derive(Deserialize)]
struct ErrorText {
    error: ErrorParts,
}

#[derive(Deserialize)]
struct ErrorParts {
    code: String,
    message: String,
    hint: String,
}

fn answer(record: Record) -> Result<Response, Problem> {
    match record.state {
        ToolCallState::Finished => Ok(([(header::CONTENT_TYPE, "application/json")], record.result).into_response()),
        ToolCallState::Failed | ToolCallState::Refused => Err(problem(&record.result)),
        ToolCallState::Unknown => Err(problem(&record.result)),
        // Another request is recorded under the key.
        ToolCallState::Requested | ToolCallState::Running => Err(Problem::internal()),
    }
}

/// The agents' error codes and their HTTP statuses.
const STATUSES: [(&str, StatusCode); 35] = [
    ("invalid_arguments", StatusCode::UNPROCESSABLE_ENTITY),
    ("arguments_too_large", StatusCode::PAYLOAD_TOO_LARGE),
    ("unknown_agent", StatusCode::UNPROCESSABLE_ENTITY),
    ("own_name", StatusCode::UNPROCESSABLE_ENTITY),
    ("coordinator_chat", StatusCode::UNPROCESSABLE_ENTITY),
    ("unknown_tool", StatusCode::NOT_FOUND),
    ("task_not_found", StatusCode::NOT_FOUND),
    ("not_offered", StatusCode::FORBIDDEN),
    ("denied", StatusCode::FORBIDDEN),
    ("awaiting_approval", StatusCode::CONFLICT),
    ("session_closed", StatusCode::GONE),
    ("turn_stopped", StatusCode::CONFLICT),
    ("turn_over", StatusCode::CONFLICT),
    ("no_task", StatusCode::CONFLICT),
    ("task_context_missing", StatusCode::CONFLICT),
    ("artifact_quota", StatusCode::CONFLICT),
    ("not_found", StatusCode::NOT_FOUND),
    ("unknown_model", StatusCode::UNPROCESSABLE_ENTITY),
    ("url_not_allowed", StatusCode::UNPROCESSABLE_ENTITY),
    ("unsupported_media_type", StatusCode::UNPROCESSABLE_ENTITY),
    ("artifact_too_large", StatusCode::UNPROCESSABLE_ENTITY),
    ("fetch_failed", StatusCode::FAILED_DEPENDENCY),
    ("model_failed", StatusCode::FAILED_DEPENDENCY),
    ("model_answer_too_large", StatusCode::FAILED_DEPENDENCY),
    ("outcome_unknown", StatusCode::FAILED_DEPENDENCY),
    ("model_timeout", StatusCode::FAILED_DEPENDENCY),
    ("rate_limited", StatusCode::TOO_MANY_REQUESTS),
    ("too_many_questions", StatusCode::CONFLICT),
    ("too_many_branches", StatusCode::CONFLICT),
    ("branch_depth", StatusCode::CONFLICT),
    ("hop_limit", StatusCode::CONFLICT),
    ("task_ended", StatusCode::CONFLICT),
    ("too_much_unread", StatusCode::TOO_MANY_REQUESTS),
    ("too_slow", StatusCode::SERVICE_UNAVAILABLE),
    ("internal", StatusCode::INTERNAL_SERVER_ERROR),
];

/// Statuses after which the client may retry.
const PASSES: [StatusCode; 2] = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];

/// The problem of an answer's text.
pub(super) fn problem(text: &str) -> Problem {
    let Ok(ErrorText { error }) = serde_json::from_str(text) else {
        return Problem::internal();
    };
    let known = STATUSES.iter().find(|(known, _)| *known == error.code);
    let (code, status) = known.copied().unwrap_or(("refused", StatusCode::FORBIDDEN));
    let problem = Problem::new(status, code)
        .detail(error.message)
        .with("hint", error.hint);
    if PASSES.contains(&status) {
        problem.retry_after_s(1)
    } else {
        problem
    }
}

/// A database error as 503 or 500. The client gets no details.
#[expect(clippy::needless_pass_by_value, reason = "made for map_err")]
pub(super) fn failed(error: StorageError) -> Problem {
    let is_retryable = error.is_retryable();
    tracing::error!(error = &error as &dyn StdError, is_retryable, "request failed");
    if is_retryable {
        Problem::unavailable()
    } else {
        Problem::internal()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn an_idempotency_key_is_short_and_printable() {
        let check = |value: &[u8], expected: Result<Option<&str>, ()>| {
            let mut headers = HeaderMap::new();
            headers.insert(IDEMPOTENCY_KEY_HEADER, HeaderValue::from_bytes(value).unwrap());
            let read = idempotency_key(&headers).map_err(drop);
            assert_eq!(read, expected.map(|key| key.map(str::to_owned)), "{value:?}");
        };
        check(b"k-1", Ok(Some("k-1")));
        check(b"", Err(()));
        check(&[b'x'; 256], Err(()));
        check("ä".as_bytes(), Err(()));
        let mut twice = HeaderMap::new();
        twice.append(IDEMPOTENCY_KEY_HEADER, HeaderValue::from_static("k-1"));
        twice.append(IDEMPOTENCY_KEY_HEADER, HeaderValue::from_static("k-2"));
        assert!(idempotency_key(&twice).is_err());
        assert_eq!(idempotency_key(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn a_retryable_error_says_when() {
        let check = |code: &str, status: StatusCode, is_told: bool| {
            let text = serde_json::json!({"error": {"code": code, "message": "", "hint": ""}}).to_string();
            let answer = problem(&text).into_response();
            assert_eq!(answer.status(), status, "{code}");
            assert_eq!(answer.headers().contains_key(header::RETRY_AFTER), is_told, "{code}");
        };
        check("too_slow", StatusCode::SERVICE_UNAVAILABLE, true);
        check("too_much_unread", StatusCode::TOO_MANY_REQUESTS, true);
        check("session_closed", StatusCode::GONE, false);
        check("a code of a tool's own", StatusCode::FORBIDDEN, false);
    }
}
