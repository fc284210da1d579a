//! Timers: fired once, by whichever replica, with their item or not at all; cleared with what they are of, and by people.

use std::collections::BTreeSet;

use domain::{AccountId, Actor, AgentId, Audience, Generation, SessionId, SessionKind, TaskId, TurnId};
use orchestrator::timers::sweep::fire_once;
use serde_json::{Value, json};
use storage::{
    Role,
    directory::TimerRound,
    question::{About, Asker, Choices, NewQuestion, question_open},
};
use testkit::rows;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    seed,
    world::{Tenant, World},
};

const STATES: &str = "select concat_ws(' ', state, count(*)) from timer group by state order by state";
const ITEMS: &str =
    "select concat_ws(' ', kind, state, count(*)) from notification group by kind, state order by kind, state";

async fn working() -> (World, Tenant, String) {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &["coder"]).await;
    (world, tenant, coder)
}

impl World {
    /// Timers of a session; gives the id of the newest.
    async fn timers(&self, session: Uuid, many: u32, due_at: &str) -> Uuid {
        let id = Uuid::now_v7();
        let due = || rows("timer").set("due_at", due_at);
        let others = format!("session s, generate_series(2, {many}) n where s.id = '{session}'");
        due().from(others).insert(&self.test.owner).await;
        let of = format!("session s where s.id = '{session}'");
        due().with("id", id).from(of).insert(&self.test.owner).await;
        id
    }

    async fn fire(&self) -> u64 {
        fire_once(&self.app, &mut TimerRound::default(), &CancellationToken::new())
            .await
            .unwrap()
    }

    async fn texts(&self, sql: &'static str) -> Vec<String> {
        self.test.texts(sql).await
    }
}

#[tokio::test]
async fn a_due_timer_becomes_an_item_of_the_open_generation() {
    let (world, tenant, coder) = working().await;
    let old = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    let timer = world.timers(old, 1, "now() - interval '1 second'").await;
    // Not due.
    world.timers(old, 1, "now() + interval '1 hour'").await;
    let set = "update timer set created_at = '2026-01-02 03:04:05.6+00', due_at = '2026-01-02 04:04:05.6+00' where due_at < now()";
    world.execute(set).await;
    // The agent's session was rotated meanwhile.
    world
        .execute("update session set closed_at = now(), close_reason = 'rotated'")
        .await;
    let open = seed::session(&world, &tenant, "PROJ-7", &coder, 2, true).await;

    assert_eq!(world.fire().await, 1);
    assert_eq!(world.fire().await, 0);
    let item = "select concat_ws('|', session_id, task_id, kind, title, body, sender_kind, sender_id, sender_name, queue_mode, hops, cause,
                                 metadata) from notification";
    let expected = format!(
        "{open}|proj-7|timer|The time that you set has come|At 2026-01-02T03:04:05Z you asked to look again at \
         2026-01-02T04:04:05Z. Your note:\n\nLook at the build.|service|signalbox|Signalbox|followup|1|{timer}|\
         {{\"reopen\": false, \"timer_id\": \"{timer}\"}}"
    );
    assert_eq!(world.texts(item).await, [expected]);
    assert_eq!(world.texts(STATES).await, ["fired 1", "waiting 1"]);
    let linked = "select (n.id = t.notification_id)::text from timer t, notification n where t.state = 'fired'";
    assert_eq!(world.texts(linked).await, ["true"]);
    let counted = "select concat_ws(' ', queued, queue_tail) from session where closed_at is null";
    assert_eq!(world.texts(counted).await, ["1 1"]);
    assert_eq!(world.sent_on("signalbox.session.resolved.acme.PROJ-7").await.len(), 1);
    let events = world.sent_on("signalbox.event.acme.PROJ-7.timer.changed").await;
    let states: Vec<&Value> = events.iter().map(|sent| &sent.payload["data"]["state"]).collect();
    assert_eq!(states, [&json!("fired")]);
}

#[tokio::test]
async fn without_an_open_generation_the_resolver_gets_the_item() {
    let (world, tenant, coder) = working().await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    world.timers(session, 2, "now()").await;
    world
        .execute("update session set closed_at = now(), close_reason = 'reset'")
        .await;
    assert_eq!(world.fire().await, 2);
    assert_eq!(world.texts(STATES).await, ["fired 2"]);
    let sent = world.sent_on("signalbox.notification.acme.PROJ-7").await;
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].payload["type"], "timer");
    assert_eq!(sent[0].payload["agent"], json!(coder));
    assert_eq!(sent[0].payload["metadata"]["reopen"], json!(false));
}

/// It was set while the task ended, in a session that outlives the task.
#[tokio::test]
async fn a_timer_of_a_task_that_has_ended_wakes_nobody() {
    let (world, tenant, coder) = working().await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    world.timers(session, 2, "now()").await;
    world.execute("update task set status = 'done'").await;
    assert_eq!(world.fire().await, 2);
    assert_eq!(world.texts(ITEMS).await, Vec::<String>::new());
    let why = "select distinct state || ': ' || reason from timer";
    assert_eq!(world.texts(why).await, ["cleared: the task has ended"]);
}

#[tokio::test]
async fn two_sweepers_fire_a_timer_once() {
    let (world, tenant, coder) = working().await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    world.timers(session, 900, "now() - interval '1 second'").await;
    let other = world.tenant("globex").await;
    let theirs = world.agent(&other, "coder").await;
    world.task(&other, "PROJ-7", &[]).await;
    let session = seed::session(&world, &other, "PROJ-7", &theirs, 1, true).await;
    world.timers(session, 300, "now() - interval '1 second'").await;
    for _ in 0..10 {
        let fired = tokio::join!(world.fire(), world.fire(), world.fire());
        if fired == (0, 0, 0) {
            break;
        }
    }
    assert_eq!(world.texts(STATES).await, ["fired 1200"]);
    assert_eq!(world.texts(ITEMS).await, ["timer queued 1200"]);
    let apart = "select concat_ws(' ', account_id, count(distinct position), max(position)) from notification group by account_id order by 1";
    assert_eq!(world.texts(apart).await, ["acme 900 900", "globex 300 300"]);
    let counted = "select concat_ws(' ', account_id, queued, queue_tail) from session order by 1";
    assert_eq!(world.texts(counted).await, ["acme 900 900", "globex 300 300"]);
}

/// Either the timer fires first, and its item is cancelled with the task, or it is cleared. Nothing waits afterwards.
#[tokio::test]
async fn a_timer_and_the_end_of_its_task_have_one_winner() {
    let (world, tenant, coder) = working().await;
    for n in 0..12 {
        let task = format!("T-{n}");
        world.task(&tenant, &task, &["coder"]).await;
        let session = seed::session(&world, &tenant, &task, &coder, 1, true).await;
        world.timers(session, 3, "now() - interval '1 second'").await;
        let path = tenant.path(&format!("/tasks/{task}"));
        let close = async {
            for _ in 0..n * 50 {
                tokio::task::yield_now().await;
            }
            world.patch(&tenant.member, &path, json!({"status": "done"})).await
        };
        let (_, closed) = tokio::join!(world.fire(), close);
        assert_eq!(closed.status, 200, "{closed:?}");
        world.fire().await;
        let odd = "select concat_ws(' ', t.state, t.reason, n.state, n.reason) from timer t
                   left join notification n on n.account_id = t.account_id and n.id = t.notification_id
                   where concat_ws(' ', t.state, t.reason, n.state, n.reason)
                       not in ('cleared task closed', 'fired cancelled task closed')";
        assert_eq!(world.texts(odd).await, [""; 0], "{task}");
    }
}

#[tokio::test]
async fn timers_are_cleared_with_their_agent() {
    let (world, tenant, coder) = working().await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    world.timers(session, 2, "now() - interval '1 second'").await;
    let tester = world.agent(&tenant, "tester").await;
    let other = seed::session(&world, &tenant, "PROJ-7", &tester, 1, true).await;
    world.timers(other, 1, "now() + interval '1 hour'").await;
    let removed = world.delete(&tenant.admin, &tenant.path("/agents/coder")).await;
    assert!(removed.status.is_success(), "{removed:?}");
    assert_eq!(world.fire().await, 0);
    let states = "select concat_ws(' ', state, reason, count(*)) from timer group by state, reason order by 1";
    assert_eq!(world.texts(states).await, ["cleared agent removed 2", "waiting 1"]);
    let events = world.sent_on("signalbox.event.acme.PROJ-7.timer.changed").await;
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].payload["data"]["reason"], json!("agent removed"));
}

#[tokio::test]
async fn a_timer_that_cannot_fire_is_marked_and_stops_no_other() {
    let (world, tenant, coder) = working().await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    let bad = world.timers(session, 1, "now() - interval '1 hour'").await;
    world.execute("update timer set payload = '{\"agent\": 7}'").await;
    world.timers(session, 20, "now() - interval '1 second'").await;
    assert_eq!(world.fire().await, 21);
    assert_eq!(world.fire().await, 0, "it is tried again later");
    assert_eq!(world.texts(STATES).await, ["fired 20", "waiting 1"]);
    let seen = world
        .get(&tenant.member, &tenant.path("/timers?task=proj-7&state=waiting"))
        .await;
    assert_eq!(seen.column("id"), [bad.to_string()]);
    assert!(seen.column("reason")[0].starts_with("could not fire: "), "{seen:?}");
}

#[tokio::test]
async fn an_account_with_many_due_timers_hides_no_other() {
    let (world, tenant, coder) = working().await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    world.timers(session, 50, "now() - interval '1 hour'").await;
    let mut expected = BTreeSet::from(["acme".to_owned()]);
    for n in 0..9 {
        let other = world.tenant(&format!("z{n}")).await;
        let theirs = world.agent(&other, "coder").await;
        world.task(&other, "PROJ-7", &[]).await;
        let session = seed::session(&world, &other, "PROJ-7", &theirs, 1, true).await;
        // One has nothing due.
        let due = if n == 4 { "now() + interval '1 hour'" } else { "now()" };
        world.timers(session, 1, due).await;
        expected.extend((n != 4).then(|| other.id.clone()));
    }
    let database = world.test.connect(Role::Orchestrator).await;
    let (mut round, mut found) = (TimerRound::default(), BTreeSet::new());
    for _ in 0..4 {
        let page = round.look(&database, 3).await.unwrap();
        assert!(page.iter().any(|account| account.as_str() == "acme"), "{page:?}");
        found.extend(page.iter().map(ToString::to_string));
    }
    assert_eq!(found, expected);
    assert_eq!(world.fire().await, 58);
}

#[tokio::test]
async fn timers_are_listed_and_cleared_by_who_may() {
    let (world, tenant, coder) = working().await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    let timer = world.timers(session, 3, "now() + interval '1 hour'").await;
    world.task(&tenant, "PROJ-8", &[]).await;
    let other = seed::session(&world, &tenant, "PROJ-8", &coder, 1, true).await;
    world.timers(other, 1, "now() + interval '1 hour'").await;
    let list = async |query: &str| {
        world
            .get(&tenant.member, &tenant.path(&format!("/timers{query}")))
            .await
    };
    assert_eq!(list("").await.column("state").len(), 4);
    let of_task = list("?task=PROJ-7&limit=2").await;
    assert_eq!(of_task.column("task"), ["PROJ-7", "PROJ-7"]);
    let cursor = of_task.body["next_cursor"].as_str().unwrap();
    let rest = list(&format!("?task=PROJ-7&limit=2&cursor={cursor}")).await;
    assert_eq!(rest.column("task"), ["PROJ-7"]);
    assert_eq!(list("?task=PROJ-9").await.column("task"), [""; 0]);

    let path = tenant.path(&format!("/timers/{timer}"));
    let refused = world.delete(&tenant.service, &path).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    let cleared = world.delete(&tenant.member, &path).await;
    assert_eq!(cleared.status, 200, "{cleared:?}");
    assert_eq!(cleared.body["state"], json!("cleared"));
    assert_eq!(cleared.body["reason"], json!("cleared: by a member"));
    let again = world.delete(&tenant.admin, &path).await;
    assert_eq!(again.body["reason"], json!("cleared: by a member"), "the first stays");
    let unknown = world
        .delete(&tenant.member, &tenant.path(&format!("/timers/{}", Uuid::now_v7())))
        .await;
    assert_eq!(unknown.status, 404);
    assert_eq!(
        world.sent_on("signalbox.event.acme.PROJ-7.timer.changed").await.len(),
        1
    );
}

/// The time of a question is a timer; it ends the question without an answer, once.
#[tokio::test]
async fn a_question_lapses_by_its_timer() {
    let (world, tenant, coder) = working().await;
    let (session, turn) = seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    let ask = async |lapses_in: time::Duration| {
        let account = AccountId::parse("acme").unwrap();
        let task = TaskId::parse("PROJ-7").unwrap();
        let tx = world.app.begin_sweep(&account).await.unwrap();
        let now = OffsetDateTime::now_utc();
        let question = NewQuestion {
            account: &account,
            about: About::Question,
            task: Some(&task),
            asker: Some(Asker {
                session: SessionId(session),
                kind: SessionKind::Task,
                generation: Generation::FIRST,
                agent: AgentId::parse(&coder).unwrap(),
                turn: Some(TurnId(turn)),
                tool_call: None,
            }),
            from: &Actor::system(),
            title: "Which one?",
            body: "b",
            options: Choices::default(),
            multiple: false,
            free_text: true,
            audience: vec![Audience::DEFAULT],
            lapse_at: Some(now + lapses_in),
            chain: 0,
        };
        let mut setting = world.app.setting(None, now);
        setting.origin.hops = 3;
        let (id, _) = question_open(&tx, &question, &setting).await.unwrap();
        tx.commit().await.unwrap();
        id
    };
    ask(time::Duration::seconds(-1)).await;
    ask(time::Duration::seconds(-1)).await;
    ask(time::Duration::hours(1)).await;
    let fired = tokio::join!(world.fire(), world.fire());
    assert_eq!(fired.0 + fired.1 + world.fire().await, 2);
    let states = "select concat_ws(' ', q.state, t.kind, t.state) from question q
                  join timer t on t.key = q.id::text order by 1";
    assert_eq!(
        world.texts(states).await,
        [
            "lapsed question_lapse fired",
            "lapsed question_lapse fired",
            "open question_lapse waiting"
        ]
    );
    assert_eq!(world.texts(ITEMS).await, ["answer queued 2"]);
    // A lapse is no news from outside: agents that wake each other by requests and lapses reach the limit of hops.
    let hops = "select distinct hops::text from notification where kind = 'answer'";
    assert_eq!(world.texts(hops).await, ["3"]);
    // Closing the task ends the third, and its timer.
    let done = world
        .patch(&tenant.member, &tenant.path("/tasks/PROJ-7"), json!({"status": "done"}))
        .await;
    assert_eq!(done.status, 200, "{done:?}");
    assert_eq!(
        world.texts(states).await,
        [
            "cancelled question_lapse cleared",
            "lapsed question_lapse fired",
            "lapsed question_lapse fired"
        ]
    );
}
