//! Reads the recordings of a real OpenClaw gateway (`tests/fixtures/openclaw/`, made with version 2026.9.6) and
//! converts them into scripts. A recording has its request and response as on the wire, with de-chunked bodies.

use std::path::PathBuf;

use super::stub::{Act, Script, chunk, stream_end};

#[derive(Debug, Clone)]
pub(super) struct Recording {
    pub(super) request_path: String,
    request_headers: Vec<(String, String)>,
    pub(super) request_body: String,
    status: String,
    headers: Vec<(String, String)>,
    pub(super) body: String,
    /// The gateway closed the connection before its answer was complete.
    is_cut: bool,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openclaw")
}

/// The names of all recordings.
pub(super) fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

impl Recording {
    pub(super) fn load(name: &str) -> Self {
        let text = std::fs::read_to_string(folder().join(format!("{name}.txt"))).unwrap();
        let (_, rest) = text.split_once("=== REQUEST ===\n").unwrap();
        let (request, rest) = rest.split_once("\n=== RESPONSE").unwrap();
        let (note, response) = rest.split_once('\n').unwrap();
        let response = response.split("\n\n=== ").next().unwrap();
        let (request_head, request_body) = request.split_once("\n\n").unwrap();
        let (head, body) = response.split_once("\n\n").unwrap_or((response, ""));
        let mut lines = head.lines().filter(|line| !line.is_empty());
        let status = lines.next().unwrap_or_default();
        let is_stream = body.starts_with("event:");
        Self {
            request_path: request_head.split(' ').nth(1).unwrap().to_owned(),
            request_headers: request_head
                .lines()
                .skip(1)
                .map(|line| line.split_once(": ").unwrap())
                .map(|(n, v)| (n.into(), v.into()))
                .collect(),
            request_body: request_body.trim().to_owned(),
            status: status.strip_prefix("HTTP/1.1 ").unwrap_or_default().to_owned(),
            headers: lines
                .map(|line| line.split_once(": ").unwrap())
                .map(|(n, v)| (n.into(), v.into()))
                .collect(),
            // The file adds line ends after a body. A stream's own body ends with an empty line; the line ends of JSON
            // do not matter.
            body: if is_stream {
                format!("{}\n\n", body.trim_end())
            } else {
                body.trim_end().to_owned()
            },
            is_cut: note.contains("connection closed by the server"),
        }
    }

    /// A header of the request, by its name as recorded.
    pub(super) fn request_header(&self, name: &str) -> Option<&str> {
        self.request_headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The gateway accepted the request: any failure was not caused by the body.
    pub(super) fn was_accepted(&self) -> bool {
        self.status.starts_with("200")
    }

    /// The same answer with one text replaced, for texts that the recorded client did not send.
    pub(super) fn with(mut self, old: &str, new: &str) -> Self {
        assert!(self.body.contains(old), "nothing to replace");
        self.body = self.body.replace(old, new);
        self
    }

    /// Answers as the gateway did. The pieces have a prime size, so that lines and characters are cut anywhere.
    pub(super) fn script(&self) -> Script {
        if self.status.is_empty() {
            return vec![Act::Close];
        }
        let framing = ["content-length", "transfer-encoding", "connection", "keep-alive"];
        let mut head = format!("HTTP/1.1 {}\r\n", self.status);
        for (name, value) in &self.headers {
            if !framing.contains(&name.to_ascii_lowercase().as_str()) {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        head.push_str("Transfer-Encoding: chunked\r\n\r\n");
        let mut script = vec![Act::Send(head.into_bytes())];
        script.extend(self.body.as_bytes().chunks(97).map(chunk));
        script.push(if self.is_cut { Act::Close } else { stream_end() });
        script
    }
}
