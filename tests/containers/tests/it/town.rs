//! An account with an agent and tasks, and its expected final state: every notification in one turn, every turn with one reply.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use signalbox_testcontainers::{Client, Signalbox};

use crate::{bus::Bus, wait::eventually};

pub(crate) const ACCOUNT: &str = "acme";
const AGENT: &str = "coder";
const TASKS: usize = 6;

/// Published so far, by task.
#[derive(Default)]
pub(crate) struct Town {
    published: BTreeMap<String, Vec<String>>,
    count: usize,
}

impl Town {
    pub(crate) async fn found(signalbox: &Signalbox) -> Town {
        let client = signalbox.client();
        client.account(ACCOUNT).await.unwrap();
        client.agent(ACCOUNT, AGENT).await.unwrap();
        Town::default()
    }

    /// Publishes a notification that makes the agent call a tool, so that it uses every service; returns its id.
    pub(crate) async fn notify(&mut self, bus: &Bus) -> String {
        self.count += 1;
        let (id, task) = (format!("n-{}", self.count), format!("T-{}", self.count % TASKS));
        bus.publish(ACCOUNT, &task, &notification(&id)).await;
        self.published.entry(task).or_default().push(id.clone());
        id
    }

    pub(crate) fn add(&mut self, published: BTreeMap<String, Vec<String>>) {
        for (task, ids) in published {
            self.published.entry(task).or_default().extend(ids);
        }
    }

    /// Nothing was lost and nothing was done twice.
    pub(crate) async fn everything_was_done_once(&self, client: &Client) {
        for (task, ids) in &self.published {
            let mut turns = BTreeSet::new();
            for id in ids {
                let delivered = client.until(ACCOUNT, id, "delivered").await.unwrap();
                turns.insert(delivered["turn_id"].as_str().unwrap().to_owned());
            }
            let mut worked_on = Vec::new();
            for turn in &turns {
                let turn = client.get(&format!("/api/orgs/{ACCOUNT}/turns/{turn}")).await.unwrap();
                assert_eq!(turn["state"], "finished", "{turn}");
                worked_on.extend(strings(&turn["notifications"]));
            }
            worked_on.sort_unstable();
            let mut expected = ids.clone();
            expected.sort_unstable();
            assert_eq!(worked_on, expected, "each in one turn of {task}");
            let replies = eventually("every turn's reply is posted", || async {
                let replies = replies(client, task).await;
                (replies >= turns.len()).then_some(replies)
            })
            .await;
            assert_eq!(replies, turns.len(), "a reply was posted twice in {task}");
        }
    }
}

pub(crate) fn notification(id: &str) -> Value {
    json!({"id": id, "agent": AGENT, "title": id, "body": "Read the history of this task.",
        "sender": {"kind": "service", "id": "ci", "name": "CI"}})
}

async fn replies(client: &Client, task: &str) -> usize {
    let (mut count, mut cursor) = (0, String::new());
    loop {
        let path = format!("/api/orgs/{ACCOUNT}/tasks/{task}/messages?limit=100{cursor}");
        let page = client.get(&path).await.unwrap();
        let items = page["items"].as_array().unwrap();
        count += items
            .iter()
            .filter(|message| message["author"]["kind"] == "agent")
            .count();
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return count,
        }
    }
}

fn strings(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}
