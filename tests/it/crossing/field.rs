//! The four services of the attempts, and the data that an account can read of itself.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use testkit::Tenant;

use super::{
    attempt::{Attempt, Door, Request},
    client::Client,
    judge::{Answer, Marks, fault},
};
use crate::house::House;

/// Requests in flight at a time.
const SENDERS: usize = 8;
/// Reported failures at most.
const FAULTS_TOLD: usize = 12;

#[derive(Clone)]
pub(crate) struct Field {
    client: Arc<Client>,
}

impl Field {
    pub(crate) fn of(house: &House) -> Field {
        let host = |url: String| url.trim_start_matches("http://").to_owned();
        let doors = [(Door::Api, host(house.api())), (Door::Agent, host(house.agent_api()))];
        Field {
            client: Arc::new(Client::new(doors)),
        }
    }

    pub(crate) async fn send(&self, request: &Request) -> Answer {
        self.client.send(request).await
    }

    pub(crate) async fn get(&self, door: Door, path: &str, token: &str) -> Value {
        let answer = self
            .send(&Request {
                door,
                method: "GET",
                path: path.to_owned(),
                token: token.to_owned(),
                headers: Vec::new(),
                body: None,
            })
            .await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap_or(json!(answer.body))
    }

    /// Cursors of the account's own lists.
    pub(crate) async fn cursors(&self, tenant: &Tenant) -> Vec<String> {
        let mut cursors = Vec::new();
        for list in [
            "agents",
            "tasks",
            "keys",
            "notifications",
            "sessions",
            "dead-letters",
            "holds",
            "tool-policies",
            "recoveries",
            "questions",
            "timers",
            "tasks/LIVE-1/messages",
            "tasks/LIVE-1/context/versions",
            "tasks/LIVE-1/artifacts",
            "tasks/LIVE-1/branches",
            "tasks/LIVE-1/graph",
            "audit/isolation",
        ] {
            let path = format!("/api/orgs/{}/{list}?limit=1", tenant.account);
            let page = self.get(Door::Api, &path, &tenant.keys["admin"]).await;
            cursors.push(
                page["next_cursor"]
                    .as_str()
                    .unwrap_or_else(|| panic!("{path}: one page: {page}"))
                    .to_owned(),
            );
        }
        // Of every session's turns, where there are several.
        let base = format!("/api/orgs/{}", tenant.account);
        let sessions = self
            .get(Door::Api, &format!("{base}/sessions"), &tenant.keys["admin"])
            .await;
        for session in sessions["items"].as_array().into_iter().flatten() {
            let id = session["id"].as_str().expect("a session has an id");
            for path in [
                format!("{base}/sessions/{id}/log?limit=1"),
                format!("{base}/audit/isolation?limit=1&session={id}"),
            ] {
                let page = self.get(Door::Api, &path, &tenant.keys["admin"]).await;
                cursors.extend(page["next_cursor"].as_str().map(str::to_owned));
            }
        }
        cursors
    }

    /// All data that the account's admin can read, as one text.
    pub(crate) async fn everything(&self, tenant: &Tenant) -> String {
        let base = format!("/api/orgs/{}", tenant.account);
        let mut text = String::new();
        let mut lists: Vec<String> = [
            "",
            "/agents",
            "/tasks",
            "/keys",
            "/notifications",
            "/sessions",
            "/dead-letters",
            "/holds",
            "/tool-policies",
            "/recoveries",
            "/questions",
            "/timers",
        ]
        .map(|list| format!("{base}{list}"))
        .into();
        while let Some(list) = lists.pop() {
            let mut path = list.clone();
            loop {
                let page = self.get(Door::Api, &path, &tenant.keys["admin"]).await;
                text.push_str(&page.to_string());
                for item in page["items"].as_array().into_iter().flatten() {
                    let id = item["id"].as_str().unwrap_or_default();
                    if list.ends_with("/tasks") {
                        lists.push(format!("{base}/tasks/{id}/messages"));
                        lists.push(format!("{base}/tasks/{id}/activities"));
                        lists.push(format!("{base}/tasks/{id}/context/versions"));
                        lists.push(format!("{base}/tasks/{id}/artifacts"));
                        lists.push(format!("{base}/tasks/{id}/branches"));
                        lists.push(format!("{base}/tasks/{id}/graph"));
                    } else if list.ends_with("/sessions") {
                        lists.push(format!("{base}/sessions/{id}/turns"));
                    } else if list.ends_with("/turns") {
                        lists.push(format!("{base}/turns/{id}/replays"));
                    }
                }
                match page["next_cursor"].as_str() {
                    Some(cursor) => path = format!("{list}?cursor={cursor}"),
                    None => break,
                }
            }
        }
        text
    }

    /// Makes all attempts, each beside its twin, and reports the failures.
    pub(crate) async fn attempt_all(&self, attempts: Vec<Attempt>, marks: &Arc<Marks>) -> Vec<String> {
        let mut shares: Vec<Vec<Attempt>> = (0..SENDERS).map(|_| Vec::new()).collect();
        for (place, attempt) in attempts.into_iter().enumerate() {
            // Requests with the same idempotency key run one after the other.
            let keyed = attempt
                .request
                .headers
                .iter()
                .any(|(name, _)| *name == "idempotency-key");
            shares[if keyed { 0 } else { 1 + place % (SENDERS - 1) }].push(attempt);
        }
        // Many attempts differ only in the owner of the named thing, since no owner has the same thing for many of them.
        let twins = Arc::new(Mutex::new(HashMap::new()));
        let senders: Vec<_> = shares
            .into_iter()
            .map(|share| {
                let (field, marks, twins) = (self.clone(), Arc::clone(marks), Arc::clone(&twins));
                tokio::spawn(async move { field.attempt_some(&share, &marks, &twins).await })
            })
            .collect();
        let mut faults = Vec::new();
        for sender in senders {
            faults.extend(sender.await.unwrap());
        }
        println!("{} requests that name an unknown thing", twins.lock().unwrap().len());
        faults.truncate(FAULTS_TOLD);
        faults
    }

    async fn attempt_some(
        &self,
        attempts: &[Attempt],
        marks: &Marks,
        twins: &Mutex<HashMap<Request, Answer>>,
    ) -> Vec<String> {
        let mut faults = Vec::new();
        for attempt in attempts {
            let answer = self.send(&attempt.request).await;
            let twin = attempt.twin();
            let is_keyed = twin.headers.iter().any(|(name, _)| *name == "idempotency-key");
            let known = twins.lock().unwrap().get(&twin).filter(|_| !is_keyed).cloned();
            let told = match known {
                Some(told) => told,
                None => {
                    let told = self.send(&twin).await;
                    twins.lock().unwrap().insert(twin, told.clone());
                    told
                }
            };
            if let Some(fault) = fault(attempt, &answer, &told, marks) {
                faults.push(format!("{}: {:?} {fault}", attempt.row, attempt.request));
            }
        }
        faults
    }
}
