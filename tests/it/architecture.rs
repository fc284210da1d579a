//! The map of the workspace, held by the compiler's own metadata: which crate may see which.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

/// Who may see whom, beyond what the standard library and the registry offer. Anything that is not here is an edge that
/// somebody should talk about first (ARCHITECTURE.md, "Crates").
const ALLOWED: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("contracts", &["domain"]),
    ("api", &["contracts", "domain"]),
    ("storage", &["contracts", "domain"]),
    ("messaging", &["contracts", "domain"]),
    ("runtime", &["api", "contracts", "domain", "messaging", "storage"]),
    ("devstack", &[]),
    (
        "testkit",
        &["contracts", "devstack", "domain", "messaging", "runtime", "storage"],
    ),
    ("resolver", &["contracts", "domain", "messaging", "runtime", "storage"]),
    ("delivery", &["contracts", "domain", "messaging", "runtime", "storage"]),
    (
        "tool-gateway",
        &["contracts", "domain", "messaging", "runtime", "storage"],
    ),
    (
        "orchestrator",
        &["api", "contracts", "domain", "messaging", "runtime", "storage"],
    ),
    (
        "signalbox",
        &[
            "api",
            "contracts",
            "delivery",
            "devstack",
            "domain",
            "messaging",
            "orchestrator",
            "resolver",
            "runtime",
            "storage",
            "tool-gateway",
        ],
    ),
    ("bench", &["contracts", "devstack", "messaging", "runtime", "storage"]),
    (
        "system-tests",
        &[
            "contracts",
            "delivery",
            "devstack",
            "domain",
            "messaging",
            "orchestrator",
            "resolver",
            "runtime",
            "storage",
            "testkit",
            "tool-gateway",
        ],
    ),
];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["common", "core", "utils", "util", "helpers", "misc", "shared"];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo's metadata is JSON")
}

#[test]
fn crates_see_only_what_the_map_allows() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<&str> = packages
        .iter()
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    let mapped: BTreeSet<&str> = ALLOWED.iter().map(|(name, _)| *name).collect();
    assert_eq!(ours, mapped, "a crate is missing on the map, or on the disk");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let allowed = ALLOWED
            .iter()
            .find(|(of, _)| *of == name)
            .map(|(_, allowed)| *allowed)
            .unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let on = dependency["name"].as_str().unwrap();
            // Tests may see the test crates and more; what is shipped may not.
            if ours.contains(on) && dependency["kind"] != "dev" {
                assert!(allowed.contains(&on), "{name} may not depend on {on}");
            }
        }
    }
}

#[test]
fn services_do_not_see_each_other_even_in_tests() {
    let services = ["resolver", "delivery", "tool-gateway", "orchestrator"];
    for package in metadata()["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let on = dependency["name"].as_str().unwrap();
            assert!(
                !(services.contains(&name) && services.contains(&on)),
                "{name} depends on {on}"
            );
        }
    }
}

#[test]
fn names_say_what_is_inside() {
    for package in metadata()["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        assert!(!EMPTY_NAMES.contains(&name), "{name}");
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for folder in ["services", "shared", "tests/it", "tests/chaos"] {
        visit(&root.join(folder), &mut |file| {
            let stem = file.file_stem().unwrap().to_str().unwrap();
            assert!(!EMPTY_NAMES.contains(&stem), "{}", file.display());
            let text = std::fs::read_to_string(file).unwrap();
            assert!(
                text.starts_with("//!"),
                "{} does not say what it is for",
                file.display()
            );
        });
    }
}

fn visit(folder: &std::path::Path, see: &mut impl FnMut(&std::path::Path)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, see);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            see(&path);
        }
    }
}
