//! The credentials of a request. A header that could be read in two ways is refused by every service, since a proxy in
//! front may have read the other one.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use super::Problem;
use crate::bearer;

/// A header that occurs at most once. Twice is 400: the request is ambiguous.
pub fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h HeaderValue>, Problem> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => Err(Problem::invalid(format!("send the header {name} once"))),
    }
}

/// The bearer token, or `None` without one. Two headers, or two credentials in one, are 400.
pub fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = only(headers, &header::AUTHORIZATION)? else {
        return Ok(None);
    };
    bearer::token(value).map_err(|_| Problem::invalid("send one credential in the header authorization"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_follows_its_scheme_once() {
        let check = |values: &[&'static str], expected: Result<Option<&str>, ()>| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            let read = bearer(&headers).map_err(|problem| assert_eq!(problem.status(), 400));
            assert_eq!(read, expected, "{values:?}");
        };
        check(&[], Ok(None));
        check(&["Bearer abc"], Ok(Some("abc")));
        check(&["bearer  abc "], Ok(Some("abc")));
        check(&["Basic abc"], Ok(None));
        check(&["Bearer"], Ok(None));
        check(&["Bearer  "], Ok(None));
        check(&["Bearer abc", "Bearer abc"], Err(()));
        check(&["Basic abc", "Bearer abc"], Err(()));
        check(&["", "Bearer abc"], Err(()));
        check(&["Bearer abc, Bearer def"], Err(()));
        check(&["Bearer abc,"], Err(()));
    }

    #[test]
    fn a_header_counts_when_it_is_there_once() {
        let name = HeaderName::from_static("x-openclaw-session-key");
        let mut headers = HeaderMap::new();
        assert_eq!(only(&headers, &name).unwrap(), None);
        headers.append(&name, HeaderValue::from_static("a"));
        assert_eq!(only(&headers, &name).unwrap(), Some(&HeaderValue::from_static("a")));
        headers.append(&name, HeaderValue::from_static("a"));
        assert_eq!(only(&headers, &name).unwrap_err().status(), 400);
    }
}
