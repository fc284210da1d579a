//! The records of a campaign: every offer with its answers, every provider request with its end, every fault that hit, and the
//! paths of logs and database. The checker judges only these, so that a kept campaign can be checked again. No rules, no I/O.
//!
//! All timestamps are by the machine's clock, which is also the database's.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use domain::{HoldRunning, HoldScope, QueueMode, ResetInFlight, ResetQueue, StopThen};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Records {
    pub(crate) seed: u64,
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) started_at: OffsetDateTime,
    /// When all queues were empty and the database was read.
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) quiet_at: OffsetDateTime,
    /// The superuser's URL, without a proxy, so row-level security does not apply.
    pub(crate) database_url: String,
    pub(crate) accounts: Vec<Tenant>,
    /// In the order in which they were first made.
    pub(crate) offers: Vec<Offer>,
    /// What the brakes among the offers were aimed at.
    #[serde(default)]
    pub(crate) aims: Vec<Aim>,
    /// In the order in which the provider saw them.
    pub(crate) calls: Vec<ProviderCall>,
    pub(crate) faults: Vec<Fired>,
    /// In the order in which they were taken; the last one of each process when the system was idle.
    pub(crate) samples: Vec<Sample>,
    pub(crate) logs: Vec<ServiceLog>,
    /// Secrets that may stand in no log, message, error or plain column: name → secret.
    pub(crate) secrets: BTreeMap<String, String>,
    /// Answers of the API during the campaign, whole bodies, also of refusals.
    pub(crate) answers: Vec<ApiAnswer>,
    /// Messages on the bus.
    #[serde(default)]
    pub(crate) heard: Heard,
    /// Audits of the accounts when the system was idle.
    #[serde(default)]
    pub(crate) audits: Vec<Audited>,
}

/// The audit of an account.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Audited {
    pub(crate) account: String,
    pub(crate) turns: usize,
    /// A line each.
    pub(crate) violations: Vec<String>,
    /// Foreign sentences that were put into a prompt for the time of an audit.
    pub(crate) planted: Vec<Planted>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Planted {
    /// The turn, and the place of its part.
    pub(crate) place: String,
    pub(crate) is_found: bool,
}

/// Findings of a subscriber to every message.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Heard {
    pub(crate) messages: usize,
    /// Name of a secret, and the subject of a message that had it.
    pub(crate) secrets: Vec<(String, String)>,
    /// Ids of the events of turns.
    pub(crate) turns: BTreeSet<String>,
    /// Account and turn that was stopped → number of items that were parked behind it.
    #[serde(default)]
    pub(crate) parked: BTreeMap<String, usize>,
    /// Id of the event → when a breaker opened.
    #[serde(default)]
    pub(crate) opened: BTreeMap<String, OffsetDateTime>,
}

/// An account and its private texts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tenant {
    pub(crate) id: String,
    /// In every body, title and message of this account, and in what the provider replies to its sessions.
    pub(crate) canary: String,
    pub(crate) agents: Vec<Agent>,
    /// As spelled by their creator. Notifications may have created further tasks.
    pub(crate) tasks: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Agent {
    pub(crate) id: String,
    pub(crate) slug: String,
}

/// One request of a client, with every attempt. A client retries until it has an answer or the campaign ends.
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
    /// A valid notification.
    Notification {
        id: String,
        /// None: without a task.
        task: Option<String>,
        /// Slugs, or the address of an orchestrator. One: the notification has `id`. Several: one each, ids `{id}:{agent_id}`, and the work is `Reply`.
        agents: Vec<String>,
        work: Work,
        mode: QueueMode,
        author: Author,
    },
    /// The same message again: no change.
    Repeat { of: usize },
    /// The id of another offer with other content: refused, and the other is unchanged. The first one that the resolver reads wins,
    /// so this is only sent after the other was accepted.
    Conflict { of: usize, id: String },
    /// Another body under the idempotency key of an accepted HTTP offer: refused.
    KeyReused { of: usize },
    /// Malformed, too large, or with an unknown name: refused with this reason.
    Poison { id: Option<String>, reason: String },
    /// A thread message; wakes the task's assignees, one notification each (`message:{message id}:{agent id}`), and the
    /// work is `Reply`.
    Message { task: String, work: Work },
    /// PATCH of a task.
    Status { task: String, status: String },
    /// Writes the next version of the account's default persona.
    Persona,
    /// Stops the turn in progress of an agent's session, so long after its client saw the turn. `named`: only that turn.
    Stop {
        task: String,
        agent: String,
        then: StopThen,
        named: bool,
        after_ms: u64,
    },
    /// Resets an agent's session, so long after its client saw the session.
    Reset {
        task: String,
        agent: String,
        queue: ResetQueue,
        in_flight: ResetInFlight,
        after_ms: u64,
    },
    /// Replays the newest ended turn of an agent's session.
    Replay { task: String, agent: String },
    /// Goes on with what waits behind a stop.
    Resume { task: String, agent: String },
    /// Pauses what an agent works at, and releases the hold after this time.
    Hold {
        scope: HoldScope,
        task: String,
        agent: String,
        running: HoldRunning,
        for_ms: u64,
    },
    /// Releases the hold of this offer.
    Release { of: usize },
    /// Edits the last item that waits in an agent's session.
    Edit { task: String, agent: String, op: EditOp },
    /// Answers the oldest open question of the account that its client sees, with its own words and `effect=a<number>-asked`, and
    /// with the verdict that its number gives; or withdraws it.
    Answer { withdraws: bool },
    /// Ends the oldest live branch of a task that its client sees.
    EndBranch { task: String },
    /// Hands a task from one agent to another.
    Handover { task: String, from: String, to: String },
    /// Mail of the first person: to their own orchestrator, or to a handle, whose orchestrator answers in a session of its guest. The work is
    /// `Reply`.
    Mail { to: String, work: Work },
    /// Makes a task that may wait for another one, which its agent is told when that one is done. In its title stands
    /// `work=reply effect=<effect>-asked`.
    Task {
        id: String,
        blocked_by: Option<String>,
        agent: Option<String>,
        effect: String,
    },
    /// The first person's orchestrator is to remember one more, by the person.
    Remember,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Author {
    Ann,
    Bob,
    /// A service.
    Ci,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EditOp {
    Withdraw,
    /// Its text gets a mark, and keeps its words.
    Replace,
    Promote,
}

/// The session that a brake or an edit was sent to, and the turn or the item that it named; or the question of an answer, or the
/// hold that was set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Aim {
    pub(crate) offer: usize,
    pub(crate) target: String,
    pub(crate) named: Option<String>,
}

/// The agent's action in the turn of this notification. It stands in the notification's body, in words for the stub: `work=<kind>
/// effect=<effect>`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) kind: WorkKind,
    /// Unique in the campaign. Every result carries it: the body of the posted message, the reply, the note.
    pub(crate) effect: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkKind {
    /// A reply only.
    Reply,
    /// `task_message` with body `effect <effect>`, then a reply.
    Message,
    /// Two rounds of `task_message`: `effect <effect>` and `effect <effect>-2`, then a reply.
    TwoMessages,
    /// The same two in one answer.
    TwoAtOnce,
    /// `task_history`, then a reply.
    History,
    /// `task_context_write` with body `effect <effect>`, then a reply.
    Context,
    /// `response_request` to another agent with body `work=reply effect=<effect>-asked`, then a reply.
    Ask,
    /// `task_status` to `done`, then a reply.
    Done,
    /// In one answer `task_message` with body `effect <effect>` and `task_status` to `done`, then a reply.
    Finish,
    /// `no_reply`, then a text that must not be posted.
    Silent,
    /// `ask_question` with `effect <effect>` in its text, then a reply. What is answered has words of its own.
    Question,
    /// `check_later`, with words in its note, then a reply. The campaign makes the timer due.
    Later,
    /// `submit_plan`, which ends the turn.
    Plan,
    /// `subagent_spawn` of two, whose requests are `work=reply effect=<effect>-1-asked` and `work=reply` or `work=slow` with
    /// `effect=<effect>-2-asked`, then a reply. Their results have no words of their own.
    Split,
    /// In an orchestrator: `create_session` with the prompt `work=reply effect=<effect>-asked`, then a reply.
    Child,
    /// In an orchestrator: `send_message` to the other person's, with `work=reply effect=<effect>-asked`, then a reply. It is answered by mail.
    Mail,
    /// As `Message`, with each answer held for seconds: what is to meet a call in flight meets it.
    Slow,
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
    /// 4xx: refused for good.
    Refused { status: u16 },
    /// 5xx, a timeout, a broken connection: it may have been accepted.
    Unknown { why: String },
}

/// One request as the provider saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProviderCall {
    /// Index among all requests, from 0.
    pub(crate) order: usize,
    /// The process that sent it: `delivery-0`. Each has an address of its own at the stub.
    pub(crate) caller: String,
    pub(crate) session_key: String,
    pub(crate) idempotency_key: String,
    /// The effect of the input's notification if it begins a turn; of the call ids if it continues one.
    pub(crate) effect: Option<String>,
    /// Ids of the tool calls whose results it brought.
    pub(crate) results: Vec<String>,
    /// Canaries of which accounts stood anywhere in the request.
    pub(crate) canaries: Vec<String>,
    /// Secrets in the request, without the provider's own credential in its header.
    pub(crate) secrets: Vec<String>,
    /// Effects that stand anywhere in the request, without the ends that agents add.
    #[serde(default)]
    pub(crate) words: Vec<String>,
    /// What the model is given, in order.
    #[serde(default)]
    pub(crate) texts: Vec<SentText>,
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) begun_at: OffsetDateTime,
    /// Last byte sent, or the time when the stub noticed the disconnect. None: still open at the end.
    #[serde(with = "time::serde::rfc3339::option")]
    pub(crate) ended_at: Option<OffsetDateTime>,
    pub(crate) end: CallEnd,
}

/// A text of a request, by its SHA-256.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SentText {
    pub(crate) of: TextOf,
    pub(crate) sha256: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TextOf {
    Instructions,
    User,
    Assistant,
    /// The result of the call with this id.
    Result(String),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CallEnd {
    Open,
    /// The whole answer was written to the connection; it may not have arrived.
    Text {
        text: String,
    },
    /// Tool calls, whole: (call id, tool).
    Calls {
        calls: Vec<(String, String)>,
    },
    /// A scheduled failure, whole; its name, as in the report.
    Failure {
        name: String,
    },
    /// The caller disconnected first.
    Aborted,
}

/// A fault that hit. Faults without a hit are only in the report.
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

/// The log of one service process over all restarts in one file, one line an event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServiceLog {
    /// `delivery-0`
    pub(crate) process: String,
    pub(crate) path: PathBuf,
}

/// An answer to a key of an account.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ApiAnswer {
    /// The key's account; None: the operator's token.
    pub(crate) account: Option<String>,
    pub(crate) path: String,
    /// To the key of a service, which has no person.
    #[serde(default)]
    pub(crate) of_service: bool,
    /// Of a POST.
    pub(crate) key: Option<String>,
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Memory and files of a service process at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) at: OffsetDateTime,
    pub(crate) process: String,
    pub(crate) memory_kib: usize,
    /// Open files and connections.
    pub(crate) files: usize,
}
