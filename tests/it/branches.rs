//! Branches through all services: an agent splits its work, goes on, and gets the results; each branch knows what its parent knew when
//! it was made, and nothing younger.

use std::{collections::BTreeMap, sync::Arc};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use storage::Role;
use testkit::{OPERATOR_TOKEN, Reply, Seen, Server, StubProvider, World, eventually, rows};
use tokio::sync::Semaphore;

use crate::house::House;

/// The words after the last of these in the text.
fn asked<'a>(text: &'a str, word: &str) -> Option<Vec<&'a str>> {
    let (_, rest) = text.rsplit_once(word)?;
    Some(rest.lines().next()?.split_whitespace().collect())
}

/// The last text is that of the turn: a branch is shown its parent's turns before it.
fn of_turn(seen: &Seen) -> String {
    let text = seen.context.iter().rev().find_map(|item| item["content"].as_str());
    text.map_or_else(|| seen.input(), str::to_owned)
}

/// `PLEASE SPLIT 2 all snapshot` makes two branches; each says that its part is done, once the gate lets it. In a branch, too.
fn model(gate: &Arc<Semaphore>) -> impl Fn(&Seen) -> Reply + Send + Sync + 'static {
    let gate = Arc::clone(gate);
    move |seen| {
        let input = of_turn(seen);
        let answered = !seen.tool_outputs().is_empty();
        let reply = match asked(&input, "PLEASE SPLIT ") {
            Some(words) if !answered => {
                let count: usize = words[0].parse().expect("a number");
                let part =
                    |n| json!({"request": format!("Do part {n}."), "label": format!("part {n}"), "context": words[2]});
                let subagents: Vec<Value> = (1..=count).map(part).collect();
                let id = format!("c-{}", seen.order);
                return Reply::call(&id, "subagent_spawn", json!({"subagents": subagents, "join": words[1]}));
            }
            Some(_) => Reply::text("It is split."),
            None => match asked(&input, "Do part ") {
                Some(words) => Reply::text(&format!("Part {} is done.", words[0].trim_end_matches('.'))),
                None => Reply::text(&format!("reply {}", seen.order)),
            },
        };
        match seen.key.starts_with("branch:") {
            true => Reply::Gated(Arc::clone(&gate), Box::new(reply)),
            false => reply,
        }
    }
}

/// `gate`: how many branches may answer.
async fn house(settings: &[(&str, &str)]) -> (House, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let house = House::open_with(model(&gate), settings).await;
    furnish(&house).await;
    (house, gate)
}

async fn furnish(house: &House) {
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &["coder"]).await;
    let url = format!("{}/api/orgs/acme/tasks/T-1/context", house.api());
    let context = json!({"body": "We build a parser for invoices."});
    let (status, _) = house.call(Method::PUT, url, OPERATOR_TOKEN, &[], Some(context)).await;
    assert_eq!(status, StatusCode::OK);
}

impl House {
    /// Runs a notification to its end.
    async fn deliver(&self, id: &str, body: &str) {
        self.notify("acme", "T-1", "coder", id, body).await;
        self.until("acme", id, "delivered").await;
    }

    /// Oldest first.
    async fn branches(&self) -> Vec<Value> {
        let mut branches = self.get("/api/orgs/acme/tasks/T-1/branches").await["items"]
            .as_array()
            .unwrap()
            .clone();
        branches.sort_by_key(|branch| branch["created_at"].to_string() + &branch["ordinal"].to_string());
        branches
    }

    /// Waits until the branches are in these states, oldest first.
    async fn branches_are(&self, expected: &[&str]) -> Vec<Value> {
        eventually(&format!("the branches are {expected:?}"), || async {
            let branches = self.branches().await;
            let states: Vec<&str> = branches
                .iter()
                .map(|branch| branch["state"].as_str().unwrap())
                .collect();
            (states == expected).then_some(branches)
        })
        .await
    }

    /// The bodies of the items that bring results, oldest first, once there are so many.
    async fn results(&self, count: usize) -> Vec<String> {
        let sql = "select body from notification where kind = 'branch_result' and state = 'delivered' order by created_at, id";
        eventually(&format!("{count} items bring results"), || async {
            let bodies = self.world.database.texts(sql).await;
            (bodies.len() == count).then_some(bodies)
        })
        .await
    }

    /// What its first request showed the model of the branch.
    fn shown(&self, branch: &Value) -> String {
        let key = format!("branch:{}:", branch["id"].as_str().unwrap());
        let seen = self.provider.seen();
        seen.iter()
            .find(|seen| seen.key.starts_with(&key))
            .expect("it was asked")
            .text()
    }

    async fn ends_once(&self, count: i64) {
        let wrong = "
            select b.id::text from branch b left join session s on s.id = b.session_id
            where b.state = 'live' or s.closed_at is null
               or (select count(*) from notification n where n.id = b.joined_item) <> 1";
        assert_eq!(self.world.database.texts(wrong).await, Vec::<String>::new());
        let count_of = "select count(*) from branch";
        assert_eq!(self.world.database.count(count_of).await, count);
        let items = "select count(*) from notification where kind = 'branch_result'";
        let named = "select count(distinct joined_item) from branch";
        assert_eq!(
            self.world.database.count(items).await,
            self.world.database.count(named).await
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_knows_what_its_parent_knew_and_nothing_younger() {
    // Without it nothing is counted.
    let settings = runtime::Settings::load_from("", Vec::<(String, String)>::new()).unwrap();
    let _guard = runtime::telemetry::init("system-test", &settings.telemetry).unwrap();
    let (house, gate) = house(&[]).await;
    house.deliver("n-1", "The first thing is TURQUOISE.").await;
    // T = 0: two branches start, and their parent goes on.
    house.deliver("n-2", "PLEASE SPLIT 2 all snapshot").await;
    let branches = house.branches_are(&["live", "live"]).await;
    house.deliver("n-3", "The third thing is MAGENTA.").await;
    let next = house.get("/api/orgs/acme/tasks/T-1/next").await;
    assert_eq!(
        (&next["code"], &next["on"]),
        (&json!("waiting"), &json!("branches")),
        "{next}"
    );
    // Both end, and their parent is told once.
    gate.add_permits(2);
    house.branches_are(&["finished", "finished"]).await;
    let results = house.results(1).await;
    for part in [
        "1. \"part 1\" (coder): finished\n> Part 1 is done.",
        "2. \"part 2\" (coder): finished\n> Part 2 is done.",
    ] {
        assert!(results[0].contains(part), "{}", results[0]);
    }
    // A third starts from what its parent knows by then.
    house.deliver("n-5", "PLEASE SPLIT 1 each snapshot").await;
    gate.add_permits(1);
    let all = house.branches_are(&["finished", "finished", "finished"]).await;
    house.results(2).await;

    let says = |branch: &Value, word: &str| house.shown(branch).contains(word);
    for branch in &branches {
        assert!(
            says(branch, "TURQUOISE") && says(branch, "PLEASE SPLIT 2"),
            "{}",
            house.shown(branch)
        );
        assert!(!says(branch, "MAGENTA"), "{}", house.shown(branch));
        assert!(
            says(branch, "We build a parser for invoices."),
            "{}",
            house.shown(branch)
        );
        assert_eq!(branch["base"]["sha256"], all[0]["base"]["sha256"], "one call, one base");
    }
    assert!(
        says(&all[2], "MAGENTA") && says(&all[2], "Part 2 is done."),
        "{}",
        house.shown(&all[2])
    );
    // The answers of branches are no messages, and the parent's thread at its provider has none of their turns.
    let thread = house.get("/api/orgs/acme/tasks/T-1/messages").await.to_string();
    assert!(thread.contains("reply ") && !thread.contains("is done."), "{thread}");

    let graph = house.get("/api/orgs/acme/tasks/T-1/graph").await;
    let named = names(&graph, &all);
    let edges: Vec<String> = list(&graph["edges"])
        .iter()
        .map(|edge| {
            format!(
                "{} {}-{}",
                edge["kind"].as_str().unwrap(),
                named[&id(&edge["from"])],
                named[&id(&edge["to"])]
            )
        })
        .collect();
    let mut edges: Vec<&str> = edges.iter().map(String::as_str).collect();
    edges.sort_unstable();
    assert_eq!(
        edges,
        [
            "folded A1-P4",
            "folded B1-P4",
            "folded C1-P6",
            "next P1-P2",
            "next P2-P3",
            "next P3-P4",
            "next P4-P5",
            "next P5-P6",
            "spawned P2-A1",
            "spawned P2-B1",
            "spawned P5-C1"
        ]
    );
    let knew = |name: &str| -> Vec<&str> {
        let node = list(&graph["nodes"])
            .iter()
            .find(|node| named[&id(&node["turn"])] == name)
            .unwrap();
        let sources = list(&node["knew"]).iter().map(|source| source.as_str().unwrap());
        sources
            .filter_map(|source| named.get(source.strip_prefix("turn/")?).map(String::as_str))
            .collect()
    };
    assert_eq!((knew("A1"), knew("B1")), (vec!["P1", "P2"], vec!["P1", "P2"]));
    assert_eq!(knew("C1"), ["P1", "P2", "P3", "P4", "P5"]);
    let metrics = runtime::telemetry::metrics_text();
    let ended = metrics
        .lines()
        .filter(|line| line.starts_with("signalbox_branches_ended_total{") && line.contains("state=\"finished\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    assert_eq!(ended.sum::<f64>(), 3.0, "{metrics}");
    house.ends_once(3).await;
    house.close().await;
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

fn id(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// `P3` is the parent's third turn, `B1` the second branch's first.
fn names(graph: &Value, branches: &[Value]) -> BTreeMap<String, String> {
    let letter = |branch: &Value| match branches.iter().position(|one| one["id"] == *branch) {
        Some(at) => ["A", "B", "C"][at],
        None => "P",
    };
    let nodes = list(&graph["nodes"]).iter();
    nodes
        .map(|node| {
            (
                id(&node["turn"]),
                format!("{}{}", letter(&node["branch"]), node["number"]),
            )
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_ends_a_branch_and_looks_at_the_others() {
    let (house, gate) = house(&[("tool_gateway.branch_depth_max", "2")]).await;
    house.deliver("n-1", "PLEASE SPLIT 3 all snapshot").await;
    let branches = house.branches_are(&["live", "live", "live"]).await;
    let url = |branch: &Value| format!("{}/api/orgs/acme/branches/{}/cancel", house.api(), id(&branch["id"]));
    let cancel = json!({"reason": "not needed"});
    let (status, cancelled) = house
        .call(
            Method::POST,
            url(&branches[1]),
            OPERATOR_TOKEN,
            &[("idempotency-key", "k")],
            Some(cancel),
        )
        .await;
    assert_eq!(
        (status, &cancelled["state"], &cancelled["detail"]),
        (StatusCode::OK, &json!("cancelled"), &json!("by Operator: not needed")),
        "{cancelled}"
    );
    let parent = id(&branches[0]["parent_session_id"]);
    let open = house.sessions("acme", &format!("parent={parent}&active=true")).await;
    assert_eq!(open.len(), 2);
    assert!(
        open.iter()
            .all(|session| session["kind"] == "branch" && session["parent_session_id"] == parent.as_str())
    );
    gate.add_permits(3);
    let ended = house.branches_are(&["finished", "cancelled", "finished"]).await;
    let results = house.results(1).await;
    assert!(
        results[0].contains("2. \"part 2\" (coder): cancelled\n> by Operator: not needed"),
        "{}",
        results[0]
    );
    let joined: Vec<&Value> = ended.iter().map(|branch| &branch["joined_item"]).collect();
    assert!(
        joined.iter().all(|item| *item == joined[0] && item.is_string()),
        "{joined:?}"
    );
    // It has ended: nothing changes.
    let (status, again) = house
        .call(Method::POST, url(&branches[1]), OPERATOR_TOKEN, &[], Some(json!({})))
        .await;
    assert_eq!(
        (status, &again["ended_at"]),
        (StatusCode::OK, &cancelled["ended_at"]),
        "{again}"
    );
    let sent = house.get("/api/orgs/acme/sessions?active=true").await;
    assert!(!sent.to_string().contains("\"branch\""), "{sent}");
    house.ends_once(3).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_ends_the_branches_of_the_generation_with_its_turn() {
    let (house, gate) = house(&[]).await;
    house.deliver("n-1", "PLEASE SPLIT 2 all snapshot").await;
    let branches = house.branches_are(&["live", "live"]).await;
    let parent = id(&branches[0]["parent_session_id"]);
    let reset = json!({"reason": "it is confused"});
    let url = format!("{}/api/orgs/acme/sessions/{parent}/reset", house.api());
    let (status, answer) = house
        .call(
            Method::POST,
            url,
            OPERATOR_TOKEN,
            &[("idempotency-key", "k")],
            Some(reset),
        )
        .await;
    assert!(status.is_success(), "{answer}");
    gate.add_permits(2);
    house.branches_are(&["cancelled", "cancelled"]).await;
    house.deliver("n-2", "Go on.").await;
    let items = "select count(*) from notification where kind = 'branch_result'";
    assert_eq!(
        house.world.database.count(items).await,
        0,
        "the next generation knows nothing of them"
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_of_a_branch_folds_into_it() {
    let settings = [("tool_gateway.branch_depth_max", "2")];
    let gate = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
    // The first part is split once more.
    let usual = model(&gate);
    let script = move |seen: &Seen| {
        let is_first = seen.nth_of_key == 0 && of_turn(seen).contains("Do part 1.");
        match seen.key.starts_with("branch:") && is_first {
            true => {
                let further = json!({"subagents": [{"request": "Do part 9.", "label": "part 9"}]});
                Reply::call("c-9", "subagent_spawn", further)
            }
            false => usual(seen),
        }
    };
    let house = House::open_with(script, &settings).await;
    furnish(&house).await;
    house.deliver("n-1", "PLEASE SPLIT 1 all snapshot").await;
    eventually("both have ended", || async {
        let branches = house.branches().await;
        let done = branches.iter().filter(|branch| branch["state"] == "finished").count();
        (branches.len() >= 2 && done == branches.len()).then_some(())
    })
    .await;
    let depths: Vec<i64> = house
        .branches()
        .await
        .iter()
        .map(|branch| branch["depth"].as_i64().unwrap())
        .collect();
    assert!(depths.contains(&1) && depths.contains(&2), "{depths:?}");
    eventually("the parent has its result", || async {
        let told = "select count(*) from notification n join session s on s.id = n.session_id
                    where n.kind = 'branch_result' and n.state = 'delivered' and s.kind = 'task'";
        (house.world.database.count(told).await == 1).then_some(())
    })
    .await;
    house.ends_once(i64::try_from(depths.len()).unwrap()).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_goes_on_from_its_parent_s_thread() {
    let gate = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
    let provider = StubProvider::like(Server::OpenAi, model(&gate)).await;
    let mut world = World::start().await;
    world.provider(&provider);
    world.set("providers.default.server", "openai");
    world.set("providers.default.thread", "durable");
    let house = House::open_in(world, provider).await;
    furnish(&house).await;
    let posted = async |count: usize| {
        for n in 0..count {
            let row = rows("message").with("body", format!("News {n}"));
            row.set("account_id", "k.account_id")
                .set("task_id", "k.id")
                .set("id", "gen_random_uuid()")
                .from("task k")
                .insert(&house.world.database.owner)
                .await;
        }
    };
    posted(7).await;
    house.deliver("n-1", "The first thing is TURQUOISE.").await;
    posted(2).await;
    // Shown by the turn that makes the fork: the fork goes on from the response before.
    sqlx::query("update task set description = 'All is OCHRE.'")
        .execute(&house.world.database.owner)
        .await
        .unwrap();
    house.deliver("n-2", "PLEASE SPLIT 1 all fork").await;
    house.branches_are(&["finished"]).await;
    house.results(1).await;
    // This server is sent a hash of the session's key: the branch is known by its request.
    let seen = house.provider.seen();
    let asked = seen
        .iter()
        .find(|seen| of_turn(seen).contains("Do part 1."))
        .expect("it was asked");
    let at = house.world.database.texts("select base ->> 'thread' from branch").await;
    assert_eq!(asked.body["previous_response_id"].as_str(), Some(at[0].as_str()));
    assert!(
        asked.input().contains("PLEASE SPLIT 1"),
        "the turn that made it is not in that thread: {}",
        asked.input()
    );
    assert!(
        !asked.input().contains("TURQUOISE"),
        "what is in the thread is not told again: {}",
        asked.input()
    );
    for told in ["OCHRE", "News 0", "News 1", "since your last turn: 2 of 2"] {
        assert!(
            asked.input().contains(told),
            "{told} is in no thread: {}",
            asked.input()
        );
    }
    assert!(
        !asked.input().contains("News 2"),
        "it is in the thread: {}",
        asked.input()
    );
    let known = serde_json::to_string(&asked.context).unwrap();
    assert!(known.contains("TURQUOISE"), "{known}");
    house.ends_once(1).await;
    house.close().await;
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spawn_makes_its_branches_once_though_its_service_dies_on_either_side_of_the_commit() {
    for (point, left) in [("tool_gateway.effect_written", 0), ("tool_gateway.effect_committed", 2)] {
        let (mut house, gate) = house(&[]).await;
        gate.add_permits(Semaphore::MAX_PERMITS);
        house.running(Role::ToolGateway).crash_at(point, 1);
        house
            .notify("acme", "T-1", "coder", "n-1", "PLEASE SPLIT 2 all snapshot")
            .await;
        house.running(Role::ToolGateway).crashed().await;
        house.kill(Role::ToolGateway);
        assert_eq!(
            house.world.database.count("select count(*) from branch").await,
            left,
            "{point}"
        );
        house.up().await;
        house.branches_are(&["finished", "finished"]).await;
        house.results(1).await;
        house.ends_once(2).await;
        house.close().await;
    }
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fold_is_one_item_though_its_service_dies_on_either_side_of_the_commit() {
    for (point, left) in [("delivery.outcome_written", 0), ("delivery.outcome_committed", 1)] {
        let (mut house, gate) = house(&[("nats.limits.ack_wait_ms", "1000")]).await;
        house.deliver("n-1", "PLEASE SPLIT 1 each snapshot").await;
        house.branches_are(&["live"]).await;
        house.running(Role::Delivery).crash_at(point, 1);
        gate.add_permits(Semaphore::MAX_PERMITS);
        house.running(Role::Delivery).crashed().await;
        house.kill(Role::Delivery);
        let items = "select count(*) from notification where kind = 'branch_result'";
        assert_eq!(house.world.database.count(items).await, left, "{point}");
        house.up().await;
        house.branches_are(&["finished"]).await;
        house.results(1).await;
        house.ends_once(1).await;
        house.close().await;
    }
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_a_branch_once_though_its_service_dies() {
    let (mut house, gate) = house(&[]).await;
    house.deliver("n-1", "PLEASE SPLIT 2 all snapshot").await;
    house.branches_are(&["live", "live"]).await;
    gate.add_permits(1);
    eventually("one has ended", || async {
        let ended = house
            .branches()
            .await
            .iter()
            .filter(|branch| branch["state"] == "finished")
            .count();
        (ended == 1).then_some(())
    })
    .await;
    house
        .running(Role::Orchestrator)
        .crash_at("orchestrator.timer_written", 1);
    let due = "update timer set due_at = now() - interval '1 second' where kind = 'branch_deadline'";
    sqlx::query(due).execute(&house.world.database.owner).await.unwrap();
    house.running(Role::Orchestrator).crashed().await;
    house.kill(Role::Orchestrator);
    let expired = "select count(*) from branch where state = 'expired'";
    assert_eq!(house.world.database.count(expired).await, 0, "it was not committed");
    house.up().await;
    let results = house.results(1).await;
    assert!(
        results[0].contains(": expired\n") && results[0].contains(" is done."),
        "{}",
        results[0]
    );
    // Its answer comes late, and is recorded.
    gate.add_permits(1);
    eventually("its turn has ended", || async {
        let open = "select count(*) from turn where finished_at is null";
        (house.world.database.count(open).await == 0).then_some(())
    })
    .await;
    house.ends_once(2).await;
    house.close().await;
}
