//! Models that call tools with another account's things. As with requests, each attempt has a twin that names an unknown thing.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use contracts::tools::ToolDefinition;
use serde_json::Value;
use testkit::{
    Reply, Seen,
    tools::{arguments, named},
};

use super::{
    ATTACKER, VICTIM,
    generator::Ids,
    inside::Inside,
    names::{missing, replaced},
};

/// A turn may have 64 calls; with fewer, turns end sooner.
const CALLS_A_TURN: usize = 20;
/// One task of many, and the coordinator's chat, whose tools reach further.
const TASK: &str = "LIVE-1";
const CHAT: &str = "CHAT";
/// Mark in a notification's text, before the number of the turn's list of calls.
const DRILL: &str = "drill-";

type Call = (String, String, Value);

/// A foreign name in a call, and its twin: the ids of both calls, and the replacements of names.
struct Pair {
    ids: (String, String),
    names: (String, String),
}

/// Calls of every tool with every foreign name in every argument that takes a name.
fn calls(foreign: &Ids) -> (Vec<Call>, Vec<Pair>) {
    let (mut calls, mut pairs) = (Vec::new(), Vec::new());
    let tools = contracts::tools::all();
    let said: Vec<(&str, String)> = tools
        .iter()
        .flat_map(|tool| tool.ids.iter().map(move |(argument, _)| (tool, *argument)))
        .map(|(tool, foreign)| (tool.name, naming(tool, foreign).to_string()))
        .collect();
    for (nth, (name, is_asked_for)) in foreign
        .iter()
        .flat_map(|(kind, names)| {
            let is_asked_for = ["task", "agent", "session_key"].contains(kind);
            let names = names.iter().take(if is_asked_for { 2 } else { 1 });
            names.map(move |name| (name, is_asked_for))
        })
        .enumerate()
    {
        let twin = missing(name, VICTIM);
        for (place, (tool, arguments)) in said.iter().enumerate() {
            // Names that no tool asks for: each tool gets a third of them, and all nightly.
            if !is_asked_for && !crate::is_nightly() && (nth + place) % 3 != 0 {
                continue;
            }
            let mut call = |name: &str| {
                let id = format!("call-{}", calls.len());
                let arguments = arguments.replace("{any}", name);
                calls.push((
                    id.clone(),
                    (*tool).to_owned(),
                    serde_json::from_str(&arguments).unwrap(),
                ));
                id
            };
            let ids = (call(name), call(&twin));
            pairs.push(Pair {
                ids,
                names: (name.clone(), twin.clone()),
            });
        }
    }
    (calls, pairs)
}

/// A tool's arguments, with a foreign name as this argument and own names beside it.
fn naming(tool: &ToolDefinition, foreign: &str) -> Value {
    let id = |argument: &str, of| match of {
        _ if argument == foreign => "{any}".to_owned(),
        _ => named(of, TASK, "coder"),
    };
    arguments(tool, |argument| argument == foreign, id, "done")
}

fn script(seen: &Seen, calls: &[Call]) -> Reply {
    let text = seen.body.to_string();
    match text.rsplit_once(DRILL) {
        Some((_, number)) if seen.tool_outputs().is_empty() => {
            let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
            let drill: usize = digits.parse().expect("a drill's number");
            Reply::Calls(calls.chunks(CALLS_A_TURN).nth(drill).expect("a drill's calls").to_vec())
        }
        Some(_) | None => Reply::text("ok"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_model_crosses_by_any_tool_of_a_task() {
    no_model_crosses(TASK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_model_crosses_by_any_tool_of_the_chat() {
    no_model_crosses(CHAT).await;
}

async fn no_model_crosses(task: &str) {
    let plan: Arc<OnceLock<Vec<Call>>> = Arc::default();
    let read = Arc::clone(&plan);
    let inside = Inside::open(move |seen| script(seen, read.get().map_or(&[], Vec::as_slice))).await;
    let (calls, pairs) = calls(&inside.foreign);
    let drills = 0..calls.len().div_ceil(CALLS_A_TURN);
    plan.set(calls).unwrap();
    for drill in drills.clone() {
        let (id, text) = (format!("{task}-{drill}"), format!("{DRILL}{drill}"));
        inside.house.notify(ATTACKER, task, "coder", &id, &text).await;
    }
    for drill in drills {
        inside
            .house
            .until(ATTACKER, &format!("{task}-{drill}"), "delivered")
            .await;
    }
    let told = inside.house.provider.seen();
    let told: BTreeMap<String, String> = told.iter().flat_map(Seen::tool_outputs).collect();
    for Pair { ids, names } in &pairs {
        let (ours, twins) = (&told[&ids.0], &told[&ids.1]);
        assert_eq!(
            inside.marks.found_in(ours, std::slice::from_ref(names)),
            None,
            "{task}: {ours}"
        );
        assert!(ours.starts_with("{\"error\":"), "{task}: {names:?}: {ours}");
        let same = |text: &str, name: &str| replaced(text, &[(name.to_owned(), "<name>".to_owned())]);
        assert_eq!(same(ours, &names.0), same(twins, &names.1), "{task}");
    }
    println!("{} tool calls of models beside their twins", pairs.len());
    inside.close().await;
}
