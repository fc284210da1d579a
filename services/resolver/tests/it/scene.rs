//! A database with an account, two agents and a task, and the handler as in the service. Messages are passed as by the
//! stream: numbered, in order, a batch at a time.

use contracts::{Headers, Outgoing, Root, TraceContext};
use domain::{AccountId, AgentId, QueueLimits, TaskId};
use messaging::Incoming;
use resolver::{
    handlers::notification::{Committed, Handled, NotificationHandler},
    intake::received::Received,
    store::partitions::{Lease, PartitionOffset, partitions_claim, partitions_ensure},
};
use runtime::Shutdown;
use serde_json::{Value, json};
use sqlx::{Row, postgres::PgRow};
use storage::{Accounts, Database, Role, replica::replica_register};
use testkit::{Fixture, TestDatabase};
use time::OffsetDateTime;
use uuid::Uuid;

pub(crate) const LIMITS: QueueLimits = QueueLimits {
    hops_max: 3,
    items_max: 10_000,
};

pub(crate) struct Scene {
    pub(crate) test: TestDatabase,
    pub(crate) database: Database,
    pub(crate) account: AccountId,
    pub(crate) coder: AgentId,
    pub(crate) reviewer: AgentId,
    /// `PROJ-7`, assigned to both.
    pub(crate) task: TaskId,
}

/// One reader: a lease, and its last sequence.
pub(crate) struct Reader {
    pub(crate) handler: NotificationHandler,
    pub(crate) lease: Lease,
    sequence: u64,
}

/// A message to read.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) subject: String,
    pub(crate) headers: Headers,
    pub(crate) payload: String,
    /// Signed by one of our services.
    pub(crate) is_signed: bool,
}

pub(crate) fn message(account: &str, task: &str, payload: &Value) -> Message {
    raw(account, task, &payload.to_string())
}

pub(crate) fn raw(account: &str, task: &str, payload: &str) -> Message {
    Message {
        subject: format!("signalbox.partition.0.{account}.{task}"),
        headers: Headers::default(),
        payload: payload.to_owned(),
        is_signed: false,
    }
}

/// To agent `coder` of `acme` on PROJ-7.
pub(crate) fn to_coder(id: &str, body: &str) -> Message {
    message("acme", "PROJ-7", &json!({"id": id, "agent": "coder", "body": body}))
}

impl Message {
    pub(crate) fn with(mut self, header: &str, value: &str) -> Message {
        self.headers.set(header, value);
        self
    }

    /// A redrive of a dead letter, as the orchestrator sends it.
    pub(crate) fn again(self) -> Message {
        Message {
            is_signed: true,
            ..self.with(contracts::header::REDRIVE, &Uuid::now_v7().to_string())
        }
    }
}

/// A stored notification, with its session.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Stored {
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) position: Option<i64>,
    pub(crate) task: Option<String>,
    pub(crate) body: String,
    pub(crate) attempts: i32,
    pub(crate) cause: Option<String>,
    pub(crate) hops: i32,
    pub(crate) trace: TraceContext,
}

pub(crate) async fn scene() -> Scene {
    let test = TestDatabase::fresh().await;
    let fixture = Fixture(&test);
    let account = fixture.account("acme").await;
    let coder = fixture.agent(&account, "coder").await;
    let reviewer = fixture.agent(&account, "reviewer").await;
    let task = fixture.task(&account, "PROJ-7", &[coder, reviewer]).await;
    let database = test.connect(Role::Resolver).await;
    partitions_ensure(&database, 8).await.unwrap();
    Scene {
        test,
        database,
        account,
        coder,
        reviewer,
        task,
    }
}

impl Scene {
    pub(crate) fn fixture(&self) -> Fixture<'_> {
        Fixture(&self.test)
    }

    /// A replica of its own with a partition of its own.
    pub(crate) async fn reader(&self) -> Reader {
        let replica = Uuid::now_v7();
        replica_register(&self.database, replica, 60_000, None).await.unwrap();
        let leases = partitions_claim(&self.database, replica, 1).await.unwrap();
        Reader {
            handler: NotificationHandler {
                database: self.database.clone(),
                root: Root::default(),
                limits: LIMITS,
                routes: std::sync::Arc::default(),
                shutdown: Shutdown::new(),
            },
            lease: leases[0],
            sequence: 0,
        }
    }

    pub(crate) async fn stored(&self, id: &str) -> Option<Stored> {
        let row = sqlx::query(
            "select n.*, s.key from notification n left join session s on s.account_id = n.account_id and s.id = n.session_id
             where n.account_id = 'acme' and n.id = $1",
        )
        .bind(id)
        .fetch_optional(&self.test.owner)
        .await
        .unwrap();
        row.map(|row| Stored {
            state: row.get("state"),
            reason: row.get("reason"),
            key: row.get("key"),
            position: row.get("position"),
            task: row.get("task_id"),
            body: row.get("body"),
            attempts: row.get("attempts"),
            cause: row.get("cause"),
            hops: row.get("hops"),
            trace: TraceContext {
                traceparent: row.get("traceparent"),
                tracestate: row.get("tracestate"),
            },
        })
    }

    /// Session key, queued, tail and whether it is closed, by key.
    pub(crate) async fn sessions(&self) -> Vec<(String, i32, i64, bool)> {
        sqlx::query("select key, queued, queue_tail, closed_at is not null as closed from session order by key")
            .fetch_all(&self.test.owner)
            .await
            .unwrap()
            .iter()
            .map(|row: &PgRow| (row.get(0), row.get(1), row.get(2), row.get(3)))
            .collect()
    }

    /// The outbox, by subject.
    pub(crate) async fn outgoing(&self) -> Vec<(String, Value)> {
        let mut messages = self.test.outbox().await;
        messages.sort_by(|one, other| one.subject.cmp(&other.subject));
        let read = |message: Outgoing| (message.subject, serde_json::from_slice(&message.payload).unwrap());
        messages.into_iter().map(read).collect()
    }

    pub(crate) async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&self.test.owner).await.unwrap();
    }

    /// The invariants: counters agree with rows, positions are unique, generations have no gap, each session has an item.
    pub(crate) async fn check(&self) {
        let wrong = self
            .test
            .texts(
                "select 'queued: ' || s.key from session s
                 where s.queued <> (select count(*) from notification n
                                    where n.account_id = s.account_id and n.session_id = s.id and n.state = 'queued')
                 union all
                 select 'tail: ' || s.key from session s
                 where s.queue_tail < (select coalesce(max(position), 0) from notification n
                                       where n.account_id = s.account_id and n.session_id = s.id)
                 union all
                 select 'place: ' || session_id || ' ' || position from notification
                 where session_id is not null group by account_id, session_id, position having count(*) > 1
                 union all
                 select 'generation: ' || key from (
                     select key, generation - lag(generation, 1, 0) over (
                         partition by account_id, kind, task_id, agent_id, user_id order by generation) as step
                     from session) as steps
                 where step <> 1
                 union all
                 select 'empty: ' || key from session where queue_tail = 0
                 union all
                 select 'closed: ' || s.key from session s
                 where s.closed_at is not null and exists (select from notification n
                     where n.account_id = s.account_id and n.session_id = s.id and n.state = 'queued')",
            )
            .await;
        assert_eq!(wrong, Vec::<String>::new());
    }

    /// Closes the task's open sessions, as a status change does.
    pub(crate) async fn task_close(&self, status: domain::TaskStatus) {
        use contracts::outgoing::Origin;
        use storage::{
            Setting,
            lifecycle::{TaskMove, task_status_set},
        };
        let database = self.test.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
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
            to: status,
            by: &domain::Actor::system(),
            reason: None,
            turn: None,
            passes_stages: false,
        };
        task_status_set(&tx, &asked, &setting).await.unwrap().unwrap();
        tx.commit().await.unwrap();
    }

    pub(crate) async fn agent_remove(&self, agent: AgentId) {
        use contracts::outgoing::Origin;
        use storage::{Setting, lifecycle::agent_remove};
        let database = self.test.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        let root = Root::default();
        let setting = Setting {
            root: &root,
            source: "/signalbox/orchestrator",
            origin: Origin::default(),
            now: OffsetDateTime::now_utc(),
        };
        agent_remove(&tx, &self.account, agent, &setting)
            .await
            .unwrap()
            .unwrap();
        tx.commit().await.unwrap();
    }
}

impl Reader {
    /// Messages as the stream delivers them, numbered from this reader's sequence.
    pub(crate) fn received(&self, messages: &[Message]) -> Vec<Received> {
        (self.sequence + 1..)
            .zip(messages)
            .map(|(sequence, message)| {
                let incoming = Incoming {
                    subject: message.subject.clone(),
                    headers: message.headers.clone(),
                    payload: message.payload.clone().into(),
                    stream_sequence: sequence,
                    deliveries: 1,
                    published: OffsetDateTime::UNIX_EPOCH,
                };
                Received::read(
                    &Root::default(),
                    OffsetDateTime::UNIX_EPOCH,
                    incoming,
                    message.is_signed,
                )
            })
            .collect()
    }

    pub(crate) fn place(&self, batch: &[Received]) -> PartitionOffset {
        PartitionOffset {
            sequence: batch.last().unwrap().sequence,
            published: Some(OffsetDateTime::UNIX_EPOCH),
            stream_created: Some(OffsetDateTime::UNIX_EPOCH),
        }
    }

    /// One attempt at a batch.
    pub(crate) async fn handle(&mut self, messages: &[Message]) -> Result<Handled, storage::StorageError> {
        let batch = self.received(messages);
        let (to, now) = (self.place(&batch), OffsetDateTime::now_utc());
        let handled = self.handler.handle(&self.lease, &to, &batch, now).await?;
        if matches!(handled, Handled::Committed(_)) {
            self.sequence = to.sequence;
        }
        Ok(handled)
    }

    /// Processes a batch, with a retry after each lost race.
    pub(crate) async fn take(&mut self, messages: &[Message]) -> Committed {
        for _ in 0..100 {
            match self.handle(messages).await {
                Ok(Handled::Committed(committed)) => return committed,
                Ok(Handled::Stale) => panic!("another replica holds the lease"),
                Ok(Handled::Raced) => {}
                Err(error) => assert!(error.is_retryable(), "{:#}", error_chain(error)),
            }
        }
        panic!("a batch that keeps losing races");
    }

    /// Resets the sequence: the next messages have the same numbers again.
    pub(crate) fn rewind(&mut self) {
        self.sequence = 0;
    }
}

pub(crate) fn error_chain(error: storage::StorageError) -> String {
    {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    }
}
