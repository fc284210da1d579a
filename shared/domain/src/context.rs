//! The words of a turn's context: what a policy asks, what a turn used and why, when a generation is rotated, and what a
//! provider's thread has been told. A *thread* is what a provider keeps of earlier calls; threads of a generation are numbered
//! from 1. Pure: the plan itself is delivery's (`delivery/context/plan.rs`).

use std::{fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::{MessageId, string_enum::string_enum};

string_enum! {
    /// Where the context of an agent's turns comes from. `continue`: from the provider's thread, while it has one. `assembled`: from
    /// the record, in a new thread for each turn.
    ContextPolicy { Continue = "continue", Assembled = "assembled" }
}

string_enum! {
    /// In which turns the context of a task is part of the instructions: those of branches, or all that are about it.
    TaskContextLayer { Branches = "branches", Always = "always" }
}

string_enum! {
    /// The one source of a turn's context, as asked and as used. `fork`: the thread of the session that spawned a branch.
    ContextMode { Continue = "continue", Assembled = "assembled", Fork = "fork" }
}

impl From<ContextPolicy> for ContextMode {
    fn from(policy: ContextPolicy) -> ContextMode {
        match policy {
            ContextPolicy::Continue => ContextMode::Continue,
            ContextPolicy::Assembled => ContextMode::Assembled,
        }
    }
}

string_enum! {
    /// When a generation is closed and the next one opened, before a new turn. The first that holds.
    RotationRule {
        FailuresMax = "failures_max", TokensMax = "tokens_max", AgeHoursMax = "age_hours_max", ProfileChanged = "profile_changed"
    }
}

/// The limits of a generation. An absent limit has its default; null: none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Rotation {
    /// So many turns in a row failed, or have an unknown outcome.
    #[schemars(range(min = 1))]
    pub failures_max: Option<u32>,
    /// Tokens of its turns, as the provider counts.
    #[schemars(range(min = 1))]
    pub tokens_max: Option<u32>,
    /// Hours since it was opened.
    #[schemars(range(min = 1))]
    pub age_hours_max: Option<u32>,
    /// The instructions differ from those of its last turn.
    pub profile_changed: bool,
}

impl Default for Rotation {
    fn default() -> Rotation {
        Rotation {
            failures_max: Some(3),
            tokens_max: Some(1_000_000),
            age_hours_max: None,
            profile_changed: false,
        }
    }
}

/// Why a turn's thread is not the one before it, or why its context is not the one that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContextReason {
    /// The generation's first turn.
    First,
    /// The generation before was closed by a rule.
    Rotated(RotationRule),
    /// The provider has lost the thread.
    ThreadLost,
    /// The provider ran another session than the one of the key.
    RanElsewhere,
    /// The provider has lost the threads of two turns in a row.
    ThreadUnreliable,
    /// The provider keeps a thread as long as its process runs.
    ProviderThreadProcess,
    /// The provider keeps no thread.
    ProviderThreadNone,
    /// The provider cannot start a thread from another.
    ForkUnsupported,
    /// The parent has no thread to start from.
    ForkNoThread,
}

const ROTATED: &str = "rotated:";

impl ContextReason {
    const NAMED: [(ContextReason, &'static str); 8] = [
        (ContextReason::First, "first"),
        (ContextReason::ThreadLost, "thread_lost"),
        (ContextReason::RanElsewhere, "ran_elsewhere"),
        (ContextReason::ThreadUnreliable, "thread_unreliable"),
        (ContextReason::ProviderThreadProcess, "provider_thread_process"),
        (ContextReason::ProviderThreadNone, "provider_thread_none"),
        (ContextReason::ForkUnsupported, "fork_unsupported"),
        (ContextReason::ForkNoThread, "fork_no_thread"),
    ];
}

impl fmt::Display for ContextReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let ContextReason::Rotated(rule) = self {
            return write!(f, "{ROTATED}{rule}");
        }
        let named = ContextReason::NAMED.iter().find(|(reason, _)| reason == self);
        f.write_str(named.map_or(ROTATED, |(_, word)| word))
    }
}

impl FromStr for ContextReason {
    type Err = String;

    fn from_str(text: &str) -> Result<ContextReason, String> {
        if let Some(rule) = text.strip_prefix(ROTATED) {
            return rule.parse().map(ContextReason::Rotated);
        }
        let named = ContextReason::NAMED.iter().find(|(_, word)| *word == text);
        named
            .map(|(reason, _)| *reason)
            .ok_or_else(|| "not a reason of a turn's context".to_owned())
    }
}

impl Serialize for ContextReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContextReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for ContextReason {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ContextReason".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let named = ContextReason::NAMED.iter().map(|(_, word)| (*word).to_owned());
        let rotated = RotationRule::ALL.iter().map(|rule| format!("{ROTATED}{rule}"));
        json_schema!({"enum": named.chain(rotated).collect::<Vec<String>>()})
    }
}

/// Where a turn's context came from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TurnContext {
    pub asked: ContextMode,
    pub used: ContextMode,
    /// Null: the turn goes on in the thread of the turn before, as asked, or was assembled, as asked.
    #[serde(default)]
    pub reason: Option<ContextReason>,
    /// The number of the turn's thread in its generation, from 1.
    pub thread: i32,
    /// The response that its first call goes on from, where the provider finds a thread by it.
    #[serde(default)]
    pub from: Option<String>,
    /// SHA-256 of what a branch's parent knew when it made the branch, in hexadecimal.
    #[serde(default)]
    pub base_sha256: Option<String>,
    /// The provider lost the thread during the turn, after so many answers with tool calls: the turn went on in this one.
    #[serde(default)]
    pub lost_after: Option<u32>,
    /// An answer named another response than the one that it was to go on from.
    #[serde(default)]
    pub unconfirmed: bool,
}

impl TurnContext {
    /// Whether the turn is the first of its thread.
    pub fn is_new(&self) -> bool {
        self.reason.is_some() || self.used == ContextMode::Assembled
    }

    /// Whether the calls of the turn name no response of the turn: its provider has lost some.
    pub fn names_none(&self) -> bool {
        self.lost_after.is_some() || self.reason == Some(ContextReason::ThreadUnreliable)
    }

    /// Whether the prompt holds the past: the entries of turns before it.
    pub fn is_assembled(&self) -> bool {
        let is_new = match self.reason {
            Some(ContextReason::First) | None => false,
            Some(
                ContextReason::Rotated(_)
                | ContextReason::ThreadLost
                | ContextReason::RanElsewhere
                | ContextReason::ThreadUnreliable
                | ContextReason::ProviderThreadProcess
                | ContextReason::ProviderThreadNone
                | ContextReason::ForkUnsupported
                | ContextReason::ForkNoThread,
            ) => true,
        };
        is_new || self.used == ContextMode::Assembled
    }
}

/// What a thread has been told besides the items of its turns. Stored with its session.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// The messages of the task's thread that its prompts have shown or were about, and its turns' replies. First those that the next
    /// prompt could show.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "packed")]
    pub ids: Vec<MessageId>,
    /// The texts that go along when they have changed, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "packed")]
    pub texts: Vec<ToldText>,
    /// The provider whose thread it is; none: its provider keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// When its last answered turn began ([`Told::moment`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<i64>,
    /// Why the generation before was closed, until the provider has answered in this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated: Option<Rotated>,
    /// Its generation had another thread before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_later: bool,
}

/// Why a generation was closed by a rule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rotated {
    pub rule: RotationRule,
    /// With its figures, in a few words.
    pub because: String,
}

/// So many turns in a row that find their thread gone make the threads of a generation unreliable.
pub const THREADS_LOST_MAX: i32 = 2;

/// Texts that are remembered: of the tasks of an agent with one session for all of them, and the account's briefing.
const TEXTS_MAX: usize = 4;

impl Told {
    /// A moment in milliseconds since 1970.
    pub fn moment(at: OffsetDateTime) -> i64 {
        i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or_default()
    }

    /// Adds a text; an older one of the same goes. `false`: the thread has it, the newest of what it is of.
    pub fn tell(&mut self, of: &str, text: &str) -> bool {
        let new = ToldText::new(of, text);
        if self.texts.contains(&new) {
            return false;
        }
        self.texts.retain(|told| told.of != new.of);
        self.texts.insert(0, new);
        self.texts.truncate(TEXTS_MAX);
        true
    }

    /// Forgets the texts of these.
    pub fn forget(&mut self, of: &[String]) {
        let gone: Vec<[u8; 4]> = of.iter().map(|of| ToldText::new(of, "").of).collect();
        self.texts.retain(|told| !gone.contains(&told.of));
    }

    /// Puts messages first; of all, the first `max` are kept.
    pub fn show(&mut self, mut ids: Vec<MessageId>, max: usize) {
        self.ids.retain(|id| !ids.contains(id));
        ids.append(&mut self.ids);
        ids.truncate(max);
        self.ids = ids;
    }
}

/// A text as it is compared: 4 bytes of the SHA-256 of what it is of, and 16 bytes of the SHA-256 of both. Members of an account write
/// these texts: two texts with the same short hash are found within seconds. Older versions stored 8 bytes, which read as a text that
/// was not told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToldText {
    of: [u8; 4],
    text: [u8; 16],
}

impl ToldText {
    fn new(of: &str, text: &str) -> ToldText {
        let both = format!("{of}\n{text}");
        ToldText {
            of: first(of),
            text: first(&both),
        }
    }
}

/// The first bytes of the SHA-256 of a text.
fn first<const N: usize>(text: &str) -> [u8; N] {
    *Sha256::digest(text.as_bytes())
        .first_chunk()
        .expect("a SHA-256 has 32 bytes")
}

/// Values as one text of hexadecimal digits: the column is written with every turn.
mod packed {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use uuid::Uuid;

    use super::ToldText;
    use crate::MessageId;

    pub(super) trait Packed: Sized {
        const BYTES: usize;
        fn pack(&self) -> Vec<u8>;
        fn unpack(bytes: &[u8]) -> Self;
    }

    impl Packed for MessageId {
        const BYTES: usize = 16;
        fn pack(&self) -> Vec<u8> {
            self.uuid().as_bytes().to_vec()
        }
        fn unpack(bytes: &[u8]) -> Self {
            MessageId(Uuid::from_bytes(bytes.try_into().unwrap_or_default()))
        }
    }

    impl Packed for ToldText {
        const BYTES: usize = 20;
        fn pack(&self) -> Vec<u8> {
            [&self.of[..], &self.text].concat()
        }
        fn unpack(bytes: &[u8]) -> Self {
            let (of, text) = bytes.split_at_checked(4).unwrap_or_default();
            ToldText {
                of: of.try_into().unwrap_or_default(),
                text: text.try_into().unwrap_or_default(),
            }
        }
    }

    pub(super) fn serialize<T: Packed, S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = values.iter().flat_map(Packed::pack).collect();
        serializer.serialize_str(&hex::encode(bytes))
    }

    pub(super) fn deserialize<'de, T: Packed, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
        let bytes = hex::decode(String::deserialize(deserializer)?).map_err(D::Error::custom)?;
        Ok(bytes.chunks_exact(T::BYTES).map(T::unpack).collect())
    }
}

/// Columns of these types are JSON.
#[cfg(feature = "columns")]
mod columns {
    use sea_orm::TryGetableFromJson;

    use super::{Rotation, Told, TurnContext};

    impl TryGetableFromJson for Told {}
    impl TryGetableFromJson for Rotation {}
    impl TryGetableFromJson for TurnContext {}
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn has(told: &Told, of: &str, text: &str) -> bool {
        !told.clone().tell(of, text)
    }

    #[test]
    fn every_reason_reads_back() {
        let named = ContextReason::NAMED.iter().map(|(reason, _)| *reason);
        let rotated = RotationRule::ALL.iter().copied().map(ContextReason::Rotated);
        for reason in named.chain(rotated) {
            assert_eq!(reason.to_string().parse(), Ok(reason));
        }
        assert_eq!(
            ContextReason::Rotated(RotationRule::TokensMax).to_string(),
            "rotated:tokens_max"
        );
        for none in ["", "rotated:", "rotated:never", "lost"] {
            assert!(none.parse::<ContextReason>().is_err(), "{none}");
        }
    }

    #[test]
    fn an_absent_limit_has_its_default_and_null_is_none() {
        let read = |json: serde_json::Value| serde_json::from_value::<Rotation>(json).unwrap();
        assert_eq!(read(json!({})), Rotation::default());
        assert_eq!(read(json!({"tokens_max": null})).tokens_max, None);
        assert_eq!(read(json!({"failures_max": 5})).failures_max, Some(5));
        // A later version may store more.
        assert_eq!(read(json!({"turns_max": 5})), Rotation::default());
    }

    #[test]
    fn a_context_of_another_version_is_read() {
        let stored = json!({"asked": "continue", "used": "continue", "thread": 1, "more": 7});
        let context: TurnContext = serde_json::from_value(stored).unwrap();
        assert_eq!((context.thread, context.reason), (1, None));
        assert!(!context.is_assembled());
    }

    #[test]
    fn what_a_thread_was_told_is_short() {
        let mut told = Told {
            provider: Some("default".to_owned()),
            at: Some(1_800_000_000_000),
            ..Told::default()
        };
        told.show((0..6).map(|n| MessageId(uuid::Uuid::from_u128(n))).collect(), 6);
        told.tell("task/t-1", "Mend it.");
        let stored = serde_json::to_string(&told).unwrap();
        assert!(stored.len() <= 307, "{}: {stored}", stored.len());
        assert_eq!(serde_json::from_str::<Told>(&stored).unwrap(), told);
        assert_eq!(serde_json::from_str::<Told>("{}").unwrap(), Told::default());
        assert!(serde_json::from_str::<Told>(r#"{"ids": "no"}"#).is_err());
    }

    #[test]
    fn a_text_is_told_again_when_it_changes_and_when_it_changes_back() {
        let mut told = Told::default();
        for text in ["a", "b", "a"] {
            assert!(!has(&told, "task/t-1", text));
            told.tell("task/t-1", text);
            assert!(has(&told, "task/t-1", text));
        }
        told.tell("task/t-2", "a");
        assert!(has(&told, "task/t-1", "a"), "of another task");
        for n in 3..9 {
            told.tell(&format!("task/t-{n}"), "a");
        }
        assert_eq!(told.texts.len(), TEXTS_MAX);
        assert!(!has(&told, "task/t-1", "a"));
    }

    /// Of the first hash, 32 bits were kept: these two had the same.
    #[test]
    fn texts_with_the_same_short_hash_differ() {
        let [one, other] = ["Mend it. 3985", "Mend it. 7169"];
        assert_eq!(first::<4>(one), first::<4>(other));
        let mut told = Told::default();
        told.tell("task/t-1", one);
        assert!(has(&told, "task/t-1", one) && !has(&told, "task/t-1", other));
        // Nor does the short hash of what a text is of decide.
        told.tell(one, "a");
        assert!(!has(&told, other, "a"));
    }

    #[test]
    fn a_text_that_an_older_version_stored_was_not_told() {
        // One text, and four: 8 bytes each.
        for texts in [1, 4] {
            let stored = json!({"texts": "00112233deadbeef".repeat(texts), "provider": "default"});
            let mut told: Told = serde_json::from_value(stored).unwrap();
            assert!(!has(&told, "task/t-1", "Mend it."));
            assert_eq!(told.provider.as_deref(), Some("default"));
            told.tell("task/t-1", "Mend it.");
            let stored = serde_json::to_string(&told).unwrap();
            let read: Told = serde_json::from_str(&stored).unwrap();
            assert!(has(&read, "task/t-1", "Mend it."));
        }
    }

    #[test]
    fn the_newest_messages_are_remembered() {
        let id = |n| MessageId(uuid::Uuid::from_u128(n));
        let mut told = Told::default();
        told.show(vec![id(2), id(1)], 3);
        told.show(vec![id(4), id(2)], 3);
        assert_eq!(told.ids, [id(4), id(2), id(1)]);
        told.show(vec![id(5)], 3);
        assert_eq!(told.ids, [id(5), id(4), id(2)]);
    }
}
