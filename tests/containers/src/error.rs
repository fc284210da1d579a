//! Errors of containers, and of requests to the programs in them.

use reqwest::StatusCode;
use testcontainers::TestcontainersError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No engine answers, an image is missing and cannot be pulled, or the engine refused.
    #[error("container {container}: {doing} failed")]
    Engine {
        container: String,
        doing: &'static str,
        // Boxed, since the large source would enlarge every function's result.
        source: Box<TestcontainersError>,
    },
    /// The container runs, but its program fails. The end of its log says why.
    #[error("container {container} {problem}; its log ends with:\n{log}")]
    Unfit {
        container: String,
        problem: String,
        log: String,
    },
    /// No answer at the address.
    #[error("{what} was not answered")]
    NoAnswer { what: String, source: reqwest::Error },
    /// Signalbox refused the request; `body` is its problem (RFC 9457).
    #[error("{what} was answered with {status}: {body}")]
    Refused {
        what: String,
        status: StatusCode,
        body: String,
    },
    /// A condition did not become true in time.
    #[error("{what} did not happen within {limit_s} s; last seen: {last}")]
    TooLate { what: String, limit_s: u64, last: String },
}

/// Adds the container's name to the engine's error.
pub(crate) trait Doing<T> {
    fn doing(self, container: &str, doing: &'static str) -> Result<T, Error>;
}

impl<T> Doing<T> for Result<T, TestcontainersError> {
    fn doing(self, container: &str, doing: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::Engine {
            container: container.to_owned(),
            doing,
            source: Box::new(source),
        })
    }
}
