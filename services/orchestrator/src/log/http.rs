//! `/api/orgs/{account}/sessions/{session}/log`.

use std::num::NonZeroU32;

use api::log::Log;
use axum::{
    Json,
    extract::{FromRequestParts, State},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use domain::SessionId;
use runtime::http::{Problem, openapi::Operation};
use schemars::JsonSchema;
use serde::Deserialize;

use super::page::{ORDER, ROWS_MAX, log_page};
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    paging::{Cursor, Limit, List, Page},
    route::{Described, routes},
};

routes! {
    "log": "What an agent got and did";
    /// The log of a session: what its agent got and did, over all generations that are kept, in segments that begin where the agent's
    /// memory does. A page has up to 50 turns. `Accept: text/plain` gives text for people, with long parts folded.
    GET "/api/orgs/{account}/sessions/{session}/log" Read => read;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogQuery {
    /// Only this generation.
    #[schemars(with = "Option<i32>", range(min = 1))]
    generation: Option<NonZeroU32>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionId>,
    Query(query): Query<LogQuery>,
    accepts: Accepts,
) -> Result<Shown, ApiError> {
    let account = &access.account;
    let only = query
        .generation
        .map(|number| i32::try_from(number.get()).unwrap_or(i32::MAX));
    let list = List {
        name: "log",
        account: account.as_str(),
        filters: format!("{session} {only:?}"),
        order: ORDER,
    };
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?.at_most(ROWS_MAX);
    let tx = app.begin_list(&access.accounts()).await?;
    let log = log_page(&tx, account, (session, only), &page).await?;
    tx.commit().await?;
    let log = log.ok_or_else(|| match query.generation {
        Some(number) => {
            Problem::not_found().detail(format!("there is no session {session} with a generation {number} here"))
        }
        None => Problem::not_found(),
    })?;
    Ok(match accepts {
        Accepts::Json => Shown::Json(log),
        Accepts::Text => Shown::Text(log.text()),
    })
}

/// What the client wants.
enum Accepts {
    Json,
    Text,
}

impl Described for Accepts {
    /// `Accept` is no parameter of an OpenAPI document.
    fn describe(_: &mut Operation<'_>) {}
}

impl<S: Send + Sync> FromRequestParts<S> for Accepts {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        let accept = parts
            .headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok());
        let kinds = accept.unwrap_or_default().split(',');
        let mut kinds = kinds.filter_map(|kind| kind.split(';').next().map(str::trim));
        Ok(
            match kinds.find(|kind| ["application/json", "text/plain"].contains(kind)) {
                Some("text/plain") => Accepts::Text,
                Some(_) | None => Accepts::Json,
            },
        )
    }
}

enum Shown {
    Json(Log),
    Text(String),
}

impl Described for Shown {
    fn describe(operation: &mut Operation<'_>) {
        operation.answers::<Log>(StatusCode::OK, "OK");
        operation.answers_text(StatusCode::OK);
    }
}

impl IntoResponse for Shown {
    fn into_response(self) -> Response {
        match self {
            Shown::Json(log) => Json(log).into_response(),
            Shown::Text(text) => text.into_response(),
        }
    }
}
