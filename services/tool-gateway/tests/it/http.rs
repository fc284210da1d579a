//! `/agent/*`: works for every live key, right after a restart, and for no other key.

use domain::AccountId;
use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use testkit::eventually;

use crate::world::{Gateway, TestSession, World, offered};

struct Agent {
    client: reqwest::Client,
    base: String,
    token: String,
}

impl Agent {
    async fn of(world: &World, gateway: &Gateway, account: &AccountId) -> Agent {
        Agent {
            client: reqwest::Client::new(),
            base: format!("http://{}", gateway.address),
            token: world.api_key(account, "gateway").await,
        }
    }

    fn get(&self, path: &str, key: &str) -> RequestBuilder {
        let request = self.client.get(format!("{}{path}", self.base));
        request.bearer_auth(&self.token).header("x-openclaw-session-key", key)
    }

    fn post(&self, path: &str, key: &str, body: &Value) -> RequestBuilder {
        let request = self.client.post(format!("{}{path}", self.base)).body(body.to_string());
        request.bearer_auth(&self.token).header("x-openclaw-session-key", key)
    }
}

async fn read(request: RequestBuilder) -> (StatusCode, Value) {
    let response: Response = request.send().await.expect("an answer");
    let status = response.status();
    let text = response.text().await.expect("a body");
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text}"));
    if !status.is_success() {
        assert_eq!(value["status"], status.as_u16(), "a problem says its status: {value}");
    }
    (status, value)
}

/// Without the fields that differ from request to request.
async fn problem(request: RequestBuilder) -> (StatusCode, Value) {
    let (status, mut value) = read(request).await;
    value.as_object_mut().expect("an object").remove("instance");
    (status, value)
}

/// Its key can be guessed, and what it remembers is a person's own.
#[tokio::test]
async fn no_gateway_key_opens_an_orchestrators_session() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let ann = world.orchestrator(&coder.account, "ann").await;
    let agent = Agent::of(&world, &gateway, &coder.account).await;
    let invented = problem(agent.get("/agent/tools", "orchestrator:acme:eve:v1")).await;
    assert_eq!(invented.0, StatusCode::NOT_FOUND);
    assert_eq!(problem(agent.get("/agent/tools", &ann.key)).await, invented);
    let read = agent.post("/agent/tools/memory_read", &ann.key, &json!({}));
    assert_eq!(problem(read).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_live_key_opens_every_route_in_every_form_it_is_given() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    world.fixture().agent(&coder.account, "reviewer").await;
    let agent = Agent::of(&world, &gateway, &coder.account).await;

    let (status, list) = read(agent.get("/agent/tools", &coder.key)).await;
    assert_eq!(status, StatusCode::OK);
    let names: Vec<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, offered(true));

    let key = coder.key.as_str();
    for form in [
        key.to_owned(),
        key.to_uppercase(),
        format!("agent:main:{key}"),
        format!("AGENT:Main:{key}"),
    ] {
        let (status, result) = read(agent.post("/agent/task-history", &form, &json!({"task_id": "PROJ-7"}))).await;
        assert_eq!(
            (status, &result["task"]["id"]),
            (StatusCode::OK, &json!("PROJ-7")),
            "{form}"
        );
    }
    let (status, result) =
        read(agent.post("/agent/task-message", key, &json!({"task_id": "PROJ-7", "body": "hi"}))).await;
    assert_eq!((status, &result["ok"]), (StatusCode::OK, &json!(true)));
    let (status, _) = read(agent.post(
        "/agent/response-request",
        key,
        &json!({"agents": ["reviewer"], "body": "b"}),
    ))
    .await;
    assert_eq!(status, StatusCode::OK);
    let (status, _) = read(agent.post("/agent/tools/no_reply", key, &json!({}))).await;
    assert_eq!(status, StatusCode::OK);
    let (status, result) = read(agent.post(
        "/agent/task-status",
        key,
        &json!({"task_id": "PROJ-7", "status": "review"}),
    ))
    .await;
    assert_eq!((status, &result["status"]), (StatusCode::OK, &json!("review")));

    // The calls belong to the running turn, so that its end includes them; delivery gets no results.
    assert_eq!(
        world
            .database
            .texts("select distinct turn_id || ' ' || ordinal || ' ' || state from tool_call")
            .await,
        [format!("{} 0 finished", coder.turn)]
    );
    assert_eq!(
        world.database.texts("select turn_id::text from message").await,
        [coder.turn.to_string()]
    );
    eventually("the request's notification", async || {
        (world.heard("signalbox.notification.acme.PROJ-7").len() == 1).then_some(())
    })
    .await;
    assert_eq!(world.heard("signalbox.tool.finished.").len(), 0);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn closed_foreign_and_invented_keys_are_refused() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let globex = world.coder("globex").await;
    let agent = Agent::of(&world, &gateway, &coder.account).await;
    let body = json!({"task_id": "PROJ-7"});
    let history = |key: &str| agent.post("/agent/task-history", key, &body);

    // A foreign key and an invented one get the same answer.
    let foreign = problem(history(&globex.key)).await;
    assert_eq!(foreign.0, StatusCode::NOT_FOUND);
    let later_generation = coder.key.replace(":v1", ":v2");
    for made_up in [
        later_generation.as_str(),
        "nonsense",
        "",
        "agent:main:main",
        &"x".repeat(2000),
    ] {
        assert_eq!(problem(history(made_up)).await, foreign, "{made_up}");
        assert_eq!(problem(agent.get("/agent/tools", made_up)).await, foreign, "{made_up}");
    }

    // Authentication comes first.
    for token in ["", "nonsense", &agent.token[..agent.token.len() - 1]] {
        let request = agent.client.post(format!("{}/agent/task-history", agent.base));
        let request = request
            .bearer_auth(token)
            .header("x-openclaw-session-key", &coder.key)
            .body("{}");
        assert_eq!(problem(request).await.0, StatusCode::UNAUTHORIZED, "{token}");
    }
    for role in ["admin", "member", "service"] {
        let other = Agent {
            client: agent.client.clone(),
            base: agent.base.clone(),
            token: world.api_key(&coder.account, role).await,
        };
        assert_eq!(
            problem(other.get("/agent/tools", &coder.key)).await.0,
            StatusCode::FORBIDDEN,
            "{role}"
        );
    }
    let without = agent
        .client
        .get(format!("{}/agent/tools", agent.base))
        .bearer_auth(&agent.token);
    assert_eq!(problem(without).await.0, StatusCode::BAD_REQUEST);

    // Closed: the answer says so, and the call is recorded as late.
    world
        .run(sqlx::query(
            "update session set closed_at = now(), close_reason = 'reset' where account_id = 'acme'",
        ))
        .await;
    for request in [history(&coder.key), agent.get("/agent/tools", &coder.key)] {
        let (status, value) = problem(request).await;
        assert_eq!((status, &value["code"]), (StatusCode::GONE, &json!("session_closed")));
        assert!(value["detail"].as_str().unwrap().contains("reset"), "{value}");
        assert!(value["hint"].is_string());
    }
    assert_eq!(
        world.database.texts("select state || ' ' || late from tool_call").await,
        ["refused true"]
    );

    // A revoked key stops working at once.
    world.run(sqlx::query("update api_key set revoked_at = now()")).await;
    assert_eq!(problem(history(&coder.key)).await.0, StatusCode::UNAUTHORIZED);
    world.end(&[&gateway]).await;
}

/// While a turn runs, the agent has the turn's offered tools; a request with two keys is refused.
#[tokio::test]
async fn a_key_opens_the_tools_of_the_running_turn() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let agent = Agent::of(&world, &gateway, &coder.account).await;
    world
        .run(sqlx::query("update turn set tools = array['no_reply']"))
        .await;
    let body = json!({"task_id": "PROJ-7"});
    let listed = async || {
        let (_, offered) = read(agent.get("/agent/tools", &coder.key)).await;
        offered["items"].as_array().unwrap().len()
    };
    assert_eq!(listed().await, 1);
    let (status, value) = problem(agent.post("/agent/task-history", &coder.key, &body)).await;
    assert_eq!((status, &value["code"]), (StatusCode::FORBIDDEN, &json!("not_offered")));

    for sql in [
        "update session set active_turn_id = null",
        "update turn set state = 'finished', finished_at = now()",
    ] {
        world.run(sqlx::query(sql)).await;
    }
    // Without a turn nobody is asked: no `answer_question`.
    assert_eq!(listed().await, offered(true).len() - 1);
    let history = || agent.post("/agent/task-history", &coder.key, &body);
    assert_eq!(read(history()).await.0, StatusCode::OK);
    let twice = history().header("x-openclaw-session-key", &coder.key);
    assert_eq!(problem(twice).await.0, StatusCode::BAD_REQUEST);
    let twice = history().bearer_auth(&agent.token);
    assert_eq!(problem(twice).await.0, StatusCode::BAD_REQUEST);
    world.end(&[&gateway]).await;
}

/// A session's key can be known within its account. A gateway key for one agent does not open the others' sessions.
#[tokio::test]
async fn a_gateway_key_for_one_agent_opens_its_sessions_only() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let reviewer = world.fixture().agent(&coder.account, "reviewer").await;
    let reviewer = world.session(&coder.account, coder.task.as_ref(), reviewer).await;
    let agent = Agent {
        token: world.api_key_of(&coder.account, "gateway", Some(coder.agent)).await,
        ..Agent::of(&world, &gateway, &coder.account).await
    };
    let history = |key: &str| agent.post("/agent/task-history", key, &json!({"task_id": "PROJ-7"}));
    assert_eq!(read(history(&coder.key)).await.0, StatusCode::OK);
    let made_up = problem(history(&coder.key.replace(":v1", ":v2"))).await;
    assert_eq!(made_up.0, StatusCode::NOT_FOUND);
    assert_eq!(problem(history(&reviewer.key)).await, made_up);
    let close = "update session set closed_at = now(), close_reason = 'reset' where id = $1";
    world.run(sqlx::query(close).bind(reviewer.id.uuid())).await;
    assert_eq!(problem(history(&reviewer.key)).await, made_up);
    assert_eq!(problem(agent.get("/agent/tools", &reviewer.key)).await, made_up);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_key_works_right_after_a_restart() {
    let world = World::new().await;
    let coder = world.coder("acme").await;
    let first = world.gateway().await;
    let agent = Agent::of(&world, &first, &coder.account).await;
    let (status, _) = read(agent.post("/agent/task-history", &coder.key, &json!({"task_id": "PROJ-7"}))).await;
    assert_eq!(status, StatusCode::OK);
    first.stop().await;

    let second = world.gateway().await;
    let agent = Agent {
        base: format!("http://{}", second.address),
        ..agent
    };
    let (status, _) = read(agent.post("/agent/task-history", &coder.key, &json!({"task_id": "PROJ-7"}))).await;
    assert_eq!(status, StatusCode::OK);
    world.end(&[&second]).await;
}

#[tokio::test]
async fn an_idempotency_key_makes_a_repeated_request_the_same_call() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let agent = Agent::of(&world, &gateway, &coder.account).await;
    let post = |body: &str, key: &str| {
        let body = json!({"task_id": "PROJ-7", "body": body});
        agent
            .post("/agent/task-message", &coder.key, &body)
            .header("Idempotency-Key", key)
    };
    // All at once
    let answers = futures::future::join_all((0..8).map(|_| read(post("once", "k-1")))).await;
    for answer in &answers {
        assert_eq!(answer, &answers[0]);
        assert_eq!(answer.0, StatusCode::OK);
    }
    // After the turn has ended it is still the same request
    world.run(sqlx::query("update session set active_turn_id = null")).await;
    assert_eq!(read(post("once", "k-1")).await, answers[0]);
    // With any gateway key
    let second = Agent::of(&world, &gateway, &coder.account).await;
    let body = json!({"task_id": "PROJ-7", "body": "once"});
    let again = second.post("/agent/task-message", &coder.key, &body);
    assert_eq!(read(again.header("Idempotency-Key", "k-1")).await, answers[0]);
    assert_eq!(world.database.count("select count(*) from message").await, 1);

    let (status, value) = problem(post("other", "k-1")).await;
    assert_eq!(
        (status, &value["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("idempotency_key_reused"))
    );
    assert_eq!(read(post("other", "k-2")).await.0, StatusCode::OK);
    assert_eq!(
        problem(post("other", &"k".repeat(256))).await.0,
        StatusCode::BAD_REQUEST
    );
    // Without a key, each request is a call of its own.
    for _ in 0..2 {
        let body = json!({"task_id": "PROJ-7", "body": "again"});
        assert_eq!(
            read(agent.post("/agent/task-message", &coder.key, &body)).await.0,
            StatusCode::OK
        );
    }
    assert_eq!(world.database.count("select count(*) from message").await, 4);
    assert_eq!(
        world
            .database
            .count("select count(*) from tool_call where turn_id is null")
            .await,
        3,
        "after the turn they belong to none"
    );
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn errors_are_problems_with_the_tools_own_text() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder: TestSession = world.coder("acme").await;
    let agent = Agent::of(&world, &gateway, &coder.account).await;
    let check = async |path: &str, body: Value, status: StatusCode, code: &str| {
        let (found, value) = problem(agent.post(path, &coder.key, &body)).await;
        assert_eq!((found, value["code"].as_str().unwrap()), (status, code), "{value}");
        assert!(value["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{value}");
        assert!(value["detail"].is_string(), "{value}");
    };
    check("/agent/tools/exec", json!({}), StatusCode::NOT_FOUND, "unknown_tool").await;
    check(
        "/agent/task-history",
        json!({}),
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_arguments",
    )
    .await;
    check(
        "/agent/task-history",
        json!([]),
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_arguments",
    )
    .await;
    check(
        "/agent/task-history",
        json!({"task_id": "X-1"}),
        StatusCode::NOT_FOUND,
        "task_not_found",
    )
    .await;
    check(
        "/agent/task-message",
        json!({"task_id": "PROJ-7", "body": "x".repeat(70_000)}),
        StatusCode::PAYLOAD_TOO_LARGE,
        "arguments_too_large",
    )
    .await;
    check(
        "/agent/response-request",
        json!({"agents": ["nobody"], "body": "b"}),
        StatusCode::UNPROCESSABLE_ENTITY,
        "unknown_agent",
    )
    .await;

    let document = agent.client.get(format!("{}/agent/openapi.json", agent.base));
    let (status, document) = read(document).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(document, serde_json::to_value(tool_gateway::openapi()).unwrap());
    let (status, _) = read(agent.client.get(format!("{}/readyz", agent.base))).await;
    assert_eq!(status, StatusCode::OK);
    world.end(&[&gateway]).await;
}

/// An agent with tools of its own may still be running after its turn was stopped.
#[tokio::test]
async fn after_a_stop_an_agent_reads_and_does_not_write_until_its_next_turn() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let agent = Agent::of(&world, &gateway, &coder.account).await;
    for sql in [
        "update session set active_turn_id = null, stopped_turn_id = active_turn_id",
        "update turn set state = 'aborted', finished_at = now()",
    ] {
        world.run(sqlx::query(sql)).await;
    }
    let post = || {
        let body = json!({"task_id": "PROJ-7", "body": "b"});
        agent.post("/agent/task-message", &coder.key, &body)
    };
    let (status, value) = problem(post()).await;
    assert_eq!((status, &value["code"]), (StatusCode::CONFLICT, &json!("turn_stopped")));
    assert_eq!(value["detail"], "Your turn was stopped.");
    assert!(
        value["hint"].as_str().unwrap().starts_with("Nothing was changed."),
        "{value}"
    );
    let history = agent.post("/agent/task-history", &coder.key, &json!({"task_id": "PROJ-7"}));
    assert_eq!(read(history).await.0, StatusCode::OK);
    let (_, offered) = read(agent.get("/agent/tools", &coder.key)).await;
    let offered = offered["items"].as_array().unwrap().iter().map(|tool| &tool["name"]);
    assert_eq!(
        offered.collect::<Vec<_>>(),
        ["task_history", "task_context_read", "subagent_list", "no_reply"]
    );
    let calls = "select concat_ws(' ', name, state, late) from tool_call order by name";
    assert_eq!(
        world.database.texts(calls).await,
        ["task_history finished f", "task_message refused t"]
    );

    // While a turn is in progress, a stop of the previous one does not count.
    for sql in [
        "update session set active_turn_id = stopped_turn_id",
        "update turn set state = 'awaiting_tools', finished_at = null",
    ] {
        world.run(sqlx::query(sql)).await;
    }
    assert_eq!(read(post()).await.0, StatusCode::OK);
    assert_eq!(world.database.count("select count(*) from message").await, 1);
    world.end(&[&gateway]).await;
}

/// An agent that continues after its turn does not start a new chain: two of them would wake each other for ever.
#[tokio::test]
async fn a_request_after_the_turn_follows_from_that_turn() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    world.fixture().agent(&coder.account, "reviewer").await;
    let agent = Agent::of(&world, &gateway, &coder.account).await;
    for sql in [
        "update session set active_turn_id = null",
        "update turn set state = 'finished', finished_at = now()",
    ] {
        world.run(sqlx::query(sql)).await;
    }
    let ask = json!({"agents": ["reviewer"], "body": "b"});
    assert_eq!(
        read(agent.post("/agent/response-request", &coder.key, &ask)).await.0,
        StatusCode::OK
    );
    eventually("one is asked", async || {
        (world.heard("signalbox.notification.").len() == 1).then_some(())
    })
    .await;
    let heard = &world.heard("signalbox.notification.")[0];
    assert_eq!(heard.headers.hops(), 3, "the ended turn has two hops");
    world.end(&[&gateway]).await;
}

/// A file of the session's task: kept in the agent's name, once for a key, and not beyond what its session may do.
#[tokio::test]
async fn an_agent_uploads_a_file_of_its_task() {
    let world = World::new().await;
    let limits = "artifact_bytes_max = 1200000\nartifact_account_bytes_max = 1300000\n";
    let gateway = world.gateway_with(limits).await;
    let coder = world.coder("acme").await;
    let other = world.coder("other").await;
    let agent = Agent::of(&world, &gateway, &coder.account).await;
    let upload = |key: &str, query: &str, content: Vec<u8>| {
        let request = agent
            .client
            .post(format!("{}/agent/artifacts{query}", agent.base))
            .body(content);
        request.bearer_auth(&agent.token).header("x-openclaw-session-key", key)
    };
    let keyed =
        |query: &str, content: &[u8]| upload(&coder.key, query, content.to_vec()).header("idempotency-key", "k");
    let (status, made) = read(keyed("?name=a.txt", b"text")).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    assert_eq!(
        made,
        json!({"id": made["id"], "task": "PROJ-7", "name": "a.txt", "media_type": "text/plain", "bytes": 4})
    );
    assert_eq!(read(keyed("?name=a.txt", b"text")).await, (StatusCode::CREATED, made));
    let check = async |request: RequestBuilder, status: u16, code: &str| {
        let (found, problem) = problem(request).await;
        assert_eq!(
            (found.as_u16(), problem["code"].as_str()),
            (status, Some(code)),
            "{problem}"
        );
    };
    check(keyed("?name=b.txt", b"text"), 422, "idempotency_key_reused").await;
    check(keyed("?name=a.txt", b"other"), 422, "idempotency_key_reused").await;
    check(upload(&coder.key, "", b"text".to_vec()), 422, "invalid_field").await;
    check(
        upload(&coder.key, "?name=a%0Ab", b"text".to_vec()),
        422,
        "invalid_field",
    )
    .await;
    check(upload(&coder.key, "?name=a", Vec::new()), 422, "invalid_field").await;
    check(upload(&coder.key, "?name=a", vec![0, 1]), 415, "unsupported_media_type").await;
    check(upload(&coder.key, "?name=a", vec![b'x'; 1_200_001]), 413, "too_large").await;
    check(upload(&other.key, "?name=a", b"text".to_vec()), 404, "not_found").await;
    let (status, _) = read(upload(&coder.key, "?name=large", vec![b'x'; 1_200_000])).await;
    assert_eq!(status, StatusCode::CREATED);
    check(
        upload(&coder.key, "?name=a", vec![b'y'; 200_000]),
        409,
        "artifact_quota",
    )
    .await;
    assert_eq!(
        world
            .database
            .texts(
                "select concat_ws(' ', account_id, task_id, name, created_by_kind, source) from artifact order by name"
            )
            .await,
        ["acme proj-7 a.txt agent upload", "acme proj-7 large agent upload"]
    );
    sqlx::query("update session set closed_at = now(), close_reason = 'task_done'")
        .execute(&world.database.owner)
        .await
        .unwrap();
    check(
        upload(&coder.key, "?name=late", b"text".to_vec()),
        410,
        "session_closed",
    )
    .await;
}
