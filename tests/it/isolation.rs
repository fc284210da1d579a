//! Sessions do not mix (S1, S2, S6): another task, agent or account has another key, and its data is not in the prompt.

use std::collections::HashSet;

use testkit::Reply;

use crate::house::House;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_on_one_task_and_one_agent_on_two_tasks_do_not_mix() {
    let house = House::open(|_| Reply::text("ok")).await;
    for account in ["acme", "other"] {
        house.account(account).await;
        for agent in ["coder", "reviewer"] {
            house.agent(account, agent).await;
        }
        for task in ["T-1", "T-2"] {
            house.task(account, task, &[]).await;
            let secret = format!("SECRET-{account}-{task}");
            house
                .post(
                    &format!("/api/orgs/{account}/tasks/{task}/messages"),
                    serde_json::json!({"body": secret}),
                )
                .await;
        }
    }
    let mut ids = Vec::new();
    for account in ["acme", "other"] {
        for task in ["T-1", "T-2"] {
            for agent in ["coder", "reviewer"] {
                let id = format!("n-{task}-{agent}");
                house
                    .notify(account, task, agent, &id, &format!("WORK-{account}-{task}-{agent}"))
                    .await;
                ids.push((account, task, agent, id));
            }
        }
    }
    let mut keys = HashSet::new();
    for (account, task, agent, id) in &ids {
        let delivered = house.until(account, id, "delivered").await;
        let key = delivered["session_key"].as_str().unwrap().to_owned();
        let seen = house.provider.seen_of(&key);
        assert_eq!(seen.len(), 1, "{key}");
        let text = seen[0].text();
        assert!(
            text.contains(&format!("WORK-{account}-{task}-{agent}"))
                && text.contains(&format!("SECRET-{account}-{task}"))
        );
        assert_eq!(text.matches("WORK-").count(), 1, "{text}");
        assert_eq!(text.matches("SECRET-").count(), 1, "{text}");
        assert!(keys.insert(key), "a key is used twice");
    }
    assert_eq!(keys.len(), 8);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskless_work_has_a_session_of_its_own_and_tasks_compare_without_case() {
    let house = House::open(|_| Reply::text("ok")).await;
    house.account("acme").await;
    let agent = house.agent("acme", "coder").await;
    house.task("acme", "PROJ-7", &[]).await;
    house.notify("acme", "-", "coder", "beat-1", "Anything to do?").await;
    house.notify("acme", "PROJ-7", "coder", "n-1", "x").await;
    house.notify("acme", "proj-7", &agent, "n-2", "y").await;
    let beat = house.until("acme", "beat-1", "delivered").await;
    let (one, two) = (
        house.until("acme", "n-1", "delivered").await,
        house.until("acme", "n-2", "delivered").await,
    );
    assert_eq!(beat["session_key"], format!("system:agent:{agent}:acme:v1"));
    assert_eq!(one["session_key"], two["session_key"]);
    // A renamed agent keeps its key.
    house
        .patch("/api/orgs/acme/agents/coder", serde_json::json!({"slug": "engineer"}))
        .await;
    house.notify("acme", "PROJ-7", "engineer", "n-3", "z").await;
    assert_eq!(
        house.until("acme", "n-3", "delivered").await["session_key"],
        one["session_key"]
    );
    house.close().await;
}

/// Publishers choose ids of tasks and notifications, and the broker deduplicates message ids over all accounts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_happens_in_two_accounts_and_both_are_told() {
    let house = House::open(|_| Reply::text("ok")).await;
    for account in ["acme", "other"] {
        house.account(account).await;
        house.agent(account, "coder").await;
        house.notify(account, "NEW-1", "coder", "n-1", "x").await;
        house.until(account, "n-1", "delivered").await;
    }
    let events = async_nats::jetstream::new(house.world.operator().await)
        .get_stream("SIGNALBOX_EVENT")
        .await
        .unwrap();
    for account in ["acme", "other"] {
        testkit::eventually(&format!("{account} is told of its new task"), || async {
            let subject = format!("signalbox.event.{account}.NEW-1.task.created");
            events.get_last_raw_message_by_subject(&subject).await.ok()
        })
        .await;
    }
    house.close().await;
}
