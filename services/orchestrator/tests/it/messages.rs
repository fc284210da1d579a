//! Threads: authors, and the agents that a message wakes.

use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn a_message_wakes_each_of_the_tasks_agents_once() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    let tester = world.agent(&tenant, "tester").await;
    world.agent(&tenant, "bystander").await;
    world.task(&tenant, "PROJ-7", &["coder", "tester"]).await;
    let posted = world
        .post(
            &tenant.member,
            &tenant.path("/tasks/proj-7/messages"),
            json!({"body": "Please look"}),
        )
        .await;
    assert_eq!(posted.status, 201, "{posted:?}");
    assert_eq!(posted.body["author"]["kind"], "user");
    assert_eq!(posted.body["author"]["name"], "a member");
    assert_eq!(posted.body["notified"].as_array().unwrap().len(), 2);
    let id = posted.body["id"].as_str().unwrap();

    let woken = world.sent_on("signalbox.notification.").await;
    assert_eq!(woken.len(), 2);
    for (sent, agent) in woken.iter().zip([&coder, &tester]) {
        assert_eq!(
            sent.subject, "signalbox.notification.acme.PROJ-7",
            "as the task is shown"
        );
        assert_eq!(sent.payload["id"], format!("message:{id}:{agent}"));
        assert_eq!(
            (&sent.payload["agent"], &sent.payload["type"]),
            (&json!(agent), &json!("message"))
        );
        assert_eq!(
            (&sent.payload["message_id"], &sent.payload["body"]),
            (&json!(id), &json!("Please look"))
        );
        assert_eq!(sent.payload["sender"], posted.body["author"]);
        assert_eq!(
            (
                sent.headers["Signalbox-Hops"].as_str(),
                sent.headers["Signalbox-Cause"].as_str()
            ),
            ("0", id)
        );
    }
    let posted_events = world.sent_on("signalbox.event.acme.PROJ-7.message.posted").await;
    assert_eq!(posted_events.len(), 1);
    let activities = world
        .get(&tenant.member, &tenant.path("/tasks/PROJ-7/activities"))
        .await;
    assert_eq!(activities.column("kind")[0], "message.posted");
}

#[tokio::test]
async fn removed_agents_are_not_woken() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.agent(&tenant, "coder").await;
    world.task(&tenant, "T", &["coder"]).await;
    world.delete(&tenant.admin, &tenant.path("/agents/coder")).await;
    let posted = world
        .post(
            &tenant.member,
            &tenant.path("/tasks/T/messages"),
            json!({"body": "Anyone?"}),
        )
        .await;
    assert_eq!((posted.status.as_u16(), &posted.body["notified"]), (201, &json!([])));
    assert!(world.sent_on("signalbox.notification.").await.is_empty());
}

#[tokio::test]
async fn the_thread_is_read_oldest_first() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.task(&tenant, "T", &[]).await;
    world.task(&tenant, "U", &[]).await;
    let path = tenant.path("/tasks/T/messages");
    for body in ["one", "two", "three"] {
        world.post(&tenant.member, &path, json!({"body": body})).await;
    }
    world
        .post(
            &tenant.member,
            &tenant.path("/tasks/U/messages"),
            json!({"body": "elsewhere"}),
        )
        .await;
    let first = world.get(&tenant.service, &format!("{path}?limit=2")).await;
    assert_eq!(first.column("body"), ["one", "two"]);
    let cursor = first.body["next_cursor"].as_str().unwrap();
    assert_eq!(
        world
            .get(&tenant.service, &format!("{path}?cursor={cursor}"))
            .await
            .column("body"),
        ["three"]
    );
    let other = tenant.path(&format!("/tasks/U/messages?cursor={cursor}"));
    world
        .get(&tenant.service, &other)
        .await
        .is_problem(400, "invalid_field", "cursor");
}

#[tokio::test]
async fn a_service_speaks_for_people() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.task(&tenant, "T", &[]).await;
    let path = tenant.path("/tasks/T/messages");
    let own = world.post(&tenant.service, &path, json!({"body": "b"})).await;
    assert_eq!(
        (&own.body["author"]["kind"], &own.body["author"]["name"]),
        (&json!("service"), &json!("a service"))
    );
    let ann = json!({"body": "b", "author": {"kind": "user", "id": "ann", "name": "Ann"}});
    let posted = world.post(&tenant.service, &path, ann.clone()).await;
    assert_eq!(
        posted.body["author"],
        json!({"kind": "user", "id": "ann", "name": "Ann", "via": "a service"})
    );
    let thread = world.get(&tenant.member, &path).await;
    assert_eq!(thread.body["items"][1]["author"], posted.body["author"]);
    for key in [&tenant.member, &tenant.admin] {
        world
            .post(key, &path, ann.clone())
            .await
            .is_problem(403, "forbidden", "speak for themselves");
    }
    let agent = json!({"body": "b", "author": {"kind": "agent", "id": "coder"}});
    world
        .post(&tenant.service, &path, agent)
        .await
        .is_problem(400, "invalid_field", "author");
    for bad in [
        json!({}),
        json!({"body": ""}),
        json!({"body": "x".repeat(300_000)}),
        json!({"body": "b", "to": "x"}),
    ] {
        world
            .post(&tenant.member, &path, bad)
            .await
            .is_problem(400, "invalid_field", "");
    }
    world
        .post(&tenant.member, &tenant.path("/tasks/U/messages"), json!({"body": "b"}))
        .await
        .is_problem(404, "not_found", "");
    world
        .get(&tenant.member, &tenant.path("/tasks/U/messages"))
        .await
        .is_problem(404, "not_found", "");
}
