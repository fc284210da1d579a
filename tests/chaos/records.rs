//! What a campaign writes down: everything that was offered with the answers it got, every request that reached the
//! provider with how it ended, every fault that hit, and where logs and database are. The checker decides by this and
//! by nothing else, so that a kept campaign can be checked again. Records only: no rule, no I/O.
//!
//! All moments are the machine's clock, which is the database's clock too.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Records {
    pub(crate) seed: u64,
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) started_at: OffsetDateTime,
    /// When all queues were empty and looking at the database began.
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) quiet_at: OffsetDateTime,
    /// The superuser's, direct and not through a proxy: row-level security does not hold it.
    pub(crate) database_url: String,
    pub(crate) accounts: Vec<Tenant>,
    /// In the order in which they were first made.
    pub(crate) offers: Vec<Offer>,
    /// In the order in which the provider saw them.
    pub(crate) calls: Vec<ProviderCall>,
    pub(crate) faults: Vec<Fired>,
    /// In the order in which they were taken; the last of a process when all had come to rest.
    pub(crate) samples: Vec<Sample>,
    pub(crate) logs: Vec<ServiceLog>,
    /// What must stand in no log, no message, no error and no plain column: name → secret.
    pub(crate) secrets: BTreeMap<String, String>,
    /// What the API showed while the campaign ran, whole bodies, also of refusals.
    pub(crate) answers: Vec<ApiAnswer>,
    /// What went over the bus.
    #[serde(default)]
    pub(crate) heard: Heard,
}

/// What somebody who hears every message noted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Heard {
    pub(crate) messages: usize,
    /// Name of a secret, and the subject of a message that had it.
    pub(crate) secrets: Vec<(String, String)>,
}

/// An account and what only it may see.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tenant {
    pub(crate) id: String,
    /// In every body, title and message of this account, and in what the provider replies to its sessions.
    pub(crate) canary: String,
    pub(crate) agents: Vec<Agent>,
    /// As spelled by their maker. Further tasks may have been made by notifications.
    pub(crate) tasks: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Agent {
    pub(crate) id: String,
    pub(crate) slug: String,
}

/// One thing that a client wanted, with every try at it. A client tries until it is answered or the campaign ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) number: usize,
    pub(crate) account: String,
    pub(crate) what: Offered,
    pub(crate) tries: Vec<Try>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Offered {
    /// A notification that is well formed.
    Notification {
        id: String,
        /// None: without a task.
        task: Option<String>,
        /// Slugs. One: the notification has `id`. Several: one each, ids `{id}:{agent_id}`, and the work is `Reply`.
        agents: Vec<String>,
        work: Work,
    },
    /// The same message once more: it may change nothing.
    Repeat { of: usize },
    /// The id of another offer with other content: refused, and the other one is unharmed. Who comes first is who the
    /// resolver reads first, so this is only made once the other is known to be accepted.
    Conflict { of: usize, id: String },
    /// Another body under the idempotency key of an offer that was accepted over HTTP: refused.
    KeyReused { of: usize },
    /// What cannot be read, or is too large, or names nobody: refused with this reason.
    Poison { id: Option<String>, reason: String },
    /// A thread message; wakes the task's assignees, one notification each (`message:{message id}:{agent id}`), and the
    /// work is `Reply`.
    Message { task: String, work: Work },
    /// PATCH of a task.
    Status { task: String, status: String },
}

/// What the agent does in the turn of this notification. It stands in the notification's body, in words that the stub
/// reads: `work=<kind> effect=<effect>`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) kind: WorkKind,
    /// Unique in the campaign. Whatever the work does carries it: the body of the posted message, the reply, the note.
    pub(crate) effect: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkKind {
    /// A reply and no more.
    Reply,
    /// `task_message` with body `effect <effect>`, then a reply.
    Message,
    /// Two rounds of `task_message`: `effect <effect>` and `effect <effect>-2`, then a reply.
    TwoMessages,
    /// The same two in one answer.
    TwoAtOnce,
    /// `task_history`, then a reply.
    History,
    /// `response_request` to another agent with body `work=reply effect=<effect>-asked`, then a reply.
    Ask,
    /// `task_status` to `done`, then a reply.
    Done,
    /// In one answer `task_message` with body `effect <effect>` and `task_status` to `done`, then a reply.
    Finish,
    /// `no_reply`, then a text that is not to be posted.
    Silent,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Try {
    pub(crate) via: Via,
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) sent_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) ended_at: OffsetDateTime,
    pub(crate) answer: Answer,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Via {
    /// A publish to the stream, waiting for its acknowledgement.
    Nats,
    /// A POST or PATCH with an `Idempotency-Key`.
    Http,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// 2xx, or the stream's acknowledgement.
    Accepted,
    /// 4xx: it was not taken and will not be.
    Refused { status: u16 },
    /// 5xx, a timeout, a connection that broke: it may have been taken.
    Unknown { why: String },
}

/// One request as the provider saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProviderCall {
    /// Place among all, from 0.
    pub(crate) order: usize,
    /// The process that sent it: `delivery-0`. Each has an address of its own at the stub.
    pub(crate) caller: String,
    pub(crate) session_key: String,
    pub(crate) idempotency_key: String,
    /// Of the notification in the input, where it begins a turn; of the call ids, where it carries one on.
    pub(crate) effect: Option<String>,
    /// Ids of the tool calls whose results it brought.
    pub(crate) results: Vec<String>,
    /// Canaries of which accounts stood anywhere in the request.
    pub(crate) canaries: Vec<String>,
    /// Names of the secrets that stood in it, the provider's own credential in its header aside.
    pub(crate) secrets: Vec<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) begun_at: OffsetDateTime,
    /// Last byte sent, or the moment at which the stub saw that the caller had gone. None: still open at the end.
    #[serde(with = "time::serde::rfc3339::option")]
    pub(crate) ended_at: Option<OffsetDateTime>,
    pub(crate) end: CallEnd,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CallEnd {
    Open,
    /// The whole answer was handed to the connection: whether it arrived is another question.
    Text {
        text: String,
    },
    /// Tool calls, whole: (call id, tool).
    Calls {
        calls: Vec<(String, String)>,
    },
    /// A failure that the schedule wanted, whole; its name, as in the report.
    Failure {
        name: String,
    },
    /// The caller went away first.
    Aborted,
}

/// A fault that hit. One that was scheduled and hit nothing is in the report, and not here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fired {
    /// As in the schedule and in the report: `kill`, `freeze`, `nats_wipe`, …
    pub(crate) kind: String,
    /// `delivery-0`, `nats`, `postgres`, `provider`, or an offer's number.
    pub(crate) target: String,
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) from: OffsetDateTime,
    /// When it was healed.
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) until: OffsetDateTime,
}

/// The log of one service process, all its lives in one file, one line an event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServiceLog {
    /// `delivery-0`
    pub(crate) process: String,
    pub(crate) path: PathBuf,
}

/// What a key of an account was shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ApiAnswer {
    /// The key's account; None: the operator's token.
    pub(crate) account: Option<String>,
    pub(crate) path: String,
    /// Of a POST.
    pub(crate) key: Option<String>,
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// What a service process held at a moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) at: OffsetDateTime,
    pub(crate) process: String,
    pub(crate) memory_kib: usize,
    /// Files and connections that are open.
    pub(crate) files: usize,
}
