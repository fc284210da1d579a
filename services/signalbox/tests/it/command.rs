//! Exit codes and error lines.

use std::process::Stdio;

use crate::{folder, run, signalbox};

/// Asserts one line on standard error that begins with the program's name.
fn refuses(arguments: &[&str], code: i32, says: &str) {
    let (status, stdout, stderr) = run(&folder(), arguments);
    assert_eq!((status, stdout.as_str()), (Some(code), ""), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("signalbox: "), "{stderr}");
    assert!(stderr.contains(says), "{stderr}");
}

#[test]
fn help_names_every_command() {
    let (code, help, _) = run(&folder(), &["--help"]);
    assert_eq!(code, Some(0));
    for command in [
        "up",
        "serve",
        "migrate",
        "health",
        "doctor",
        "sample",
        "demo-agent",
        "notify",
        "steer",
        "sessions",
        "stop",
        "pause",
        "holds",
        "resume",
        "cancel",
        "handover",
        "queue",
        "next",
        "context",
        "branches",
        "questions",
        "members",
        "release",
        "turns",
        "reset",
        "log",
        "diff",
        "replay",
        "replays",
        "audit",
        "notifications",
        "dead",
        "provider",
        "providers",
        "nats-users",
        "nats-keys",
        "schemas",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{command} in {help}");
    }
}

#[test]
fn users_of_the_broker_are_printed_for_the_root_of_the_settings() {
    let folder = folder();
    std::fs::write(folder.path().join("signalbox.toml"), "[nats]\nroot = \"box\"\n").unwrap();
    let (code, stdout, stderr) = run(&folder, &["nats-users"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(
        stdout.contains("\"box.notification.*.*\"") && stdout.contains("BOX_TOOL"),
        "{stdout}"
    );
    let (_, stdout, _) = run(&folder, &["nats-users", "--json"]);
    let users: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        users["publisher"]["publish"],
        serde_json::json!(["box.notification.*.*"])
    );
}

#[test]
fn a_missing_setting_is_one_line_and_code_2() {
    refuses(&["migrate"], 2, "setting database.url is missing");
}

#[test]
fn a_command_without_a_token_says_where_to_get_one() {
    refuses(
        &["sessions"],
        1,
        "no token for http://127.0.0.1:8080: give --token or SIGNALBOX_TOKEN",
    );
}

#[test]
fn a_usage_line_has_no_option_that_came_from_the_environment() {
    let output = signalbox(&folder(), &["context"])
        .env("SIGNALBOX_TOKEN", "secret")
        .env("SIGNALBOX_URL", "http://127.0.0.1:1")
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("\nUsage: signalbox context <TASK>\n"), "{stderr}");
    let (_, help, _) = run(&folder(), &["context", "--help"]);
    assert!(help.contains("[env: SIGNALBOX_TOKEN"), "{help}");
}

#[test]
fn a_service_begins_as_its_own_program_does() {
    let (code, stdout, stderr) = run(&folder(), &["serve", "tool-gateway"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.contains("setting database.url is missing"), "{stderr}");
}

#[test]
fn health_is_a_page_and_an_exit_code() {
    refuses(&["health", "http://127.0.0.1:1/readyz"], 1, "http://127.0.0.1:1/readyz");
}

#[test]
fn nobody_at_the_address_is_one_line() {
    // Nothing listens on port 1.
    let arguments = ["dead", "list", "--url", "http://127.0.0.1:1", "--token", "t"];
    refuses(&arguments, 1, "Signalbox at http://127.0.0.1:1 does not answer");
}

#[test]
fn a_sample_that_cannot_be_read_is_refused_before_anything_starts() {
    let folder = folder();
    std::fs::write(
        folder.path().join("sample.ndjson"),
        "{\"account\":\"demo\",\"body\":\"a\"}\nnonsense\n",
    )
    .unwrap();
    let (code, _, stderr) = run(&folder, &["up", "--sample", "sample.ndjson", "--http", "127.0.0.1:0"]);
    assert_eq!(code, Some(1));
    assert!(
        stderr.starts_with("signalbox: sample sample.ndjson: line 2: not a JSON object"),
        "{stderr}"
    );
    assert!(!folder.path().join(".data").exists());
}

#[test]
fn a_taken_port_is_refused_before_anything_starts() {
    let folder = folder();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, stderr) = run(&folder, &["up", "--http", &address]);
    assert_eq!(code, Some(1));
    assert!(
        stderr.starts_with(&format!("signalbox: {address} is taken by another program")),
        "{stderr}"
    );
    assert!(!folder.path().join(".data").exists());
}

#[test]
fn the_doctor_fails_where_nothing_is_set_and_says_what_to_do() {
    let (code, stdout, stderr) = run(&folder(), &["doctor", "--json"]);
    assert_eq!((code, stderr.as_str()), (Some(1), ""));
    let findings: Vec<serde_json::Value> = serde_json::from_str(&stdout).unwrap();
    let of = |check: &str| findings.iter().find(|finding| finding["check"] == check).unwrap();
    for check in ["postgres", "nats", "providers"] {
        assert_eq!(of(check)["status"], "problem");
        assert!(
            of(check)["fix"].as_str().unwrap().contains("`signalbox up`"),
            "{stdout}"
        );
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap();
    for finding in findings.iter().filter(|finding| finding["status"] != "ok") {
        let page = finding["runbook"].as_str().unwrap();
        assert!(root.join(page).is_file(), "{page}");
    }
    let (_, stdout, _) = run(&folder(), &["doctor"]);
    assert!(stdout.contains("\nPROBLEM  postgres"), "{stdout}");
    assert!(
        stdout.contains("\n                      docs/runbooks/database-restart.md\n"),
        "{stdout}"
    );
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = folder();
    let mut child = signalbox(&folder, &["schemas"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}
