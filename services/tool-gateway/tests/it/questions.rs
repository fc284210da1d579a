//! Questions and plans of agents: asked, answered once, taken back.

use domain::ToolCallState::{Failed, Refused};
use serde_json::{Value, json};
use storage::lifecycle::question::asked_id;

use crate::world::{TestSession, World};

async fn question_of(world: &World, session: &TestSession, ordinal: i32, more: Value) -> String {
    let mut asking = json!({"question": "Which database?\nIt decides the schema."});
    for (name, value) in more.as_object().unwrap() {
        asking[name] = value.clone();
    }
    let asked = world
        .call(&session.request(ordinal, "ask_question", &asking))
        .await
        .ok();
    asked["question_id"].as_str().unwrap().to_owned()
}

const QUESTIONS: &str = "
    select concat_ws(' ', kind, state, title, array_to_string(audience, ','), verdict, answer ->> 'text', answer -> 'options',
                     ended_by_name, reason)
    from question order by created_at, id";

async fn questions(world: &World) -> Vec<String> {
    world.database.texts(QUESTIONS).await
}

#[tokio::test]
async fn an_agent_asks_and_another_answers_once() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let reviewer = world.fixture().agent(&coder.account, "reviewer").await;
    let stranger = world.fixture().agent(&coder.account, "stranger").await;
    let reviewer = world.session(&coder.account, coder.task.as_ref(), reviewer).await;
    let stranger = world.session(&coder.account, coder.task.as_ref(), stranger).await;

    let options = json!([{"id": "pg", "label": "Postgres"}, {"id": "lite", "label": "SQLite"}]);
    let more = json!({"ask": ["reviewer", "role:admin"], "options": options});
    let id = question_of(&world, &coder, 1, more).await;
    world.told().await;
    let asked = world
        .database
        .texts("select subject from outbox where subject like '%.notification.%'")
        .await;
    assert_eq!(asked, ["signalbox.notification.acme.PROJ-7"], "the reviewer is asked");

    // Who is not asked, and who asks, answers nothing; a wrong answer neither.
    let answer = |session: &TestSession, ordinal, answer: Value| {
        let mut said = answer;
        said["question_id"] = json!(id);
        session.request(ordinal, "answer_question", &said)
    };
    let refused = world.call(&answer(&stranger, 1, json!({"text": "SQLite"}))).await;
    assert_eq!(refused.code(Failed), "question_not_found");
    let refused = world.call(&answer(&coder, 2, json!({"text": "SQLite"}))).await;
    assert_eq!(refused.code(Refused), "executor_excluded");
    let refused = world.call(&answer(&reviewer, 1, json!({"options": ["oracle"]}))).await;
    assert_eq!(refused.code(Failed), "invalid_arguments");
    let nowhere = json!({"question_id": "none", "text": "x"});
    let refused = world.call(&reviewer.request(2, "answer_question", &nowhere)).await;
    assert_eq!(refused.code(Failed), "question_not_found");

    world
        .call(&answer(
            &reviewer,
            3,
            json!({"options": ["pg"], "text": "It is there."}),
        ))
        .await
        .ok();
    let second = world.call(&answer(&reviewer, 4, json!({"options": ["lite"]}))).await;
    assert_eq!(second.code(Failed), "already_answered");
    assert_eq!(
        questions(&world).await,
        [
            "question answered Which database? agent:REV,role:admin It is there. [\"pg\"] reviewer"
                .replace("REV", &reviewer.agent.to_string())
        ]
    );
    // One item, in the asker's queue.
    let items = "select n.kind || ' ' || n.state || ' ' || n.sender_name || ' ' || n.title || ': ' || n.body || (n.metadata ->> 'reopen')
                 || ' ' || (q.notification_id = n.id) || ' ' || (n.session_id = q.session_id) || ' ' || n.hops
                 from notification n cross join question q";
    assert_eq!(
        world.database.texts(items).await,
        [
            "answer queued Signalbox Answer to your question: Which database?: reviewer answered.\nChosen: pg (Postgres)\nIt is there.\n\
          false true true 3"
        ]
    );
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn asking_is_refused_while_a_newer_message_waits() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    world.waiting(&coder, "from-agent", "agent").await;
    question_of(&world, &coder, 1, json!({})).await;
    world.waiting(&coder, "from-person", "user").await;
    let asking = json!({"question": "And now?"});
    let refused = world.call(&coder.request(2, "ask_question", &asking)).await;
    assert_eq!(refused.code(Refused), "unread_message");
    assert!(
        refused.result["error"]["message"]
            .as_str()
            .unwrap()
            .contains("A newer message waits for you.")
    );
    // One that is older than the turn does not count.
    world
        .run(sqlx::query(
            "update notification set created_at = now() - interval '1 day' where id = 'from-person'",
        ))
        .await;
    world.call(&coder.request(3, "ask_question", &asking)).await.ok();
    world.end(&[&gateway]).await;
}

/// The agent's session goes on: a session without a task outlives the tasks of its turns.
#[tokio::test]
async fn on_a_task_that_has_ended_nothing_is_asked_and_no_timer_set() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    world.run(sqlx::query("update task set status = 'done'")).await;
    let later = json!({"after_minutes": 5, "note": "Look at the build."});
    for (ordinal, tool, arguments) in [
        (1, "ask_question", json!({"question": "And now?"})),
        (2, "check_later", later),
    ] {
        let refused = world.call(&coder.request(ordinal, tool, &arguments)).await;
        assert_eq!(refused.code(Refused), "task_ended", "{tool}");
    }
    let left = "select ((select count(*) from question) + (select count(*) from timer))::text";
    assert_eq!(world.database.texts(left).await, ["0"]);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn open_questions_of_a_session_are_limited() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let mut first = String::new();
    for ordinal in 1..=10 {
        first = question_of(&world, &coder, ordinal, json!({})).await;
    }
    let asking = json!({"question": "One more?"});
    let refused = world.call(&coder.request(11, "ask_question", &asking)).await;
    assert_eq!(refused.code(Refused), "too_many_questions");
    let taken_back = json!({"question_id": first, "reason": "found it"});
    world
        .call(&coder.request(12, "withdraw_question", &taken_back))
        .await
        .ok();
    let again = world.call(&coder.request(13, "withdraw_question", &taken_back)).await;
    assert_eq!(again.code(Failed), "withdrawn");
    world.call(&coder.request(14, "ask_question", &asking)).await.ok();
    assert_eq!(
        world.database.count("select count(*) from notification").await,
        0,
        "the asker need not be told"
    );
    world.end(&[&gateway]).await;
}

const TASK: &str = "select concat_ws(' ', status, status_before, plan_approved) from task where id = 'proj-7'";

#[tokio::test]
async fn a_plan_holds_its_task_until_it_is_answered() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let reviewer = world.fixture().agent(&coder.account, "reviewer").await;
    let reviewer = world.session(&coder.account, coder.task.as_ref(), reviewer).await;
    let gate = format!(
        "update task set plan_gate = 'required', plan_audience = array['agent:{}'] where id = 'proj-7'",
        reviewer.agent
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(gate))
        .execute(&world.database.owner)
        .await
        .unwrap();
    // What any publisher may send: no question has it.
    world
        .run(sqlx::query("update turn set cause = 'asked' where agent_id = $1").bind(reviewer.agent.uuid()))
        .await;
    world.waiting(&reviewer, "asked", "agent").await;
    world
        .run(sqlx::query(
            "update notification set kind = 'question', state = 'running'",
        ))
        .await;
    // The reviewer's turn was woken by a question: the item has the id that the question gives it.
    let woken_by = async |question: &Value| {
        let question = question.as_str().unwrap();
        let id = asked_id(question.parse().unwrap(), reviewer.agent).to_string();
        let woken = sqlx::query("update turn set cause = $1 where agent_id = $2");
        world.run(woken.bind(&id).bind(reviewer.agent.uuid())).await;
        let item = sqlx::query(
            "update notification set id = $1, kind = 'question', metadata = jsonb_build_object('question_id', $2) where session_id = $3",
        );
        let session = reviewer.id.uuid();
        world.run(item.bind(id).bind(question.to_owned()).bind(session)).await;
    };

    let status = json!({"task_id": "PROJ-7", "status": "review"});
    let refused = world.call(&coder.request(1, "task_status", &status)).await;
    assert_eq!(refused.code(Refused), "plan_required");
    let message = json!({"task_id": "PROJ-7", "body": "I begin with a plan."});
    world.call(&coder.request(2, "task_message", &message)).await.ok();

    let plan = |text: &str| json!({"task_id": "PROJ-7", "plan": text, "summary": "Two steps"});
    let first = world
        .call(&coder.request(3, "submit_plan", &plan("One, two.")))
        .await
        .ok();
    assert_eq!(first["plan_revision"], 1);
    assert_eq!(world.database.texts(TASK).await, ["awaiting_approval in_progress f"]);
    // Another takes its place; the status before is that of the beginning.
    let second = world
        .call(&coder.request(4, "submit_plan", &plan("One, two, three.")))
        .await
        .ok();
    assert_eq!(second["plan_revision"], 2);
    assert_eq!(world.database.texts(TASK).await, ["awaiting_approval in_progress f"]);
    let awaits = world.call(&reviewer.request(1, "task_status", &status)).await;
    assert_eq!(awaits.code(Refused), "plan_required");

    let answer = |id: &Value, verdict: &str| json!({"question_id": id, "verdict": verdict, "text": "Smaller."});
    let forged = world
        .call(&reviewer.request(2, "answer_question", &answer(&second["question_id"], "changes")))
        .await;
    assert_eq!(forged.code(Refused), "executor_excluded");
    woken_by(&second["question_id"]).await;
    let old = world
        .call(&reviewer.request(3, "answer_question", &answer(&first["question_id"], "approved")))
        .await;
    assert_eq!(old.code(Failed), "withdrawn");
    world
        .call(&reviewer.request(4, "answer_question", &answer(&second["question_id"], "changes")))
        .await
        .ok();
    assert_eq!(world.database.texts(TASK).await, ["in_progress f"]);
    let refused = world.call(&coder.request(5, "task_status", &status)).await;
    assert_eq!(refused.code(Refused), "plan_required", "the tools stay shut");

    let third = world.call(&coder.request(6, "submit_plan", &plan("One."))).await.ok();
    // Whoever works on the task does not decide.
    let own = world
        .call(&coder.request(7, "answer_question", &answer(&third["question_id"], "approved")))
        .await;
    assert_eq!(own.code(Refused), "executor_excluded");
    woken_by(&third["question_id"]).await;
    // Nor does an agent that has changed something in the turn that the question began.
    world
        .run(
            sqlx::query(
                "update tool_call set name = 'task_status', state = 'finished' where turn_id = $1 and ordinal = 2",
            )
            .bind(reviewer.turn.uuid()),
        )
        .await;
    let works = world
        .call(&reviewer.request(5, "answer_question", &answer(&third["question_id"], "approved")))
        .await;
    assert_eq!(works.code(Refused), "executor_excluded");
    world
        .run(
            sqlx::query("update tool_call set name = 'task_history' where turn_id = $1 and ordinal = 2")
                .bind(reviewer.turn.uuid()),
        )
        .await;
    world
        .call(&reviewer.request(6, "answer_question", &answer(&third["question_id"], "approved")))
        .await
        .ok();
    assert_eq!(world.database.texts(TASK).await, ["in_progress t"]);
    world.call(&coder.request(8, "task_status", &status)).await.ok();
    let items = "select body from notification where kind = 'answer' order by position";
    let bodies = world.database.texts(items).await;
    assert_eq!(bodies.len(), 2);
    assert!(
        bodies[0].contains("reviewer: changes.\nSmaller.\nThe plan is not approved"),
        "{}",
        bodies[0]
    );
    assert!(bodies[1].contains("The plan is approved"), "{}", bodies[1]);
    world.end(&[&gateway]).await;
}

/// Without a gate, too: what a person is asked to decide is not carried out meanwhile.
#[tokio::test]
async fn a_plan_shuts_the_tools_until_one_is_approved() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let status = json!({"task_id": "PROJ-7", "status": "review"});
    let plan = json!({"task_id": "PROJ-7", "plan": "One.", "summary": "One step"});
    world.call(&coder.request(1, "submit_plan", &plan)).await.ok();
    let shut = world.call(&coder.request(2, "task_status", &status)).await;
    assert_eq!(shut.code(Refused), "plan_required");
    let denied = "update question set state = 'answered', verdict = 'denied'";
    world.run(sqlx::query(denied)).await;
    world
        .run(sqlx::query(
            "update task set status = 'in_progress', status_before = null",
        ))
        .await;
    let shut = world.call(&coder.request(3, "task_status", &status)).await;
    assert_eq!(shut.code(Refused), "plan_required");
    world.run(sqlx::query("update task set plan_approved = true")).await;
    world.call(&coder.request(4, "task_status", &status)).await.ok();
    world.end(&[&gateway]).await;
}

/// An agent that reviews passes the stage, and the task is done; opened again, it passes the stage again.
#[tokio::test]
async fn an_agent_that_is_asked_passes_a_stage() {
    let world = World::new().await;
    let _gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let reviewer = world.fixture().agent(&coder.account, "reviewer").await;
    let stage = format!(
        "insert into task_stage (account_id, task_id, ordinal, name, audience) values ('acme', 'proj-7', 1, 'looks', '{{agent:{reviewer}}}');
         update task set stages = 1"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(stage))
        .execute(&world.database.owner)
        .await
        .unwrap();
    let reviewer = world.session(&coder.account, coder.task.as_ref(), reviewer).await;
    let done = json!({"task_id": "PROJ-7", "status": "done"});
    world.call(&coder.request(1, "task_status", &done)).await.ok();
    assert_eq!(world.database.texts("select status from task").await, ["review"]);
    let id = world.database.texts("select id::text from question").await.remove(0);
    let approved = json!({"question_id": id, "verdict": "approved"});
    let answered = world
        .call(&reviewer.request(1, "answer_question", &approved))
        .await
        .ok();
    assert_eq!(answered["state"], "answered");
    let passed = "select concat_ws(' ', k.status, s.passed_at is not null, s.question is not null) from task k join task_stage s on s.task_id = k.id";
    assert_eq!(world.database.texts(passed).await, ["done t t"]);
}

/// A question that lapses wakes its agent as a timer does, so the chain of both ends.
#[tokio::test]
async fn lapsing_questions_count_as_timers() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let lapsing = json!({"question": "And now?", "lapse_hours": 1});
    let began = async |chain: i32| {
        world
            .run(sqlx::query("update timer set state = 'fired', notification_id = 'n-timer', chain = $1").bind(chain))
            .await;
        world
            .run(sqlx::query("update turn set notification_ids = '{n-timer}'"))
            .await;
    };
    world.call(&coder.request(1, "ask_question", &lapsing)).await.ok();
    began(7).await;
    world.call(&coder.request(2, "ask_question", &lapsing)).await.ok();
    let chains = "select chain::text from timer where state = 'waiting'";
    assert_eq!(world.database.texts(chains).await, ["8"]);
    world
        .run(sqlx::query("delete from timer where state = 'waiting'"))
        .await;
    began(50).await;
    let ended = world.call(&coder.request(3, "ask_question", &lapsing)).await;
    assert_eq!(ended.code(Refused), "timer_chain");
    world
        .call(&coder.request(4, "ask_question", &json!({"question": "And now?"})))
        .await
        .ok();
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn the_end_of_a_task_ends_its_questions_and_cancels_their_answers() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let reviewer = world.fixture().agent(&coder.account, "reviewer").await;
    let reviewer = world.session(&coder.account, coder.task.as_ref(), reviewer).await;
    let answered = question_of(&world, &coder, 1, json!({"ask": ["reviewer"]})).await;
    let open = question_of(&world, &coder, 2, json!({"ask": ["reviewer"]})).await;
    let answer = |id: &str| json!({"question_id": id, "text": "Yes"});
    world
        .call(&reviewer.request(1, "answer_question", &answer(&answered)))
        .await
        .ok();
    let done = json!({"task_id": "PROJ-7", "status": "done"});
    world.call(&coder.request(3, "task_status", &done)).await.ok();
    let states = "select state || ' ' || coalesce(reason, '') from question order by created_at, id";
    assert_eq!(
        world.database.texts(states).await,
        ["answered ", "cancelled task closed"]
    );
    let items = "select kind || ' ' || state || ' ' || reason from notification";
    assert_eq!(world.database.texts(items).await, ["answer cancelled task closed"]);
    let late = world
        .call(&reviewer.request(2, "answer_question", &answer(&open)))
        .await;
    assert!(late.late, "the session has ended");
    world.end(&[&gateway]).await;
}
