//! The router: every noun's routes behind the guard, and the document and its page beside them, for anyone.

use axum::{
    Router,
    http::{HeaderName, HeaderValue, header},
    middleware::from_fn_with_state,
};
use tower::ServiceBuilder;
use tower_http::set_header::SetResponseHeaderLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_swagger_ui::SwaggerUi;

use crate::{
    accounts, activities,
    again::again,
    agents,
    app::App,
    auth::guard::guard,
    dead_letters, keys, messages, notifications,
    openapi::{Document, complete},
    sessions, tasks, turns,
};

pub const DOCUMENT_PATH: &str = "/api/openapi.json";
pub const PAGE_PATH: &str = "/api/docs";

/// Answers are data: nothing in them is to be run, framed or kept by a cache in between.
const DATA_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";
/// The page brings its own scripts; its styles are partly inline.
const PAGE_POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                           base-uri 'none'; object-src 'none'; frame-ancestors 'none'";

fn nouns() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Document::openapi())
        .merge(accounts::http::routes())
        .merge(keys::http::routes())
        .merge(agents::http::routes())
        .merge(tasks::http::routes())
        .merge(messages::http::routes())
        .merge(activities::http::routes())
        .merge(notifications::http::routes())
        .merge(sessions::http::routes())
        .merge(turns::http::routes())
        .merge(dead_letters::http::routes())
}

/// All routes. The runtime puts limits and problems around them.
pub fn router(app: App) -> Router {
    let (routes, document) = nouns().split_for_parts();
    let set = |name: HeaderName, value: &'static str| {
        SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value))
    };
    let routes = routes
        .route_layer(from_fn_with_state(app.clone(), again))
        .route_layer(from_fn_with_state(app.clone(), guard))
        .layer(
            ServiceBuilder::new()
                .layer(set(header::CONTENT_SECURITY_POLICY, DATA_POLICY))
                .layer(set(header::CACHE_CONTROL, "no-store")),
        )
        .with_state(app);
    let page = Router::from(SwaggerUi::new(PAGE_PATH).url(DOCUMENT_PATH, complete(document)))
        .layer(set(header::CONTENT_SECURITY_POLICY, PAGE_POLICY));
    routes.merge(page)
}

/// The document behind [`DOCUMENT_PATH`].
pub fn openapi() -> utoipa::openapi::OpenApi {
    complete(nouns().into_openapi())
}
