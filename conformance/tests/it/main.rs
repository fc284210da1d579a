//! The program against its reference: every case passes, every planted bug is found, and the document is current.

use std::{
    path::Path,
    process::{Command, Output},
};

use clap::ValueEnum;
use queue_conformance::{case::chapters_read, doc, reference::bug::Bug};
use serde_json::Value;

const REFERENCE: &str = env!("CARGO_BIN_EXE_queue-conformance-reference");

fn conformance(driver: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_queue-conformance"))
        .args(["--json", "--driver", driver])
        .args(arguments)
        .output()
        .expect("the program was built")
}

fn report(output: &Output) -> Value {
    let told = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"))
}

fn passes_all(form: &str) {
    let output = conformance(&format!("{REFERENCE} --form {form}"), &[]);
    let report = report(&output);
    let passed = |case: &&Value| case["verdict"] != "pass";
    let others: Vec<&Value> = report["cases"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(passed)
        .collect();
    assert!(others.is_empty(), "{others:#?}");
    assert!(report["counts"]["pass"].as_u64() > Some(70) && output.status.success());
}

#[test]
fn the_reference_passes_every_case() {
    passes_all("responses");
}

#[test]
fn the_other_form_of_calls_is_served_as_well() {
    passes_all("chat");
}

#[test]
fn each_planted_bug_is_found() {
    assert_eq!(Bug::value_variants().len(), 12);
    std::thread::scope(|scope| {
        for bug in Bug::value_variants() {
            scope.spawn(move || {
                let name = bug.to_possible_value().unwrap();
                let driver = format!("{REFERENCE} --bug {}", name.get_name());
                let output = conformance(&driver, &["--only", bug.found_by(), "--timeout-ms", "2000"]);
                let report = report(&output);
                assert_eq!(
                    report["counts"]["fail"],
                    1,
                    "{bug:?} is not found by {}",
                    bug.found_by()
                );
                assert_eq!(output.status.code(), Some(1));
            });
        }
    });
}

#[test]
fn a_driver_that_cannot_be_used_is_an_error_and_no_wait() {
    for driver in ["true", "echo hello", "cat /dev/zero", "/no/such/driver"] {
        let output = conformance(driver, &[]);
        assert_eq!(output.status.code(), Some(1), "{driver}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{driver}");
    }
    assert_eq!(
        conformance(REFERENCE, &["--only", "no_such_case"]).status.code(),
        Some(1)
    );
}

/// `queue-conformance --doc docs/queue-modes.md` writes it.
#[test]
fn the_document_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/queue-modes.md");
    let written = std::fs::read_to_string(path).unwrap();
    assert!(
        written == doc::document(&chapters_read(None).unwrap()),
        "write docs/queue-modes.md again"
    );
}
