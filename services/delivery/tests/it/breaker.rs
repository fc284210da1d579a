//! Breakers: while a provider takes no calls, none is made but a probe, over all replicas; what waits uses no attempt and goes on
//! by itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use domain::AccountId;
use futures::StreamExt;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use testkit::{Reply, Seen, StubProvider, World, eventually, rows};
use tokio::{sync::mpsc, time::timeout};

use crate::scene::Scene;

fn refusal(status: u16, retry_after: Option<u64>) -> Reply {
    let headers = retry_after.map(|seconds| ("retry-after", seconds.to_string()));
    Reply::Status(
        status,
        r#"{"error":{"message":"secret of the provider"}}"#.to_owned(),
        headers.into_iter().collect(),
    )
}

/// A provider that refuses as long as the switch is on.
fn switched(refuses: &Arc<AtomicBool>, refusal: Reply) -> impl Fn(&Seen) -> Reply + Send + Sync + 'static {
    let refuses = Arc::clone(refuses);
    move |_| match refuses.load(Ordering::SeqCst) {
        true => refusal.clone(),
        false => Reply::text("ok"),
    }
}

impl Scene {
    /// Sessions with one notification each.
    async fn sessions(&self, account: &AccountId, count: usize) {
        let fixture = self.world.fixture();
        let agent = fixture.agent(account, &format!("agent-{count}")).await;
        let owner = &self.world.database.owner;
        let many = format!("agent a, generate_series(1, {count}) n where a.id = '{agent}'");
        rows("task")
            .set("account_id", "a.account_id")
            .set("display_id", "'W-' || n")
            .from(many.as_str())
            .insert(owner)
            .await;
        let sessions = rows("session")
            .set("task_id", "'w-' || n")
            .with("queued", 1)
            .from(many.as_str());
        sessions.insert(owner).await;
        let items = rows("notification")
            .set("id", "'of-' || s.task_id")
            .from(format!("session s where s.agent_id = '{agent}'"));
        items.insert(owner).await;
    }

    async fn row(&self, columns: &str) -> String {
        let sql = format!("select concat_ws(' ', {columns}) from provider_breaker");
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&self.world.database.owner)
            .await
            .unwrap()
    }

    async fn breaker_is(&self, state: &str) {
        let sql = "select state from provider_breaker";
        eventually(&format!("the breaker is {state}"), || async {
            (self.world.database.texts(sql).await == [state]).then_some(())
        })
        .await;
    }

    /// Waits until the breaker has opened so often in a row: once by failures, then by failed probes.
    async fn opened_again(&self, times: usize) {
        eventually("probes fail", || async {
            (self.row("opens").await.parse::<usize>().unwrap() >= times).then_some(())
        })
        .await;
    }

    async fn all_delivered(&self) {
        let sql = "select count(*) from notification where state <> 'delivered'";
        eventually("all is delivered", || async {
            self.look_again().await;
            (self.world.database.count(sql).await == 0).then_some(())
        })
        .await;
    }

    /// Turns in progress look within a minute.
    async fn look_again(&self) {
        let sql = "update session set wake_at = now() where phase = 'backoff' and active_turn_id is not null";
        sqlx::query(sql).execute(&self.world.database.owner).await.unwrap();
    }

    async fn probe_now(&self) {
        let sql = "update provider_breaker set probe_at = now()";
        sqlx::query(sql).execute(&self.world.database.owner).await.unwrap();
    }
}

/// What is said of providers: the fact and the payload.
async fn listen(world: &World) -> mpsc::UnboundedReceiver<(String, Value)> {
    let client = world.operator().await;
    let mut heard = client.subscribe("signalbox.event.-.-.provider.>").await.unwrap();
    client.flush().await.unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = heard.next().await {
            let payload: Value = serde_json::from_slice(&message.payload).unwrap();
            let (_, fact) = message.subject.rsplit_once('.').unwrap();
            let _ = tell.send((fact.to_owned(), payload));
        }
    });
    told
}

/// A provider at 429 without a stated wait, two replicas: few calls, and nothing failed; then it goes on by one probe.
#[tokio::test]
async fn an_overload_parks_and_keeps_the_model() {
    let refuses = Arc::new(AtomicBool::new(true));
    let mut scene = Scene::with(switched(&refuses, refusal(429, None))).await;
    scene.world.set("delivery.turns_in_flight_max", 1);
    scene.world.set("delivery.breaker_open_ms", 400);
    scene.world.set("delivery.breaker_open_ms_max", 60_000);
    let mut heard = listen(&scene.world).await;
    scene.sessions(&scene.account, 30).await;
    let replicas = [scene.run().await, scene.run().await];
    scene.breaker_is("open").await;
    scene.opened_again(4).await;
    // Five open it, one more may be in flight at the other replica, and probes follow after 0.4, 1.2 and 2.8 seconds.
    let calls = scene.provider.seen().len();
    assert!((6..10).contains(&calls), "{calls}");
    let untouched = "select count(*) from notification where state in ('queued', 'running')";
    assert_eq!(scene.world.database.count(untouched).await, 30, "nothing failed");
    assert_eq!(scene.row("class").await, "rate_limited");
    let parked =
        "select count(*) from session where gate = 'provider' and phase = 'backoff' and active_turn_id is null";
    assert!(scene.world.database.count(parked).await >= 20);

    refuses.store(false, Ordering::SeqCst);
    scene.probe_now().await;
    scene.all_delivered().await;
    scene.breaker_is("closed").await;
    let models: Vec<Value> = scene
        .provider
        .seen()
        .iter()
        .map(|seen| seen.body["model"].clone())
        .collect();
    assert!(
        models.iter().all(|model| *model == models[0]),
        "the model is never changed"
    );
    let (fact, opened) = timeout(Duration::from_secs(10), heard.recv()).await.unwrap().unwrap();
    assert_eq!((fact.as_str(), &opened["account"]), ("opened", &json!("-")));
    assert_eq!(opened["data"]["key"], "default");
    assert!(!opened.to_string().contains("secret"), "details are for operators");
    let (fact, _) = timeout(Duration::from_secs(10), heard.recv()).await.unwrap().unwrap();
    assert_eq!(fact, "probing");
    let attempts = "select max(attempts)::bigint from notification";
    assert!(scene.world.database.count(attempts).await <= 6);
    for replica in replicas {
        replica.stop().await;
    }
}

#[tokio::test]
async fn a_quota_waits_for_its_stated_reset() {
    let refuses = Arc::new(AtomicBool::new(true));
    let scene = Scene::with(switched(&refuses, refusal(429, Some(7_200)))).await;
    scene.enqueue("n-1", "x").await;
    scene.enqueue("n-2", "y").await;
    let running = scene.run().await;
    scene.breaker_is("open").await;
    let left =
        scene.row("round(extract(epoch from reset_at - now()) / 60), round(extract(epoch from probe_at - now()) / 60)");
    assert_eq!(left.await, "120 120", "longer than a single call would wait");
    assert_eq!(scene.row("opens, class").await, "1 rate_limited");
    let turn = "select concat_ws(' ', t.state, t.failures, n.attempts, s.phase) from turn t join notification n on n.turn_id = t.id join session s on s.id = t.session_id";
    assert_eq!(
        scene.world.database.texts(turn).await,
        ["started 0 0 backoff"],
        "no attempt is used"
    );
    assert_eq!(scene.provider.seen().len(), 1);

    refuses.store(false, Ordering::SeqCst);
    scene.probe_now().await;
    scene.all_delivered().await;
    assert_eq!(scene.row("state, opens, failures").await, "closed 0 0");
    assert_eq!(scene.provider.seen().len(), 3);
    running.stop().await;
}

/// It closed, and opened again before all that it kept had started.
#[tokio::test]
async fn a_breaker_that_opens_again_keeps_what_is_left() {
    let scene = Scene::with(|_| refusal(429, Some(7_200))).await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.breaker_is("open").await;
    scene.sessions(&scene.account, 3).await;
    let kept = "select id || ' ' || gated_since || ' ' || gate_looks from session where gate = 'provider' order by id";
    let parked = eventually("they are parked", || async {
        let parked = scene.world.database.texts(kept).await;
        (parked.len() == 3).then_some(parked)
    })
    .await;
    let owner = &scene.world.database.owner;
    let unsettled = "update provider_breaker set unsettled = true";
    sqlx::query(unsettled).execute(owner).await.unwrap();
    // The sweep reads them in the order of their keys, and settles the last one.
    let last = "insert into provider_breaker (key, state, unsettled) values ('~', 'closed', true)";
    sqlx::query(last).execute(owner).await.unwrap();
    eventually("the sweep has looked at all", || async {
        let left = "select count(*) from provider_breaker where key = '~' and unsettled";
        (scene.world.database.count(left).await == 0).then_some(())
    })
    .await;
    assert_eq!(scene.world.database.texts(kept).await, parked);
    running.stop().await;
}

/// A provider refuses one account's text as if the key were wrong, and serves all others.
#[tokio::test]
async fn a_text_that_a_provider_refuses_stops_no_other() {
    let scene = Scene::with(|seen| match seen.body.to_string().contains("forbidden words") {
        true => refusal(403, None),
        false => Reply::text("ok"),
    })
    .await;
    scene.enqueue("n-1", "forbidden words").await;
    let running = scene.run().await;
    scene.breaker_is("open").await;
    let other = scene.world.fixture().account("other").await;
    scene.sessions(&other, 1).await;
    // The turn that has failed looks later.
    scene.probe_now().await;
    let delivered = "select count(*) from notification where id = 'of-w-1' and state = 'delivered'";
    eventually("the other account's turn closes the breaker", || async {
        (scene.world.database.count(delivered).await == 1).then_some(())
    })
    .await;
    let failed = "select count(*) from notification where id = 'n-1' and state = 'failed'";
    eventually("the text has used its attempts", || async {
        scene.look_again().await;
        (scene.world.database.count(failed).await == 1).then_some(())
    })
    .await;
    assert_eq!(scene.row("state, epoch").await, "closed 2", "it opened once");
    running.stop().await;
}

/// Of 1,000 sessions whose provider has no quota, two replicas make no more calls than probes.
#[tokio::test]
async fn a_thousand_sessions_make_one_call_a_probe() {
    let refuses = Arc::new(AtomicBool::new(true));
    let mut scene = Scene::with(switched(&refuses, refusal(402, None))).await;
    scene.world.set("delivery.breaker_open_ms_max", 700);
    scene.world.set("delivery.turns_in_flight_max", 8);
    scene.sessions(&scene.account, 1_000).await;
    let replicas = [scene.run().await, scene.run().await];
    scene.breaker_is("open").await;
    scene.opened_again(4).await;
    let probes: usize = scene.row("opens").await.parse().unwrap();
    let calls = scene.provider.seen().len();
    // Those that were in flight when it opened, and one each time that it opened again.
    assert!(calls <= 16 + probes, "{calls} calls, {probes} openings");
    assert!(probes >= 2, "{probes}");
    let attempts = "select coalesce(sum(attempts), 0)::bigint from notification";
    assert_eq!(scene.world.database.count(attempts).await, 0);
    refuses.store(false, Ordering::SeqCst);
    scene.all_delivered().await;
    for replica in replicas {
        replica.stop().await;
    }
}

#[tokio::test]
async fn a_missing_provider_parks_by_name() {
    let scene = Scene::with(|_| Reply::text("ok")).await;
    let owner = &scene.world.database.owner;
    sqlx::query("update agent set provider = 'gone'")
        .execute(owner)
        .await
        .unwrap();
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    let parked =
        "select concat_ws(' ', gate, phase, queued, round(extract(epoch from wake_at - now()) / 10)) from session";
    eventually("the session is parked", || async {
        (scene.world.database.texts(parked).await == ["config backoff 1 6"]).then_some(())
    })
    .await;
    assert_eq!(scene.state("n-1").await.0, "queued");
    // The operator adds the provider; here the agent's is changed, which the next look sees.
    sqlx::raw_sql("update agent set provider = 'default'; update session set wake_at = now()")
        .execute(owner)
        .await
        .unwrap();
    scene.until("n-1", "delivered").await;
    assert_eq!(
        scene
            .world
            .database
            .texts("select coalesce(gate, 'none') from session")
            .await,
        ["none"]
    );
    running.stop().await;
}

/// A turn whose provider is gone after its tools waits with its results.
#[tokio::test]
async fn a_turn_in_progress_keeps_its_results() {
    let refuses = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&refuses);
    let scene = Scene::with(
        move |seen| match (seen.tool_outputs().is_empty(), flag.load(Ordering::SeqCst)) {
            (true, _) => Reply::call("c-1", "task_history", json!({})),
            (false, true) => refusal(402, Some(3_600)),
            (false, false) => Reply::text("done"),
        },
    )
    .await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    eventually("the turn waits", || async {
        (scene.turns("state").await == ["awaiting_tools"]).then_some(())
    })
    .await;
    // Another account's call has opened the breaker meanwhile. A claim that looks at the turn just then reads the breaker before the
    // results: it ends before the breaker opens.
    let open = "begin; select 1 from session for update;
        insert into provider_breaker (key, state, epoch, probe_at, opens, class) values ('default', 'open', 1, now() + interval '1 hour', 1, 'quota');
        commit";
    sqlx::raw_sql(open).execute(&scene.world.database.owner).await.unwrap();
    scene.tool_finished("c-1", 1, r#"{"found": 1}"#).await;
    let waits = "select concat_ws(' ', s.phase, t.state, round(extract(epoch from s.wake_at - now()) / 10)) from session s join turn t on t.id = s.active_turn_id";
    eventually("the turn is deferred", || async {
        (scene.world.database.texts(waits).await == ["waiting awaiting_tools 6"]).then_some(())
    })
    .await;
    assert_eq!(scene.provider.seen().len(), 1, "no call is made");
    scene.probe_now().await;
    sqlx::query("update session set wake_at = now()")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    scene.until("n-1", "delivered").await;
    let last = scene.provider.seen().pop().unwrap();
    assert_eq!(last.tool_outputs(), [("c-1".to_owned(), r#"{"found": 1}"#.to_owned())]);
    assert_eq!(scene.turns("failures || ' ' || attempt").await, ["0 2"]);
    scene.breaker_is("closed").await;
    running.stop().await;
}

/// Work of another provider goes on; providers that share an account share the breaker.
#[tokio::test]
async fn only_what_shares_the_account_waits() {
    let broken = StubProvider::start(|_| refusal(401, None)).await;
    let fine = StubProvider::answering("ok").await;
    let mut world = World::start().await;
    world.provider(&broken);
    world.set("delivery.breaker_open_ms_max", 3_600_000);
    for (name, stub) in [("shared", &broken), ("other", &fine)] {
        world.set(&format!("providers.{name}.kind"), "openresponses");
        world.set(&format!("providers.{name}.url"), stub.url());
        world.set(&format!("providers.{name}.model"), "stub");
    }
    world.set("providers.shared.quota_account", "default");
    let scene = Scene::of(world, broken).await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.breaker_is("open").await;
    let fixture = scene.world.fixture();
    for (n, provider) in [(1, "other"), (2, "shared")] {
        let agent = fixture.agent(&scene.account, provider).await;
        sqlx::query("update agent set provider = slug where id = $1")
            .bind(agent.0)
            .execute(&scene.world.database.owner)
            .await
            .unwrap();
        let task = fixture.task(&scene.account, &format!("X-{n}"), &[]).await;
        let (session, _) = fixture.session(&scene.account, &task, agent).await;
        fixture.enqueue(&scene.account, session, provider, "x").await;
    }
    scene.until("other", "delivered").await;
    let parked = "select count(*) from session where gate = 'provider' and task_id = 'x-2'";
    eventually("the other one is parked", || async {
        (scene.world.database.count(parked).await == 1).then_some(())
    })
    .await;
    assert_eq!(scene.provider.seen().len(), 1);
    assert_eq!(scene.row("key, providers").await, "default {default,shared}");
    running.stop().await;
}

/// A parked session is looked at again and again: no call, no attempt, no row a look.
#[tokio::test]
async fn a_parked_session_is_looked_at_without_a_call() {
    let mut scene = Scene::with(|_| refusal(402, None)).await;
    scene.world.set("delivery.breaker_open_ms_max", 3_600_000);
    scene.sessions(&scene.account, 3).await;
    let owner = &scene.world.database.owner;
    let open = "insert into provider_breaker (key, state, epoch, probe_at, opens, class) values ('default', 'open', 1, now() + interval '1 hour', 1, 'quota')";
    sqlx::query(open).execute(owner).await.unwrap();
    let running = scene.run().await;
    let looks = "select count(*) from session where gate = 'provider' and gate_looks >= 3";
    eventually("each was looked at", || async {
        sqlx::query("update session set wake_at = now()")
            .execute(owner)
            .await
            .unwrap();
        (scene.world.database.count(looks).await == 3).then_some(())
    })
    .await;
    assert_eq!(scene.provider.seen().len(), 0);
    assert_eq!(scene.world.database.count("select count(*) from turn").await, 0);
    assert_eq!(
        scene
            .world
            .database
            .count("select sum(attempts)::bigint from notification")
            .await,
        0
    );
    let told = "select count(*) from outbox cross join string_to_table(subject, ' ') as s (one) where s.one like '%.session.parked'";
    assert!(scene.world.database.count(told).await <= 3, "each is announced once");
    running.stop().await;
}
