//! The journal of a turn: one entry per provider call that was answered with tool calls. Together with the recorded
//! results it suffices to resume the turn, or to run it again (B3).

use contracts::tools;
use domain::Matched;
use sea_orm::TryGetableFromJson;
use serde::{Deserialize, Serialize};

use crate::providers::{Reasoning, Usage};

/// Limit of a model's reasoning, as JSON text, in the journal of one turn.
const REASONING_BYTES_MAX: usize = 256 * 1024;

/// The ordinal of a call that delivery answers itself. The tool-gateway waits for all earlier ordinals of a call, so an
/// ordinal that it never receives would block the calls after it.
pub const NO_PLACE: i32 = 0;

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Journal {
    pub rounds: Vec<Round>,
}

impl TryGetableFromJson for Journal {}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Round {
    pub response_id: Option<String>,
    /// The agent's interim text.
    pub text: String,
    /// The reasoning to send back with the results. Absent in rounds of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasoning: Vec<Reasoning>,
    pub calls: Vec<Call>,
    pub usage: Option<Usage>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The provider's id. Unique within its answer only.
    pub call_id: String,
    /// Our number: place among the turn's calls that are passed on, from 1; [`NO_PLACE`] for a call that is not.
    pub ordinal: i32,
    pub name: String,
    pub arguments: String,
    /// Delivery's own answer: the call was not passed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<String>,
    /// How a replay's call was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<Matched>,
}

impl Round {
    /// The calls that are requested while these have no result (`is_over`): the first one, since delivery requests each further
    /// call when the previous one has finished, so that a turn has one call in the stream at a time; and all external ones,
    /// which neither wait nor hold up (`tools::waits_for`).
    pub fn due(&self, is_over: impl Fn(&Call) -> bool) -> Vec<&Call> {
        let open: Vec<&Call> = self
            .calls
            .iter()
            .filter(|call| call.answered.is_none() && !is_over(call))
            .collect();
        let waits = |place: usize| {
            open[..place]
                .iter()
                .any(|earlier| tools::waits_for(&open[place].name, &earlier.name))
        };
        let due = (0..open.len()).filter(|place| !waits(*place));
        due.map(|place| open[place]).collect()
    }
}

/// The place that is noted as requested: that of the last one which others wait for, or else of the last one.
pub fn noted(due: &[&Call]) -> Option<i32> {
    let inner = due.iter().rfind(|call| !tools::is_external(&call.name));
    inner.or(due.last()).map(|call| call.ordinal)
}

impl Journal {
    pub fn last(&self) -> Option<&Round> {
        self.rounds.last()
    }

    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.rounds.iter().flat_map(|round| &round.calls)
    }

    /// Number of calls that were passed on.
    pub fn requested(&self) -> i32 {
        i32::try_from(self.calls().filter(|call| call.answered.is_none()).count()).expect("calls of a turn are limited")
    }

    /// The place of the last call that was passed on.
    pub fn last_ordinal(&self) -> i32 {
        self.calls().map(|call| call.ordinal).max().unwrap_or(NO_PLACE)
    }

    /// The reasoning of the next answer, or none where the journal has no room: a turn continues without it, with less
    /// context.
    pub fn room_for(&self, reasoning: Vec<Reasoning>) -> Vec<Reasoning> {
        let held = self.rounds.iter().flat_map(|round| &round.reasoning).chain(&reasoning);
        let bytes: usize = held.map(|reasoning| reasoning.item.len()).sum();
        if bytes > REASONING_BYTES_MAX {
            Vec::new()
        } else {
            reasoning
        }
    }

    /// The sum of the provider's counts in this turn so far.
    pub fn usage(&self) -> Option<Usage> {
        self.rounds.iter().filter_map(|round| round.usage).reduce(Usage::plus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_keeps_reasoning_up_to_its_limit() {
        let reasoning = |bytes: usize| {
            let item = "x".repeat(bytes);
            vec![Reasoning { calls_before: 0, item }]
        };
        let round = Round {
            response_id: None,
            text: String::new(),
            reasoning: reasoning(REASONING_BYTES_MAX - 10),
            calls: Vec::new(),
            usage: None,
        };
        let journal = Journal { rounds: vec![round] };
        assert_eq!(journal.room_for(reasoning(10)).len(), 1);
        assert_eq!(journal.room_for(reasoning(11)), []);
        assert_eq!(Journal::default().room_for(reasoning(REASONING_BYTES_MAX + 1)), []);
    }

    #[test]
    fn external_calls_are_requested_with_the_first_one() {
        let check = |names: &[&str], over: &[i32], expected: &[i32], expected_noted: Option<i32>| {
            let calls = (1..).zip(names).map(|(ordinal, name)| Call {
                call_id: format!("c-{ordinal}"),
                ordinal,
                name: (*name).to_owned(),
                arguments: "{}".to_owned(),
                answered: None,
                matched: None,
            });
            let round = Round {
                response_id: None,
                text: String::new(),
                reasoning: Vec::new(),
                calls: calls.collect(),
                usage: None,
            };
            let due = round.due(|call| over.contains(&call.ordinal));
            let ordinals: Vec<i32> = due.iter().map(|call| call.ordinal).collect();
            assert_eq!(
                (&ordinals[..], noted(&due)),
                (expected, expected_noted),
                "{names:?} {over:?}"
            );
        };
        let plain = ["task_history", "task_message", "task_message"];
        check(&plain, &[], &[1], Some(1));
        check(&plain, &[1], &[2], Some(2));
        check(&plain, &[1, 2, 3], &[], None);
        let mixed = ["ask_model", "task_history", "generate_media", "task_status"];
        check(&mixed, &[], &[1, 2, 3], Some(2));
        check(&mixed, &[2], &[1, 3], Some(3));
        // What may end the task waits for them, too.
        check(&mixed, &[2, 3], &[1], Some(1));
        check(&mixed, &[1, 2, 3], &[4], Some(4));
        check(&["ask_model", "task_message"], &[], &[1, 2], Some(2));
    }

    #[test]
    fn a_round_of_an_older_version_is_read() {
        let round = r#"{"response_id": null, "text": "", "calls": [], "usage": null}"#;
        let round: Round = serde_json::from_str(round).unwrap();
        assert_eq!(round.reasoning, []);
        let written = serde_json::to_value(&round).unwrap();
        assert!(written.get("reasoning").is_none(), "{written}");
    }
}
