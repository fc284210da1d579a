//! The body of a call, in the shape both kinds of provider accept. Nothing is ever `null` and nothing is extra: a
//! gateway with a strict schema refuses either.

use serde::Serialize;
use serde_json::value::RawValue;

use super::call::{CallInput, InputItem, ProviderCall, ToolDefinition, ToolOutput};

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<&'a str>,
    input: Input<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    stream: bool,
    user: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Input<'a> {
    Text(&'a str),
    Items(Vec<Item<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item<'a> {
    Message {
        role: &'static str,
        content: &'a str,
    },
    FunctionCall {
        call_id: &'a str,
        name: &'a str,
        arguments: &'a str,
    },
    FunctionCallOutput {
        call_id: &'a str,
        output: &'a str,
    },
}

#[derive(Serialize)]
struct Tool<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
}

/// `user` is the provider's session key, for servers that do not look at the header.
pub(super) fn body(call: &ProviderCall, model: &str, stream: bool, user: &str) -> Vec<u8> {
    let body = Body {
        model,
        instructions: call.instructions.as_deref(),
        input: input(&call.input),
        tools: call.tools.iter().map(tool).collect(),
        stream,
        user,
    };
    let mut bytes = Vec::with_capacity(size_hint(call));
    serde_json::to_writer(&mut bytes, &body).expect("invariant: strings and JSON values always serialise");
    bytes
}

/// About what a first call takes; one that carries results of tools grows from there.
fn size_hint(call: &ProviderCall) -> usize {
    const REST: usize = 1_024;
    let tools = call
        .tools
        .iter()
        .map(|tool| tool.description.len() + tool.parameters.get().len() + REST / 8);
    let input = match &call.input {
        CallInput::Message(text) => text.len(),
        CallInput::ToolResults { .. } | CallInput::Conversation(_) => 0,
    };
    // Line breaks and quotes take two bytes.
    let texts = call.instructions.as_ref().map_or(0, |text| text.len()) + input;
    tools.sum::<usize>() + texts + texts / 16 + REST
}

fn input(input: &CallInput) -> Input<'_> {
    match input {
        CallInput::Message(text) => Input::Text(text),
        CallInput::ToolResults { results, note } => {
            let note = note.as_deref().map(|content| Item::Message { role: "user", content });
            Input::Items(results.iter().map(output).chain(note).collect())
        }
        CallInput::Conversation(items) => Input::Items(items.iter().map(item).collect()),
    }
}

fn item(item: &InputItem) -> Item<'_> {
    match item {
        InputItem::User(content) => Item::Message { role: "user", content },
        InputItem::Assistant(content) => Item::Message {
            role: "assistant",
            content,
        },
        InputItem::Call(call) => Item::FunctionCall {
            call_id: &call.call_id,
            name: &call.name,
            arguments: &call.arguments,
        },
        InputItem::Result(result) => output(result),
    }
}

fn output(result: &ToolOutput) -> Item<'_> {
    Item::FunctionCallOutput {
        call_id: &result.call_id,
        output: &result.output,
    }
}

fn tool(tool: &ToolDefinition) -> Tool<'_> {
    Tool {
        r#type: "function",
        name: &tool.name,
        description: &tool.description,
        parameters: &tool.parameters,
    }
}
