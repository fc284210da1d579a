//! The service with a real broker: from a publisher to the queue, and during outages.

use async_nats::{HeaderMap, jetstream};
use contracts::session::SessionResolved;
use domain::TaskId;
use futures::StreamExt;
use serde_json::json;
use storage::Role;
use testkit::{World, eventually};

pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) client: async_nats::Client,
}

/// Account `acme` with agent `coder`; no service runs yet.
pub(crate) async fn stage() -> Stage {
    let mut world = World::start().await;
    world.set("resolver.claim_interval_ms", 50);
    world.set("resolver.retry_delay_ms", 10);
    world.set("resolver.retry_delay_ms_max", 100);
    world.set("nats.ping_interval_ms", 100);
    let account = world.fixture().account("acme").await;
    world.fixture().agent(&account, "coder").await;
    // Subscribes to every subject, besides publishing.
    let client = world.operator().await;
    Stage { world, client }
}

impl Stage {
    pub(crate) async fn resolver(&self) -> testkit::Running<std::net::SocketAddr> {
        self.world.run(Role::Resolver, resolver::start).await
    }

    /// Publishes until the stream has stored it, through outages of the broker.
    pub(crate) async fn publish(&self, task: &str, id: &str, body: &str) {
        self.send(task, &json!({"id": id, "agent": "coder", "body": body}).to_string())
            .await;
    }

    pub(crate) async fn send(&self, task: &str, payload: &str) {
        let jetstream = jetstream::new(self.client.clone());
        eventually("a notification in the stream", || async {
            let subject = format!("signalbox.notification.acme.{task}");
            let published = jetstream.publish(subject, payload.to_owned().into()).await;
            published.ok()?.await.ok()
        })
        .await;
    }

    pub(crate) async fn until_count(&self, what: &'static str, query: &'static str, count: i64) {
        eventually(what, || async {
            (self.world.database.count(query).await == count).then_some(())
        })
        .await;
    }

    /// Ids of a task's notifications in the order of its sessions' queues.
    pub(crate) async fn ids(&self, task: &str) -> Vec<String> {
        let rows: Vec<(String,)> = sqlx::query_as(
            "select n.id from notification n join session s on s.account_id = n.account_id and s.id = n.session_id
             where s.task_id = $1 order by s.generation, n.position",
        )
        .bind(task)
        .fetch_all(&self.world.database.owner)
        .await
        .unwrap();
        rows.into_iter().map(|row| row.0).collect()
    }
}

const QUEUED: &str = "select count(*) from notification where state = 'queued'";

#[tokio::test]
async fn a_notification_reaches_its_queue_and_wakes_delivery() {
    let stage = stage().await;
    let running = stage.resolver().await;
    let mut wakes = stage.client.subscribe("signalbox.session.resolved.>").await.unwrap();
    let mut events = stage.client.subscribe("signalbox.event.>").await.unwrap();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", parent);
    headers.insert("Nats-Msg-Id", "n-1");
    let payload = json!({"agent": "coder", "body": "b"}).to_string();
    stage
        .client
        .publish_with_headers("signalbox.notification.acme.PROJ-7", headers, payload.into())
        .await
        .unwrap();

    let wake = wakes.next().await.unwrap();
    assert_eq!(wake.subject.as_str(), "signalbox.session.resolved.acme.PROJ-7");
    let resolved: SessionResolved = serde_json::from_slice(&wake.payload).unwrap();
    assert_eq!(resolved.task, Some(TaskId::parse("PROJ-7").unwrap()));
    let trace = wake.headers.unwrap().get("traceparent").unwrap().to_string();
    assert_eq!(trace[3..35], parent[3..35], "the publisher's trace continues");
    // The task and the session are new.
    let subjects = [
        events.next().await.unwrap().subject,
        events.next().await.unwrap().subject,
    ];
    let mut subjects = subjects.map(|subject| subject.to_string());
    subjects.sort();
    assert_eq!(
        subjects,
        [
            "signalbox.event.acme.PROJ-7.session.opened",
            "signalbox.event.acme.PROJ-7.task.created"
        ]
    );
    assert_eq!(stage.ids("proj-7").await, ["n-1"]);
    running.stop().await;
    // An orderly stop leaves an empty outbox.
    assert_eq!(stage.world.database.count("select count(*) from outbox").await, 0);
    assert_eq!(
        stage
            .world
            .database
            .count("select count(*) from resolver_partition where owner is not null")
            .await,
        0
    );
}

#[tokio::test]
async fn a_crash_loses_nothing_and_reading_resumes_in_order() {
    let stage = stage().await;
    let mut expected = Vec::new();
    for round in 0..4 {
        let running = stage.resolver().await;
        for n in 0..50 {
            let id = format!("n-{round}-{n:02}");
            stage.publish("T-1", &id, "b").await;
            expected.push(id);
        }
        running.cut_off();
    }
    let _running = stage.resolver().await;
    stage.until_count("everything queued", QUEUED, 200).await;
    assert_eq!(stage.ids("t-1").await, expected);
    assert_eq!(stage.world.database.count("select count(*) from session").await, 1);
}

#[tokio::test]
async fn a_stream_that_was_wiped_is_read_from_its_beginning() {
    let mut stage = stage().await;
    let _running = stage.resolver().await;
    for n in 0..20 {
        stage.publish("T-1", &format!("old-{n:02}"), "b").await;
    }
    stage.until_count("the first stream is read", QUEUED, 20).await;
    // The broker returns without its store: the service creates the streams again.
    stage.world.nats.wipe_store().await.unwrap();
    stage.world.nats.restart().await.unwrap();
    // Some messages are published again by their senders; some are new.
    for n in 15..20 {
        stage.publish("T-1", &format!("old-{n:02}"), "b").await;
    }
    stage.send("T-1", r#"{"agent": "coder", "body": "nameless"}"#).await;
    stage.publish("T-1", "new", "b").await;
    stage.until_count("the second stream is read", QUEUED, 22).await;
    assert_eq!(stage.ids("t-1").await.last().map(String::as_str), Some("new"));
    assert_eq!(stage.world.database.count("select count(*) from dead_letter").await, 0);
}

#[tokio::test]
async fn a_broker_outage_only_delays_messages() {
    let mut stage = stage().await;
    let _running = stage.resolver().await;
    stage.publish("T-1", "before", "b").await;
    stage.until_count("read", QUEUED, 1).await;
    stage.world.nats.kill().await.unwrap();
    stage.world.nats.restart().await.unwrap();
    stage.publish("T-1", "after", "b").await;
    stage.until_count("read", QUEUED, 2).await;
    assert_eq!(stage.ids("t-1").await, ["before", "after"]);
}

#[tokio::test]
async fn dropped_database_connections_only_delay_messages() {
    let stage = stage().await;
    let running = stage.resolver().await;
    let mut expected = Vec::new();
    for n in 0..60 {
        let id = format!("n-{n:02}");
        stage.publish("T-1", &id, "b").await;
        expected.push(id);
        if n % 10 == 5 {
            // Terminates the connections of batches, not those of the replica's lease.
            stage
                .world
                .database
                .count(
                    "select count(pg_terminate_backend(pid)) from pg_stat_activity
                     where datname = current_database() and application_name = 'signalbox-resolver'",
                )
                .await;
        }
    }
    stage.until_count("everything queued", QUEUED, 60).await;
    assert_eq!(stage.ids("t-1").await, expected);
    assert_eq!(running.failure(), None);
}

#[tokio::test]
async fn one_bad_value_is_buried_and_the_rest_continues_in_order() {
    let stage = stage().await;
    sqlx::raw_sql(
        "create function poison() returns trigger language plpgsql as $$ begin raise exception 'not this one'; end $$;
         create trigger poison before insert on notification for each row when (new.body = 'poison')
         execute function poison()",
    )
    .execute(&stage.world.database.owner)
    .await
    .unwrap();
    // All messages are in the stream before the start, so that they form one batch.
    stage.resolver().await.stop().await;
    let mut expected = Vec::new();
    for n in 0..30 {
        let (id, bad) = (format!("n-{n:02}"), n % 10 == 7);
        stage.publish("T-1", &id, if bad { "poison" } else { "b" }).await;
        if !bad {
            expected.push(id);
        }
    }
    let running = stage.resolver().await;
    stage.until_count("the good ones queued", QUEUED, 27).await;
    assert_eq!(stage.ids("t-1").await, expected);
    stage
        .until_count(
            "the bad ones buried",
            "select count(*) from dead_letter where reason = 'unprocessable' and account_id = 'acme'",
            3,
        )
        .await;
    running.stop().await;
}

#[tokio::test]
async fn a_slow_message_is_buried_and_the_rest_continues_in_order() {
    let mut stage = stage().await;
    stage.world.set("database.statement_timeout_ms", "1000");
    stage.world.set("database.lock_timeout_ms", "500");
    // All messages are in the stream before the start, so that they form one batch.
    stage.resolver().await.stop().await;
    sqlx::raw_sql(
        "create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return new; end $$;
         create trigger slow before insert on notification for each row when (new.body = 'slow') execute function slow()",
    )
    .execute(&stage.world.database.owner)
    .await
    .unwrap();
    let mut expected = Vec::new();
    for n in 0..20 {
        let (id, slow) = (format!("n-{n:02}"), n == 7);
        stage.publish("T-1", &id, if slow { "slow" } else { "b" }).await;
        if !slow {
            expected.push(id);
        }
    }
    let running = stage.resolver().await;
    stage.until_count("the others queued", QUEUED, 19).await;
    assert_eq!(stage.ids("t-1").await, expected);
    stage.until_count("the slow one is buried", BURIED, 1).await;
    running.stop().await;
}

/// Notifications with these bodies never finish; an empty body matches all. Each attempt is counted.
async fn slow_with(stage: &Stage, bodies: &[&str]) {
    sqlx::raw_sql(
        "create table slow_body (body text);
         create sequence tries;
         create function slow() returns trigger language plpgsql security definer set search_path = public, pg_temp
         as $$ begin
             if exists (select from slow_body s where s.body in (new.body, '')) then
                 perform nextval('tries');
                 perform pg_sleep(60);
             end if;
             return new;
         end $$;
         create trigger slow before insert on notification for each row execute function slow()",
    )
    .execute(&stage.world.database.owner)
    .await
    .unwrap();
    sqlx::query("insert into slow_body select unnest($1::text[])")
        .bind(bodies)
        .execute(&stage.world.database.owner)
        .await
        .unwrap();
}

/// More attempts than one message gets before it counts as slow by itself.
const MANY_TRIES: &str = "select (last_value > 6)::int::bigint from tries";
const BURIED: &str = "select count(*) from dead_letter where reason = 'unprocessable' and account_id = 'acme'";

#[tokio::test]
async fn nothing_is_buried_while_the_database_is_slow() {
    let mut stage = stage().await;
    stage.world.set("database.statement_timeout_ms", "1000");
    stage.resolver().await.stop().await;
    slow_with(&stage, &[""]).await;
    for id in ["n-1", "n-2"] {
        stage.publish("T-1", id, "b").await;
    }
    let running = stage.resolver().await;
    stage.until_count("they are tried again and again", MANY_TRIES, 1).await;
    assert_eq!(stage.world.database.count(BURIED).await, 0);
    sqlx::raw_sql("delete from slow_body")
        .execute(&stage.world.database.owner)
        .await
        .unwrap();
    stage.until_count("they are queued", QUEUED, 2).await;
    assert_eq!(stage.ids("t-1").await, ["n-1", "n-2"]);
    assert_eq!(stage.world.database.count(BURIED).await, 0);
    running.stop().await;
}

/// While no other message waits, a slow message is retried. Once another message succeeds, the slow one becomes a dead
/// letter.
#[tokio::test]
async fn a_slow_message_does_not_block_the_others() {
    let mut stage = stage().await;
    stage.world.set("database.statement_timeout_ms", "1000");
    stage.resolver().await.stop().await;
    slow_with(&stage, &["slow"]).await;
    let running = stage.resolver().await;
    stage.publish("T-1", "n-1", "slow").await;
    stage.until_count("it is tried again and again", MANY_TRIES, 1).await;
    assert_eq!(stage.world.database.count(BURIED).await, 0);
    stage.publish("T-1", "n-2", "b").await;
    stage.until_count("the other is queued", QUEUED, 1).await;
    stage.until_count("the slow one is buried", BURIED, 1).await;
    assert_eq!(stage.ids("t-1").await, ["n-2"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_unread_age_grows_until_a_resolver_reads() {
    let stage = stage().await;
    let bus = stage.world.bus().await;
    let database = stage.world.database.connect(Role::Resolver).await;
    let since = async || resolver::sweeps::unread_since(&database, &bus).await.unwrap();
    let running = stage.resolver().await;
    stage.publish("t-1", "n-1", "x").await;
    stage
        .until_count("the first is read", "select count(*) from notification", 1)
        .await;
    assert_eq!(since().await, None);
    running.stop().await;

    let before = time::OffsetDateTime::now_utc();
    stage.publish("t-1", "n-2", "x").await;
    stage.publish("t-2", "n-3", "x").await;
    let oldest = since().await.expect("an unread notification");
    // The server and this process share a clock.
    assert!(
        before <= oldest && oldest <= time::OffsetDateTime::now_utc(),
        "{oldest}"
    );
    let running = stage.resolver().await;
    eventually("all is read", || async { since().await.is_none().then_some(()) }).await;
    running.stop().await;
}
