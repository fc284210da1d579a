//! One HTTP exchange with a model, within its limits of time and size; and what an answer that is none means.

use std::time::Duration;

use super::{Model, Room};
use crate::call::{ToolAnswer, cut};
use domain::error_chain;
use reqwest::{
    RequestBuilder, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};

/// Bytes that are read of an error's body, and of which so many are told.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
const DETAIL_BYTES_MAX: usize = 500;

/// A longer `Retry-After` is an answer.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

/// How a call was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lost {
    /// Nothing ran; the wait that the other side asked for.
    Unsent(Option<Duration>),
    /// It may have run.
    Sent,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What the agent is told.
    pub answer: ToolAnswer,
    /// How the call was lost; none: that is its outcome.
    pub lost: Option<Lost>,
}

impl From<ToolAnswer> for Failure {
    fn from(answer: ToolAnswer) -> Failure {
        Failure { answer, lost: None }
    }
}

/// `class` is one word: what went wrong.
pub(crate) fn model_failed(model: &str, class: &str, detail: &str) -> ToolAnswer {
    ToolAnswer::failed(
        "model_failed",
        format!("The model {model} failed ({class}): {}", cut(detail, DETAIL_BYTES_MAX)),
        "Nothing was kept. Change the request, name another model, or go on without it.",
    )
}

pub(crate) fn model_timeout(model: &str, timeout: Duration) -> ToolAnswer {
    ToolAnswer::failed(
        "model_timeout",
        format!("The model {model} did not answer within {} s.", timeout.as_secs()),
        "Nothing was kept. Ask for less, or go on without it.",
    )
}

pub(crate) fn too_large(model: &str, what: &str) -> ToolAnswer {
    ToolAnswer::failed(
        "model_answer_too_large",
        format!("The answer of the model {model} is too large: {what}."),
        "Nothing was kept. Ask for a shorter answer, or for fewer or smaller images.",
    )
}

impl Model {
    /// Posts a body of JSON; gives the whole body of the answer. The caller ends it at the call's time.
    pub(crate) async fn post(
        &self,
        body: Vec<u8>,
        id: &str,
        bytes_max: usize,
        room: &mut Room,
    ) -> Result<Vec<u8>, Failure> {
        let request = self
            .client
            .post(self.settings.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", id)
            .body(body);
        let request = match self.settings.authorization() {
            Some(value) => request.header(reqwest::header::AUTHORIZATION, value),
            None => request,
        };
        let response = self.sent(request).await?;
        if !response.status().is_success() {
            return Err(self.refused(response, room).await);
        }
        self.read(response, bytes_max, room).await
    }

    async fn sent(&self, request: RequestBuilder) -> Result<Response, Failure> {
        request.send().await.map_err(|error| {
            let lost = match error.is_connect() || error.is_builder() {
                true => Lost::Unsent(None),
                false => Lost::Sent,
            };
            self.lost(lost, error)
        })
    }

    async fn read(&self, mut response: Response, bytes_max: usize, room: &mut Room) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        loop {
            let chunk = response.chunk().await.map_err(|error| self.lost(Lost::Sent, error))?;
            let Some(chunk) = chunk else { return Ok(body) };
            if body.len() + chunk.len() > bytes_max {
                return Err(too_large(&self.name, &format!("more than {bytes_max} bytes")).into());
            }
            room.grow(2 * chunk.len())?;
            body.extend_from_slice(&chunk);
        }
    }

    /// The agent is told fixed words, since causes name what stands behind the address; they are for the operator.
    fn lost(&self, lost: Lost, error: reqwest::Error) -> Failure {
        let (class, words) = match lost {
            Lost::Unsent(_) => ("unreachable", "it cannot be reached"),
            Lost::Sent if error.is_timeout() => ("connection_lost", "it did not answer in time"),
            Lost::Sent => ("connection_lost", "the connection broke"),
        };
        let causes = self.credential.remove(error_chain(&error.without_url()));
        let host = self.settings.url.host_str().unwrap_or_default();
        // A certificate's error has it.
        let causes = match host.trim_matches(['[', ']']) {
            "" => causes,
            host => causes.replace(host, "(host)"),
        };
        tracing::warn!(model = %self.name, class, error = %causes, "a model gave no answer: {words}");
        Failure {
            answer: model_failed(&self.name, class, words),
            lost: Some(lost),
        }
    }

    async fn refused(&self, response: Response, room: &mut Room) -> Failure {
        let status = response.status();
        let wait = response.headers().get(RETRY_AFTER);
        let wait = wait.and_then(|value| value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs));
        // The status suffices if the body is missing or too long.
        let body = self.read(response, REFUSAL_BYTES_MAX, room).await.unwrap_or_default();
        let detail = format!("HTTP {}: {}", status.as_u16(), self.said(&body));
        let passes = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let wait = wait.filter(|wait| passes && *wait <= RETRY_AFTER_MAX);
        Failure {
            answer: model_failed(&self.name, class_of(status), &detail),
            lost: wait.map(|wait| Lost::Unsent(Some(wait))),
        }
    }

    /// What the body of an error says, in a few words.
    fn said(&self, body: &[u8]) -> String {
        let mut json = contracts::json::read(body).unwrap_or_default();
        self.credential.remove_from_json(&mut json);
        let error = &json["error"];
        let text = match error["message"].as_str().or(error.as_str()) {
            Some(message) => message.to_owned(),
            None if json.is_null() => String::from_utf8_lossy(body).into_owned(),
            None => json.to_string(),
        };
        match cut(self.credential.remove(text).trim(), DETAIL_BYTES_MAX) {
            "" => "-".to_owned(),
            text => text.replace('\0', "\u{fffd}"),
        }
    }

    pub(crate) fn failed(&self, class: &str, detail: &str) -> Failure {
        let detail = self.credential.remove(detail.to_owned());
        model_failed(&self.name, class, cut(&detail, DETAIL_BYTES_MAX)).into()
    }
}

fn class_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 | 403 => "unauthorized",
        408 | 504 => "timeout",
        429 => "rate_limited",
        400..500 => "bad_request",
        503 => "unavailable",
        _ => "server_error",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use runtime::egress::credential::Credential;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;

    /// The lines of the process log, of this thread.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("tool_gateway")
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = String::new();
            let mut add = |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                line.push_str(&format!("{field}={value:?} "));
            };
            event.record(&mut add);
            self.0.lock().push(line);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    /// What stands behind a model's address is for the operator: an agent is told fixed words.
    #[tokio::test]
    async fn causes_are_logged_and_not_told() {
        testkit::install_tls_provider();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        tokio::spawn(async move {
            let mut silent = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4_096];
                let read = stream.read(&mut request).await.unwrap();
                match &request[..read] {
                    text if text.starts_with(b"POST /cut") => {
                        let half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhal";
                        stream.write_all(half).await.unwrap();
                    }
                    text if text.starts_with(b"POST /gone") => {}
                    text if text.starts_with(b"POST /repeats") => {
                        stream.write_all(b"HTTP/9 sk-secret\r\n\r\n").await.unwrap();
                    }
                    _ => silent.push(stream),
                }
            }
        });
        let lines = Lines::default();
        let _guard = tracing::subscriber::set_default(lines.clone());
        let check = async |client: reqwest::ClientBuilder, url: String, class: &str, words: &str, causes: &str| {
            let model = Model::of_url(client.build().unwrap(), &url);
            let asked = model
                .post(b"{}".to_vec(), "id", 1_000, &mut Room::of_bytes(10_000))
                .await;
            let failure = asked.unwrap_err();
            assert_eq!(
                failure.answer.message,
                format!("The model asks failed ({class}): {words}"),
                "{url}"
            );
            let is_unsent = failure.lost == Some(Lost::Unsent(None));
            assert_eq!(is_unsent, class == "unreachable", "{url}");
            let line = std::mem::take(&mut *lines.0.lock()).concat();
            assert!(line.contains("model=asks ") && line.contains(causes), "{line}");
            for secret in ["sk-secret", "127.0.0.1", "localhost", &open.port().to_string()] {
                assert!(!line.contains(secret), "{line}");
            }
        };
        let plain = || runtime::egress::client(true).no_proxy();
        let broke = "the connection broke";
        check(
            plain(),
            format!("http://{closed}/v1"),
            "unreachable",
            "it cannot be reached",
            "refused",
        )
        .await;
        let name = format!("http://localhost:{}/v1", open.port());
        let public = runtime::egress::client(false);
        check(public, name, "unreachable", "it cannot be reached", "no public address").await;
        check(
            plain(),
            format!("http://{open}/gone"),
            "connection_lost",
            broke,
            "connection closed",
        )
        .await;
        check(plain(), format!("http://{open}/cut"), "connection_lost", broke, "body").await;
        check(
            plain(),
            format!("http://{open}/repeats"),
            "connection_lost",
            broke,
            "HTTP",
        )
        .await;
        let hasty = plain().timeout(Duration::from_millis(200));
        let late = "it did not answer in time";
        check(
            hasty,
            format!("http://{open}/silent"),
            "connection_lost",
            late,
            "timed out",
        )
        .await;
    }

    #[test]
    fn a_refusal_is_told_in_a_few_words() {
        testkit::install_tls_provider();
        let mut model = Model::of_url(reqwest::Client::new(), "http://127.0.0.1:1/v1");
        model.credential = Credential::new(Some(&r#"sk/s3cret+"\key"#.to_owned().into()));
        let check = |body: &str, expected: &str| assert_eq!(model.said(body.as_bytes()), expected, "{body}");
        // Writers of JSON escape what they like.
        check(
            r#"{"error": {"message": "no such key: \u0073k\/s3cret+\"\\key"}}"#,
            "no such key: (api_key)",
        );
        check(r#"{"detail": "sk\/s3cret\u002b\"\\key"}"#, r#"{"detail":"(api_key)"}"#);
        check(r#"sk/s3cret+"\key"#, "(api_key)");
        // What is no JSON, or quotes some, is told without the credential or not at all.
        let repeats = "(the text repeats the credential)";
        for body in [
            r#"data: {"error": "\u0073k\/s3cret+\"\\key"}"#,
            "{\"a\": 1}\n{\"error\": \"sk\\/s3cret+\\\"\\\\key\"}",
            r#"upstream: {"key": "sk\/s3cret+\"\\key"}"#,
            r#"{"error": {"message": "upstream: {\"key\": \"sk\\/s3cret+\\\"\\\\key\"}"}}"#,
            r#"{"sk/s3cret+\"\\key": 1}"#,
        ] {
            check(body, repeats);
        }
        let at_the_cut = format!(r#"{}sk/s3cret+"\key"#, "x".repeat(DETAIL_BYTES_MAX - 5));
        assert!(!model.said(at_the_cut.as_bytes()).contains("sk/"));
        let failure = model.failed("failed", &at_the_cut);
        assert!(!failure.answer.message.contains("sk/"), "{}", failure.answer.message);
        check(
            r#"{"error": {"message": "no such model", "code": "x"}}"#,
            "no such model",
        );
        check(r#"{"error": "overloaded"}"#, "overloaded");
        check("<html>Bad gateway</html>", "<html>Bad gateway</html>");
        check("", "-");
        assert_eq!(model.said(&[b'x'; 2_000]).len(), DETAIL_BYTES_MAX);
        assert_eq!(class_of(StatusCode::IM_A_TEAPOT), "bad_request");
        assert_eq!(class_of(StatusCode::BAD_GATEWAY), "server_error");
    }
}
