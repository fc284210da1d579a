//! What the model behind an OpenClaw gateway gets to read.
//!
//! The gateway keeps no id of ours, so the delivery id stands at the head of the text, where the history, which cuts
//! long texts at their end, still shows it. It hands a tool result to the model as a line `Tool:<call id>: <output>`
//! with an id the model has never seen, and folds several results into one message: so each says what it answers.

use contracts::quote;

use crate::providers::call::{CallInput, ProviderCall, ToolDefinition, ToolOutput};
use crate::providers::failure::{FailureClass, ProviderError, Sent};

/// In front of our tools' names: a name of the gateway's own, offered or not, is an error 400.
const TOOL_PREFIX: &str = "signalbox_";
/// How much of a call's arguments is repeated with its result.
const ARGUMENTS_BYTES_MAX: usize = 300;
const NAME_BYTES_MAX: usize = 128;

/// The line that recognises a call in the session's history. Not in square brackets: the history takes a bracketed
/// head that looks like a date or a channel's name for an envelope, and strips it.
pub(super) fn marker(delivery_id: &str) -> String {
    format!("(Signalbox delivery {delivery_id})")
}

pub(super) fn tool_name_on_wire(name: &str) -> String {
    format!("{TOOL_PREFIX}{name}")
}

/// A name without the prefix was made up by the model, and is passed on as it is to be refused.
pub(super) fn tool_name_off_wire(name: &str) -> &str {
    name.strip_prefix(TOOL_PREFIX).unwrap_or(name)
}

pub(super) fn is_our_tool(name: &str) -> bool {
    name.starts_with(TOOL_PREFIX)
}

/// The call as this gateway's model is to see it.
pub(super) fn reworded(call: &ProviderCall) -> Result<ProviderCall, ProviderError> {
    let marker = marker(&call.delivery_id());
    let input = match &call.input {
        CallInput::Message(text) => CallInput::Message(format!("{marker}\n{text}")),
        CallInput::ToolResults { results, note, .. } => CallInput::ToolResults {
            results: results.iter().map(|result| standalone(result, &marker)).collect(),
            response_id: None,
            note: note.clone(),
        },
        CallInput::Conversation(_) => {
            let detail = "the gateway keeps the conversation; sending it again would double it";
            return Err(ProviderError::new(FailureClass::BadRequest, Sent::No, detail));
        }
    };
    let tools = call.tools.iter().map(|tool| ToolDefinition {
        name: tool_name_on_wire(&tool.name),
        ..tool.clone()
    });
    Ok(ProviderCall {
        input,
        tools: tools.collect(),
        ..call.clone()
    })
}

fn standalone(result: &ToolOutput, marker: &str) -> ToolOutput {
    // The model wrote them, and may have been made to.
    let (name, _) = quote::line(&tool_name_on_wire(&result.name), NAME_BYTES_MAX);
    let (arguments, _) = quote::line(&result.arguments, ARGUMENTS_BYTES_MAX);
    let output = format!(
        "{marker}\nResult of your call of {name} with {arguments}:\n{}",
        result.output
    );
    ToolOutput {
        output,
        ..result.clone()
    }
}
