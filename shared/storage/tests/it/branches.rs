//! Branches are made, end and fold, each once; whatever closes their parent ends them. The other writers of the same rows come before,
//! between and after.

use contracts::{Root, notification::NotificationMessage, outgoing::Origin};
use domain::{
    AccountId, Actor, ActorKind, AgentId, BranchContext, BranchId, BranchState, Conversation, JoinMode, NotificationId,
    QueueLimits, ResetInFlight, ResetQueue, ResetRequest, SessionId, TaskId, TaskStatus, TurnId,
};
use storage::{
    Accounts, Database, Role, Setting, Tx,
    lifecycle::{
        Handover, TaskMove, agent_remove, handover, task_status_set,
        timers_fire::{timers_due, timers_fire},
    },
    outbox::outbox_insert,
    session::{
        branch_end::{Ending, Ends, branch_end, branches_lock},
        branch_spawn::{NewBranch, NewGroup, Parent, Spawned, branch_spawn},
        item_enter::{Entered, NewEntry, item_enter},
        session_reset::session_reset,
        sessions_lock::{SESSIONS_LOCK, sessions_lock},
    },
};
use testkit::{Fixture, TestDatabase, enqueued, rows};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

struct Scene {
    test: TestDatabase,
    gateway: Database,
    orchestrator: Database,
    root: Root,
    account: AccountId,
    coder: AgentId,
    reviewer: AgentId,
    task: TaskId,
    session: SessionId,
    turn: TurnId,
}

/// A session of `coder` on a task with three messages and a context, and its third turn, which has called a tool.
async fn scene() -> Scene {
    let test = TestDatabase::fresh().await;
    let fixture = Fixture(&test);
    let account = fixture.account("acme").await;
    let coder = fixture.agent(&account, "coder").await;
    let reviewer = fixture.agent(&account, "reviewer").await;
    let task = fixture.task(&account, "PROJ-7", &[coder]).await;
    let (session, turn) = (SessionId(Uuid::now_v7()), TurnId(Uuid::now_v7()));
    let row = rows("session").with("id", session).with("task_id", task.key());
    let row = row
        .with("agent_id", coder)
        .with("turn_count", 3)
        .with("phase", "waiting");
    let row = row.with("active_turn_id", turn).with("provider_thread", "resp_2");
    row.insert(&test.owner).await;
    for (number, state) in [(1, "finished"), (2, "aborted"), (3, "awaiting_tools")] {
        let row = rows("turn").with("number", number).with("state", state);
        let row = match number {
            3 => row
                .with("id", turn)
                .with("journal", r#"[{"text": "I split it.", "calls": []}]"#),
            _ => row,
        };
        row.from("session s").insert(&test.owner).await;
    }
    for n in 0..3 {
        let row = rows("message").with("body", format!("m{n}"));
        row.set("created_at", format!("now() - interval '{} minutes'", 10 - n))
            .insert(&test.owner)
            .await;
    }
    sqlx::query(
        "insert into task_context (account_id, task_id, version, body, characters, cut_characters, author_kind, author_id, author_name)
         values ('acme', 'proj-7', 4, 'We build a parser.', 18, 0, 'user', 'u-1', 'Ann')",
    )
    .execute(&test.owner)
    .await
    .unwrap();
    Scene {
        gateway: test.connect(Role::ToolGateway).await,
        orchestrator: test.connect(Role::Orchestrator).await,
        root: Root::default(),
        test,
        account,
        coder,
        reviewer,
        task,
        session,
        turn,
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

const BY_ANN: Ending<'static> = Ending::Cancelled {
    by: "Ann",
    reason: Some("not needed"),
};
const DONE: Ending<'static> = Ending::Finished {
    result: Some("It holds."),
};

/// Each branch with its session; the items of its parent that bring results; what waits, by session.
const BRANCHES: &str = "
    select concat_ws(' ', b.ordinal, b.state, b.detail, b.result, s.close_reason, b.joined_item is not null)
    from branch b join session s on s.id = b.session_id order by b.depth, b.created_at, b.ordinal";
const RESULTS: &str = "
    select concat_ws(' ', s.generation, n.state, n.hops, n.title) from notification n join session s on s.id = n.session_id
    where n.kind = 'branch_result' order by n.created_at, n.id";
const REQUESTS: &str = "
    select concat_ws(' ', state, reason) from notification where kind = 'subagent' order by id";
const LIVE_BELOW_CLOSED: &str = "
    select count(*) from branch b join session s on s.id = b.session_id join session p on p.id = b.parent_session_id
    where b.state = 'live' and (s.closed_at is not null or p.closed_at is not null)";
const TIMERS: &str = "select concat_ws(' ', kind, state, reason) from timer order by id";

impl Scene {
    fn setting(&self) -> Setting<'_> {
        Setting {
            root: &self.root,
            source: "/signalbox/test",
            origin: Origin::default(),
            now: OffsetDateTime::now_utc(),
        }
    }

    async fn begin(&self) -> Tx {
        self.orchestrator.begin(&Accounts::one(&self.account)).await.unwrap()
    }

    async fn begin_gateway(&self) -> Tx {
        self.gateway.begin(&Accounts::one(&self.account)).await.unwrap()
    }

    /// Branches of a turn, without a commit. As the tool does, under the parent's session.
    async fn spawn_in(
        &self,
        tx: &Tx,
        of: (SessionId, TurnId, i32),
        agents: &[AgentId],
        join: JoinMode,
    ) -> Vec<Spawned> {
        let (session, turn, depth) = of;
        let branches: Vec<NewBranch> = (1..)
            .zip(agents)
            .map(|(n, agent)| NewBranch {
                agent: *agent,
                label: Some(format!("part {n}")),
                request: format!("Do part {n}."),
                context: BranchContext::Snapshot,
            })
            .collect();
        let by = ann();
        let new = NewGroup {
            parent: Parent {
                account: &self.account,
                task: &self.task,
                session,
                depth,
                turn,
                by: &by,
            },
            call: Uuid::now_v7(),
            join,
            deadline_at: OffsetDateTime::now_utc() + Duration::HOUR,
            branches: &branches,
        };
        let (spawned, messages) = branch_spawn(tx, &new, &self.setting()).await.unwrap().unwrap();
        outbox_insert(tx, messages).await.unwrap();
        spawned
    }

    async fn spawn(&self, agents: &[AgentId], join: JoinMode) -> Vec<Spawned> {
        let tx = self.begin_gateway().await;
        let spawned = self.spawn_in(&tx, (self.session, self.turn, 0), agents, join).await;
        tx.commit().await.unwrap();
        spawned
    }

    /// As the API cancels a branch, and a record ends it.
    async fn end_in(&self, tx: &Tx, branch: BranchId, ending: Ending<'_>) -> Vec<(BranchId, BranchState)> {
        branches_lock(tx, &self.account, |live| live.id == branch)
            .await
            .unwrap();
        let ends = Ends {
            ends: vec![(branch, ending)],
            closing: &[],
            tells: true,
        };
        let ended = branch_end(tx, &self.account, &ends, &self.setting()).await.unwrap();
        outbox_insert(tx, ended.messages).await.unwrap();
        ended.branches
    }

    async fn end(&self, branch: BranchId, ending: Ending<'_>) -> Vec<(BranchId, BranchState)> {
        let tx = self.begin().await;
        let ended = self.end_in(&tx, branch, ending).await;
        tx.commit().await.unwrap();
        ended
    }

    async fn move_to(&self, tx: &Tx, to: TaskStatus) {
        let by = ann();
        let asked = TaskMove {
            account: &self.account,
            task: &self.task,
            to,
            by: &by,
            reason: None,
            turn: None,
            passes_stages: false,
        };
        let moved = task_status_set(tx, &asked, &self.setting()).await.unwrap().unwrap();
        outbox_insert(tx, moved.messages).await.unwrap();
    }

    /// The parent's session is reset, at rest.
    async fn reset_in(&self, tx: &Tx) {
        let name = (self.account.clone(), self.session);
        let locked = sessions_lock(tx, SESSIONS_LOCK, &[name]).await.unwrap().pop().unwrap();
        let request = ResetRequest {
            reason: "it is confused".to_owned(),
            by: ann(),
            queue: ResetQueue::Keep,
            in_flight: ResetInFlight::Cancel,
            at: OffsetDateTime::now_utc().into(),
        };
        let of = (&locked, Some(&self.task));
        let (_, messages) = session_reset(tx, of, &request, &self.setting()).await.unwrap();
        outbox_insert(tx, messages).await.unwrap();
    }

    /// The sweep of due timers; false: another one has cleared one of them.
    async fn fire_in(&self, tx: &Tx) -> bool {
        let due = timers_due(tx, &self.account, 100).await.unwrap();
        assert_eq!(due.len(), 1);
        let fired = timers_fire(tx, &self.account, &due, &self.setting()).await.unwrap();
        let Some(messages) = fired else { return false };
        outbox_insert(tx, messages).await.unwrap();
        true
    }

    async fn is_due(&self) {
        let due = "update timer set due_at = now() - interval '1 second' where state = 'waiting'";
        sqlx::query(due).execute(&self.test.owner).await.unwrap();
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

    /// What holds after everything here: an ended branch has a closed session and is told of once, a live one has an open parent.
    async fn is_sound(&self) {
        assert_eq!(self.test.count(LIVE_BELOW_CLOSED).await, 0);
        let unsound = "
            select b.id::text from branch b join session s on s.id = b.session_id
            where (b.state = 'live') <> (s.closed_at is null)
               or exists (select from notification n where n.session_id = s.id and n.state = 'queued' and s.closed_at is not null)
               or s.queued <> (select count(*) from notification n where n.session_id = s.id and n.state = 'queued')
            union all
            select n.session_id::text from notification n where n.kind = 'branch_result'
            group by n.session_id, n.metadata ->> 'group_id', n.metadata -> 'branches' having count(*) > 1";
        assert_eq!(self.texts(unsound).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn branches_are_made_at_once_with_all_that_they_need() {
    let scene = scene().await;
    let spawned = scene.spawn(&[scene.coder; 10], JoinMode::All).await;
    assert_eq!(spawned.len(), 10);
    // Their sessions come after their parent's, in the order in which sessions are locked.
    assert!(spawned.iter().all(|one| one.session > scene.session));
    let transactions = "
        select count(distinct xmin::text) from (
            select xmin from branch union all select xmin from session where kind = 'branch'
            union all select xmin from notification where kind = 'subagent' union all select xmin from timer) x";
    assert_eq!(
        scene.test.count(transactions).await,
        1,
        "one transaction makes them all"
    );
    let sessions = "
        select concat_ws(' ', s.kind, s.task_id, s.generation, s.phase, s.queued, s.queue_tail, s.origin_id = b.id,
                         s.parent_session_id = b.parent_session_id, s.key = format('branch:%s:agent:%s:acme:v1', b.id, b.agent_id))
        from branch b join session s on s.id = b.session_id";
    assert_eq!(scene.texts(sessions).await, vec!["branch proj-7 1 idle 1 1 t t t"; 10]);
    let items = "
        select concat_ws(' ', n.id = 'subagent:' || b.id, n.state, n.position, n.hops, n.title = b.label, n.body = b.request)
        from branch b join notification n on n.session_id = b.session_id";
    assert_eq!(scene.texts(items).await, vec!["t queued 1 1 t t"; 10]);
    assert_eq!(scene.texts(TIMERS).await, ["branch_deadline waiting"]);
    let wakes = "select count(*) from outbox cross join string_to_table(subject, ' ') as s (one) where one like '%.session.resolved.%'";
    assert_eq!(scene.test.count(wakes).await, 10);
    // What their parent knew: the context and the messages are those of now, the newest message is first, the turn before was the second.
    let base = "
        select distinct concat_ws(' ', b.base ->> 'context_version', b.base ->> 'number', b.base ->> 'rounds', b.base ->> 'thread',
                         l.number, array_length(b.base_messages, 1), m.body, length(b.base ->> 'sha256'))
        from branch b join turn l on l.id = (b.base ->> 'last_turn')::uuid join message m on m.id = b.base_messages[1]";
    assert_eq!(scene.texts(base).await, ["4 3 1 resp_2 2 3 m2 64"]);
}

#[tokio::test]
async fn the_last_of_a_group_tells_the_parent_of_all() {
    let scene = scene().await;
    let of = scene
        .spawn(&[scene.coder, scene.reviewer, scene.coder], JoinMode::All)
        .await;
    scene.end(of[1].branch, DONE).await;
    scene.end(of[0].branch, Ending::Failed { error: "timeout: none" }).await;
    assert_eq!(scene.texts(RESULTS).await, Vec::<String>::new());
    assert_eq!(scene.texts(TIMERS).await, ["branch_deadline waiting"]);
    scene.end(of[2].branch, BY_ANN).await;
    assert_eq!(
        scene.texts(BRANCHES).await,
        [
            "1 failed timeout: none folded t",
            "2 finished It holds. folded t",
            "3 cancelled by Ann: not needed cancelled t",
        ]
    );
    assert_eq!(scene.texts(RESULTS).await, ["1 queued 2 Results of your 3 subagents"]);
    let body = scene
        .texts("select body from notification where kind = 'branch_result'")
        .await;
    assert_eq!(
        body[0].lines().collect::<Vec<_>>(),
        [
            "1. \"part 1\" (coder): failed",
            "> timeout: none",
            "2. \"part 2\" (reviewer): finished",
            "> It holds.",
            "3. \"part 3\" (coder): cancelled",
            "> by Ann: not needed",
        ]
    );
    assert_eq!(
        scene.texts(TIMERS).await,
        ["branch_deadline cleared the branches have ended"]
    );
    assert_eq!(scene.texts(REQUESTS).await, vec!["cancelled branch ended"; 3]);
    let late = scene.end(of[0].branch, DONE).await;
    assert_eq!(late, [], "it has ended: what comes is late");
    assert_eq!(scene.texts(RESULTS).await.len(), 1);
    scene.is_sound().await;
}

#[tokio::test]
async fn each_branch_tells_the_parent_by_itself_if_so_asked() {
    let scene = scene().await;
    let of = scene.spawn(&[scene.coder, scene.reviewer], JoinMode::Each).await;
    // A publisher has used the id of the first one's item.
    let row = enqueued(&scene.account, scene.session).with("id", format!("branch:{}", of[0].branch));
    row.insert(&scene.test.owner).await;
    scene.end(of[0].branch, DONE).await;
    scene.end(of[1].branch, Ending::Finished { result: None }).await;
    assert_eq!(
        scene.texts(RESULTS).await,
        [
            "1 queued 2 Result of your subagent \"part 1\" (coder)",
            "1 queued 2 Result of your subagent \"part 2\" (reviewer)"
        ]
    );
    let named = "
        select concat_ws(' ', b.ordinal, b.joined_item = 'branch:' || b.id, n.kind) from branch b join notification n on n.id = b.joined_item
        order by b.ordinal";
    assert_eq!(
        scene.texts(named).await,
        ["1 f branch_result", "2 t branch_result"],
        "an item counts as a result only if a branch names it"
    );
    scene.is_sound().await;
}

#[tokio::test]
async fn what_comes_to_an_ended_branch_is_cancelled() {
    let scene = scene().await;
    let of = scene.spawn(&[scene.coder], JoinMode::All).await;
    let row = enqueued(&scene.account, of[0].session).with("id", "a");
    row.insert(&scene.test.owner).await;
    let conversation = Conversation::of_branch(&scene.account, of[0].branch, scene.coder);
    let enter = async |id: &str| {
        let (tx, id) = (scene.begin().await, NotificationId::parse(id).unwrap());
        let entry = NewEntry {
            id: &id,
            task: Some(&scene.task),
            message: NotificationMessage::new("message", ann(), String::new(), "And this?".to_owned()),
        };
        let entered = item_enter(&tx, &conversation, entry, &QueueLimits::OWN, &scene.setting()).await;
        let (entered, messages) = entered.unwrap();
        outbox_insert(&tx, messages).await.unwrap();
        tx.commit().await.unwrap();
        entered
    };
    scene.end(of[0].branch, BY_ANN).await;
    assert_eq!(enter("b").await, Entered::Known(domain::NotificationState::Cancelled));
    let items = "select concat_ws(' ', id, state, reason) from notification where id in ('a', 'b') order by id";
    assert_eq!(
        scene.texts(items).await,
        ["a cancelled branch ended", "b cancelled branch ended"]
    );
    let generations = "select count(*) from session where kind = 'branch'";
    assert_eq!(
        scene.test.count(generations).await,
        1,
        "a branch opens no next generation"
    );
    scene.is_sound().await;
}

/// Branches of the scene's turn and of the first one's turn: the ids of both groups.
async fn nested(scene: &Scene) -> (Vec<Spawned>, Vec<Spawned>) {
    let above = scene.spawn(&[scene.coder, scene.reviewer], JoinMode::All).await;
    let turn = TurnId(Uuid::now_v7());
    let row = rows("turn").with("id", turn).with("state", "awaiting_tools");
    row.from(format!("session s where s.id = '{}'", above[0].session))
        .insert(&scene.test.owner)
        .await;
    sqlx::query("update session set active_turn_id = $1, phase = 'waiting', turn_count = 1 where id = $2")
        .bind(turn.uuid())
        .bind(above[0].session.uuid())
        .execute(&scene.test.owner)
        .await
        .unwrap();
    let tx = scene.begin_gateway().await;
    let of = (above[0].session, turn, 1);
    let below = scene
        .spawn_in(&tx, of, &[scene.coder, scene.reviewer], JoinMode::Each)
        .await;
    tx.commit().await.unwrap();
    (above, below)
}

#[tokio::test]
async fn a_branch_ends_with_all_below_it() {
    let scene = scene().await;
    let (above, below) = nested(&scene).await;
    let mut ended = scene.end(above[0].branch, BY_ANN).await;
    ended.sort_unstable_by_key(|(branch, _)| *branch);
    let mut expected = [above[0].branch, below[0].branch, below[1].branch].map(|id| (id, BranchState::Cancelled));
    expected.sort_unstable_by_key(|(branch, _)| *branch);
    assert_eq!(ended, expected);
    assert_eq!(
        scene.texts(BRANCHES).await,
        [
            "1 cancelled by Ann: not needed cancelled f",
            "2 live f",
            "1 cancelled by Signalbox: its parent has ended cancelled f",
            "2 cancelled by Signalbox: its parent has ended cancelled f",
        ],
        "nobody is told who has ended himself, and the group above still waits for one"
    );
    let stop = "select concat_ws(' ', stop_kind, stop_by, stop_turn_id = active_turn_id) from session where stop_kind is not null";
    assert_eq!(scene.texts(stop).await, ["branch_ended Ann t"], "its turn is to stop");
    scene.end(above[1].branch, DONE).await;
    assert_eq!(scene.texts(RESULTS).await, ["1 queued 2 Results of your 2 subagents"]);
    scene.is_sound().await;
}

#[tokio::test]
async fn whatever_ends_the_parent_ends_its_branches() {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum By {
        Done,
        Cancelled,
        Agent,
        Handover,
        Reset,
    }
    for by in [By::Done, By::Cancelled, By::Agent, By::Handover, By::Reset] {
        let scene = scene().await;
        nested(&scene).await;
        if by == By::Reset {
            // The parent rests.
            let rest = "update session set phase = 'idle', active_turn_id = null where kind = 'task'";
            sqlx::query(rest).execute(&scene.test.owner).await.unwrap();
        }
        let tx = scene.begin().await;
        match by {
            By::Done => scene.move_to(&tx, TaskStatus::Done).await,
            By::Cancelled => scene.move_to(&tx, TaskStatus::Cancelled).await,
            By::Agent => {
                let removed = agent_remove(&tx, &scene.account, scene.coder, &scene.setting()).await;
                outbox_insert(&tx, removed.unwrap().unwrap().messages).await.unwrap();
            }
            By::Handover => {
                let (from, to, by) = (scene.coder, scene.reviewer, ann());
                let asked = Handover {
                    account: &scene.account,
                    task: &scene.task,
                    from,
                    to,
                    by: &by,
                };
                let done = handover(&tx, &asked, &scene.setting()).await.unwrap().unwrap();
                outbox_insert(&tx, done.messages).await.unwrap();
            }
            By::Reset => scene.reset_in(&tx).await,
        }
        tx.commit().await.unwrap();
        let live = "select count(*) from branch where state = 'live'";
        assert_eq!(scene.test.count(live).await, 0, "{by:?}");
        assert_eq!(
            scene.texts(RESULTS).await,
            Vec::<String>::new(),
            "{by:?}: nobody is there to read them"
        );
        let waiting = "select count(*) from timer where state = 'waiting'";
        assert_eq!(scene.test.count(waiting).await, 0, "{by:?}");
        let stopping = "select stop_kind from session where kind = 'branch' and stop_turn_id = active_turn_id";
        assert_eq!(scene.texts(stopping).await, ["branch_ended"], "{by:?}");
        scene.is_sound().await;
    }
}

#[tokio::test]
async fn a_parent_is_told_of_a_branch_whose_agent_was_removed() {
    let scene = scene().await;
    let of = scene.spawn(&[scene.coder, scene.reviewer], JoinMode::All).await;
    let tx = scene.begin().await;
    let removed = agent_remove(&tx, &scene.account, scene.reviewer, &scene.setting()).await;
    outbox_insert(&tx, removed.unwrap().unwrap().messages).await.unwrap();
    tx.commit().await.unwrap();
    scene.end(of[0].branch, DONE).await;
    assert_eq!(
        scene.texts(BRANCHES).await,
        [
            "1 finished It holds. folded t",
            "2 cancelled by Signalbox: agent removed cancelled t"
        ]
    );
    assert_eq!(scene.texts(RESULTS).await.len(), 1);
    scene.is_sound().await;
}

#[tokio::test]
async fn the_deadline_ends_those_that_are_still_at_work() {
    let scene = scene().await;
    let of = scene.spawn(&[scene.coder, scene.reviewer], JoinMode::All).await;
    scene.end(of[0].branch, DONE).await;
    scene.is_due().await;
    let tx = scene.begin().await;
    assert!(scene.fire_in(&tx).await);
    tx.commit().await.unwrap();
    assert_eq!(
        scene.texts(BRANCHES).await,
        ["1 finished It holds. folded t", "2 expired expired t"]
    );
    assert_eq!(scene.texts(TIMERS).await, ["branch_deadline fired"]);
    assert_eq!(scene.texts(RESULTS).await.len(), 1);
    scene.is_sound().await;
}

#[tokio::test]
async fn results_that_wait_go_with_their_parent_to_its_next_generation() {
    let scene = scene().await;
    let of = scene.spawn(&[scene.coder, scene.coder], JoinMode::Each).await;
    let rest = "update session set phase = 'idle', active_turn_id = null where kind = 'task'";
    sqlx::query(rest).execute(&scene.test.owner).await.unwrap();
    scene.end(of[0].branch, DONE).await;
    let tx = scene.begin().await;
    scene.reset_in(&tx).await;
    tx.commit().await.unwrap();
    assert_eq!(
        scene.texts(RESULTS).await,
        ["2 queued 2 Result of your subagent \"part 1\" (coder)"],
        "what had come is kept, and of the other one nobody is told"
    );
    scene.is_sound().await;
}

/// The second transaction begins its part while the first holds the locks, and goes on when the first has committed.
async fn one_waits(scene: &Scene, first: Tx, second: impl Future<Output = ()>) {
    let commits = async {
        scene.until_blocked().await;
        first.commit().await.unwrap();
    };
    tokio::join!(commits, second);
}

#[tokio::test]
async fn of_two_ends_the_first_counts() {
    let scene = scene().await;
    let of = scene.spawn(&[scene.coder, scene.reviewer], JoinMode::All).await;
    // A fold, and a person who cancels.
    let first = scene.begin().await;
    scene.end_in(&first, of[0].branch, DONE).await;
    one_waits(&scene, first, async {
        assert_eq!(scene.end(of[0].branch, BY_ANN).await, [], "it has ended");
    })
    .await;
    // Two ends of one group: the second sees the first, and brings both results.
    let more = scene.spawn(&[scene.coder, scene.coder], JoinMode::All).await;
    let first = scene.begin().await;
    scene.end_in(&first, more[0].branch, DONE).await;
    one_waits(&scene, first, async {
        scene.end(more[1].branch, DONE).await;
    })
    .await;
    assert_eq!(scene.texts(RESULTS).await, ["1 queued 2 Results of your 2 subagents"]);
    // A cancel, and the deadline.
    scene.is_due().await;
    let first = scene.begin().await;
    scene.end_in(&first, of[1].branch, BY_ANN).await;
    one_waits(&scene, first, async {
        let tx = scene.begin().await;
        assert!(!scene.fire_in(&tx).await, "the timer was cleared meanwhile");
        tx.rollback().await.unwrap();
    })
    .await;
    assert_eq!(
        scene.texts(BRANCHES).await,
        [
            "1 finished It holds. folded t",
            "2 cancelled by Ann: not needed cancelled t",
            "1 finished It holds. folded t",
            "2 finished It holds. folded t"
        ]
    );
    scene.is_sound().await;
}

#[tokio::test]
async fn a_fold_and_the_end_of_the_task_come_in_either_order() {
    for task_first in [true, false] {
        let scene = scene().await;
        let of = scene.spawn(&[scene.coder], JoinMode::All).await;
        let first = scene.begin().await;
        match task_first {
            true => {
                scene.move_to(&first, TaskStatus::Done).await;
                one_waits(&scene, first, async {
                    assert_eq!(scene.end(of[0].branch, DONE).await, []);
                })
                .await;
                assert_eq!(scene.texts(RESULTS).await, Vec::<String>::new());
            }
            false => {
                scene.end_in(&first, of[0].branch, DONE).await;
                one_waits(&scene, first, async {
                    let tx = scene.begin().await;
                    scene.move_to(&tx, TaskStatus::Done).await;
                    tx.commit().await.unwrap();
                })
                .await;
                let found = scene.texts(RESULTS).await;
                assert_eq!(found, ["1 cancelled 2 Result of your subagent \"part 1\" (coder)"]);
            }
        }
        scene.is_sound().await;
    }
}

#[tokio::test]
async fn a_task_that_ends_during_a_spawn_ends_what_it_made() {
    let scene = scene().await;
    let first = scene.begin_gateway().await;
    // As the tool does: the task and the session for share.
    for sql in [
        "select from task for share",
        "select from session where kind = 'task' for share",
    ] {
        first
            .execute("lock", sql, std::iter::empty::<sea_orm::Value>())
            .await
            .unwrap();
    }
    scene
        .spawn_in(&first, (scene.session, scene.turn, 0), &[scene.reviewer], JoinMode::All)
        .await;
    one_waits(&scene, first, async {
        let tx = scene.begin().await;
        scene.move_to(&tx, TaskStatus::Cancelled).await;
        tx.commit().await.unwrap();
    })
    .await;
    assert_eq!(
        scene.texts(BRANCHES).await,
        ["1 cancelled by Ann: task closed cancelled f"]
    );
    scene.is_sound().await;
}
