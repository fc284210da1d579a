//! Builds the body of a call. No field is ever `null`, and no field is sent that the server does not know ([`Words`]):
//! a server with a strict schema refuses either.

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
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_response_id: Option<&'a str>,
    #[serde(flatten)]
    words: &'a Words,
}

/// The fields that not every server knows. Absent ones are not sent.
#[derive(Debug, Default, Serialize)]
pub(super) struct Words {
    /// The provider's session key, for servers that ignore the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    /// Whether the server stores the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) store: Option<bool>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) include: &'static [&'static str],
    /// Routes calls of one session to one cache. Does not reveal the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_cache_key: Option<String>,
    /// `strict` of every tool: whether the server enforces the schema, which it must then rewrite.
    #[serde(skip)]
    pub(super) strict_tools: Option<bool>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Input<'a> {
    Text(&'a str),
    Items(Vec<Entry<'a>>),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Ours(RequestItem<'a>),
    /// An item of the provider, unchanged.
    Theirs(&'a RawValue),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum RequestItem<'a> {
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
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

pub(super) fn body(call: &ProviderCall, model: &str, stream: bool, words: &Words) -> Vec<u8> {
    let body = Body {
        model,
        instructions: call.instructions.as_deref(),
        input: input(&call.input),
        tools: call.tools.iter().map(|tool| offer(tool, words.strict_tools)).collect(),
        stream,
        previous_response_id: call.after.as_deref(),
        words,
    };
    let mut bytes = Vec::with_capacity(size_hint(call));
    serde_json::to_writer(&mut bytes, &body).expect("invariant: strings and JSON values always serialise");
    bytes
}

/// The approximate size of a first call; a call with tool results grows from there.
fn size_hint(call: &ProviderCall) -> usize {
    const REST: usize = 1_024;
    let tools = call
        .tools
        .iter()
        .map(|tool| tool.description.len() + tool.parameters.get().len() + REST / 8);
    let input = match &call.input {
        CallInput::Message(text) => text.len(),
        CallInput::Conversation(items) => items.iter().map(InputItem::bytes).sum(),
        CallInput::ToolResults { .. } => 0,
    };
    // Line breaks and quotes take two bytes.
    let texts = call.instructions.as_ref().map_or(0, |text| text.len()) + input;
    tools.sum::<usize>() + texts + texts / 16 + REST
}

fn input(input: &CallInput) -> Input<'_> {
    match input {
        CallInput::Message(text) => Input::Text(text),
        CallInput::ToolResults { results, note, .. } => {
            let note = note
                .as_deref()
                .map(|content| RequestItem::Message { role: "user", content });
            Input::Items(results.iter().map(output).chain(note).map(Entry::Ours).collect())
        }
        CallInput::Conversation(items) => Input::Items(items.iter().filter_map(entry).collect()),
    }
}

fn entry(item: &InputItem) -> Option<Entry<'_>> {
    Some(Entry::Ours(match item {
        InputItem::User(content) => RequestItem::Message { role: "user", content },
        InputItem::Assistant(content) => RequestItem::Message {
            role: "assistant",
            content,
        },
        // It was valid JSON when it was received.
        InputItem::Reasoning(item) => return serde_json::from_str(item).ok().map(Entry::Theirs),
        InputItem::Call(call) => RequestItem::FunctionCall {
            call_id: &call.call_id,
            name: &call.name,
            arguments: object_or_none(&call.arguments),
        },
        InputItem::Result(result) => output(result),
    }))
}

/// Servers parse the arguments of earlier calls and refuse a whole request for invalid ones. The error is in the call's
/// result.
fn object_or_none(arguments: &str) -> &str {
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(arguments) {
        Ok(_) => arguments,
        Err(_) => "{}",
    }
}

fn output(result: &ToolOutput) -> RequestItem<'_> {
    RequestItem::FunctionCallOutput {
        call_id: &result.call_id,
        output: &result.output,
    }
}

fn offer(tool: &ToolDefinition, strict: Option<bool>) -> Tool<'_> {
    Tool {
        r#type: "function",
        name: &tool.name,
        description: &tool.description,
        parameters: &tool.parameters,
        strict,
    }
}
