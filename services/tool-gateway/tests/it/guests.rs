//! What a guest may do with another person's orchestrator, by its tools, and what its owner's own session learns of it.

use domain::ToolCallState::{Failed, Refused};
use serde_json::{Value, json};
use testkit::{enqueued, rows};

use crate::world::{ITEM, TestSession, World};

/// The orchestrator of ann in its own session, and where it answers ben.
async fn sessions(world: &World) -> (TestSession, TestSession) {
    let account = world.fixture().account("acme").await;
    for user in ["ann", "ben", "cat"] {
        let member = rows("member").with("account_id", &account).with("user_id", user);
        member.with("name", user).insert(&world.database.owner).await;
    }
    for (user, handle) in [("ann", "jarvis"), ("ben", "friday")] {
        let identity = rows("orchestrator_identity")
            .with("account_id", &account)
            .with("user_id", user);
        let identity = identity.with("name", "Agent").with("handle", handle);
        identity.insert(&world.database.owner).await;
    }
    let ann = world.orchestrator(&account, "ann").await;
    item(world, &ann, ITEM, ("user", "ann"), "{}").await;
    let guest = world.guest(&ann, ("ann", "ben")).await;
    (ann, guest)
}

async fn item(world: &World, session: &TestSession, id: &str, (kind, sender): (&str, &str), metadata: &str) {
    let row = enqueued(&session.account, session.id).with("id", id);
    let row = row
        .with("sender_kind", kind)
        .with("sender_id", sender)
        .with("metadata", metadata);
    let row = row.with("state", "running").with("turn_id", session.turn);
    row.insert(&world.database.owner).await;
}

async fn reach(world: &World, reach: &'static str) {
    let change = sqlx::query("update orchestrator_identity set reachable = $1 where user_id = 'ann'").bind(reach);
    world.run(change).await;
}

/// Offered when the turn began, and held to at the call.
#[tokio::test]
async fn a_guest_does_what_the_owner_lets_it_at_that_moment() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let (_, guest) = sessions(&world).await;
    let mut ordinal = 0;
    let mut call = async |name: &str, arguments: Value| {
        ordinal += 1;
        world.call(&guest.request(ordinal, name, &arguments)).await
    };
    let remember = json!({"content": "obey", "category": "general"});
    reach(&world, "off").await;
    assert_eq!(call("list_sessions", json!({})).await.code(Refused), "not_offered");
    reach(&world, "answer").await;
    call("list_sessions", json!({})).await.ok();
    for (tool, arguments) in [
        ("create_task", json!({"title": "Mine"})),
        ("memory_read", json!({})),
        ("memory_write", remember.clone()),
        ("check_later", json!({"after_minutes": 5})),
    ] {
        assert_eq!(call(tool, arguments).await.code(Refused), "not_offered", "{tool}");
    }
    reach(&world, "delegate").await;
    call("create_task", json!({"title": "Mine"})).await.ok();
    assert_eq!(world.database.texts("select board from task").await, ["user:ann"]);
    assert_eq!(call("memory_write", remember).await.code(Refused), "not_offered");
    for category in ["general", "repo_affinity"] {
        let memory = rows("memory")
            .with("category", category)
            .with("content", category)
            .with("key", category);
        memory.insert(&world.database.owner).await;
    }
    let read = call("memory_read", json!({})).await.ok();
    let memories = read["memories"].as_array().unwrap();
    assert_eq!(memories.len(), 1, "{read}");
    assert_eq!(memories[0]["category"], "repo_affinity");
    world.end(&[&gateway]).await;
}

/// It says that a guest is there, and not what is said there.
#[tokio::test]
async fn an_owners_session_hears_of_guests_and_reaches_none() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let (ann, guest) = sessions(&world).await;
    reach(&world, "delegate").await;
    let said =
        "update turn set reply = 'a secret of ben' where session_id = (select id from session where kind = 'guest')";
    world.run(sqlx::query(said)).await;
    let listed = world
        .call(&ann.request(1, "list_sessions", &json!({"limit": 3.0})))
        .await
        .ok();
    let listed = listed["sessions"].as_array().unwrap();
    assert_eq!(
        listed
            .iter()
            .map(|one| (&one["guest"], &one["session_key"]))
            .collect::<Vec<_>>(),
        [(&json!("ben"), &json!(guest.key))]
    );
    assert!(!json!(listed).to_string().contains("secret"));
    for (ordinal, named) in [(2, guest.key.clone()), (4, guest.id.to_string())] {
        let status = json!({"session_id": named});
        let status = world.call(&ann.request(ordinal, "get_session_status", &status)).await;
        assert_eq!(status.code(Failed), "session_not_found");
        let send = json!({"session_id": named, "message": "Hello."});
        let send = world.call(&ann.request(ordinal + 1, "send_to_session", &send)).await;
        assert_eq!(send.code(Failed), "session_not_found");
    }
    // A guest hears of no guest.
    let listed = world.call(&guest.request(1, "list_sessions", &json!({}))).await.ok();
    assert_eq!(listed["sessions"], json!([]));
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_guests_session_writes_to_its_guest_and_its_owner() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let (ann, guest) = sessions(&world).await;
    reach(&world, "answer").await;
    world.run(sqlx::query("update account set mail_enabled = true")).await;
    let mail = |to: &str| json!({"to": to, "content": "Hello."});
    for (ordinal, to, may) in [
        (1, "@user:ben", true),
        (2, "@user:ann", true),
        (3, "@friday", true),
        (4, "@user:cat", false),
        (5, "@jarvis", false),
        (6, "orchestrator:ann", false),
    ] {
        let sent = world.call(&guest.request(ordinal, "send_message", &mail(to))).await;
        match may {
            true => drop(sent.ok()),
            false => assert_eq!(sent.code(Refused), "unknown_recipient", "{to}"),
        }
    }
    let foreign = "select count(*) from mail where to_session = 'orchestrator:acme:ben:v1'";
    assert_eq!(world.database.count(foreign).await, 1);
    // Nobody may ask the one of ben.
    let sent = world.call(&ann.request(1, "send_message", &mail("@friday"))).await;
    assert_eq!(sent.code(Refused), "unknown_recipient");
    let open = "update orchestrator_identity set reachable = 'answer' where user_id = 'ben'";
    world.run(sqlx::query(open)).await;
    world.call(&ann.request(2, "send_message", &mail("@friday"))).await.ok();
    let asked = "select count(*) from mail where to_session = 'orchestrator:acme:ben:guest:ann:v1'";
    assert_eq!(world.database.count(asked).await, 1);
    world.end(&[&gateway]).await;
}

/// What ben wrote waits for a turn of its own, and what ann's readers are to see for another.
#[tokio::test]
async fn a_turn_takes_mail_of_its_own_kind() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let (ann, _) = sessions(&world).await;
    world.run(sqlx::query("update account set mail_enabled = true")).await;
    let mut waiting = Vec::new();
    for (position, (sender, metadata)) in [
        (("user", "ann"), "{}"),
        (("service", "ci"), "{}"),
        (("agent", "other"), "{\"guest_of\": \"ben\"}"),
        (("agent", "coder"), "{}"),
        (("user", "ann"), "{\"channel\": {\"surface\": \"shared\"}}"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = uuid::Uuid::now_v7();
        let mail = rows("mail")
            .with("id", id)
            .set("to_user", "null")
            .with("content", format!("mail {position}"));
        let mail = mail.with("to_session", "orchestrator:acme:ann:v1");
        mail.insert(&world.database.owner).await;
        let row = enqueued(&ann.account, ann.id)
            .with("id", format!("mail:{id}"))
            .with("kind", "mail");
        let row = row
            .with("sender_kind", sender.0)
            .with("sender_id", sender.1)
            .with("metadata", metadata);
        row.with("position", i64::try_from(position).unwrap() + 10)
            .insert(&world.database.owner)
            .await;
        waiting.push(id);
    }
    world
        .run(sqlx::query("update session set queued = 5 where kind = 'orchestrator'"))
        .await;
    let taken = world.call(&ann.request(1, "check_messages", &json!({}))).await.ok();
    let messages = taken["messages"].as_array().unwrap();
    let contents: Vec<&str> = messages.iter().map(|mail| mail["content"].as_str().unwrap()).collect();
    assert_eq!(contents, ["mail 0", "mail 3"], "{taken}");
    let left = world
        .database
        .count("select count(*) from notification where state = 'queued' and kind = 'mail'")
        .await;
    assert_eq!(left, 3);
    world.end(&[&gateway]).await;
}
