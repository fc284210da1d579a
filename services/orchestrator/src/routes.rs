//! The router: every noun's routes behind the guard; beside them, without authentication, the OpenAPI document and its page, and what
//! sign-in links open.

use axum::{
    Router,
    http::{HeaderName, HeaderValue, header},
    middleware::from_fn_with_state,
};
use runtime::http::Routes;
use tower::ServiceBuilder;
use tower_http::set_header::SetResponseHeaderLayer;
use utoipa_swagger_ui::SwaggerUi;

use crate::{
    again::again,
    app::App,
    artifacts::http::UPLOAD_PATH,
    auth::guard::guard,
    nouns,
    openapi::openapi,
    route::{Permissions, Route},
    sign_in,
};

pub const DOCUMENT_PATH: &str = "/api/openapi.json";
pub const PAGE_PATH: &str = "/api/docs";

/// Answers are data: they may not be executed, framed or cached.
const DATA_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";
/// The page ships its own scripts; some of its styles are inline.
const PAGE_POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                           base-uri 'none'; object-src 'none'; frame-ancestors 'none'";

/// All routes of the API.
pub fn routes() -> Vec<Route> {
    nouns().into_iter().flat_map(|noun| noun.routes).collect()
}

/// The router of the API. The runtime adds limits and problem answers.
pub fn router(app: App) -> Router {
    let set = |name: HeaderName, value: &'static str| {
        SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value))
    };
    let page =
        SwaggerUi::new(PAGE_PATH).external_url_unchecked(DOCUMENT_PATH, openapi(app.settings.public_url.as_ref()));
    let page = Router::from(page).layer(set(header::CONTENT_SECURITY_POLICY, PAGE_POLICY));
    let sign_in = sign_in::router(app.clone());
    let routes = guarded(app, routes()).layer(
        ServiceBuilder::new()
            .layer(set(header::CONTENT_SECURITY_POLICY, DATA_POLICY))
            .layer(set(header::CACHE_CONTROL, "no-store")),
    );
    routes.merge(page).merge(sign_in)
}

/// The router, whose uploads have a limit of their own.
pub fn served(app: App) -> Routes {
    let artifact_bytes_max = app.settings.artifact_bytes_max.usize();
    Routes::from(router(app)).with_bodies_of(UPLOAD_PATH, artifact_bytes_max, "orchestrator.artifact_bytes_max")
}

/// Routes behind the guard.
pub fn guarded(app: App, routes: Vec<Route>) -> Router {
    let permissions = Permissions::of(&routes);
    runtime::http::Route::router(routes.into_iter().map(|route| route.http))
        .route_layer(from_fn_with_state(app.clone(), again))
        .route_layer(from_fn_with_state((app.clone(), permissions), guard))
        .with_state(app)
}
