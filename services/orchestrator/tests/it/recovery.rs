//! What moves tasks next, and what is done about those that nothing moves on.

use domain::{RecoveryCause, RecoveryState};
use orchestrator::{
    forget::forget_once,
    recovery::sweep::{Rounds, look_once},
};
use serde_json::{Value, json};
use storage::{
    Accounts,
    recovery::{Stuck, recovery_note},
};
use testkit::rows;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::{
    seed,
    world::{Tenant, World},
};

const ROWS: &str = "select concat_ws(' ', cause, state, attempts, reason) from recovery order by created_at, id";

/// A task that its agent has left alone for an hour.
async fn stranded(liveness: &str) -> (World, Tenant, String) {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &[&coder]).await;
    let changed = world
        .patch(&tenant.admin, &tenant.path(""), json!({"liveness": liveness}))
        .await;
    assert_eq!(changed.body["liveness"], liveness, "{changed:?}");
    world.an_hour_later().await;
    world.told().await;
    (world, tenant, coder)
}

impl World {
    async fn an_hour_later(&self) {
        self.execute("update task set updated_at = updated_at - interval '1 hour'")
            .await;
    }

    async fn look(&self) -> u64 {
        let mut rounds = Rounds::default();
        look_once(&self.app, &mut rounds, &CancellationToken::new())
            .await
            .unwrap()
    }

    /// The kinds of what was sent since, sorted.
    async fn told(&self) -> Vec<String> {
        let mut told: Vec<String> = self
            .sent()
            .await
            .into_iter()
            .map(|sent| {
                sent.subject
                    .split('.')
                    .skip(1)
                    .filter(|word| *word != "acme" && *word != "PROJ-7")
                    .collect::<Vec<_>>()
                    .join(".")
            })
            .collect();
        told.sort();
        self.execute("delete from outbox").await;
        told
    }

    async fn next(&self, tenant: &Tenant, task: &str) -> Value {
        let answer = self
            .get(&tenant.member, &tenant.path(&format!("/tasks/{task}/next")))
            .await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let read = self.get(&tenant.member, &tenant.path(&format!("/tasks/{task}"))).await;
        assert_eq!(read.body["next"], answer.body);
        answer.body
    }

    async fn item_ended(&self) {
        let item = rows("notification").set("id", "(select notification_id from recovery)");
        let item = item.with("kind", "recovery").with("state", "delivered");
        item.insert(&self.test.owner).await;
    }
}

#[tokio::test]
async fn a_stranded_task_gets_one_item_then_a_person() {
    let (world, tenant, _) = stranded("recover").await;
    assert_eq!(world.next(&tenant, "PROJ-7").await["code"], "stalled");
    world.look().await;
    assert_eq!(world.test.texts(ROWS).await, ["stranded open 1"]);
    assert_eq!(
        world.told().await,
        ["event.recovery.changed", "event.task.stalled", "notification"]
    );
    let next = world.next(&tenant, "PROJ-7").await;
    assert_eq!(next["code"], "recovery");
    // An item that waits is not repeated.
    assert_eq!(world.look().await, 0);
    // The agent's reply is no stored change.
    world.item_ended().await;
    assert_eq!(world.look().await, 2);
    assert_eq!(world.test.texts(ROWS).await, ["stranded person 2"]);
    assert_eq!(
        world.told().await,
        ["event.recovery.changed", "event.task.needs_person"]
    );
    let next = world.next(&tenant, "PROJ-7").await;
    assert_eq!((&next["code"], &next["on"]), (&json!("waiting"), &json!("person")));
    // A person is told once a row.
    world.look().await;
    assert!(world.told().await.is_empty());
}

#[tokio::test]
async fn words_reset_no_recovery_and_a_stored_change_closes_it() {
    let (world, tenant, _) = stranded("watch").await;
    world.look().await;
    assert_eq!(world.test.texts(ROWS).await, ["stranded person 1"]);
    assert_eq!(
        world.told().await,
        [
            "event.recovery.changed",
            "event.task.needs_person",
            "event.task.stalled"
        ]
    );
    let said = world
        .post(
            &tenant.service,
            &tenant.path("/tasks/PROJ-7/messages"),
            json!({"body": "I go on with it now."}),
        )
        .await;
    assert_eq!(said.status, 201, "{said:?}");
    world.told().await;
    assert_eq!(world.look().await, 0);
    let moved = world
        .patch(
            &tenant.member,
            &tenant.path("/tasks/PROJ-7"),
            json!({"status": "in_progress"}),
        )
        .await;
    assert_eq!(moved.status, 200);
    world.told().await;
    assert_eq!(world.look().await, 1);
    assert_eq!(world.test.texts(ROWS).await, ["stranded closed 1 superseded"]);
    assert_eq!(world.told().await, ["event.recovery.changed"]);
    // And is stranded again, with other facts.
    world.an_hour_later().await;
    world.look().await;
    assert_eq!(
        world.test.texts(ROWS).await,
        ["stranded closed 1 superseded", "stranded person 1"]
    );
}

#[tokio::test]
async fn an_ended_task_and_a_person_close_a_recovery() {
    let (world, tenant, _) = stranded("watch").await;
    world.look().await;
    let list = |state: &str| tenant.path(&format!("/recoveries?task=proj-7&state={state}"));
    let listed = world.get(&tenant.member, &list("person")).await;
    let id = listed.body["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(listed.body["items"][0]["task"], "PROJ-7");
    let path = tenant.path(&format!("/recoveries/{id}/dismiss"));
    for token in [&tenant.service, &tenant.gateway] {
        world
            .post(token, &path, json!({}))
            .await
            .is_problem(403, "forbidden", "");
    }
    let dismissed = world.post(&tenant.member, &path, json!({})).await;
    assert_eq!(dismissed.body["state"], "closed", "{dismissed:?}");
    let reason = dismissed.body["reason"].as_str().unwrap();
    assert!(reason.starts_with("dismissed: by "), "{reason}");
    // The same facts were seen to.
    assert_eq!(world.look().await, 0);
    assert!(world.get(&tenant.member, &list("person")).await.column("id").is_empty());
    assert_eq!(world.get(&tenant.member, &list("closed")).await.column("id"), [id]);
    let unknown = tenant.path("/recoveries/00000000-0000-0000-0000-000000000001/dismiss");
    world
        .post(&tenant.admin, &unknown, json!({}))
        .await
        .is_problem(404, "not_found", "");

    world.execute("update task set status = 'pending'").await;
    world.look().await;
    assert_eq!(world.test.texts(ROWS).await.len(), 2);
    let done = world
        .patch(&tenant.member, &tenant.path("/tasks/PROJ-7"), json!({"status": "done"}))
        .await;
    assert_eq!(done.status, 200);
    assert_eq!(done.body["next"], Value::Null);
    assert_eq!(world.next(&tenant, "PROJ-7").await["code"], "nothing");
    assert_eq!(world.test.texts(ROWS).await[1], "stranded closed 1 task closed");

    let kept = "select count(*)::text from recovery";
    world
        .execute("update recovery set ended_at = now() - interval '91 days'")
        .await;
    forget_once(&world.app, &CancellationToken::new()).await.unwrap();
    assert_eq!(world.test.texts(kept).await, ["0"]);
}

#[tokio::test]
async fn what_moves_by_itself_is_not_stranded() {
    let (world, tenant, coder) = stranded("watch").await;
    let (session, _) = seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    let next = world.next(&tenant, "PROJ-7").await;
    assert_eq!((&next["code"], &next["on"]), (&json!("waiting"), &json!("tools")));
    assert_eq!(world.look().await, 0);
    world
        .execute("update session set phase = 'idle', active_turn_id = null, queued = 1, queue_tail = 1")
        .await;
    seed::queued(&world, &tenant, session, "n-1").await;
    assert_eq!(world.next(&tenant, "PROJ-7").await["code"], "queued");
    assert_eq!(world.look().await, 0);
    world
        .execute("update session set phase = 'backoff', gate = 'stopped', gated_since = now()")
        .await;
    let next = world.next(&tenant, "PROJ-7").await;
    assert_eq!((&next["code"], &next["on"]), (&json!("waiting"), &json!("person")));
    assert_eq!(world.look().await, 0);
    // A person is to do something by the status.
    world
        .execute("update session set phase = 'idle', gate = null, gated_since = null, queued = 0")
        .await;
    world
        .execute("update turn set finished_at = now(), state = 'finished'")
        .await;
    world.execute("update task set status = 'review'").await;
    assert_eq!(world.look().await, 0);
    // The turn ended just now.
    world.execute("update task set status = 'in_progress'").await;
    assert_eq!(world.look().await, 0);
    world
        .execute("update turn set finished_at = now() - interval '1 hour'")
        .await;
    assert_ne!(world.look().await, 0);
}

#[tokio::test]
async fn an_agent_s_one_session_for_all_its_tasks_counts_for_each() {
    let (world, tenant, coder) = stranded("watch").await;
    world.execute("update account set session_scope = 'agent'").await;
    let id = uuid::Uuid::now_v7();
    let session = rows("session").with("account_id", &tenant.id).with("id", id);
    session.with("agent_id", &coder).insert(&world.test.owner).await;
    let item = testkit::enqueued(&tenant.id, id)
        .with("id", "n-1")
        .with("task_id", "proj-7");
    item.insert(&world.test.owner).await;
    assert_eq!(world.next(&tenant, "PROJ-7").await["code"], "queued");
    assert_eq!(world.look().await, 0);
    world.execute("update notification set task_id = null").await;
    // A turn on nothing of the task's is no news of the task.
    rows("turn")
        .from("session s")
        .set("account_id", "s.account_id")
        .insert(&world.test.owner)
        .await;
    assert_ne!(world.look().await, 0);
}

/// The same facts are the same row, and a person is told again.
#[tokio::test]
async fn a_stall_that_comes_back_is_told_again() {
    let (world, tenant, _) = stranded("watch").await;
    world.look().await;
    world.execute("update task set status = 'pending'").await;
    world.look().await;
    assert_eq!(
        world.test.texts(ROWS).await,
        ["stranded closed 1 superseded", "stranded person 1"]
    );
    world.execute("update task set status = 'assigned'").await;
    world.told().await;
    world.look().await;
    assert_eq!(
        world.test.texts(ROWS).await,
        ["stranded person 2", "stranded closed 1 superseded"]
    );
    let told = world.told().await;
    assert!(told.contains(&"event.task.needs_person".to_owned()), "{told:?}");
    // Seen to by a person; then it moved on and stalled again.
    let listed = world
        .get(&tenant.member, &tenant.path("/recoveries?state=person"))
        .await;
    let id = listed.body["items"][0]["id"].as_str().unwrap().to_owned();
    let path = tenant.path(&format!("/recoveries/{id}/dismiss"));
    world.post(&tenant.member, &path, json!({})).await;
    assert_eq!(world.look().await, 0);
    world
        .execute("update recovery set ended_at = now() - interval '3 hours' where reason like 'dismissed%'")
        .await;
    world.look().await;
    assert_eq!(world.test.texts(ROWS).await[0], "stranded person 3");
}

#[tokio::test]
async fn an_account_with_very_many_recoveries_delays_no_other() {
    let (world, _, coder) = stranded("watch").await;
    let _ = coder;
    world.execute("update task set status = 'inbox'").await;
    let many = "insert into task (account_id, id, display_id, title, status)
                select 'acme', 'n-' || n, 'n-' || n, 'x', 'in_progress' from generate_series(1, 400) n";
    world.execute(many).await;
    let noted = "insert into recovery (account_id, id, task_id, cause, fingerprint, state, detail, since)
                 select account_id, gen_random_uuid(), id, 'given_up', '\\x00', 'person', 'x', now() from task where id like 'n-%'";
    world.execute(noted).await;
    let other = world.tenant("beta").await;
    world.task(&other, "B-1", &[]).await;
    world
        .execute(
            "insert into recovery (account_id, id, task_id, cause, fingerprint, state, detail, since)
             select account_id, gen_random_uuid(), id, 'given_up', '\\x00', 'person', 'x', now() from task where account_id = 'beta'",
        )
        .await;
    let mut rounds = Rounds::default();
    let stop = CancellationToken::new();
    let open =
        "select concat_ws(' ', account_id, count(*)) from recovery where state <> 'closed' and cause = 'given_up'
                group by account_id order by account_id";
    look_once(&world.app, &mut rounds, &stop).await.unwrap();
    assert_eq!(world.test.texts(open).await, ["acme 200"]);
    // Another whole share, and the next round begins at the start again.
    look_once(&world.app, &mut rounds, &stop).await.unwrap();
    assert_eq!(world.test.texts(open).await, [""; 0]);
    world
        .execute("update recovery set state = 'person' where cause = 'given_up' and account_id = 'acme'")
        .await;
    look_once(&world.app, &mut rounds, &stop).await.unwrap();
    look_once(&world.app, &mut rounds, &stop).await.unwrap();
    look_once(&world.app, &mut rounds, &stop).await.unwrap();
    assert_eq!(world.test.texts(open).await, [""; 0]);
}

#[tokio::test]
async fn two_sweeps_note_a_task_once() {
    let (world, _, _) = stranded("recover").await;
    let (one, two) = tokio::join!(world.look(), world.look());
    assert_eq!(one + two, 3);
    assert_eq!(world.test.texts(ROWS).await, ["stranded open 1"]);
}

/// Whoever holds the session of one task and needs that of another is not delayed by the sweep.
#[tokio::test]
async fn the_sweep_holds_one_session_at_a_time() {
    let (world, tenant, coder) = stranded("recover").await;
    world.task(&tenant, "PROJ-8", &[&coder]).await;
    for task in ["PROJ-7", "PROJ-8"] {
        seed::session(&world, &tenant, task, &coder, 1, true).await;
    }
    world.an_hour_later().await;
    let mut holder = world.test.owner.begin().await.unwrap();
    sqlx::query("select from session where task_id = 'proj-8' for update")
        .execute(&mut *holder)
        .await
        .unwrap();
    let then = async {
        world.test.lock_is_awaited().await;
        sqlx::query("select from session where task_id = 'proj-7' for update nowait")
            .execute(&mut *holder)
            .await
            .unwrap();
        holder.rollback().await.unwrap();
    };
    let (changes, ()) = tokio::join!(world.look(), then);
    assert_eq!(changes, 6);
    assert_eq!(world.test.texts(ROWS).await, ["stranded open 1"; 2]);
}

/// Of an agent with one session for all its tasks.
#[tokio::test]
async fn turns_on_other_tasks_are_no_news_of_a_task() {
    let (world, tenant, coder) = stranded("watch").await;
    world.execute("update account set session_scope = 'agent'").await;
    let session = rows("session").with("account_id", &tenant.id).with("agent_id", &coder);
    session.insert(&world.test.owner).await;
    let turns = |numbers: &str, task: &str| {
        let turns = rows("turn").set("number", "n").set("task_id", task);
        turns
            .set("finished_at", "now() - interval '1 hour'")
            .from(format!("session s, generate_series({numbers}) n"))
    };
    turns("1, 1", "'proj-7'").insert(&world.test.owner).await;
    world.look().await;
    assert_eq!(world.test.texts(ROWS).await, ["stranded person 1"]);
    turns("2, 200", "null").insert(&world.test.owner).await;
    assert_eq!(world.look().await, 0);
    assert_eq!(world.test.texts(ROWS).await, ["stranded person 1"]);
}

#[tokio::test]
async fn an_account_with_very_many_tasks_delays_no_other() {
    let (world, _, coder) = stranded("watch").await;
    let many = rows("task")
        .set("display_id", "'MANY-' || n")
        .set("updated_at", "now() - interval '1 hour'");
    many.from("generate_series(1, 450) as n (n)")
        .insert(&world.test.owner)
        .await;
    let assigned =
        "insert into task_assignee select 'acme', id, (select id from agent limit 1) from task on conflict do nothing";
    world.execute(assigned).await;
    let _ = coder;
    let other = world.tenant("beta").await;
    let tester = world.agent(&other, "tester").await;
    world.task(&other, "B-1", &[&tester]).await;
    world.an_hour_later().await;
    let mut rounds = Rounds::default();
    let stop = CancellationToken::new();
    let count = "select concat_ws(' ', account_id, count(*)) from recovery group by account_id order by account_id";
    look_once(&world.app, &mut rounds, &stop).await.unwrap();
    assert_eq!(world.test.texts(count).await, ["acme 200", "beta 1"]);
    look_once(&world.app, &mut rounds, &stop).await.unwrap();
    look_once(&world.app, &mut rounds, &stop).await.unwrap();
    assert_eq!(world.test.texts(count).await, ["acme 451", "beta 1"]);
    look_once(&world.app, &mut rounds, &stop).await.unwrap();
    assert_eq!(world.test.texts(count).await, ["acme 451", "beta 1"]);
}

#[tokio::test]
async fn a_blocked_task_says_who_moves_it_on() {
    let (world, tenant, _) = stranded("watch").await;
    let patch = async |body: Value| world.patch(&tenant.member, &tenant.path("/tasks/PROJ-7"), body).await;
    // A person who names nobody is the owner.
    let blocked = patch(json!({"status": "blocked"})).await;
    assert_eq!(blocked.status, 200, "{blocked:?}");
    let owner = blocked.body["blocked"]["owner"].as_str().unwrap().to_owned();
    assert!(owner.starts_with("user:"), "{owner}");
    let next = world.next(&tenant, "PROJ-7").await;
    assert_eq!(next["on"], "person");
    assert_eq!(next["text"], format!("{owner} has to: move the task on"));
    // An agent that is named is told at once, and no other.
    let tester = world.agent(&tenant, "tester").await;
    world.told().await;
    let on = json!({"owner": "agent:tester", "action": "Start the database."});
    let blocked = patch(json!({"status": "blocked", "blocked_on": on})).await;
    assert_eq!(blocked.body["blocked"]["owner"], format!("agent:{tester}"));
    assert_eq!(world.told().await, ["event.task.changed", "notification"]);
    // An open question moves it on.
    let question = rows("question").with("task_id", "proj-7");
    question.insert(&world.test.owner).await;
    patch(json!({"status": "in_progress"})).await;
    assert_eq!(patch(json!({"status": "blocked"})).await.body["blocked"], Value::Null);
    assert_eq!(world.next(&tenant, "PROJ-7").await["on"], "question");
    for (body, words) in [
        (
            json!({"status": "blocked", "blocked_on": {"owner": "agent:nobody", "action": "a"}}),
            "nobody",
        ),
        (
            json!({"status": "blocked", "blocked_on": {"owner": "somebody", "action": "a"}}),
            "names nobody",
        ),
        (
            json!({"status": "blocked", "blocked_on": {"owner": "role:member", "action": ""}}),
            "empty",
        ),
        (
            json!({"blocked_on": {"owner": "role:member", "action": "a"}}),
            "status blocked",
        ),
    ] {
        let refused = patch(body).await;
        let said = refused.body["detail"].to_string();
        assert!(refused.status.is_client_error() && said.contains(words), "{refused:?}");
    }
}

/// A review of an agent whose turn ended without a verdict.
#[tokio::test]
async fn a_reviewer_without_a_verdict_gets_one_item_then_a_person() {
    let (world, tenant, coder) = stranded("watch").await;
    let lead = world.agent(&tenant, "lead").await;
    let path = tenant.path("/tasks/PROJ-7/stages");
    let stages = json!({"stages": [{"name": "lead", "audience": [format!("agent:{lead}")]}]});
    let set = world.call(axum::http::Method::PUT, &path).token(&tenant.admin);
    let set = set.json(&stages).send().await;
    assert_eq!(set.status, 200, "{set:?}");
    let done = json!({"status": "done"});
    let caught = world.patch(&tenant.member, &tenant.path("/tasks/PROJ-7"), done).await;
    assert_eq!(caught.body["status"], "review", "{caught:?}");
    world.told().await;
    let agent = lead.parse::<uuid::Uuid>().unwrap();
    let question = world.test.texts("select id::text from question").await.remove(0);
    let asked = uuid::Uuid::new_v5(&question.parse().unwrap(), agent.as_bytes());
    let item = rows("notification")
        .with("id", asked.to_string())
        .with("state", "running")
        .with("kind", "review");
    item.insert(&world.test.owner).await;
    // The turn is not over.
    assert_eq!(world.look().await, 0);
    // Delivered or not: it has had its turn.
    world.execute("update notification set state = 'cancelled'").await;
    assert_eq!(world.look().await, 2);
    assert_eq!(world.test.texts(ROWS).await, ["review_undecided open 1"]);
    assert_eq!(world.told().await, ["event.recovery.changed", "notification"]);
    assert_eq!(world.look().await, 0);
    world.item_ended().await;
    assert_eq!(world.look().await, 2);
    assert_eq!(world.test.texts(ROWS).await, ["review_undecided person 2"]);
    assert_eq!(
        world.told().await,
        ["event.recovery.changed", "event.task.needs_person"]
    );
    assert_eq!(world.look().await, 0);
    // A verdict is a newer fact.
    world.execute("update question set state = 'answered'").await;
    assert_eq!(world.look().await, 1);
    assert_eq!(world.test.texts(ROWS).await, ["review_undecided closed 2 superseded"]);
    let _ = coder;
}

/// A change by somebody else opens the queue of an agent that went round; another agent's turn does not.
#[tokio::test]
async fn a_change_of_its_task_opens_the_queue_of_an_agent_that_went_round() {
    let (world, tenant, coder) = stranded("watch").await;
    let (session, _) = seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    let turns_end = "update turn set finished_at = now(), state = 'finished'";
    world.execute(turns_end).await;
    let account = tenant.id.parse().unwrap();
    let note = async || {
        let tx = world.app.database.begin(&Accounts::one(&account)).await.unwrap();
        let stuck = Stuck {
            account: &account,
            task: &"PROJ-7".parse().unwrap(),
            agent: Some(coder.parse().unwrap()),
            cause: RecoveryCause::NoProgress,
            detail: "8 turns changed nothing",
            since: OffsetDateTime::now_utc(),
            items: &[],
        };
        let setting = world.app.setting(None, OffsetDateTime::now_utc());
        let noted = recovery_note(&tx, &stuck, RecoveryState::Person, &setting)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        noted.0.unwrap().id
    };
    let recovery = note().await;
    world
        .execute(&format!(
            "update session set phase = 'backoff', active_turn_id = null, queued = 1, queue_tail = 1, streak = 8,
                 gate = 'no_progress', gate_ref = '{recovery}', gated_since = now()"
        ))
        .await;
    seed::queued(&world, &tenant, session, "n-1").await;
    let gate = "select concat_ws(' ', gate, streak) from session where active_turn_id is null";
    assert_eq!(world.look().await, 0);
    let tester = world.agent(&tenant, "tester").await;
    seed::busy(&world, &tenant, "PROJ-7", &tester).await;
    world.execute(turns_end).await;
    assert_eq!(world.look().await, 0);
    assert_eq!(world.test.texts(gate).await, ["no_progress 8"]);
    // A person who has seen to it opens it, too; and it went round again.
    let dismissed = tenant.path(&format!("/recoveries/{recovery}/dismiss"));
    world.post(&tenant.member, &dismissed, json!({})).await;
    assert_eq!(world.test.texts(gate).await, ["0"]);
    assert_eq!(note().await, recovery);
    assert_eq!(world.test.texts(ROWS).await, ["no_progress person 2"]);
    world
        .execute(&format!(
            "update session set phase = 'backoff', streak = 8, gate = 'no_progress', gate_ref = '{recovery}', gated_since = now()
             where active_turn_id is null"
        ))
        .await;
    assert_eq!(world.test.texts(gate).await, ["no_progress 8"]);
    world.execute("update task set status = 'in_progress'").await;
    world.told().await;
    world.look().await;
    assert_eq!(world.test.texts(gate).await, ["0"]);
    assert_eq!(
        world.told().await,
        ["event.recovery.changed", "event.session.released", "session.resolved"]
    );
}

/// An agent with one session for all of its work went round on a task: the end of the task opens its queue.
#[tokio::test]
async fn the_end_of_its_task_opens_the_queue_of_an_agent_that_went_round() {
    let (world, tenant, coder) = stranded("watch").await;
    world.execute("update account set session_scope = 'agent'").await;
    world.task(&tenant, "PROJ-8", &["coder"]).await;
    let id = uuid::Uuid::now_v7();
    let session = rows("session").with("account_id", &tenant.id).with("id", id);
    session.with("agent_id", &coder).insert(&world.test.owner).await;
    for (n, task) in [("n-1", "proj-7"), ("n-2", "proj-8")] {
        let item = testkit::enqueued(&tenant.id, id).with("id", n).with("task_id", task);
        item.insert(&world.test.owner).await;
    }
    let recovery = uuid::Uuid::now_v7();
    world
        .execute(&format!(
            "insert into recovery (account_id, id, task_id, agent_id, cause, fingerprint, state, detail, since)
             values ('acme', '{recovery}', 'proj-7', '{coder}', 'no_progress', '\\x00', 'person', 'x', now())"
        ))
        .await;
    world
        .execute(&format!(
            "update session set phase = 'backoff', streak = 8, gate = 'no_progress', gate_ref = '{recovery}', gated_since = now()"
        ))
        .await;
    let cancelled = world
        .post(&tenant.member, &tenant.path("/tasks/PROJ-7/cancel"), json!({}))
        .await;
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    let left = "select concat_ws(' ', gate, streak, queued, wake_at is not null) from session";
    assert_eq!(world.test.texts(left).await, ["0 1 t"]);
    assert_eq!(world.test.texts(ROWS).await, ["no_progress closed 1 task closed"]);
}
