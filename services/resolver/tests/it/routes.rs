//! Batches that go by the routes of earlier ones: a route that no longer holds is looked up as if it were unknown.

use resolver::{handlers::notification::Handled, intake::resolve::Finding};
use serde_json::json;
use testkit::eventually;

use crate::scene::{LIMITS, Message, Reader, Scene, message, scene, to_coder};

impl Reader {
    fn has_routes(&self, messages: &[Message]) -> bool {
        self.handler.routes.of(&self.received(messages), &LIMITS).is_some()
    }

    /// The next notification to the coder has a route, and goes where a look-up sends it.
    async fn routed(&mut self, scene: &Scene, id: &str, expected: (Finding, Option<&str>, Option<i64>)) {
        let to_coder = [to_coder(id, "b")];
        assert!(self.has_routes(&to_coder), "{id}");
        let committed = self.take(&to_coder).await;
        let stored = scene.stored(id).await.unwrap();
        let found = (committed.resolutions[0].finding, stored.key.as_deref(), stored.position);
        assert_eq!(found, expected, "{id}");
        scene.check().await;
    }
}

#[tokio::test]
async fn a_route_holds_only_as_long_as_its_rows() {
    let scene = scene().await;
    let fixture = scene.fixture();
    let mut reader = scene.reader().await;
    assert!(!reader.has_routes(&[to_coder("n", "b")]));
    reader.take(&[to_coder("n-1", "b")]).await;
    let key = |agent: domain::AgentId, generation: u32| format!("task:proj-7:agent:{agent}:acme:v{generation}");
    let first = key(scene.coder, 1);
    reader
        .routed(&scene, "n-2", (Finding::Reused, Some(&first), Some(2)))
        .await;

    // An id that is known, and one that the batch names twice.
    let committed = reader
        .take(&[to_coder("n-2", "b"), to_coder("n-3", "b"), to_coder("n-3", "b")])
        .await;
    assert_eq!((committed.duplicates, committed.resolutions[0].notifications), (2, 1));
    scene.check().await;

    // Its session was closed.
    scene.task_close(domain::TaskStatus::Cancelled).await;
    let second = key(scene.coder, 2);
    reader
        .routed(&scene, "n-4", (Finding::Reopened, Some(&second), Some(1)))
        .await;
    reader
        .routed(&scene, "n-5", (Finding::Reused, Some(&second), Some(2)))
        .await;

    // The slug went to another agent.
    scene
        .execute("update agent set slug = 'engineer' where slug = 'coder'")
        .await;
    let coder = fixture.agent(&scene.account, "coder").await;
    let other = key(coder, 1);
    reader
        .routed(&scene, "n-6", (Finding::Created, Some(&other), Some(1)))
        .await;

    // The account keeps one session for an agent.
    fixture.account_set(&scene.account, "session_scope", "agent").await;
    let of_agent = format!("system:agent:{coder}:acme:v1");
    reader
        .routed(&scene, "n-7", (Finding::Created, Some(&of_agent), Some(1)))
        .await;
    fixture.account_set(&scene.account, "session_scope", "task").await;
    reader
        .routed(&scene, "n-8", (Finding::Reused, Some(&other), Some(2)))
        .await;

    // The task became the coordinator's chat, whose coordinators are others.
    fixture.account_set(&scene.account, "coordinator_task", "PROJ-7").await;
    assert!(reader.has_routes(&[to_coder("n-9", "b")]));
    let committed = reader.take(&[to_coder("n-9", "b")]).await;
    assert_eq!(committed.refusals[0].as_str(), "not_coordinator");
    fixture.assign(&scene.account, &scene.task, coder).await;
    reader.take(&[to_coder("n-10", "b")]).await;
    reader
        .routed(&scene, "n-11", (Finding::Reused, Some(&other), Some(4)))
        .await;

    // The agent was removed.
    scene.agent_remove(coder).await;
    let committed = reader.take(&[to_coder("n-12", "b")]).await;
    assert_eq!(committed.refusals[0].as_str(), "unknown_agent");

    // The lease went to another replica.
    let engineer = |id: &str| {
        [message(
            "acme",
            "PROJ-7",
            &json!({"id": id, "agent": "engineer", "body": "b"}),
        )]
    };
    reader.take(&engineer("n-13")).await;
    assert!(reader.has_routes(&engineer("n-14")));
    scene.execute("update resolver_partition set fence = fence + 1").await;
    assert!(matches!(reader.handle(&engineer("n-14")).await, Ok(Handled::Stale)));
    assert_eq!(scene.stored("n-14").await, None);
    scene.check().await;
}

/// Holds the session while a routed batch of one waits for it, changes it by `sql`, and lets go.
async fn held_meanwhile(sql: &'static str) -> (Scene, Finding, Option<i64>) {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[to_coder("n-1", "b")]).await;
    let mut holder = scene.test.owner.begin().await.unwrap();
    sqlx::raw_sql(sql).execute(&mut *holder).await.unwrap();
    assert!(reader.has_routes(&[to_coder("n-2", "b")]));
    let entering = tokio::spawn(async move { reader.take(&[to_coder("n-2", "b")]).await });
    eventually("the batch waits for the session", || async {
        let waiting = "select count(*) from pg_stat_activity
                       where datname = current_database() and wait_event_type = 'Lock'";
        (scene.test.count(waiting).await == 1).then_some(())
    })
    .await;
    holder.commit().await.unwrap();
    let committed = entering.await.unwrap();
    let position = scene.stored("n-2").await.unwrap().position;
    scene.check().await;
    (scene, committed.resolutions[0].finding, position)
}

/// The statement waits for a session's lock, and sees the row of after the wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_changes_meanwhile_is_seen_as_it_is() {
    let (_, finding, position) = held_meanwhile(
        "update notification set state = 'delivered';
         update session set closed_at = now(), close_reason = 'reset', queued = 0",
    )
    .await;
    assert_eq!((finding, position), (Finding::Reopened, Some(1)));

    let (scene, finding, position) = held_meanwhile(
        "update notification set position = 7;
         update session set queue_tail = 7",
    )
    .await;
    assert_eq!((finding, position), (Finding::Reused, Some(8)));
    assert_eq!(scene.sessions().await[0].2, 8);
}

/// One notification of a batch without a route: all are looked up, since the order of a queue is that of the stream.
#[tokio::test]
async fn a_batch_goes_one_way() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[to_coder("n-1", "b")]).await;
    let all = message(
        "acme",
        "PROJ-7",
        &json!({"id": "all", "agents": ["coder"], "body": "b"}),
    );
    let batch = [to_coder("n-2", "b"), all, to_coder("n-3", "b")];
    assert!(!reader.has_routes(&batch));
    reader.take(&batch).await;
    let position = async |id: &str| scene.stored(id).await.unwrap().position;
    let part = format!("all:{}", scene.coder);
    assert_eq!(
        [position("n-2").await, position(&part).await, position("n-3").await],
        [Some(2), Some(3), Some(4)]
    );
    // A person's message of its thread is looked up, and so is a redrive.
    assert!(!reader.has_routes(&[to_coder("n-4", "b").again()]));
    assert!(!reader.has_routes(&[to_coder("n-5", "b").with(contracts::header::HOPS, "9")]));
    scene.check().await;
}
