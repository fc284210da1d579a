//! Pages of signing in, and its refusals: a page for a person, a problem for a program.

use axum::{
    http::{HeaderMap, header},
    response::{Html, IntoResponse, Response},
};
use runtime::http::Problem;

use crate::error::ApiError;

/// Whether a person looks at the answer.
pub fn accepts_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    accepted
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("text/html"))
}

/// A refusal, and whether a person reads it.
pub struct Refused {
    pub error: ApiError,
    pub is_for_a_person: bool,
}

impl Refused {
    pub fn of(headers: &HeaderMap) -> impl Fn(ApiError) -> Refused + use<> {
        let is_for_a_person = accepts_html(headers);
        move |error| Refused { error, is_for_a_person }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let said = match &self.error {
            ApiError::Refused(problem) if self.is_for_a_person => said(problem),
            _ => None,
        };
        let response = self.error.into_response();
        match said {
            // The status and the other headers are those of the problem.
            Some((title, said)) => {
                let (mut parts, _) = response.into_parts();
                // The edge would answer with it instead of the page.
                parts.extensions.remove::<Problem>();
                let page = page(title, &format!("<p>{said}</p>")).into_response();
                parts.headers.extend(page.headers().clone());
                parts.headers.remove(header::CONTENT_LENGTH);
                Response::from_parts(parts, page.into_body())
            }
            None => response,
        }
    }
}

fn said(problem: &Problem) -> Option<(&'static str, &'static str)> {
    Some(match problem.code() {
        "link_used" => (
            "This link was used",
            "It works once. Use the API key that it gave, or ask for another link.",
        ),
        "link_expired" => (
            "This link is over",
            "It has expired, or a newer one has replaced it. Ask whoever invited you for another one.",
        ),
        "no_membership" => (
            "You are in no account",
            "The provider knows you, and no account does. Ask an admin to invite you, with the e-mail address that the provider has confirmed.",
        ),
        "identity_taken" => (
            "This identity is in use",
            "Somebody signs in with it already, perhaps you with another account.",
        ),
        "sign_in_failed" => ("Signing in failed", "Begin again at <a href=\"/sign-in\">/sign-in</a>."),
        "issuer_unavailable" => ("The provider does not answer", "Try again in a minute."),
        _ => return None,
    })
}

pub fn page(title: &str, body: &str) -> Html<String> {
    Html(format!(
        "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }}
button, input {{ font: inherit; padding: .5rem 1rem; min-height: 44px }}
pre {{ padding: .75rem; border: 1px solid; white-space: pre-wrap; overflow-wrap: anywhere }}
</style>
<main>
<h1>{title}</h1>
{body}
</main>
"
    ))
}

/// A text as HTML.
pub fn text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_name_is_no_markup() {
        assert_eq!(text("<b a='\"'>&"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;");
    }

    #[test]
    fn a_browser_wants_a_page_and_a_program_does_not() {
        let check = |accept: Option<&'static str>, expected: bool| {
            let mut headers = HeaderMap::new();
            headers.extend(accept.map(|accept| (header::ACCEPT, HeaderValue::from_static(accept))));
            assert_eq!(accepts_html(&headers), expected, "{accept:?}");
        };
        check(Some("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"), true);
        check(Some("*/*"), false);
        check(Some("application/json"), false);
        check(None, false);
    }
}
