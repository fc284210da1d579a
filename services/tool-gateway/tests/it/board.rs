//! The tools of the board: an orchestrator's tasks, and those of the sessions that work on them.

use domain::ToolCallState::{Failed, Refused};
use serde_json::{Value, json};
use testkit::enqueued;

use crate::world::{TestSession, World};

impl World {
    async fn has_members(&self) {
        self.run(sqlx::query("update account set mail_enabled = true")).await;
    }

    /// Ann's orchestrator, on whose board the worker's task is.
    async fn ann_of(&self, worker: &TestSession) -> TestSession {
        self.has_members().await;
        self.run(sqlx::query("update task set board = 'user:ann' where id = 'proj-7'"))
            .await;
        self.orchestrator(&worker.account, "ann").await
    }
}

#[tokio::test]
async fn an_orchestrator_says_what_waits_and_whoever_works_is_told() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let ann = world.ann_of(&coder).await;
    let first = world
        .call(&ann.request(1, "create_task", &json!({"title": "First"})))
        .await
        .ok();
    assert_eq!(first["status"], "pending", "{first}");
    let first = &first["task_id"];
    let second = json!({"title": "Second", "description": "d", "session_id": coder.key, "blockedBy": [first]});
    let second = ann.request(2, "create_task", &second);
    let made = world.call(&second).await.ok();
    assert_eq!(made["status"], "blocked", "{made}");
    // The same call again, as after a crash that lost its answer.
    world.ask_as(&second, "again").await;
    let listed = world
        .call(&ann.request(3, "list_tasks", &json!({"session_id": coder.key})))
        .await
        .ok();
    let tasks = listed["tasks"].as_array().unwrap();
    let ids: Vec<&Value> = tasks.iter().map(|task| &task["id"]).collect();
    assert_eq!(ids, [&made["task_id"], &json!("PROJ-7")], "{listed}");
    assert_eq!(
        (
            &tasks[0]["parent_task_id"],
            &tasks[0]["session_id"],
            &tasks[0]["blocked_by"]
        ),
        (
            &json!("PROJ-7"),
            &json!(coder.key),
            &json!([{"id": first, "status": "pending", "satisfied": false}])
        )
    );
    let ring = json!({"task_id": first, "blocked_by": [made["task_id"]]});
    let ring = world.call(&ann.request(4, "update_task", &ring)).await;
    assert_eq!(ring.code(Refused), "dependency_cycle");
    let unknown = world
        .call(&ann.request(5, "create_task", &json!({"title": "t", "blocked_by": ["nothing"]})))
        .await;
    assert_eq!(unknown.code(Refused), "task_not_found");
    let nothing = world
        .call(&ann.request(6, "update_task", &json!({"task_id": first})))
        .await;
    assert_eq!(nothing.code(Failed), "invalid_arguments");
    let done = json!({"task_id": first, "status": "done", "result": "It is there."});
    let done = world.call(&ann.request(7, "update_task", &done)).await.ok();
    assert_eq!(
        (&done["freed"], &done["task"]["status"]),
        (&json!([made["task_id"]]), &json!("done")),
        "{done}"
    );
    world.told().await;
    let told = world.heard("signalbox.notification.acme.PROJ-7");
    let kinds: Vec<&Value> = told.iter().map(|heard| &heard.payload["type"]).collect();
    assert_eq!(kinds, ["task_assigned", "task_unblocked"]);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_session_moves_what_it_was_given_and_nothing_else() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    world.has_members().await;
    for id in ["GIVEN-1", "FOREIGN-1"] {
        world.fixture().task(&coder.account, id, &[]).await;
    }
    let given =
        "update task set worker_task_id = 'proj-7', worker_agent_id = $1, status = 'pending' where id = 'given-1'";
    world.run(sqlx::query(given).bind(coder.agent.uuid())).await;
    let mine = world
        .call(&coder.request(1, "my_tasks", &json!({"status": "pending"})))
        .await
        .ok();
    assert_eq!(
        (&mine["tasks"][0]["id"], mine["tasks"].as_array().unwrap().len()),
        (&json!("GIVEN-1"), 1),
        "{mine}"
    );
    let foreign = json!({"task_id": "FOREIGN-1", "status": "done"});
    let foreign = world.call(&coder.request(2, "update_task", &foreign)).await;
    assert_eq!(foreign.code(Refused), "task_not_found");
    let waits = json!({"task_id": "GIVEN-1", "blocked_by": ["PROJ-7"]});
    let waits = world.call(&coder.request(3, "update_task", &waits)).await;
    assert_eq!(waits.code(Failed), "invalid_arguments");
    let edge = "insert into task_dependency (account_id, task_id, blocked_by_task_id, created_at)
                values ('acme', 'given-1', 'foreign-1', now())";
    world.run(sqlx::query(edge)).await;
    let begun = json!({"task_id": "GIVEN-1", "status": "in_progress"});
    let begun = world.call(&coder.request(4, "update_task", &begun)).await;
    assert_eq!(begun.code(Refused), "blocked_by");
    world
        .run(sqlx::query("update task_dependency set satisfied_at = now()"))
        .await;
    let done = json!({"task_id": "GIVEN-1", "status": "done", "result": "r"});
    let done = world.call(&coder.request(5, "update_task", &done)).await.ok();
    assert_eq!(done["task"]["status"], "done", "{done}");
    // Not its own session: that goes on.
    assert_eq!(done["note"], Value::Null);
    let orchestrators = world
        .call(&coder.request(6, "create_task", &json!({"title": "t"})))
        .await;
    assert_eq!(orchestrators.code(Refused), "not_offered");
    world.end(&[&gateway]).await;
}

/// In the words in which people are told; and what is given away is its session's.
#[tokio::test]
async fn an_orchestrator_sees_what_the_items_of_its_sessions_wait_for() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let ann = world.ann_of(&coder).await;
    for id in ["n-1", "n-2"] {
        let row = enqueued(coder.account.as_str(), coder.id.uuid()).with("id", id);
        row.insert(&world.database.owner).await;
    }
    let status = json!({"session_id": coder.key});
    let status = world.call(&ann.request(1, "get_session_status", &status)).await.ok();
    let waits: Vec<&str> = status["queue"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["waits_for"].as_str().unwrap())
        .collect();
    let turn = coder.turn;
    assert_eq!(
        waits,
        [
            format!("place 1: behind turn {turn}"),
            format!("place 2: behind turn {turn}")
        ]
    );

    let asked = json!({"prompt": "Fix it", "agent": "coder"});
    let made = world.call(&ann.request(2, "create_session", &asked)).await.ok();
    assert_eq!(made["reused"], false, "{made}");
    let parents = "select parent_session_id::text from session where parent_session_id is not null";
    assert_eq!(world.database.texts(parents).await, [ann.id.to_string()]);
    world.end(&[&gateway]).await;
}
