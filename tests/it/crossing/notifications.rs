//! Notifications that name another account's things in their payload or in the task of their subject. As with requests, each
//! attempt has a twin that names an unknown thing.

use serde_json::{Value, json};
use testkit::{Reply, eventually};

use super::{ATTACKER, VICTIM, generator::Ids, inside::Inside, names::missing};

/// A subject's task and a payload, with the foreign name.
struct Attempt {
    task: String,
    payload: String,
    name: String,
}

impl Attempt {
    /// With the foreign name, or with an unknown one.
    fn named(&self, name: &str, id: &str) -> (String, Value) {
        let mut payload: Value = serde_json::from_str(&self.payload.replace("{any}", name)).unwrap();
        payload["id"] = json!(id);
        (self.task.replace("{any}", name), payload)
    }
}

fn attempts(foreign: &Ids) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for (kind, task, payload) in [
        ("agent", "LIVE-1", json!({"agent": "{any}", "body": "b"})),
        ("agent", "LIVE-1", json!({"agents": ["coder", "{any}"], "body": "b"})),
        ("agent", "-", json!({"agent": "{any}", "body": "b"})),
        ("agent", "CHAT", json!({"agent": "{any}", "body": "b"})),
        (
            "agent",
            "LIVE-1",
            json!({"agent": "coder", "sender": {"kind": "agent", "id": "{any}", "name": "{any}"}, "body": "b"}),
        ),
        (
            "message",
            "LIVE-1",
            json!({"agent": "coder", "message_id": "{any}", "body": "b"}),
        ),
        (
            "message",
            "-",
            json!({"agent": "coder", "message_id": "{any}", "body": "b"}),
        ),
        (
            "account",
            "LIVE-1",
            json!({"agent": "coder", "account": "{any}", "account_id": "{any}", "body": "b"}),
        ),
        (
            "task",
            "LIVE-1",
            json!({"agent": "coder", "task": "{any}", "task_id": "{any}", "body": "b"}),
        ),
        (
            "session_key",
            "LIVE-1",
            json!({"agent": "coder", "session_key": "{any}", "body": "b"}),
        ),
        (
            "session",
            "LIVE-1",
            json!({"agent": "coder", "metadata": {"session_id": "{any}"}, "body": "b"}),
        ),
        ("task", "{any}", json!({"agent": "nobody", "body": "b"})),
    ] {
        attempts.extend(foreign[kind].iter().map(|name| Attempt {
            task: task.to_owned(),
            payload: payload.to_string(),
            name: name.clone(),
        }));
    }
    attempts
}

/// The outcomes of the attacker's finished notifications, and of their parts.
const OUTCOMES: &str = "
    select n.id || ' ' || n.state || ' ' || coalesce(n.reason, '') || ' ' || coalesce(n.task_id, '') || ' ' || (n.agent_id is null)
    from notification n
    where n.account_id = 'birch' and n.state not in ('queued', 'running')
      and not exists (select from notification o where o.account_id = 'birch' and o.state in ('queued', 'running')
                        and split_part(o.id, ':', 1) = split_part(n.id, ':', 1))
    order by n.id";

/// A reason may repeat the given name.
async fn outcome(inside: &Inside, id: &str, name: &str) -> String {
    let outcomes = eventually(&format!("{id} is over"), || async {
        let all = inside.house.world.database.texts(OUTCOMES).await;
        let of: Vec<String> = all
            .into_iter()
            .filter(|outcome| outcome.starts_with(&format!("{id} ")) || outcome.starts_with(&format!("{id}:")))
            .map(|outcome| outcome.split_once(' ').expect("behind the id").1.to_owned())
            .collect();
        (!of.is_empty()).then_some(of)
    })
    .await;
    // Tasks are compared in lower case, and may be shown so.
    let text = outcomes.join("\n").replace(name, "<name>");
    text.replace(&name.to_lowercase(), "<name>")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_notification_crosses() {
    let inside = Inside::open(|_| Reply::text("ok")).await;
    let attempts = attempts(&inside.foreign);
    for (place, attempt) in attempts.iter().enumerate() {
        for (side, name) in [
            ("theirs", attempt.name.clone()),
            ("nobodys", missing(&attempt.name, VICTIM)),
        ] {
            let (task, payload) = attempt.named(&name, &format!("{side}-{place}"));
            inside.house.publish(ATTACKER, &task, payload).await;
        }
    }
    for (place, attempt) in attempts.iter().enumerate() {
        let theirs = outcome(&inside, &format!("theirs-{place}"), &attempt.name).await;
        let nobodys = outcome(&inside, &format!("nobodys-{place}"), &missing(&attempt.name, VICTIM)).await;
        assert_eq!(theirs, nobodys, "{}", attempt.payload);
    }
    println!("{} notifications beside their twins", attempts.len());
    inside.close().await;
}
