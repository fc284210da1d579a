//! Classifies a failure by the provider's own report: an HTTP status, an error code, a failed response object. This is
//! the general table; a dialect overrides lines of it.

use super::failure::{FailureClass, Sent};

/// A failure as the provider reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal<'a> {
    /// `None` in a stream, whose status was 200.
    pub(super) status: Option<u16>,
    pub(super) code: Option<&'a str>,
    pub(super) message: Option<&'a str>,
    /// The field of the request that it names.
    pub(super) param: Option<&'a str>,
    /// The call was to go on from an earlier response.
    pub(super) goes_on: bool,
    /// The failure is in a response object: the provider accepted the call and its turn failed. Otherwise the failure
    /// came instead of a response.
    pub(super) in_response: bool,
}

/// How one dialect classifies a failure.
pub(super) type Classify = fn(Refusal<'_>) -> (FailureClass, Sent);

/// Classifies by a known code, else by status. OpenAI's type `invalid_request_error`, which stands for a missing code, is
/// that of a refused credential, too, so the status says more than it.
pub(super) fn classify(refusal: Refusal<'_>) -> (FailureClass, Sent) {
    if refusal.says_thread_lost() {
        return (FailureClass::ThreadLost, Sent::No);
    }
    let (by_code, by_status) = (refusal.code.and_then(by_code), refusal.status.map(by_status));
    let class = match by_code {
        Some(FailureClass::BadRequest) => by_status.or(by_code),
        _ => by_code.or(by_status),
    };
    let class = class.unwrap_or(FailureClass::Failed);
    if refusal.in_response {
        // The agent behind the provider was refused; our own credential was accepted.
        let class = if class == FailureClass::Unauthorized {
            FailureClass::AgentUnauthorized
        } else {
            class
        };
        return (class, Sent::Yes);
    }
    let turned_away = refusal
        .status
        .is_some_and(|status| status != 408 && (300..500).contains(&status));
    (class, if turned_away { Sent::No } else { Sent::Maybe })
}

impl Refusal<'_> {
    /// Whether it says that the response is gone from which the call was to go on, or that the server stores none.
    fn says_thread_lost(&self) -> bool {
        let names_it = matches!(
            self.code,
            Some("previous_response_not_found" | "response_not_found" | "not_found")
        ) || matches!(self.param, Some("previous_response_id" | "response_id"));
        match self.status {
            Some(400 | 404 | 410) => self.goes_on && names_it,
            Some(501) => self.goes_on,
            Some(_) | None => false,
        }
    }
}

/// OpenResponses' error types, and the codes that its larger servers add.
fn by_code(code: &str) -> Option<FailureClass> {
    Some(match code {
        "too_many_requests" | "rate_limit_exceeded" | "rate_limit_error" | "rate_limited" => FailureClass::RateLimited,
        "insufficient_quota" | "billing_error" => FailureClass::Quota,
        "authentication_error" | "permission_error" | "unauthorized" | "invalid_api_key" => FailureClass::Unauthorized,
        "invalid_request" | "invalid_request_error" | "invalid_prompt" | "not_found" | "model_not_found" => {
            FailureClass::BadRequest
        }
        "server_error" | "api_error" | "overloaded_error" | "service_unavailable" | "timeout" => {
            FailureClass::ServerError
        }
        _ => return None,
    })
}

fn by_status(status: u16) -> FailureClass {
    match status {
        401 | 403 => FailureClass::Unauthorized,
        402 => FailureClass::Quota,
        408 | 504 => FailureClass::Timeout,
        429 => FailureClass::RateLimited,
        500.. => FailureClass::ServerError,
        // Redirects are not followed: the operator must correct the address.
        _ => FailureClass::BadRequest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, code: Option<&str>, class: FailureClass, sent: Sent) {
        let refusal = Refusal {
            status: Some(status),
            code,
            message: None,
            param: None,
            goes_on: false,
            in_response: false,
        };
        assert_eq!(classify(refusal), (class, sent), "{status} {code:?}");
    }

    #[test]
    fn a_lost_thread_is_one_that_the_call_named() {
        let check = |goes_on, status, code, param, is_lost: bool| {
            let refusal = Refusal {
                status: Some(status),
                code,
                message: None,
                param,
                goes_on,
                in_response: false,
            };
            let lost = classify(refusal) == (FailureClass::ThreadLost, Sent::No);
            assert_eq!(lost, is_lost, "{refusal:?}");
        };
        let codes = ["previous_response_not_found", "response_not_found", "not_found"];
        for status in [400, 404, 410] {
            for code in codes {
                check(true, status, Some(code), None, true);
                check(false, status, Some(code), None, false);
            }
            check(
                true,
                status,
                Some("invalid_request_error"),
                Some("previous_response_id"),
                true,
            );
            check(true, status, None, Some("input"), false);
            check(true, status, Some("model_not_found"), None, false);
        }
        check(true, 501, None, None, true);
        check(false, 501, None, None, false);
        check(true, 500, Some("not_found"), None, false);
        check(true, 429, None, Some("previous_response_id"), false);
    }

    #[test]
    fn reads_http_refusals() {
        use FailureClass::{BadRequest, Quota, RateLimited, ServerError, Timeout, Unauthorized};
        use Sent::{Maybe, No};
        for status in [301, 302, 307, 308, 400, 404, 405, 413, 415, 422] {
            check(status, None, BadRequest, No);
        }
        check(401, None, Unauthorized, No);
        check(403, None, Unauthorized, No);
        check(402, None, Quota, No);
        check(408, None, Timeout, Maybe);
        check(429, None, RateLimited, No);
        check(429, Some("insufficient_quota"), Quota, No);
        for status in [500, 501, 502, 503, 529, 599] {
            check(status, None, ServerError, Maybe);
        }
        check(504, None, Timeout, Maybe);
        check(400, Some("something new"), BadRequest, No);
        check(401, Some("invalid_request_error"), Unauthorized, No);
        check(404, Some("model_not_found"), BadRequest, No);
        check(500, Some("model_error"), ServerError, Maybe);
    }

    #[test]
    fn reads_failed_responses() {
        fn check(code: Option<&str>, class: FailureClass) {
            let refusal = Refusal {
                status: None,
                code,
                message: None,
                param: None,
                goes_on: false,
                in_response: true,
            };
            assert_eq!(classify(refusal), (class, Sent::Yes), "{code:?}");
        }
        check(Some("server_error"), FailureClass::ServerError);
        check(Some("too_many_requests"), FailureClass::RateLimited);
        check(Some("authentication_error"), FailureClass::AgentUnauthorized);
        check(Some("invalid_prompt"), FailureClass::BadRequest);
        check(Some("model_error"), FailureClass::Failed);
        check(None, FailureClass::Failed);
    }
}
