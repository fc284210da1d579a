//! A tool loop over each server that a provider's setting names: every round reaches the model with the turn's earlier rounds, also
//! when delivery is killed in between. The model sees only the context that its server would show it.

use serde_json::{Value, json};
use storage::Role;
use testkit::{Reply, Seen, Server, StubProvider, World, eventually, outputs};

use crate::house::House;

const KNOWS_ALL: &str = "I know what was asked, and both results.";

/// Reads the task, then posts a note, then replies with what it still sees.
fn model(seen: &Seen) -> Reply {
    let offered = seen.body["tools"]
        .as_array()
        .expect("tools are offered with every call");
    // A gateway has tools of its own beside ours.
    let named = |name: &str| {
        let names = offered.iter().filter_map(|tool| tool["name"].as_str());
        names
            .clone()
            .find(|wire| wire.ends_with(name))
            .expect("it is offered")
            .to_owned()
    };
    let id = asked(&seen.context).unwrap_or("?");
    // A server that keeps the conversation also knows the earlier turns.
    let results = outputs(&seen.context)
        .iter()
        .filter(|(call_id, _)| call_id.starts_with(&format!("{id}-")))
        .count();
    match results {
        0 => Reply::call(&format!("{id}-0"), &named("task_history"), json!({"task_id": "T-1"})),
        1 => Reply::call(
            &format!("{id}-1"),
            &named("task_message"),
            json!({"task_id": "T-1", "body": format!("note of {id}")}),
        ),
        _ if called(&seen.context, id) == 2 => Reply::text(KNOWS_ALL),
        _ => Reply::text("I have results of something."),
    }
}

/// The latest notification in the model's context.
fn asked(context: &[Value]) -> Option<&str> {
    let texts = context
        .iter()
        .filter(|item| item["role"] == "user")
        .filter_map(|item| item["content"].as_str());
    let mut lines = texts
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("Notification: "));
    lines.next_back().map(|id| id.trim_matches('"'))
}

/// Its own calls that are still in the model's context.
fn called(context: &[Value], id: &str) -> usize {
    let is_of = |item: &&Value| {
        item["call_id"]
            .as_str()
            .is_some_and(|call_id| call_id.starts_with(&format!("{id}-")))
    };
    context
        .iter()
        .filter(|item| item["type"] == "function_call")
        .filter(is_of)
        .count()
}

async fn house(server: Server, settings: &[(&str, &str)]) -> House {
    let provider = StubProvider::like(server, model).await;
    let mut world = World::start().await;
    world.provider(&provider);
    for (setting, value) in settings {
        world.set(&format!("providers.default.{setting}"), value);
    }
    let house = House::open_in(world, provider).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &[]).await;
    house
}

async fn walk(server: Server, settings: &[(&str, &str)]) {
    let mut house = house(server, settings).await;
    house.notify("acme", "T-1", "coder", "n-1", "Tests fail on main").await;
    delivered(&house, "n-1").await;

    // Delivery is killed while the turn waits for its first result.
    house.kill(Role::ToolGateway);
    house.notify("acme", "T-1", "coder", "n-2", "They fail again").await;
    let waits = "select count(*) from turn where state = 'awaiting_tools'";
    eventually("the turn waits", || async {
        (house.world.database.count(waits).await == 1).then_some(())
    })
    .await;
    house.kill(Role::Delivery);
    house.up().await;
    delivered(&house, "n-2").await;

    let notes = "select body from message where body like 'note of %' order by body";
    assert_eq!(house.world.database.texts(notes).await, ["note of n-1", "note of n-2"]);
    let refused: Vec<Seen> = house
        .provider
        .seen()
        .into_iter()
        .filter(|seen| seen.refused.is_some())
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
    assert_eq!(house.provider.seen().len(), 6, "three rounds a turn");
    assert!(house.provider.overlaps().is_empty());
    house.close().await;
}

async fn delivered(house: &House, id: &str) {
    let delivered = house.until("acme", id, "delivered").await;
    let turn = house
        .get(&format!(
            "/api/orgs/acme/turns/{}",
            delivered["turn_id"].as_str().unwrap()
        ))
        .await;
    assert_eq!(turn["reply"], KNOWS_ALL, "{turn}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_is_sent_the_whole_turn() {
    walk(Server::OpenAi, &[("server", "openai"), ("model", "gpt-5")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_goes_on_from_its_stored_response() {
    walk(
        Server::OpenAi,
        &[("server", "openai"), ("thread", "durable"), ("model", "gpt-5")],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm_is_sent_the_whole_turn() {
    walk(Server::Vllm, &[("server", "vllm")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ollama_is_sent_the_whole_turn() {
    walk(Server::Ollama, &[("server", "ollama")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lm_studio_is_sent_the_whole_turn() {
    walk(Server::LmStudio, &[("server", "lmstudio")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_knows_session_keys_goes_on_by_them() {
    walk(Server::Generic, &[("server", "generic")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stores_responses_goes_on_by_their_ids() {
    walk(Server::LmStudio, &[("server", "generic"), ("thread_by", "response")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_goes_on_by_its_session_key() {
    walk(
        Server::OpenClaw,
        &[
            ("kind", "openclaw"),
            ("server", "openclaw"),
            ("model", "openclaw/alpha"),
        ],
    )
    .await;
}

/// The most common mistake: an entry without a server, for a server that does not know session keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_its_server_cannot_go_on_with_says_what_to_set() {
    let house = house(Server::OpenAi, &[("model", "gpt-5")]).await;
    house.notify("acme", "T-1", "coder", "n-1", "Tests fail on main").await;
    let failed = house.until("acme", "n-1", "failed").await;
    let reason = failed["reason"].as_str().unwrap();
    assert!(
        reason.contains("No tool call found for function call output"),
        "{reason}"
    );
    assert!(
        reason.contains("set `server` of this provider: `signalbox provider check`"),
        "{reason}"
    );
    house.close().await;
}

/// The entry of README's "Use your own", with another address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_provider_of_the_readme_works_as_it_is_written() {
    let readme = include_str!("../../README.md");
    let (_, section) = readme.split_once("## Use your own").unwrap();
    let (_, block) = section.split_once("```toml\n[providers.default]\n").unwrap();
    let entry: Vec<(&str, &str)> = block
        .lines()
        .take_while(|line| !line.starts_with("```"))
        .map(|line| line.split('#').next().unwrap().split_once('=').unwrap())
        .map(|(setting, value)| (setting.trim(), value.trim().trim_matches('"')))
        .filter(|(setting, _)| !matches!(*setting, "url" | "private_addresses"))
        .collect();
    assert!(entry.contains(&("server", "openai")), "{entry:?}");
    walk(Server::OpenAi, &entry).await;
}
