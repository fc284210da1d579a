//! The context of a task over the API: versions, limits, writers at once, who may; and whether a task requires it.

use axum::http::Method;
use futures::future::join_all;
use serde_json::{Value, json};

use crate::world::{Answer, Tenant, World};

impl World {
    async fn context_put(&self, token: &str, tenant: &Tenant, task: &str, body: Value) -> Answer {
        let path = tenant.path(&format!("/tasks/{task}/context"));
        self.call(Method::PUT, &path).token(token).json(&body).send().await
    }

    async fn context(&self, token: &str, tenant: &Tenant, task: &str, rest: &str) -> Answer {
        self.get(token, &tenant.path(&format!("/tasks/{task}/context{rest}")))
            .await
    }
}

async fn working() -> (World, Tenant) {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    (world, tenant)
}

#[tokio::test]
async fn people_read_and_correct_it() {
    let (world, tenant) = working().await;
    let none = world.context(&tenant.service, &tenant, "proj-7", "").await;
    none.is_problem(404, "task_context_missing", "task PROJ-7 has no task context");
    let body = json!({"body": " Build the parser.\n", "if_version": 0});
    let written = world.context_put(&tenant.member, &tenant, "Proj-7", body).await;
    assert_eq!(written.status, 200, "{written:?}");
    let expected = json!({
        "version": 1, "body": "Build the parser.", "characters": 17, "cut_characters": 0, "turn_id": null,
        "author": written.body["author"], "created_at": written.body["created_at"],
    });
    assert_eq!(written.body, expected);
    assert_eq!(written.body["author"]["name"], "a member");
    let next = json!({"body": "Build the parser in Rust.", "if_version": 1});
    let next = world.context_put(&tenant.admin, &tenant, "PROJ-7", next).await;
    assert_eq!((next.status.as_u16(), &next.body["version"]), (200, &json!(2)));
    let read = world.context(&tenant.service, &tenant, "PROJ-7", "").await;
    assert_eq!(read.body, next.body);
    let versions = world.context(&tenant.service, &tenant, "PROJ-7", "/versions").await;
    assert_eq!(versions.body["items"], json!([next.body, written.body]));

    let stale = json!({"body": "Lost.", "if_version": 1});
    let stale = world.context_put(&tenant.member, &tenant, "PROJ-7", stale).await;
    stale.is_problem(412, "context_changed", "the newest version is 2 and not 1");
    let told = world.sent_on("signalbox.event.acme.PROJ-7.task_context.written").await;
    let told: Vec<Value> = told
        .iter()
        .map(|sent| sent.payload["data"]["version"].clone())
        .collect();
    assert_eq!(told, [1, 2]);
    let activities = world
        .get(&tenant.member, &tenant.path("/tasks/PROJ-7/activities"))
        .await;
    let kinds = activities.column("kind");
    let written = kinds.iter().filter(|kind| *kind == "task_context.written");
    assert_eq!(written.count(), 2, "{kinds:?}");
}

#[tokio::test]
async fn what_is_blank_too_long_or_not_there_is_refused() {
    let (world, tenant) = working().await;
    let other = world.tenant("umbra").await;
    let put = async |task: &str, body: Value| world.context_put(&tenant.member, &tenant, task, body).await;
    put("PROJ-7", json!({"body": " \n"}))
        .await
        .is_problem(422, "invalid_field", "body");
    put("PROJ-7", json!({"body": "x".repeat(64 * 1024 + 1)}))
        .await
        .is_problem(413, "too_large", "65537 bytes; at most 65536");
    put("PROJ-7", json!({"body": "x".repeat(2 << 20)}))
        .await
        .is_problem(413, "too_large", "");
    put("PROJ-7", json!({"body": "a\0b"}))
        .await
        .is_problem(400, "invalid_field", "body");
    put("PROJ-7", json!({})).await.is_problem(400, "invalid_field", "body");
    for bad in [json!(-1), json!(1.5), json!("1")] {
        let answer = put("PROJ-7", json!({"body": "b", "if_version": bad})).await;
        answer.is_problem(400, "invalid_field", "if_version");
    }
    put("PROJ-8", json!({"body": "b"}))
        .await
        .is_problem(404, "not_found", "");
    let foreign = world
        .context_put(&other.admin, &tenant, "PROJ-7", json!({"body": "b"}))
        .await;
    foreign.is_problem(404, "not_found", "");
    let foreign = world
        .context_put(&other.admin, &other, "PROJ-7", json!({"body": "b"}))
        .await;
    foreign.is_problem(404, "not_found", "");
    for rest in ["", "/versions"] {
        let missing = world.context(&tenant.member, &tenant, "PROJ-8", rest).await;
        missing.is_problem(404, "not_found", "");
    }
    for (token, status) in [(&tenant.service, 403), (&tenant.publisher, 403), (&tenant.gateway, 403)] {
        let answer = world.context_put(token, &tenant, "PROJ-7", json!({"body": "b"})).await;
        assert_eq!(answer.status.as_u16(), status, "{answer:?}");
    }
    assert_eq!(world.test.count("select count(*) from task_context").await, 0);
}

#[tokio::test]
async fn more_than_ten_thousand_characters_are_cut_and_said() {
    let (world, tenant) = working().await;
    let whole = "😀".repeat(10_000);
    for (version, body, cut, warning) in [
        (1, whole.clone(), 0, Value::Null),
        (
            2,
            format!(" {whole}! "),
            1,
            json!("The task context was cut from 10,001 to 10,000 characters. Consider shortening it."),
        ),
        (
            3,
            "x".repeat(64 * 1024),
            55_536,
            json!("The task context was cut from 65,536 to 10,000 characters. Consider shortening it."),
        ),
    ] {
        let written = world
            .context_put(&tenant.member, &tenant, "PROJ-7", json!({"body": body}))
            .await;
        let read = world.context(&tenant.member, &tenant, "PROJ-7", "").await;
        let versions = world.context(&tenant.member, &tenant, "PROJ-7", "/versions").await;
        for told in [&written.body, &read.body, &versions.body["items"][0]] {
            let found = [
                &told["version"],
                &told["characters"],
                &told["cut_characters"],
                &told["warning"],
            ];
            assert_eq!(found, [&json!(version), &json!(10_000), &json!(cut), &warning]);
            assert_eq!(told["body"].as_str().unwrap().chars().count(), 10_000);
        }
    }
}

#[tokio::test]
async fn writers_at_once_get_a_version_each_and_one_of_those_who_read_the_same() {
    let (world, tenant) = working().await;
    let put = async |n: usize, more: Value| {
        let mut body = json!({"body": format!("text {n}")});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.context_put(&tenant.member, &tenant, "PROJ-7", body).await
    };
    let answers = join_all((0..12).map(|n| put(n, json!({})))).await;
    let mut versions: Vec<i64> = answers
        .iter()
        .map(|answer| answer.body["version"].as_i64().unwrap())
        .collect();
    versions.sort_unstable();
    assert_eq!(versions, (1..=12).collect::<Vec<_>>());
    let answers = join_all((0..6).map(|n| put(n, json!({"if_version": 12})))).await;
    let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412, 412, 412, 412, 412]);
    assert_eq!(
        world.test.count("select max(version)::bigint from task_context").await,
        13
    );
}

#[tokio::test]
async fn fifty_of_sixty_versions_are_kept() {
    let (world, tenant) = working().await;
    world.task(&tenant, "PROJ-8", &[]).await;
    world
        .context_put(&tenant.member, &tenant, "PROJ-8", json!({"body": "stays"}))
        .await;
    for n in 1..=60 {
        let body = json!({"body": format!("text {n}"), "if_version": n - 1});
        let written = world.context_put(&tenant.member, &tenant, "PROJ-7", body).await;
        assert_eq!(written.status, 200, "{written:?}");
    }
    let (mut seen, mut rest) = (Vec::new(), "/versions?limit=20".to_owned());
    loop {
        let page = world.context(&tenant.member, &tenant, "PROJ-7", &rest).await;
        seen.extend(page.column("version"));
        let Some(cursor) = page.body["next_cursor"].as_str() else {
            break;
        };
        rest = format!("/versions?limit=20&cursor={cursor}");
    }
    let expected: Vec<String> = (11..=60).rev().map(|n| n.to_string()).collect();
    assert_eq!(seen, expected);
    let other = world.context(&tenant.member, &tenant, "PROJ-8", "").await;
    assert_eq!(other.body["body"], "stays");
}

/// What is said of the work stays with the task, and may be corrected before it is opened again.
#[tokio::test]
async fn a_task_that_has_ended_keeps_its_context() {
    let (world, tenant) = working().await;
    let path = tenant.path("/tasks/PROJ-7");
    world
        .context_put(&tenant.member, &tenant, "PROJ-7", json!({"body": "first"}))
        .await;
    for status in ["done", "archived", "in_progress"] {
        world.patch(&tenant.member, &path, json!({"status": status})).await;
        let written = world
            .context_put(&tenant.member, &tenant, "PROJ-7", json!({"body": status}))
            .await;
        assert_eq!(written.status, 200, "{written:?}");
    }
    let read = world.context(&tenant.member, &tenant, "PROJ-7", "").await;
    assert_eq!(
        (&read.body["version"], &read.body["body"]),
        (&json!(4), &json!("in_progress"))
    );
}

#[tokio::test]
async fn a_task_requires_its_context_unless_it_says_otherwise() {
    let (world, tenant) = working().await;
    let path = tenant.path("/tasks/PROJ-7");
    let task = world.get(&tenant.member, &path).await;
    assert_eq!(task.body["task_context"], "required");
    let changed = world
        .patch(&tenant.member, &path, json!({"task_context": "optional"}))
        .await;
    assert_eq!(changed.body["task_context"], "optional");
    assert_ne!(changed.body["updated_at"], task.body["updated_at"]);
    let unchanged = world.patch(&tenant.member, &path, json!({"title": "t"})).await;
    assert_eq!(unchanged.body["task_context"], "optional", "what is absent stays");
    let activities = world.get(&tenant.member, &format!("{path}/activities")).await;
    let detail = &activities.body["items"][1]["detail"];
    assert_eq!(detail, &json!({"fields": ["task_context"]}), "{activities:?}");
    let new = json!({"id": "PROJ-9", "title": "t", "task_context": "optional"});
    let made = world.post(&tenant.member, &tenant.path("/tasks"), new).await;
    assert_eq!(
        (made.status.as_u16(), &made.body["task_context"]),
        (201, &json!("optional"))
    );
    let listed = world.get(&tenant.member, &tenant.path("/tasks")).await;
    assert_eq!(listed.column("task_context"), ["optional", "optional"]);
    let bad = world
        .patch(&tenant.member, &path, json!({"task_context": "sometimes"}))
        .await;
    bad.is_problem(400, "invalid_field", "task_context");
}
