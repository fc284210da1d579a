//! OpenAPI of `/agent/*`. The bodies of the short forms are the tools' own schemas, from `contracts::tools`.

use contracts::tools;
use utoipa::{
    OpenApi,
    openapi::{
        RefOr, Schema,
        security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{caller::SESSION_KEY_HEADER, routes as handlers};

const SHORT_FORMS: [(&str, &str); 4] = [
    ("/agent/task-history", "task_history"),
    ("/agent/task-status", "task_status"),
    ("/agent/task-message", "task_message"),
    ("/agent/response-request", "response_request"),
];

#[derive(OpenApi)]
#[openapi(info(
    title = "Signalbox tool-gateway",
    description = "Tools for agents whose provider has no tool calls. Errors are RFC 9457 problems.",
    license(name = "Apache-2.0", identifier = "Apache-2.0")
))]
struct Document;

/// The routes together with their description.
pub(super) fn documented() -> OpenApiRouter<handlers::Agents> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(handlers::tools_list))
        .routes(routes!(handlers::tool_call))
        .routes(routes!(handlers::task_history))
        .routes(routes!(handlers::task_status))
        .routes(routes!(handlers::task_message))
        .routes(routes!(handlers::response_request))
}

/// The document, as it is served and written to `schemas/`.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let (_, mut document) = documented().split_for_parts();
    let components = document.components.get_or_insert_with(Default::default);
    components.add_security_scheme("gateway_key", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    components.add_security_scheme(
        "session_key",
        SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new(SESSION_KEY_HEADER))),
    );
    let none: [&str; 0] = [];
    let both = SecurityRequirement::new("gateway_key", none).add("session_key", none);
    document.security = Some(vec![both]);
    for (path, tool) in SHORT_FORMS {
        let body = document
            .paths
            .paths
            .get_mut(path)
            .and_then(|item| item.post.as_mut())
            .and_then(|operation| operation.request_body.as_mut())
            .and_then(|body| match body {
                RefOr::T(body) => body.content.values_mut().next(),
                RefOr::Ref(_) => None,
            });
        if let (Some(RefOr::T(body)), Some(tool)) = (body, tools::find(tool)) {
            body.schema = serde_json::from_value::<RefOr<Schema>>(tool.parameters).ok();
        }
    }
    document
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_document_is_pinned() {
        insta::assert_json_snapshot!("openapi", super::openapi());
    }
}
