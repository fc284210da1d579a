//! `provider check` with each kind of server: its findings, and its recommended settings.

use delivery::{
    provider_check::{CALLS_MAX, Report, Seen, check},
    providers::ProviderSettings,
};
use serde_json::{Value, json};
use testkit::{Reply, Server, StubProvider, install_tls_provider, repeating_codes};

async fn checked(stub: &StubProvider, extra: Value) -> Report {
    install_tls_provider();
    let mut settings = json!({"kind": "openresponses", "url": stub.url(), "model": "gpt-5", "api_key": "sk-secret"});
    settings
        .as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    let settings: ProviderSettings = serde_json::from_value(settings).unwrap();
    let report = check(&settings).await.unwrap();
    let answered = stub.seen().iter().filter(|seen| seen.refused.is_none()).count();
    assert!(answered <= CALLS_MAX, "{answered} calls reached the model");
    assert!(!serde_json::to_string(&report).unwrap().contains("sk-secret"));
    report
}

fn seen(report: &Report) -> Vec<(&'static str, Seen)> {
    report
        .findings
        .iter()
        .map(|finding| (finding.what, finding.seen))
        .collect()
}

/// The findings about a server, in the order of the report.
fn found(key: Seen, response: Seen, whole: Seen, look_up: Seen) -> Vec<(&'static str, Seen)> {
    vec![
        ("answers", Seen::Yes),
        ("calls functions", Seen::Yes),
        ("follows instructions", Seen::Yes),
        ("streams", Seen::Yes),
        ("continues by session key", key),
        ("continues by response id", response),
        ("continues with the whole turn", whole),
        ("looks up a lost call", look_up),
    ]
}

const OPENAI: [&str; 2] = ["kind = \"openresponses\"", "server = \"openai\""];
const GENERIC: [&str; 2] = ["kind = \"openresponses\"", "server = \"generic\""];

#[tokio::test]
async fn finds_out_what_each_server_can_do_and_which_settings_fit() {
    use Seen::{No, Yes};
    let abilities = |server| match server {
        Server::OpenAi => found(No, Yes, Yes, Yes),
        Server::LmStudio => found(No, Yes, Yes, No),
        Server::Vllm | Server::Ollama => found(No, No, Yes, No),
        Server::Generic => found(Yes, No, Yes, No),
        Server::OpenClaw => unreachable!("of another kind"),
    };
    for (server, name) in Server::ALL
        .into_iter()
        .filter(|(server, _)| *server != Server::OpenClaw)
    {
        // With the entry that names the server, and with one that names none.
        let stub = StubProvider::like(server, repeating_codes).await;
        let report = checked(&stub, json!({"server": name})).await;
        assert!(report.fits, "{name}: {report:?}");
        assert_eq!(seen(&report), abilities(server), "{name}: {report:?}");
        assert_eq!(
            report.settings,
            ["kind = \"openresponses\"".to_owned(), format!("server = \"{name}\"")]
        );

        let stub = StubProvider::like(server, repeating_codes).await;
        let report = checked(&stub, json!({})).await;
        assert_eq!(report.fits, server == Server::Generic, "{name}: {report:?}");
        let mut expected = abilities(server);
        if !report.fits {
            expected.insert(0, ("works as set", Seen::No));
        }
        assert_eq!(seen(&report), expected, "{name}: {report:?}");
        assert_eq!(
            report.settings,
            if server == Server::Generic { GENERIC } else { OPENAI },
            "{name}"
        );
    }
}

#[tokio::test]
async fn finds_out_what_a_gateway_can_do() {
    let stub = StubProvider::like(Server::OpenClaw, repeating_codes).await;
    let report = checked(&stub, json!({"kind": "openclaw", "model": "openclaw/alpha"})).await;
    assert!(report.fits, "{report:?}");
    let mut expected = found(Seen::Yes, Seen::No, Seen::No, Seen::Yes);
    expected.retain(|(what, _)| !matches!(*what, "continues by response id" | "continues with the whole turn"));
    assert_eq!(seen(&report), expected, "{report:?}");
    assert_eq!(report.settings, ["kind = \"openclaw\"", "server = \"openclaw\""]);
}

#[tokio::test]
async fn settings_that_were_chosen_and_fit_are_kept() {
    let chosen = [
        (
            Server::OpenAi,
            json!({"server": "openai", "thread": "durable"}),
            vec!["thread = \"durable\""],
        ),
        (Server::OpenAi, json!({"server": "openai", "model": "gpt-4.1"}), vec![]),
        (
            Server::LmStudio,
            json!({"server": "generic", "thread_by": "response"}),
            vec!["thread_by = \"response\""],
        ),
        (
            Server::Ollama,
            json!({"server": "generic", "thread": "none"}),
            vec!["thread = \"none\""],
        ),
        (
            Server::Generic,
            json!({"thread": "process"}),
            vec!["thread = \"process\""],
        ),
    ];
    for (server, settings, lines) in chosen {
        let stub = StubProvider::like(server, repeating_codes).await;
        let report = checked(&stub, settings.clone()).await;
        assert!(report.fits, "{settings}: {report:?}");
        assert_eq!(report.settings[2..], lines[..], "{settings}: {report:?}");
    }
}

#[tokio::test]
async fn an_unusable_server_gets_few_calls() {
    let unauthorized = r#"{"error": {"message": "Incorrect API key provided: sk-secret", "code": "invalid_api_key"}}"#;
    let stub = StubProvider::start(|_| Reply::Status(401, unauthorized.to_owned(), vec![])).await;
    let report = checked(&stub, json!({})).await;
    assert!(!report.fits && report.settings.is_empty(), "{report:?}");
    assert_eq!(seen(&report), [("answers", Seen::No)]);
    assert!(
        report.findings[0].detail.contains("unauthorized: HTTP 401"),
        "{report:?}"
    );
    assert_eq!(stub.seen().len(), 1);

    // A model without functions.
    let stub = StubProvider::start(|_| Reply::text("Blue is a colour.")).await;
    let report = checked(&stub, json!({})).await;
    assert!(!report.fits && report.settings.is_empty(), "{report:?}");
    assert_eq!(
        seen(&report),
        [("answers", Seen::Yes), ("calls functions", Seen::NotSeen)]
    );
    assert_eq!(stub.seen().len(), 1);

    // A wrong model name, refused in every wording.
    let refused = r#"{"error": {"message": "no such model", "code": "model_not_found"}}"#;
    let stub = StubProvider::start(|_| Reply::Status(404, refused.to_owned(), vec![])).await;
    let report = checked(&stub, json!({})).await;
    assert!(!report.fits && report.settings.is_empty(), "{report:?}");
    assert_eq!(stub.seen().len(), 2, "once in each wording");
}

/// The server calls the function, and drops the results.
#[tokio::test]
async fn a_server_that_drops_results_fits_nothing() {
    let stub = StubProvider::start(|seen| match seen.body["tools"][0]["name"].as_str() {
        Some(name) if seen.tool_outputs().is_empty() => Reply::call("c", name, json!({})),
        _ => Reply::text("I have seen nothing."),
    })
    .await;
    let report = checked(&stub, json!({"server": "ollama"})).await;
    assert!(!report.fits && report.settings.is_empty(), "{report:?}");
    let continues = report
        .findings
        .iter()
        .filter(|finding| finding.what.starts_with("continues"));
    assert!(
        continues.clone().count() == 3 && continues.clone().all(|finding| finding.seen == Seen::No),
        "{report:?}"
    );
}

#[tokio::test]
async fn a_wrong_path_is_named() {
    for (status, body) in [
        (404, "404 page not found"),
        (405, r#"{"detail": "Method Not Allowed"}"#),
    ] {
        let stub = StubProvider::start(move |_| Reply::Status(status, body.to_owned(), vec![])).await;
        let report = checked(&stub, json!({})).await;
        let why = &report.findings[0].detail;
        assert!(why.contains(body) && why.contains("is the path of url right?"), "{why}");
    }
}
