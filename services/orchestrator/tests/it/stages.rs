//! Review stages: a move to done is caught, each stage asks once, changes send the work back, an admin passes over them.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use testkit::rows;

use crate::{
    seed,
    world::{Answer, Tenant, World},
};

const STATUS: &str = "select status from task where id = 'proj-7'";
const QUESTIONS: &str = "select concat_ws(' ', stage, state, verdict) from question order by id";
const OPEN: &str = "select count(*) from session where closed_at is null";

struct Work {
    world: World,
    tenant: Tenant,
}

impl Work {
    /// `coder` works on PROJ-7, which passes these stages.
    async fn with(stages: Value) -> Work {
        let world = World::new().await;
        let tenant = world.tenant("acme").await;
        let coder = world.agent(&tenant, "coder").await;
        world.task(&tenant, "PROJ-7", &["coder"]).await;
        seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
        let work = Work { world, tenant };
        let set = work.stages(stages).await;
        assert_eq!(set.status, StatusCode::OK, "{set:?}");
        work
    }

    async fn stages(&self, stages: Value) -> Answer {
        let path = self.tenant.path("/tasks/PROJ-7/stages");
        let call = self.world.call(Method::PUT, &path).token(&self.tenant.member);
        call.json(&json!({"stages": stages})).send().await
    }

    async fn done(&self, key: &str, more: Value) -> Answer {
        let mut body = json!({"status": "done"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.world.patch(key, &self.tenant.path("/tasks/Proj-7"), body).await
    }

    async fn caught(&self) -> String {
        let answer = self.done(&self.tenant.member, json!({})).await;
        assert_eq!(
            (answer.status, &answer.body["status"]),
            (StatusCode::OK, &json!("review"))
        );
        answer.body["caught"]["question_id"].as_str().unwrap().to_owned()
    }

    async fn answer(&self, question: &str, body: Value) -> Answer {
        let path = self.tenant.path(&format!("/questions/{question}/answer"));
        self.world.post(&self.tenant.member, &path, body).await
    }

    async fn texts(&self, sql: &'static str) -> Vec<String> {
        self.world.test.texts(sql).await
    }
}

fn is(answer: &Answer, status: u16, code: &str) {
    assert_eq!(
        (answer.status.as_u16(), &answer.body["code"]),
        (status, &json!(code)),
        "{answer:?}"
    );
}

#[tokio::test]
async fn a_caught_done_and_its_stage_are_one() {
    let work = Work::with(json!([{"name": "tests"}, {"name": "security", "audience": ["role:admin"]}])).await;
    let first = work.caught().await;
    assert_eq!(work.texts(STATUS).await, ["review"]);
    assert_eq!(work.texts(QUESTIONS).await, ["tests open"]);
    assert_eq!(work.world.test.count(OPEN).await, 1, "its session stays open");
    // Called done twice.
    assert_eq!(work.caught().await, first);
    assert_eq!(work.texts(QUESTIONS).await, ["tests open"]);
    is(
        &work
            .stages(json!([{"name": "security", "audience": ["role:admin"]}]))
            .await,
        409,
        "stage_open",
    );

    let approved = work.answer(&first, json!({"verdict": "approved"})).await;
    assert_eq!(approved.status, StatusCode::OK, "{approved:?}");
    assert_eq!(
        work.texts(QUESTIONS).await,
        ["tests answered approved", "security open"]
    );
    assert_eq!(work.texts(STATUS).await, ["review"]);
    let second = work.caught().await;
    is(
        &work.answer(&second, json!({"verdict": "approved"})).await,
        403,
        "not_asked",
    );
    let path = work.tenant.path(&format!("/questions/{second}/answer"));
    let approved = work
        .world
        .post(&work.tenant.admin, &path, json!({"verdict": "approved"}))
        .await;
    assert_eq!(approved.status, StatusCode::OK, "{approved:?}");
    assert_eq!(work.texts(STATUS).await, ["done"]);
    assert_eq!(
        work.world.test.count(OPEN).await,
        0,
        "the last stage closes its sessions"
    );
    let shown = work
        .world
        .get(&work.tenant.member, &work.tenant.path("/tasks/PROJ-7/stages"))
        .await;
    let stages = shown.body["stages"].as_array().unwrap();
    assert!(stages.iter().all(|stage| stage["passed_at"].is_string()), "{shown:?}");
    let told = work.world.sent_on("signalbox.event.acme.PROJ-7.task.changed").await;
    let details: Vec<&Value> = told.iter().map(|event| &event.payload["data"]["detail"]).collect();
    assert_eq!(details, ["tests, security", "tests: approved", "security: approved"]);
}

/// A member sets up the review of an admin and does not take it away: neither the stage nor those who are asked.
#[tokio::test]
async fn a_review_is_taken_away_by_those_who_review() {
    let security = json!({"name": "security", "audience": ["role:admin"]});
    let work = Work::with(json!([{"name": "tests"}, security])).await;
    for looser in [
        json!([]),
        json!([{"name": "tests"}]),
        json!([{"name": "tests"}, {"name": "security"}]),
        json!([{"name": "safety", "audience": ["role:admin"]}]),
    ] {
        is(&work.stages(looser).await, 403, "not_asked");
    }
    let other = work.stages(json!([security, {"name": "style"}])).await;
    assert_eq!(other.status, StatusCode::OK, "{other:?}");
    let path = work.tenant.path("/tasks/PROJ-7/stages");
    let call = work.world.call(Method::PUT, &path).token(&work.tenant.admin);
    let gone = call.json(&json!({"stages": []})).send().await;
    assert_eq!(gone.status, StatusCode::OK, "{gone:?}");
}

#[tokio::test]
async fn changes_go_back_and_the_next_done_opens_the_same_stage() {
    let work = Work::with(json!([{"name": "tests"}, {"name": "security"}])).await;
    let first = work.caught().await;
    work.answer(&first, json!({"verdict": "approved"})).await;
    let second = work.caught().await;
    is(
        &work.answer(&second, json!({"verdict": "changes"})).await,
        422,
        "invalid_answer",
    );
    let back = work
        .answer(&second, json!({"verdict": "changes", "text": "Name the keys."}))
        .await;
    assert_eq!(back.status, StatusCode::OK, "{back:?}");
    assert_eq!(work.texts(STATUS).await, ["in_progress"]);
    let items = "select concat_ws(' ', kind, sender_kind, body like '%Name the keys.%', state) from notification";
    assert_eq!(work.texts(items).await, ["review user t queued"]);
    let again = work.caught().await;
    assert_ne!(again, second);
    assert_eq!(
        work.texts(QUESTIONS).await,
        ["tests answered approved", "security answered changes", "security open"]
    );
    work.answer(&again, json!({"verdict": "approved"})).await;
    assert_eq!(work.texts(STATUS).await, ["done"]);
}

#[tokio::test]
async fn two_done_at_once_open_one_review() {
    let work = Work::with(json!([{"name": "tests"}])).await;
    let (one, other) = tokio::join!(work.caught(), work.caught());
    assert_eq!(one, other);
    assert_eq!(work.texts(QUESTIONS).await, ["tests open"]);
    let approve = || work.answer(&one, json!({"verdict": "approved"}));
    let (a, b) = tokio::join!(approve(), approve());
    let mut codes = [a.status.as_u16(), b.status.as_u16()];
    codes.sort_unstable();
    assert_eq!(codes, [200, 409]);
    assert_eq!(work.texts(STATUS).await, ["done"]);
}

/// The turn that said `done` ends after the review has opened: that is no change. Any turn on the task that begins later and ends makes
/// the review stale, also after a handover to another agent.
#[tokio::test]
async fn work_that_went_on_is_reviewed_again() {
    let work = Work::with(json!([{"name": "tests"}])).await;
    let worked = async |agent: &str, number: i32, state: &str| {
        let row = rows("turn").with("state", state).with("number", number);
        let of = format!("session s join agent a on a.id = s.agent_id where a.slug = '{agent}'");
        row.set("started_at", "now()")
            .from(of)
            .insert(&work.world.test.owner)
            .await;
    };
    worked("coder", 1, "awaiting_tools").await;
    let review = work.caught().await;
    let ends = "update turn set state = 'finished', finished_at = now()";
    work.world.execute(ends).await;
    let tester = work.world.agent(&work.tenant, "tester").await;
    seed::session(&work.world, &work.tenant, "PROJ-7", &tester, 1, true).await;
    let handed = work.tenant.path("/tasks/PROJ-7/handover");
    let to = json!({"from": "coder", "to": "tester"});
    let handed = work.world.post(&work.tenant.member, &handed, to).await;
    assert_eq!(handed.status, StatusCode::OK, "{handed:?}");
    worked("tester", 1, "awaiting_tools").await;
    work.world.execute(ends).await;
    let approve = json!({"verdict": "approved"});
    is(&work.answer(&review, approve.clone()).await, 409, "work_changed");
    // Called done again: what is there now is reviewed.
    assert_eq!(work.caught().await, review);
    worked("tester", 2, "awaiting_tools").await;
    work.world.execute(ends).await;
    is(&work.answer(&review, approve).await, 409, "work_changed");
    let answer = work
        .answer(&review, json!({"verdict": "approved", "accept_stale": true}))
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(work.texts(STATUS).await, ["done"]);
}

/// What a member has passed is passed for members, and until the task is opened again.
#[tokio::test]
async fn a_passed_stage_holds_for_its_audience_and_until_the_task_is_opened_again() {
    let work = Work::with(json!([{"name": "security"}])).await;
    let first = work.caught().await;
    let approved = work.answer(&first, json!({"verdict": "approved"})).await;
    assert_eq!(approved.status, StatusCode::OK, "{approved:?}");
    assert_eq!(work.texts(STATUS).await, ["done"]);
    let path = work.tenant.path("/tasks/PROJ-7");
    let reopen = async || {
        let body = json!({"status": "in_progress"});
        work.world.patch(&work.tenant.member, &path, body).await
    };
    assert_eq!(reopen().await.status, StatusCode::OK);
    let second = work.caught().await;
    work.answer(&second, json!({"verdict": "approved"})).await;
    assert_eq!(work.texts(STATUS).await, ["done"]);
    // The stage of another audience is another stage.
    let admins = work
        .stages(json!([{"name": "security", "audience": ["role:admin"]}]))
        .await;
    assert_eq!(admins.status, StatusCode::OK, "{admins:?}");
    assert_eq!(admins.body["stages"][0]["passed_at"], Value::Null);
    assert_eq!(reopen().await.status, StatusCode::OK);
    let third = work.caught().await;
    is(
        &work.answer(&third, json!({"verdict": "approved"})).await,
        403,
        "not_asked",
    );
}
