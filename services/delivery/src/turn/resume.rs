//! Decides the due step of a turn in progress that a replica has just claimed. Pure.

use domain::{TurnContext, TurnState};
use prompt::RESULT_MISSING;
use storage::session::items_join::Notes;
use time::OffsetDateTime;

use crate::{
    context::past::sends_whole,
    providers::{CallInput, Continuation, Effects, FunctionCall, InputItem, ToolOutput},
    store::{
        claim::ToolResult,
        journal::{Call, Journal, Round},
    },
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Send the due call, for the first time or again.
    Send,
    /// A call may have been running when its holder died or its connection broke: check the provider's record first.
    LookUp,
    /// A tool's result has ended the turn: its reply is known, and no call follows.
    End,
    /// The session closed, or the turn was stopped, while no call was in flight: the turn ends here.
    Abort,
}

/// `ended_by_tool`: a call of the last answer, or one over HTTP, ended the turn, whatever came later. `closed`: the session's
/// generation has ended. A turn with tool results to hand back may still run to its end; one that would have to begin again may not.
/// `stopping`: the turn is to end; a call of an agent with effects of its own may still run, which its provider knows.
pub fn due(state: TurnState, ended_by_tool: bool, closed: bool, stopping: bool, effects: Effects) -> Due {
    if ended_by_tool && state == TurnState::AwaitingTools {
        return Due::End;
    }
    if stopping && (state != TurnState::Calling || effects == Effects::GatewayOnly) {
        return Due::Abort;
    }
    match (state, closed, effects) {
        (TurnState::Started, true, _) => Due::Abort,
        (TurnState::Started, false, _) | (TurnState::AwaitingTools, _, _) => Due::Send,
        // The agent's effects go through our tools, which answer a repeated call with the first result.
        (TurnState::Calling, false, Effects::GatewayOnly) => Due::Send,
        (TurnState::Calling, true, Effects::GatewayOnly) => Due::Abort,
        (TurnState::Calling, _, Effects::Own) => Due::LookUp,
        // An ended turn is not resumed. Its session no longer refers to it, so this state is not expected.
        (TurnState::Finished | TurnState::Failed | TurnState::Aborted | TurnState::Unknown, _, _) => Due::Abort,
    }
}

/// Since when the outcome of the due call is unknown. A call that is sent now is not lost, however long ago the turn's
/// last call was sent.
pub fn lost_since(
    due: Due,
    lost_at: Option<OffsetDateTime>,
    sent_at: Option<OffsetDateTime>,
) -> Option<OffsetDateTime> {
    match due {
        Due::LookUp => lost_at.or(sent_at),
        Due::Send | Due::End | Due::Abort => None,
    }
}

/// What a turn's calls are made of.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// The instructions, where they head the first item.
    pub head: Option<&'a str>,
    /// Earlier turns, if the due call holds them.
    pub past: &'a [InputItem],
    pub input: &'a str,
    pub context: Option<&'a TurnContext>,
    pub journal: &'a Journal,
    pub results: &'a [ToolResult],
    pub notes: &'a Notes,
    pub found_by: Continuation,
}

/// The input of the due call, and the answer from which it goes on: the turn's own input, or the results of the calls in the last answer,
/// with the note of that call; or the whole turn, where the thread does not have it ([`sends_whole`]).
pub fn call_input(contents: &Contents<'_>) -> (CallInput, Option<String>) {
    let &Contents {
        journal,
        results,
        notes,
        ..
    } = contents;
    let output_of = |call: &Call| ToolOutput {
        call_id: call.call_id.clone(),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
        output: call.answered.clone().unwrap_or_else(|| {
            results
                .iter()
                .find(|result| result.ordinal == call.ordinal)
                .map_or_else(|| RESULT_MISSING.to_owned(), |result| result.result.clone())
        }),
    };
    let from = contents.context.and_then(|context| context.from.clone());
    match journal.last() {
        Some(last) if !sends_whole(contents.context, journal, contents.found_by) => {
            let results = last.calls.iter().map(output_of).collect();
            let note = notes.text(journal.rounds.len());
            let after = last
                .response_id
                .clone()
                .filter(|_| contents.found_by == Continuation::Response);
            (CallInput::ToolResults { results, note }, after)
        }
        None if contents.past.is_empty() => (CallInput::Message(headed(contents.head, contents.input)), from),
        Some(_) | None => {
            let mut items = contents.past.to_vec();
            items.push(InputItem::User(contents.input.to_owned()));
            for (n, round) in (1..).zip(&journal.rounds) {
                items.extend(answer(round));
                items.extend(round.calls.iter().map(|call| InputItem::Result(output_of(call))));
                items.extend(notes.text(n).map(InputItem::User));
            }
            if let Some(InputItem::User(first)) = items.first_mut() {
                *first = headed(contents.head, first);
            }
            (CallInput::Conversation(items), from)
        }
    }
}

/// A text behind the instructions.
fn headed(head: Option<&str>, text: &str) -> String {
    head.map_or_else(|| text.to_owned(), |head| format!("{head}\n{text}"))
}

/// The model's output in one round, in its order: its text stands before its calls.
fn answer(round: &Round) -> Vec<InputItem> {
    let thought_before = |calls: usize| {
        let reasoning = round
            .reasoning
            .iter()
            .filter(move |reasoning| reasoning.calls_before == calls);
        reasoning.map(|reasoning| InputItem::Reasoning(reasoning.item.clone()))
    };
    let mut items: Vec<InputItem> = thought_before(0).collect();
    if !round.text.is_empty() {
        items.push(InputItem::Assistant(round.text.clone()));
    }
    for (place, call) in round.calls.iter().enumerate() {
        if place > 0 {
            items.extend(thought_before(place));
        }
        items.push(InputItem::Call(FunctionCall {
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        }));
    }
    items
}

#[cfg(test)]
mod tests {
    use storage::session::items_join::Note;

    use super::*;
    use crate::providers::Reasoning;

    #[test]
    fn says_what_is_due() {
        let check = |state, closed, effects, expected| {
            assert_eq!(
                due(state, false, closed, false, effects),
                expected,
                "{state} {closed} {effects:?}"
            );
        };
        for state in [TurnState::Started, TurnState::AwaitingTools, TurnState::Calling] {
            for closed in [false, true] {
                assert_eq!(
                    due(state, false, closed, true, Effects::GatewayOnly),
                    Due::Abort,
                    "{state} {closed}"
                );
            }
        }
        assert_eq!(
            due(TurnState::AwaitingTools, false, false, true, Effects::Own),
            Due::Abort
        );
        assert_eq!(due(TurnState::Calling, false, false, true, Effects::Own), Due::LookUp);
        for (closed, stopping) in [(false, false), (false, true), (true, false)] {
            assert_eq!(
                due(TurnState::AwaitingTools, true, closed, stopping, Effects::Own),
                Due::End
            );
        }
        use Effects::{GatewayOnly, Own};
        check(TurnState::Started, false, Own, Due::Send);
        check(TurnState::Started, true, Own, Due::Abort);
        check(TurnState::AwaitingTools, false, Own, Due::Send);
        check(TurnState::AwaitingTools, true, GatewayOnly, Due::Send);
        check(TurnState::Calling, false, GatewayOnly, Due::Send);
        check(TurnState::Calling, true, GatewayOnly, Due::Abort);
        check(TurnState::Calling, false, Own, Due::LookUp);
        check(TurnState::Calling, true, Own, Due::LookUp);
    }

    #[test]
    fn only_a_call_that_is_looked_up_is_lost() {
        let (sent, lost) = (
            OffsetDateTime::UNIX_EPOCH,
            OffsetDateTime::UNIX_EPOCH + time::Duration::SECOND,
        );
        assert_eq!(lost_since(Due::LookUp, None, Some(sent)), Some(sent));
        assert_eq!(lost_since(Due::LookUp, Some(lost), Some(sent)), Some(lost));
        assert_eq!(lost_since(Due::Send, None, Some(sent)), None);
        assert_eq!(lost_since(Due::Send, Some(lost), Some(sent)), None);
    }

    fn call(id: &str, ordinal: i32, answered: Option<&str>) -> Call {
        Call {
            call_id: id.to_owned(),
            ordinal,
            name: "task_history".to_owned(),
            arguments: "{}".to_owned(),
            answered: answered.map(str::to_owned),
            matched: None,
        }
    }

    fn round(response_id: Option<&str>, text: &str, reasoning: &[(usize, &str)], calls: Vec<Call>) -> Round {
        let reasoning = reasoning.iter().map(|&(calls_before, item)| Reasoning {
            calls_before,
            item: item.to_owned(),
        });
        Round {
            response_id: response_id.map(str::to_owned),
            text: text.to_owned(),
            reasoning: reasoning.collect(),
            calls,
            usage: None,
        }
    }

    fn result(ordinal: i32, result: &str) -> ToolResult {
        ToolResult {
            ordinal,
            result: result.to_owned(),
            ends_with: None,
        }
    }

    fn contents<'a>(
        journal: &'a Journal,
        results: &'a [ToolResult],
        notes: &'a Notes,
        found_by: Continuation,
    ) -> Contents<'a> {
        Contents {
            head: None,
            past: &[],
            input: "hello",
            context: None,
            journal,
            results,
            notes,
            found_by,
        }
    }

    /// A line for each item, as the model reads them.
    fn lines((input, after): &(CallInput, Option<String>)) -> Vec<String> {
        let output = |output: &ToolOutput| format!("{} = {}", output.call_id, output.output);
        match input {
            CallInput::Message(text) => vec![format!("message {text}")],
            CallInput::ToolResults { results, note } => {
                let after = format!("after {}", after.as_deref().unwrap_or("-"));
                let note = note.iter().map(|note| format!("note {note}"));
                [after]
                    .into_iter()
                    .chain(results.iter().map(output))
                    .chain(note)
                    .collect()
            }
            CallInput::Conversation(items) => {
                let line = |item: &InputItem| match item {
                    InputItem::User(text) => format!("user {text}"),
                    InputItem::Assistant(text) => format!("agent {text}"),
                    InputItem::Reasoning(item) => format!("thought {item}"),
                    InputItem::Call(call) => format!("call {}", call.call_id),
                    InputItem::Result(result) => output(result),
                };
                items.iter().map(line).collect()
            }
        }
    }

    #[test]
    fn results_go_back_in_the_order_of_the_calls() {
        let calls = vec![call("b", 1, None), call("a", 2, Some("too large")), call("c", 3, None)];
        let journal = Journal {
            rounds: vec![round(None, "", &[], calls)],
        };
        let input = call_input(&contents(
            &journal,
            &[result(1, "one")],
            &Notes::default(),
            Continuation::Key,
        ));
        let missing = format!("c = {RESULT_MISSING}");
        assert_eq!(lines(&input), ["after -", "b = one", "a = too large", &missing]);
    }

    #[test]
    fn every_further_call_says_what_came_before_it_as_its_provider_needs_it() {
        let noted = |round: usize, text: &str| Note {
            round,
            text: text.to_owned(),
            notification_ids: Vec::new(),
        };
        let notes = [
            Notes::default(),
            Notes(vec![noted(1, "n1"), noted(2, "n2"), noted(2, "n3")]),
        ];
        let check_with = |notes: &Notes, rounds: Vec<Round>, continuation, expected: &[&str]| {
            let results = [result(1, "one"), result(2, "two"), result(3, "three")];
            let input = call_input(&contents(&Journal { rounds }, &results, notes, continuation));
            assert_eq!(lines(&input), expected, "{continuation:?}");
        };
        let check = |rounds, continuation, expected: &[&str]| check_with(&notes[0], rounds, continuation, expected);
        use Continuation::{Key, Response, Whole};
        let first = || {
            let reasoning = [(0, "r1"), (1, "r2")];
            round(
                Some("resp_1"),
                "I look.",
                &reasoning,
                vec![call("a", 1, None), call("b", 2, None)],
            )
        };
        let second = |id| round(id, "", &[], vec![call("c", 3, None)]);
        for continuation in [Key, Response, Whole] {
            check(vec![], continuation, &["message hello"]);
        }
        let both = || vec![first(), second(Some("resp_2"))];
        check(both(), Key, &["after -", "c = three"]);
        check(both(), Response, &["after resp_2", "c = three"]);
        let whole = [
            "user hello",
            "thought r1",
            "agent I look.",
            "call a",
            "thought r2",
            "call b",
            "a = one",
            "b = two",
            "call c",
            "c = three",
        ];
        check(both(), Whole, &whole);
        check(vec![first(), second(None)], Response, &whole);
        // What came beside the results of a round stays there.
        check_with(&notes[1], both(), Key, &["after -", "c = three", "note n2\nn3"]);
        let with_notes = ["user n1", "user n2\nn3"];
        let noted = [&whole[..8], &with_notes[..1], &whole[8..], &with_notes[1..]].concat();
        check_with(&notes[1], both(), Whole, &noted);
    }

    #[test]
    fn a_new_thread_is_sent_the_past_and_the_whole_turn_once() {
        let context = TurnContext {
            asked: domain::ContextMode::Continue,
            used: domain::ContextMode::Continue,
            reason: Some(domain::ContextReason::ThreadLost),
            thread: 2,
            from: None,
            base_sha256: None,
            lost_after: Some(1),
            unconfirmed: false,
        };
        let past = [
            InputItem::User("before".to_owned()),
            InputItem::Assistant("done".to_owned()),
        ];
        let notes = Notes::default();
        let results = [result(1, "one"), result(2, "two")];
        let check = |rounds: Vec<Round>, head, expected: &[&str]| {
            let journal = Journal { rounds };
            let input = call_input(&Contents {
                head,
                past: &past,
                context: Some(&context),
                ..contents(&journal, &results, &notes, Continuation::Key)
            });
            assert_eq!(lines(&input), expected);
        };
        let first = || round(None, "", &[], vec![call("a", 1, None)]);
        let whole = ["user before", "agent done", "user hello", "call a", "a = one"];
        check(vec![first()], None, &whole);
        let headed = [&["user Be good.\nbefore"], &whole[1..]].concat();
        check(vec![first()], Some("Be good."), &headed);
        let second = round(None, "", &[], vec![call("b", 2, None)]);
        check(vec![first(), second], Some("Be good."), &["after -", "b = two"]);
    }

    #[test]
    fn a_first_call_goes_on_from_the_last_reply() {
        let context = TurnContext {
            asked: domain::ContextMode::Continue,
            used: domain::ContextMode::Continue,
            reason: None,
            thread: 1,
            from: Some("resp_0".to_owned()),
            base_sha256: None,
            lost_after: None,
            unconfirmed: false,
        };
        let notes = Notes::default();
        let check = |rounds: Vec<Round>, expected: Option<&str>| {
            let journal = Journal { rounds };
            let of = Contents {
                context: Some(&context),
                ..contents(&journal, &[], &notes, Continuation::Response)
            };
            assert_eq!(call_input(&of).1.as_deref(), expected);
        };
        check(vec![], Some("resp_0"));
        check(
            vec![round(Some("resp_1"), "", &[], vec![call("a", 1, None)])],
            Some("resp_1"),
        );
        // After an answer without an id, the whole turn goes on from there.
        check(vec![round(None, "", &[], vec![call("a", 1, None)])], Some("resp_0"));
    }
}
