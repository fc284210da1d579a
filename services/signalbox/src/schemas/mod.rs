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
    print::{complain, print, print_json},
};

pub(crate) fn run(args: &SchemasArgs, json: bool) -> anyhow::Result<ExitCode> {
    let wanted = all().context("the schemas cannot be generated")?;
    if !args.check {
        let written = files::write(&args.dir, &wanted)?;
        if json {
            print_json(&json!({ "written": written }))?;
        } else if written.is_empty() {
            print(&format!("{} is current", args.dir.display()))?;
        } else {
            print(&format!("{}: wrote {}", args.dir.display(), written.join(", ")))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let drift = files::drift(&args.dir, &wanted)?;
    if json {
        print_json(&json!({ "drift": drift }))?;
    } else if drift.is_empty() {
        print(&format!("{} is current", args.dir.display()))?;
    } else {
        for line in &drift {
            complain(line);
        }
        complain("run `make schemas` and commit what it writes");
    }
    Ok(if drift.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
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
