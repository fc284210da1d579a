//! `signalbox provider check` as a process: exit codes, output, and secrets that it must not print.

use serde_json::Value;
use testkit::{Server, StubProvider, repeating_codes};

use crate::{folder, run};

const KEY: &str = "sk-never-shown";

/// Runs the check with an entry of these lines for a server at `url`.
async fn check(url: String, lines: &'static str, arguments: &'static [&'static str]) -> (Option<i32>, String, String) {
    let checked = tokio::task::spawn_blocking(move || {
        let folder = folder();
        let entry = format!("[providers.mine]\nurl = \"{url}\"\nmodel = \"gpt-5\"\napi_key = \"{KEY}\"\n{lines}\n");
        std::fs::write(folder.path().join("signalbox.toml"), entry).unwrap();
        let arguments: Vec<&str> = ["provider", "check"].iter().chain(arguments).copied().collect();
        run(&folder, &arguments)
    });
    let (code, stdout, stderr) = checked.await.unwrap();
    assert!(!stdout.contains(KEY) && !stderr.contains(KEY), "{stdout}{stderr}");
    (code, stdout, stderr)
}

#[tokio::test]
async fn settings_that_fit_are_code_0() {
    let stub = StubProvider::like(Server::OpenAi, repeating_codes).await;
    // A query may be a credential, too.
    let url = format!("{}?code={KEY}", stub.url());
    let lines = "kind = \"openresponses\"\nserver = \"openai\"";
    let (code, stdout, stderr) = check(url, lines, &["mine"]).await;
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    let first = stdout.lines().next().unwrap();
    assert!(first.starts_with("Provider mine: kind openresponses, server openai, model gpt-5, at http://127.0.0.1:"));
    assert!(stdout.contains("At most 7 short calls go to the model."), "{stdout}");
    assert!(
        stdout.contains("\nno        continues by session key       bad_request: HTTP 400"),
        "{stdout}"
    );
    assert!(
        stdout.contains("\nyes       continues with the whole turn\n"),
        "{stdout}"
    );
    assert!(
        stdout.ends_with("\nThe settings fit:\n\n[providers.mine]\nkind = \"openresponses\"\nserver = \"openai\"\n"),
        "{stdout}"
    );
}

#[tokio::test]
async fn settings_that_do_not_fit_are_code_1_and_others_are_named() {
    let stub = StubProvider::like(Server::Ollama, repeating_codes).await;
    let (code, stdout, _) = check(stub.url(), "kind = \"openresponses\"", &["mine"]).await;
    assert_eq!(code, Some(1), "{stdout}");
    let fits =
        "\nThe settings do not fit. These do:\n\n[providers.mine]\nkind = \"openresponses\"\nserver = \"openai\"\n";
    assert!(
        stdout.contains(fits) && stdout.contains("Where vLLM, Ollama or LM Studio answers"),
        "{stdout}"
    );

    let (code, stdout, _) = check(stub.url(), "kind = \"openresponses\"", &["mine", "--json"]).await;
    assert_eq!(code, Some(1));
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&report["provider"], &report["fits"]),
        (&Value::from("mine"), &Value::from(false))
    );
    assert_eq!(report["settings"][1], "server = \"openai\"");
    assert!(
        report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .all(|finding| finding["what"].is_string()),
        "{report}"
    );
}

#[tokio::test]
async fn nobody_at_the_address_is_code_1() {
    // Nothing listens on port 1.
    let (code, stdout, _) = check(
        "http://127.0.0.1:1/v1/responses".to_owned(),
        "kind = \"openresponses\"",
        &["mine"],
    )
    .await;
    assert_eq!(code, Some(1));
    assert!(
        stdout.contains("\nno        answers  refused: sending the call"),
        "{stdout}"
    );
    assert!(stdout.contains("so there are no settings to recommend."), "{stdout}");
}

#[tokio::test]
async fn refused_settings_and_unknown_names_are_code_2() {
    let url = || "http://127.0.0.1:1/v1/responses".to_owned();
    let refused = async |lines, arguments, says: &str| {
        let (code, stdout, stderr) = check(url(), lines, arguments).await;
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.lines().count() == 1 && stderr.contains(says), "{stderr}");
    };
    let contradiction = "kind = \"openresponses\"\nserver = \"vllm\"\nthread = \"durable\"";
    let says = "server = \"vllm\" is sent the whole turn with every call: leave out thread and thread_by";
    refused(contradiction, &["mine"], says).await;
    let unknown = "kind = \"openresponses\"\nserver = \"llama\"";
    refused(unknown, &["mine"], "setting providers.mine.server").await;
    refused("kind = \"openresponses\"", &["yours"], "providers.yours").await;
    refused(
        "kind = \"openresponses\"",
        &["yours"],
        "there is no such provider; known are: mine",
    )
    .await;
}
