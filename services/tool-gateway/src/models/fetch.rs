//! Reads a file at an address that an agent or a model named: https, at a public address, through at most three redirects, each
//! of which is held to the same rules. Whatever answers is a stranger: its bytes count, its headers do not.

use std::time::Duration;

use reqwest::{Client, Response, StatusCode, Url, header::LOCATION};
use runtime::egress;
use storage::lifecycle::artifact_store::File;
use tokio::time::{Instant, timeout_at};

use super::{Room, exchange::too_large};
use crate::call::ToolAnswer;

const REDIRECTS_MAX: usize = 3;
/// A name that an address gives a file.
const NAME_BYTES_MAX: usize = 200;

/// Whether an address may be asked.
type Vet = fn(&Url) -> bool;

pub(crate) struct Fetcher {
    client: Client,
    vet: Vet,
    timeout: Duration,
    bytes_max: usize,
}

/// Why there is no file.
#[derive(Debug, PartialEq, Eq)]
enum NotFetched {
    /// The address that was given is none that may be asked, as is known before any look-up.
    NotAllowed,
    /// In a few words.
    Failed(String),
    TooLarge,
    NoRoom(ToolAnswer),
    Type,
}

impl Fetcher {
    pub(crate) fn new(timeout: Duration, bytes_max: usize) -> Result<Fetcher, reqwest::Error> {
        Ok(Fetcher {
            client: egress::client(false).https_only(true).build()?,
            vet: may_be_asked,
            timeout,
            bytes_max,
        })
    }

    /// Reads a file, of a type that is kept; with its name.
    pub(crate) async fn fetch(&self, url: &str, room: &mut Room) -> Result<(String, File), ToolAnswer> {
        self.fetched(url, room).await.map_err(|why| self.told(why))
    }

    /// Reads an image at an address that a model answered with: if it is too large, the model's answer is.
    pub(crate) async fn fetch_made(&self, model: &str, url: &str, room: &mut Room) -> Result<File, ToolAnswer> {
        let fetched = self.fetched(url, room).await;
        fetched.map(|(_, file)| file).map_err(|why| match why {
            NotFetched::TooLarge => too_large(model, &format!("an image of more than {} bytes", self.bytes_max)),
            why => self.told(why),
        })
    }

    async fn fetched(&self, url: &str, room: &mut Room) -> Result<(String, File), NotFetched> {
        let deadline = Instant::now() + self.timeout;
        let read = timeout_at(deadline, self.read(url, room)).await;
        read.unwrap_or_else(|_| {
            let seconds = self.timeout.as_secs();
            Err(NotFetched::Failed(format!("no whole answer within {seconds} s")))
        })
    }

    async fn read(&self, url: &str, room: &mut Room) -> Result<(String, File), NotFetched> {
        let mut url = Url::parse(url).ok().filter(self.vet).ok_or(NotFetched::NotAllowed)?;
        let mut redirects = 0;
        loop {
            let sent = self.client.get(url.clone()).send().await;
            let response = sent.map_err(|error| NotFetched::Failed(words(&error)))?;
            let status = response.status();
            if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
                redirects += 1;
                url = next(&url, &response, redirects, self.vet)?;
                continue;
            }
            if !status.is_success() {
                return Err(NotFetched::Failed(format!("HTTP {}", status.as_u16())));
            }
            let content = self.body(response, room).await?;
            let file = File::of(content).await.ok_or(NotFetched::Type)?;
            return Ok((name_of(&url), file));
        }
    }

    async fn body(&self, mut response: Response, room: &mut Room) -> Result<Vec<u8>, NotFetched> {
        let mut content = Vec::new();
        loop {
            let chunk = response
                .chunk()
                .await
                .map_err(|error| NotFetched::Failed(words(&error)))?;
            let Some(chunk) = chunk else { return Ok(content) };
            if content.len() + chunk.len() > self.bytes_max {
                return Err(NotFetched::TooLarge);
            }
            room.grow(super::COPIES * chunk.len()).map_err(NotFetched::NoRoom)?;
            content.extend_from_slice(&chunk);
        }
    }

    fn told(&self, why: NotFetched) -> ToolAnswer {
        match why {
            NotFetched::NotAllowed => ToolAnswer::failed(
                "url_not_allowed",
                "This address cannot be read: it must begin with https://, without a user name, and be public.",
                "Nothing was fetched. Ask for the file as an artifact of the task, or go on without it.",
            ),
            NotFetched::Failed(what) => ToolAnswer::failed(
                "fetch_failed",
                format!("The file could not be read: {what}."),
                "Nothing was kept. Check the address, or ask for the file as an artifact of the task.",
            ),
            NotFetched::TooLarge => ToolAnswer::failed(
                "artifact_too_large",
                format!("The file has more than {} bytes.", self.bytes_max),
                "Nothing was kept. Ask for a smaller file.",
            ),
            NotFetched::NoRoom(answer) => answer,
            NotFetched::Type => ToolAnswer::failed(
                "unsupported_media_type",
                "The file is none of PNG, JPEG, GIF, WebP, PDF and text in UTF-8.",
                "Nothing was kept. Ask for it in one of these forms.",
            ),
        }
    }
}

/// By what can be said of it before it is looked up. What a name stands for is held to the same by the client's own resolver, at
/// each connection.
fn may_be_asked(url: &Url) -> bool {
    let is_plain = url.username().is_empty() && url.password().is_none();
    url.scheme() == "https" && url.has_host() && is_plain && egress::host_may_be_public(url)
}

/// The address of a redirect.
fn next(from: &Url, response: &Response, redirects: usize, vet: Vet) -> Result<Url, NotFetched> {
    if redirects > REDIRECTS_MAX {
        return Err(NotFetched::Failed(format!("more than {REDIRECTS_MAX} redirects")));
    }
    let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
    let to = to.and_then(|to| from.join(to).ok()).filter(vet);
    to.ok_or_else(|| NotFetched::Failed("it leads to an address that may not be asked".to_owned()))
}

/// Without the address and what stands behind it: the agent learns nothing of what is reachable from here. A name that stands for
/// no public address (`egress`) is told like one that nobody has, or an agent would learn which names exist inside.
fn words(error: &reqwest::Error) -> String {
    let what = match () {
        () if error.is_connect() => "it cannot be reached",
        () if error.is_timeout() => "it did not answer in time",
        () => "the connection broke",
    };
    what.to_owned()
}

/// The last part of the path, if it is a name.
fn name_of(url: &Url) -> String {
    let last = url
        .path_segments()
        .and_then(|mut parts| parts.next_back())
        .unwrap_or_default();
    let plain = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let name: String = last.chars().filter(plain).take(NAME_BYTES_MAX).collect();
    if name.is_empty() { "file".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use reqwest::dns::{Name, Resolve, Resolving};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// The list of addresses that lead inside, in all their spellings.
    #[test]
    fn only_public_https_is_asked() {
        let check = |url: &str, may: bool| {
            let found = Url::parse(url).is_ok_and(|url| may_be_asked(&url));
            assert_eq!(found, may, "{url}");
        };
        check("https://example.com/a.png", true);
        check("https://example.com:8443/a?b=c", true);
        check("https://8.8.8.8/", true);
        check("https://[2606:4700::1111]/", true);
        for url in [
            "http://example.com/",
            "HTTP://example.com/",
            "file:///etc/passwd",
            "ftp://example.com/",
            "gopher://example.com/",
            "data:text/plain,hello",
            "unix:/run/docker.sock",
            "//example.com/",
            "example.com",
            "",
            "https://user@example.com/",
            "https://user:secret@example.com/",
            "https://:secret@example.com/",
            "https://127.0.0.1/",
            "https://127.1/",
            "https://0177.0.0.1/",
            "https://0x7f.0.0.1/",
            "https://0x7f000001/",
            "https://2130706433/",
            "https://0/",
            "https://127.0.0.1./",
            "https://１２７.0.0.1/",
            "https://10.0.0.1/",
            "https://172.16.0.1/",
            "https://192.168.0.1/",
            "https://100.64.0.1/",
            "https://169.254.169.254/latest/meta-data/",
            "https://[::1]/",
            "https://[::]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[::ffff:7f00:1]/",
            "https://[64:ff9b::7f00:1]/",
            "https://[fe80::1]/",
            "https://[fd00::1]/",
            "https://224.0.0.1/",
            "https://255.255.255.255/",
        ] {
            check(url, false);
        }
    }

    /// Refused before it is looked up.
    #[tokio::test]
    async fn a_name_that_leads_inside_is_not_connected_to() {
        testkit::install_tls_provider();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let fetcher = Fetcher::new(Duration::from_secs(5), 1_000).unwrap();
        for host in ["localhost", "LOCALHOST.", "127.0.0.1", "0x7f.1"] {
            let answer = fetcher
                .fetch(&format!("https://{host}:{port}/"), &mut Room::of_bytes(10_000))
                .await;
            assert_eq!(answer.unwrap_err().code, "url_not_allowed", "{host}");
        }
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    /// Answers each request by its path, and counts them.
    async fn server(answer: fn(&str) -> String) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4_096];
                let read = stream.read(&mut request).await.unwrap();
                let text = String::from_utf8_lossy(&request[..read]).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                stream.write_all(answer(&path).as_bytes()).await.unwrap();
            }
        });
        port
    }

    fn answer(path: &str) -> String {
        let body = |body: &str| {
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let to = |to: &str| format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
        match path {
            "/a/notes%20one.txt" => body("hello"),
            "/1" => to("/2"),
            "/2" => to("/3"),
            "/3" => to("/a/notes%20one.txt"),
            "/0" => to("/1"),
            "/inside" => to("https://169.254.169.254/latest/meta-data/"),
            "/local" => to("http://localhost:1/"),
            "/nowhere" => to(""),
            "/private" => to("http://private.example/"),
            "/nobody" => to("http://nobody.example/"),
            "/plain" => "HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
            "/large" => body(&"x".repeat(1_001)),
            "/binary" => body("\u{0}\u{1}"),
            "/cut" => "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhal".to_owned(),
            _ => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
        }
    }

    /// Through a server of this machine, which only this test may ask.
    #[tokio::test]
    async fn each_redirect_is_held_to_the_rules() {
        testkit::install_tls_provider();
        let port = server(answer).await;
        let fetcher = Fetcher {
            client: egress::client(true).build().unwrap(),
            vet: |url| url.host_str() == Some("127.0.0.1"),
            timeout: Duration::from_secs(2),
            bytes_max: 1_000,
        };
        let fetch = async |path: &str| {
            let url = format!("http://127.0.0.1:{port}{path}");
            fetcher.fetch(&url, &mut Room::of_bytes(100_000)).await
        };
        for path in ["/a/notes%20one.txt", "/1"] {
            let (name, file) = fetch(path).await.unwrap();
            assert_eq!(
                (name.as_str(), file.content()),
                ("notes20one.txt", &b"hello"[..]),
                "{path}"
            );
            // Not what the server says.
            assert_eq!(file.media_type, domain::MediaType::Text);
        }
        let check = async |path: &str, code: &str, words: &str| {
            let answer = fetch(path).await.unwrap_err();
            assert!(
                answer.code == code && answer.message.contains(words),
                "{path}: {answer:?}"
            );
        };
        check("/0", "fetch_failed", "more than 3 redirects").await;
        check("/inside", "fetch_failed", "may not be asked").await;
        check("/local", "fetch_failed", "may not be asked").await;
        check("/plain", "fetch_failed", "may not be asked").await;
        check("/gone", "fetch_failed", "HTTP 404").await;
        check("/large", "artifact_too_large", "1000 bytes").await;
        check("/binary", "unsupported_media_type", "PNG").await;
        let made = async |path: &str| {
            let url = format!("http://127.0.0.1:{port}{path}");
            fetcher.fetch_made("paints", &url, &mut Room::of_bytes(100_000)).await
        };
        let large = made("/large").await.unwrap_err();
        assert_eq!(large.code, "model_answer_too_large");
        assert_eq!(
            large.message,
            "The answer of the model paints is too large: an image of more than 1000 bytes."
        );
        assert_eq!(made("/gone").await.unwrap_err().code, "fetch_failed");
        assert_eq!(made("/1").await.unwrap().content(), b"hello");
        check("/cut", "fetch_failed", "connection broke").await;
        let little = fetcher
            .fetch(&format!("http://127.0.0.1:{port}/1"), &mut Room::of_bytes(10))
            .await;
        assert_eq!(little.unwrap_err().code, "rate_limited");
        let outside = fetcher.fetch("http://127.0.0.2/", &mut Room::of_bytes(10)).await;
        assert_eq!(outside.unwrap_err().code, "url_not_allowed");
    }

    /// What a look-up finds: as `egress` refuses a name of private addresses, or as the system does not know one.
    struct Looks;

    impl Resolve for Looks {
        fn resolve(&self, name: Name) -> Resolving {
            let why = match name.as_str() {
                "private.example" => io::Error::new(io::ErrorKind::PermissionDenied, "the name has no public address"),
                _ => io::Error::other("failed to lookup address information: Name or service not known"),
            };
            Box::pin(async move { Err(why.into()) })
        }
    }

    /// A name of private addresses, one that nobody has, and a closed port: one answer, at once and behind a redirect.
    #[tokio::test]
    async fn what_a_look_up_finds_inside_is_not_told() {
        testkit::install_tls_provider();
        let port = server(answer).await;
        let closed = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let fetcher = |client: Client| Fetcher {
            client,
            vet: |_| true,
            timeout: Duration::from_secs(5),
            bytes_max: 1_000,
        };
        let looks = fetcher(
            egress::client(true)
                .no_proxy()
                .dns_resolver(Arc::new(Looks))
                .build()
                .unwrap(),
        );
        // As in use: only its own resolver keeps it from the server.
        let vetted = fetcher(egress::client(false).build().unwrap());
        let mut answers = Vec::new();
        for (fetcher, url) in [
            (&looks, "http://private.example/".to_owned()),
            (&looks, "http://nobody.example/".to_owned()),
            (&looks, format!("http://127.0.0.1:{port}/private")),
            (&looks, format!("http://127.0.0.1:{port}/nobody")),
            (&looks, format!("http://{closed}/")),
            (&vetted, format!("http://localhost:{port}/a/notes%20one.txt")),
        ] {
            let answer = fetcher.fetch(&url, &mut Room::of_bytes(10_000)).await.unwrap_err();
            assert_eq!(answer.code, "fetch_failed", "{url}");
            assert_eq!(
                answer.message, "The file could not be read: it cannot be reached.",
                "{url}"
            );
            answers.push(answer.text());
        }
        answers.dedup();
        assert_eq!(answers.len(), 1, "{answers:?}");
    }
}
