//! Models of one account that call tools with what is another person's own: a person's orchestrator, the orchestrator of a person as it answers
//! a guest, and the session of a task that an orchestrator has given away. As with requests, each attempt has a twin that names what is not
//! there.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
};

use contracts::tools::{IdOf, ToolDefinition};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use testkit::{
    Reply, Seen, Tenant, rows,
    tools::{arguments, named},
};

use super::{
    VICTIM, calm,
    generator::Ids,
    judge::Marks,
    names::{missing, replaced, spelled},
    number,
    persons::{DIGEST, OWN, ROWS, own_of},
};
use crate::{house::House, mail::receipt, orchestrators::as_person, simulation::random::Random};

/// Of each kind of session, on every change and nightly, when each name has been in each place about once in each spelling.
const ATTEMPTS: [u64; 2] = [120, 2_000];
const SEED: u64 = 20_261_129;
const CALLS_A_TURN: usize = 40;
/// Mark in what a session is told, before the number of the turn's list of calls.
const DRILL: &str = "drill-";
/// Of what has no id that a table gives: of the person `ann`.
const MORE: &str = "
    insert into task (account_id, id, display_id, title, description, status, board)
        values ('alder', 'ann-1', 'ANN-1', '{secret}', '{secret}', 'in_progress', 'user:ann');
    insert into task (account_id, id, display_id, title, description, status, board)
        values ('alder', 'bob-1', 'BOB-1', 'of bob', '', 'in_progress', 'user:alder-bob');
    update orchestrator_identity set reachable = 'delegate' where user_id = 'alder-bob';
    update account set mail_enabled = true";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Orchestrator,
    Guest,
    Child,
}

type Call = (String, String, Value);

/// A call, its twin, and what they name.
struct Attempt {
    ids: (String, String),
    names: (String, String),
    /// It is refused. Else it looks for a text, and finds none.
    is_refused: bool,
}

/// A name of the same form, of a person who is not there.
fn twin_of(name: &str) -> String {
    let other = replaced(
        name,
        &[
            ("ann".to_owned(), "zzz".to_owned()),
            ("ANN".to_owned(), "ZZZ".to_owned()),
        ],
    );
    if other == name { missing(name, VICTIM) } else { other }
}

/// A tool's arguments, with this text as one of them and own names beside it.
fn naming(tool: &ToolDefinition, foreign: &str, name: &str) -> Value {
    let id = |argument: &str, of: IdOf| match argument == foreign {
        true => name.to_owned(),
        false => named(of, "BOB-1", "coder"),
    };
    arguments(tool, |argument| argument == foreign, id, "done")
}

/// Calls with names of these, drawn from a seed, and their twins: one for all that have the same.
fn calls(foreign: &Ids, wanted: u64) -> (Vec<Call>, Vec<Attempt>) {
    let tools = contracts::tools::all();
    // What mail is about is any task of the account: members read them all.
    let mut places: Vec<(&ToolDefinition, &str)> = tools
        .iter()
        .flat_map(|tool| tool.ids.iter().map(move |(argument, _)| (tool, *argument)))
        .filter(|(_, argument)| *argument != "context_task_id")
        .collect();
    let reads = tools.iter().find(|tool| tool.name == "memory_read").expect("a tool");
    places.push((reads, "query"));
    let names: Vec<&String> = foreign.values().flatten().collect();
    let mut random = Random::new(number("CROSSING_SEED", SEED));
    let (mut calls, mut attempts, mut known) = (Vec::new(), Vec::new(), HashMap::new());
    let mut call = |name: &str, arguments: Value| {
        let id = format!("call-{}", calls.len());
        calls.push((id.clone(), name.to_owned(), arguments));
        id
    };
    for _ in 0..wanted {
        let (tool, argument) = *random.pick(&places);
        let is_refused = argument != "query";
        let name: &String = random.pick::<&String>(&names);
        let name = spelled(name, &mut random);
        let twin = twin_of(&name);
        let arguments = |name: &str| match is_refused {
            true => naming(tool, argument, name),
            false => json!({"query": name}),
        };
        let ours = call(tool.name, arguments(&name));
        let arguments = arguments(&twin);
        let twins = known
            .entry((tool.name, arguments.to_string()))
            .or_insert_with(|| call(tool.name, arguments))
            .clone();
        attempts.push(Attempt {
            ids: (ours, twins),
            names: (name, twin),
            is_refused,
        });
    }
    (calls, attempts)
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

/// Tells the session, and waits for its turn.
async fn drill(house: &House, tenant: &Tenant, (kind, guest): (Kind, &str), drill: usize) {
    let content = format!("{DRILL}{drill}");
    match kind {
        Kind::Orchestrator => {
            let path = format!("/api/sessions/orchestrator:{VICTIM}-bob/prompt");
            let prompt = json!({"content": content});
            let told = as_person(house, Method::POST, &tenant.keys["person"], &path, Some(prompt)).await;
            let id = told["notification_id"].as_str().expect("an id");
            house.until(VICTIM, id, "delivered").await;
        }
        Kind::Guest => {
            let mail = json!({"to": "@bob", "content": content});
            let sent = as_person(house, Method::POST, guest, "/api/messages", Some(mail)).await;
            receipt(house, guest, &sent, "answered").await;
        }
        Kind::Child => {
            house.notify(VICTIM, "BOB-1", "coder", &content, &content).await;
            house.until(VICTIM, &content, "delivered").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_orchestrator_reaches_what_is_another_person_s_own() {
    nobody_reaches(Kind::Orchestrator).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_guest_s_session_reaches_what_is_another_person_s_own() {
    nobody_reaches(Kind::Guest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_child_reaches_what_is_another_person_s_own() {
    nobody_reaches(Kind::Child).await;
}

async fn nobody_reaches(kind: Kind) {
    let plan: Arc<OnceLock<Vec<Call>>> = Arc::default();
    let read = Arc::clone(&plan);
    let house = calm(move |seen| script(seen, read.get().map_or(&[], Vec::as_slice))).await;
    let owner = house.world.database.owner.clone();
    let tenant = Tenant::furnish(&owner, VICTIM).await;
    let secret = testkit::tenant::secret(OWN);
    for sql in [ROWS, MORE] {
        let sql = sql.replace("{secret}", &secret).replace("{account}", VICTIM);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&owner).await.unwrap();
    }
    let row = |table| rows(table).with("account_id", VICTIM);
    row("member").with("user_id", "cat").insert(&owner).await;
    let guest = tenant.own_key(&owner, "member", "cat").await;
    let persona = row("persona").with("slug", "ann-own").with("visibility", "private");
    persona.with("description", &secret).insert(&owner).await;
    rows("persona_version")
        .from("persona p where p.slug = 'ann-own'")
        .insert(&owner)
        .await;
    let mail = row("mail").with("to_user", "ann").with("content", &secret);
    mail.insert(&owner).await;

    let mut foreign = own_of(&owner).await;
    for (kind, query) in [
        (
            "mail",
            "select id::text from mail where content = 'secret-of-alder-alone'",
        ),
        ("slug", "select slug from persona where slug = 'ann-own'"),
        (
            "memory_key",
            "select key from memory where owner = 'user:ann' and content = 'secret-of-alder-alone'",
        ),
    ] {
        foreign.insert(kind, house.world.database.texts(query).await);
    }
    let more = ["ANN-1", "@ann", "orchestrator:ann"].map(str::to_owned);
    foreign.insert("address", more.to_vec());
    let marks = Marks::of(OWN, &foreign);
    let wanted = number("CROSSING_ATTEMPTS", ATTEMPTS[usize::from(crate::is_nightly())]);
    let (calls, attempts) = calls(&foreign, wanted);
    let drills = calls.len().div_ceil(CALLS_A_TURN);
    plan.set(calls).unwrap();

    let rows = async || sqlx::query_scalar::<_, String>(DIGEST).fetch_one(&owner).await.unwrap();
    let before = rows().await;
    for nth in 0..drills {
        drill(&house, &tenant, (kind, &guest), nth).await;
    }
    assert_eq!(rows().await, before, "a row of what is a person's own has changed");
    let told = house.provider.seen();
    let told: BTreeMap<String, String> = told.iter().flat_map(Seen::tool_outputs).collect();
    let mut looked_for = 0;
    for Attempt {
        ids,
        names: (name, twin),
        is_refused,
    } in &attempts
    {
        let (ours, twins) = (told[&ids.0].to_lowercase(), told[&ids.1].to_lowercase());
        let lower = |name: &str| name.trim().to_lowercase();
        let said = [(lower(name), lower(twin))];
        assert_eq!(marks.found_in(&ours, &said), None, "{name}: {ours}");
        assert!(!is_refused || ours.starts_with("{\"error\":"), "{name}: {ours}");
        let same = |text: &str, name: &str| replaced(text, &[(name.to_owned(), "<name>".to_owned())]);
        assert_eq!(same(&ours, &said[0].0), same(&twins, &said[0].1), "{name}");
        looked_for += usize::from(!ours.contains("not_offered"));
    }
    assert!(
        looked_for * 5 > attempts.len(),
        "tools that this session has: {looked_for}"
    );
    for seen in house.provider.seen() {
        assert!(!marks.secret_in(&seen.body.to_string()), "{}", seen.key);
    }
    println!(
        "{} tool calls of models, of which {looked_for} of tools that the session has",
        attempts.len()
    );
    house.close().await;
}
