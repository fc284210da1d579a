//! Dead letters: reading and redriving.

use axum::http::Method;
use contracts::dead::DEAD_PAYLOAD_BYTES_MAX;
use serde_json::json;
use testkit::rows;

use crate::{
    seed,
    world::{OPERATOR, World},
};

#[tokio::test]
async fn a_letter_is_told_and_sent_again_under_a_new_id() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let headers = json!({"Nats-Msg-Id": "ci-1", "Signalbox-Hops": "3"});
    let payload = r#"{"agent":"coder","body":"Tests fail"}"#;
    let letter = seed::letter(&world, "acme", "signalbox.partition.3.acme.PROJ-7", payload, headers).await;
    let list = world.get(&tenant.member, &tenant.path("/dead-letters")).await;
    assert_eq!(list.column("id"), [letter.to_string()]);
    let expected = json!({"id": letter, "subject": "signalbox.partition.3.acme.PROJ-7", "reason": "unknown_agent",
        "detail": "No such agent.", "payload": payload, "attempts": 0, "redriven_at": null});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&list.body["items"][0][name], value, "{name}");
    }
    let path = tenant.path(&format!("/dead-letters/{letter}"));
    assert_eq!(world.get(&tenant.member, &path).await.body, list.body["items"][0]);

    world
        .call(Method::POST, &format!("{path}/redrive"))
        .token(&tenant.member)
        .send()
        .await
        .is_problem(403, "forbidden", "member");
    for number in 1..=2 {
        let redriven = world
            .call(Method::POST, &format!("{path}/redrive"))
            .token(&tenant.admin)
            .send()
            .await;
        assert_eq!(redriven.status, 202, "{redriven:?}");
        assert!(redriven.body["redriven_at"].is_string());
        assert_eq!(redriven.body["redrives"], number);
    }
    let sent = world.sent_on("signalbox.notification.").await;
    assert_eq!(sent.len(), 2);
    for (sent, number) in sent.iter().zip(1..) {
        assert_eq!(sent.subject, "signalbox.notification.acme.PROJ-7");
        assert_eq!(sent.payload, json!({"agent": "coder", "body": "Tests fail"}));
        assert_eq!(sent.headers["Nats-Msg-Id"], format!("redrive:{letter}:{number}"));
        assert_eq!(sent.headers["Signalbox-Redrive"], letter.to_string());
        assert_eq!(
            (sent.headers["ce-id"].as_str(), sent.headers["Signalbox-Hops"].as_str()),
            ("ci-1", "3")
        );
    }
}

#[tokio::test]
async fn what_cannot_be_sent_again_says_why() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let long = "x".repeat(DEAD_PAYLOAD_BYTES_MAX);
    let cut = seed::letter(&world, "acme", "signalbox.notification.acme.-", &long, json!({})).await;
    let foreign = seed::letter(&world, "acme", "signalbox.notification.other.-", "{}", json!({})).await;
    let redrive = async |letter: uuid::Uuid| {
        let path = tenant.path(&format!("/dead-letters/{letter}/redrive"));
        world.call(Method::POST, &path).token(&tenant.admin).send().await
    };
    redrive(cut).await.is_problem(409, "payload_cut", "too long");
    redrive(foreign).await.is_problem(409, "not_redrivable", "");
    redrive(uuid::Uuid::now_v7()).await.is_problem(404, "not_found", "");
    assert!(world.sent_on("signalbox.notification.").await.is_empty());
    assert_eq!(
        world
            .test
            .count("select count(*) from dead_letter where redriven_at is not null")
            .await,
        0
    );
}

#[tokio::test]
async fn what_belongs_to_no_account_is_the_operators() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let letter = seed::letter(
        &world,
        "-",
        "signalbox.notification.ghost.T",
        r#"{"body":""}"#,
        json!({}),
    )
    .await;
    assert_eq!(
        world.get(OPERATOR, "/api/dead-letters").await.column("id"),
        [letter.to_string()]
    );
    let path = format!("/api/dead-letters/{letter}");
    assert_eq!(world.get(OPERATOR, &path).await.body["reason"], "unknown_agent");
    let redriven = world
        .call(Method::POST, &format!("{path}/redrive"))
        .token(OPERATOR)
        .send()
        .await;
    assert_eq!(redriven.status, 202, "{redriven:?}");
    assert_eq!(world.sent_on("signalbox.notification.ghost.T").await.len(), 1);

    assert_eq!(
        world
            .get(&tenant.admin, &tenant.path("/dead-letters"))
            .await
            .column("id"),
        [] as [String; 0]
    );
    world
        .get(&tenant.admin, &tenant.path(&format!("/dead-letters/{letter}")))
        .await
        .is_problem(404, "not_found", "");
    world
        .get(&tenant.admin, "/api/dead-letters")
        .await
        .is_problem(403, "forbidden", "");
}

/// A compromised delivery can write a dead letter of a notification and name any sender in it. The sender counts only if the
/// notification's row names the same one.
#[tokio::test]
async fn a_letter_of_delivery_says_who_sent_it_as_the_row_does_or_is_a_strangers_word() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let row = rows("notification")
        .with("id", "n-1")
        .with("sender_id", "u")
        .with("sender_name", "U");
    row.with("state", "failed").insert(&world.test.owner).await;
    for (id, header, sender, is_vouched) in [
        (Some("n-1"), None, "u", true),
        (Some("n-1"), None, "operator", false),
        (Some("n-2"), None, "u", false),
        (None, Some("n-1"), "u", true),
        (None, Some("n-1"), "operator", false),
        (None, Some("n-2"), "operator", false),
        (None, None, "operator", false),
        (Some("n-2"), Some("n-1"), "u", false),
    ] {
        let mut payload = json!({"agent": "coder", "body": "b", "sender": {"kind": "user", "id": sender, "name": "U"}});
        if let Some(id) = id {
            payload["id"] = json!(id);
        }
        let mut headers = json!({"Signalbox-Vouched": "1"});
        if let Some(id) = header {
            headers["ce-id"] = json!(id);
        }
        let letter = seed::letter(
            &world,
            "acme",
            "signalbox.notification.acme.-",
            &payload.to_string(),
            headers,
        )
        .await;
        sqlx::query("update dead_letter set service = 'delivery' where id = $1")
            .bind(letter)
            .execute(&world.test.owner)
            .await
            .unwrap();
        let path = tenant.path(&format!("/dead-letters/{letter}/redrive"));
        let redriven = world.call(Method::POST, &path).token(&tenant.admin).send().await;
        assert_eq!(redriven.status, 202, "{redriven:?}");
        let sent = world.sent_on("signalbox.notification.").await;
        let sent = sent
            .iter()
            .find(|sent| sent.headers["Signalbox-Redrive"] == letter.to_string())
            .unwrap();
        assert_eq!(
            sent.headers.contains_key("Signalbox-Vouched"),
            is_vouched,
            "{id:?} {header:?} {sender}"
        );
    }
}
