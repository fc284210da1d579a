//! The response on the wire: the complete response object of the OpenResponses specification, and the same as a stream
//! of events.

use axum::response::sse::Event;
use serde_json::{Value, json};

use super::request::{Item, Request};

/// Words in one piece of streamed text.
const DELTA_WORDS: usize = 3;

/// One answer to one request.
pub(super) struct Answer<'r> {
    pub(super) response_id: String,
    /// Unix seconds.
    pub(super) created_at: u64,
    pub(super) request: &'r Request,
    pub(super) output: Output,
}

pub(super) enum Output {
    Message(String),
    Call {
        call_id: String,
        name: String,
        arguments: String,
    },
}

/// Numbers the events of one stream.
#[derive(Default)]
struct Events(Vec<Event>);

impl Events {
    /// `fields` is an object; type and number are added to it.
    fn push(&mut self, name: &'static str, mut fields: Value) {
        fields["type"] = json!(name);
        fields["sequence_number"] = json!(self.0.len());
        self.0.push(Event::default().event(name).data(fields.to_string()));
    }
}

impl Answer<'_> {
    /// The response to a request that is not streamed.
    pub(super) fn completed(&self) -> Value {
        self.response(true)
    }

    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = Events::default();
        let begun = self.response(false);
        events.push("response.created", json!({ "response": begun }));
        events.push("response.in_progress", json!({ "response": begun }));
        let added = self.item("in_progress");
        events.push("response.output_item.added", json!({"output_index": 0, "item": added}));
        match &self.output {
            Output::Message(text) => self.text_events(&mut events, text),
            Output::Call { arguments, .. } => self.call_events(&mut events, arguments),
        }
        events.push(
            "response.output_item.done",
            json!({"output_index": 0, "item": self.item("completed")}),
        );
        events.push("response.completed", json!({ "response": self.completed() }));
        events.0
    }

    fn text_events(&self, events: &mut Events, text: &str) {
        let place = || json!({"item_id": self.item_id(), "output_index": 0, "content_index": 0});
        let with = |name: &str, value: Value| {
            let mut fields = place();
            fields[name] = value;
            fields
        };
        events.push("response.content_part.added", with("part", text_part("")));
        for delta in deltas(text) {
            let mut fields = with("delta", json!(delta));
            fields["logprobs"] = json!([]);
            events.push("response.output_text.delta", fields);
        }
        let mut fields = with("text", json!(text));
        fields["logprobs"] = json!([]);
        events.push("response.output_text.done", fields);
        events.push("response.content_part.done", with("part", text_part(text)));
    }

    fn call_events(&self, events: &mut Events, arguments: &str) {
        let item_id = self.item_id();
        // Two pieces, as a model's arguments are streamed in pieces.
        let (head, tail) = arguments.split_at(arguments.floor_char_boundary(arguments.len() / 2));
        for delta in [head, tail] {
            let fields = json!({"item_id": item_id, "output_index": 0, "delta": delta});
            events.push("response.function_call_arguments.delta", fields);
        }
        let fields = json!({"item_id": item_id, "output_index": 0, "arguments": arguments});
        events.push("response.function_call_arguments.done", fields);
    }

    fn item_id(&self) -> String {
        let (_, unique) = self.response_id.split_once('_').expect("an id has a prefix");
        match self.output {
            Output::Message(_) => format!("msg_{unique}"),
            Output::Call { .. } => format!("fc_{unique}"),
        }
    }

    /// Empty while it is in progress.
    fn item(&self, status: &str) -> Value {
        let is_complete = status == "completed";
        match &self.output {
            Output::Message(text) => {
                let content = if is_complete {
                    json!([text_part(text)])
                } else {
                    json!([])
                };
                json!({"type": "message", "id": self.item_id(), "status": status, "role": "assistant", "content": content})
            }
            Output::Call {
                call_id,
                name,
                arguments,
            } => {
                let arguments = if is_complete { arguments } else { "" };
                json!({"type": "function_call", "id": self.item_id(), "status": status, "call_id": call_id, "name": name,
                       "arguments": arguments})
            }
        }
    }

    /// Without output while it is in progress.
    fn response(&self, is_complete: bool) -> Value {
        let output = if is_complete {
            vec![self.item("completed")]
        } else {
            Vec::new()
        };
        let tools: Vec<&Value> = self.request.tools.iter().map(|tool| &tool.definition).collect();
        json!({
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": is_complete.then_some(self.created_at),
            "status": if is_complete { "completed" } else { "in_progress" },
            "incomplete_details": null,
            "model": self.request.model,
            "previous_response_id": null,
            "instructions": self.request.instructions,
            "output": output,
            "error": null,
            "tools": tools,
            "tool_choice": "auto",
            "truncation": "disabled",
            "parallel_tool_calls": false,
            "text": {"format": {"type": "text"}},
            "top_p": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "top_logprobs": 0,
            "temperature": 0.0,
            "reasoning": null,
            "usage": is_complete.then(|| self.usage()),
            "max_output_tokens": null,
            "max_tool_calls": null,
            "store": false,
            "background": false,
            "service_tier": "default",
            "metadata": {},
            "safety_identifier": null,
            "prompt_cache_key": null,
        })
    }

    /// Words are counted as tokens.
    fn usage(&self) -> Value {
        let heard: usize = self.request.items.iter().map(item_words).sum();
        let input = heard + self.request.instructions.as_deref().map_or(0, words);
        let output = match &self.output {
            Output::Message(text) => words(text),
            Output::Call { name, arguments, .. } => words(name) + words(arguments),
        };
        json!({
            "input_tokens": input,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input + output,
        })
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn item_words(item: &Item) -> usize {
    match item {
        Item::User(text) => words(text),
        Item::Result { output, .. } => words(output),
        Item::Own => 0,
    }
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// Pieces of a few words that concatenate to the text.
fn deltas(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_inclusive(' ').collect();
    words.chunks(DELTA_WORDS).map(<[&str]>::concat).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_up_the_text() {
        let text = "On DEMO-1: I  have read ünïcode, all of it.\nYes.";
        assert!(deltas(text).len() > 3);
        assert_eq!(deltas(text).concat(), text);
    }
}
