//! The OpenClaw dialect: what that gateway does differently from the OpenResponses specification.

pub mod key;

/// The gateway's endpoint, below whatever prefix a proxy adds. Exact: a trailing slash is a 404.
pub(in crate::providers) const RESPONSES_PATH: &str = "/v1/responses";
