//! The routes of `/agent/*`, each declared once, and their OpenAPI document. The bodies of the short forms are the
//! tools' own schemas, from `contracts::tools`.

use axum::{
    extract::{Path, Request, State},
    http::{Method, StatusCode},
};
use contracts::tools;
use runtime::http::{
    Route,
    openapi::{Operation, document},
};
use serde_json::{Value, json};

use super::{
    artifacts,
    caller::SESSION_KEY_HEADER,
    routes::{Agents, AskedCall, ToolOffers, call, tools_list},
};

/// Statuses of refusals on any route.
const ALWAYS: &[u16] = &[400, 401, 403, 404, 410, 429, 500, 503];
/// Statuses of a tool's errors.
const OF_A_CALL: &[u16] = &[408, 409, 413, 422, 424];

pub(super) fn declared() -> Vec<Route<Agents>> {
    let offers =
        |operation: &mut Operation<'_>| operation.answers::<ToolOffers>(StatusCode::OK, "The tools of this session");
    let mut routes = vec![
        Route::new(
            (Method::GET, "/agent/tools"),
            tools_list,
            ("agent", "tools_list"),
            "The tools that can be called in this session.",
            offers,
        ),
        Route::new(
            (Method::POST, "/agent/tools/{name}"),
            |agents: State<Agents>, Path(name): Path<String>, request: Request| call(agents, name, request),
            ("agent", "tool_call"),
            "Calls a tool. The body is the object of its arguments; an `Idempotency-Key` makes a repeated request the same call.",
            |operation| {
                operation.names::<String>();
                describe_call(operation, json!({"type": "object"}));
            },
        ),
    ];
    routes.push(artifacts::route());
    let short_forms = tools::all().iter();
    let short_forms = short_forms.filter_map(|tool| Some((tool.short_form?, tool)));
    routes.extend(short_forms.map(|(path, tool)| {
        let name = tool.name;
        Route::new(
            (Method::POST, path),
            move |agents: State<Agents>, request: Request| call(agents, name.to_owned(), request),
            ("agent", name),
            format!("Short form of `/agent/tools/{name}`."),
            move |operation| describe_call(operation, tool.parameters.clone()),
        )
    }));
    routes
}

fn describe_call(operation: &mut Operation<'_>, arguments: Value) {
    describe_key(operation);
    operation.body_of(arguments, true);
    operation.answers::<Value>(StatusCode::OK, "The tool's result");
    operation.answers::<AskedCall>(StatusCode::ACCEPTED, "It has no result yet");
    operation.refuses(OF_A_CALL);
}

pub(super) fn describe_key(operation: &mut Operation<'_>) {
    let key = json!({"type": "string", "pattern": "^[ -~]{1,255}$"});
    operation.header("Idempotency-Key", "1-255 printable characters", &key);
}

/// The document, as served and as written to `schemas/`.
pub fn openapi() -> Value {
    let about = "Tools for agents whose provider has no tool calls. Errors are RFC 9457 problems; `code` and `hint` are the tool's.";
    let head = json!({
        "info": {"title": "Signalbox tool-gateway", "version": env!("CARGO_PKG_VERSION"), "description": about},
        "security": [{"gateway_key": [], "session_key": []}],
        "components": {
            "securitySchemes": {
                "gateway_key": {"type": "http", "scheme": "bearer"},
                "session_key": {"type": "apiKey", "in": "header", "name": SESSION_KEY_HEADER},
            },
        },
    });
    document(head, ALWAYS, &declared())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_document_is_pinned() {
        insta::assert_json_snapshot!("openapi", super::openapi());
    }
}
