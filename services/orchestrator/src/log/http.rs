//! `/api/orgs/{account}/sessions/{session}/log`.

use std::{collections::HashMap, num::NonZeroU32};

use api::{log::Log, turns::Turn};
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
use storage::Accounts;
use uuid::Uuid;

use super::{
    segments::{Generation, beginning, segments},
    store::{GenerationRow, generations, turns},
};
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    paging::{Column, Columns, Cursor, Limit, List, Page},
    route::{Described, routes},
    turns::{
        sent::past_of,
        store::{TurnRow, pasts_of, whole},
    },
};

routes! {
    "log": "What an agent got and did";
    /// The log of a session: what its agent got and did, over all generations that are kept, in segments that begin where the agent's
    /// memory does. A page has up to 50 turns. `Accept: text/plain` gives text for people, with long parts folded.
    GET "/api/orgs/{account}/sessions/{session}/log" Read => read;
}

/// Turns of a page, and generations.
const ROWS_MAX: usize = 50;
/// A generation counts as a row before its first turn.
const ORDER: Columns = &[("generation", Column::Integer), ("number", Column::BigInt)];
/// Bytes of earlier turns that are read to show assembled contexts.
const PASTS_BYTES_MAX: usize = 8 * 1024 * 1024;

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
    let after = page.after.as_deref().and_then(place).unwrap_or_default();
    let tx = app.begin_list(&Accounts::one(account)).await?;
    let rows_max = i64::try_from(page.rows()).unwrap_or(i64::MAX);
    let from = only.unwrap_or(after.0.max(1));
    let found = generations(&tx, account, session, (from, rows_max + 1)).await?;
    let of_page = |row: &&GenerationRow| row.generation >= from && only.is_none_or(|only| row.generation == only);
    if found.is_empty() || only.is_some() && !found.iter().any(|row| of_page(&row)) {
        return Err(Problem::not_found().into());
    }
    let sessions = found.iter().filter(of_page);
    let sessions = sessions.map(|row| (row.id, if row.generation == after.0 { after.1 } else { 0 }));
    let sessions: Vec<_> = sessions.collect();
    let bytes_max = i64::try_from(page.bytes_max()).unwrap_or(i64::MAX);
    let read = turns(&tx, account, &sessions, (rows_max, bytes_max)).await?;
    let is_cut = read
        .first()
        .is_some_and(|row| usize::try_from(row.page_rows).is_ok_and(|rows| rows > read.len()));
    let rows = rows(
        found.iter().filter(of_page),
        read.into_iter().map(|row| row.turn),
        after,
        is_cut,
    );
    let rows = rows.into_iter().map(|row| (true, row.place(), row)).collect();
    let (rows, places) = page.cut_to(rows, is_cut).apart();

    let (mut heads, mut bodies) = (Vec::new(), Vec::new());
    for (at, row) in rows.into_iter().enumerate() {
        match row {
            Row::Generation(number) => heads.push((at, number)),
            Row::Turn(turn) => bodies.push((at, *turn)),
        }
    }
    let at: Vec<usize> = bodies.iter().map(|(at, _)| *at).collect();
    let bodies = bodies.into_iter().map(|(_, turn)| turn).collect();
    let shown = whole(&tx, account, bodies, page.bytes_max()).await?;
    // Calls may have cut the page.
    let rows_shown = at.get(shown.len()).copied().unwrap_or(at.len() + heads.len());
    let mut pasts = Vec::new();
    for turn in &shown {
        let manifest = serde_json::from_value(turn.manifest.clone()).ok();
        pasts.extend(manifest.as_ref().map(past_of).unwrap_or_default());
    }
    let pasts = pasts_of(&tx, account, pasts, PASTS_BYTES_MAX).await?;
    tx.commit().await?;

    let mut by_session: HashMap<Uuid, Vec<Turn>> = HashMap::new();
    for turn in shown {
        by_session.entry(turn.session_id).or_default().push(turn);
    }
    let mut on_page: Vec<Generation> = Vec::new();
    let befores = std::iter::once(None).chain(found.iter().map(Some));
    for (before, own) in befores.zip(&found) {
        let turns = by_session.remove(&own.id.uuid()).unwrap_or_default();
        let begins = heads
            .iter()
            .any(|(at, number)| *at < rows_shown && *number == own.generation);
        if begins || !turns.is_empty() {
            let before = before.filter(|before| before.generation == own.generation - 1);
            on_page.push(Generation {
                session: own.id.uuid(),
                number: own.generation,
                begins: begins.then(|| beginning(before, own)),
                turns,
            });
        }
    }
    let log = Log {
        segments: segments(on_page, &pasts),
        next_cursor: places.cursor_after(rows_shown).map(str::to_owned),
    };
    Ok(match accepts {
        Accepts::Json => Shown::Json(log),
        Accepts::Text => Shown::Text(log.text()),
    })
}

/// Generation and number of a cursor.
fn place(place: &str) -> Option<(i32, i64)> {
    let (generation, number) = place.split_once(' ')?;
    Some((generation.parse().ok()?, number.parse().ok()?))
}

/// A generation's beginning, or a turn.
enum Row {
    Generation(i32),
    Turn(Box<TurnRow>),
}

impl Row {
    fn at(&self) -> (i32, i64) {
        match self {
            Row::Generation(number) => (*number, 0),
            Row::Turn(turn) => turn.place(),
        }
    }

    fn place(&self) -> String {
        let (generation, number) = self.at();
        format!("{generation} {number}")
    }
}

/// The rows of a page in their order. `is_cut`: the turns end before their page does, and with them the rows.
fn rows<'a>(
    generations: impl Iterator<Item = &'a GenerationRow>,
    turns: impl Iterator<Item = TurnRow>,
    after: (i32, i64),
    is_cut: bool,
) -> Vec<Row> {
    let mut rows: Vec<Row> = turns.map(|turn| Row::Turn(Box::new(turn))).collect();
    let last = rows.last().map(Row::at);
    let heads = generations.map(|row| Row::Generation(row.generation));
    rows.extend(heads.filter(|row| row.at() > after && !(is_cut && last.is_some_and(|last| row.at() > last))));
    rows.sort_by_key(Row::at);
    rows
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
        let mut kinds = accept
            .unwrap_or_default()
            .split(',')
            .filter_map(|kind| kind.split(';').next());
        Ok(
            match kinds.find(|kind| ["application/json", "text/plain"].contains(&kind.trim())) {
                Some(kind) if kind.trim() == "text/plain" => Accepts::Text,
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
