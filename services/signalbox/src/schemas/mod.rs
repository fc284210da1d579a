//! `signalbox schemas`: the interface descriptions, generated from the code. [`all`] is the list. It needs no server and its output
//! is deterministic, so that a test can compare it with the committed files.

mod asyncapi;
mod files;
mod machines;
mod openapi;
mod sql;
mod tools;
mod yaml;

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Context;
use contracts::Root;
use serde_json::{Value, json};

use crate::{
    cli::SchemasArgs,
    print::{code, complain, print, print_json, show},
};

pub(crate) fn run(args: &SchemasArgs, json: bool) -> anyhow::Result<ExitCode> {
    let wanted = all().context("the schemas cannot be generated")?;
    let folder = args.dir.display();
    if !args.check {
        let written = files::write(&args.dir, &wanted)?;
        return show(json, &json!({ "written": written }), |_| {
            Ok(match written.is_empty() {
                true => format!("{folder} is current"),
                false => format!("{folder}: wrote {}", written.join(", ")),
            })
        });
    }
    let drift = files::drift(&args.dir, &wanted)?;
    if json {
        print_json(&json!({ "drift": drift }))?;
    } else if drift.is_empty() {
        print(&format!("{folder} is current"))?;
    } else {
        for line in &drift {
            complain(line);
        }
        complain("run `make schemas` and commit what it writes");
    }
    Ok(code(drift.is_empty()))
}

/// Path below the folder, with `/`, and content of every file.
fn all() -> anyhow::Result<BTreeMap<String, String>> {
    let root = Root::default();
    let mut files = BTreeMap::new();
    for message in contracts::message::MESSAGES {
        files.insert(
            format!("messages/{}.json", message.hop.kind),
            pretty(&(message.schema)()),
        );
    }
    files.insert(
        "asyncapi.yaml".to_owned(),
        yaml::document(asyncapi::HEAD, &asyncapi::document(&root)),
    );
    files.insert("openapi.json".to_owned(), pretty(&openapi::document()?));
    files.insert("database.sql".to_owned(), sql::text());
    files.insert("topology.md".to_owned(), messaging::topology::markdown(&root));
    files.insert("nats-users.conf".to_owned(), messaging::users::config_file(&root));
    files.insert("tools.md".to_owned(), tools::text());
    for (name, text) in machines::all() {
        files.insert(format!("machines/{name}.md"), text);
    }
    Ok(files)
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("JSON values have string keys") + "\n"
}
