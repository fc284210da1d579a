//! The audit of isolation over what all services have written: every source that a prompt has today, while sessions close, and a sentence
//! of another account.

use std::{collections::BTreeMap, time::Duration};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use testkit::{OPERATOR_TOKEN, Reply, Says, Seen, StubModel, eventually};

use crate::house::House;

const LOOKS_UP: &str = "please look it up";
const HOLDS: &str = "please hold";
const STEERS: &str = "steers";

/// Looks a task up where a notification asks for it, and takes its time where one asks for that.
fn script(seen: &Seen) -> Reply {
    let last = seen.context.last().cloned().unwrap_or_default().to_string();
    if last.contains("function_call_output") {
        return Reply::text(&format!("answer {}", seen.order));
    }
    if last.contains(LOOKS_UP) {
        let task = last
            .split_once("\\nTask: ")
            .map_or("", |(_, rest)| rest.split("\\n").next().unwrap_or_default());
        return Reply::call(&format!("c{}", seen.order), "task_history", json!({"task_id": task}));
    }
    // The turn of the steer is told of the one that it ended.
    if last.contains(HOLDS) && !last.contains(STEERS) {
        return Reply::After(Duration::from_secs(20), Box::new(Reply::text("held")));
    }
    Reply::text(&format!("answer {}", seen.order))
}

impl House {
    /// The audit of an account, all pages.
    async fn audit(&self, account: &str) -> Audited {
        let mut audited = Audited::default();
        let mut cursor = String::new();
        loop {
            let page = self
                .get(&format!("/api/orgs/{account}/audit/isolation?limit=20&cursor={cursor}"))
                .await;
            audited.turns += page["turns"].as_u64().unwrap();
            for finding in page["violations"].as_array().unwrap() {
                audited.violations.push(finding.to_string());
            }
            for finding in page["others"].as_array().unwrap() {
                let word = |name: &str| finding[name].as_str().unwrap().to_owned();
                *audited
                    .others
                    .entry(format!("{} {} {}", word("verdict"), word("reason"), word("part")))
                    .or_default() += 1;
            }
            match page["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => return audited,
            }
        }
    }

    async fn is_delivered(&self, account: &str, task: &str, id: &str, body: &str) {
        self.notify(account, task, "coder", id, body).await;
        self.until(account, id, "delivered").await;
    }

    async fn account_with(&self, account: &str, settings: Value) {
        self.account(account).await;
        let role = json!({"role": "Write code.\nKeep it short."});
        for agent in ["coder", "reviewer"] {
            self.agent(account, agent).await;
            self.patch(&format!("/api/orgs/{account}/agents/{agent}"), role.clone())
                .await;
        }
        for task in ["A-1", "A-2", "CHAT"] {
            let task = json!({"id": task, "title": format!("Title of {task}"), "description": format!("About {task}."), "assignees": ["coder"]});
            self.post(&format!("/api/orgs/{account}/tasks"), task).await;
        }
        self.patch(&format!("/api/orgs/{account}"), settings).await;
    }

    /// A life with every source that a prompt has.
    async fn lives(&self, account: &str) {
        for task in ["A-1", "A-2", "CHAT", "-"] {
            if task != "-" {
                let message = json!({"body": format!("News of {task}.\nTwo lines of \"it\".")});
                self.post(&format!("/api/orgs/{account}/tasks/{task}/messages"), message)
                    .await;
            }
            for n in 1..=3 {
                let body = if task == "-" { "beat" } else { LOOKS_UP };
                self.is_delivered(
                    account,
                    task,
                    &format!("{task}-{n}"),
                    &format!("{body}, the {n}th time"),
                )
                .await;
            }
        }
        // Several of one author together, and a steer that ends a turn.
        self.notify(account, "A-1", "coder", "held", HOLDS).await;
        self.until(account, "held", "running").await;
        let person = json!({"kind": "user", "id": "u-1", "name": "A person"});
        for (id, mode) in [("run-1", "collect"), ("run-2", "collect"), (STEERS, "steer")] {
            let item =
                json!({"id": id, "agent": "coder", "title": id, "body": "b", "queue_mode": mode, "sender": person});
            self.publish(account, "A-1", item).await;
            if mode == "collect" {
                self.until(account, id, "queued").await;
            }
        }
        for id in [STEERS, "run-1", "run-2"] {
            self.until(account, id, "delivered").await;
        }
    }
}

#[derive(Default, Debug)]
struct Audited {
    turns: u64,
    violations: Vec<String>,
    /// By verdict, reason and part.
    others: BTreeMap<String, u64>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_prompt_of_an_account_is_proven() {
    let house = House::open_with(script, &[("delivery.collect_debounce_ms", "200")]).await;
    let settings = json!({"coordinator_task": "CHAT", "briefing": "We ship on Friday."});
    house.account_with("acme", settings).await;
    house
        .account_with(
            "umbra",
            json!({"context_policy": "assembled", "instruction_layout": "inline"}),
        )
        .await;
    house.account_with("global", json!({"session_scope": "agent"})).await;
    for account in ["acme", "umbra", "global"] {
        house.lives(account).await;
    }
    let acme = house.audit("acme").await;
    assert_eq!(acme.violations, [""; 0]);
    let by_policy: Vec<&str> = acme.others.keys().map(String::as_str).collect();
    assert_eq!(
        by_policy,
        [
            "by_policy coordinator briefing",
            "by_policy coordinator coordinator",
            "by_policy coordinator overview",
        ],
        "{acme:?}"
    );
    assert!(acme.turns >= 15, "{acme:?}");
    let umbra = house.audit("umbra").await;
    assert_eq!((umbra.violations, umbra.others), (Vec::new(), BTreeMap::new()));
    let global = house.audit("global").await;
    assert_eq!(global.violations, [""; 0]);
    let shared: Vec<&str> = global.others.keys().map(String::as_str).collect();
    assert_eq!(shared, ["by_policy session_scope thread"], "{global:?}");

    // A sentence of another account in a prompt.
    let owner = &house.world.database.owner;
    let plant = "update turn set input = input || 'The other account ships on Monday.'
                 where account_id = 'acme' and id = (select max(id::text)::uuid from turn where account_id = 'acme')";
    sqlx::query(plant).execute(owner).await.unwrap();
    let found = house.audit("acme").await.violations;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("uncovered_bytes"), "{found:?}");
    house.close().await;
}

/// Whatever closes and opens meanwhile, no page has a violation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_while_sessions_close_finds_nothing() {
    let house = House::open(script).await;
    house.account_with("acme", json!({"context_policy": "assembled"})).await;
    let work = async {
        for n in 1..=6 {
            house.is_delivered("acme", "A-1", &format!("a-{n}"), LOOKS_UP).await;
            house.notify("acme", "A-1", "coder", &format!("late-{n}"), "b").await;
            house.status("acme", "A-1", "done").await;
            house.status("acme", "A-1", "in_progress").await;
            let ended = |state: &str| ["delivered", "cancelled"].contains(&state);
            eventually("it has an outcome", || async {
                let state = house.notification("acme", &format!("late-{n}")).await["state"].take();
                ended(state.as_str().unwrap_or_default()).then_some(())
            })
            .await;
        }
    };
    let audits = async {
        loop {
            let audit = house.audit("acme").await;
            assert_eq!(audit.violations, [""; 0]);
        }
    };
    tokio::select! {
        () = work => {}
        () = audits => unreachable!("it goes on"),
    }
    let audit = house.audit("acme").await;
    assert_eq!((audit.violations, audit.others), (Vec::new(), BTreeMap::new()));
    assert!(audit.turns >= 6);
    house.close().await;
}

const SPLITS: &str = "please split";
const PART: &str = "Do a part.";

/// Splits its work where a notification asks for that, with a second opinion; a replay asks for what was not recorded.
fn splitting(seen: &Seen) -> Reply {
    let text = seen.context.iter().rev().find_map(|item| item["content"].as_str());
    let text = text.map_or_else(|| seen.input(), str::to_owned);
    let is_first = seen.tool_outputs().is_empty();
    match (seen.key.starts_with("replay:"), is_first && text.contains(SPLITS)) {
        (true, true) => Reply::Calls(vec![
            (
                "r-1".to_owned(),
                "ask_model".to_owned(),
                json!({"request": "Is it right?"}),
            ),
            (
                "r-2".to_owned(),
                "task_message".to_owned(),
                json!({"task_id": "A-1", "body": "never said"}),
            ),
        ]),
        (false, true) => Reply::Calls(vec![
            (
                "c-1".to_owned(),
                "ask_model".to_owned(),
                json!({"request": "Is it right?"}),
            ),
            (
                "c-2".to_owned(),
                "subagent_spawn".to_owned(),
                json!({"subagents": [{"request": PART, "label": "one"}, {"request": PART, "context": "fork"}]}),
            ),
        ]),
        // Its parent goes on meanwhile.
        (_, false) if seen.key.starts_with("branch:") => {
            Reply::After(Duration::from_millis(1500), Box::new(Reply::text("A part is done.")))
        }
        (_, false) => Reply::text(&format!("answer {}", seen.order)),
    }
}

/// A parent, its branches, their results, an external model and replays of all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_models_and_replays_are_proven() {
    let model = StubModel::start(|_, _| Says::text("It is.")).await;
    let url = model.url();
    let models = [
        ("models.asks.kind", "openresponses"),
        ("models.asks.url", &*url),
        ("models.asks.model", "m"),
        ("models.asks.private_addresses", "true"),
    ];
    let house = House::open_with(splitting, &models).await;
    house
        .account_with(
            "acme",
            json!({"context_policy": "assembled", "task_context_layer": "always"}),
        )
        .await;
    let context = format!("{}/api/orgs/acme/tasks/A-1/context", house.api());
    let (status, _) = house
        .call(
            Method::PUT,
            context,
            OPERATOR_TOKEN,
            &[],
            Some(json!({"body": "We build a shop."})),
        )
        .await;
    assert_eq!(status, StatusCode::OK);
    house.is_delivered("acme", "A-1", "one", "begin").await;
    house.is_delivered("acme", "A-1", "split", SPLITS).await;
    house.is_delivered("acme", "A-1", "meanwhile", "go on").await;
    let owner = &house.world.database.owner;
    eventually("the branches have ended, and their parent knows", || async {
        let rows = "select count(*) from notification where kind = 'branch_result' and state = 'delivered'";
        (house.world.database.count(rows).await == 1_i64).then_some(())
    })
    .await;
    let turns: Vec<String> = house
        .world
        .database
        .texts("select id::text from turn order by id")
        .await;
    for turn in &turns {
        let url = format!("{}/api/orgs/acme/turns/{turn}/replays", house.api());
        let (status, begun) = house
            .call(Method::POST, url, OPERATOR_TOKEN, &[], Some(json!({})))
            .await;
        assert_eq!(status, StatusCode::ACCEPTED, "{begun}");
        let path = format!("/api/orgs/acme/replays/{}", begun["id"].as_str().unwrap());
        eventually("the replay has ended", || async {
            let state = house.get(&path).await["state"].take();
            (state == "finished").then_some(())
        })
        .await;
    }
    let audit = house.audit("acme").await;
    assert_eq!((audit.violations, audit.others), (Vec::new(), BTreeMap::new()));
    assert_eq!(audit.turns, 2 * turns.len() as u64);
    let kinds = house
        .world
        .database
        .texts("select distinct kind from session order by 1")
        .await;
    assert_eq!(kinds, ["branch", "replay", "task"]);

    // Foreign words in what a replay was answered, in what a branch's parent had said, and in a request to a model.
    for (plant, found) in [
        (
            r#"update turn t set journal = replace(t.journal::text, 'It is.', 'It ships on Monday.')::jsonb
               where exists (select from session s where s.id = t.session_id and s.kind = 'replay')"#,
            "tool_call/ask_model/r-1",
        ),
        (
            r#"update tool_call set arguments = '{"request": "When does it ship?"}' where name = 'ask_model'"#,
            "tool_call/ask_model/c-1",
        ),
        (
            "update task_context set body = 'We build another shop.'",
            "task_context/a-1/1",
        ),
        (r#"update branch set base = base || '{"sha256": "0f"}'"#, "base"),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(plant)).execute(owner).await.unwrap();
        let violations = house.audit("acme").await.violations;
        assert!(
            violations.iter().any(|line| line.contains(found)),
            "{found}: {violations:?}"
        );
    }
    house.close().await;
}
