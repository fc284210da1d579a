//! The bearer token in a header's value (RFC 6750). One parser for requests and for the check of the operator's token.

use axum::http::HeaderValue;

/// The value holds two credentials: a token has no comma.
pub(crate) struct Several;

/// `Bearer` in any case, then the token. `None` for another scheme, or without a token.
pub(crate) fn token(value: &HeaderValue) -> Result<Option<&str>, Several> {
    if value.as_bytes().contains(&b',') {
        return Err(Several);
    }
    let token = value.to_str().ok().and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        let token = token.trim();
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    });
    Ok(token)
}
