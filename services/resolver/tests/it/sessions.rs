//! Choosing the session: S1, S2, S3, S11, S14.

use contracts::{event::SessionOpened, session::SessionResolved};
use domain::TaskStatus;
use resolver::intake::resolve::Finding;
use serde_json::json;

use crate::scene::{message, scene, to_coder};

#[tokio::test]
async fn the_first_notification_opens_generation_one_and_the_next_reuse_it() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let key = format!("task:proj-7:agent:{}:acme:v1", scene.coder);

    let committed = reader.take(&[to_coder("n-1", "one")]).await;
    assert_eq!(committed.resolutions[0].finding, Finding::Created);
    let stored = scene.stored("n-1").await.unwrap();
    assert_eq!((stored.state.as_str(), stored.position), ("queued", Some(1)));
    assert_eq!(stored.key.as_deref(), Some(key.as_str()));
    assert_eq!(stored.task.as_deref(), Some("proj-7"));
    // The wake-up names the session and the newest item's position.
    let wake: SessionResolved = serde_json::from_slice(&committed.wakes[0].payload).unwrap();
    assert_eq!(committed.wakes[0].subject, "signalbox.session.resolved.acme.PROJ-7");
    assert_eq!((wake.session_key.as_str(), wake.position), (key.as_str(), 1));
    assert_eq!(committed.wakes[0].id(), wake.message_id());
    let (subject, event) = &scene.outgoing().await[0];
    assert_eq!(subject, "signalbox.event.acme.PROJ-7.session.opened");
    let opened: SessionOpened = serde_json::from_value(event["data"].clone()).unwrap();
    assert_eq!(opened.session_key, key);

    let committed = reader.take(&[to_coder("n-2", "two"), to_coder("n-3", "three")]).await;
    assert_eq!(committed.resolutions.len(), 1);
    assert_eq!(committed.resolutions[0].finding, Finding::Reused);
    assert_eq!(committed.resolutions[0].notifications, 2);
    assert_eq!(committed.outbox, []);
    assert_eq!(scene.sessions().await, [(key, 3, 3, false)]);
    assert_eq!(scene.stored("n-3").await.unwrap().position, Some(3));
    scene.check().await;
}

/// A delivery that was woken, or works on the session, finds further items under the session's lock.
#[tokio::test]
async fn delivery_is_woken_only_for_idle_sessions() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[to_coder("first", "b")]).await;
    let cases = [
        ("queued = 0", 1),
        ("queued = 1", 0),
        ("queued = 0, phase = 'running', lease_owner = gen_random_uuid()", 0),
        ("queued = 0, phase = 'waiting', lease_owner = null", 0),
        ("queued = 0, phase = 'backoff'", 0),
        ("queued = 0, phase = 'idle'", 1),
    ];
    for (found, told) in cases {
        let statement = format!("update session set {found}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(&scene.test.owner)
            .await
            .unwrap();
        let committed = reader.take(&[to_coder(&format!("with {found}"), "b")]).await;
        assert_eq!(committed.resolutions[0].finding, Finding::Reused, "{found}");
        assert_eq!(committed.wakes.len(), told, "{found}");
    }
}

#[tokio::test]
async fn a_closed_session_is_followed_by_the_next_generation() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    for (round, status) in [TaskStatus::Done, TaskStatus::Cancelled, TaskStatus::Archived]
        .into_iter()
        .enumerate()
    {
        reader.take(&[to_coder(&format!("n-{round}"), "b")]).await;
        scene.task_close(status).await;
        // Reopening the task alone opens no session.
        scene.task_close(TaskStatus::InProgress).await;
        assert_eq!(scene.sessions().await.iter().filter(|session| !session.3).count(), 0);
    }
    let committed = reader.take(&[to_coder("n-last", "b")]).await;
    assert_eq!(committed.resolutions[0].finding, Finding::Reopened);
    assert_eq!(committed.resolutions[0].generation.0, 4);
    let stored = scene.stored("n-last").await.unwrap();
    assert_eq!(
        stored.key.unwrap(),
        format!("task:proj-7:agent:{}:acme:v4", scene.coder)
    );
    assert_eq!(stored.position, Some(1));
    scene.check().await;
}

#[tokio::test]
async fn agents_and_tasks_have_sessions_of_their_own() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    let to = |agent: &str, task: &str| message("acme", task, &json!({"agent": agent, "body": "b"}));
    reader
        .take(&[
            to("coder", "PROJ-7"),
            to("reviewer", "PROJ-7"),
            to("coder", "OTHER"),
            to("coder", "-"),
            to("coder", "proj-7"),
        ])
        .await;
    let (coder, reviewer) = (scene.coder, scene.reviewer);
    let mut expected = vec![
        (format!("system:agent:{coder}:acme:v1"), 1, 1, false),
        (format!("task:other:agent:{coder}:acme:v1"), 1, 1, false),
        (format!("task:proj-7:agent:{coder}:acme:v1"), 2, 2, false),
        (format!("task:proj-7:agent:{reviewer}:acme:v1"), 1, 1, false),
    ];
    expected.sort();
    assert_eq!(scene.sessions().await, expected);
    scene.check().await;
}

#[tokio::test]
async fn one_scope_puts_all_of_an_agent_s_work_into_its_taskless_session() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[to_coder("before", "b")]).await;
    scene
        .fixture()
        .account_set(&scene.account, "session_scope", "agent")
        .await;
    reader
        .take(&[
            to_coder("on-task", "b"),
            message("acme", "-", &json!({"id": "taskless", "agent": "coder", "body": "b"})),
            message("acme", "NEW", &json!({"id": "new-task", "agent": "coder", "body": "b"})),
        ])
        .await;
    let system = format!("system:agent:{}:acme:v1", scene.coder);
    for (id, task, position) in [
        ("on-task", Some("proj-7"), 1),
        ("taskless", None, 2),
        ("new-task", Some("new"), 3),
    ] {
        let stored = scene.stored(id).await.unwrap();
        assert_eq!(stored.key.as_deref(), Some(system.as_str()), "{id}");
        // The notification keeps its task in every session.
        assert_eq!(
            (stored.task.as_deref(), stored.position),
            (task, Some(position)),
            "{id}"
        );
    }
    // And back, to the session that was left unchanged.
    scene
        .fixture()
        .account_set(&scene.account, "session_scope", "task")
        .await;
    let committed = reader.take(&[to_coder("after", "b")]).await;
    assert_eq!(committed.resolutions[0].finding, Finding::Reused);
    assert_eq!(scene.stored("after").await.unwrap().position, Some(2));
    scene.check().await;
}

#[tokio::test]
async fn renaming_an_agent_changes_no_key_and_removing_it_ends_its_sessions() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[to_coder("n-1", "b")]).await;
    scene
        .execute("update agent set slug = 'engineer' where slug = 'coder'")
        .await;
    let to = |id: &str, agent: &str| message("acme", "PROJ-7", &json!({"id": id, "agent": agent, "body": "b"}));
    let id = scene.coder.to_string();
    reader
        .take(&[to("n-2", "engineer"), to("n-3", &id), to("n-4", "coder")])
        .await;
    assert_eq!(
        scene.sessions().await,
        [(format!("task:proj-7:agent:{id}:acme:v1"), 3, 3, false)]
    );
    assert!(
        scene
            .stored("n-4")
            .await
            .unwrap()
            .reason
            .unwrap()
            .starts_with("unknown_agent: ")
    );

    scene.agent_remove(scene.coder).await;
    reader.take(&[to("n-5", "engineer"), to("n-6", &id)]).await;
    for id in ["n-5", "n-6"] {
        assert!(
            scene
                .stored(id)
                .await
                .unwrap()
                .reason
                .unwrap()
                .starts_with("unknown_agent: ")
        );
    }
    assert_eq!(scene.sessions().await.iter().filter(|session| !session.3).count(), 0);
    // The removed agent's assignment no longer counts.
    let committed = reader
        .take(&[message("acme", "PROJ-7", &json!({"id": "all", "body": "b"}))])
        .await;
    assert_eq!(committed.resolutions.len(), 1);
    assert!(scene.stored(&format!("all:{}", scene.reviewer)).await.is_some());
    scene.check().await;
}

#[tokio::test]
async fn an_unknown_task_is_created_once_and_titled() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader
        .take(&[
            message(
                "acme",
                "New-1",
                &json!({"agent": "coder", "title": "Mend it", "body": "b"}),
            ),
            message(
                "acme",
                "new-1",
                &json!({"agent": "reviewer", "title": "Later", "body": "b"}),
            ),
            message("acme", "New-2", &json!({"agent": "coder", "body": "b"})),
        ])
        .await;
    let tasks = scene
        .test
        .texts("select display_id || '|' || title || '|' || status from task where id like 'new%' order by id")
        .await;
    assert_eq!(tasks, ["New-1|Mend it|inbox", "New-2|New-2|inbox"]);
    assert_eq!(
        scene
            .test
            .count("select count(*) from activity where kind = 'task.created'")
            .await,
        2
    );
    let created = scene
        .outgoing()
        .await
        .iter()
        .filter(|(subject, _)| subject.ends_with(".task.created"))
        .count();
    assert_eq!(created, 2);
    scene.check().await;
}
