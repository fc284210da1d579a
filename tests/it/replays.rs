//! Replays through all services: a turn is run again, and nothing but the replay itself is there afterwards.

use std::{collections::BTreeMap, sync::Arc};

use futures::{FutureExt, StreamExt};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};
use storage::Role;
use testkit::{OPERATOR_TOKEN, Reply, Seen, World, eventually};
use tokio::sync::Semaphore;

use crate::house::House;

/// A call of a tool.
fn call(id: &str, name: &str, arguments: Value) -> (String, String, Value) {
    (id.to_owned(), name.to_owned(), arguments)
}

/// The text of the turn, and not of those before it.
fn of_turn(seen: &Seen) -> String {
    let text = seen.context.iter().rev().find_map(|item| item["content"].as_str());
    text.map_or_else(|| seen.input(), str::to_owned)
}

/// `PLEASE CALL` asks for five tools: four do something, one does not exist. A replay asks for them in another order, with one that was
/// not recorded, and without the last.
fn model(gate: &Arc<Semaphore>) -> impl Fn(&Seen) -> Reply + Send + Sync + 'static {
    let gate = Arc::clone(gate);
    move |seen| {
        let is_replay = seen.key.starts_with("replay:");
        let says = |body: &str| json!({"task_id": "T-1", "body": body});
        let reply = match (seen.tool_outputs().is_empty(), of_turn(seen).contains("PLEASE CALL")) {
            (true, true) if is_replay => Reply::Calls(vec![
                call("r-1", "task_message", says("one")),
                call("r-2", "task_message", says("two")),
                call("r-3", "task_history", json!({"task_id": "T-1"})),
                call("r-4", "task_message", says("never said")),
                call("r-5", "no_such_tool", json!({})),
            ]),
            (true, true) => Reply::Calls(vec![
                call("c-1", "task_message", says("one")),
                call("c-2", "task_history", json!({"task_id": "T-1"})),
                call("c-3", "task_message", says("two")),
                call("c-4", "task_context_write", json!({"body": "We build a parser."})),
                call("c-5", "no_such_tool", json!({})),
            ]),
            (false, _) => Reply::text("All is done."),
            (true, false) => Reply::text("Fine."),
        };
        match is_replay {
            true => Reply::Gated(Arc::clone(&gate), Box::new(reply)),
            false => reply,
        }
    }
}

/// `gate`: how many calls of replays are answered.
async fn house(settings: &[(&str, &str)]) -> (House, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let house = House::open_with(model(&gate), settings).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &["coder"]).await;
    (house, gate)
}

impl House {
    /// Runs a notification to its end; gives its turn.
    async fn ended_turn(&self, id: &str, body: &str) -> String {
        self.notify("acme", "T-1", "coder", id, body).await;
        let item = self.until("acme", id, "delivered").await;
        item["turn_id"].as_str().unwrap().to_owned()
    }

    async fn replay(&self, turn: &str, spec: Value) -> (StatusCode, Value) {
        let url = format!("{}/api/orgs/acme/turns/{turn}/replays", self.api());
        self.call(Method::POST, url, OPERATOR_TOKEN, &[], Some(spec)).await
    }

    async fn replayed(&self, turn: &str, spec: Value) -> Value {
        let (status, begun) = self.replay(turn, spec).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{begun}");
        self.replay_ends(begun["id"].as_str().unwrap()).await
    }

    async fn replay_ends(&self, id: &str) -> Value {
        let path = format!("/api/orgs/acme/replays/{id}");
        eventually("the replay has ended", || async {
            let replay = self.get(&path).await;
            ["finished", "failed"]
                .contains(&replay["state"].as_str().unwrap())
                .then_some(replay)
        })
        .await
    }

    /// A digest of every table, without what belongs to replays, and without leases and what waits for the broker.
    async fn rest(&self) -> BTreeMap<String, String> {
        let tables = self
            .world
            .database
            .texts("select tablename::text from pg_tables where schemaname = 'public' order by 1")
            .await;
        let mut rest = BTreeMap::new();
        for table in tables {
            let others = match table.as_str() {
                "replica" | "resolver_partition" | "outbox" | "replay" | "seaql_migrations" => continue,
                "session" | "notification" => "t.kind <> 'replay'",
                "turn" => {
                    "(select s.kind from session s where s.account_id = t.account_id and s.id = t.session_id) <> 'replay'"
                }
                _ => "true",
            };
            let sql = format!(
                "select coalesce(md5(string_agg(t::text, '|' order by t::text)), '') from {table} t where {others}"
            );
            let row = sqlx::query(AssertSqlSafe(sql));
            let row = row.fetch_one(&self.world.database.owner).await.unwrap();
            rest.insert(table, row.get(0));
        }
        rest
    }
}

fn matched(replay: &Value) -> Vec<(String, String)> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let calls = replay["calls"].as_array().unwrap().iter();
    calls
        .map(|call| (word(&call["name"]), word(&call["matched"])))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_of_a_turn_with_five_tools_changes_nothing_else() {
    let (house, gate) = house(&[]).await;
    gate.add_permits(Semaphore::MAX_PERMITS);
    house.ended_turn("n-0", "Hello TURQUOISE").await;
    let turn = house.ended_turn("n-1", "PLEASE CALL").await;
    let client = house.world.operator().await;
    let mut finished = client.subscribe("signalbox.event.acme.*.turn.finished").await.unwrap();
    let mut others = client.subscribe("signalbox.event.acme.>").await.unwrap();
    client.flush().await.unwrap();
    eventually("what waits for the broker is sent", || async {
        (house.world.database.count("select count(*) from outbox").await == 0).then_some(())
    })
    .await;
    let before = house.rest().await;
    let replay = house.replayed(&turn, json!({})).await;
    assert_eq!(house.rest().await, before);

    let expected = [
        ("task_message", "exact"),
        ("task_message", "moved"),
        ("task_history", "moved"),
        ("task_message", "none"),
        ("no_such_tool", "exact"),
    ]
    .map(|(name, word)| (name.to_owned(), word.to_owned()));
    assert_eq!(matched(&replay), expected);
    let shown = [
        &replay["state"],
        &replay["unused_calls"],
        &replay["reply"],
        &replay["history"],
        &replay["source_turn"],
    ];
    let fine = [
        json!("finished"),
        json!(1),
        json!("All is done."),
        json!("reassembled"),
        json!(turn),
    ];
    assert_eq!(shown.map(Value::clone), fine, "{replay}");

    // The model got what the first one got, and each answer as it was.
    let key = format!("replay:{}:acme:v1", replay["id"].as_str().unwrap());
    let asked = house.provider.seen_of(&key);
    assert_eq!(asked.len(), 2);
    assert!(asked[0].text().contains("TURQUOISE"), "{}", asked[0].text());
    let answers: BTreeMap<String, String> = asked[1].tool_outputs().into_iter().collect();
    assert!(answers["r-4"].contains("not_recorded"), "{answers:?}");
    let first = house.provider.seen();
    let recorded = first
        .iter()
        .find(|seen| seen.tool_outputs().iter().any(|(id, _)| id == "c-1"));
    let recorded: BTreeMap<String, String> = recorded.unwrap().tool_outputs().into_iter().collect();
    for (replayed, source) in [("r-1", "c-1"), ("r-2", "c-3"), ("r-3", "c-2"), ("r-5", "c-5")] {
        assert_eq!(answers[replayed], recorded[source], "{source}");
    }

    // Listeners are told of the replay, and of no turn that has ended.
    let told = eventually("its end is told", || {
        let told = others.next().now_or_never().flatten();
        async move { told.filter(|message| message.subject.ends_with(".turn.replayed")) }
    })
    .await;
    let told: Value = serde_json::from_slice(&told.payload).unwrap();
    assert_eq!(
        (&told["data"]["source_turn_id"], &told["data"]["state"]),
        (&json!(turn), &json!("finished"))
    );
    assert!(finished.next().now_or_never().is_none());

    // It is a turn that can be read, compared and audited; its key opens nothing.
    let own = replay["turn"].as_str().unwrap();
    let shown = house.get(&format!("/api/orgs/acme/turns/{own}")).await;
    assert_eq!(shown["replay_id"], replay["id"]);
    let calls = shown["tool_calls"].as_array().unwrap();
    let states: Vec<_> = calls.iter().map(|call| (&call["call_id"], &call["state"])).collect();
    let words = ["finished", "finished", "finished", "refused", "refused"].map(Value::from);
    let ids = ["r-1", "r-2", "r-3", "r-4", "r-5"].map(Value::from);
    assert_eq!(states, ids.iter().zip(&words).collect::<Vec<_>>());
    let log = format!("/api/orgs/acme/sessions/{}/log", shown["session_id"].as_str().unwrap());
    let log = house.get(&log).await;
    assert_eq!(log["segments"][0]["turns"][0]["calls"], shown["tool_calls"]);
    let diff = house.get(&format!("/api/orgs/acme/turns/{turn}/diff?with={own}")).await;
    let states: BTreeMap<&str, &str> = diff["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|layer| {
            let word = |name: &str| layer[name].as_str().unwrap();
            (word("layer"), word("state"))
        })
        .collect();
    let of = ["instructions", "context", "input", "results", "reply"].map(|layer| states.get(layer).copied());
    assert_eq!(of, ["same", "added", "same", "changed", "same"].map(Some), "{diff}");
    let audit = house.get("/api/orgs/acme/audit/isolation").await;
    assert_eq!(audit["violations"], json!([]), "{audit}");
    let session = house
        .get(&format!(
            "/api/orgs/acme/sessions/{}",
            replay["session"].as_str().unwrap()
        ))
        .await;
    assert_eq!(
        (&session["kind"], &session["close_reason"]),
        (&json!("replay"), &json!("replayed"))
    );
    let gateway = house.key("acme", "gateway").await;
    let url = format!("{}/agent/tools", house.agent_api());
    let header = [("x-openclaw-session-key", key.as_str())];
    let (status, _) = house.call(Method::GET, url, &gateway, &header, None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);

    // A replay of a replay is none.
    let (status, problem) = house.replay(own, json!({})).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("turn_is_replay"))
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_has_another_role_or_another_text() {
    let (house, gate) = house(&[]).await;
    gate.add_permits(Semaphore::MAX_PERMITS);
    let turn = house.ended_turn("n-1", "Hello").await;
    let spec = json!({"profile": {"role": "You answer in verse."}});
    let replay = house.replayed(&turn, spec.clone()).await;
    assert_eq!((&replay["spec"], &replay["history"]), (&spec, &json!("none")));
    let own = replay["turn"].as_str().unwrap();
    let diff = house
        .get(&format!("/api/orgs/acme/turns/{turn}/diff?with={own}&text=true"))
        .await;
    let layers = diff["layers"].as_array().unwrap();
    let instructions = layers.iter().find(|layer| layer["layer"] == "instructions").unwrap();
    assert!(
        instructions["diff"].as_str().unwrap().contains("You answer in verse."),
        "{instructions}"
    );

    let replay = house
        .replayed(&turn, json!({"profile": {"instructions": "Say nothing."}}))
        .await;
    let own = house
        .get(&format!("/api/orgs/acme/turns/{}", replay["turn"].as_str().unwrap()))
        .await;
    assert_eq!(own["instructions"], "Say nothing.");
    let audit = house.get("/api/orgs/acme/audit/isolation").await;
    assert_eq!(
        (&audit["violations"], &audit["unproven"]),
        (&json!([]), &json!(0)),
        "{audit}"
    );
    // A text that nobody asked for is not proven by being a replay's.
    let other = "update replay set spec = jsonb_set(spec, '{profile,instructions}', '\"Say it all.\"') where spec #>> '{profile,instructions}' is not null";
    let done = sqlx::query(other).execute(&house.world.database.owner).await.unwrap();
    assert_eq!(done.rows_affected(), 1);
    let audit = house.get("/api/orgs/acme/audit/isolation").await;
    let found = audit["violations"].as_array().unwrap();
    assert!(
        found.len() == 1 && found[0].to_string().contains("hash_mismatch"),
        "{audit}"
    );
    let list = house.get(&format!("/api/orgs/acme/turns/{turn}/replays")).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(list["items"][0]["id"], replay["id"]);
    house.close().await;
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_goes_on_from_its_rows_though_delivery_dies() {
    let points = [
        ("delivery.claim_committed", 0),
        ("delivery.outcome_written", 1),
        ("delivery.outcome_committed", 1),
    ];
    for (point, permits) in points {
        let (mut house, gate) = house(&[("replica.lease_ms", "1500")]).await;
        let turn = house.ended_turn("n-1", "PLEASE CALL").await;
        let before = house.rest().await;
        house.running(Role::Delivery).crash_at(point, 1);
        gate.add_permits(permits);
        let (_, begun) = house.replay(&turn, json!({})).await;
        house.running(Role::Delivery).crashed().await;
        house.kill(Role::Delivery);
        gate.add_permits(Semaphore::MAX_PERMITS / 2);
        house.up().await;
        let replay = house.replay_ends(begun["id"].as_str().unwrap()).await;
        assert_eq!(
            (&replay["state"], &replay["reply"]),
            (&json!("finished"), &json!("All is done.")),
            "{point}"
        );
        assert_eq!(house.rest().await, before, "{point}");
        let turns = "select count(*) from turn t join session s on s.id = t.session_id where s.kind = 'replay'";
        assert_eq!(house.world.database.count(turns).await, 1, "{point}");
        house.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_run_a_replay_once() {
    let (house, gate) = house(&[]).await;
    let turn = house.ended_turn("n-1", "PLEASE CALL").await;
    let second = house.world.run(Role::Delivery, delivery::start).await;
    let before = house.rest().await;
    let mut begun = Vec::new();
    for _ in 0..4 {
        begun.push(house.replay(&turn, json!({})).await.1);
    }
    let (status, problem) = house.replay(&turn, json!({})).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::TOO_MANY_REQUESTS, &json!("too_many_replays"))
    );
    gate.add_permits(Semaphore::MAX_PERMITS);
    for one in &begun {
        let replay = house.replay_ends(one["id"].as_str().unwrap()).await;
        assert_eq!(replay["state"], "finished", "{replay}");
        let key = format!("replay:{}:acme:v1", one["id"].as_str().unwrap());
        assert_eq!(house.provider.seen_of(&key).len(), 2);
    }
    assert_eq!(house.rest().await, before);
    second.stop().await;
    house.close().await;
}

/// What its settings say of effects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_is_not_run_again_where_that_would_have_effects() {
    let provider = testkit::StubProvider::start(|_| Reply::text("ok")).await;
    let mut world = World::start().await;
    world.provider(&provider);
    world.set("providers.hands.url", format!("{}/v1/responses", provider.url()));
    world.set("providers.hands.model", "m");
    world.set("providers.hands.effects", "own");
    let house = House::open_in(world, provider).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &["coder"]).await;
    let turn = house.ended_turn("n-1", "Hello").await;
    for (provider, code) in [("hands", "provider_has_effects"), ("none", "unknown_provider")] {
        let (status, problem) = house.replay(&turn, json!({"provider": provider})).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!(code))
        );
    }
    assert_eq!(house.world.database.count("select count(*) from replay").await, 0);
    house.close().await;
}
