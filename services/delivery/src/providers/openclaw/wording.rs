//! The text that the model behind an OpenClaw gateway reads.
//!
//! The gateway stores none of our ids, so the delivery id stands at the head of the text, where the history still shows
//! it (the history cuts long texts at their end). The gateway hands a tool result to the model as a line `Tool:<call
//! id>: <output>` with an id that the model has never seen, and folds several results into one message. So each result
//! names its call.

use contracts::quote;

use crate::providers::call::{CallInput, FunctionCall, InputItem, ProviderCall, ToolDefinition, ToolOutput};

/// The prefix of our tools' names: one of the gateway's own names, offered or not, is an error 400.
const TOOL_PREFIX: &str = "signalbox_";
/// Bytes of a call's arguments that are repeated with its result.
const ARGUMENTS_BYTES_MAX: usize = 300;
const NAME_BYTES_MAX: usize = 128;

/// The line that identifies a call in the session's history. Not in square brackets: the history strips a bracketed
/// head that looks like a date or a channel's name.
pub(super) fn marker(delivery_id: &str) -> String {
    format!("(Signalbox delivery {delivery_id})")
}

pub(in crate::providers) fn tool_name_on_wire(name: &str) -> String {
    format!("{TOOL_PREFIX}{name}")
}

/// A name without the prefix was made up by the model. It is passed on unchanged, to be refused.
pub(super) fn tool_name_off_wire(name: &str) -> &str {
    name.strip_prefix(TOOL_PREFIX).unwrap_or(name)
}

pub(super) fn is_our_tool(name: &str) -> bool {
    name.starts_with(TOOL_PREFIX)
}

/// Rewords the call for this gateway's model.
pub(super) fn reworded(call: &ProviderCall) -> ProviderCall {
    let marker = marker(&call.delivery_id());
    let input = match &call.input {
        CallInput::Message(text) => CallInput::Message(format!("{marker}\n{text}")),
        CallInput::ToolResults { results, note } => CallInput::ToolResults {
            results: results.iter().map(|result| standalone(result, &marker)).collect(),
            note: note.clone(),
        },
        // Of a thread that the gateway does not have. It folds the items into one text, whose head its history shows.
        CallInput::Conversation(items) => {
            let mut items: Vec<InputItem> = items.iter().map(|item| folded(item, &marker)).collect();
            items.insert(0, InputItem::User(marker.clone()));
            CallInput::Conversation(items)
        }
    };
    let tools = call.tools.iter().map(|tool| ToolDefinition {
        name: tool_name_on_wire(&tool.name),
        ..tool.clone()
    });
    ProviderCall {
        input,
        tools: tools.collect(),
        ..call.clone()
    }
}

/// An item of a conversation under the gateway's names, and without the reasoning of another provider.
fn folded(item: &InputItem, marker: &str) -> InputItem {
    match item {
        InputItem::Result(result) => InputItem::Result(standalone(result, marker)),
        InputItem::Call(call) => InputItem::Call(FunctionCall {
            name: tool_name_on_wire(&call.name),
            ..call.clone()
        }),
        InputItem::User(_) | InputItem::Assistant(_) | InputItem::Reasoning(_) => item.clone(),
    }
}

fn standalone(result: &ToolOutput, marker: &str) -> ToolOutput {
    // The model wrote the arguments, possibly under the influence of an attacker's text.
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
