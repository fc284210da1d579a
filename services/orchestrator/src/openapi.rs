//! The OpenAPI document: what holds for the whole API. The rest is derived from the routes.

use runtime::http::openapi::document;
use serde_json::{Value, json};

use crate::{nouns, settings::PublicUrl};

const ABOUT: &str = "Accounts, agents, tasks, threads, and what happened. JSON throughout; errors are problems (RFC 9457); lists \
                     take `limit` and `cursor`. What is not yours and what is not there are the same 404. Unknown fields, in \
                     bodies and queries alike, are refused. The length of a text counts bytes of UTF-8, and no text holds U+0000.";

/// Responses that every route may give: malformed header, no valid key, forbidden, too much, internal failure.
const ALWAYS: &[u16] = &[400, 401, 403, 429, 500, 503];

/// The document of an installation. Its server is the public address, or else the address that serves the document.
pub fn openapi(public_url: Option<&PublicUrl>) -> Value {
    let nouns = nouns();
    let tags: Vec<Value> = nouns
        .iter()
        .map(|noun| json!({"name": noun.name, "description": noun.about}))
        .collect();
    let bearer = "An API key of the account (`sbx_…`), or the operator's token";
    let head = json!({
        "info": {"title": "Signalbox", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT},
        "servers": [{"url": public_url.map_or("/", PublicUrl::as_str)}],
        "tags": tags,
        "security": [{"bearer": []}],
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": bearer}},
        },
    });
    let routes = nouns.iter().flat_map(|noun| &noun.routes);
    document(head, ALWAYS, routes.map(|route| &route.http))
}
