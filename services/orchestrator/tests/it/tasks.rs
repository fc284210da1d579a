//! Tasks and their activities.

use serde_json::json;
use uuid::Uuid;

use crate::{seed, world::World};

#[tokio::test]
async fn a_task_is_found_in_any_spelling_and_shown_in_its_own() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let agent = world.agent(&tenant, "coder").await;
    world.agent(&tenant, "tester").await;
    let new =
        json!({"id": "PROJ-7", "title": "Fix it", "description": "All of it", "assignees": ["tester", agent, "coder"]});
    let made = world.post(&tenant.member, &tenant.path("/tasks"), new).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(
        (&made.body["id"], &made.body["status"]),
        (&json!("PROJ-7"), &json!("assigned"))
    );
    let slugs: Vec<_> = made.body["assignees"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["slug"].as_str().unwrap())
        .collect();
    assert_eq!(slugs, ["coder", "tester"], "named twice is once");
    for spelling in ["PROJ-7", "proj-7", "Proj-7"] {
        let mut found = world
            .get(&tenant.service, &tenant.path(&format!("/tasks/{spelling}")))
            .await
            .body;
        assert_eq!(found["next"].take()["code"], "stalled");
        found.as_object_mut().unwrap().remove("next");
        assert_eq!(found, made.body);
    }
    let again = world
        .post(
            &tenant.member,
            &tenant.path("/tasks"),
            json!({"id": "proj-7", "title": "t"}),
        )
        .await;
    again.is_problem(409, "task_exists", "proj-7");
    let generated = world
        .post(&tenant.member, &tenant.path("/tasks"), json!({"title": "t"}))
        .await;
    assert!(Uuid::try_parse(generated.body["id"].as_str().unwrap()).is_ok());
    assert_eq!(generated.body["status"], "inbox");
    let nobody = world
        .post(
            &tenant.member,
            &tenant.path("/tasks"),
            json!({"title": "t", "assignees": ["ghost"]}),
        )
        .await;
    nobody.is_problem(400, "unknown_agent", "ghost");
    assert_eq!(
        world.test.count("select count(*) from task").await,
        2,
        "a refused task is not there"
    );
    assert_eq!(world.sent_on("signalbox.event.acme.PROJ-7.task.created").await.len(), 1);
}

#[tokio::test]
async fn changes_are_made_and_written_down() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.agent(&tenant, "coder").await;
    world.task(&tenant, "T-1", &[]).await;
    let path = tenant.path("/tasks/t-1");
    let changed = world
        .patch(
            &tenant.member,
            &path,
            json!({"title": "New", "status": "in_progress", "assignees": ["coder"]}),
        )
        .await;
    assert_eq!(changed.status, 200, "{changed:?}");
    assert_eq!(
        (&changed.body["title"], &changed.body["status"]),
        (&json!("New"), &json!("in_progress"))
    );
    assert_eq!(changed.body["assignees"][0]["slug"], "coder");
    assert_eq!(changed.body["description"], "", "what is absent stays");
    let cleared = world.patch(&tenant.member, &path, json!({"assignees": []})).await;
    assert_eq!(cleared.body["assignees"], json!([]));
    assert_eq!(world.patch(&tenant.member, &path, json!({})).await.body, cleared.body);

    let activities = world.get(&tenant.member, &format!("{path}/activities")).await;
    assert_eq!(
        activities
            .column("kind")
            .iter()
            .rev()
            .map(String::as_str)
            .collect::<Vec<_>>()[..2],
        ["task.created", "task.status_changed"]
    );
    assert_eq!(activities.column("kind").len(), 5);
    let moved = &activities.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|a| a["kind"] == "task.status_changed")
        .unwrap();
    assert_eq!(moved["actor"]["name"], "a member");
    assert_eq!(moved["detail"], json!({"from": "inbox", "to": "in_progress"}));
    world
        .patch(&tenant.member, &path, json!({"status": "finished"}))
        .await
        .is_problem(400, "invalid_field", "status:");
    world
        .patch(&tenant.member, &path, json!({"assignees": ["ghost"]}))
        .await
        .is_problem(400, "unknown_agent", "ghost");
    world
        .patch(&tenant.member, &tenant.path("/tasks/T-2"), json!({}))
        .await
        .is_problem(404, "not_found", "");
}

/// S3: one transaction, with the messages in the outbox.
#[tokio::test]
async fn done_closes_the_tasks_sessions_in_the_same_transaction() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let (coder, tester) = (
        world.agent(&tenant, "coder").await,
        world.agent(&tenant, "tester").await,
    );
    world.task(&tenant, "PROJ-7", &["coder", "tester"]).await;
    world.task(&tenant, "PROJ-8", &["coder"]).await;
    let first = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    let second = seed::session(&world, &tenant, "PROJ-7", &tester, 1, true).await;
    let elsewhere = seed::session(&world, &tenant, "PROJ-8", &coder, 1, true).await;
    seed::queued(&world, &tenant, first, "waiting").await;
    seed::queued(&world, &tenant, elsewhere, "elsewhere").await;

    let done = world
        .patch(
            &tenant.service,
            &tenant.path("/tasks/proj-7"),
            json!({"status": "done"}),
        )
        .await;
    done.is_problem(403, "forbidden", "service");
    let done = world
        .patch(
            &tenant.member,
            &tenant.path("/tasks/proj-7"),
            json!({"status": "completed"}),
        )
        .await;
    assert_eq!((done.status.as_u16(), &done.body["status"]), (200, &json!("done")));

    let state = async |path: String| world.get(&tenant.member, &tenant.path(&path)).await.body["state"].clone();
    assert_eq!(state(format!("/sessions/{first}")).await, "closed");
    assert_eq!(state(format!("/sessions/{second}")).await, "closed");
    assert_eq!(state(format!("/sessions/{elsewhere}")).await, "active");
    assert_eq!(state("/notifications/waiting".to_owned()).await, "cancelled");
    assert_eq!(state("/notifications/elsewhere".to_owned()).await, "queued");
    assert_eq!(world.sent_on("signalbox.session.closed.acme.PROJ-7").await.len(), 2);
    assert_eq!(
        world.sent_on("signalbox.event.acme.PROJ-7.session.closed").await.len(),
        2
    );
    assert_eq!(
        world
            .sent_on("signalbox.event.acme.PROJ-7.notification.cancelled")
            .await
            .len(),
        1
    );
    assert_eq!(
        world
            .sent_on("signalbox.event.acme.PROJ-7.task.status_changed")
            .await
            .len(),
        1
    );
    assert!(world.sent_on("signalbox.session.closed.acme.PROJ-8").await.is_empty());

    let reopened = world
        .patch(
            &tenant.member,
            &tenant.path("/tasks/proj-7"),
            json!({"status": "pending"}),
        )
        .await;
    assert_eq!(reopened.body["status"], "pending");
    assert_eq!(
        state(format!("/sessions/{first}")).await,
        "closed",
        "reopening changes nothing by itself"
    );
}

#[tokio::test]
async fn lists_are_paged_to_their_end_and_filtered() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    for number in 1..=5 {
        world.task(&tenant, &format!("T-{number}"), &[]).await;
    }
    world
        .patch(&tenant.member, &tenant.path("/tasks/T-2"), json!({"status": "review"}))
        .await;
    let mut seen = Vec::new();
    let mut path = tenant.path("/tasks?limit=2");
    loop {
        let page = world.get(&tenant.member, &path).await;
        assert_eq!(page.status, 200, "{page:?}");
        seen.extend(page.column("id"));
        let Some(cursor) = page.body["next_cursor"].as_str() else {
            break;
        };
        path = tenant.path(&format!("/tasks?limit=2&cursor={cursor}"));
    }
    assert_eq!(seen, ["T-5", "T-4", "T-3", "T-2", "T-1"]);
    assert_eq!(
        world
            .get(&tenant.member, &tenant.path("/tasks?status=review"))
            .await
            .column("id"),
        ["T-2"]
    );
    let first = world.get(&tenant.member, &tenant.path("/tasks?limit=1")).await;
    let cursor = first.body["next_cursor"].as_str().unwrap();
    let changed = format!("{}0", &cursor[..cursor.len() - 1]);
    for bad in [
        format!("/tasks?limit=1&status=review&cursor={cursor}"),
        format!("/agents?cursor={cursor}"),
        format!("/tasks?cursor={changed}"),
        "/tasks?cursor=nonsense".to_owned(),
        "/tasks?limit=0".to_owned(),
        "/tasks?limit=many".to_owned(),
        "/tasks?stauts=review".to_owned(),
    ] {
        world
            .get(&tenant.member, &tenant.path(&bad))
            .await
            .is_problem(400, "invalid_field", "");
    }
    assert_eq!(
        world
            .get(&tenant.member, &tenant.path("/tasks?limit=9999"))
            .await
            .column("id")
            .len(),
        5
    );
}

#[tokio::test]
async fn a_change_that_the_database_rolls_back_is_made_again_a_few_times() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.task(&tenant, "T-1", &[]).await;
    let path = tenant.path("/tasks/T-1");
    // A sequence is not rolled back: the first three attempts fail.
    for sql in [
        "create sequence trouble",
        "grant usage on sequence trouble to signalbox_orchestrator",
        "create function trouble() returns trigger language plpgsql as $$
         begin
             if nextval('trouble') <= 3 then raise sqlstate '40P01'; end if;
             return new;
         end $$",
        "create trigger trouble before update on task for each row execute function trouble()",
    ] {
        sqlx::query(sql).execute(&world.test.owner).await.unwrap();
    }
    let changed = world.patch(&tenant.member, &path, json!({"title": "New"})).await;
    assert_eq!((changed.status.as_u16(), &changed.body["title"]), (200, &json!("New")));
    let updated = "select count(*) from activity where kind = 'task.updated'";
    assert_eq!(world.test.count(updated).await, 1, "what was rolled back left nothing");

    sqlx::query(
        "create or replace function trouble() returns trigger language plpgsql as $$
         begin perform nextval('trouble'); raise sqlstate '40P01'; end $$",
    )
    .execute(&world.test.owner)
    .await
    .unwrap();
    let before = world.test.count("select last_value from trouble").await;
    let refused = world.patch(&tenant.member, &path, json!({"title": "Newest"})).await;
    refused.is_problem(503, "unavailable", "");
    let tries = world.test.count("select last_value from trouble").await - before;
    assert_eq!(tries, 5);
}
