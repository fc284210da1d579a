//! Threads of providers: which source the context of a turn has, what is told in a thread, and what happens when a provider has
//! lost one. With providers that keep conversations as real servers do.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use domain::{ContextReason, SessionId, TurnContext};
use futures::StreamExt;
use prompt::{
    Manifest,
    manifest::{Hash, Layer},
};
use serde_json::{Value, json};
use sqlx::Row;
use testkit::{Reply, Seen, Server, StubProvider, World, enqueued, eventually, rows};

use crate::scene::Scene;

/// A scene with a provider like this server, under these settings.
async fn scene(
    server: Server,
    settings: &[(&str, &str)],
    script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
) -> Scene {
    let provider = StubProvider::like(server, script).await;
    let mut world = World::start().await;
    world.provider(&provider);
    for (setting, value) in settings {
        world.set(&format!("providers.default.{setting}"), value);
    }
    Scene::of(world, provider).await
}

const BY_RESPONSE: &[(&str, &str)] = &[("server", "openai"), ("thread", "durable")];
const PROCESS: &[(&str, &str)] = &[("thread", "process")];

impl Scene {
    /// Runs a notification to its end.
    async fn deliver(&self, id: &str, body: &str) {
        self.enqueue(id, body).await;
        self.wake().await;
        self.until(id, "delivered").await;
    }

    async fn contexts(&self) -> Vec<TurnContext> {
        let contexts = self.turns("context").await;
        contexts
            .iter()
            .map(|text| serde_json::from_str(text).unwrap())
            .collect()
    }

    /// `used/reason t{thread}` of each turn.
    async fn sources(&self) -> Vec<String> {
        let line = |context: &TurnContext| {
            let reason = context
                .reason
                .map_or_else(|| "-".to_owned(), |reason| reason.to_string());
            format!("{}/{reason} t{}", context.used, context.thread)
        };
        self.contexts().await.iter().map(line).collect()
    }

    async fn manifests(&self) -> Vec<Manifest> {
        let packed = self.turns("encode(manifest_packed, 'hex')").await;
        let unpacked = packed
            .iter()
            .map(|hex| Manifest::unpacked(&hex::decode(hex).unwrap()).unwrap());
        unpacked.collect()
    }

    /// The manifest of each turn accounts for what its first call in its thread held.
    async fn manifests_account_for(&self, seen: &[Seen]) {
        let inputs = self.turns("input").await;
        for ((manifest, input), seen) in self.manifests().await.iter().zip(&inputs).zip(seen) {
            manifest.slices(Layer::Input, input).unwrap();
            let mut items: Vec<String> = texts(&seen.body["input"]);
            let parts: Vec<(usize, Hash)> = manifest
                .layer(Layer::Context)
                .map(|part| (part.bytes, part.sha256))
                .collect();
            items.truncate(parts.len());
            let sent: Vec<(usize, Hash)> = items.iter().map(|item| (item.len(), Hash::of(item))).collect();
            assert_eq!(sent, parts, "{seen:?}");
            let all = seen.body["input"].to_string();
            assert!(
                all.contains(&serde_json::to_string(input).unwrap()[1..input.len().min(200)]),
                "{all}"
            );
        }
    }

    async fn thread(&self, field: &'static str) -> String {
        let sql = format!("select thread ->> '{field}' from session where closed_at is null");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_one(&self.world.database.owner);
        row.await.unwrap().get(0)
    }

    async fn session_column(&self, column: &'static str) -> String {
        let sql = format!("select coalesce(({column})::text, '') from session where closed_at is null");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_one(&self.world.database.owner);
        row.await.unwrap().get(0)
    }
}

/// The texts of messages in a request's input.
fn texts(input: &Value) -> Vec<String> {
    match input {
        Value::String(text) => vec![text.clone()],
        other => {
            let items = other.as_array().into_iter().flatten();
            items
                .filter_map(|item| item["content"].as_str())
                .map(str::to_owned)
                .collect()
        }
    }
}

/// The model answers with the number of its request.
fn counting(seen: &Seen) -> Reply {
    Reply::text(&format!("answer {}", seen.order))
}

/// The model calls a tool first, and answers when the result of the call is the last that it knows.
fn one_tool(seen: &Seen) -> Reply {
    match seen.context.last().map(|item| item["type"] == "function_call_output") {
        Some(true) => counting(seen),
        _ => Reply::call(
            &format!("c{}", seen.order),
            "task_history",
            json!({"task_id": "PROJ-7"}),
        ),
    }
}

#[tokio::test]
async fn a_live_thread_goes_on_and_nothing_is_told_twice() {
    let scene = scene(Server::Generic, &[], counting).await;
    let fixture = scene.world.fixture();
    sqlx::query("update task set description = 'Main must be green.'")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    fixture
        .message(&scene.account, &scene.task, "Look at the first thing")
        .await;
    let running = scene.run().await;
    scene.deliver("n-1", "Tests fail on main").await;
    fixture
        .message(&scene.account, &scene.task, "Look at the second thing")
        .await;
    scene.deliver("n-2", "They fail again").await;
    scene.deliver("n-3", "And again").await;
    running.stop().await;

    assert_eq!(
        scene.sources().await,
        ["continue/first t1", "continue/- t1", "continue/- t1"]
    );
    let seen = scene.provider.seen();
    assert!(seen.iter().all(|seen| seen.key == scene.key));
    let [first, second, third] = [0, 1, 2].map(|n| seen[n].input());
    assert!(
        first.contains("Main must be green.") && first.contains("since your last turn: 1 of 1"),
        "{first}"
    );
    // The first reply is in the thread of the task, and in the provider's.
    assert!(
        second.contains("since your last turn: 1 of 1") && !second.contains("answer 0"),
        "{second}"
    );
    assert!(
        second.contains("the second thing") && !second.contains("the first thing"),
        "{second}"
    );
    assert!(
        !second.contains("Main must be green.") && !third.contains("since your last turn"),
        "{third}"
    );
    scene.manifests_account_for(&seen).await;

    // What changes is told again.
    sqlx::query("update task set description = 'All branches must be green.'")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    let running = scene.run().await;
    scene.deliver("n-4", "Once more").await;
    running.stop().await;
    let fourth = scene.provider.seen()[3].input();
    assert!(fourth.contains("All branches must be green."), "{fourth}");
}

/// A turn about an older message, without a reply that is posted, pushes out none that the next prompt could show.
#[tokio::test]
async fn no_message_is_told_again_after_turns_about_older_ones() {
    let scene = scene(Server::Generic, &[], |_| Reply::text("")).await;
    let fixture = scene.world.fixture();
    let mut posted = Vec::new();
    for n in 0..10 {
        let body = format!("News {n}.");
        posted.push(fixture.message(&scene.account, &scene.task, &body).await);
    }
    let running = scene.run().await;
    scene.deliver("n-0", "Look at the news").await;
    for (id, about) in [("n-1", 0), ("n-2", 5), ("n-3", 1), ("n-4", 2)] {
        scene.enqueue(id, "About an older one").await;
        sqlx::query("update notification set message_id = $1 where id = $2")
            .bind(posted[about].uuid())
            .bind(id)
            .execute(&scene.world.database.owner)
            .await
            .unwrap();
        scene.wake().await;
        scene.until(id, "delivered").await;
    }
    fixture.message(&scene.account, &scene.task, "News 10.").await;
    scene.deliver("n-5", "Look again").await;
    running.stop().await;
    let all: String = scene.provider.seen().iter().map(Seen::input).collect();
    for n in 4..=10 {
        assert_eq!(all.matches(&format!("News {n}.")).count(), 1, "{n}: {all}");
    }
    assert_eq!(scene.thread("number").await, "1");
}

/// The settings find threads by another name now: the new thread is told what the old one was shown last.
#[tokio::test]
async fn a_thread_that_cannot_be_gone_on_in_was_told_nothing() {
    let mut scene = scene(Server::OpenAi, &[("thread", "durable")], |_| Reply::text("")).await;
    scene
        .world
        .fixture()
        .message(&scene.account, &scene.task, "The news.")
        .await;
    let running = scene.run().await;
    scene.deliver("n-1", "Tests fail on main").await;
    running.stop().await;
    scene.world.set("providers.default.server", "openai");
    let query = sqlx::query("update session set provider_thread = null");
    query.execute(&scene.world.database.owner).await.unwrap();
    let running = scene.run().await;
    scene.deliver("n-2", "They fail again").await;
    running.stop().await;
    assert_eq!(scene.sources().await, ["continue/first t1", "continue/thread_lost t2"]);
    let sent = texts(&scene.provider.seen()[1].body["input"]).join("\n");
    assert!(sent.contains("The news."), "{sent}");
}

/// A message that wakes the agent by a notification of its own is no news.
#[tokio::test]
async fn a_message_that_wakes_the_agent_is_not_shown_beside_other_notifications() {
    let scene = scene(Server::Generic, &[], counting).await;
    let fixture = scene.world.fixture();
    let by_row = fixture
        .message(&scene.account, &scene.task, "woken, as the message says")
        .await;
    let by_item = fixture
        .message(&scene.account, &scene.task, "woken, as the queue says")
        .await;
    let about = fixture.message(&scene.account, &scene.task, "what it is about").await;
    fixture.message(&scene.account, &scene.task, "and some news").await;
    let owner = &scene.world.database.owner;
    sqlx::query("update message set woke = array[$1] where id = $2")
        .bind(scene.agent.uuid())
        .bind(by_row.uuid())
        .execute(owner)
        .await
        .unwrap();
    scene.enqueue("n-1", "About something").await;
    sqlx::query("update notification set message_id = $1 where id = 'n-1'")
        .bind(about.uuid())
        .execute(owner)
        .await
        .unwrap();
    let id = format!("message:{by_item}:{}", scene.agent);
    rows("notification")
        .with("id", &id)
        .with("body", "woken, as the queue says")
        .with("position", 2)
        .from("session s")
        .insert(owner)
        .await;
    sqlx::query("update session set queued = 2")
        .execute(owner)
        .await
        .unwrap();
    let running = scene.run().await;
    scene.until(&id, "delivered").await;
    running.stop().await;

    let seen = scene.provider.seen();
    let first = seen[0].input();
    assert!(
        first.contains("since your last turn: 1 of 1") && first.contains("and some news"),
        "{first}"
    );
    assert!(
        !first.contains("woken, as") && !first.contains("what it is about"),
        "{first}"
    );
    let all: String = seen.iter().map(Seen::input).collect();
    assert_eq!(all.matches("woken, as the queue says").count(), 1, "{all}");
    assert!(!seen[1].input().contains("since your last turn"), "{}", seen[1].input());
}

impl Scene {
    /// A message that woke the agent, and the id of its notification.
    async fn waking(&self, body: &str) -> String {
        let id = self.world.fixture().message(&self.account, &self.task, body).await;
        sqlx::query("update message set woke = array[$1] where id = $2")
            .bind(self.agent.uuid())
            .bind(id.uuid())
            .execute(&self.world.database.owner)
            .await
            .unwrap();
        format!("message:{id}:{}", self.agent)
    }

    /// The next turn is shown one message, which has this text; the turn after it is shown none.
    async fn is_shown_next_and_once(&self, body: &str) {
        self.deliver("n-1", "First").await;
        self.deliver("n-2", "Second").await;
        let mut seen = self.provider.seen();
        let (last, next) = (seen.pop().unwrap().input(), seen.pop().unwrap().input());
        assert!(
            next.contains("since your last turn: 1 of 1") && next.contains(body),
            "{next}"
        );
        assert!(!last.contains("since your last turn") && !last.contains(body), "{last}");
    }
}

#[tokio::test]
async fn a_message_whose_notification_is_withdrawn_is_shown() {
    let scene = scene(Server::Generic, &[], |_| Reply::text("")).await;
    let id = scene.waking("The deadline is on Monday.").await;
    scene.enqueue(&id, "The deadline is on Monday.").await;
    for withdrawn in [
        "update notification set state = 'cancelled', reason = 'withdrawn'",
        "update session set queued = 0",
    ] {
        sqlx::query(withdrawn)
            .execute(&scene.world.database.owner)
            .await
            .unwrap();
    }
    let running = scene.run().await;
    scene.is_shown_next_and_once("The deadline is on Monday.").await;
    running.stop().await;
}

#[tokio::test]
async fn a_message_whose_turn_failed_is_shown() {
    let script = |seen: &Seen| match seen.order {
        0 => Reply::Status(422, "{}".to_owned(), Vec::new()),
        _ => Reply::text(""),
    };
    let scene = scene(Server::Generic, &[], script).await;
    let id = scene.waking("The deadline is on Monday.").await;
    scene.enqueue(&id, "The deadline is on Monday.").await;
    let running = scene.run().await;
    scene.until(&id, "failed").await;
    scene.is_shown_next_and_once("The deadline is on Monday.").await;
    running.stop().await;
}

/// The past that goes along tells of the turn.
#[tokio::test]
async fn a_message_whose_turn_failed_is_told_once_in_an_assembled_prompt() {
    let script = |seen: &Seen| match seen.order {
        0 => Reply::Status(422, "{}".to_owned(), Vec::new()),
        _ => Reply::text(""),
    };
    let scene = scene(Server::Ollama, &[("server", "ollama")], script).await;
    let id = scene.waking("The deadline is on Monday.").await;
    scene.enqueue(&id, "The deadline is on Monday.").await;
    let running = scene.run().await;
    scene.until(&id, "failed").await;
    for next in ["n-1", "n-2"] {
        scene.deliver(next, "Go on").await;
    }
    running.stop().await;
    for seen in scene.provider.seen() {
        let sent = seen.body.to_string();
        assert_eq!(sent.matches("The deadline is on Monday.").count(), 1, "{sent}");
    }
}

/// The thread has the message: the first answer of its turn came from there.
#[tokio::test]
async fn a_message_whose_turn_failed_after_an_answer_is_not_shown_again() {
    let script = |seen: &Seen| match seen.order {
        0 => Reply::call("c1", "task_history", json!({"task_id": "PROJ-7"})),
        1 => Reply::Status(422, "{}".to_owned(), Vec::new()),
        _ => Reply::text(""),
    };
    let scene = scene(Server::Generic, &[], script).await;
    let id = scene.waking("The deadline is on Monday.").await;
    scene.enqueue(&id, "The deadline is on Monday.").await;
    let message = "update notification set message_id = (select id from message)";
    sqlx::query(message).execute(&scene.world.database.owner).await.unwrap();
    let running = scene.run().await;
    let waits = "select count(*) from turn where state = 'awaiting_tools'";
    eventually("the turn waits", || async {
        (scene.world.database.count(waits).await == 1).then_some(())
    })
    .await;
    scene.tool_finished("c1", 1, "no messages").await;
    scene.until(&id, "failed").await;
    scene.deliver("n-1", "First").await;
    running.stop().await;
    let next = scene.provider.seen().pop().unwrap().input();
    assert!(!next.contains("The deadline is on Monday."), "{next}");
}

#[tokio::test]
async fn a_message_whose_notification_is_on_its_way_is_not_shown() {
    let scene = scene(Server::Generic, &[], |_| Reply::text("")).await;
    let id = scene.waking("The deadline is on Monday.").await;
    let running = scene.run().await;
    scene.deliver("n-1", "First").await;
    scene.deliver(&id, "The deadline is on Monday.").await;
    scene.deliver("n-2", "Second").await;
    running.stop().await;
    let seen: Vec<String> = scene.provider.seen().iter().map(Seen::input).collect();
    assert!(
        seen.iter().all(|input| !input.contains("since your last turn")),
        "{seen:?}"
    );
    assert_eq!(seen.concat().matches("The deadline is on Monday.").count(), 1);
}

#[tokio::test]
async fn a_provider_without_a_thread_gets_the_past_with_every_call() {
    let settings: &[(&str, &str)] = &[("server", "ollama")];
    let scene = scene(Server::Ollama, settings, one_tool).await;
    let running = scene.run().await;
    for n in 1..=2 {
        scene.enqueue(&format!("n-{n}"), &format!("Body {n}")).await;
        scene.wake().await;
        let waits = "select count(*) from turn where state = 'awaiting_tools'";
        eventually("the turn waits", || async {
            (scene.world.database.count(waits).await == 1).then_some(())
        })
        .await;
        let call = scene
            .turns("journal -> 0 -> 'calls' -> 0 ->> 'call_id'")
            .await
            .pop()
            .unwrap();
        scene.tool_finished_of_last(&call, "two messages").await;
        scene.until(&format!("n-{n}"), "delivered").await;
    }
    running.stop().await;
    let reason = "assembled/provider_thread_none";
    assert_eq!(scene.sources().await, [format!("{reason} t1"), format!("{reason} t2")]);
    let seen = scene.provider.seen();
    assert_eq!(seen.len(), 4);
    for second in &seen[2..] {
        let texts = texts(&second.body["input"]);
        assert!(
            texts[0].contains("Body 1") && texts[0].contains("\"task_history\" 1"),
            "{texts:?}"
        );
        assert_eq!((texts[1].as_str(), texts.len()), ("answer 1", 3));
        assert!(texts[2].contains("Body 2"));
    }
    // The same bytes with both calls.
    let [first, last] = [2, 3].map(|n| texts(&seen[n].body["input"]));
    assert_eq!(first, last);
    scene.manifests_account_for(&[seen[0].clone(), seen[2].clone()]).await;
}

#[tokio::test]
async fn a_policy_asks_for_assembled_prompts_and_an_agents_goes_before_its_accounts() {
    let scene = scene(Server::Generic, &[], counting).await;
    let fixture = scene.world.fixture();
    fixture.account_set(&scene.account, "context_policy", "assembled").await;
    fixture
        .account_set(&scene.account, "instruction_layout", "inline")
        .await;
    let running = scene.run().await;
    scene.deliver("n-1", "Tests fail on main").await;
    scene.deliver("n-2", "They fail again").await;
    let policy = "update agent set context_policy = 'continue'";
    sqlx::query(policy).execute(&scene.world.database.owner).await.unwrap();
    scene.deliver("n-3", "And again").await;
    running.stop().await;
    assert_eq!(
        scene.sources().await,
        ["assembled/- t1", "assembled/- t2", "continue/- t2"]
    );
    let seen = scene.provider.seen();
    let keys: Vec<&str> = seen.iter().map(|seen| seen.key.as_str()).collect();
    let second = format!("{}:t2", scene.key);
    assert_eq!(keys, [&scene.key, &second, &second]);
    assert_eq!(seen[1].body["user"], second.as_str());
    // The instructions head the first item, of the past or of the turn.
    for seen in &seen {
        assert!(seen.body.get("instructions").is_none());
        let texts = texts(&seen.body["input"]);
        assert!(texts[0].starts_with("# How you work here"), "{texts:?}");
        assert!(texts[1..].iter().all(|text| !text.contains("# How you work here")));
    }
    assert!(
        scene
            .turns("input")
            .await
            .iter()
            .all(|input| input.starts_with("Notification: "))
    );
}

#[tokio::test]
async fn a_thread_goes_on_from_the_last_reply() {
    let scene = scene(Server::OpenAi, BY_RESPONSE, counting).await;
    let running = scene.run().await;
    scene.deliver("n-1", "Tests fail on main").await;
    assert_eq!(scene.session_column("provider_thread").await, "resp_0");
    scene.deliver("n-2", "They fail again").await;
    running.stop().await;
    let seen = scene.provider.seen();
    assert!(seen[0].body.get("previous_response_id").is_none());
    assert_eq!(seen[1].body["previous_response_id"], "resp_0");
    assert_eq!(
        seen[1].context.len(),
        4,
        "the model knows the first turn: {:?}",
        seen[1].context
    );
    assert_eq!(scene.contexts().await[1].from.as_deref(), Some("resp_0"));
    assert_eq!(scene.session_column("provider_thread").await, "resp_1");
}

/// The reply that the thread has is not new, however many messages are newer.
#[tokio::test]
async fn new_messages_are_counted_without_what_the_thread_has() {
    let scene = scene(Server::Generic, &[], counting).await;
    let running = scene.run().await;
    scene.deliver("n-1", "Tests fail on main").await;
    for n in 0..8 {
        let body = format!("News {n}.");
        scene.world.fixture().message(&scene.account, &scene.task, &body).await;
    }
    scene.deliver("n-2", "They fail again").await;
    running.stop().await;
    let sent = scene.provider.seen()[1].input();
    assert!(sent.contains("since your last turn: 6 of 8"), "{sent}");
}

/// Messages that a turn without an answer was to be told of are new for the next one, those that it did not show, too.
#[tokio::test]
async fn a_turn_without_an_answer_leaves_messages_new() {
    let breaks = |seen: &Seen| match seen.order {
        1 => Reply::Status(400, "{}".to_owned(), Vec::new()),
        _ => counting(seen),
    };
    let scene = scene(Server::Generic, &[], breaks).await;
    let running = scene.run().await;
    scene.deliver("n-1", "Tests fail on main").await;
    for n in 0..10 {
        let body = format!("News {n}.");
        scene.world.fixture().message(&scene.account, &scene.task, &body).await;
    }
    // They came a while ago, and the first turn began before that.
    for sql in [
        "update session set thread = jsonb_set(thread, '{told,at}', to_jsonb((thread #>> '{told,at}')::bigint - 60000))",
        "update message set created_at = created_at - interval '30 s' where body like 'News%'",
    ] {
        sqlx::query(sql).execute(&scene.world.database.owner).await.unwrap();
    }
    scene.enqueue("n-2", "They fail again").await;
    scene.wake().await;
    scene.until("n-2", "failed").await;
    scene.deliver("n-3", "And again").await;
    running.stop().await;
    let seen = scene.provider.seen();
    // The newest six are the reply, which the thread has, and five of these.
    for n in [1, 2] {
        let sent = seen[n].input();
        assert!(sent.contains("since your last turn: 5 of 10"), "{n}: {sent}");
    }
}

/// A turn that had no answer told its thread nothing; what other turns have told stays told.
#[tokio::test]
async fn a_turn_without_an_answer_takes_nothing_back() {
    let breaks = |seen: &Seen| match seen.order {
        1 => Reply::Status(400, "{}".to_owned(), Vec::new()),
        _ => counting(seen),
    };
    let scene = scene(Server::Generic, &[], breaks).await;
    let description = sqlx::query("update task set description = 'Main must be green.'");
    description.execute(&scene.world.database.owner).await.unwrap();
    let running = scene.run().await;
    scene.deliver("n-1", "Tests fail on main").await;
    scene.enqueue("n-2", "They fail again").await;
    scene.wake().await;
    scene.until("n-2", "failed").await;
    scene.deliver("n-3", "And again").await;
    running.stop().await;
    let tell = |n: usize| scene.provider.seen()[n].input().contains("must be green.");
    assert_eq!([0, 1, 2].map(tell), [true, false, false]);
}

/// The thread goes on from before the turn that broke off, so that what it was told is told again.
#[tokio::test]
async fn what_a_turn_without_a_reply_was_told_is_told_again() {
    let breaks = |seen: &Seen| match seen.order {
        1 => Reply::call("c1", "task_history", json!({"task_id": "PROJ-7"})),
        2 => Reply::Status(400, "{}".to_owned(), Vec::new()),
        _ => counting(seen),
    };
    let scene = scene(Server::OpenAi, BY_RESPONSE, breaks).await;
    let fixture = scene.world.fixture();
    let running = scene.run().await;
    scene.deliver("n-1", "Tests fail on main").await;
    let description = sqlx::query("update task set description = 'All branches must be green.'");
    description.execute(&scene.world.database.owner).await.unwrap();
    fixture
        .message(&scene.account, &scene.task, "Look at the second thing")
        .await;
    scene.enqueue("n-2", "They fail again").await;
    scene.wake().await;
    scene.waits(1).await;
    scene.tool_finished_of_last("c1", "two messages").await;
    scene.until("n-2", "failed").await;
    scene.deliver("n-3", "And again").await;
    scene.deliver("n-4", "And again").await;
    running.stop().await;
    let seen = scene.provider.seen();
    assert_eq!(seen[3].body["previous_response_id"], "resp_0");
    for told in ["the second thing", "All branches must be green."] {
        let is_in = [1, 3, 4].map(|n| seen[n].input().contains(told));
        assert_eq!(is_in, [true, true, false], "{told}");
    }
}

/// A response whose call is never answered cannot be gone on from: the next turn has the plan from the record.
#[tokio::test]
async fn what_a_turn_did_that_a_plan_has_ended_is_told_to_the_next_one() {
    let asks = |seen: &Seen| match seen.order {
        0 => Reply::call("c1", "task_history", json!({"task_id": "PROJ-7"})),
        // The next turn has no answer, and the turn after it knows what that one was to know.
        1 => Reply::Status(400, "{}".to_owned(), Vec::new()),
        _ => counting(seen),
    };
    let scene = scene(Server::OpenAi, BY_RESPONSE, asks).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "Plan the parser").await;
    scene.wake().await;
    scene.waits(1).await;
    scene.plan_submitted("http", 0).await;
    scene.tool_finished_of_last("c1", "{}").await;
    scene.until("n-1", "delivered").await;
    // A loss of the next turn's thread is the first.
    assert_eq!(scene.thread("lost").await, "0");
    scene.enqueue("n-2", "Carry it out").await;
    scene.wake().await;
    scene.until("n-2", "failed").await;
    scene.deliver("n-3", "Carry it on").await;
    running.stop().await;
    let seen = scene.provider.seen();
    for (n, last) in [(1, "Carry it out"), (2, "Carry it on")] {
        assert!(seen[n].body.get("previous_response_id").is_none());
        let sent = texts(&seen[n].body["input"]).join("\n");
        for told in ["Plan the parser", "First this.", last] {
            assert!(sent.contains(told), "{told}: {sent}");
        }
    }
    assert_eq!(
        scene.sources().await,
        [
            "continue/first t1",
            "continue/thread_lost t2",
            "continue/thread_lost t3"
        ]
    );
}

#[tokio::test]
async fn a_thread_that_is_lost_on_the_first_call_is_begun_anew_from_the_record() {
    let scene = scene(Server::OpenAi, BY_RESPONSE, counting).await;
    let mut events = scene
        .world
        .client()
        .await
        .subscribe("signalbox.event.acme.>")
        .await
        .unwrap();
    let running = scene.run().await;
    scene.deliver("n-1", "Tests fail on main").await;
    scene.provider.forget();
    scene.deliver("n-2", "They fail again").await;
    scene.deliver("n-3", "And again").await;
    running.stop().await;

    let seen = scene.provider.seen();
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert!(seen[1].refused.is_some());
    assert!(seen[2].body.get("previous_response_id").is_none());
    let sent = texts(&seen[2].body["input"]);
    assert!(
        sent[0].contains("Tests fail on main") && sent[1] == "answer 0" && sent[2].contains("They fail again"),
        "{sent:?}"
    );
    // The thread that went on from there is the generation's.
    assert_eq!(seen[3].body["previous_response_id"], "resp_2");
    assert_eq!(
        scene.sources().await,
        ["continue/first t1", "continue/thread_lost t2", "continue/- t2"]
    );
    assert_eq!(scene.turns("failures").await, ["0", "0", "0"]);
    assert_eq!(
        scene
            .world
            .database
            .texts("select attempts::text from notification order by id")
            .await,
        ["1", "1", "1"]
    );
    assert_eq!(scene.thread("lost").await, "0");
    scene
        .manifests_account_for(&[seen[0].clone(), seen[2].clone(), seen[3].clone()])
        .await;
    let mut lost = 0;
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(500), events.next()).await {
        if event.subject.ends_with("provider.thread_lost") {
            let event: Value = serde_json::from_slice(&event.payload).unwrap();
            assert_eq!(
                (&event["data"]["thread"], &event["data"]["provider"]),
                (&json!(1), &json!("default"))
            );
            lost += 1;
        }
    }
    assert_eq!(lost, 1);
}

impl Scene {
    /// Answers the call that the newest turn waits for.
    async fn tool_finished_of_last(&self, call_id: &str, result: &str) {
        let ordinal: i32 = self.turns("calls_requested").await.last().unwrap().parse().unwrap();
        self.tool_recorded(call_id, ordinal, result).await;
        let turn = self.turns("id").await.pop().unwrap();
        let finished = json!({
            "account": "acme", "task": "PROJ-7", "session_id": self.session, "generation": 1, "fence": 1, "turn_id": turn,
            "call_id": call_id, "ordinal": ordinal, "name": "task_history", "state": "finished", "result": result,
        });
        let subject = "signalbox.tool.finished.acme.PROJ-7".to_owned();
        self.world
            .publish_as_service(subject, finished.to_string().into_bytes())
            .await;
    }

    /// Until a turn waits for this many calls in all.
    async fn waits(&self, calls: usize) {
        eventually("the turn waits for its tool", || async {
            let states = self.turns("state || ' ' || calls_requested").await;
            (states.last()? == &format!("awaiting_tools {calls}")).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_thread_that_is_lost_between_rounds_gets_the_whole_turn() {
    let scene = scene(Server::OpenAi, BY_RESPONSE, one_tool).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "Tests fail on main").await;
    scene.wake().await;
    scene.waits(1).await;
    scene.provider.forget();
    scene.tool_finished_of_last("c0", "two messages").await;
    scene.until("n-1", "delivered").await;
    running.stop().await;
    let seen = scene.provider.seen();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[1].body["previous_response_id"], "resp_0");
    let kinds: Vec<&Value> = seen[2].context.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["message", "function_call", "function_call_output"]);
    assert_eq!(scene.turns("reply").await, ["answer 2"]);
    let context = scene.contexts().await.remove(0);
    assert_eq!(
        (context.reason, context.lost_after, context.thread),
        (Some(ContextReason::ThreadLost), Some(1), 2)
    );
}

/// A server without a store loses each response. Each turn ends, and from the third on none is sent in vain.
#[tokio::test]
async fn a_server_without_a_store_works_and_the_turns_say_why() {
    let settings: &[(&str, &str)] = &[("thread_by", "response")];
    let scene = scene(Server::Vllm, settings, one_tool).await;
    let running = scene.run().await;
    for n in 1..=4 {
        scene.enqueue(&format!("n-{n}"), &format!("Body {n}")).await;
        scene.wake().await;
        scene.waits(1).await;
        let call = scene
            .turns("journal -> 0 -> 'calls' -> 0 ->> 'call_id'")
            .await
            .pop()
            .unwrap();
        scene.tool_finished_of_last(&call, "two messages").await;
        scene.until(&format!("n-{n}"), "delivered").await;
    }
    running.stop().await;
    let sources = scene.sources().await;
    let unreliable = ContextReason::ThreadUnreliable;
    assert_eq!(sources[0], "continue/thread_lost t2");
    assert_eq!(sources[1], "continue/thread_lost t3");
    assert_eq!(
        sources[2..],
        [
            format!("assembled/{unreliable} t4"),
            format!("assembled/{unreliable} t5")
        ]
    );
    let refused = scene
        .provider
        .seen()
        .iter()
        .filter(|seen| seen.refused.is_some())
        .count();
    assert_eq!(refused, 2, "each thread is found gone once");
    assert!(scene.turns("error_class").await.iter().all(String::is_empty));
}

/// The process ends between the rounds of a turn; and again, between those of the same turn.
#[tokio::test]
async fn a_process_that_ends_between_rounds_is_told_the_turn_again_once() {
    let down = Arc::new(AtomicUsize::new(0));
    let is_down = Arc::clone(&down);
    let script = move |seen: &Seen| {
        let take = |left: usize| left.checked_sub(1);
        if is_down.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            return Reply::Status(503, "{}".to_owned(), Vec::new());
        }
        let results = seen
            .context
            .iter()
            .filter(|item| item["type"] == "function_call_output")
            .count();
        match results {
            2 => counting(seen),
            n => Reply::call(&format!("c{n}"), "task_history", json!({"task_id": "PROJ-7"})),
        }
    };
    let scene = scene(Server::Generic, PROCESS, script).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "Tests fail on main").await;
    scene.wake().await;
    scene.waits(1).await;
    down.store(1, Ordering::Relaxed);
    scene.tool_finished_of_last("c0", "one").await;
    scene.waits(2).await;
    assert_eq!(scene.turns("failures").await, ["0"]);
    let seen = scene.provider.seen();
    assert_eq!(seen[2].key, format!("{}:t2", scene.key));
    assert_eq!(
        seen[2].body["input"].as_array().unwrap().len(),
        3,
        "input, call and result: {:?}",
        seen[2].body
    );
    // The result of the second call goes on in the new thread, until that is gone, too.
    down.store(1, Ordering::Relaxed);
    scene.tool_finished_of_last("c1", "two").await;
    scene.until("n-1", "failed").await;
    running.stop().await;
    assert_eq!(scene.turns("error_class").await, ["thread_lost"]);
    assert_eq!(scene.provider.seen().len(), 4);
    assert_eq!(scene.sources().await, ["assembled/thread_lost t2"]);
}

/// The gateway's record has no session of a thread that was unused for long.
#[tokio::test]
async fn a_gateways_thread_that_is_gone_is_found_before_the_turn() {
    let settings: &[(&str, &str)] = &[
        ("kind", "openclaw"),
        ("model", "openclaw/alpha"),
        ("effects", "gateway_only"),
        ("thread_check_after_ms", "1"),
    ];
    let scene = scene(Server::OpenClaw, settings, counting).await;
    let running = scene.run().await;
    scene.deliver("n-1", "Tests fail on main").await;
    scene.deliver("n-2", "They fail again").await;
    scene.provider.forget();
    scene.deliver("n-3", "And again").await;
    running.stop().await;
    let seen = scene.provider.seen();
    assert_eq!(seen.len(), 3, "the third turn makes no call in the lost thread");
    assert_eq!(seen[2].key, format!("agent:alpha:{}:t2", scene.key));
    let sent = texts(&seen[2].body["input"]);
    assert!(sent[0].starts_with("(Signalbox delivery "), "{sent:?}");
    assert!(
        sent[1].contains("Tests fail on main") && sent.last().unwrap().contains("And again"),
        "{sent:?}"
    );
    assert_eq!(
        scene.sources().await,
        ["continue/first t1", "continue/- t1", "continue/thread_lost t2"]
    );
}

/// An answer that went on from nothing is not believed.
#[tokio::test]
async fn an_answer_that_denies_its_thread_is_not_the_turns() {
    let script = |seen: &Seen| match seen.order {
        1 => Reply::With(json!({"previous_response_id": null}), Box::new(counting(seen))),
        2 => Reply::With(json!({"previous_response_id": "resp_9"}), Box::new(counting(seen))),
        _ => counting(seen),
    };
    let scene = scene(Server::OpenAi, BY_RESPONSE, script).await;
    let running = scene.run().await;
    scene.deliver("n-1", "Tests fail on main").await;
    scene.deliver("n-2", "They fail again").await;
    running.stop().await;
    // The first call of the new thread names no response, so its answer denies none.
    assert_eq!(scene.turns("reply").await, ["answer 0", "answer 2"]);
    let context = scene.contexts().await.pop().unwrap();
    assert_eq!(
        (context.reason, context.unconfirmed),
        (Some(ContextReason::ThreadLost), true)
    );
}

/// An agent with effects of its own has acted: it is not run again, and its next turn does not go on from there.
#[tokio::test]
async fn an_answer_of_an_agent_that_acts_stands_though_it_denies_its_thread() {
    let settings = [BY_RESPONSE, &[("effects", "own")]].concat();
    let script = |seen: &Seen| match seen.order {
        1 => Reply::With(json!({"previous_response_id": null}), Box::new(counting(seen))),
        _ => counting(seen),
    };
    let scene = scene(Server::OpenAi, &settings, script).await;
    let running = scene.run().await;
    for n in 1..=3 {
        scene.deliver(&format!("n-{n}"), &format!("Body {n}")).await;
    }
    running.stop().await;
    assert_eq!(scene.turns("reply").await, ["answer 0", "answer 1", "answer 2"]);
    assert_eq!(
        scene.sources().await,
        ["continue/first t1", "continue/- t1", "continue/thread_lost t2"]
    );
    let unconfirmed: Vec<bool> = scene
        .contexts()
        .await
        .iter()
        .map(|context| context.unconfirmed)
        .collect();
    assert_eq!(unconfirmed, [false, true, false]);
}

/// The replica that found the thread gone dies, before its record or after it; the other one sends the same.
#[tokio::test]
async fn a_fresh_start_survives_its_replica() {
    for (point, state, number) in [
        ("delivery.outcome_written", "calling", "1"),
        ("delivery.outcome_committed", "started", "2"),
    ] {
        let scene = scene(Server::OpenAi, BY_RESPONSE, counting).await;
        let first = scene.run().await;
        // The first turn passes the point once, shortly after its notification is seen to be delivered.
        first.crash_at(point, 2);
        scene.deliver("n-1", "Tests fail on main").await;
        scene.provider.forget();
        scene.enqueue("n-2", "They fail again").await;
        scene.wake().await;
        first.crashed().await;
        assert_eq!(scene.turns("state").await, ["finished", state], "{point}");
        assert_eq!(scene.thread("number").await, number, "{point}");
        let second = scene.run().await;
        scene.until("n-2", "delivered").await;
        second.stop().await;
        let seen = scene.provider.seen();
        let last = seen.last().unwrap();
        let sent = texts(&last.body["input"]);
        assert!(
            sent[0].contains("Tests fail on main") && sent[2].contains("They fail again"),
            "{point}: {sent:?}"
        );
        assert_eq!(scene.thread("number").await, "2", "{point}");
        scene.manifests_account_for(&[seen[0].clone(), last.clone()]).await;
    }
}

/// What rules of rotation count: the tokens of ended turns, and failures that are not their provider's.
#[tokio::test]
async fn a_generation_counts_its_tokens_and_its_own_failures() {
    let script = |seen: &Seen| match seen.input() {
        input if input.contains("refuse") => Reply::Status(400, "{}".to_owned(), Vec::new()),
        input if input.contains("break") => Reply::Status(503, "{}".to_owned(), Vec::new()),
        _ => counting(seen),
    };
    let provider = StubProvider::like(Server::Generic, script).await;
    let mut world = World::start().await;
    world.provider(&provider);
    world.set("delivery.attempts_max", 1);
    let scene = Scene::of(world, provider).await;
    let running = scene.run().await;
    scene.deliver("n-1", "Body").await;
    for (n, body, tokens, failures) in [
        (2, "refuse", "53", "1"),
        (3, "break", "53", "1"),
        (4, "refuse", "53", "2"),
        (5, "Body", "106", "0"),
    ] {
        let id = format!("n-{n}");
        scene.enqueue(&id, body).await;
        scene.wake().await;
        let end = if body == "Body" { "delivered" } else { "failed" };
        scene.until(&id, end).await;
        let counts = (scene.thread("tokens").await, scene.thread("failures").await);
        assert_eq!(counts, (tokens.to_owned(), failures.to_owned()), "{id}");
    }
    running.stop().await;
}

/// In a session of all of an agent's work, a past is about one task.
#[tokio::test]
async fn a_past_is_of_one_task() {
    let scene = scene(Server::Ollama, &[("server", "ollama")], counting).await;
    let owner = &scene.world.database.owner;
    scene
        .world
        .fixture()
        .task(&scene.account, "PROJ-8", &[scene.agent])
        .await;
    let session = rows("session").with("agent_id", scene.agent).set("task_id", "null");
    session.insert(owner).await;
    for (n, task) in [(1, "proj-7"), (2, "proj-8"), (3, "proj-7")] {
        rows("notification")
            .with("id", format!("n-{n}"))
            .with("body", format!("Body {n}"))
            .with("task_id", task)
            .with("position", n)
            .from("session s where s.kind = 'system'")
            .insert(owner)
            .await;
    }
    sqlx::query("update session set queued = 3, queue_tail = 3 where kind = 'system'")
        .execute(owner)
        .await
        .unwrap();
    let running = scene.run().await;
    scene.until("n-3", "delivered").await;
    running.stop().await;
    let seen = scene.provider.seen();
    let third = seen[2].input();
    assert!(
        third.contains("Body 1") && third.contains("Body 3") && !third.contains("Body 2"),
        "{third}"
    );
    assert!(!seen[1].input().contains("Body 1"), "{}", seen[1].input());
}

/// The model calls a tool for each item that asks for one, and answers when it knows the result.
fn a_tool_if_asked(seen: &Seen) -> Reply {
    let last = seen.context.last().map(ToString::to_string).unwrap_or_default();
    let asks = last.contains("with a tool") && !last.contains("function_call_output");
    match asks {
        true => Reply::call(
            &format!("c{}", seen.order),
            "task_history",
            json!({"task_id": "PROJ-7"}),
        ),
        false => Reply::text(&format!("answer-{};", seen.order)),
    }
}

/// What happens next in a random session.
struct Dice(u64);

impl Dice {
    fn of(seed: u64) -> Dice {
        Dice((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

impl Scene {
    async fn open_session(&self) -> SessionId {
        let open = "select id::text from session where closed_at is null";
        SessionId(self.world.database.texts(open).await[0].parse().unwrap())
    }

    /// Runs an item of the open generation to its end, its tool included; `loses`: the provider forgets before it has the result.
    async fn run_item(&self, id: &str, body: &str, loses: bool) {
        let session = self.open_session().await;
        let row = enqueued(&self.account, session).with("id", id).with("body", body);
        row.insert(&self.world.database.owner).await;
        let waits = "select id || ' ' || generation || ' ' || calls_requested || ' ' || (journal -> -1 -> 'calls' -> 0 ->> 'call_id')
                     from turn t where state = 'awaiting_tools'
                       and not exists (select from tool_call c where c.turn_id = t.id and c.ordinal = t.calls_requested)";
        loop {
            let called = eventually("the turn ends or calls", || async {
                let is_over = matches!(&*self.state(id).await.0, "delivered" | "failed");
                let called = self.world.database.texts(waits).await.pop();
                (is_over || called.is_some()).then_some(called)
            })
            .await;
            let Some(called) = called else { return };
            if loses {
                self.provider.forget();
            }
            let of: Vec<&str> = called.split(' ').collect();
            let (ordinal, result): (i32, String) = (of[2].parse().unwrap(), format!("result-{};", of[3]));
            self.tool_recorded(of[3], ordinal, &result).await;
            let finished = json!({
                "account": "acme", "task": "PROJ-7", "session_id": session, "generation": of[1].parse::<i32>().unwrap(),
                "fence": 1, "turn_id": of[0], "call_id": of[3], "ordinal": ordinal, "name": "task_history",
                "state": "finished", "result": result,
            });
            let subject = "signalbox.tool.finished.acme.PROJ-7".to_owned();
            self.world
                .publish_as_service(subject, finished.to_string().into_bytes())
                .await;
        }
    }
}

/// Random sessions: messages, of which some wake the agent, items with and without tools, changed descriptions and policies, lost
/// threads, resets and rotations. Each message, item, reply and result is once in what a model gets, and every manifest adds up;
/// by the manifests, no thread is told anything twice ([`crate::told`]). `expected`: the sources of contexts that must have come up.
async fn nothing_is_twice(server: Server, settings: &[(&str, &str)], expected: &[&str]) {
    let mut sources: BTreeSet<String> = BTreeSet::new();
    for seed in 0..3_u64 {
        let scene = scene(server, settings, a_tool_if_asked).await;
        let (fixture, owner) = (scene.world.fixture(), &scene.world.database.owner);
        let rotation = "update account set rotation = '{\"tokens_max\": 250}'";
        if seed == 1 {
            sqlx::query(rotation).execute(owner).await.unwrap();
        }
        let mut dice = Dice::of(seed);
        let running = scene.run().await;
        let (mut messages, mut items, mut texts_of_task) = (0, 0, 0);
        for step in 0..40 {
            match dice.below(12) {
                _ if step == 39 => {}
                0..=3 => {
                    messages += 1;
                    let body = format!("message-{messages};");
                    let id = fixture.message(&scene.account, &scene.task, &body).await;
                    if dice.below(3) == 0 {
                        let item = format!("message:{id}:{}", scene.agent);
                        scene.run_item(&item, &body, false).await;
                    }
                    continue;
                }
                4 => {
                    let policy = ["continue", "assembled"][usize::from(dice.below(2) == 0)];
                    fixture.account_set(&scene.account, "context_policy", policy).await;
                    continue;
                }
                5 => {
                    texts_of_task += 1;
                    let described = sqlx::query("update task set description = $1 where id = 'proj-7'");
                    let text = format!("description-{texts_of_task};");
                    described.bind(text).execute(owner).await.unwrap();
                    continue;
                }
                6 => {
                    scene.provider.forget();
                    continue;
                }
                7 => {
                    scene.keep_of(scene.open_session().await).await;
                    continue;
                }
                _ => {}
            }
            items += 1;
            let how = ["", " with a tool"][usize::from(dice.below(3) == 0)];
            let loses = dice.below(4) == 0;
            scene
                .run_item(&format!("n-{items}"), &format!("item-{items};{how}"), loses)
                .await;
        }
        running.stop().await;
        let seen = scene.provider.seen();
        for request in &seen {
            let known: String = request.context.iter().map(ToString::to_string).collect();
            let of = |what: &str, count: usize| (0..=count).map(|n| format!("{what}-{n};")).collect::<Vec<_>>();
            let results = (0..seen.len()).map(|n| format!("result-c{n};"));
            let all = [of("message", messages), of("item", items), of("answer", seen.len())].concat();
            for what in all.into_iter().chain(results) {
                let times = known.matches(&what).count();
                assert!(times <= 1, "seed {seed}: a model gets {what} {times} times:\n{known}");
            }
        }
        let inputs = scene.turns("input").await;
        for (manifest, input) in scene.manifests().await.iter().zip(&inputs) {
            manifest.slices(Layer::Input, input).unwrap();
            let is_assembled = manifest.context.as_ref().is_some_and(TurnContext::is_assembled);
            assert!(is_assembled || manifest.layer(Layer::Context).count() == 0);
        }
        let found = scene
            .turns("concat_ws('/', context ->> 'used', context ->> 'reason')")
            .await;
        sources.extend(found);
    }
    let missing: Vec<&&str> = expected.iter().filter(|source| !sources.contains(**source)).collect();
    assert!(missing.is_empty(), "the seeds do not meet {missing:?}: {sources:?}");
}

const ROTATED: &str = "continue/rotated:tokens_max";

#[tokio::test]
async fn nothing_is_twice_in_a_thread_by_key() {
    nothing_is_twice(
        Server::Generic,
        &[],
        &["continue/first", "continue", "assembled", ROTATED],
    )
    .await;
}

#[tokio::test]
async fn nothing_is_twice_in_a_thread_by_response() {
    nothing_is_twice(
        Server::OpenAi,
        BY_RESPONSE,
        &[
            "continue/first",
            "continue",
            "assembled",
            "continue/thread_lost",
            ROTATED,
        ],
    )
    .await;
}

#[tokio::test]
async fn nothing_is_twice_in_a_thread_of_a_process() {
    nothing_is_twice(
        Server::Generic,
        PROCESS,
        &["assembled/provider_thread_process", "assembled"],
    )
    .await;
}

#[tokio::test]
async fn nothing_is_twice_without_a_thread() {
    nothing_is_twice(
        Server::Ollama,
        &[("server", "ollama")],
        &["assembled/provider_thread_none", "assembled"],
    )
    .await;
}
