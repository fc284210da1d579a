//! The mail server: its address, one e-mail to it, and what its answer means. Its words are not kept: they may name the recipient.

use std::{fmt, time::Duration};

use lettre::{
    Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::{
        Mailbox,
        header::{ContentType, HeaderName, HeaderValue, MIME_VERSION_1_0},
    },
    transport::smtp,
};
use runtime::settings::SettingsError;
use secrecy::ExposeSecret;
use uuid::Uuid;

use crate::settings::{EmailSettings, OutboundSettings};

type Transport = AsyncSmtpTransport<Tokio1Executor>;

fn builder(url: &str) -> Result<smtp::AsyncSmtpTransportBuilder, smtp::Error> {
    Transport::from_url(url)
}

/// An e-mail to one person, in plain text.
pub struct Letter {
    /// Its `Message-ID` follows from it: what comes twice, a mail program may show once.
    pub id: Uuid,
    pub to: String,
    pub subject: String,
    pub text: String,
}

/// How an attempt failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// For good: the address, or the e-mail.
    Refused,
    /// For now.
    Busy,
    /// Signalbox itself is not let in: the e-mail waits until an operator has corrected that.
    Login,
    Timeout,
    Unreachable,
}

impl Class {
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Refused => "refused",
            Class::Busy => "busy",
            Class::Login => "login",
            Class::Timeout => "timeout",
            Class::Unreachable => "unreachable",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    pub class: Class,
    /// The server's code.
    pub status: Option<u16>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.class {
            Class::Refused => "the mail server refused it",
            Class::Busy => "the mail server does not take it now",
            Class::Login => "the mail server does not let Signalbox in",
            Class::Timeout => "the mail server did not answer in time",
            Class::Unreachable => "the mail server could not be reached",
        })?;
        self.status.map_or(Ok(()), |status| write!(f, " ({status})"))
    }
}

impl Failure {
    fn of(error: &smtp::Error) -> Failure {
        let status = error.status().map(u16::from);
        let class = match status {
            Some(530 | 534 | 535 | 538) => Class::Login,
            Some(500..) => Class::Refused,
            Some(_) => Class::Busy,
            None if error.is_timeout() => Class::Timeout,
            // No way of signing in that both know.
            None if error.is_client() => Class::Login,
            None => Class::Unreachable,
        };
        Failure { class, status }
    }
}

/// Sends e-mail. Cheap to clone; each e-mail has a connection of its own.
#[derive(Clone, Debug)]
pub struct Mailer {
    transport: Transport,
    from: Mailbox,
    timeout: Duration,
}

impl Mailer {
    /// None: no e-mail is sent here.
    pub fn of(email: &EmailSettings, outbound: &OutboundSettings) -> Result<Option<Mailer>, SettingsError> {
        let (url, from) = match (&email.smtp_url, &email.from) {
            (Some(url), Some(from)) => (url.0.expose_secret(), from.0.clone()),
            (Some(_), None) => return Err(SettingsError::missing("email.from")),
            (None, _) => return Ok(None),
        };
        let timeout = outbound.timeout_ms.duration();
        let builder = builder(url).expect("a URL that was read as one");
        Ok(Some(Mailer {
            transport: builder.timeout(Some(timeout)).build(),
            from,
            timeout,
        }))
    }

    pub async fn send(&self, letter: &Letter) -> Result<(), Failure> {
        // An address that no server could read.
        let message = self.message(letter).ok_or(Failure {
            class: Class::Refused,
            status: None,
        })?;
        self.within(self.transport.send(message)).await.map(drop)
    }

    /// Whether the server answers and lets Signalbox in. Nothing is sent.
    pub async fn check(&self) -> Result<(), Failure> {
        self.within(self.transport.test_connection()).await.map(drop)
    }

    /// The transport's own limit is for each of its steps.
    async fn within<T>(&self, asked: impl Future<Output = Result<T, smtp::Error>>) -> Result<T, Failure> {
        match tokio::time::timeout(self.timeout, asked).await {
            Ok(answered) => answered.map_err(|error| Failure::of(&error)),
            Err(_) => Err(Failure {
                class: Class::Timeout,
                status: None,
            }),
        }
    }

    fn message(&self, letter: &Letter) -> Option<Message> {
        let to: Address = letter.to.parse().ok()?;
        let automatic = HeaderValue::new(
            HeaderName::new_from_ascii_str("Auto-Submitted"),
            "auto-generated".to_owned(),
        );
        let message = Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(contracts::quote::one_line(&letter.subject))
            .message_id(Some(format!("<{}@{}>", letter.id, self.from.email.domain())))
            .raw_header(automatic)
            .header(MIME_VERSION_1_0)
            .header(ContentType::TEXT_PLAIN)
            .body(letter.text.clone());
        message.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::email::{FromAddress, SmtpUrl};

    fn mailer() -> Mailer {
        let email = EmailSettings {
            smtp_url: Some(SmtpUrl::try_from("smtp://127.0.0.1:25".to_owned()).unwrap()),
            from: Some(FromAddress::try_from("Signalbox <signalbox@example.com>".to_owned()).unwrap()),
        };
        Mailer::of(&email, &OutboundSettings::default()).unwrap().unwrap()
    }

    #[test]
    fn a_password_goes_over_tls_only_and_is_not_shown() {
        for (url, good) in [
            ("smtps://user:secret@mail.example", true),
            ("smtp://user:secret@mail.example?tls=required", true),
            ("smtp://mail.example:25", true),
            ("smtps://mail.example", true),
            ("smtp://user:secret@mail.example", false),
            ("smtp://user:secret@mail.example?tls=opportunistic", false),
            ("smtps://user@mail.example", false),
            ("smtp://", false),
            ("https://mail.example", false),
            ("mail.example", false),
            ("", false),
        ] {
            let read = SmtpUrl::try_from(url.to_owned());
            assert_eq!(read.is_ok(), good, "{url}");
            assert!(!format!("{read:?}").contains("secret"), "{url}");
        }
    }

    #[test]
    fn no_text_of_others_adds_a_header() {
        let send = |to: &str, subject: &str| {
            let letter = Letter {
                id: Uuid::nil(),
                to: to.to_owned(),
                subject: subject.to_owned(),
                text: "Bcc: eve@example.com\r\n.\r\nQUIT".to_owned(),
            };
            mailer()
                .message(&letter)
                .map(|message| String::from_utf8(message.formatted()).unwrap())
        };
        for subject in [
            "a\r\nBcc: eve@example.com",
            "a\nBcc: eve@example.com",
            "a\rBcc: eve@example.com",
            "a\u{2028}Bcc: eve@example.com",
            "a\0\u{b}Bcc: eve@example.com",
            "ü\r\n\r\nBcc: eve@example.com",
            &"long ".repeat(200),
        ] {
            let sent = send("ann@example.com", subject).unwrap();
            let (headers, _) = sent.split_once("\r\n\r\n").unwrap();
            let mut names: Vec<&str> = headers
                .split("\r\n")
                .filter(|line| !line.starts_with([' ', '\t']))
                .map(|line| line.split_once(':').unwrap().0)
                .collect();
            names.sort_unstable();
            let expected = [
                "Auto-Submitted",
                "Content-Transfer-Encoding",
                "Content-Type",
                "Date",
                "From",
                "MIME-Version",
                "Message-ID",
                "Subject",
                "To",
            ];
            assert_eq!(names, expected, "{subject:?}: {headers}");
            assert!(headers.contains("Message-ID: <00000000-0000-0000-0000-000000000000@example.com>"));
        }
        for to in [
            "",
            "ann",
            "a@b\r\nBcc: eve@example.com",
            "a@b, eve@example.com",
            "<a@b>",
        ] {
            assert!(send(to, "a").is_none(), "{to:?}");
        }
    }
}
