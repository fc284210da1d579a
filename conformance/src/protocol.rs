//! The lines between the program and a driver: one request, one answer, each a JSON object on a line of its own. `README.md`
//! explains them for authors of drivers in any language; drivers in Rust use [`serve`]. A field without a value is null or absent.

use std::{collections::BTreeMap, fmt};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, stdin, stdout};

/// Version of the lines. A driver that does not know it refuses `hello`.
pub const PROTOCOL: u32 = 1;
/// Longest line in either direction.
pub const LINE_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// All verbs but `hello` and `crash` are about a session.
    pub session: Option<String>,
    /// Who does it.
    pub by: Option<Author>,
    #[serde(flatten)]
    pub verb: Verb,
}

impl Request {
    pub fn hello(agent_url: &str) -> Request {
        let (protocol, agent_url) = (PROTOCOL, agent_url.to_owned());
        let verb = Verb::Hello { protocol, agent_url };
        let (session, by) = (None, None);
        Request { session, by, verb }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub enum Verb {
    /// The first line. The service must send its model calls to `agent_url`, below which `/v1/responses` and
    /// `/v1/chat/completions` are served.
    Hello { protocol: u32, agent_url: String },
    /// Creates a session. Sessions of one `task` belong to different agents that work on the same task.
    Session { task: String, agent: String },
    /// Answered when the item has its place in the queue. A second request with the same `item` is a repetition.
    Send(Send),
    /// Changes a waiting item.
    Edit(Edit),
    /// Puts all waiting items in this order.
    Order {
        items: Vec<String>,
        revision: Option<String>,
    },
    /// Ends the turn in progress; with `turn`, only that one.
    Stop { then: Then, turn: Option<String> },
    /// Pauses the session.
    Hold { running: Running },
    /// Opens one gate.
    Resume { gate: Gate },
    /// Reads the queue.
    Queue,
    /// Reads the state of an item.
    Outcome { item: String },
    /// Kills without warning, and answers when the rest works again. `path` is what the service had put between `agent_url` and
    /// `/v1` in the call that is in progress: a driver that gives each replica its own path knows which one to kill.
    Crash { what: Victim, path: String },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Send {
    pub item: String,
    pub mode: String,
    pub text: String,
    /// `answer` for the service's own answer to a question of the agent.
    #[serde(rename = "type")]
    pub kind: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Edit {
    pub item: String,
    pub op: EditOp,
    /// The item's, for `promote` the queue's.
    pub revision: Option<String>,
    /// For `steer` and `inject`: only this turn.
    pub turn: Option<String>,
    /// For `replace`.
    pub text: Option<String>,
}

/// Words of the lines and of the cases: an enum whose variants are spelled as they are written.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal),* $(,)? })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub enum $name { $($(#[$of])* #[serde(rename = $word)] $variant),* }
        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
            pub fn parse(word: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|one| one.word() == word)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }
    )* };
}

pub(crate) use words;

words! {
    /// How a busy session takes an item.
    Mode { Followup = "followup", Collect = "collect", Steer = "steer", Inject = "inject" }
    EditOp { Replace = "replace", Withdraw = "withdraw", Promote = "promote", Steer = "steer", Inject = "inject" }
    /// What a driver can do.
    Op {
        Stop = "stop", Resume = "resume", Hold = "hold", Queue = "queue", Order = "order", Replace = "replace",
        Withdraw = "withdraw", Promote = "promote", Steer = "steer", Inject = "inject",
    }
    Feature {
        /// `crash` of the whole service.
        Restart = "restart",
        /// `crash` of one of two replicas.
        Replicas = "replicas",
        /// Edits are checked against revisions.
        Revision = "revision",
        /// The service tells authors apart.
        Authors = "authors",
    }
    /// What follows a stop.
    Then { Hold = "hold", Continue = "continue" }
    /// What a hold does to the turn in progress.
    Running { Finish = "finish", Stop = "stop" }
    Gate { Stopped = "stopped", Pause = "pause" }
    Victim { Service = "service", Replica = "replica" }
    ItemState {
        Queued = "queued", Running = "running", Delivered = "delivered", Cancelled = "cancelled", Failed = "failed",
    }
    StopState { Stopping = "stopping", Nothing = "nothing", Over = "over" }
    AuthorKind { Person = "person", Service = "service" }
}

impl ItemState {
    /// Whether it never changes again.
    pub fn is_outcome(self) -> bool {
        match self {
            ItemState::Queued | ItemState::Running => false,
            ItemState::Delivered | ItemState::Cancelled | ItemState::Failed => true,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Author {
    pub kind: AuthorKind,
    pub name: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Ok(Value),
    /// The request is never valid.
    Refused(Refusal),
    /// The request does not fit the present state.
    Conflict(Refusal),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub code: String,
    #[serde(default)]
    pub detail: String,
}

impl Answer {
    pub fn ok(value: impl Serialize) -> Answer {
        Answer::Ok(serde_json::to_value(value).expect("answers have text keys"))
    }

    /// Reads the value of an ok.
    pub fn try_map<T: Serialize>(self, read: impl FnOnce(Value) -> anyhow::Result<T>) -> anyhow::Result<Answer> {
        Ok(match self {
            Answer::Ok(value) => Answer::ok(read(value)?),
            refused => refused,
        })
    }

    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Answer::Ok(_) => None,
            Answer::Refused(refusal) | Answer::Conflict(refusal) => Some(refusal),
        }
    }

    /// `{"ok":{}}`
    pub fn done() -> Answer {
        Answer::Ok(Value::Object(serde_json::Map::new()))
    }

    pub fn refused(code: &str, detail: impl fmt::Display) -> Answer {
        Answer::Refused(Refusal::new(code, detail))
    }

    pub fn conflict(code: &str, detail: impl fmt::Display) -> Answer {
        Answer::Conflict(Refusal::new(code, detail))
    }
}

impl Refusal {
    fn new(code: &str, detail: impl fmt::Display) -> Refusal {
        let (code, detail) = (code.to_owned(), detail.to_string());
        Refusal { code, detail }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Ok(_) => f.write_str("ok"),
            Answer::Refused(Refusal { code, detail }) => write!(f, "refused {code}: {detail}"),
            Answer::Conflict(Refusal { code, detail }) => write!(f, "conflict {code}: {detail}"),
        }
    }
}

/// Answer to `hello`.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Hello {
    pub name: String,
    pub modes: Vec<Mode>,
    pub ops: Vec<Op>,
    pub features: Vec<Feature>,
    /// Cases that the service fails on purpose, and why.
    #[serde(default)]
    pub differs: BTreeMap<String, String>,
    /// A tool without effects. Without it, cases in which the model asks for a tool are not supported.
    pub tool: Option<Tool>,
    /// How many items fit into a queue. Without it, cases that fill a queue are not supported.
    pub queue_items_max: Option<usize>,
}

#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Tool {
    pub name: String,
    #[serde(default)]
    pub arguments: serde_json::Map<String, Value>,
}

/// Answer to `queue`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct QueueState {
    pub revision: Option<String>,
    pub gate: Option<String>,
    pub running: Option<RunningTurn>,
    /// The waiting items, in their order.
    pub items: Vec<QueueItem>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunningTurn {
    pub turn: String,
    pub items: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueueItem {
    pub item: String,
    pub revision: Option<String>,
}

/// Answer to `outcome`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub state: ItemState,
    #[serde(default)]
    pub reason: String,
}

/// Answer to `stop`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stopping {
    pub state: StopState,
}

/// Reads one line of at most [`LINE_BYTES_MAX`]. `None` at the end of the stream.
pub async fn line_read<T: DeserializeOwned>(reader: &mut (impl AsyncBufRead + Unpin)) -> anyhow::Result<Option<T>> {
    let mut line = Vec::new();
    let read = reader.take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await;
    if read.context("could not read a line")? == 0 {
        return Ok(None);
    }
    let is_whole = line.ends_with(b"\n");
    ensure!(is_whole, "a line is cut off, or longer than {LINE_BYTES_MAX} bytes");
    let excerpt = || String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
    let parsed = serde_json::from_slice(&line).with_context(|| format!("not a line of the protocol: {}", excerpt()))?;
    Ok(Some(parsed))
}

pub fn line_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("lines have text keys") + "\n"
}

/// Reads requests from standard input and writes the answers of `answer` to standard output, until the input ends.
pub async fn serve(mut answer: impl AsyncFnMut(Request) -> anyhow::Result<Answer>) -> anyhow::Result<()> {
    let (mut requests, mut answers) = (BufReader::new(stdin()), stdout());
    while let Some(request) = line_read(&mut requests).await? {
        let line = line_of(&answer(request).await?);
        answers.write_all(line.as_bytes()).await?;
        answers.flush().await?;
    }
    Ok(())
}
