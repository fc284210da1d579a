//! Closing a task: its sessions close in the same transaction, and every waiting item gets its outcome.

use contracts::{Root, outgoing::Origin};
use domain::{AccountId, Actor, ActorKind, AgentId, TaskId, TaskStatus, TurnId};
use sqlx::Row;
use storage::{
    Accounts, Role, Setting,
    lifecycle::{TaskMove, TaskMoved, agent_remove, task_status_set},
    outbox::outbox_insert,
};
use testkit::{Fixture, TestDatabase, enqueued, rows};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

struct Scene {
    test: TestDatabase,
    account: AccountId,
    agent: AgentId,
    task: TaskId,
    session: Uuid,
}

/// A task with an open session of generation 3 and a turn that started a minute ago.
async fn scene() -> Scene {
    let test = TestDatabase::fresh().await;
    let fixture = Fixture(&test);
    let account = fixture.account("acme").await;
    let agent = fixture.agent(&account, "coder").await;
    let task = fixture.task(&account, "PROJ-7", &[agent]).await;
    let session = Uuid::now_v7();
    let row = rows("session")
        .with("id", session)
        .with("task_id", task.key())
        .with("agent_id", agent);
    row.with("generation", 3).insert(&test.owner).await;
    Scene {
        test,
        account,
        agent,
        task,
        session,
    }
}

impl Scene {
    async fn waiting(&self, id: &str, sender: &str, accepted: OffsetDateTime, metadata: &str) {
        let row = enqueued(&self.account, self.session)
            .with("id", id)
            .with("sender_kind", sender);
        let row = row.with("created_at", accepted).with("metadata", metadata);
        row.insert(&self.test.owner).await;
    }

    /// A turn has taken the item, and waits for its second attempt.
    async fn tried(&self, id: &str) -> Uuid {
        let turn = Uuid::now_v7();
        let row = rows("turn")
            .with("id", turn)
            .with("state", "started")
            .with("notification_ids", format!("{{{id}}}"));
        row.from("session s").insert(&self.test.owner).await;
        for sql in [
            "update session set phase = 'backoff', active_turn_id = $1, queued = queued - 1, wake_at = now() + interval '1 hour'",
            "update notification set state = 'running', turn_id = $1, attempts = 1 where id = $2",
        ] {
            let query = sqlx::query(sql);
            let query = if sql.contains("$1") { query.bind(turn) } else { query };
            let query = if sql.contains("$2") { query.bind(id) } else { query };
            query.execute(&self.test.owner).await.unwrap();
        }
        turn
    }

    async fn move_to(&self, to: TaskStatus) -> TaskMoved {
        let database = self.test.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        let by = Actor {
            kind: ActorKind::User,
            id: "u".into(),
            name: "u".into(),
            via: None,
        };
        let root = Root::default();
        let setting = Setting {
            root: &root,
            source: "/signalbox/orchestrator",
            origin: Origin::default(),
            now: OffsetDateTime::now_utc(),
        };
        let asked = TaskMove {
            account: &self.account,
            task: &self.task,
            to,
            by: &by,
            reason: None,
            turn: None,
            passes_stages: false,
        };
        let moved = task_status_set(&tx, &asked, &setting).await.unwrap().unwrap();
        outbox_insert(&tx, moved.messages.clone()).await.unwrap();
        tx.commit().await.unwrap();
        moved
    }

    async fn remove_agent(&self) {
        let database = self.test.connect(Role::Orchestrator).await;
        let root = Root::default();
        let setting = Setting {
            root: &root,
            source: "/signalbox/orchestrator",
            origin: Origin::default(),
            now: OffsetDateTime::now_utc(),
        };
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        agent_remove(&tx, &self.account, self.agent, &setting)
            .await
            .unwrap()
            .unwrap();
        tx.commit().await.unwrap();
    }

    /// Waits until a transaction waits for a lock.
    async fn until_blocked(&self) {
        testkit::eventually("a transaction waits for a lock", || async {
            (self
                .test
                .count("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
                .await
                == 1)
                .then_some(())
        })
        .await;
    }

    async fn state(&self, id: &str) -> (String, Option<String>, Uuid) {
        let row = sqlx::query("select state, reason, session_id from notification where id = $1")
            .bind(id)
            .fetch_one(&self.test.owner)
            .await
            .unwrap();
        (row.get(0), row.get(1), row.get(2))
    }
}

/// A queue longer than a batch of statements: each item has its outcome and its event, and carried items keep their
/// order.
#[tokio::test]
async fn a_long_queue_is_judged_whole() {
    let scene = scene().await;
    let queued = rows("notification")
        .set("id", "'n-' || n")
        .set("position", "n")
        .with("sender_kind", "service");
    let queued = queued.set("metadata", "jsonb_build_object('reopen', n % 2 = 0)");
    let queued = queued.from("session s, generate_series(1, 12000) n");
    queued.insert(&scene.test.owner).await;
    sqlx::raw_sql(
        "update session set queued = 12000, queue_tail = 12000;
         create function bounded() returns trigger language plpgsql as $$ begin
             if (select count(*) from written) > 5000 then raise 'too much in one statement'; end if; return null;
         end $$;
         create trigger bounded after update on notification referencing new table as written
             for each statement execute function bounded();
         create trigger bounded after insert on outbox referencing new table as written
             for each statement execute function bounded()",
    )
    .execute(&scene.test.owner)
    .await
    .unwrap();
    let moved = scene.move_to(TaskStatus::Done).await;
    assert_eq!((moved.cancelled.len(), moved.carried.len()), (6000, 6000));
    assert!(moved.messages.len() < 2000, "the rest is in the outbox already");
    for (sql, expected) in [
        (
            "select count(*) from notification where state = 'cancelled' and reason = 'task closed'",
            6000,
        ),
        (
            "select count(*) from outbox o cross join string_to_table(o.subject, ' ') as s (subject)
             where s.subject like '%notification.cancelled'",
            6000,
        ),
        (
            "select count(*) from session where closed_at is not null and queued = 0",
            1,
        ),
        (
            "select count(*) from session where closed_at is null and queued = 6000 and queue_tail = 6000",
            1,
        ),
        (
            "select count(*) from notification n join session s on s.id = n.session_id and s.closed_at is null
             where n.state = 'queued' and n.position * 2 = substr(n.id, 3)::bigint",
            6000,
        ),
    ] {
        assert_eq!(scene.test.count(sql).await, expected, "{sql}");
    }
}

#[tokio::test]
async fn done_closes_and_judges_every_waiting_item() {
    let scene = scene().await;
    let past = OffsetDateTime::now_utc() - Duration::minutes(5);
    scene.waiting("old-person", "user", past, "{}").await;
    scene.waiting("reopening", "service", past, r#"{"reopen": true}"#).await;
    scene.waiting("agents", "agent", past, "{}").await;
    let moved = scene.move_to(TaskStatus::Done).await;
    assert_eq!(moved.closed.len(), 1);
    assert_eq!(moved.cancelled.len(), 2);
    assert_eq!(moved.carried.len(), 1);

    assert_eq!(scene.state("old-person").await.0, "cancelled");
    assert_eq!(scene.state("agents").await.1.as_deref(), Some("task closed"));
    let (state, _, session) = scene.state("reopening").await;
    assert_eq!(state, "queued");
    assert_ne!(session, scene.session);
    let keys = scene
        .test
        .texts("select key || ' ' || queued from session where closed_at is null")
        .await;
    assert_eq!(keys, [format!("task:proj-7:agent:{}:acme:v4 1", scene.agent)]);
    assert_eq!(
        scene
            .test
            .count("select queued::bigint from session where closed_at is not null")
            .await,
        0
    );
    let subjects = scene
        .test
        .texts("select string_to_table(subject, ' ') from outbox order by 1")
        .await;
    assert_eq!(
        subjects,
        [
            "signalbox.event.acme.PROJ-7.notification.cancelled",
            "signalbox.event.acme.PROJ-7.notification.cancelled",
            "signalbox.event.acme.PROJ-7.session.closed",
            "signalbox.event.acme.PROJ-7.session.opened",
            "signalbox.event.acme.PROJ-7.task.status_changed",
            "signalbox.session.closed.acme.PROJ-7",
            "signalbox.session.resolved.acme.PROJ-7",
        ]
    );
}

#[tokio::test]
async fn cancelled_and_archived_end_everything() {
    for to in [TaskStatus::Cancelled, TaskStatus::Archived] {
        let scene = scene().await;
        scene
            .waiting(
                "one",
                "user",
                OffsetDateTime::now_utc() + Duration::minutes(5),
                r#"{"reopen": true}"#,
            )
            .await;
        scene.move_to(to).await;
        assert_eq!(scene.state("one").await.0, "cancelled");
        assert_eq!(
            scene
                .test
                .count("select count(*) from session where closed_at is null")
                .await,
            0
        );
    }
}

/// Turns in progress are cut off by a cancel, in sessions of the task and in those of its agents; the turn of an agent that
/// cancels its own task runs out, and so do all turns after `done` and `archived`.
#[tokio::test]
async fn a_cancel_cuts_off_the_turns_of_its_task() {
    let check = async |to, own: bool, expected: &[&str]| {
        let scene = scene().await;
        let owner = &scene.test.owner;
        let other = Fixture(&scene.test).task(&scene.account, "OTHER-1", &[]).await;
        let tester = Fixture(&scene.test).agent(&scene.account, "tester").await;
        let writer = Fixture(&scene.test).agent(&scene.account, "writer").await;
        let mut turns = Vec::new();
        for (name, agent, of, task) in [
            ("task", scene.agent, Some(&scene.task), &scene.task),
            ("system", tester, None, &scene.task),
            ("elsewhere", writer, None, &other),
        ] {
            let (session, turn) = (Uuid::now_v7(), Uuid::now_v7());
            let row = rows("session").with("agent_id", agent).with("active_turn_id", turn);
            let row = row.with("phase", "waiting").with("mismatch", name);
            match of {
                // The session of the scene.
                Some(_) => {
                    let running =
                        "update session set phase = 'waiting', active_turn_id = $1, mismatch = 'task' where id = $2";
                    let running = sqlx::query(running).bind(turn).bind(scene.session);
                    running.execute(owner).await.unwrap();
                }
                None => {
                    let key = format!("system:agent:{agent}:acme:v1");
                    row.with("id", session)
                        .with("kind", "system")
                        .with("key", key)
                        .insert(owner)
                        .await;
                }
            }
            let id = if of.is_some() { scene.session } else { session };
            let row = rows("turn")
                .with("id", turn)
                .with("state", "awaiting_tools")
                .with("task_id", task.key());
            row.from(format!("session s where s.id = '{id}'")).insert(owner).await;
            turns.push(TurnId(turn));
        }
        let database = scene.test.connect(Role::ToolGateway).await;
        let tx = database.begin(&Accounts::one(&scene.account)).await.unwrap();
        let root = Root::default();
        let setting = Setting {
            root: &root,
            source: "/signalbox/tool-gateway",
            origin: Origin::default(),
            now: OffsetDateTime::now_utc(),
        };
        let by = Actor::system();
        let asked = TaskMove {
            account: &scene.account,
            task: &scene.task,
            to,
            by: &by,
            reason: Some("no longer wanted"),
            turn: own.then(|| turns[0]),
            passes_stages: false,
        };
        let moved = task_status_set(&tx, &asked, &setting).await.unwrap().unwrap();
        outbox_insert(&tx, moved.messages).await.unwrap();
        tx.commit().await.unwrap();
        let stops =
            "select mismatch || ' ' || stop_kind || ' ' || stop_by || ' ' || (closed_at is not null) from session
                     where stop_turn_id = active_turn_id order by mismatch desc";
        assert_eq!(scene.test.texts(stops).await, expected, "{to} {own}");
        assert_eq!(moved.stopping, expected.len());
        let hints = "select count(*) from outbox cross join string_to_table(subject, ' ') as s (one)
                     where s.one = 'signalbox.session.stop_requested.acme.PROJ-7'";
        assert_eq!(scene.test.count(hints).await, i64::try_from(expected.len()).unwrap());
        let noted = "select count(*) from activity where detail ->> 'reason' = 'no longer wanted'";
        assert_eq!(scene.test.count(noted).await, 1);
    };
    let both = ["task cancelled Signalbox true", "system cancelled Signalbox false"];
    check(TaskStatus::Cancelled, false, &both).await;
    check(TaskStatus::Cancelled, true, &both[1..]).await;
    for to in [TaskStatus::Done, TaskStatus::Archived] {
        check(to, false, &[]).await;
    }
}

/// No call is in flight for the item, so it counts as waiting, though a turn has taken it.
#[tokio::test]
async fn an_item_between_two_attempts_is_judged_with_those_that_wait() {
    for (metadata, state, generation) in [("{}", "cancelled", 3), (r#"{"reopen": true}"#, "queued", 4)] {
        let scene = scene().await;
        let past = OffsetDateTime::now_utc() - Duration::minutes(5);
        scene.waiting("tried", "user", past, metadata).await;
        scene.waiting("behind", "user", past, metadata).await;
        let turn = scene.tried("tried").await;
        let moved = scene.move_to(TaskStatus::Done).await;
        assert_eq!(moved.cancelled.len() + moved.carried.len(), 2, "{metadata}");
        let rows = "select n.id || ' ' || n.state || ' ' || s.generation || ' ' || coalesce(n.turn_id::text, '-')
                    from notification n join session s on s.id = n.session_id order by n.position";
        let of = |id: &str, turn: String| format!("{id} {state} {generation} {turn}");
        let kept = if state == "queued" {
            "-".to_owned()
        } else {
            turn.to_string()
        };
        assert_eq!(
            scene.test.texts(rows).await,
            [of("tried", kept), of("behind", "-".to_owned())]
        );
        let queued = "select generation || ' ' || queued from session order by generation";
        let expected: &[&str] = if state == "queued" { &["3 0", "4 2"] } else { &["3 0"] };
        assert_eq!(scene.test.texts(queued).await, expected);
        let told = "select interrupted::text from session where closed_at is null";
        let expected: &[&str] = if state == "queued" { &["true"] } else { &[] };
        assert_eq!(
            scene.test.texts(told).await,
            expected,
            "the next generation is told of the turn"
        );
    }
}

/// The `interrupted` flag goes with the items that may have been interrupted.
#[tokio::test]
async fn the_interrupted_flag_goes_to_the_next_generation() {
    let scene = scene().await;
    let past = OffsetDateTime::now_utc() - Duration::minutes(5);
    scene.waiting("reopening", "user", past, r#"{"reopen": true}"#).await;
    sqlx::query("update session set interrupted = true")
        .execute(&scene.test.owner)
        .await
        .unwrap();
    scene.move_to(TaskStatus::Done).await;
    let told = "select generation || ' ' || interrupted from session where closed_at is null";
    assert_eq!(scene.test.texts(told).await, ["4 true"]);
}

#[tokio::test]
async fn other_statuses_close_nothing_and_reopening_opens_nothing() {
    let scene = scene().await;
    for to in [TaskStatus::Blocked, TaskStatus::Failed, TaskStatus::Review] {
        assert!(scene.move_to(to).await.closed.is_empty(), "{to}");
    }
    scene.move_to(TaskStatus::Done).await;
    assert!(scene.move_to(TaskStatus::InProgress).await.closed.is_empty());
    assert_eq!(
        scene
            .test
            .count("select count(*) from session where closed_at is null")
            .await,
        0
    );
    assert_eq!(scene.test.count("select count(*) from session").await, 1);
}

#[tokio::test]
async fn removing_an_agent_closes_its_sessions_and_frees_its_slug() {
    let scene = scene().await;
    scene.waiting("one", "user", OffsetDateTime::now_utc(), "{}").await;
    let database = scene.test.connect(Role::Orchestrator).await;
    let root = Root::default();
    let setting = Setting {
        root: &root,
        source: "/signalbox/orchestrator",
        origin: Origin::default(),
        now: OffsetDateTime::now_utc(),
    };
    let tx = database.begin(&Accounts::one(&scene.account)).await.unwrap();
    let removal = agent_remove(&tx, &scene.account, scene.agent, &setting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((removal.closed.len(), removal.cancelled.len()), (1, 1));
    assert!(
        agent_remove(&tx, &scene.account, scene.agent, &setting)
            .await
            .unwrap()
            .is_none()
    );
    tx.commit().await.unwrap();
    assert_eq!(scene.state("one").await.1.as_deref(), Some("agent removed"));
    Fixture(&scene.test).agent(&scene.account, "coder").await;
}

/// `done` opens the next generation for carried items, in a transaction that the removal has to wait for: the removal
/// closes that generation too.
#[tokio::test]
async fn removing_an_agent_closes_what_was_opened_while_it_waited() {
    let scene = scene().await;
    let past = OffsetDateTime::now_utc() - Duration::minutes(5);
    scene.waiting("reopening", "user", past, r#"{"reopen": true}"#).await;
    let database = scene.test.connect(Role::Orchestrator).await;
    let tx = database.begin(&Accounts::one(&scene.account)).await.unwrap();
    let by = Actor::system();
    let root = Root::default();
    let setting = Setting {
        root: &root,
        source: "/signalbox/orchestrator",
        origin: Origin::default(),
        now: OffsetDateTime::now_utc(),
    };
    let asked = TaskMove {
        account: &scene.account,
        task: &scene.task,
        to: TaskStatus::Done,
        by: &by,
        reason: None,
        turn: None,
        passes_stages: false,
    };
    let moved = task_status_set(&tx, &asked, &setting).await.unwrap().unwrap();
    assert_eq!(moved.carried.len(), 1);
    tokio::join!(scene.remove_agent(), async {
        scene.until_blocked().await;
        tx.commit().await.unwrap();
    });
    let open = "select count(*) from session where closed_at is null";
    assert_eq!(scene.test.count(open).await, 0);
    assert_eq!(scene.state("reopening").await.1.as_deref(), Some("agent removed"));
    assert_eq!(scene.test.count("select sum(queued)::bigint from session").await, 0);
}

/// With `session_scope = agent` a task's items wait in a session that stays open. A consumer of the queue locks the
/// session first, and so does the closer of the task: the two do not deadlock.
#[tokio::test]
async fn a_closer_takes_sessions_before_their_items() {
    let scene = scene().await;
    let past = OffsetDateTime::now_utc() - Duration::minutes(5);
    scene.waiting("one", "service", past, "{}").await;
    sqlx::query("update session set kind = 'system', task_id = null, key = $1")
        .bind(format!("system:agent:{}:acme:v3", scene.agent))
        .execute(&scene.test.owner)
        .await
        .unwrap();
    let mut holder = scene.test.owner.begin().await.unwrap();
    sqlx::query("select id from session for no key update")
        .execute(&mut *holder)
        .await
        .unwrap();
    let (moved, ()) = tokio::join!(scene.move_to(TaskStatus::Done), async {
        scene.until_blocked().await;
        sqlx::query("select id from notification for no key update nowait")
            .execute(&mut *holder)
            .await
            .expect("the items are free as long as their session is held");
        holder.rollback().await.unwrap();
    });
    assert_eq!((moved.closed.len(), moved.cancelled.len()), (0, 1));
    let row = "select phase || ' ' || queued || ' ' || (closed_at is null) from session";
    assert_eq!(scene.test.texts(row).await, ["idle 0 true"]);
}
