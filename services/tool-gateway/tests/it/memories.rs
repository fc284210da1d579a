//! What an orchestrator remembers, by its tools: in its person's own turns, and in those of others.

use domain::ToolCallState::{Failed, Refused};
use serde_json::{Value, json};
use testkit::{enqueued, rows};

use crate::world::{ITEM, TestSession, World};

/// A person's orchestrator in a turn on one item.
async fn orchestrator(world: &World, user: &str) -> TestSession {
    let account = world.fixture().account("acme").await;
    let session = world.orchestrator(&account, user).await;
    item(world, &session, ("user", user), "{}").await;
    session
}

/// What its turn is about.
async fn item(world: &World, session: &TestSession, (kind, sender): (&str, &str), metadata: &str) {
    world.run(sqlx::query("delete from notification")).await;
    let row = enqueued(&session.account, session.id).with("id", ITEM);
    let row = row.with("sender_kind", kind).with("sender_id", sender);
    let row = row.with("metadata", metadata).with("state", "running");
    row.with("turn_id", session.turn).insert(&world.database.owner).await;
}

fn contents(result: &Value) -> Vec<&str> {
    let memories = result["memories"].as_array().unwrap();
    memories
        .iter()
        .map(|memory| memory["content"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn an_orchestrator_remembers_and_what_it_reads_is_freshened() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let ann = orchestrator(&world, "ann").await;
    let write = json!({"content": "Billing is written in Rust.", "category": "repo_affinity", "key": "Billing"});
    let written = world.call(&ann.request(1, "memory_write", &write)).await.ok();
    assert_eq!((&written["replaced"], &written["pruned"]), (&json!(false), &json!(0)));
    let write = json!({"content": "Billing is written in Go.", "category": "repo_affinity", "key": " billing "});
    let again = world.call(&ann.request(2, "memory_write", &write)).await.ok();
    assert_eq!((&again["replaced"], &again["id"]), (&json!(true), &written["id"]));
    let write = json!({"content": "Ann likes short answers.", "category": "general"});
    world.call(&ann.request(3, "memory_write", &write)).await.ok();
    // Another person's, and what has faded, are not there.
    rows("memory")
        .with("owner", "user:ben")
        .insert(&world.database.owner)
        .await;
    let faded = rows("memory").with("content", "faded").set("fades_at", "now()");
    faded.insert(&world.database.owner).await;

    let age = "update memory set touched_at = now() - interval '100 days', fades_at = fades_at - interval '100 days' where key = 'billing'";
    world.run(sqlx::query(age)).await;
    // Numbers may have a point.
    let read = json!({"query": "bill", "limit": 3.0});
    let read = world.call(&ann.request(4, "memory_read", &read)).await.ok();
    assert_eq!(contents(&read), ["Billing is written in Go."]);
    assert_eq!(
        (&read["matched"], &read["memories"][0]["key"]),
        (&json!(true), &json!("billing"))
    );
    let relevance = read["memories"][0]["relevance"].as_f64().unwrap();
    assert!((relevance - 0.466).abs() < 0.002, "{relevance}");
    let counted = "select key || ' ' || access_count from memory where owner = 'user:ann' and access_count > 0";
    assert_eq!(world.database.texts(counted).await, ["billing 1"]);
    let none = json!({"query": "zebra"});
    let none = world.call(&ann.request(5, "memory_read", &none)).await.ok();
    assert_eq!(none["matched"], false);
    assert_eq!(contents(&none)[0], "Ann likes short answers.");
    let last = json!({"limit": 1});
    let last = world.call(&ann.request(6, "memory_read", &last)).await.ok();
    assert_eq!(contents(&last).len(), 1);
    // The second delivery of a call gets the first result, and freshens nothing.
    let counts = async || {
        world
            .database
            .texts("select access_count::text from memory order by id")
            .await
    };
    let before = counts().await;
    world
        .ask_as(&ann.request(6, "memory_read", &json!({"limit": 1})), "again")
        .await;
    world.delivered(7).await;
    world.told().await;
    assert_eq!(counts().await, before);
    let changed = world.heard("signalbox.event.acme.-.memory.changed");
    assert_eq!(changed.len(), 3);
    assert!(
        changed
            .iter()
            .all(|heard| !heard.payload.to_string().contains("Billing"))
    );
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn what_cannot_be_remembered_is_refused_with_what_to_do() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let ann = orchestrator(&world, "ann").await;
    let coder = {
        let fixture = world.fixture();
        let agent = fixture.agent(&ann.account, "coder").await;
        let task = fixture.task(&ann.account, "PROJ-7", &[agent]).await;
        world.session(&ann.account, Some(&task), agent).await
    };
    for (place, (bad, words)) in [
        (json!({"content": " ", "category": "general"}), "blank"),
        (json!({"content": "é".repeat(2049), "category": "general"}), "4096"),
        (json!({"content": "x", "category": "gossip"}), "routing_correction"),
        (json!({"content": "x"}), "category"),
        (
            json!({"content": "x", "category": "general", "key": "k".repeat(129)}),
            "key",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let ordinal = i32::try_from(place).unwrap() + 1;
        let refused = world.call(&ann.request(ordinal, "memory_write", &bad)).await;
        assert_eq!(refused.code(Failed), "invalid_arguments");
        assert!(
            refused.result.to_string().contains(words),
            "{words}: {}",
            refused.result
        );
    }
    let write = json!({"content": "x", "category": "general"});
    let refused = world.call(&coder.request(1, "memory_write", &write)).await;
    assert_eq!(refused.code(Refused), "not_offered");
    assert_eq!(world.database.count("select count(*) from memory").await, 0);
    world.end(&[&gateway]).await;
}

/// Nobody puts words into another person's memory, or gets what is in it.
#[tokio::test]
async fn in_turns_of_others_nothing_is_written_and_only_routing_is_read() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let ann = orchestrator(&world, "ann").await;
    for (category, content) in [
        ("general", "a secret"),
        ("repo_affinity", "acme/billing"),
        ("persona_preference", "terse"),
    ] {
        let row = rows("memory").with("category", category).with("content", content);
        row.insert(&world.database.owner).await;
    }
    let mut ordinal = 0;
    for (sender, metadata, is_own, may_write) in [
        (("user", "ann"), "{}", true, true),
        (("user", "ann"), r#"{"channel": {"surface": "private"}}"#, true, true),
        // Others read what it answers.
        (("user", "ann"), r#"{"channel": {"surface": "shared"}}"#, false, true),
        (("user", "ben"), "{}", false, false),
        (("service", "ci"), "{}", false, false),
        (("service", "signalbox"), "{}", true, true),
        (("agent", "coder"), "{}", true, true),
    ] {
        item(&world, &ann, sender, metadata).await;
        let mut call = async |name: &str, arguments: Value| {
            ordinal += 1;
            world.call(&ann.request(ordinal, name, &arguments)).await
        };
        let read = call("memory_read", json!({})).await.ok();
        let has_secret = contents(&read).contains(&"a secret");
        assert_eq!(
            (has_secret, read["note"].is_null()),
            (is_own, is_own),
            "{sender:?} {metadata}: {read}"
        );
        assert!(contents(&read).contains(&"acme/billing") && contents(&read).contains(&"terse"));
        let asked = call("memory_read", json!({"category": "general", "query": "secret"}))
            .await
            .ok();
        assert_eq!(
            contents(&asked).contains(&"a secret"),
            is_own,
            "{sender:?} {metadata}: {asked}"
        );
        let written = call(
            "memory_write",
            json!({"content": "obey", "category": "general", "key": "k"}),
        )
        .await;
        match may_write {
            true => drop(written.ok()),
            false => assert_eq!(written.code(Refused), "not_permitted"),
        }
    }
    world.end(&[&gateway]).await;
}
