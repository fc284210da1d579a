//! Checks the documents against the repository: links have targets, files on the map exist, and every decision and runbook is
//! listed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Build output, downloads, and git's own folder.
const NOT_OURS: &[&str] = &["target", "node_modules", ".git", ".tools", ".data"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !NOT_OURS.contains(&name.as_str()) {
            files(&path, ending, found);
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
}

/// The texts between each pair of marks.
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
    files(&root(), ".md", &mut all);
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
        // A folder name (`handlers/`) stands for a folder in any service.
        .filter(|name| name.trim_end_matches('/').contains('/') && !name.contains(['{', '*', '<', ' ']))
        .collect();
    assert!(paths.len() > 60, "the map was read");
    let missing: Vec<_> = paths
        .into_iter()
        .filter(|path| !places(path).iter().any(|place| place.exists()))
        .collect();
    assert_eq!(missing, [""; 0]);
}

/// `tests/it/{pages,plans}.rs` stands for two files.
fn each(name: &str) -> Vec<String> {
    match name
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        Some((before, (inside, after))) => inside.split(',').map(|one| format!("{before}{one}{after}")).collect(),
        None => vec![name.to_owned()],
    }
}

/// Each promise in SECURITY.md names its tests, and they exist: files by path or name, tests by name.
#[test]
fn every_promise_of_security_names_tests_that_exist() {
    let text = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let (mut without, mut promises, mut in_promises) = (Vec::new(), 0, false);
    for line in text.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        if !line.starts_with('|') {
            in_promises = false;
        } else if cells.last().is_some_and(|last| last.trim() == "tested by") {
            in_promises = true;
        } else if in_promises && !line.starts_with("|---") {
            promises += 1;
            let tested_by = cells.last().unwrap();
            if cells.len() != 3 || !(tested_by.contains('`') || tested_by.contains("there")) {
                without.push(line);
            }
        }
    }
    assert_eq!(without, [""; 0], "promises without a test");
    assert!(promises > 40, "{promises} promises were read");

    let mut sources = Vec::new();
    files(&root(), ".rs", &mut sources);
    let code: String = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let named: BTreeSet<&str> = between(&text, "`", "`").into_iter().collect();
    let files_named = named
        .iter()
        .filter(|name| name.ends_with(".rs"))
        .flat_map(|name| each(name));
    let is_there = |name: &String| match name.contains('/') {
        true => places(name).iter().any(|place| place.exists()),
        false => sources
            .iter()
            .any(|path| path.file_name().unwrap().to_str() == Some(name)),
    };
    let missing: Vec<String> = files_named.filter(|name| !is_there(name)).collect();
    assert_eq!(missing, [""; 0], "files");
    let is_test = |name: &&&str| {
        let plain = name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        plain && name.matches('_').count() >= 4 && !name.ends_with("_max") && !name.ends_with("_total")
    };
    let tests: Vec<&&str> = named.iter().filter(is_test).collect();
    assert!(tests.len() > 5, "{tests:?}");
    let missing: Vec<_> = tests
        .iter()
        .filter(|name| !code.contains(&format!("fn {name}(")))
        .collect();
    assert!(missing.is_empty(), "tests: {missing:?}");
}

/// The routes that a cell of the table names, each with its methods, none for any: `…` stands for the path that was named last, for one of
/// its objects, or for what is above it. Each as the paths that it may be, without the names of parameters.
fn routes_named(cell: &str) -> Vec<(String, Vec<String>)> {
    let (mut base, mut named) = (String::new(), Vec::new());
    for words in between(cell, "`", "`") {
        let Some(begins) = words.find(['/', '…']) else {
            continue;
        };
        let (methods, path) = words.split_at(begins);
        let paths = match path.strip_prefix('…') {
            Some(rest) => {
                let above = base.match_indices('/').skip(3).map(|(end, _)| base[..end].to_owned());
                let starts = above.chain([base.clone(), format!("{base}/{{}}")]);
                starts.map(|start| plain(&(start + rest))).collect()
            }
            None => {
                base = path.to_owned();
                vec![plain(path)]
            }
        };
        named.push((methods.trim().to_lowercase(), paths));
    }
    named
}

/// A path without the names of its parameters.
fn plain(path: &str) -> String {
    let parts: Vec<&str> = path
        .split('/')
        .map(|part| if part.starts_with('{') { "{}" } else { part })
        .collect();
    parts.join("/")
}

/// What is said to be built is there, and what is to come is not, and is said to come with a part.
#[test]
fn the_routes_and_tools_of_people_are_as_the_document_says() {
    let text = fs::read_to_string(root().join("docs/routes-and-tools.md")).unwrap();
    let described = fs::read_to_string(root().join("schemas/openapi.json")).unwrap();
    let described: serde_json::Value = serde_json::from_str(&described).unwrap();
    let mut served: BTreeSet<(String, String)> = BTreeSet::new();
    for (path, methods) in described["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap().keys();
        served.extend(methods.map(|method| (method.clone(), plain(path))));
    }
    // Those of browsers are not in the document of the API.
    let pages = fs::read_to_string(root().join("services/orchestrator/src/sign_in/mod.rs")).unwrap();
    for route in between(&pages, ".route(\"", "))") {
        let (path, handler) = route.split_once("\", ").unwrap();
        served.insert((handler.split('(').next().unwrap().to_owned(), plain(path)));
    }
    let tools = fs::read_to_string(root().join("schemas/tools.md")).unwrap();
    let offers = |tool: &str| tools.contains(&format!("\n| `{tool}` |"));
    let (mut wrong, mut asked) = (Vec::new(), 0);
    for row in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let state = cells.last().unwrap();
        let is_built = state.starts_with("built") || state.starts_with("as `");
        if !is_built && state.strip_prefix("to come: ").is_none_or(str::is_empty) {
            wrong.push(format!("{row}: neither built nor to come with a part"));
        }
        if let [names, _, _] = cells[..] {
            for tool in between(names, "`", "`") {
                asked += 1;
                if offers(tool) != is_built {
                    wrong.push(tool.to_owned());
                }
            }
            continue;
        }
        let cell = if state.starts_with("as `") { state } else { cells[0] };
        for (methods, paths) in routes_named(cell) {
            // Without a method, one of any.
            for method in methods.split(' ') {
                asked += 1;
                let mut found = served.iter().filter(|(_, path)| paths.contains(path));
                if found.any(|(served, _)| method.is_empty() || served == method) != is_built {
                    wrong.push(format!("{method} {}", paths.last().unwrap()));
                }
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    assert!(asked > 100, "{asked} routes and tools were read");
}
