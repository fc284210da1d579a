//! The mail server, if the settings name one: whether it answers and lets Signalbox in. Nothing is sent.

use orchestrator::{
    outbound::smtp::{Class, Failure, Mailer},
    settings::{EmailSettings, OutboundSettings},
};
use runtime::{Settings, SettingsError, settings::Millis};

use super::{Check, Finding};

const TIMEOUT_MS: Millis = Millis::new(5_000);

pub(super) async fn examine(settings: &Settings) -> Vec<Finding> {
    match mailer(settings) {
        // None has to be set.
        Ok(None) => Vec::new(),
        Ok(Some(mailer)) => vec![judge(mailer.check().await)],
        Err(error) => vec![Finding::failed(Check::Email, error, "correct this setting")],
    }
}

fn mailer(settings: &Settings) -> Result<Option<Mailer>, SettingsError> {
    let email: EmailSettings = settings.section("email")?;
    let outbound = OutboundSettings {
        timeout_ms: TIMEOUT_MS,
        ..settings.section("outbound")?
    };
    Mailer::of(&email, &outbound)
}

fn judge(answer: Result<(), Failure>) -> Finding {
    let Err(failure) = answer else {
        return Finding::ok(Check::Email, "the mail server answers and lets Signalbox in");
    };
    let fix = match failure.class {
        Class::Login => "are user and password of email.smtp_url right, with @ and : written as %40 and %3A?",
        Class::Refused | Class::Busy => "does the server take e-mail of this login, from this address?",
        Class::Timeout | Class::Unreachable => {
            "are host and port of email.smtp_url right? smtps:// is port 465, smtp:// with tls=required 587"
        }
    };
    Finding::problem(Check::Email, failure.to_string(), fix)
}

#[cfg(test)]
mod tests {
    use testkit::MailServer;

    use super::*;

    async fn examined(url: &str) -> Vec<Finding> {
        testkit::install_tls_provider();
        let variables = [
            ("SIGNALBOX__EMAIL__SMTP_URL", url),
            ("SIGNALBOX__EMAIL__FROM", "signalbox@example.com"),
        ];
        examine(&Settings::load_from("", variables).unwrap()).await
    }

    #[tokio::test]
    async fn a_mail_server_answers_or_not() {
        let server = MailServer::start().await;
        let findings = examined(&server.url).await;
        assert!(findings.len() == 1 && !findings[0].is_problem(), "{findings:?}");
        assert_eq!(server.taken().len(), 0);
        let findings = examined("smtp://127.0.0.1:1").await;
        assert!(findings.len() == 1 && findings[0].is_problem(), "{findings:?}");
        assert!(examined("").await.is_empty());
    }
}
