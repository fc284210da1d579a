//! The committed `schemas/` match the code.

use std::{fs, path::Path};

use crate::{folder, run};

#[test]
fn what_is_checked_in_is_current() {
    let schemas = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas");
    let (code, _, stderr) = run(&folder(), &["schemas", "--check", "--dir", schemas.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn drift_is_found_and_mended() {
    let folder = folder();
    assert_eq!(run(&folder, &["schemas"]).0, Some(0));
    assert_eq!(run(&folder, &["schemas", "--check"]).0, Some(0));
    let topology = folder.path().join("schemas/topology.md");
    fs::write(&topology, "# Other\n").unwrap();
    fs::remove_file(folder.path().join("schemas/messages/dead.json")).unwrap();
    let (code, _, stderr) = run(&folder, &["schemas", "--check"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("schemas/topology.md is out of date"), "{stderr}");
    assert!(stderr.contains("schemas/messages/dead.json is missing"), "{stderr}");
    assert_eq!(
        fs::read_to_string(&topology).unwrap(),
        "# Other\n",
        "a check changes nothing"
    );
    assert_eq!(run(&folder, &["schemas"]).0, Some(0));
    assert_eq!(run(&folder, &["schemas", "--check"]).0, Some(0));
}

/// Files that other generators read must be well formed.
#[test]
fn documents_refer_only_to_what_is_there() {
    let folder = folder();
    run(&folder, &["schemas"]);
    let text = fs::read_to_string(folder.path().join("schemas/openapi.json")).unwrap();
    let openapi: serde_json::Value = serde_json::from_str(&text).unwrap();
    for path in [
        "/api/orgs/{account}/notifications",
        "/api/accounts",
        "/agent/tools",
        "/agent/task-status",
    ] {
        assert!(openapi["paths"].get(path).is_some(), "{path}");
    }
    let mut references = Vec::new();
    collect(&openapi, &mut references);
    assert!(!references.is_empty());
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(openapi.pointer(pointer).is_some(), "{reference}");
    }
}

fn collect(value: &serde_json::Value, references: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            references.extend(fields.get("$ref").and_then(|value| value.as_str()).map(str::to_owned));
            fields.values().for_each(|value| collect(value, references));
        }
        serde_json::Value::Array(items) => items.iter().for_each(|value| collect(value, references)),
        _ => {}
    }
}
