//! From the wire to an answer: reads OpenResponses events, or one whole response object, into a [`ProviderAnswer`].
//!
//! The specification is the guide, not the judge. Fields may be missing or of another type (then they are absent),
//! event types unknown (skipped), items finished twice, arguments sent only as deltas or only at the end. Two things
//! are not tolerated: an answer without its last event is no answer, and a call without name or id is not a call.

use serde_json::Value;

use super::bounded_json;
use super::call::{ProviderAnswer, Usage};
use super::items::{Items, Which, part_text};
use super::settings::Limits;
use super::sse::Event;

/// Longest id, name, status or error message taken.
pub(super) const SHORT_CHARS_MAX: usize = 256;

/// What one event added.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing to tell yet.
    Going,
    /// More text, as it is generated.
    Text(String),
    Ended(Ending),
}

/// How the provider says it ended.
#[derive(Debug, PartialEq)]
pub(super) enum Ending {
    Answer(ProviderAnswer),
    Failed {
        response_id: Option<String>,
        code: Option<String>,
        message: Option<String>,
    },
}

/// The provider's answer cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("{0}")]
    Malformed(&'static str),
    #[error("the answer exceeds {0}")]
    TooLarge(&'static str),
    #[error("the stream said that it is done before the response had ended")]
    EndedEarly,
}

/// Reads one answer.
#[derive(Debug)]
pub(super) struct Reader {
    limits: Limits,
    response_id: Option<String>,
    items: Items,
}

impl Reader {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            response_id: None,
            items: Items::new(limits),
        }
    }

    /// Known from the first event on, if the provider names its responses.
    pub(super) fn response_id(&self) -> Option<&str> {
        self.response_id.as_deref()
    }

    /// Takes the next event of a stream.
    pub(super) fn event(&mut self, event: &Event) -> Result<Step, Unreadable> {
        let foreign = event
            .name
            .as_deref()
            .is_some_and(|name| !name.starts_with("response.") && name != "error");
        let text = event.data.trim();
        if foreign || text.is_empty() {
            return Ok(Step::Going); // pings and extensions
        }
        if text == "[DONE]" {
            return Err(Unreadable::EndedEarly);
        }
        let data = json(text.as_bytes())?;
        let Some(kind) = data["type"].as_str().or(event.name.as_deref()) else {
            return Ok(Step::Going);
        };
        let place = data["output_index"].as_u64();
        let which = Which {
            place,
            id: data["item_id"].as_str(),
        };
        match kind {
            "response.output_item.added" | "response.output_item.done" => {
                let item = &data["item"];
                let id = item["id"].as_str().or(item["call_id"].as_str());
                self.items.edit(Which { place, id }, |known| known.merge(item))?;
            }
            "response.output_text.delta" | "response.refusal.delta" => return self.text_delta(which, &data),
            "response.output_text.done" | "response.refusal.done" => self.part_put(which, &data, &data)?,
            "response.content_part.done" => self.part_put(which, &data, &data["part"])?,
            "response.function_call_arguments.delta" => {
                let delta = data["delta"].as_str().unwrap_or_default();
                self.items.edit(which, |item| item.arguments.push_str(delta))?;
            }
            "response.function_call_arguments.done" => {
                if let Some(arguments) = data["arguments"].as_str() {
                    self.items
                        .edit(which, |item| arguments.clone_into(&mut item.arguments))?;
                }
            }
            "response.completed" => return self.end(&data["response"], "completed").map(Step::Ended),
            "response.incomplete" => return self.end(&data["response"], "incomplete").map(Step::Ended),
            "response.failed" => return self.end(&data["response"], "failed").map(Step::Ended),
            "error" => {
                let error = if data["error"].is_object() {
                    &data["error"]
                } else {
                    &data
                };
                return Ok(Step::Ended(self.failed(error)));
            }
            // response.created, .in_progress, .queued, content_part.added, reasoning, annotations, and what is new
            _ => self.note_response_id(&data["response"]),
        }
        Ok(Step::Going)
    }

    /// Reads an answer that came in one piece.
    pub(super) fn whole(mut self, body: &[u8]) -> Result<Ending, Unreadable> {
        let response = json(body)?;
        if !response["error"].is_object() && !response["output"].is_array() {
            return Err(Unreadable::Malformed(
                "the body is not a response object with an output",
            ));
        }
        self.end(&response, "completed")
    }

    fn text_delta(&mut self, which: Which<'_>, data: &Value) -> Result<Step, Unreadable> {
        let Some(delta) = data["delta"].as_str() else {
            return Ok(Step::Going);
        };
        self.items.edit(which, |item| {
            item.parts.entry(content_place(data)).or_default().push_str(delta)
        })?;
        Ok(Step::Text(delta.to_owned()))
    }

    fn part_put(&mut self, which: Which<'_>, data: &Value, part: &Value) -> Result<(), Unreadable> {
        let Some(text) = part_text(part) else { return Ok(()) };
        self.items.edit(which, |item| {
            text.clone_into(item.parts.entry(content_place(data)).or_default())
        })
    }

    /// The response object of the last event, or of a whole body. What it says counts; the items collected so far
    /// stand in for what it leaves out.
    fn end(&mut self, response: &Value, assumed_status: &str) -> Result<Ending, Unreadable> {
        self.note_response_id(response);
        let status = response["status"].as_str().unwrap_or(assumed_status);
        if response["error"].is_object() || matches!(status, "failed" | "cancelled") {
            return Ok(self.failed(&response["error"]));
        }
        let incomplete = match status {
            "completed" => false,
            "incomplete" => true,
            _ => {
                return Err(Unreadable::Malformed(
                    "the provider answered with a response that is still running",
                ));
            }
        };
        let mut last = Items::new(self.limits);
        for (place, item) in (0..).zip(response["output"].as_array().into_iter().flatten()) {
            last.edit(
                Which {
                    place: Some(place),
                    id: item["id"].as_str(),
                },
                |known| known.merge(item),
            )?;
        }
        let mut calls = last.calls(incomplete)?;
        if calls.is_empty() {
            calls = self.items.calls(incomplete)?;
        }
        let text = Some(last.text())
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| self.items.text());
        let reason = response["incomplete_details"]["reason"].as_str().unwrap_or("not said");
        Ok(Ending::Answer(ProviderAnswer {
            response_id: self.response_id.clone(),
            text,
            calls,
            usage: usage(&response["usage"]),
            incomplete_reason: incomplete.then(|| short(reason)),
        }))
    }

    fn failed(&self, error: &Value) -> Ending {
        let said = |key: &str| error[key].as_str().map(short);
        Ending::Failed {
            response_id: self.response_id.clone(),
            code: said("code").or_else(|| said("type")),
            message: said("message").or_else(|| error.as_str().map(short)),
        }
    }

    fn note_response_id(&mut self, response: &Value) {
        if let Some(id) = response["id"].as_str() {
            self.response_id = Some(short(id));
        }
    }
}

fn json(text: &[u8]) -> Result<Value, Unreadable> {
    bounded_json::parse(text).map_err(|error| match error {
        bounded_json::NotJson::Syntax(_) => Unreadable::Malformed("not JSON, or nested too deep"),
        bounded_json::NotJson::TooManyValues => Unreadable::TooLarge("the number of JSON values"),
    })
}

fn content_place(data: &Value) -> u64 {
    data["content_index"].as_u64().unwrap_or_default()
}

/// Token counts. All zero means that nobody counted, not that it was free.
fn usage(wire: &Value) -> Option<Usage> {
    let tokens = |value: &Value| value.as_u64().unwrap_or_default();
    let usage = Usage {
        input_tokens: tokens(&wire["input_tokens"]),
        output_tokens: tokens(&wire["output_tokens"]),
        cached_tokens: tokens(&wire["input_tokens_details"]["cached_tokens"]),
        reasoning_tokens: tokens(&wire["output_tokens_details"]["reasoning_tokens"]),
        total_tokens: tokens(&wire["total_tokens"]),
    };
    (usage != Usage::default()).then_some(usage)
}

/// Ids and the like, bounded.
pub(super) fn short(text: &str) -> String {
    text.chars().take(SHORT_CHARS_MAX).collect()
}
