//! The documents say what is there: links lead somewhere, files that the map names exist, and every decision and runbook
//! is on the list. Not whether they say it well.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Built, fetched, or git's own.
const NOT_OURS: &[&str] = &["target", ".git", ".tools", ".data"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !NOT_OURS.contains(&name.as_str()) {
            documents(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// What stands between a mark and the next of another, as often as it stands there.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(open) {
        let Some((inside, behind)) = after.split_once(close) else {
            break;
        };
        found.push(inside);
        rest = behind;
    }
    found
}

#[test]
fn links_lead_somewhere() {
    let mut all = Vec::new();
    documents(&root(), &mut all);
    assert!(all.len() > 30, "the documents were found");
    let mut broken = Vec::new();
    for document in all {
        let text = fs::read_to_string(&document).unwrap();
        for link in between(&text, "](", ")") {
            let path = link.split('#').next().unwrap();
            if path.is_empty() || link.contains("://") || link.contains(char::is_whitespace) {
                continue;
            }
            if !document.parent().unwrap().join(path).exists() {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert_eq!(broken, [""; 0]);
}

#[test]
fn every_decision_and_runbook_is_on_the_list() {
    let docs = root().join("docs");
    let list = fs::read_to_string(docs.join("README.md")).unwrap();
    let listed: BTreeSet<&str> = between(&list, "](", ")").into_iter().collect();
    for folder in ["adr", "runbooks"] {
        for entry in fs::read_dir(docs.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let link = format!("{folder}/{name}");
            assert!(listed.contains(link.as_str()), "docs/README.md does not list {link}");
        }
    }
}

#[test]
fn no_two_decisions_have_one_number() {
    let mut numbers = BTreeSet::new();
    for entry in fs::read_dir(root().join("docs/adr")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let number = name.split('-').next().unwrap().to_owned();
        assert!(numbers.insert(number), "{name} has the number of another");
    }
}

/// The map shortens paths of crates: `delivery/turn/call.rs` is below `services/delivery/src/`, and
/// `delivery/tests/it/turns.rs` is below `services/`.
fn places(path: &str) -> Vec<PathBuf> {
    let root = root();
    let mut places = vec![root.join(path)];
    if let Some((a_crate, inside)) = path.split_once('/') {
        for folder in ["services", "shared"] {
            places.push(root.join(folder).join(path));
            places.push(root.join(folder).join(a_crate).join("src").join(inside));
        }
    }
    places
}

#[test]
fn the_map_names_files_that_exist() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let text = map.replace("```", "");
    let paths: BTreeSet<&str> = between(&text, "`", "`")
        .into_iter()
        .filter(|name| name.ends_with(".rs") || name.ends_with(".sql") || name.ends_with(".md") || name.ends_with('/'))
        // A name that ends where it begins to branch (`handlers/`) is a place in every service.
        .filter(|name| name.trim_end_matches('/').contains('/') && !name.contains(['{', '*', '<', ' ']))
        .collect();
    assert!(paths.len() > 60, "the map was read");
    let missing: Vec<_> = paths
        .into_iter()
        .filter(|path| !places(path).iter().any(|place| place.exists()))
        .collect();
    assert_eq!(missing, [""; 0]);
}
