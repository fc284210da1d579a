//! What the account's orchestrator alone has: it finds out who somebody is, and passes on what is that person's.

use domain::ToolCallState::Refused;
use serde_json::{Value, json};
use testkit::{enqueued, eventually, rows};

use crate::world::{ITEM, TestSession, World};

/// The account's orchestrator, in a turn about what a service has written; and ann, who has an orchestrator, and ben, who has none.
async fn account(world: &World) -> TestSession {
    let account = world.fixture().account("acme").await;
    for (user, address) in [("ann", "ann@example.com"), ("ben", "ben@example.com")] {
        let member = rows("member").with("user_id", user).with("email", address);
        member.insert(&world.database.owner).await;
    }
    let removed = rows("member").with("user_id", "cat").with("email", "cat@example.com");
    removed.set("removed_at", "now()").insert(&world.database.owner).await;
    let identity = rows("orchestrator_identity").with("account_id", &account);
    let identity = identity
        .with("user_id", "ann")
        .with("name", "Agent")
        .with("handle", "jarvis");
    identity.insert(&world.database.owner).await;
    let session = world.account_orchestrator(&account).await;
    let item = enqueued(&account, session.id).with("id", ITEM).with("state", "running");
    let item = item.with("sender_kind", "service").with("sender_name", "The <shop>");
    item.with("turn_id", session.turn).insert(&world.database.owner).await;
    session
}

#[tokio::test]
async fn what_is_a_persons_is_passed_on_with_whose_words_it_is_about() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let session = account(&world).await;
    let forward = json!({"user_id": "ann", "message": "An order is stuck."});
    let sent = world.call(&session.request(1, "forward_to_user", &forward)).await.ok();
    assert_eq!(sent["receipt"], "accepted", "{sent}");
    let mail = "select concat_ws(' ', from_session, to_session, why, context_ref) from mail";
    assert_eq!(
        world.database.texts(mail).await,
        [format!(
            "orchestrator:org:acme:v1 orchestrator:acme:ann:v1 forwarded {ITEM}"
        )]
    );
    let content = &world.database.texts("select content from mail").await[0];
    assert!(
        content.contains("service") && content.contains("shop") && content.ends_with("\n\nAn order is stuck."),
        "{content}"
    );
    // Ann's own session takes it as others' words.
    let told = eventually("the item is published", async || {
        let told = world.heard("signalbox.notification.acme.-");
        (!told.is_empty()).then_some(told)
    })
    .await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].payload["metadata"]["guest_of"], "ann");
    assert_eq!(told[0].payload["session"], "orchestrator:acme:ann:v1");

    for (ordinal, nobody) in (2..).zip(["ben", "cat", "dan", "org:acme", "ann@example.com"]) {
        let forward = json!({"user_id": nobody, "message": "An order is stuck."});
        let refused = world.call(&session.request(ordinal, "forward_to_user", &forward)).await;
        assert_eq!(refused.code(Refused), "unknown_recipient", "{nobody}");
    }
    assert_eq!(world.database.texts("select 'mail' from mail").await.len(), 1);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn who_somebody_is_follows_from_a_members_address() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let session = account(&world).await;
    for (ordinal, (address, user, handle)) in (1..).zip([
        ("ANN@example.com", json!("ann"), json!("jarvis")),
        ("ben@example.com", json!("ben"), Value::Null),
        ("cat@example.com", Value::Null, Value::Null),
        ("nobody", Value::Null, Value::Null),
    ]) {
        let asked = json!({"provider": "email", "external_id": address});
        let found = world
            .call(&session.request(ordinal, "attribute_user", &asked))
            .await
            .ok();
        assert_eq!(
            (&found["user_id"], &found["handle"]),
            (&user, &handle),
            "{address}: {found}"
        );
    }
    let other = json!({"provider": "slack", "external_id": "U1"});
    let other = world.call(&session.request(5, "attribute_user", &other)).await;
    assert_eq!(other.code(domain::ToolCallState::Failed), "invalid_arguments");
    world.end(&[&gateway]).await;
}

/// Offered to nobody else, and refused whoever calls.
#[tokio::test]
async fn a_persons_orchestrator_and_an_agent_have_neither() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let ann = world.orchestrator(&coder.account, "ann").await;
    for session in [&coder, &ann] {
        for (ordinal, (tool, arguments)) in (1..).zip([
            ("forward_to_user", json!({"user_id": "ann", "message": "m"})),
            (
                "attribute_user",
                json!({"provider": "email", "external_id": "ann@example.com"}),
            ),
        ]) {
            let refused = world.call(&session.request(ordinal, tool, &arguments)).await;
            assert_eq!(refused.code(Refused), "not_offered", "{tool}");
        }
    }
    world.end(&[&gateway]).await;
}
