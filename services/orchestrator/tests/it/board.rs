//! Boards over HTTP: what waits for what, what is below what, and whose tasks a session shows.

use serde_json::{Value, json};

use crate::{members::member, world::World};

#[tokio::test]
async fn a_task_waits_for_others_and_goes_on_by_itself() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.agent(&tenant, "coder").await;
    let tasks = tenant.path("/tasks");
    for id in ["A", "B"] {
        let new = json!({"id": id, "title": id, "assignees": ["coder"]});
        assert_eq!(world.post(&tenant.member, &tasks, new).await.status, 201);
    }
    let new = json!({"id": "C", "title": "c", "assignees": ["coder"], "blockedBy": ["a", "B"], "parentTaskId": "A"});
    // A task does not wait for the one that it is a part of.
    let refused = world.post(&tenant.member, &tasks, new).await;
    refused.is_problem(409, "dependency_cycle", "c → a → c");
    let new = json!({"id": "C", "title": "c", "assignees": ["coder"], "blocked_by": ["A", "B"]});
    let made = world.post(&tenant.member, &tasks, new).await;
    assert_eq!(
        (made.status.as_u16(), &made.body["status"]),
        (201, &json!("blocked")),
        "{made:?}"
    );
    let open = |id: &str, status: &str| json!({"id": id, "status": status, "satisfied": false});
    assert_eq!(
        made.body["blocked_by"],
        json!([open("A", "assigned"), open("B", "assigned")])
    );
    let next = world.get(&tenant.member, &tenant.path("/tasks/C/next")).await;
    assert_eq!(
        (&next.body["on"], &next.body["ref"]),
        (&json!("blocker"), &json!("A")),
        "{next:?}"
    );

    let change = async |task: &str, change: Value| {
        let path = tenant.path(&format!("/tasks/{task}"));
        world.patch(&tenant.member, &path, change).await
    };
    let refused = change("C", json!({"status": "in_progress"})).await;
    refused.is_problem(409, "blocked_by", "A, B");
    let refused = change("A", json!({"blocked_by": ["C"]})).await;
    refused.is_problem(409, "dependency_cycle", "a → c → a");
    let refused = change("A", json!({"blocked_by": ["nothing"]})).await;
    refused.is_problem(400, "task_not_found", "nothing");
    let many: Vec<String> = (0..33).map(|n| format!("t-{n}")).collect();
    let refused = change("A", json!({"blocked_by": many})).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert_eq!(change("A", json!({"status": "done"})).await.status, 200);
    assert_eq!(change("B", json!({"status": "done"})).await.status, 200);
    let freed = world.get(&tenant.member, &tenant.path("/tasks/C")).await;
    assert_eq!(freed.body["status"], "pending", "{freed:?}");
    assert_eq!(freed.body["blocked_by"][0]["satisfied"], true);
    assert_eq!(world.sent_on("signalbox.event.acme.C.task.unblocked").await.len(), 1);
    let told = world.sent_on("signalbox.notification.acme.C").await;
    assert_eq!(told.len(), 1, "its agent is told once");
}

#[tokio::test]
async fn a_tree_is_cancelled_from_below() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let tasks = tenant.path("/tasks");
    let context = json!({"body": "What is being built."});
    assert_eq!(
        world
            .post(&tenant.member, &tasks, json!({"id": "ABOVE", "title": "a"}))
            .await
            .status,
        201
    );
    let path = tenant.path("/tasks/ABOVE/context");
    let written = world.put(&tenant.member, &path, context).await;
    assert!(written.status.is_success(), "{written:?}");
    let below = world
        .post(
            &tenant.member,
            &tasks,
            json!({"id": "BELOW", "title": "b", "parent_task": "ABOVE"}),
        )
        .await;
    assert_eq!(below.status, 201, "{below:?}");
    let copied = world.get(&tenant.member, &tenant.path("/tasks/BELOW/context")).await;
    assert_eq!(
        (&copied.body["version"], &copied.body["body"]),
        (&json!(1), &json!("What is being built.")),
        "{copied:?}"
    );

    for (id, parent) in [("A", None), ("B", Some("A")), ("C", Some("B"))] {
        let new = json!({"id": id, "title": id, "parent_task": parent});
        let made = world.post(&tenant.member, &tasks, new).await;
        assert_eq!(
            (made.status.as_u16(), &made.body["parent_task"]),
            (201, &json!(parent)),
            "{made:?}"
        );
    }
    let refused = world
        .patch(&tenant.member, &tenant.path("/tasks/A"), json!({"parent_task": "C"}))
        .await;
    refused.is_problem(409, "dependency_cycle", "A → C → A");
    let path = tenant.path("/tasks/A/cancel");
    let cancelled = world.post(&tenant.member, &path, json!({"tree": true})).await;
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    for id in ["A", "B", "C"] {
        let task = world.get(&tenant.member, &tenant.path(&format!("/tasks/{id}"))).await;
        assert_eq!(task.body["status"], "cancelled", "{id}");
    }
}

#[tokio::test]
async fn a_board_is_its_person_s_and_its_sessions_see_what_they_were_given() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.agent(&tenant, "coder").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    let ben = member(&world, &tenant, "ben", "member").await;
    let child = world.post(&ann, "/api/sessions", json!({"prompt": "Fix it"})).await;
    assert_eq!(child.status, 201, "{child:?}");
    let session = child.body["id"].as_str().unwrap();
    let own = child.body["task"].as_str().unwrap();

    let board = "/api/sessions/orchestrator:ann/tasks";
    let first = world.post(&ann, board, json!({"title": "First"})).await;
    assert_eq!(
        (first.status.as_u16(), &first.body["status"]),
        (201, &json!("pending")),
        "{first:?}"
    );
    let first = first.body["id"].as_str().unwrap();
    let new = json!({"title": "Second", "description": "d", "sessionId": session, "blockedBy": [first], "planGate": "required"});
    let second = world.post(&ann, board, new).await;
    assert_eq!(second.status, 201, "{second:?}");
    let fields = ["status", "board", "parent_task", "worker_session"];
    let key = child.body["key"].as_str().unwrap();
    assert_eq!(
        fields.map(|field| second.body[field].clone()),
        [json!("blocked"), json!("user:ann"), json!(own), json!(key)]
    );
    assert_eq!(second.body["plan_gate"]["mode"], "required");
    let second = second.body["id"].as_str().unwrap();

    // Others' boards are as unknown as none; a session that is no orchestrator's has none.
    let foreign = world.post(&ben, board, json!({"title": "t"})).await;
    foreign.is_problem(404, "not_found", "");
    assert_eq!(world.get(&ben, board).await.status, 404);
    let of_child = format!("/api/sessions/{session}/tasks");
    let refused = world.post(&ann, &of_child, json!({"title": "t"})).await;
    refused.is_problem(409, "no_board", "");
    let refused = world
        .post(&ann, board, json!({"title": "t", "session_id": "nobody"}))
        .await;
    refused.is_problem(400, "invalid_field", "session_id");

    let listed = async |path: &str| {
        let listed = world.get(&ann, path).await;
        assert_eq!(listed.status, 200, "{listed:?}");
        let items = listed.body["items"].as_array().unwrap().clone();
        items
            .iter()
            .map(|item| item["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(listed(board).await, [second, first, own]);
    assert_eq!(listed(&format!("{board}?status=blocked")).await, [second]);
    assert_eq!(
        listed(&format!("/api/sessions/{session}/my-tasks")).await,
        [second, own]
    );
    assert_eq!(listed(&of_child).await, [second, own]);

    // It is moved on by the session that works on it, when it may be.
    let of_second = format!("{of_child}/{second}");
    let refused = world.put(&ann, &of_second, json!({"status": "completed"})).await;
    refused.is_problem(409, "blocked_by", first);
    let changed = world
        .put(
            &ann,
            &format!("{board}/{first}"),
            json!({"status": "completed", "result": "It runs."}),
        )
        .await;
    assert_eq!(changed.status, 200, "{changed:?}");
    assert_eq!(
        (&changed.body["status"], &changed.body["result"]),
        (&json!("done"), &json!("It runs."))
    );
    let given_back = world.put(&ann, &of_second, json!({"session_id": null})).await;
    assert_eq!(
        (&given_back.body["status"], &given_back.body["worker_session"]),
        (&json!("pending"), &Value::Null),
        "{given_back:?}"
    );
    assert_eq!(world.put(&ann, &of_second, json!({"result": "r"})).await.status, 404);
}

/// What one end frees, and what is followed to find a ring, has a limit.
#[tokio::test]
async fn many_wait_for_one_task_and_a_chain_is_long() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let new = json!({"id": "A", "title": "a"});
    assert_eq!(
        world.post(&tenant.member, &tenant.path("/tasks"), new).await.status,
        201
    );
    // w-1 to w-1000 wait for A; of c-0 to c-10000 each waits for the next one.
    for sql in [
        "insert into task (account_id, id, display_id, title, status)
         select 'acme', lower(n.id), n.id, 't', 'blocked'
         from (select 'W-' || n as id from generate_series(1, 1000) n union all
               select 'C-' || n from generate_series(0, 10000) n union all
               select 'A-1') n",
        "insert into task_dependency (account_id, task_id, blocked_by_task_id, created_at)
         select 'acme', 'w-' || n, 'a', now() from generate_series(1, 1000) n",
        "insert into task_dependency (account_id, task_id, blocked_by_task_id, created_at)
         select 'acme', 'c-' || n, 'c-' || n + 1, now() from generate_series(0, 9999) n",
    ] {
        world.execute(sql).await;
    }
    let change = async |task: &str, change: Value| {
        let path = tenant.path(&format!("/tasks/{task}"));
        world.patch(&tenant.member, &path, change).await
    };
    let refused = change("A-1", json!({"blocked_by": ["A"]})).await;
    refused.is_problem(409, "too_many_waiting", "1000 tasks wait for task A already");
    let refused = change("A-1", json!({"blocked_by": ["C-0"]})).await;
    refused.is_problem(409, "too_many_dependencies", "end some of the tasks");
    assert_eq!(change("A-1", json!({"blocked_by": ["C-2"]})).await.status, 200);

    assert_eq!(change("A", json!({"status": "done"})).await.status, 200);
    let statuses = "select concat_ws(' ', left(id, 2), status, count(*)) from task where id not like 'a%' group by left(id, 2), status order by 1";
    let statuses = world.test.texts(statuses).await;
    assert_eq!(statuses, ["c- blocked 10001", "w- pending 1000"]);
    let freed = "select count(*) from activity where kind = 'task.status_changed' and task_id like 'w-%'";
    assert_eq!(world.test.count(freed).await, 1_000);
    let free = change("A-1", json!({"blocked_by": ["A"]})).await;
    assert_eq!(free.status, 200, "nobody waits for what is done: {free:?}");
}
