//! Calls that a policy asks about: recorded, not run; run once when they are approved, with the arguments on record; refused otherwise.

use std::slice;

use contracts::{
    Headers, Outgoing, Root, header,
    message::Addressed as _,
    outgoing::Origin,
    tool::{ToolApproved, ToolRequested},
};
use domain::{
    Actor, ActorKind, QuestionId,
    ToolCallState::{Finished, Refused},
    Verdict,
    tool_policy::arguments_hash,
};
use reqwest::StatusCode;
use serde_json::{Value, json};
use storage::{
    Accounts, Role, Setting,
    question::{Answer, Ending, question_end},
};
use testkit::{eventually, rows};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::world::{Gateway, TestSession, World};

const OPEN: &str = "select id::text from question where state = 'open'";
const BODIES: &str = "select body from message order by created_at";
const CALL: &str = "select state || ' ' || (finished_at is null) from tool_call order by ordinal";

fn post(session: &TestSession, ordinal: i32, body: &str) -> ToolRequested {
    let arguments = json!({"task_id": "PROJ-7", "body": body});
    session.request(ordinal, "task_message", &arguments)
}

async fn asking(section: &str) -> (World, Gateway, TestSession) {
    let world = World::new().await;
    let gateway = world.gateway_with(section).await;
    let coder = world.coder("acme").await;
    world
        .policy(("account", "acme"), "task_message", &[("verdict", "ask")])
        .await;
    (world, gateway, coder)
}

impl World {
    /// Waits until somebody is asked.
    async fn question(&self) -> QuestionId {
        let id = eventually("a question", async || self.database.texts(OPEN).await.pop()).await;
        QuestionId::parse(&id).unwrap()
    }

    async fn decide(&self, session: &TestSession, question: QuestionId, ending: &Ending<'_>) {
        let database = self.database.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&session.account)).await.unwrap();
        let root = Root::default();
        let setting = Setting {
            root: &root,
            source: "/signalbox/orchestrator",
            origin: Origin::default(),
            now: OffsetDateTime::now_utc(),
        };
        let (_, _, messages) = question_end(&tx, &session.account, question, ending, &setting)
            .await
            .unwrap()
            .unwrap();
        tx.commit().await.unwrap();
        let wakes = messages
            .iter()
            .filter(|(_, message)| message.subject.contains(".tool.approved."));
        assert_eq!(wakes.count(), 1, "the call is woken, whatever the answer");
    }

    async fn answered(&self, session: &TestSession, question: QuestionId, verdict: Verdict, text: &str) {
        let by = Actor {
            kind: ActorKind::User,
            id: "ann".to_owned(),
            name: "Ann".to_owned(),
            via: None,
        };
        let answer = Answer {
            options: Vec::new(),
            text: Some(text.to_owned()),
        };
        let verdict = Some(verdict);
        let by = &by;
        self.decide(session, question, &Ending::Answered { by, verdict, answer })
            .await;
    }

    /// The hint of an answer, as the orchestrator publishes it; under another id for another copy.
    async fn wake(&self, session: &TestSession, call: Uuid, copy: u32) {
        let approved = ToolApproved {
            account: session.account.clone(),
            task: session.task.clone(),
            session_id: session.id,
            call,
        };
        let mut headers = Headers::default();
        headers.set(header::MESSAGE_ID, format!("{}:{copy}", approved.message_id()));
        self.publish(Outgoing {
            subject: approved.subject(&Root::default()),
            headers,
            payload: serde_json::to_vec(&approved).unwrap(),
        })
        .await;
    }
}

#[tokio::test]
async fn an_approved_call_runs_with_the_arguments_on_record_and_later_calls_wait_for_it() {
    let (world, gateway, coder) = asking("").await;
    let (first, second) = (post(&coder, 1, "asked"), coder.request(2, "no_reply", &json!({})));
    world.ask(&first).await;
    let question = world.question().await;
    let shown = "select concat_ws(' ', kind, tool, encode(arguments_hash, 'hex'), title, lapse_at > now() + interval '23 hours') from question";
    let hash: String = arguments_hash("task_message", &first.arguments)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        world.database.texts(shown).await,
        [format!("tool task_message {hash} coder asks to call task_message t")]
    );
    // Requested again, and the next call before its time.
    world.ask_as(&first, "again").await;
    world.ask(&second).await;
    world.delivered(4).await;
    assert_eq!(world.database.texts(CALL).await, ["requested true"]);
    assert_eq!(world.heard("signalbox.tool.finished.").len(), 0);

    world.answered(&coder, question, Verdict::Approved, "").await;
    world.wake(&coder, first.tool_call_id(), 1).await;
    world.answer(&first).await.ok();
    world.answer(&second).await.ok();
    assert_eq!(world.database.texts(BODIES).await, ["asked"]);
    assert_eq!(world.database.texts(CALL).await, ["finished false", "finished false"]);
    world.end(&[&gateway]).await;
}

/// Delivery may be away for minutes: the turn is asked to stop, and has not ended.
#[tokio::test]
async fn what_was_approved_does_not_run_once_its_turn_is_to_stop() {
    let (world, gateway, coder) = asking("").await;
    let call = post(&coder, 1, "never");
    world.ask(&call).await;
    let question = world.question().await;
    let stop =
        "update session set stop_turn_id = active_turn_id, stop_kind = 'stopped', stop_by = 'Ann', stop_at = now(),
                stop_then = 'continue'";
    world.run(sqlx::query(stop)).await;
    world.answered(&coder, question, Verdict::Approved, "").await;
    world.wake(&coder, call.tool_call_id(), 1).await;
    let answer = world.answer(&call).await;
    assert_eq!((answer.code(Refused), answer.late), ("turn_stopped", true));
    assert_eq!(world.database.count("select count(*) from message").await, 0);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn an_approved_call_runs_once_over_two_replicas() {
    let (world, first, coder) = asking("").await;
    let second = world.gateway().await;
    let call = post(&coder, 1, "once");
    world.ask(&call).await;
    let question = world.question().await;
    world.answered(&coder, question, Verdict::Approved, "").await;
    for copy in 0..8 {
        world.wake(&coder, call.tool_call_id(), copy).await;
        world.ask_as(&call, &format!("again {copy}")).await;
    }
    world.answer(&call).await.ok();
    world.delivered(9).await;
    world.end(&[&first, &second]).await;
    assert_eq!(world.database.texts(BODIES).await, ["once"]);
    assert_eq!(world.database.count("select count(*) from tool_call").await, 1);
}

/// The hint was lost: the next request of the call finds the answer.
#[tokio::test]
async fn a_crash_between_approval_and_run_loses_nothing() {
    let (world, gateway, coder) = asking("").await;
    let call = post(&coder, 1, "late");
    world.ask(&call).await;
    let question = world.question().await;
    gateway.stop().await;
    world.answered(&coder, question, Verdict::Approved, "").await;
    let gateway = world.gateway().await;
    world.ask_as(&call, "the turn's look").await;
    world.answer(&call).await.ok();
    assert_eq!(world.database.texts(BODIES).await, ["late"]);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn what_is_not_approved_is_denied_with_the_text() {
    let (world, gateway, coder) = asking("").await;
    let system = Actor::system();
    let withdrawn = Ending::Withdrawn {
        by: &system,
        reason: None,
        is_asker: false,
    };
    for (ordinal, ending, words) in [
        (
            1,
            None,
            "Ann did not approve the call of task_message. Answer: Not on a Friday.",
        ),
        (
            2,
            Some(Ending::Lapsed),
            "Nobody approved the call of task_message in time.",
        ),
        (
            3,
            Some(withdrawn),
            "The approval that the call of task_message waited for was withdrawn.",
        ),
    ] {
        let call = post(&coder, ordinal, "never");
        world.ask(&call).await;
        let question = world.question().await;
        match ending {
            Some(ending) => world.decide(&coder, question, &ending).await,
            None => {
                world
                    .answered(&coder, question, Verdict::Denied, "Not on a Friday.")
                    .await;
            }
        }
        world.wake(&coder, call.tool_call_id(), 1).await;
        let answer = world.answer(&call).await;
        assert_eq!(answer.code(Refused), "denied");
        assert_eq!(answer.result["error"]["message"], words);
        assert!(!answer.late);
    }
    assert_eq!(world.database.count("select count(*) from message").await, 0);
    world.end(&[&gateway]).await;
}

/// The turn was stopped while the answer was on its way.
#[tokio::test]
async fn an_approval_after_the_turn_has_ended_is_late() {
    let (world, gateway, coder) = asking("").await;
    let call = post(&coder, 1, "never");
    world.ask(&call).await;
    let question = world.question().await;
    world
        .run(sqlx::query("update turn set state = 'aborted', finished_at = now()"))
        .await;
    world.answered(&coder, question, Verdict::Approved, "").await;
    world.wake(&coder, call.tool_call_id(), 1).await;
    let answer = world.answer(&call).await;
    assert_eq!((answer.code(Refused), answer.late), ("turn_over", true));
    assert_eq!(world.database.count("select count(*) from message").await, 0);
    world.end(&[&gateway]).await;
}

/// A turn waits for its tools 600 s; what a person took for an answer is not counted.
#[tokio::test]
async fn the_time_of_a_question_does_not_count_as_waiting() {
    let (world, gateway, coder) = asking("").await;
    let (first, second) = (post(&coder, 1, "asked"), coder.request(2, "no_reply", &json!({})));
    world.record(&second).await;
    world.ask(&first).await;
    let question = world.question().await;
    for sql in [
        "update turn set waiting_since = waiting_since - interval '20 hours'",
        "update tool_call set started_at = started_at - interval '20 hours'",
    ] {
        world.run(sqlx::query(sql)).await;
    }
    world.answered(&coder, question, Verdict::Approved, "").await;
    world.wake(&coder, first.tool_call_id(), 1).await;
    world.answer(&first).await.ok();
    world.call(&second).await.ok();
    // Waiting of its own is.
    world
        .run(sqlx::query(
            "update turn set waiting_since = waiting_since - interval '601 seconds'",
        ))
        .await;
    let third = world.call(&coder.request(3, "no_reply", &json!({}))).await;
    assert_eq!((third.code(Refused), third.late), ("call_expired", true));
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn a_later_deny_holds_for_an_approved_call() {
    let (world, gateway, coder) = asking("").await;
    let call = post(&coder, 1, "never");
    world.ask(&call).await;
    let question = world.question().await;
    world.answered(&coder, question, Verdict::Approved, "").await;
    world.policy(("task", "proj-7"), "*", &[("verdict", "deny")]).await;
    world.wake(&coder, call.tool_call_id(), 1).await;
    assert_eq!(world.answer(&call).await.code(Refused), "denied");
    assert_eq!(world.database.count("select count(*) from message").await, 0);
    world.end(&[&gateway]).await;
}

/// Nobody is asked about a call that could not run, and an allowed call runs at once.
#[tokio::test]
async fn only_a_call_that_could_run_is_asked_about() {
    let (world, gateway, coder) = asking("").await;
    let bad = world
        .call(&coder.request(1, "task_message", &json!({"task_id": "PROJ-7"})))
        .await;
    assert_eq!(bad.code(domain::ToolCallState::Failed), "invalid_arguments");
    let allow = [("verdict", "allow")];
    let scope = format!("proj-7/{}", coder.agent);
    world.policy(("task_agent", &scope), "task_message", &allow).await;
    assert_eq!(world.call(&post(&coder, 2, "allowed")).await.state, Finished);
    // Allowed for another schema of the tool.
    world
        .run(sqlx::query(
            r"update tool_policy set schema_hash = '\x00' where verdict = 'allow'",
        ))
        .await;
    world.ask(&post(&coder, 3, "asked")).await;
    world.question().await;
    assert_eq!(world.database.texts(BODIES).await, ["allowed"]);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn over_http_the_same_request_has_the_result_once_it_is_decided() {
    let (world, gateway, coder) = asking("").await;
    let token = world.api_key(&coder.account, "gateway").await;
    let client = reqwest::Client::new();
    let post = async |key: &str, body: &str| {
        let request = client
            .post(format!("http://{}/agent/task-message", gateway.address))
            .bearer_auth(&token)
            .header("x-openclaw-session-key", &coder.key)
            .header("idempotency-key", key)
            .body(json!({"task_id": "PROJ-7", "body": body}).to_string());
        let response = request.send().await.unwrap();
        let status = response.status();
        (status, response.json::<Value>().await.unwrap())
    };
    let (status, asked) = post("k-1", "b").await;
    assert_eq!(
        (status, &asked["state"]),
        (StatusCode::ACCEPTED, &json!("asked")),
        "{asked}"
    );
    let question = world.question().await;
    assert_eq!(asked["question_id"], question.to_string());
    assert_eq!(post("k-1", "b").await, (status, asked));
    let (status, other) = post("k-1", "other").await;
    assert_eq!(
        (status, &other["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("idempotency_key_reused"))
    );
    world.answered(&coder, question, Verdict::Approved, "").await;
    let (status, result) = post("k-1", "b").await;
    assert_eq!((status, &result["ok"]), (StatusCode::OK, &json!(true)), "{result}");
    assert_eq!(post("k-1", "b").await, (status, result));

    let (_, asked) = post("k-2", "c").await;
    let question = world.question().await;
    world.answered(&coder, question, Verdict::Denied, "").await;
    let call = Uuid::parse_str(asked["call"].as_str().unwrap()).unwrap();
    world.wake(&coder, call, 1).await;
    let (status, denied) = post("k-2", "c").await;
    assert_eq!((status, &denied["code"]), (StatusCode::FORBIDDEN, &json!("denied")));
    assert_eq!(world.database.texts(BODIES).await, slice::from_ref(&"b".to_owned()));
    assert_eq!(world.heard("signalbox.tool.finished.").len(), 0, "no turn waits for it");

    for n in 0..10 {
        assert_eq!(post(&format!("many-{n}"), "b").await.0, StatusCode::ACCEPTED);
    }
    let (status, full) = post("one-more", "b").await;
    assert_eq!(
        (status, &full["code"]),
        (StatusCode::CONFLICT, &json!("too_many_questions"))
    );
    world.end(&[&gateway]).await;
}

/// The turn ended while somebody was asked, and the next one began.
#[tokio::test]
async fn over_http_a_call_is_of_the_turn_in_which_it_was_made() {
    let (world, gateway, coder) = asking("").await;
    let token = world.api_key(&coder.account, "gateway").await;
    let client = reqwest::Client::new();
    let post = async || {
        let request = client
            .post(format!("http://{}/agent/task-message", gateway.address))
            .bearer_auth(&token)
            .header("x-openclaw-session-key", &coder.key)
            .header("idempotency-key", "k-1")
            .body(json!({"task_id": "PROJ-7", "body": "never"}).to_string());
        request.send().await.unwrap().json::<Value>().await.unwrap()
    };
    assert_eq!(post().await["state"], json!("asked"));
    let question = world.question().await;
    world
        .run(sqlx::query("update turn set state = 'failed', finished_at = now()"))
        .await;
    let next = Uuid::now_v7();
    let row = rows("turn").with("id", next).with("number", 9).with("state", "calling");
    row.from("session s").insert(&world.database.owner).await;
    world
        .run(sqlx::query("update session set active_turn_id = $1").bind(next))
        .await;
    world.answered(&coder, question, Verdict::Approved, "").await;
    assert_eq!(post().await["code"], json!("turn_over"));
    assert_eq!(world.database.count("select count(*) from message").await, 0);
    world.end(&[&gateway]).await;
}
