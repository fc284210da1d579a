//! Fabricated records and rows: one successful notification, which tests then corrupt.

use std::collections::BTreeMap;

use domain::QueueMode;
use serde_json::json;
use time::{Duration, OffsetDateTime};

use super::{
    Violation,
    evidence::{CallRow, Evidence, MessageRow, NotificationRow, Rows, SessionRow, TurnRow},
};
use crate::records::{
    Agent, Answer, ApiAnswer, Author, CallEnd, Heard, Offer, Offered, ProviderCall, Records, Tenant, Try, Via, Work,
    WorkKind,
};

pub(super) const KEY: &str = "task:t-1:agent:01800000-0000-7000-8000-000000000001:acme:v1";

pub(super) struct Story {
    pub(super) records: Records,
    pub(super) rows: Rows,
    pub(super) at_rest: bool,
}

pub(super) fn at(seconds: i64) -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + Duration::seconds(seconds)
}

impl Story {
    /// A person published, the agent posted a message and replied, and the reply is in the thread.
    pub(super) fn delivered() -> Story {
        let tenant = |id: &str| Tenant {
            id: id.to_owned(),
            canary: format!("canary-of-{id}"),
            agents: vec![Agent {
                id: "agent-1".to_owned(),
                slug: "coder".to_owned(),
            }],
            tasks: vec!["T-1".to_owned()],
        };
        let accepted = Try {
            via: Via::Nats,
            sent_at: at(1),
            ended_at: at(2),
            answer: Answer::Accepted,
        };
        let offer = Offer {
            number: 0,
            account: "acme".to_owned(),
            what: Offered::Notification {
                id: "n-1".to_owned(),
                task: Some("T-1".to_owned()),
                agents: vec!["coder".to_owned()],
                work: Work {
                    kind: WorkKind::Message,
                    effect: "e1".to_owned(),
                },
                mode: QueueMode::Followup,
                author: Author::Ann,
            },
            tries: vec![accepted],
        };
        let call = "message.e1.0.0".to_owned();
        let records = Records {
            seed: 1,
            started_at: at(0),
            quiet_at: at(100),
            database_url: String::new(),
            accounts: vec![tenant("acme"), tenant("other")],
            offers: vec![offer],
            aims: Vec::new(),
            calls: vec![
                provider_call(
                    0,
                    (3, 4),
                    CallEnd::Calls {
                        calls: vec![(call.clone(), "task_message".to_owned())],
                    },
                ),
                provider_call(
                    1,
                    (5, 6),
                    CallEnd::Text {
                        text: "reply e1".to_owned(),
                    },
                ),
            ],
            faults: Vec::new(),
            samples: Vec::new(),
            logs: Vec::new(),
            secrets: BTreeMap::from([("provider key".to_owned(), "s3cret-word".to_owned())]),
            answers: vec![ApiAnswer {
                account: Some("acme".to_owned()),
                path: "/api/orgs/acme/notifications".to_owned(),
                of_service: false,
                key: None,
                status: 200,
                body: "canary-of-acme".to_owned(),
            }],
            heard: Heard {
                messages: 1,
                secrets: Vec::new(),
                turns: ["turn.started:acme:turn-1", "turn.finished:acme:turn-1"]
                    .map(str::to_owned)
                    .into(),
                parked: BTreeMap::new(),
                opened: BTreeMap::new(),
            },
            audits: Vec::new(),
        };
        Story {
            records,
            rows: rows(&call),
            at_rest: true,
        }
    }

    pub(super) fn judge(&self, check: fn(&Evidence<'_>) -> Vec<Violation>) -> Vec<Violation> {
        check(&Evidence::new(&self.records, &self.rows, self.at_rest))
    }

    /// Whether the check reports a violation with these words.
    pub(super) fn finds(&self, check: fn(&Evidence<'_>) -> Vec<Violation>, words: &str) -> bool {
        self.judge(check)
            .iter()
            .any(|violation| violation.found.contains(words))
    }
}

pub(super) fn provider_call(order: usize, (begun, ended): (i64, i64), end: CallEnd) -> ProviderCall {
    ProviderCall {
        order,
        caller: "delivery-0".to_owned(),
        session_key: KEY.to_owned(),
        idempotency_key: format!("turn-1:{order}"),
        effect: Some("e1".to_owned()),
        results: Vec::new(),
        canaries: vec!["acme".to_owned()],
        secrets: Vec::new(),
        words: vec!["e1".to_owned()],
        texts: Vec::new(),
        begun_at: at(begun),
        ended_at: Some(at(ended)),
        end,
    }
}

fn rows(call: &str) -> Rows {
    let acme = || "acme".to_owned();
    let message = |id: &str, body: &str| MessageRow {
        account_id: acme(),
        id: id.to_owned(),
        task_id: "t-1".to_owned(),
        author_kind: "agent".to_owned(),
        body: body.to_owned(),
        turn_id: Some("turn-1".to_owned()),
    };
    Rows {
        notifications: vec![NotificationRow {
            account_id: acme(),
            id: "n-1".to_owned(),
            session_id: Some("session-1".to_owned()),
            position: Some(1),
            body: "work=message effect=e1;".to_owned(),
            state: "delivered".to_owned(),
            reason: None,
            task_id: Some("t-1".to_owned()),
            turn_id: Some("turn-1".to_owned()),
            queue_mode: QueueMode::Followup,
            joins: false,
            kind: "message".to_owned(),
            of: None,
            sender_kind: "user".to_owned(),
            sender_id: "ann".to_owned(),
            revision: 1,
            created_at: at(2),
        }],
        sessions: vec![SessionRow {
            account_id: acme(),
            id: "session-1".to_owned(),
            kind: "task".to_owned(),
            task_id: Some("t-1".to_owned()),
            agent_id: Some("agent-1".to_owned()),
            generation: 1,
            key: KEY.to_owned(),
            opened_at: at(2),
            closed_at: None,
            close_reason: None,
            provider_thread: None,
            phase: "idle".to_owned(),
            queued: 0,
            lease_owner: None,
            gate: None,
            persona: None,
        }],
        turns: vec![TurnRow {
            account_id: acme(),
            id: "turn-1".to_owned(),
            session_id: "session-1".to_owned(),
            task_id: Some("t-1".to_owned()),
            generation: 1,
            number: 1,
            state: "finished".to_owned(),
            notification_ids: vec!["n-1".to_owned()],
            journal: json!([{"response_id": "resp_0", "calls": [{"call_id": call, "ordinal": 1}]}]),
            response_id: Some("resp_1".to_owned()),
            reply: Some("reply e1".to_owned()),
            late: false,
            no_reply: false,
            error: None,
            error_class: None,
            started_at: at(3),
            finished_at: Some(at(6)),
            sent_at: Some(at(5)),
            told: false,
            opens_thread: true,
            profile_hash: "profile".to_owned(),
            input_sha256: "input".to_owned(),
            notes_sha256: vec!["note".to_owned()],
            noted: Vec::new(),
            manifest: None,
        }],
        calls: vec![CallRow {
            account_id: acme(),
            id: "call-1".to_owned(),
            session_id: "session-1".to_owned(),
            turn_id: Some("turn-1".to_owned()),
            call_id: call.to_owned(),
            ordinal: 1,
            name: "task_message".to_owned(),
            arguments: r#"{"task_id": "T-1", "body": "effect e1; canary-of-acme"}"#.to_owned(),
            state: "finished".to_owned(),
            late: false,
            started_at: at(4),
            finished_at: Some(at(4)),
            result_sha256: Some("result".to_owned()),
        }],
        messages: vec![message("m-1", "effect e1; canary-of-acme"), message("m-2", "reply e1")],
        assignees: vec![(acme(), "t-1".to_owned(), "agent-1".to_owned())],
        ..Rows::default()
    }
}
