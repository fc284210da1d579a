//! Rules of the source tree: which crate may depend on which (read from cargo's metadata), file heads, who writes the session
//! tables, circles between modules, and phrases that prose may not use.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use serde_json::Value;

/// Which workspace crates each crate may depend on. Discuss a new edge before you add it here (ARCHITECTURE.md, "Crates").
const ALLOWED: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("contracts", &["domain"]),
    ("api", &["contracts", "domain"]),
    ("prompt", &["contracts", "domain"]),
    ("storage", &["contracts", "domain"]),
    ("messaging", &["contracts", "domain"]),
    ("runtime", &["api", "contracts", "domain", "messaging", "storage"]),
    ("devstack", &[]),
    (
        "testkit",
        &["contracts", "devstack", "domain", "messaging", "runtime", "storage"],
    ),
    ("resolver", &["contracts", "domain", "messaging", "runtime", "storage"]),
    (
        "delivery",
        &["contracts", "domain", "messaging", "prompt", "runtime", "storage"],
    ),
    (
        "tool-gateway",
        &["contracts", "domain", "messaging", "runtime", "storage"],
    ),
    (
        "orchestrator",
        &[
            "api",
            "contracts",
            "domain",
            "messaging",
            "prompt",
            "runtime",
            "storage",
        ],
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
    ("queue-conformance", &[]),
    ("bench", &["contracts", "devstack", "messaging", "runtime", "storage"]),
    (
        "system-tests",
        &[
            "api",
            "contracts",
            "delivery",
            "devstack",
            "domain",
            "messaging",
            "orchestrator",
            "prompt",
            "resolver",
            "runtime",
            "storage",
            "testkit",
            "tool-gateway",
        ],
    ),
];

/// File and crate names without meaning.
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
    assert_eq!(ours, mapped, "ALLOWED and the workspace list different crates");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let allowed = ALLOWED
            .iter()
            .find(|(of, _)| *of == name)
            .map(|(_, allowed)| *allowed)
            .unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let on = dependency["name"].as_str().unwrap();
            // Dev-dependencies are not restricted; only shipped code is.
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
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
const OF_THE_HOME: [&str; 5] = ["session", "notification", "turn", "branch", "replay"];
const HOME: &str = "shared/storage/src/session/";
/// Migrations, the floor's own tables of the same names, the kit that fills test databases, and this file.
const EXEMPT: &[&str] = &[
    "shared/storage/src/migrations/",
    "bench/src/floor/",
    "bench/peers/",
    "shared/testkit/src/",
    "tests/it/architecture.rs",
    // Beginnings of statements, to name them.
    "tests/it/walls/not_shown.rs",
    // The kit counts allocations, which the benchmark would measure.
    "bench/src/stored.rs",
];
/// Tests that plant a state by updating or deleting existing rows. They insert rows with `testkit::rows`.
const PLANTED: &[&str] = &[
    "services/delivery/tests/it/brakes.rs",
    "services/delivery/tests/it/branches.rs",
    "services/delivery/tests/it/breaker.rs",
    "services/delivery/tests/it/claims.rs",
    "services/delivery/tests/it/fairness.rs",
    "services/delivery/tests/it/impossible.rs",
    "services/delivery/tests/it/interrupted.rs",
    "services/delivery/tests/it/no_progress.rs",
    "services/delivery/tests/it/overdue.rs",
    "services/delivery/tests/it/policies.rs",
    "services/delivery/tests/it/succeed.rs",
    "services/delivery/tests/it/threads.rs",
    "services/delivery/tests/it/twins.rs",
    "services/orchestrator/tests/it/audit.rs",
    "services/orchestrator/tests/it/branches.rs",
    "services/orchestrator/tests/it/diff.rs",
    "services/orchestrator/tests/it/handover.rs",
    "services/orchestrator/tests/it/holds.rs",
    "services/orchestrator/tests/it/log.rs",
    "services/orchestrator/tests/it/mail.rs",
    "services/orchestrator/tests/it/notifications.rs",
    "services/orchestrator/tests/it/policies.rs",
    "services/orchestrator/tests/it/providers.rs",
    "services/orchestrator/tests/it/queue.rs",
    "services/orchestrator/tests/it/recovery.rs",
    "services/orchestrator/tests/it/replays.rs",
    "services/orchestrator/tests/it/routing.rs",
    "services/orchestrator/tests/it/stages.rs",
    "services/orchestrator/tests/it/timers.rs",
    "services/orchestrator/tests/it/twins.rs",
    "services/resolver/tests/it/ids.rs",
    "services/resolver/tests/it/modes.rs",
    "services/resolver/tests/it/races.rs",
    "services/resolver/tests/it/routes.rs",
    "services/resolver/tests/it/sessions.rs",
    "services/resolver/tests/it/sweeps.rs",
    "services/resolver/tests/it/twins.rs",
    "services/tool-gateway/tests/it/asking.rs",
    "services/tool-gateway/tests/it/branches.rs",
    "services/tool-gateway/tests/it/capability.rs",
    "services/tool-gateway/tests/it/contexts.rs",
    "services/tool-gateway/tests/it/effects.rs",
    "services/tool-gateway/tests/it/guests.rs",
    "services/tool-gateway/tests/it/http.rs",
    "services/tool-gateway/tests/it/late.rs",
    "services/tool-gateway/tests/it/later.rs",
    "services/tool-gateway/tests/it/memories.rs",
    "services/tool-gateway/tests/it/models.rs",
    "services/tool-gateway/tests/it/once.rs",
    "services/tool-gateway/tests/it/policies.rs",
    "services/tool-gateway/tests/it/questions.rs",
    "services/tool-gateway/tests/it/world.rs",
    "shared/storage/tests/it/attacker.rs",
    "shared/storage/tests/it/branches.rs",
    "shared/storage/tests/it/lifecycle.rs",
    "shared/storage/tests/it/neglected.rs",
    "shared/storage/tests/it/succeed.rs",
    "shared/storage/tests/it/waiting.rs",
    "tests/chaos/audits.rs",
    "tests/it/audit.rs",
    "tests/it/replays.rs",
    "services/orchestrator/tests/it/audit_forgeries.rs",
    "tests/it/walls/listed.rs",
    "tests/it/walls/mod.rs",
    "tests/it/walls/scratch.rs",
    "services/orchestrator/tests/it/handover.rs",
    "services/orchestrator/tests/it/holds.rs",
    "services/orchestrator/tests/it/timers.rs",
    "services/delivery/tests/it/overdue.rs",
    "services/tool-gateway/tests/it/later.rs",
    "tests/it/timers.rs",
    "tests/it/walls/walk.rs",
];

/// Each verb with the table after it. Blanks, line ends and the joints of a `concat!` may stand between them.
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut home, mut planted, mut elsewhere) = (0, BTreeSet::new(), Vec::new());
    for folder in ["services", "shared", "tests", "bench"] {
        visit(&root.join(folder), &mut |file| {
            let name = file.strip_prefix(root).unwrap().to_str().unwrap();
            let writes = writes(&std::fs::read_to_string(file).unwrap());
            if name.starts_with(HOME) {
                home += writes.len();
            } else if !EXEMPT.iter().any(|exempt| name.starts_with(exempt)) {
                for (verb, table) in writes {
                    if PLANTED.contains(&name) && verb != "insert into" {
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
        "write through a verb of {HOME}, or insert with testkit::rows"
    );
    let listed: BTreeSet<String> = PLANTED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(planted, listed, "PLANTED lists files that plant nothing");
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

/// A module is a folder directly under a crate's `src`, or a file there. Folders that import each other in a circle cannot be read
/// or moved alone, so they are refused. Circles between files are allowed.
#[test]
fn no_folder_imports_another_in_a_circle() {
    let mut circles = Vec::new();
    for package in metadata()["packages"].as_array().unwrap() {
        let sources = Path::new(package["manifest_path"].as_str().unwrap()).with_file_name("src");
        if sources.is_dir() {
            let imports = imports(&sources);
            for room in imports.keys().filter(|room| sources.join(room).is_dir()) {
                let circle = reached(&imports, room);
                let back = circle.iter().filter(|other| reached(&imports, other).contains(room));
                circles.extend(back.map(|other| format!("{}: {room} and {other}", package["name"])));
            }
        }
    }
    assert_eq!(circles, [""; 0], "move the item that is in the wrong folder");
}

type Imports = BTreeMap<String, BTreeSet<String>>;

fn reached<'a>(imports: &'a Imports, room: &str) -> BTreeSet<&'a String> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![room]);
    while let Some(room) = next.pop() {
        for other in imports.get(room).into_iter().flatten() {
            if reached.insert(other) {
                next.push(other);
            }
        }
    }
    reached
}

/// The modules that each module of a crate imports. `lib.rs` and `main.rs` only re-export: an item counts for the module that
/// declares it.
fn imports(sources: &Path) -> Imports {
    let mut texts = Vec::new();
    visit(sources, &mut |file| {
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let text = lines.collect::<Vec<_>>().join("\n");
        let (shipped, _) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&text, ""));
        let path = file.strip_prefix(sources).unwrap().with_extension("");
        let module: Vec<String> = path.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        texts.push((module, shipped.to_owned()));
    });
    let is_door = |module: &[String]| ["lib", "main"].contains(&module[0].as_str());
    let rooms: BTreeSet<&String> = texts.iter().map(|(module, _)| &module[0]).collect();
    let mut of_item = BTreeMap::new();
    for (_, text) in texts.iter().filter(|(module, _)| is_door(module)) {
        for exported in text.split("pub use ").skip(1) {
            let exported = exported.split(';').next().unwrap();
            let mut words = exported.split(|c: char| !c.is_alphanumeric() && c != '_');
            let room = words.next().unwrap();
            of_item.extend(words.map(|item| (item, room)));
        }
    }
    let mut imports = Imports::new();
    for (module, text) in texts.iter().filter(|(module, _)| !is_door(module)) {
        let last = module.last().unwrap();
        if last == "tests" || last == "fuzz" {
            continue;
        }
        let imported = imports.entry(module[0].clone()).or_default();
        let depth = module.len() - usize::from(last == "mod");
        for item in from_the_root(text, depth) {
            let room = *of_item.get(item).unwrap_or(&item);
            if room != module[0] && rooms.contains(&room.to_owned()) {
                imported.insert(room.to_owned());
            }
        }
    }
    imports
}

/// The items of the crate root that a module names, by `crate::` or by a `super::` for each level of its depth.
fn from_the_root(text: &str, depth: usize) -> Vec<&str> {
    let word = |text: &'_ str| -> usize {
        text.find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(text.len())
    };
    let mut items = Vec::new();
    for root in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in text.match_indices(&root) {
            let rest = &text[at + root.len()..];
            let Some(group) = rest.strip_prefix('{') else {
                items.push(&rest[..word(rest)]);
                continue;
            };
            let (mut open, mut starts) = (0, true);
            for (at, c) in group.char_indices() {
                match c {
                    '{' => open += 1,
                    '}' if open == 0 => break,
                    '}' => open -= 1,
                    ',' if open == 0 => starts = true,
                    _ if starts && !c.is_whitespace() => {
                        items.push(&group[at..at + word(&group[at..])]);
                        starts = false;
                    }
                    _ => {}
                }
            }
        }
    }
    items
}

#[test]
fn an_import_is_found_however_it_is_written() {
    let text = "use crate::{\n    a::{b, c},\n    D,\n};\nuse super::near;\nlet e = crate::e::f(super::super::g::h);";
    assert_eq!(from_the_root(text, 2), ["a", "D", "e", "g"]);
}

/// Phrases of an older style, in lower case. Prose names the thing: "a message without an account", "failed after N attempts".
const REFUSED_PHRASES: [&str; 5] = ["nobody's", "who comes", "look after", "gave up", "did not do its part"];

/// The refused phrases of a text, each with its line. A phrase may begin at the end of one line of prose and end on the next.
fn refused_phrases(text: &str) -> Vec<(usize, &'static str)> {
    let words = |line: &str| {
        line.trim()
            .trim_start_matches(['/', '!', '#', '-', '>', ' '])
            .to_ascii_lowercase()
    };
    let lines: Vec<String> = text.lines().map(words).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let next = lines.get(at + 1).map_or("", String::as_str);
        let both = format!("{line} {next}");
        for phrase in REFUSED_PHRASES {
            if both.match_indices(phrase).any(|(start, _)| start < line.len()) {
                found.push((at + 1, phrase));
            }
        }
    }
    found
}

#[test]
fn prose_has_none_of_the_refused_phrases() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut read, mut found) = (0, Vec::new());
    visit_written(root, &mut |file| {
        let name = file.strip_prefix(root).unwrap().display().to_string();
        if name != "tests/it/architecture.rs" {
            read += 1;
            for (line, phrase) in refused_phrases(&std::fs::read_to_string(file).unwrap()) {
                found.push(format!("{name}:{line}: {phrase}"));
            }
        }
    });
    assert!(read > 500, "only {read} files were read");
    assert_eq!(found, [""; 0], "write plain words");
}

#[test]
fn a_refused_phrase_is_found_however_it_is_written() {
    assert_eq!(refused_phrases("fine\n// Who comes first"), [(2, "who comes")]);
    assert_eq!(refused_phrases("    /// the relay gave\n    /// up."), [(1, "gave up")]);
    assert_eq!(refused_phrases("# It gave\n\nup"), []);
}

/// Every `.rs` and `.md` file of the repository, but for build output and hidden folders.
fn visit_written(folder: &Path, see: &mut impl FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && name != "node_modules" && !name.to_string_lossy().starts_with('.') {
                visit_written(&path, see);
            }
        } else if path
            .extension()
            .is_some_and(|extension| extension == "rs" || extension == "md")
        {
            see(&path);
        }
    }
}

fn visit(folder: &Path, see: &mut impl FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, see);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            see(&path);
        }
    }
}
