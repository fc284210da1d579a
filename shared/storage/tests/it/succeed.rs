//! A generation is closed and the next one opened with its queue: rotated by a rule, or reset by a person. The other writers of the
//! same rows come before, between and after.

use contracts::{Root, notification::NotificationMessage, outgoing::Origin};
use domain::{
    AccountId, Actor, ActorKind, AgentId, Conversation, NotificationId, QueueLimits, ResetInFlight, ResetQueue,
    ResetRequest, RotationRule, SessionId, SessionScope, StopKind, StopThen, TaskId, TaskStatus, TurnId,
    context::Rotated,
};
use storage::{
    Accounts, Database, Role, Setting, Tx,
    lifecycle::{TaskMove, agent_remove, task_status_set},
    outbox::outbox_insert,
    session::{
        item_enter::{Entered, NewEntry, item_enter},
        session_reset::{Asked, session_reset},
        session_succeed::{Succession, session_succeed},
        sessions_lock::{LockedSession, SESSIONS_LOCK, sessions_lock},
        turn_stop::{StopRequest, turn_stop},
    },
};
use testkit::{Fixture, TestDatabase, enqueued, rows};
use time::OffsetDateTime;
use uuid::Uuid;

struct Scene {
    test: TestDatabase,
    database: Database,
    account: AccountId,
    agent: AgentId,
    task: TaskId,
    session: SessionId,
}

/// A task with an open session of generation 3, at rest after two turns, with two items and a steer.
async fn scene() -> Scene {
    let test = TestDatabase::fresh().await;
    let fixture = Fixture(&test);
    let account = fixture.account("acme").await;
    let agent = fixture.agent(&account, "coder").await;
    let task = fixture.task(&account, "PROJ-7", &[agent]).await;
    let session = SessionId(Uuid::now_v7());
    let row = rows("session").with("id", session).with("task_id", task.key());
    let row = row.with("agent_id", agent).with("generation", 3).with("turn_count", 2);
    let thread = r#"{"number": 1, "live": true, "lost": 0, "told": {"at": 5}, "tokens": 900, "failures": 2}"#;
    let row = row.with("provider_thread", "resp_1").with("thread", thread);
    row.insert(&test.owner).await;
    for (id, mode) in [("a", "followup"), ("b", "collect"), ("s", "steer")] {
        let row = enqueued(&account, session).with("id", id).with("queue_mode", mode);
        let row = match mode {
            "steer" => row.set("position", "s.queue_tail - (1::bigint << 40)"),
            _ => row,
        };
        row.set("created_at", "now() - interval '1 minute'")
            .insert(&test.owner)
            .await;
    }
    let database = test.connect(Role::Orchestrator).await;
    Scene {
        test,
        database,
        account,
        agent,
        task,
        session,
    }
}

fn ann() -> Actor {
    Actor {
        kind: ActorKind::User,
        id: "u-1".to_owned(),
        name: "Ann".to_owned(),
        via: None,
    }
}

fn request(queue: ResetQueue, in_flight: ResetInFlight) -> ResetRequest {
    ResetRequest {
        reason: "it is confused".to_owned(),
        by: ann(),
        queue,
        in_flight,
        at: OffsetDateTime::now_utc().into(),
    }
}

fn keep() -> ResetRequest {
    request(ResetQueue::Keep, ResetInFlight::Cancel)
}

fn rotated() -> Rotated {
    Rotated {
        rule: RotationRule::TokensMax,
        because: "tokens_max: 900 tokens used, the limit is 800".to_owned(),
    }
}

/// The sessions, oldest first; what waits, in its order; all items.
const SESSIONS: &str = "
    select concat_ws(' ', generation, close_reason, phase, gate, 'queued', queued, queue_tail, 'thread', provider_thread,
                     coalesce((thread ->> 'number')::integer, 0), coalesce((thread ->> 'live')::boolean, false), 'counts',
                     coalesce((thread ->> 'tokens')::integer, 0), coalesce((thread ->> 'failures')::integer, 0))
    from session order by generation";
const QUEUE: &str = "
    select concat_ws(' ', s.generation, n.id, n.queue_mode, n.turn_id is null) from notification n join session s on s.id = n.session_id
    where n.state = 'queued' order by s.generation, n.position";
const ENDED: &str = "select concat_ws(' ', id, state, reason) from notification where state <> 'queued' order by id";
const SENT: &str = "select one from outbox cross join string_to_table(subject, ' ') as s (one) order by one";

impl Scene {
    /// With delivery's rights.
    async fn of_delivery(self) -> Scene {
        let database = self.test.connect(Role::Delivery).await;
        Scene { database, ..self }
    }

    fn setting<'a>(&self, root: &'a Root) -> Setting<'a> {
        Setting {
            root,
            source: "/signalbox/orchestrator",
            origin: Origin::default(),
            now: OffsetDateTime::now_utc(),
        }
    }

    async fn begin(&self) -> Tx {
        self.database.begin(&Accounts::one(&self.account)).await.unwrap()
    }

    async fn lock(&self, tx: &Tx) -> LockedSession {
        let name = (self.account.clone(), self.session);
        sessions_lock(tx, SESSIONS_LOCK, &[name]).await.unwrap().pop().unwrap()
    }

    async fn succeed(&self, succession: Succession<'_>) {
        let tx = self.begin().await;
        let locked = self.lock(&tx).await;
        let root = Root::default();
        let succeeded = session_succeed(&tx, &locked.name(), succession, &self.setting(&root))
            .await
            .unwrap();
        outbox_insert(&tx, succeeded.messages).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// As the API does: under the session's lock, unless it is closed by then.
    async fn reset_in(&self, tx: &Tx, request: &ResetRequest) -> Option<Asked> {
        let locked = self.lock(tx).await;
        if locked.facts.closed {
            return None;
        }
        let root = Root::default();
        let session = (&locked, Some(&self.task));
        let (asked, messages) = session_reset(tx, session, request, &self.setting(&root)).await.unwrap();
        outbox_insert(tx, messages).await.unwrap();
        Some(asked)
    }

    async fn reset(&self, request: &ResetRequest) -> Option<Asked> {
        let tx = self.begin().await;
        let asked = self.reset_in(&tx, request).await;
        tx.commit().await.unwrap();
        asked
    }

    /// A turn is in progress on an item.
    async fn busy(&self) -> TurnId {
        let turn = TurnId(Uuid::now_v7());
        let row = rows("turn")
            .with("id", turn)
            .with("state", "awaiting_tools")
            .with("number", 3);
        row.from("session s").insert(&self.test.owner).await;
        sqlx::query("update session set phase = 'waiting', active_turn_id = $1")
            .bind(turn.uuid())
            .execute(&self.test.owner)
            .await
            .unwrap();
        turn
    }

    async fn move_to(&self, tx: &Tx, to: TaskStatus) {
        let (root, by) = (Root::default(), ann());
        let asked = TaskMove {
            account: &self.account,
            task: &self.task,
            to,
            by: &by,
            reason: None,
            turn: None,
            passes_stages: false,
        };
        let moved = task_status_set(tx, &asked, &self.setting(&root))
            .await
            .unwrap()
            .unwrap();
        outbox_insert(tx, moved.messages).await.unwrap();
    }

    async fn enter(&self, tx: &Tx, id: &str) -> Entered {
        let (root, id) = (Root::default(), NotificationId::parse(id).unwrap());
        let conversation = Conversation::of(&self.account, SessionScope::Task, Some(&self.task), self.agent);
        let entry = NewEntry {
            id: &id,
            task: Some(&self.task),
            message: NotificationMessage::new("message", ann(), String::new(), "And this?".to_owned()),
        };
        let (entered, messages) = item_enter(tx, &conversation, entry, &QueueLimits::OWN, &self.setting(&root))
            .await
            .unwrap();
        outbox_insert(tx, messages).await.unwrap();
        entered
    }

    async fn texts(&self, sql: &'static str) -> Vec<String> {
        self.test.texts(sql).await
    }

    async fn until_blocked(&self) {
        let blocked =
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        testkit::eventually("a transaction waits for a lock", || async {
            (self.test.count(blocked).await == 1).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_rotated_generation_keeps_its_queue() {
    let scene = scene().await;
    sqlx::query(
        "update session set interrupted = true, stopped_turn_id = $1, stop_kind = 'stopped', stop_by = 'Ann', stop_at = now(), streak = 4,
             streak_key = 'k', streak_since = now()",
    )
    .bind(Uuid::now_v7())
    .execute(&scene.test.owner)
    .await
    .unwrap();
    scene.succeed(Succession::Rotated(&rotated())).await;
    assert_eq!(
        scene.texts(SESSIONS).await,
        [
            "3 rotated idle queued 0 3 thread 1 t counts 900 2",
            "4 idle queued 3 3 thread 0 f counts 0 0"
        ]
    );
    assert_eq!(
        scene.texts(QUEUE).await,
        ["4 s steer t", "4 a followup t", "4 b collect t"]
    );
    let follows = "select concat_ws(' ', n.continues_id = o.id, n.key = replace(o.key, ':v3', ':v4'), n.interrupted,
                       n.stopped_turn_id = o.stopped_turn_id, n.stop_kind, n.stop_by, n.streak, n.streak_key, n.thread #>> '{told,rotated,rule}',
                       n.thread #>> '{told,rotated,because}' = o.close_detail)
                   from session o join session n on n.generation = 4 where o.generation = 3";
    assert_eq!(scene.texts(follows).await, ["t t t t stopped Ann 4 k tokens_max t"]);
    assert_eq!(
        scene.texts(SENT).await,
        [
            "signalbox.event.acme.PROJ-7.session.closed",
            "signalbox.event.acme.PROJ-7.session.opened",
            "signalbox.session.closed.acme.PROJ-7",
            "signalbox.session.resolved.acme.PROJ-7"
        ]
    );
    let closed = scene
        .test
        .outbox()
        .await
        .into_iter()
        .find(|sent| sent.subject.ends_with("event.acme.PROJ-7.session.closed"));
    let closed: serde_json::Value = serde_json::from_slice(&closed.unwrap().payload).unwrap();
    assert_eq!(
        (
            &closed["data"]["reason"],
            &closed["data"]["detail"],
            &closed["data"]["provider_thread"]
        ),
        (&"rotated".into(), &rotated().because.into(), &"resp_1".into())
    );
}

/// A pause of the session and a rule for its tools were set by people: no succession lifts them.
#[tokio::test]
async fn what_is_set_for_a_session_holds_for_the_next_generation() {
    let scene = scene().await;
    let other = Uuid::now_v7();
    for id in [scene.session.uuid(), other] {
        rows("hold")
            .with("scope_kind", "session")
            .with("scope_id", id)
            .insert(&scene.test.owner)
            .await;
        let row = rows("tool_policy").with("scope_kind", "session").with("scope_id", id);
        row.with("verdict", "deny").insert(&scene.test.owner).await;
    }
    let scene = scene.of_delivery().await;
    scene.succeed(Succession::Rotated(&rotated())).await;
    let scopes =
        "select concat_ws(' ', h.scope_id = s.id::text, p.scope_id = s.id::text) from session s, hold h, tool_policy p
                  where s.generation = 4 order by 1";
    assert_eq!(
        scene.texts(scopes).await,
        ["f f", "f t", "t f", "t t"],
        "and the other session's are its own"
    );
}

/// A steer that comes later goes behind the carried one, as in any queue.
#[tokio::test]
async fn a_carried_steer_stays_a_steer() {
    let scene = scene().await;
    scene.succeed(Succession::Rotated(&rotated())).await;
    let place = "select (position + (1::bigint << 40))::text from notification where id = 's'";
    assert_eq!(scene.texts(place).await, ["1"]);
}

#[tokio::test]
async fn a_reset_session_knows_nothing_of_the_one_before() {
    for (queue, waits, ended) in [
        (
            ResetQueue::Keep,
            &["4 s steer t", "4 a followup t", "4 b collect t"][..],
            &[][..],
        ),
        (
            ResetQueue::Cancel,
            &[],
            &[
                "a cancelled session reset",
                "b cancelled session reset",
                "s cancelled session reset",
            ],
        ),
    ] {
        let scene = scene().await;
        sqlx::raw_sql("update session set stopped_turn_id = gen_random_uuid(), stop_kind = 'stopped', streak = 4, gate = 'stopped', phase = 'backoff'")
            .execute(&scene.test.owner)
            .await
            .unwrap();
        let asked = scene.reset(&request(queue, ResetInFlight::Requeue)).await;
        let count = waits.len();
        assert_eq!(
            scene.texts(SESSIONS).await,
            [
                "3 reset backoff queued 0 3 thread 1 t counts 900 2".to_owned(),
                format!("4 idle queued {count} {count} thread 0 f counts 0 0")
            ],
            "{queue}"
        );
        assert_eq!(scene.texts(QUEUE).await, waits, "{queue}");
        assert_eq!(scene.texts(ENDED).await, ended, "{queue}");
        let next = "select concat_ws(' ', id, continues_id, interrupted, stopped_turn_id, stop_kind, streak, thread -> 'told') from session where generation = 4";
        let Some(Asked::Done(id)) = asked else {
            panic!("{asked:?}")
        };
        assert_eq!(scene.texts(next).await, [format!("{id} f 0 {{}}")]);
        let closed = "select close_detail from session where generation = 3";
        assert_eq!(scene.texts(closed).await, ["by Ann: it is confused"]);
        let activity =
            "select concat_ws(' ', actor_name, detail ->> 'reason', detail ->> 'queue', detail ->> 'next_session_id')
                        from activity where kind = 'session.reset'";
        assert_eq!(
            scene.texts(activity).await,
            [format!("Ann it is confused {queue} {id}")]
        );
        let sent = scene.texts(SENT).await;
        let count = |subject: &str| sent.iter().filter(|sent| *sent == subject).count();
        assert_eq!(count("signalbox.event.acme.PROJ-7.session.reset"), 1);
        assert_eq!(count("signalbox.event.acme.PROJ-7.notification.cancelled"), ended.len());
        assert_eq!(
            count("signalbox.session.resolved.acme.PROJ-7"),
            usize::from(!waits.is_empty())
        );
    }
}

/// Its agent may still be at work, or may have done a part: the note of that is not lost with the generation.
#[tokio::test]
async fn a_reset_keeps_that_a_turn_was_interrupted() {
    let scene = scene().await;
    sqlx::raw_sql("update session set interrupted = true")
        .execute(&scene.test.owner)
        .await
        .unwrap();
    scene.reset(&keep()).await;
    assert_eq!(
        scene
            .texts("select interrupted::text from session where generation = 4")
            .await,
        ["true"]
    );
}

#[tokio::test]
async fn a_session_with_nothing_to_do_is_reset_too() {
    let scene = scene().await;
    sqlx::raw_sql("update notification set state = 'delivered'; update session set queued = 0")
        .execute(&scene.test.owner)
        .await
        .unwrap();
    scene.reset(&keep()).await;
    assert_eq!(
        scene
            .texts("select concat_ws(' ', generation, queued, closed_at is null) from session order by 1")
            .await,
        ["3 0 f", "4 0 t"]
    );
    assert!(
        !scene
            .texts(SENT)
            .await
            .contains(&"signalbox.session.resolved.acme.PROJ-7".to_owned())
    );
}

/// With a turn in progress, the request waits in the row; the later of two decides, and the answer is the same.
#[tokio::test]
async fn a_reset_of_a_busy_session_waits_for_its_turn() {
    let scene = scene().await;
    let turn = scene.busy().await;
    assert_eq!(scene.reset(&keep()).await, Some(Asked::Stopping(turn)));
    let again = request(ResetQueue::Cancel, ResetInFlight::Requeue);
    assert_eq!(scene.reset(&again).await, Some(Asked::Stopping(turn)));
    let row = "select concat_ws(' ', closed_at is null, stop_turn_id = active_turn_id, stop_kind, stop_then, stop_by,
                   reset_request ->> 'queue', reset_request ->> 'in_flight', wake_at <= now()) from session";
    assert_eq!(scene.texts(row).await, ["t t reset continue Ann cancel requeue t"]);
    assert_eq!(
        scene
            .texts("select count(*)::text from activity where kind = 'session.reset'")
            .await,
        ["2"]
    );
    let stops = scene.texts(SENT).await;
    assert_eq!(
        stops, ["signalbox.session.stop_requested.acme.PROJ-7"; 2],
        "under one id: the broker keeps one"
    );
}

/// What was sent after the request is no part of the queue that it cancels; what the stopped turn had may be put back.
#[tokio::test]
async fn a_reset_cancels_what_waited_when_it_was_asked_for() {
    let scene = scene().await;
    scene.busy().await;
    let cancels = request(ResetQueue::Cancel, ResetInFlight::Requeue);
    scene.reset(&cancels).await;
    let tx = scene.begin().await;
    assert!(matches!(scene.enter(&tx, "later").await, Entered::Placed { .. }));
    tx.commit().await.unwrap();
    // As delivery's record does: the turn ends, and its item waits again.
    sqlx::raw_sql("update session set phase = 'idle', active_turn_id = null, stop_turn_id = null, stopped_turn_id = gen_random_uuid()")
        .execute(&scene.test.owner)
        .await
        .unwrap();
    let stored = scene.texts("select reset_request::text from session").await;
    let stored: ResetRequest = serde_json::from_str(&stored[0]).unwrap();
    assert_eq!(stored, cancels);
    let put_back = ["a".to_owned()];
    scene
        .succeed(Succession::Reset {
            request: &stored,
            put_back: &put_back,
            gate: None,
        })
        .await;
    assert_eq!(scene.texts(QUEUE).await, ["4 a followup t", "4 later followup t"]);
    assert_eq!(
        scene.texts(ENDED).await,
        ["b cancelled session reset", "s cancelled session reset"]
    );
    let told = "select concat_ws(' ', generation, stopped_turn_id is not null, stop_kind, stop_by, reset_request is null) from session order by 1";
    assert_eq!(scene.texts(told).await, ["3 t reset Ann t", "4 t reset Ann t"]);
}

/// A stop that a person asks for after the reset holds what waits, in the next generation.
#[tokio::test]
async fn what_a_later_stop_holds_is_held_in_the_next_generation() {
    let scene = scene().await.of_delivery().await;
    let request = keep();
    let held = Succession::Reset {
        request: &request,
        put_back: &[],
        gate: Some(domain::Gate::Stopped),
    };
    scene.succeed(held).await;
    assert_eq!(
        scene
            .texts("select concat_ws(' ', generation, phase, gate, gated_since is not null) from session order by 1")
            .await,
        ["3 idle f", "4 backoff stopped t"]
    );
    let sent = scene.texts(SENT).await;
    assert!(
        sent.contains(&"signalbox.event.acme.PROJ-7.session.parked".to_owned()),
        "{sent:?}"
    );
    assert!(
        !sent.contains(&"signalbox.session.resolved.acme.PROJ-7".to_owned()),
        "nobody is woken"
    );
}

/// The first transaction commits once the second one waits for its locks.
async fn then<T>(scene: &Scene, first: Tx, second: impl Future<Output = T>) -> T {
    let commit = async {
        scene.until_blocked().await;
        first.commit().await.unwrap();
    };
    tokio::join!(second, commit).0
}

#[tokio::test]
async fn of_a_reset_and_the_end_of_its_task_the_second_finds_the_first() {
    let scene = scene().await;
    let first = scene.begin().await;
    scene.move_to(&first, TaskStatus::Cancelled).await;
    assert_eq!(then(&scene, first, scene.reset(&keep())).await, None, "it is closed");
    assert_eq!(
        scene
            .texts("select concat_ws(' ', generation, close_reason) from session")
            .await,
        ["3 task_cancelled"]
    );

    // The closer looks again, and finds the generation that the reset has opened.
    let scene = self::scene().await;
    let first = scene.begin().await;
    scene.reset_in(&first, &keep()).await.unwrap();
    then(&scene, first, async {
        let tx = scene.begin().await;
        scene.move_to(&tx, TaskStatus::Cancelled).await;
        tx.commit().await.unwrap();
    })
    .await;
    assert_eq!(
        scene
            .texts("select concat_ws(' ', generation, close_reason, queued) from session order by 1")
            .await,
        ["3 reset 0", "4 task_cancelled 0"]
    );
    assert_eq!(
        scene.texts(ENDED).await,
        [
            "a cancelled task closed",
            "b cancelled task closed",
            "s cancelled task closed"
        ]
    );
}

#[tokio::test]
async fn an_agent_that_is_removed_leaves_no_generation_that_a_reset_has_opened() {
    let scene = scene().await;
    let first = scene.begin().await;
    scene.reset_in(&first, &keep()).await.unwrap();
    then(&scene, first, async {
        let (tx, root) = (scene.begin().await, Root::default());
        agent_remove(&tx, &scene.account, scene.agent, &scene.setting(&root))
            .await
            .unwrap()
            .unwrap();
        tx.commit().await.unwrap();
    })
    .await;
    assert_eq!(
        scene
            .texts("select concat_ws(' ', generation, close_reason, queued) from session order by 1")
            .await,
        ["3 reset 0", "4 agent_removed 0"]
    );
}

/// Whichever generation is open has the item, and one of them only.
#[tokio::test]
async fn an_item_that_comes_with_a_reset_is_in_one_generation() {
    let scene = scene().await;
    let first = scene.begin().await;
    assert!(matches!(scene.enter(&first, "n").await, Entered::Placed { .. }));
    then(&scene, first, scene.reset(&keep())).await.unwrap();
    assert_eq!(
        scene.texts(QUEUE).await,
        ["4 s steer t", "4 a followup t", "4 b collect t", "4 n followup t"]
    );

    // The session closed while the item waited for its lock: the resolver places it.
    let scene = self::scene().await;
    let first = scene.begin().await;
    scene.reset_in(&first, &keep()).await.unwrap();
    let entered = then(&scene, first, async {
        let tx = scene.begin().await;
        let entered = scene.enter(&tx, "n").await;
        tx.commit().await.unwrap();
        entered
    })
    .await;
    assert_eq!(entered, Entered::Sent);
    assert_eq!(
        scene.texts(QUEUE).await,
        ["4 s steer t", "4 a followup t", "4 b collect t"]
    );
}

#[tokio::test]
async fn two_resets_and_two_rotations_open_one_generation_each() {
    let scene = scene().await;
    let first = scene.begin().await;
    scene.reset_in(&first, &keep()).await.unwrap();
    assert_eq!(then(&scene, first, scene.reset(&keep())).await, None);
    assert_eq!(
        scene
            .texts("select concat_ws(' ', generation, close_reason) from session order by 1")
            .await,
        ["3 reset", "4"]
    );

    // Another replica has rotated it: under the lock, the session is found closed.
    let scene = self::scene().await;
    let (first, root) = (scene.begin().await, Root::default());
    let locked = scene.lock(&first).await;
    session_succeed(
        &first,
        &locked.name(),
        Succession::Rotated(&rotated()),
        &scene.setting(&root),
    )
    .await
    .unwrap();
    let closed = then(&scene, first, async {
        let tx = scene.begin().await;
        let closed = scene.lock(&tx).await.facts.closed;
        let again = session_succeed(
            &tx,
            &locked.name(),
            Succession::Rotated(&rotated()),
            &scene.setting(&root),
        )
        .await;
        tx.rollback().await.unwrap();
        (closed, again.is_err())
    })
    .await;
    assert_eq!(closed, (true, true), "and nothing is written for a closed one");
    assert_eq!(scene.test.count("select count(*) from session").await, 2);
}

/// What a closer has ended, no reset ends again.
#[tokio::test]
async fn the_end_of_a_session_forgets_a_reset_that_waits() {
    let scene = scene().await;
    scene.busy().await;
    scene.reset(&keep()).await.unwrap();
    let tx = scene.begin().await;
    scene.move_to(&tx, TaskStatus::Done).await;
    tx.commit().await.unwrap();
    let row = "select concat_ws(' ', close_reason, reset_request is null, stop_kind) from session";
    assert_eq!(scene.texts(row).await, ["task_done t reset"]);
}

/// A later request to stop decides what becomes of the turn; the reset stands.
#[tokio::test]
async fn a_later_stop_leaves_the_reset() {
    let scene = scene().await;
    let turn = scene.busy().await;
    scene.reset(&keep()).await.unwrap();
    let tx = scene.begin().await;
    let name = scene.lock(&tx).await.name();
    let stop = StopRequest {
        session: name,
        turn: Some(turn),
        kind: StopKind::Stopped,
        by: "Bob",
        then: StopThen::Hold,
        task: None,
    };
    turn_stop(&tx, &[stop]).await.unwrap();
    tx.commit().await.unwrap();
    let row = "select concat_ws(' ', stop_kind, stop_then, reset_request ->> 'reason') from session";
    assert_eq!(scene.texts(row).await, ["stopped hold it is confused"]);
}

/// A queue longer than a batch of statements moves, in its order.
#[tokio::test]
async fn a_long_queue_moves_whole() {
    let scene = scene().await;
    let queued = rows("notification").set("id", "'n-' || n").set("position", "n + 3");
    queued
        .from("session s, generate_series(1, 12000) n")
        .insert(&scene.test.owner)
        .await;
    sqlx::raw_sql(
        "update session set queued = 12003, queue_tail = 12003;
         create function bounded() returns trigger language plpgsql as $$ begin
             if (select count(*) from written) > 5000 then raise 'too much in one statement'; end if; return null;
         end $$;
         create trigger bounded after update on notification referencing new table as written
             for each statement execute function bounded()",
    )
    .execute(&scene.test.owner)
    .await
    .unwrap();
    scene.succeed(Succession::Rotated(&rotated())).await;
    let moved = "select count(*) from notification n join session s on s.id = n.session_id and s.generation = 4 and s.queued = 12003
                 where n.id like 'n-%' and n.position = substr(n.id, 3)::bigint + 3";
    assert_eq!(scene.test.count(moved).await, 12_000);
}
