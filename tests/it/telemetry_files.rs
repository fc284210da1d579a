//! Checks the telemetry documents: the metrics in docs/telemetry.md are those in the sources, under Prometheus' names; the
//! dashboard and the alerts use no others; every alert has a runbook that names it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// Prefixes of our metrics, as Prometheus shows them.
const OURS: [&str; 4] = ["signalbox_", "http_server_", "gen_ai_client_", "db_client_"];
const KINDS: [&str; 3] = ["counter", "gauge", "histogram"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect(path)
}

/// Rows of the tables in docs/telemetry.md: `` | `name` | kind | … ``.
pub(crate) fn documented() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for line in text("docs/telemetry.md").lines() {
        let mut cells = line.split(" | ");
        let (Some(name), Some(kind)) = (cells.next().and_then(|name| name.strip_prefix("| `")), cells.next()) else {
            continue;
        };
        let name = name.trim_end_matches('`');
        if KINDS.contains(&kind) {
            let before = found.insert(name.to_owned(), kind.to_owned());
            assert_eq!(before, None, "{name} is there twice");
        }
    }
    assert!(found.len() > 30, "the tables were read: {found:?}");
    found
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Instruments in the sources, by their names on /metrics.
fn made() -> BTreeMap<String, String> {
    let mut files = Vec::new();
    for folder in ["services", "shared"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            sources(&entry.unwrap().path().join("src"), &mut files);
        }
    }
    let mut found = BTreeMap::new();
    for file in files {
        let source = fs::read_to_string(file).unwrap();
        if !source.contains("global::meter") {
            continue;
        }
        for kind in KINDS {
            for after in source.split(&format!("{kind}(")).skip(1) {
                let Some((name, rest)) = after
                    .trim_start()
                    .strip_prefix('"')
                    .and_then(|after| after.split_once('"'))
                else {
                    continue;
                };
                let unit = match rest.split(".build()").next().unwrap() {
                    _ if kind == "counter" => "_total",
                    builder if builder.contains("with_unit(\"s\")") => "_seconds",
                    builder if builder.contains("with_unit(\"By\")") => "_bytes",
                    _ => "",
                };
                found.insert(format!("{}{unit}", name.replace('.', "_")), kind.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_metric_is_in_the_document_and_the_document_has_no_other() {
    assert_eq!(documented(), made());
}

/// Names of metrics in a query: names before braces or alone that are not labels.
fn asked_for(query: &str) -> BTreeSet<String> {
    let mut bare = String::new();
    let mut depth = 0;
    for c in query.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if depth == 0 => bare.push(c),
            _ => {}
        }
    }
    // Labels to group by.
    for word in ["by (", "ignoring (", "without (", "on ("] {
        while let Some(begin) = bare.find(word) {
            let end = begin + bare[begin..].find(')').unwrap();
            bare.replace_range(begin..=end, " ");
        }
    }
    let words = bare.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| OURS.iter().any(|prefix| word.starts_with(prefix)))
        .map(str::to_owned)
        .collect()
}

/// A histogram is three series.
fn is_there(metric: &str, documented: &BTreeMap<String, String>) -> bool {
    let base = ["_bucket", "_count", "_sum"]
        .iter()
        .find_map(|end| metric.strip_suffix(end));
    match base.and_then(|base| documented.get(base)) {
        Some(kind) => kind == "histogram",
        None => documented.get(metric).is_some_and(|kind| kind != "histogram"),
    }
}

#[test]
fn queries_are_read_as_prometheus_reads_them() {
    let check = |query: &str, metrics: &[&str]| {
        assert_eq!(
            asked_for(query),
            metrics.iter().map(|&name| name.to_owned()).collect(),
            "{query}"
        );
    };
    check("up{job=\"signalbox\"} == 0", &[]);
    check(
        "sum by (db_client_connection_state) (db_client_connection_count)",
        &["db_client_connection_count"],
    );
    check(
        "max(signalbox_a{stream=~\".+_N\"}) > 0.8 * signalbox_b",
        &["signalbox_a", "signalbox_b"],
    );
    check("rate(http_server_x_count[5m])", &["http_server_x_count"]);
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let documented = documented();
    let dashboard: Value = serde_json::from_str(&text("deploy/telemetry/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() > 20);
    for panel in panels {
        for target in panel["targets"].as_array().unwrap() {
            let asked = asked_for(target["expr"].as_str().unwrap());
            assert!(!asked.is_empty(), "{target}");
            for metric in asked {
                assert!(
                    is_there(&metric, &documented),
                    "{}: no service has {metric}",
                    panel["title"]
                );
            }
        }
    }
}

/// Of deploy/telemetry/alerts.yml: name, query, runbook.
fn alerts() -> Vec<(String, String, String)> {
    let text = text("deploy/telemetry/alerts.yml");
    let mut found = Vec::new();
    for rule in text.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap().trim();
        let query = rule.split_once("expr: ").unwrap().1;
        let query = ["\n        for:", "\n        labels:"]
            .iter()
            .filter_map(|end| query.split_once(end).map(|(query, _)| query))
            .min_by_key(|query| query.len())
            .unwrap();
        let runbook = rule.split_once("runbook: ").unwrap().1.lines().next().unwrap().trim();
        found.push((name.to_owned(), query.to_owned(), runbook.to_owned()));
    }
    assert!(found.len() > 15, "the alerts were read");
    found
}

#[test]
fn every_alert_asks_for_metrics_that_there_are_and_has_a_page_that_names_it() {
    let documented = documented();
    for (name, query, runbook) in alerts() {
        for metric in asked_for(&query) {
            assert!(is_there(&metric, &documented), "{name}: no service has {metric}");
        }
        let page = text(&runbook);
        let first = page.split("\n## ").next().unwrap();
        assert!(
            first.contains(&format!("`{name}`")),
            "{runbook} does not begin with {name}"
        );
    }
}

#[test]
fn no_page_names_an_alert_that_there_is_not() {
    let names: BTreeSet<String> = alerts().into_iter().map(|(name, ..)| name).collect();
    for entry in fs::read_dir(root().join("docs/runbooks")).unwrap() {
        let path = entry.unwrap().path();
        let page = fs::read_to_string(&path).unwrap();
        for word in page
            .split('`')
            .filter(|word| word.starts_with("Signalbox") && !word.contains([' ', '-', '\n']))
        {
            assert!(names.contains(word), "{}: there is no alert {word}", path.display());
        }
    }
}
