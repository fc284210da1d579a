//! What tasks wait for: whatever crosses, there is no ring, nothing is blocked without a cause, nothing enters work with an open edge, and
//! each task that is freed is told of it once.

use contracts::{Root, outgoing::Origin};
use domain::{AccountId, Actor, ActorKind, AgentId, TaskId, TaskStatus};
use storage::{
    Accounts, Database, Role, Setting, StorageError,
    lifecycle::{
        TaskMove, TaskNotMoved,
        dependencies::{NotPlaced, Waits, dependencies_set, graph_lock, parent_set, worker_set},
        plan::tasks_lock_with,
        task_status_set,
    },
    outbox::{Owned, outbox_insert},
};
use testkit::{Fixture, TestDatabase};
use time::OffsetDateTime;

struct Board {
    test: TestDatabase,
    database: Database,
    account: AccountId,
    agent: AgentId,
    tasks: Vec<TaskId>,
    root: Root,
    by: Actor,
}

/// So many tasks `t-0`, … in this status, each with the same agent.
async fn board(tasks: usize, status: &str) -> Board {
    let test = TestDatabase::fresh().await;
    let fixture = Fixture(&test);
    let account = fixture.account("acme").await;
    let agent = fixture.agent(&account, "coder").await;
    let mut ids = Vec::new();
    for n in 0..tasks {
        ids.push(fixture.task(&account, &format!("T-{n}"), &[agent]).await);
    }
    sqlx::query("update task set status = $1")
        .bind(status)
        .execute(&test.owner)
        .await
        .unwrap();
    let database = test.connect(Role::ToolGateway).await;
    Board {
        test,
        database,
        account,
        agent,
        tasks: ids,
        root: Root::default(),
        by: Actor {
            kind: ActorKind::User,
            id: "u".into(),
            name: "u".into(),
            via: None,
        },
    }
}

impl Board {
    fn setting(&self) -> Setting<'_> {
        Setting {
            root: &self.root,
            source: "/signalbox/tool-gateway",
            origin: Origin::default(),
            now: OffsetDateTime::now_utc(),
        }
    }

    async fn waits(&self, task: usize, blockers: &[usize]) -> Result<Result<Vec<Owned>, NotPlaced>, StorageError> {
        let blockers: Vec<TaskId> = blockers.iter().map(|n| self.tasks[*n].clone()).collect();
        let tx = self.database.begin(&Accounts::one(&self.account)).await?;
        graph_lock(&tx, &self.account).await?;
        tasks_lock_with(&tx, &self.account, &self.tasks[task], &blockers).await?;
        let asked = Waits {
            account: &self.account,
            task: &self.tasks[task],
            blockers: &blockers,
            board: None,
            by: &self.by,
        };
        match dependencies_set(&tx, &asked, &self.setting()).await? {
            Ok(written) => {
                outbox_insert(&tx, written.messages.clone()).await?;
                tx.commit().await?;
                Ok(Ok(written.messages))
            }
            Err(why) => {
                tx.rollback().await?;
                Ok(Err(why))
            }
        }
    }

    async fn moved(&self, task: usize, to: TaskStatus) -> Result<Result<Vec<Owned>, TaskNotMoved>, StorageError> {
        let tx = self.database.begin(&Accounts::one(&self.account)).await?;
        let asked = TaskMove {
            account: &self.account,
            task: &self.tasks[task],
            to,
            by: &self.by,
            reason: None,
            turn: None,
            passes_stages: false,
        };
        match task_status_set(&tx, &asked, &self.setting()).await? {
            Ok(moved) => {
                if moved.from != moved.to && !to.is_free_of_blockers() {
                    let open =
                        "select from task_dependency where account_id = $1 and task_id = $2 and satisfied_at is null";
                    let values = [(&self.account).into(), self.tasks[task].key().into()];
                    assert!(!tx.exists("look", open, values).await?, "it entered {to} and waits");
                }
                outbox_insert(&tx, moved.messages.clone()).await?;
                tx.commit().await?;
                Ok(Ok(moved.messages))
            }
            Err(why) => {
                tx.rollback().await?;
                Ok(Err(why))
            }
        }
    }

    async fn status(&self, task: usize) -> String {
        let query = sqlx::query_scalar("select status from task where id = $1");
        let id = self.tasks[task].key();
        query.bind(id.as_str()).fetch_one(&self.test.owner).await.unwrap()
    }
}

/// Messages of this kind: by the end of the subject of an event, or by the type of a notification.
fn of_kind(messages: &[Owned], kind: &str) -> usize {
    let is_it = |(_, outgoing): &&Owned| {
        let payload: serde_json::Value = serde_json::from_slice(&outgoing.payload).unwrap();
        outgoing.subject.ends_with(kind) || outgoing.subject.contains(".notification.") && payload["type"] == kind
    };
    messages.iter().filter(is_it).count()
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 33).unwrap() % sides
    }
}

const TASKS: usize = 7;

/// Random acts. A deadlock undoes one: its transaction is repeated by whoever runs it, here it is left out.
async fn acts(board: &Board, mut dice: Dice, acts: usize) -> Vec<Owned> {
    const MOVES: [TaskStatus; 6] = [
        TaskStatus::InProgress,
        TaskStatus::Done,
        TaskStatus::Done,
        TaskStatus::Pending,
        TaskStatus::Cancelled,
        TaskStatus::Failed,
    ];
    let mut messages = Vec::new();
    for _ in 0..acts {
        let task = dice.throw(TASKS);
        let told = match dice.throw(3) {
            0 => {
                let blockers: Vec<usize> = (0..dice.throw(4)).map(|_| dice.throw(TASKS)).collect();
                board.waits(task, &blockers).await.map(Result::unwrap_or_default)
            }
            _ => {
                let to = MOVES[dice.throw(MOVES.len())];
                board.moved(task, to).await.map(Result::unwrap_or_default)
            }
        };
        match told {
            Ok(told) => messages.extend(told),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
    messages
}

#[tokio::test]
async fn whatever_crosses_nothing_is_blocked_without_a_cause_and_each_is_freed_once() {
    for seed in 1..=6_u64 {
        let board = board(TASKS, "assigned").await;
        let (one, other) = tokio::join!(
            acts(&board, Dice(seed), 60),
            acts(&board, Dice(seed.wrapping_mul(7_919)), 60)
        );
        let messages: Vec<Owned> = one.into_iter().chain(other).collect();
        let rings = "
            with recursive reached (start, at, depth) as (
                select task_id, blocked_by_task_id, 1 from task_dependency where satisfied_at is null
                union
                select r.start, d.blocked_by_task_id, r.depth + 1 from reached r
                join task_dependency d on d.task_id = r.at and d.satisfied_at is null where r.depth < 20)
            select count(*) from reached where start = at";
        assert_eq!(board.test.count(rings).await, 0, "seed {seed}: a ring");
        let causeless = "
            select count(*) from task t where t.status = 'blocked'
              and not exists (select from task_dependency d where d.task_id = t.id and d.satisfied_at is null)";
        assert_eq!(board.test.count(causeless).await, 0, "seed {seed}: blocked by nothing");
        let unblocked = "
            select count(*) from task t where t.status in ('inbox', 'assigned', 'pending')
              and exists (select from task_dependency d where d.task_id = t.id and d.satisfied_at is null)";
        assert_eq!(
            board.test.count(unblocked).await,
            0,
            "seed {seed}: it waits, and is not blocked"
        );
        let freed = "
            select count(*) from activity
            where kind = 'task.status_changed' and detail ->> 'from' = 'blocked' and detail ->> 'to' = 'pending'";
        let freed = usize::try_from(board.test.count(freed).await).unwrap();
        assert_eq!(of_kind(&messages, ".task.unblocked"), freed, "seed {seed}");
        assert_eq!(
            of_kind(&messages, "task_unblocked"),
            freed,
            "seed {seed}: one item each"
        );
    }
}

#[tokio::test]
async fn a_task_begins_when_the_last_that_it_waits_for_is_done() {
    let board = board(4, "assigned").await;
    board.waits(0, &[1, 2]).await.unwrap().unwrap();
    assert_eq!(board.status(0).await, "blocked");
    // It does not move on before, but it may be given up.
    let refused = board.moved(0, TaskStatus::InProgress).await.unwrap().unwrap_err();
    let blockers = [1, 2].map(|n: usize| board.tasks[n].clone());
    assert_eq!(refused, TaskNotMoved::BlockedBy(blockers.to_vec()));
    // Both at once: it is freed once.
    let (one, other) = tokio::join!(board.moved(1, TaskStatus::Done), board.moved(2, TaskStatus::Done));
    let messages: Vec<Owned> = [one, other]
        .into_iter()
        .flat_map(|told| told.unwrap().unwrap())
        .collect();
    assert_eq!(board.status(0).await, "pending");
    assert_eq!(of_kind(&messages, "task_unblocked"), 1);
    assert_eq!(of_kind(&messages, ".task.unblocked"), 1);
    // What was done once stays done for whoever waited for it.
    board.moved(1, TaskStatus::InProgress).await.unwrap().unwrap();
    assert_eq!(board.status(0).await, "pending");
    board.moved(0, TaskStatus::InProgress).await.unwrap().unwrap();
    // At work it keeps its status, and is told.
    let told = board.waits(0, &[3]).await.unwrap().unwrap();
    assert_eq!(
        (of_kind(&told, "dependency_added"), &*board.status(0).await),
        (1, "in_progress")
    );
    assert!(board.moved(0, TaskStatus::Done).await.unwrap().is_err());
}

#[tokio::test]
async fn what_will_not_be_done_frees_nobody_and_is_told_once() {
    let board = board(2, "assigned").await;
    board.waits(0, &[1]).await.unwrap().unwrap();
    let told = board.moved(1, TaskStatus::Failed).await.unwrap().unwrap();
    assert_eq!(of_kind(&told, "dependency_ended"), 1);
    let told = board.moved(1, TaskStatus::Cancelled).await.unwrap().unwrap();
    assert_eq!(of_kind(&told, "dependency_ended"), 0);
    assert_eq!(board.status(0).await, "blocked");
    let told = board.waits(0, &[]).await.unwrap().unwrap();
    assert_eq!(
        (of_kind(&told, "task_unblocked"), &*board.status(0).await),
        (1, "pending")
    );
    // A task that something else holds is not freed.
    board.waits(0, &[1]).await.unwrap().unwrap();
    sqlx::query("update task set blocked_owner = 'role:admin', blocked_action = 'buy it' where id = 't-0'")
        .execute(&board.test.owner)
        .await
        .unwrap();
    board.waits(0, &[]).await.unwrap().unwrap();
    assert_eq!(board.status(0).await, "blocked");
}

#[tokio::test]
async fn no_task_waits_for_itself() {
    let board = board(12, "assigned").await;
    let cycle = |placed: Result<Result<Vec<Owned>, NotPlaced>, StorageError>| match placed.unwrap() {
        Err(NotPlaced::Cycle(way)) => way,
        other => panic!("{other:?}"),
    };
    assert_eq!(cycle(board.waits(0, &[0]).await), "t-0 → t-0");
    // Both ways at once: one of the two.
    let (one, other) = tokio::join!(board.waits(0, &[1]), board.waits(1, &[0]));
    let refused = [one.unwrap(), other.unwrap()]
        .into_iter()
        .filter(Result::is_err)
        .count();
    assert_eq!(refused, 1);
    board.waits(1, &[]).await.unwrap().unwrap();
    board.waits(0, &[1]).await.unwrap().unwrap();
    board.waits(1, &[2]).await.unwrap().unwrap();
    assert_eq!(cycle(board.waits(2, &[0]).await), "t-2 → t-0 → t-1 → t-2");
    // Below another one: not for one above, and not deeper than eight.
    let below = async |task: usize, parent: usize| {
        let tx = board.database.begin(&Accounts::one(&board.account)).await.unwrap();
        graph_lock(&tx, &board.account).await.unwrap();
        let parent = Some((&board.tasks[parent], None));
        let named = (&board.account, &board.tasks[task]);
        let placed = parent_set(&tx, named, parent, &board.by, &board.setting())
            .await
            .unwrap();
        tx.commit_or_rollback(placed.map_err(|why| StorageError::unreadable("place", why.message())))
            .await
            .map(drop)
    };
    for task in 4..12 {
        below(task, task - 1).await.unwrap();
    }
    let too_deep = below(3, 2).await.unwrap_err();
    assert!(format!("{too_deep:?}").contains("at most 8"), "{too_deep:?}");
    below(3, 5).await.unwrap_err();
    assert_eq!(cycle(board.waits(5, &[3]).await), "t-5 → t-3 → t-5");
    let unknown = board.waits(0, &[1]).await.unwrap();
    assert!(unknown.unwrap().is_empty(), "the same again changes nothing");
}

#[tokio::test]
async fn a_worker_is_told_of_its_task_and_that_it_can_begin() {
    let board = board(3, "assigned").await;
    let tx = board.database.begin(&Accounts::one(&board.account)).await.unwrap();
    let given = async || {
        let worker = Some((&board.tasks[2], board.agent));
        worker_set(
            &tx,
            (&board.account, &board.tasks[0]),
            worker,
            &board.by,
            &board.setting(),
        )
        .await
        .unwrap()
    };
    assert_eq!(of_kind(&given().await, "task_assigned"), 1);
    assert!(given().await.is_empty(), "it has it");
    tx.commit().await.unwrap();
    board.waits(0, &[1]).await.unwrap().unwrap();
    let told = board.moved(1, TaskStatus::Done).await.unwrap().unwrap();
    let (_, item) = told
        .iter()
        .find(|(_, outgoing)| outgoing.subject.contains(".notification."))
        .unwrap();
    assert!(item.subject.ends_with(".T-2"), "{}", item.subject);
}
