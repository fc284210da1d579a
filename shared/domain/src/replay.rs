//! Replays: a turn that is run again without effects, in a session of its own. Its model gets what the source turn's model got, or
//! other instructions; its tool calls are answered from the source turn's record. Pure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ContextMode, NotificationId, ReplayId, TurnContext, TurnState, string_enum::string_enum};

string_enum! {
    ReplayState {
        /// Its turn has not begun.
        Queued = "queued",
        Running = "running",
        Finished = "finished",
        /// Its turn ended without a reply, or did not begin.
        Failed = "failed",
    }
}

impl ReplayState {
    /// `turn`: its newest. `is_closed`: its session has ended, which the removal of its agent does before the turn has ended. Without a
    /// turn it is queued until then.
    pub fn of(turn: Option<TurnState>, is_closed: bool) -> ReplayState {
        match (turn, is_closed) {
            (Some(TurnState::Finished), _) => ReplayState::Finished,
            (Some(state), _) if !state.is_over() => ReplayState::Running,
            (_, true) => ReplayState::Failed,
            // A turn that was interrupted is tried again.
            (_, false) => ReplayState::Queued,
        }
    }
}

string_enum! {
    /// How a tool call of a replay was answered.
    Matched {
        /// By the call of the source turn in the same place, with the same name and equal arguments.
        Exact = "exact",
        /// By the first such call in another place that had answered none.
        Moved = "moved",
        /// The source turn had no such call left.
        None = "none",
    }
}

string_enum! {
    /// What a replay's model knew of the turns before.
    ReplayHistory {
        /// Nothing, as the source turn's: its thread was new.
        None = "none",
        /// The entries that the source turn's prompt was assembled from.
        Recorded = "recorded",
        /// The source turn went on in a thread: its past, assembled from the record.
        Reassembled = "reassembled",
        /// The provider's thread, from the response that the source turn went on from.
        Forked = "forked",
    }
}

impl ReplayHistory {
    /// Of the contexts of the source turn and of the replay's.
    pub fn of(source: &TurnContext, replay: &TurnContext) -> ReplayHistory {
        match (replay.is_assembled(), source.is_assembled()) {
            (true, true) => ReplayHistory::Recorded,
            (true, false) => ReplayHistory::Reassembled,
            (false, _) if replay.used == ContextMode::Fork => ReplayHistory::Forked,
            (false, _) => ReplayHistory::None,
        }
    }
}

/// What a replay changes. Without any of it, the model's own spread is seen.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaySpec {
    /// The provider to ask; absent: the source turn's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ReplayProfile>,
}

/// Other instructions than the source turn's: built again from the template, or a text.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayProfile {
    /// The template's version: this program has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// In the place of the agent's role: up to 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The whole text, up to 64 KiB; with it, neither of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

#[cfg(feature = "columns")]
impl sea_orm::TryGetableFromJson for ReplaySpec {}

pub const ROLE_BYTES_MAX: usize = 16 * 1024;
pub const INSTRUCTIONS_BYTES_MAX: usize = 192 * 1024;
/// Bytes of a provider's name.
pub const PROVIDER_BYTES_MAX: usize = 64;

impl ReplayProfile {
    /// What is wrong with it: the field, and what is allowed. `version`: this program's.
    pub fn refused(&self, version: &str) -> Option<(&'static str, String)> {
        let is_text = |text: &Option<String>, max: usize| {
            let is_good = |text: &String| !text.trim().is_empty() && text.len() <= max;
            text.as_ref().is_none_or(is_good)
        };
        if self.version.as_deref().is_some_and(|asked| asked != version) {
            return Some((
                "version",
                format!("only template {version}, which is this program's own, can be built"),
            ));
        }
        if !is_text(&self.role, ROLE_BYTES_MAX) {
            return Some(("role", format!("1-{ROLE_BYTES_MAX} bytes that are not blank")));
        }
        if !is_text(&self.instructions, INSTRUCTIONS_BYTES_MAX) {
            return Some((
                "instructions",
                format!("1-{INSTRUCTIONS_BYTES_MAX} bytes that are not blank"),
            ));
        }
        let others = self.version.is_some() || self.role.is_some();
        (self.instructions.is_some() && others)
            .then(|| ("instructions", "the whole text; leave out version and role".to_owned()))
    }
}

/// The type of a replay's only item.
pub const REPLAY: &str = "replay";

/// The id of that item.
pub fn replay_item(replay: ReplayId) -> NotificationId {
    NotificationId::parse(&format!("replay:{replay}")).expect("a word and a UUID are printable and short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_known_by_the_two_contexts() {
        let context = |used, reason: Option<&str>| TurnContext {
            asked: ContextMode::Continue,
            used,
            reason: reason.map(|reason| reason.parse().unwrap()),
            thread: 1,
            from: None,
            base_sha256: None,
            lost_after: None,
            unconfirmed: false,
        };
        use ContextMode::{Assembled, Continue, Fork};
        let (went_on, first) = (context(Continue, None), context(Continue, Some("first")));
        let assembled = context(Assembled, None);
        let check = |source: &TurnContext, replay: &TurnContext, expected| {
            assert_eq!(ReplayHistory::of(source, replay), expected);
        };
        check(&first, &first, ReplayHistory::None);
        check(&assembled, &assembled, ReplayHistory::Recorded);
        check(&went_on, &assembled, ReplayHistory::Reassembled);
        check(&went_on, &context(Fork, None), ReplayHistory::Forked);
        // The provider had lost it.
        check(
            &went_on,
            &context(Fork, Some("thread_lost")),
            ReplayHistory::Reassembled,
        );
    }

    #[test]
    fn a_replay_is_as_far_as_its_turn() {
        use ReplayState::{Failed, Finished, Queued, Running};
        let check = |turn, is_closed, expected| assert_eq!(ReplayState::of(turn, is_closed), expected, "{turn:?}");
        check(None, false, Queued);
        check(None, true, Failed);
        check(Some(TurnState::Calling), false, Running);
        check(Some(TurnState::AwaitingTools), false, Running);
        check(Some(TurnState::Calling), true, Running);
        check(Some(TurnState::Finished), false, Finished);
        check(Some(TurnState::Finished), true, Finished);
        check(Some(TurnState::Failed), true, Failed);
        check(Some(TurnState::Unknown), false, Queued);
    }

    #[test]
    fn overrides_have_limits() {
        let check = |profile: ReplayProfile, expected: Option<&str>| {
            let refused = profile.refused("4");
            assert_eq!(refused.as_ref().map(|(field, _)| *field), expected, "{profile:?}");
        };
        let text = |bytes: usize| Some("x".repeat(bytes));
        let none = ReplayProfile::default;
        check(none(), None);
        check(
            ReplayProfile {
                version: text(1),
                ..none()
            },
            Some("version"),
        );
        let four = Some("4".to_owned());
        check(
            ReplayProfile {
                version: four.clone(),
                role: text(ROLE_BYTES_MAX),
                ..none()
            },
            None,
        );
        check(
            ReplayProfile {
                role: text(ROLE_BYTES_MAX + 1),
                ..none()
            },
            Some("role"),
        );
        check(
            ReplayProfile {
                role: Some(" ".to_owned()),
                ..none()
            },
            Some("role"),
        );
        check(
            ReplayProfile {
                instructions: text(INSTRUCTIONS_BYTES_MAX),
                ..none()
            },
            None,
        );
        check(
            ReplayProfile {
                instructions: text(INSTRUCTIONS_BYTES_MAX + 1),
                ..none()
            },
            Some("instructions"),
        );
        check(
            ReplayProfile {
                version: four,
                instructions: text(1),
                ..none()
            },
            Some("instructions"),
        );
    }
}
