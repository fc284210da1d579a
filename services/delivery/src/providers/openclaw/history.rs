//! Reads a gateway's session history (`GET /sessions/{key}/history`) and decides the outcome of a call from it.
//!
//! A turn's user row appears when the turn starts, its assistant row when it ends; that row's run id is the response
//! id. After a crash the gateway resumes the turn by itself: it adds a user row of its own, and the answer has another
//! run id. So a call is found by its run id or else by its delivery id, which is in its user row. A running turn and a
//! cancelled one look alike; only time distinguishes them.

use contracts::json;
use reqwest::{StatusCode, Url};
use runtime::egress::credential::Credential;
use serde_json::Value;

use super::key::GatewayKey;
use super::{RESPONSES_PATH, tidied, wording};
use crate::providers::call::{LostCall, ProviderAnswer, Reconciled, SessionCheck, ThreadCheck, Usage};
use crate::providers::failure::{FailureClass, ProviderError, Sent};
use crate::providers::response::short;
use crate::providers::settings::HistoryLookup;
use crate::providers::transport::Transport;

/// Rows per page. A page's body holds its rows twice, each of at most 8,000 characters.
const PAGE_ROWS: u32 = 50;
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The call is the session's latest, so the first page should suffice.
const PAGES_MAX: usize = 5;
/// The end of a text that the history cut.
const CUT_MARK: &str = "\n...(truncated)...";

/// The rows that were read: the latest, oldest first.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Record {
    /// The session key that the gateway returned; `None` if there is no such session.
    session_key: Option<String>,
    rows: Vec<Row>,
    /// No older row was left out.
    is_whole: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Row {
    role: Role,
    text: String,
    run_id: Option<String>,
    end: End,
    /// The row contains a call of one of our tools.
    calls_us: bool,
    usage: Option<Usage>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Role {
    User,
    /// A user row that the gateway wrote itself, to resume an interrupted turn.
    Internal,
    Assistant,
    /// Tool results and other rows.
    #[default]
    Other,
}

/// How an assistant row ends its turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum End {
    Whole,
    /// At the model's token limit.
    CutShort,
    Failed,
    /// The turn did not end here: more rows follow.
    #[default]
    Open,
}

/// The settings check that the URL of the responses ends with their path.
fn page_url(responses: &Url, key: &GatewayKey, cursor: Option<&str>) -> Url {
    let prefix = responses.path().strip_suffix(RESPONSES_PATH).unwrap_or_default();
    let path = format!("{}/sessions/{}/history", prefix.trim_end_matches('/'), key.in_path());
    let mut url = responses.clone();
    url.set_path(&path);
    let mut query = url.query_pairs_mut();
    query.clear().append_pair("limit", &PAGE_ROWS.to_string());
    if let Some(cursor) = cursor {
        query.append_pair("cursor", cursor);
    }
    drop(query);
    url
}

/// Reads backwards until the call is found, the beginning is reached, or `PAGES_MAX` pages were read.
pub(super) async fn record(
    transport: &Transport,
    key: &GatewayKey,
    marker: &str,
    response_id: Option<&str>,
) -> Result<Record, ProviderError> {
    let mut record = Record::default();
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES_MAX {
        let url = page_url(&transport.url, key, cursor.as_deref());
        let fetched = transport.get(url, PAGE_BYTES_MAX).await?;
        if fetched.status == StatusCode::NOT_FOUND && says_no_session(&fetched.body) {
            return Ok(Record {
                is_whole: true,
                ..Record::default()
            });
        }
        if !fetched.status.is_success() {
            return Err(transport.refusal(fetched.status, &fetched.body, false));
        }
        let page = page(&fetched.body, &transport.credential)?;
        record.session_key = page.session_key;
        record.rows.splice(0..0, page.rows);
        record.is_whole = page.older.is_none() && page.is_last;
        let repeated = page.older.is_some() && page.older == cursor;
        if page.older.is_none() || repeated || record.find(marker, response_id).is_some() {
            break;
        }
        cursor = page.older;
    }
    Ok(record)
}

/// Whether the gateway has a conversation under this key: its newest row is read. A person may have emptied it there.
pub(super) async fn thread_check(transport: &Transport, key: &GatewayKey) -> ThreadCheck {
    let mut url = page_url(&transport.url, key, None);
    url.query_pairs_mut().clear().append_pair("limit", "1");
    match transport.get(url, PAGE_BYTES_MAX).await {
        Ok(fetched) if fetched.status.is_success() && is_reset(&fetched.body) => ThreadCheck::Gone,
        Ok(fetched) if fetched.status.is_success() => ThreadCheck::There,
        Ok(fetched) if fetched.status == StatusCode::NOT_FOUND && says_no_session(&fetched.body) => ThreadCheck::Gone,
        Ok(_) | Err(_) => ThreadCheck::NotChecked,
    }
}

/// Whether the newest row is the gateway's mark of a reset.
fn is_reset(body: &[u8]) -> bool {
    let body = json::read(body).unwrap_or_default();
    let items = body["items"].as_array().or(body["messages"].as_array());
    let newest = items.and_then(|items| items.last());
    newest.is_some_and(|row| row["__openclaw"]["kind"] == "reset")
}

/// Distinguishes a missing session from a gateway without histories.
fn says_no_session(body: &[u8]) -> bool {
    json::read(body).is_ok_and(|body| body["error"]["type"] == "not_found")
}

struct Page {
    session_key: Option<String>,
    rows: Vec<Row>,
    is_last: bool,
    older: Option<String>,
}

fn page(body: &[u8], credential: &Credential) -> Result<Page, ProviderError> {
    let unreadable = |detail: &str| ProviderError::new(FailureClass::Malformed, Sent::No, detail);
    let body = json::read(body).map_err(|error| unreadable(&format!("the history is {error}")))?;
    let text = |text: &str| credential.remove_from_answer(text.to_owned());
    let items = body["items"].as_array().or(body["messages"].as_array());
    Ok(Page {
        session_key: body["sessionKey"].as_str().map(text),
        rows: items
            .ok_or_else(|| unreadable("the history has no items"))?
            .iter()
            .map(|row| Row::from_wire(row, credential))
            .collect(),
        is_last: body["hasMore"] == false,
        older: body["nextCursor"].as_str().map(short),
    })
}

impl Row {
    fn from_wire(wire: &Value, credential: &Credential) -> Self {
        let blocks = wire["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        let text = match wire["content"].as_str() {
            Some(text) => text.to_owned(),
            None => blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
        };
        let internal = wire["provenance"]["kind"] == "internal_system";
        let failed = [&wire["idempotencyKey"], &wire["__openclaw"]["idempotencyKey"]]
            .iter()
            .any(|key| key.as_str().is_some_and(|key| key.ends_with(":terminal-error")));
        let role = match wire["role"].as_str() {
            Some("user") if internal => Role::Internal,
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            _ => Role::Other,
        };
        let removed = |text: String| credential.remove_from_answer(text);
        Self {
            role,
            text: match role {
                // Its blocks together: a server may split the credential over them.
                Role::Assistant => removed(text),
                // Our own texts, which are searched and not stored: nothing may take the place of a call's marker.
                Role::Internal | Role::User | Role::Other => text,
            },
            run_id: wire["__openclaw"]["runId"].as_str().map(|id| removed(id.to_owned())),
            end: match wire["stopReason"].as_str() {
                _ if failed => End::Failed,
                Some("error") => End::Failed,
                Some("stop") => End::Whole,
                Some("length") => End::CutShort,
                _ => End::Open,
            },
            calls_us: blocks
                .iter()
                .any(|block| block["name"].as_str().is_some_and(wording::is_our_tool)),
            usage: usage(&wire["usage"]),
        }
    }
}

fn usage(wire: &Value) -> Option<Usage> {
    let tokens = |key: &str| wire[key].as_u64().unwrap_or_default();
    let usage = Usage {
        input_tokens: tokens("input"),
        output_tokens: tokens("output"),
        cached_tokens: tokens("cacheRead"),
        reasoning_tokens: 0,
        total_tokens: tokens("totalTokens"),
    };
    (usage != Usage::default()).then_some(usage)
}

impl Record {
    /// The rows of one call: from its user row, or the first row of its run, to the next call's user row.
    fn find(&self, marker: &str, response_id: Option<&str>) -> Option<&[Row]> {
        let marked = self
            .rows
            .iter()
            .rposition(|row| row.role == Role::User && row.text.contains(marker));
        let run = |row: &Row| response_id.is_some() && row.run_id.as_deref() == response_id;
        let from = marked.or_else(|| self.rows.iter().position(run))?;
        let next = self.rows[from + 1..].iter().position(|row| row.role == Role::User);
        Some(&self.rows[from..next.map_or(self.rows.len(), |next| from + 1 + next)])
    }
}

/// Decides the outcome of the call.
pub(super) fn decide(record: &Record, key: &GatewayKey, lost: &LostCall, limits: HistoryLookup) -> Reconciled {
    if record.session_key.as_deref().is_some_and(|found| found != key.as_str()) {
        return Reconciled::Unknown {
            reason: "the gateway answered with another session's history",
        };
    }
    let marker = wording::marker(&lost.delivery_id);
    let Some(rows) = record.find(&marker, lost.response_id.as_deref()) else {
        return match record {
            Record { is_whole: false, .. } => Reconciled::Unknown {
                reason: "the session's history is too long",
            },
            _ if lost.lost_for < limits.settle => Reconciled::StillRunning,
            _ => Reconciled::DidNotRun,
        };
    };
    // Calls of our tools that were lost cannot be answered: the history has the model's ids for them, not ours.
    if rows.iter().any(|row| row.calls_us) {
        return Reconciled::Unknown {
            reason: "the turn called Signalbox's tools, and the calls were lost",
        };
    }
    let last = rows.last().filter(|row| row.role == Role::Assistant);
    match last.map(|row| (row, row.end)) {
        Some((row, End::Whole)) => Reconciled::Ran(answer(row, None)),
        Some((row, End::CutShort)) => Reconciled::Ran(answer(row, Some("max_output_tokens"))),
        Some((row, End::Failed)) => Reconciled::Failed(
            ProviderError::new(FailureClass::Failed, Sent::Yes, &row.text).with_response_id(row.run_id.clone()),
        ),
        Some((_, End::Open)) | None if lost.lost_for < limits.unanswered_max => Reconciled::StillRunning,
        Some((_, End::Open)) | None => Reconciled::Unknown {
            reason: "the turn began and has no answer",
        },
    }
}

fn answer(row: &Row, incomplete: Option<&str>) -> ProviderAnswer {
    let (text, cut) = match row.text.strip_suffix(CUT_MARK) {
        Some(text) => (text, Some("cut by the history")),
        None => (row.text.as_str(), None),
    };
    tidied(ProviderAnswer {
        response_id: row.run_id.clone(),
        text: text.to_owned(),
        usage: row.usage,
        incomplete_reason: incomplete.or(cut).map(str::to_owned),
        ..ProviderAnswer::default()
    })
}

/// Checks whether the requested session contains this call.
pub(super) fn check_session(record: &Record, key: &GatewayKey, marker: &str) -> SessionCheck {
    let asked_for = record.session_key.as_deref() == Some(key.as_str());
    if asked_for && record.find(marker, None).is_some() {
        return SessionCheck::Confirmed;
    }
    if asked_for && !record.is_whole {
        return SessionCheck::NotChecked {
            reason: "the session's history is too long".to_owned(),
        };
    }
    SessionCheck::RanElsewhere {
        asked: key.as_str().to_owned(),
        observed: record.session_key.clone().filter(|_| !asked_for),
    }
}

#[cfg(test)]
mod fuzz;
