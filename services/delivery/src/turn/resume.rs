//! What is due for a turn in progress that a replica has just claimed. Pure.

use domain::TurnState;
use time::OffsetDateTime;

use super::journal::{Journal, RESULT_MISSING};
use crate::providers::{CallInput, Effects, FunctionCall, InputItem, Thread, ToolOutput};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// The call that is due, for the first time or again, is sent.
    Send,
    /// A call may have been running when its holder died, or its connection broke: ask the provider's record first.
    LookUp,
    /// The session closed while nothing was in flight: the turn ends here.
    Abort,
}

/// `closed`: the session's generation has ended. A turn with tool results to hand back may still run to its end; one
/// that would have to begin again may not.
pub fn due(state: TurnState, closed: bool, effects: Effects) -> Due {
    match (state, closed, effects) {
        (TurnState::Started, true, _) => Due::Abort,
        (TurnState::Started, false, _) | (TurnState::AwaitingTools, _, _) => Due::Send,
        // What the agent does goes through our tools, which answer a repeated call with the first result.
        (TurnState::Calling, false, Effects::GatewayOnly) => Due::Send,
        (TurnState::Calling, true, Effects::GatewayOnly) => Due::Abort,
        (TurnState::Calling, _, Effects::Own) => Due::LookUp,
        // An ended turn is nobody's to carry on: its session would not name it any more.
        (TurnState::Finished | TurnState::Failed | TurnState::Aborted | TurnState::Unknown, _, _) => Due::Abort,
    }
}

/// Since when nobody knows what became of the call that is due. A call that is sent now is not lost, however long ago the
/// turn's last one was sent.
pub fn lost_since(
    due: Due,
    lost_at: Option<OffsetDateTime>,
    sent_at: Option<OffsetDateTime>,
) -> Option<OffsetDateTime> {
    match due {
        Due::LookUp => lost_at.or(sent_at),
        Due::Send | Due::Abort => None,
    }
}

/// A recorded result of a tool call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolResult {
    pub ordinal: i32,
    pub result: String,
}

/// The input of the call that is due: the turn's own, or the results of the calls in the last answer. A provider that
/// keeps no thread is sent the whole turn.
pub fn call_input(input: &str, journal: &Journal, results: &[ToolResult], thread: Thread) -> CallInput {
    let output_of = |call: &super::journal::Call| ToolOutput {
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
    let Some(last) = journal.last() else {
        return CallInput::Message(input.to_owned());
    };
    match thread {
        Thread::Durable | Thread::Process => CallInput::ToolResults {
            results: last.calls.iter().map(output_of).collect(),
            note: None,
        },
        Thread::None => {
            let mut items = vec![InputItem::User(input.to_owned())];
            for round in &journal.rounds {
                if !round.text.is_empty() {
                    items.push(InputItem::Assistant(round.text.clone()));
                }
                items.extend(round.calls.iter().map(|call| {
                    InputItem::Call(FunctionCall {
                        call_id: call.call_id.clone(),
                        name: call.name.clone(),
                        arguments: call.arguments.clone(),
                    })
                }));
                items.extend(round.calls.iter().map(|call| InputItem::Result(output_of(call))));
            }
            CallInput::Conversation(items)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::journal::{Call, Round};

    #[test]
    fn says_what_is_due() {
        let check = |state, closed, effects, expected| {
            assert_eq!(due(state, closed, effects), expected, "{state} {closed} {effects:?}");
        };
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

    #[test]
    fn results_go_back_in_the_order_of_the_calls() {
        let call = |id: &str, ordinal, answered: Option<&str>| Call {
            call_id: id.to_owned(),
            ordinal,
            name: "task_history".to_owned(),
            arguments: "{}".to_owned(),
            answered: answered.map(str::to_owned),
        };
        let journal = Journal {
            rounds: vec![Round {
                response_id: None,
                text: String::new(),
                calls: vec![call("b", 1, None), call("a", 2, Some("too large")), call("c", 3, None)],
                usage: None,
            }],
        };
        let results = [ToolResult {
            ordinal: 1,
            result: "one".to_owned(),
        }];
        let CallInput::ToolResults { results, .. } = call_input("hello", &journal, &results, Thread::Durable) else {
            panic!("results are due");
        };
        let outputs: Vec<(&str, &str)> = results
            .iter()
            .map(|result| (result.call_id.as_str(), result.output.as_str()))
            .collect();
        assert_eq!(outputs, [("b", "one"), ("a", "too large"), ("c", RESULT_MISSING)]);
    }
}
