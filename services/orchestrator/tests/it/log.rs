//! A session's log: its segments, its pages, and its text.

use axum::http::Method;
use serde_json::{Value, json};
use testkit::rows;
use uuid::Uuid;

use crate::{prompted::Desk, seed, world::World};

/// Generation, thread, boundary and the numbers of the turns of each segment.
fn segments(log: &Value) -> Vec<String> {
    let line = |segment: &Value| {
        let turns = segment["turns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|turn| turn["number"].to_string());
        let reason = segment["boundary"]["reason"].as_str().unwrap_or("-");
        format!(
            "v{} t{} {reason} {}",
            segment["generation"],
            segment["thread"],
            turns.collect::<Vec<_>>().join(",")
        )
    };
    log["segments"].as_array().unwrap().iter().map(line).collect()
}

impl Desk<'_> {
    async fn log(&self, query: &str) -> Value {
        let path = self.tenant.path(&format!("/sessions/{}/log?{query}", self.session));
        let answer = self.world.get(&self.tenant.member, &path).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }

    /// The generation is closed, and the next one is this desk's.
    async fn next(&mut self, generation: i32, reason: &str) {
        let close = format!(
            "update session set closed_at = now(), close_reason = '{reason}' where id = '{}'",
            self.session
        );
        self.world.execute(close).await;
        self.session = Uuid::now_v7();
        let row = rows("session")
            .with("account_id", &self.tenant.id)
            .with("id", self.session);
        let row = row
            .with("task_id", "proj-7")
            .with("agent_id", &self.agent)
            .with("generation", generation);
        row.insert(&self.world.test.owner).await;
    }
}

#[tokio::test]
async fn segments_begin_where_memory_does() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let mut desk = Desk::open(&world, &tenant).await;
    // Another agent's, and another task's, are no part of it.
    desk.on(Some("PROJ-8")).await.turn(1).await;
    desk.turn(1).await;
    let mut told = desk.told(2, desk.notified("n-2", "Go on.").await);
    told.context =
        serde_json::from_value(json!({"asked": "continue", "used": "continue", "reason": "thread_lost", "thread": 2}))
            .unwrap();
    told.facts.extract.messages = vec![desk.message("PROJ-7", &"é".repeat(200)).await];
    told.notes = vec![desk.noted(told.id, "noted", "And this.").await];
    desk.write(&told).await;
    seed::tool_call(&world, &tenant, told.id.uuid(), 1, r#"{"task_id": "PROJ-7"}"#).await;
    let first = desk.session;
    desk.next(2, "task_done").await;
    desk.next(3, "reset").await;
    world
        .execute(format!(
            "update session set close_detail = 'It went round.' where generation = 2 and id <> '{first}'"
        ))
        .await;
    desk.turn(1).await;

    let log = desk.log("").await;
    let all = [
        "v1 t1 opened 1",
        "v1 t2 thread_lost 2",
        "v2 tnull task_done ",
        "v3 t1 reset 1",
    ];
    assert_eq!(segments(&log), all);
    assert_eq!(log["segments"][3]["boundary"]["detail"], "It went round.");
    assert_eq!(log["segments"][0]["session_id"], json!(first));
    // Whichever generation is named.
    let path = tenant.path(&format!("/sessions/{first}/log"));
    assert_eq!(segments(&world.get(&tenant.member, &path).await.body), all);
    assert_eq!(segments(&desk.log("generation=2").await), all[2..3]);

    let turn = &log["segments"][1]["turns"][0];
    let parts: Vec<String> = turn["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| format!("{}/{}", part["layer"].as_str().unwrap(), part["part"].as_str().unwrap()))
        .collect();
    assert_eq!(
        parts,
        [
            "instructions/policy",
            "instructions/role",
            "input/notification",
            "input/task_state",
            "input/notification",
            "input/thread",
            "input/message",
            "notes/injected",
            "notes/injected",
        ]
    );
    let whole: String = turn["parts"].as_array().unwrap()[2..7]
        .iter()
        .map(|part| part["text"].as_str().unwrap())
        .collect();
    let input: String = sqlx::query_scalar("select input from turn where id = $1")
        .bind(told.id.uuid())
        .fetch_one(&world.test.owner)
        .await
        .unwrap();
    assert_eq!(whole, input, "the parts are the prompt");
    assert_eq!(
        (
            &turn["parts"][0]["same_as_previous"],
            &turn["parts"][2]["same_as_previous"]
        ),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        turn["parts"][6]["tokens_estimate"],
        json!(turn["parts"][6]["bytes"].as_u64().unwrap() / 4)
    );
    assert_eq!(
        (&turn["calls"][0]["name"], &turn["calls"][0]["result"]),
        (&json!("task_history"), &json!("a result"))
    );
    assert_eq!(turn["reply"], "Reply 2.");
}

#[tokio::test]
async fn every_page_goes_on_where_the_last_one_ended() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let mut desk = Desk::open(&world, &tenant).await;
    for generation in 2..=5 {
        for number in 1..=3 {
            desk.turn(number).await;
        }
        desk.next(generation, "task_done").await;
    }
    let whole = segments(&desk.log("").await);
    assert_eq!(whole.len(), 5);
    for limit in [1, 2, 3, 4, 7, 17] {
        let (mut cursor, mut turns, mut begun) = (String::new(), Vec::new(), 0);
        loop {
            let page = desk.log(&format!("limit={limit}&cursor={cursor}")).await;
            for segment in page["segments"].as_array().unwrap() {
                begun += usize::from(!segment["boundary"].is_null());
                let numbers = segment["turns"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|turn| turn["number"].as_i64().unwrap());
                turns.extend(numbers.map(|number| (segment["generation"].as_i64().unwrap(), number)));
            }
            match page["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => break,
            }
        }
        let expected: Vec<(i64, i64)> = (1..=4)
            .flat_map(|generation| (1..=3).map(move |number| (generation, number)))
            .collect();
        assert_eq!((turns, begun), (expected, 5), "{limit}");
    }
}

#[tokio::test]
async fn text_is_for_people() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    desk.turn(1).await;
    desk.turn(2).await;
    let path = tenant.path(&format!("/sessions/{}/log", desk.session));
    let get = async |accept: &str| {
        let call = world
            .call(Method::GET, &path)
            .token(&tenant.member)
            .header("accept", accept);
        let answer = call.send().await;
        let kind = answer.headers["content-type"].to_str().unwrap().to_owned();
        (kind, answer.body)
    };
    for accept in [
        "text/plain",
        "text/plain; charset=utf-8, */*",
        "text/html, text/plain;q=0.9, application/json;q=0.1",
    ] {
        let (kind, text) = get(accept).await;
        assert_eq!(kind, "text/plain; charset=utf-8", "{accept}");
        let text = text.as_str().unwrap().to_owned();
        assert!(text.starts_with("== generation 1, thread 1"), "{text}");
        assert!(
            text.contains("   opened at ") && text.contains("[as in the turn before]"),
            "{text}"
        );
        assert!(
            text.contains(" more bytes]") && text.contains("     Body 2.\n"),
            "{text}"
        );
    }
    for accept in ["*/*", "application/json", "", "application/json, text/plain"] {
        assert_eq!(get(accept).await.0, "application/json", "{accept}");
    }
}

#[tokio::test]
async fn a_session_of_another_account_has_no_log() {
    let world = World::new().await;
    let (tenant, other) = (world.tenant("acme").await, world.tenant("globex").await);
    let desk = Desk::open(&world, &tenant).await;
    desk.turn(1).await;
    let path = |of: &crate::world::Tenant, query: &str| of.path(&format!("/sessions/{}/log{query}", desk.session));
    world
        .get(&other.member, &path(&other, ""))
        .await
        .is_problem(404, "not_found", "");
    world
        .get(&tenant.member, &path(&tenant, "?generation=2"))
        .await
        .is_problem(404, "not_found", "");
    world
        .get(&tenant.member, &path(&tenant, "?generation=0"))
        .await
        .is_problem(400, "invalid_field", "");
    let whole = world.get(&tenant.member, &path(&tenant, "?limit=1")).await;
    let cursor = whole.body["next_cursor"].as_str().unwrap();
    let foreign = path(&tenant, &format!("?generation=1&cursor={cursor}"));
    world
        .get(&tenant.member, &foreign)
        .await
        .is_problem(400, "invalid_field", "cursor");
}
