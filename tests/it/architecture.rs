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

/// Tables that only their home writes (ADR 50).
const OF_THE_HOME: [&str; 3] = ["session", "notification", "turn"];
const HOME: &str = "shared/storage/src/session/";
/// The schema itself, another program's tables of the same names, the kit that fills tests' databases, and this file.
const EXEMPT: &[&str] = &[
    "shared/storage/src/migrations/",
    "bench/src/floor/",
    "shared/testkit/src/",
    "tests/it/architecture.rs",
];
/// Where tests and the benchmark plant rows.
const PLANTED: &[&str] = &[
    "bench/src/stored.rs",
    "services/delivery/tests/it/fairness.rs",
    "services/delivery/tests/it/impossible.rs",
    "services/delivery/tests/it/interrupted.rs",
    "services/delivery/tests/it/plans.rs",
    "services/delivery/tests/it/twins.rs",
    "services/orchestrator/tests/it/dead_letters.rs",
    "services/orchestrator/tests/it/notifications.rs",
    "services/orchestrator/tests/it/pages.rs",
    "services/orchestrator/tests/it/plans.rs",
    "services/orchestrator/tests/it/seed.rs",
    "services/orchestrator/tests/it/service.rs",
    "services/orchestrator/tests/it/twins.rs",
    "services/resolver/tests/it/ids.rs",
    "services/resolver/tests/it/plans.rs",
    "services/resolver/tests/it/races.rs",
    "services/resolver/tests/it/sessions.rs",
    "services/resolver/tests/it/sweeps.rs",
    "services/resolver/tests/it/twins.rs",
    "services/tool-gateway/tests/it/capability.rs",
    "services/tool-gateway/tests/it/effects.rs",
    "services/tool-gateway/tests/it/http.rs",
    "services/tool-gateway/tests/it/late.rs",
    "services/tool-gateway/tests/it/once.rs",
    "services/tool-gateway/tests/it/world.rs",
    "shared/storage/tests/it/attacker.rs",
    "shared/storage/tests/it/lifecycle.rs",
    "shared/storage/tests/it/neglected.rs",
    "shared/storage/tests/it/waiting.rs",
    "tests/chaos/age/plant.rs",
    "tests/it/fair.rs",
    "tests/it/walls/listed.rs",
    "tests/it/walls/mod.rs",
    "tests/it/walls/scratch.rs",
];

/// Each of the verbs with the table after it, wherever blanks, line ends and the seams of a `concat!` stand between.
fn writes(text: &str) -> Vec<(&'static str, &'static str)> {
    let text = text.to_ascii_lowercase();
    let mut found = Vec::new();
    for verb in ["insert into", "update", "delete from"] {
        for (at, _) in text.match_indices(verb) {
            let rest = text[at + verb.len()..].trim_start_matches([' ', '\n', '\t', '"', ',', '\\']);
            let name = rest
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .next()
                .unwrap_or_default();
            let is_apart = rest.len() < text.len() - at - verb.len();
            if let Some(table) = OF_THE_HOME.into_iter().find(|table| is_apart && *table == name) {
                found.push((verb, table));
            }
        }
    }
    found
}

#[test]
fn only_their_home_writes_sessions_items_and_turns() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut home, mut planted, mut elsewhere) = (0, BTreeSet::new(), Vec::new());
    for folder in ["services", "shared", "tests", "bench"] {
        visit(&root.join(folder), &mut |file| {
            let name = file.strip_prefix(root).unwrap().to_str().unwrap();
            let writes = writes(&std::fs::read_to_string(file).unwrap());
            if name.starts_with(HOME) {
                home += writes.len();
            } else if !EXEMPT.iter().any(|exempt| name.starts_with(exempt)) {
                for (verb, table) in writes {
                    if PLANTED.contains(&name) {
                        planted.insert(name.to_owned());
                    } else {
                        elsewhere.push(format!("{name}: {verb} {table}"));
                    }
                }
            }
        });
    }
    assert!(home > 15, "the home was read: {home}");
    assert_eq!(
        elsewhere, [""; 0],
        "write through a verb of {HOME}, or plant rows with testkit"
    );
    let listed: BTreeSet<String> = PLANTED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(planted, listed, "listed without need");
}

#[test]
fn a_write_is_found_however_it_is_written() {
    assert_eq!(writes("update session set"), [("update", "session")]);
    assert_eq!(writes("Insert Into\n   turn (id)"), [("insert into", "turn")]);
    assert_eq!(
        writes("concat!(\"delete from \", \"notification where\")"),
        [("delete from", "notification")]
    );
    assert_eq!(
        writes("update session_neglected; for update of session; updated turn"),
        []
    );
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
