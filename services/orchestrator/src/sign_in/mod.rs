//! Signing in: by a one-time link, which may come by e-mail, by an OpenID provider, or by a key of one's own. A link gives a key; all three open a browser session.
//!
//! A *login* is what a person signs in with, in all of their accounts: an id that members name. What it reaches is read at each request, from
//! the members that name it. In reading order: [`secret`] and [`cookie`] (what a browser holds), [`session`] (browser sessions), [`page`] (what a
//! link opens), [`browser`] (`/sign-in`, `/sign-in/key`, `/sign-in/link`, `/sign-out`), [`oidc`] (providers, whose protocol is in [`crate::oidc`]), [`html`] (pages
//! and refusals), [`http`] (the operator's links).

pub mod browser;
pub mod cookie;
pub mod html;
pub mod http;
pub mod oidc;
pub mod page;
pub mod secret;
pub mod session;
pub mod store;

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    http::{HeaderName, HeaderValue, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use runtime::http::Problem;
use tower::ServiceBuilder;
use tower_http::{csrf::CsrfLayer, set_header::SetResponseHeaderLayer};

use crate::{again::again, app::App};

const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// A form here has a key at most.
const BODY_BYTES_MAX: usize = 4_096;

/// Pages and forms. Answers hold secrets: they are not stored, and the page's address is told to nobody.
pub fn router(app: App) -> Router {
    let set = |name: HeaderName, value: &'static str| {
        SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
    };
    let trusted = app.settings.public_url.as_ref().map(|url| url.as_str().to_owned());
    let csrf = CsrfLayer::new();
    let csrf = match trusted {
        Some(origin) => csrf.add_trusted_origin(origin).expect("a public URL is an origin"),
        None => csrf,
    };
    let layers = ServiceBuilder::new()
        .layer(set(header::CONTENT_SECURITY_POLICY, POLICY))
        .layer(set(header::CACHE_CONTROL, "no-store"))
        .layer(set(header::REFERRER_POLICY, "no-referrer"))
        .layer(set(header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(csrf.with_rejection_response(|_| cross_site().into_response()))
        .layer(middleware::from_fn(of_this_site));
    let forms = Router::new()
        .route("/sign-in/key", post(browser::by_key))
        .route("/sign-in/link", post(browser::by_email))
        .route("/sign-out", post(browser::sign_out))
        .route_layer(middleware::from_fn_with_state(app.clone(), again))
        .route_layer(middleware::from_fn(small));
    let pages = Router::new()
        .route("/", get(browser::home))
        .route("/sign-in", get(browser::index))
        .route("/sign-in/oidc/{provider}", get(oidc::begin))
        .route("/sign-in/oidc/{provider}/callback", get(oidc::finish))
        .route("/sign-in/{token}", get(page::look).post(page::redeem))
        .route("/api/sign-in/methods", get(browser::methods))
        .route_layer(middleware::from_fn_with_state(app.clone(), again))
        .route_layer(middleware::map_request(without_body));
    forms.merge(pages).layer(layers).with_state(app)
}

/// Nothing is read of whoever has not shown a token, and a form without fields says nothing.
async fn without_body(request: Request) -> Request {
    request.map(|_| Body::empty())
}

fn cross_site() -> Problem {
    Problem::forbidden("a form of another site, or a request that does not say of which site it is")
}

/// A browser says where a form comes from. A request with a cookie that does not say so is refused.
async fn of_this_site(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let says_so = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    match !request.method().is_safe() && headers.contains_key(header::COOKIE) && !says_so {
        true => cross_site().into_response(),
        false => next.run(request).await,
    }
}

/// A key is in the body: no more is read of whoever has not shown one.
async fn small(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match to_bytes(body, BODY_BYTES_MAX).await {
        Ok(bytes) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Err(_) => {
            let detail = format!("at most {BODY_BYTES_MAX} bytes are read here");
            let status = axum::http::StatusCode::PAYLOAD_TOO_LARGE;
            Problem::new(status, "too_large").detail(detail).into_response()
        }
    }
}

/// Where a browser goes once it is signed in: within this site.
pub fn next_of(next: Option<&str>) -> &str {
    let is_path = |next: &&str| {
        next.starts_with('/')
            && !next.starts_with("//")
            && next.len() <= 512
            && next.bytes().all(|b| b.is_ascii_graphic() && b != b'\\')
    };
    next.filter(is_path).unwrap_or("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_on_stays_within_the_site() {
        let check = |next: Option<&str>, expected: &str| assert_eq!(next_of(next), expected, "{next:?}");
        check(None, "/");
        check(Some("/c/acme?tab=1"), "/c/acme?tab=1");
        for bad in [
            "",
            "c",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/a b",
            "/a\r\nSet-Cookie: x",
            "/ü",
        ] {
            check(Some(bad), "/");
        }
    }
}
