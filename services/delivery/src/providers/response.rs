//! Converts OpenResponses events, or one whole response object, into a [`ProviderAnswer`].
//!
//! Reading is tolerant. Fields may be missing or have another type (then they are absent), event types may be unknown
//! (skipped), items may be finished twice, arguments may be sent only as deltas or only at the end. Two errors are not
//! tolerated: an answer without its last event, and a call without name or id.

use contracts::json::NotJson;
use runtime::egress::credential::Credential;
use serde_json::Value;

use super::call::{Previous, ProviderAnswer, Usage};
use super::items::{Items, Which, part_text};
use super::settings::CallLimits;
use super::sse::Event;

/// Maximum length of an id, name, status or error message.
pub(super) const SHORT_CHARS_MAX: usize = 256;

/// How the response ended, by the provider's report.
#[derive(Debug, PartialEq)]
pub(super) enum Ending {
    Answer(ProviderAnswer),
    Failed {
        response_id: Option<String>,
        code: Option<String>,
        message: Option<String>,
    },
}

/// The provider's answer is unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("{0}")]
    Malformed(&'static str),
    #[error("the answer exceeds {0}")]
    TooLarge(&'static str),
    #[error("the stream ended with [DONE] before the response ended")]
    EndedEarly,
}

/// Reads one answer.
pub(super) struct Reader<F> {
    limits: CallLimits,
    credential: Credential,
    response_id: Option<String>,
    items: Items,
    /// Gets the text as it is generated, or at the end if no delta contained it.
    on_text: F,
    has_text: bool,
    /// The end of the text that `on_text` did not get yet: the next delta may complete it to the credential.
    held_back: String,
}

impl<F: FnMut(&str)> Reader<F> {
    pub(super) fn new(limits: CallLimits, credential: Credential, on_text: F) -> Self {
        Self {
            limits,
            credential,
            response_id: None,
            items: Items::new(limits),
            on_text,
            has_text: false,
            held_back: String::new(),
        }
    }

    /// Known from the first event on, if the provider gives ids to its responses.
    pub(super) fn response_id(&self) -> Option<&str> {
        self.response_id.as_deref()
    }

    /// Handles the next event of a stream. `None`: the response goes on.
    pub(super) fn event(&mut self, event: &Event) -> Result<Option<Ending>, Unreadable> {
        let foreign = event
            .name
            .as_deref()
            .is_some_and(|name| !name.starts_with("response.") && name != "error");
        let text = event.data.trim();
        if foreign || text.is_empty() {
            return Ok(None); // pings and extensions
        }
        if text == "[DONE]" {
            return Err(Unreadable::EndedEarly);
        }
        let data = self.json(text.as_bytes())?;
        let Some(kind) = data["type"].as_str().or(event.name.as_deref()) else {
            return Ok(None);
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
            "response.output_text.delta" | "response.refusal.delta" => self.text_delta(which, &data)?,
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
            "response.completed" => return self.end(&data["response"], "completed").map(Some),
            "response.incomplete" => return self.end(&data["response"], "incomplete").map(Some),
            "response.failed" => return self.end(&data["response"], "failed").map(Some),
            "error" => {
                let error = if data["error"].is_object() {
                    &data["error"]
                } else {
                    &data
                };
                return Ok(Some(self.failed(error)));
            }
            // response.created, .in_progress, .queued, content_part.added, reasoning, annotations, and unknown events
            _ => self.note_response_id(&data["response"]),
        }
        Ok(None)
    }

    /// Reads an answer in one piece.
    pub(super) fn whole(mut self, body: &[u8]) -> Result<Ending, Unreadable> {
        let response = self.json(body)?;
        // As LM Studio answers on a wrong path.
        if response["error"].is_string() {
            return Ok(self.failed(&response["error"]));
        }
        if !response["error"].is_object() && !response["output"].is_array() {
            return Err(Unreadable::Malformed(
                "the body is not a response object with an output",
            ));
        }
        self.end(&response, "completed")
    }

    fn text_delta(&mut self, which: Which<'_>, data: &Value) -> Result<(), Unreadable> {
        let Some(delta) = data["delta"].as_str() else {
            return Ok(());
        };
        self.items.edit(which, |item| {
            item.parts.entry(content_place(data)).or_default().push_str(delta);
        })?;
        self.has_text = true;
        self.stream(delta);
        Ok(())
    }

    /// Hands text on, except an end that may be the beginning of the credential.
    fn stream(&mut self, delta: &str) {
        self.held_back.push_str(delta);
        let mut text = self.credential.remove_from_answer(std::mem::take(&mut self.held_back));
        self.held_back = text.split_off(text.len() - self.credential.bytes_begun(&text));
        if !text.is_empty() {
            (self.on_text)(&text);
        }
    }

    fn part_put(&mut self, which: Which<'_>, data: &Value, part: &Value) -> Result<(), Unreadable> {
        let Some(text) = part_text(part) else { return Ok(()) };
        self.items.edit(which, |item| {
            text.clone_into(item.parts.entry(content_place(data)).or_default());
        })
    }

    /// Reads the response object of the last event, or of a whole body. Its fields take precedence; the items collected
    /// so far replace missing ones.
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
            let (place, id) = (Some(place), item["id"].as_str());
            last.edit(Which { place, id }, |known| known.merge(item))?;
        }
        let mut calls = last.calls(incomplete)?;
        if calls.is_empty() {
            calls = self.items.calls(incomplete)?;
        }
        let mut reasoning = last.reasoning();
        if reasoning.is_empty() {
            reasoning = self.items.reasoning();
        }
        let text = Some(last.text())
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| self.items.text());
        // A server may split the credential over deltas and parts.
        let removed = |text: String| self.credential.remove_from_answer(text);
        let text = removed(text);
        for call in &mut calls {
            call.arguments = removed(std::mem::take(&mut call.arguments));
        }
        for reasoning in &mut reasoning {
            reasoning.item = removed(std::mem::take(&mut reasoning.item));
        }
        let unstreamed = match self.has_text {
            true => &self.held_back,
            false => &text,
        };
        if !unstreamed.is_empty() {
            (self.on_text)(unstreamed);
        }
        let reason = response["incomplete_details"]["reason"].as_str().unwrap_or("not said");
        Ok(Ending::Answer(ProviderAnswer {
            response_id: self.response_id.clone(),
            text,
            calls,
            reasoning,
            usage: usage(&response["usage"]),
            incomplete_reason: incomplete.then(|| short(reason)),
            previous: match response.get("previous_response_id") {
                Some(Value::String(id)) => Previous::Id(short(id)),
                Some(Value::Null) => Previous::None,
                Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) | None => {
                    Previous::NotSaid
                }
            },
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

    /// Parses an event or a body. Its texts do not repeat the credential.
    fn json(&self, text: &[u8]) -> Result<Value, Unreadable> {
        let mut value = contracts::json::read(text).map_err(|error| match error {
            NotJson::Syntax(_) | NotJson::TooDeep { .. } => Unreadable::Malformed("not JSON, or nested too deep"),
            NotJson::TooManyValues { .. } => Unreadable::TooLarge("the number of JSON values"),
        })?;
        self.credential.remove_from_json(&mut value);
        Ok(value)
    }

    fn note_response_id(&mut self, response: &Value) {
        if let Some(id) = response["id"].as_str() {
            self.response_id = Some(short(id));
        }
    }
}

fn content_place(data: &Value) -> u64 {
    data["content_index"].as_u64().unwrap_or_default()
}

/// Token counts. All zero means that the provider did not count.
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

/// Ids and other short texts, bounded. They are stored in rows, and Postgres cannot store NUL in a text.
pub(super) fn short(text: &str) -> String {
    text.chars()
        .take(SHORT_CHARS_MAX)
        .map(|c| if c == '\0' { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::needless_pass_by_value, reason = "`json!` reads best where it is used")]

    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::providers::call::FunctionCall;
    use crate::providers::sse::Splitter;

    const LIMITS: CallLimits = CallLimits {
        connect_timeout: Duration::ZERO,
        first_byte_timeout: Duration::ZERO,
        idle_timeout: Duration::ZERO,
        call_timeout_max: Duration::ZERO,
        request_bytes_max: 0,
        answer_bytes_max: 4_000,
        arguments_bytes_max: 500,
        tool_calls_max: 3,
    };

    /// The result of a stream: its ending, the streamed text, and the read error.
    #[derive(Debug, PartialEq)]
    struct Outcome {
        ending: Option<Ending>,
        streamed: String,
        unreadable: Option<Unreadable>,
    }

    fn read(bytes: &[u8], cuts: &[usize]) -> Outcome {
        let mut cuts: Vec<usize> = cuts
            .iter()
            .map(|cut| cut % (bytes.len() + 1))
            .chain([bytes.len()])
            .collect();
        cuts.sort_unstable();
        let mut splitter = Splitter::new(LIMITS.event_bytes_max());
        let (mut events, mut from) = (Vec::new(), 0);
        for to in cuts {
            splitter.push(&bytes[from..to], &mut events).unwrap();
            from = to;
        }
        events.extend(splitter.finish());
        let mut streamed = String::new();
        let mut reader = Reader::new(LIMITS, Credential::default(), |text: &str| streamed.push_str(text));
        let mut read = events.iter().map(|event| reader.event(event));
        let end = read.find(|read| !matches!(read, Ok(None))).unwrap_or(Ok(None));
        drop(read);
        Outcome {
            unreadable: end.as_ref().err().copied(),
            ending: end.ok().flatten(),
            streamed,
        }
    }

    fn stream(events: &[Value]) -> Vec<u8> {
        events
            .iter()
            .map(|event| format!("data: {event}\n\n"))
            .collect::<String>()
            .into_bytes()
    }

    fn answered(events: &[Value]) -> ProviderAnswer {
        match read(&stream(events), &[]) {
            Outcome {
                ending: Some(Ending::Answer(answer)),
                ..
            } => answer,
            other => panic!("no answer: {other:?}"),
        }
    }

    fn unreadable(events: &[Value]) -> Unreadable {
        read(&stream(events), &[]).unreadable.expect("reading should fail")
    }

    fn call(call_id: &str, name: &str, arguments: &str) -> FunctionCall {
        FunctionCall {
            call_id: call_id.into(),
            name: name.into(),
            arguments: arguments.into(),
        }
    }

    fn delta(place: u64, text: &str) -> Value {
        json!({"type": "response.output_text.delta", "output_index": place, "content_index": 0, "delta": text})
    }

    fn completed(output: Value) -> Value {
        json!({"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": output}})
    }

    fn message(text: &str) -> Value {
        json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
    }

    fn function(call_id: &str, name: &str, arguments: &str) -> Value {
        json!({"type": "function_call", "id": format!("fc_{call_id}"), "call_id": call_id, "name": name,
            "arguments": arguments})
    }

    fn item_done(place: u64, item: &Value) -> Value {
        json!({"type": "response.output_item.done", "output_index": place, "item": item})
    }

    #[test]
    fn takes_the_text_from_wherever_it_is() {
        fn check(events: &[Value], text: &str) {
            assert_eq!(answered(events).text, text, "{events:?}");
        }
        check(&[delta(0, "a"), delta(0, "b"), completed(json!([message("ab")]))], "ab");
        check(&[completed(json!([message("only at the end")]))], "only at the end");
        check(
            &[delta(0, "only "), delta(0, "deltas"), completed(Value::Null)],
            "only deltas",
        );
        check(&[delta(0, "x"), json!({"type": "response.completed"})], "x");
        check(
            &[item_done(0, &message("in the item")), completed(json!([]))],
            "in the item",
        );
        check(
            &[
                json!({"type": "response.output_text.done", "item_id": "m", "text": "done"}),
                completed(json!([])),
            ],
            "done",
        );
        check(
            &[
                item_done(1, &message("second")),
                item_done(0, &message("first")),
                completed(json!([])),
            ],
            "first\n\nsecond",
        );
        check(
            &[
                item_done(0, &message("twice")),
                item_done(0, &message("twice")),
                completed(json!([])),
            ],
            "twice",
        );
        check(
            &[completed(
                json!([{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]),
            )],
            "no",
        );
        check(
            &[completed(json!([{"type": "message", "content": "a plain string"}]))],
            "a plain string",
        );
        check(
            &[completed(
                json!([{"type": "reasoning", "content": [{"text": "hidden"}]}, message("seen")]),
            )],
            "seen",
        );
        check(&[completed(json!([]))], "");
    }

    /// Reads whole events with the key `sk-secret-0123`; gives the end and the streamed text.
    fn repeated(events: &[Value]) -> (Ending, String) {
        let credential = Credential::new(Some(&"sk-secret-0123".to_owned().into()));
        let mut streamed = String::new();
        let mut reader = Reader::new(LIMITS, credential, |text: &str| streamed.push_str(text));
        let ending = events.iter().find_map(|data| {
            let data = data.to_string();
            reader.event(&Event { name: None, data }).unwrap()
        });
        drop(reader);
        (ending.expect("the response should end"), streamed)
    }

    #[test]
    fn an_answer_does_not_repeat_the_credential() {
        let check = |events: &[Value], text: &str, live: &str| {
            let (ending, streamed) = repeated(events);
            let shown = format!("{ending:?} {streamed}");
            assert!(!shown.contains("secret-0123"), "{shown}");
            assert!(
                matches!(ending, Ending::Answer(answer) if answer.text == text),
                "{shown}"
            );
            assert_eq!(streamed, live);
        };
        let removed = "key (api_key)!";
        check(&[completed(json!([message("key sk-secret-0123!")]))], removed, removed);
        check(
            &[delta(0, "key sk-secret-0123!"), completed(json!([]))],
            removed,
            removed,
        );
        let pieces = [
            delta(0, "key s"),
            delta(0, "k-secret"),
            delta(0, "-0123!"),
            completed(json!([])),
        ];
        check(&pieces, removed, removed);
        let harmless = [delta(0, "a des"), delta(0, "k, and s"), completed(json!([]))];
        check(&harmless, "a desk, and s", "a desk, and s");
        let escapes = [
            delta(0, "key \\u0073k-sec"),
            delta(0, "ret-012\\u0033"),
            completed(json!([])),
        ];
        let (ending, _) = repeated(&escapes);
        assert!(matches!(ending, Ending::Answer(answer) if answer.text == "(the text repeats the credential)"));

        let arguments =
            |delta: &str| json!({"type": "response.function_call_arguments.delta", "output_index": 0, "delta": delta});
        let call = [
            item_done(
                0,
                &json!({"type": "function_call", "call_id": "c sk-secret-0123", "name": "sk-secret-0123"}),
            ),
            arguments("{\"a\": \"sk-sec"),
            arguments("ret-0123\"}"),
            json!({"type": "response.incomplete", "response": {"id": "sk-secret-0123", "status": "completed",
                "previous_response_id": "sk-secret-0123"}}),
        ];
        let (ending, _) = repeated(&call);
        let Ending::Answer(answer) = &ending else {
            panic!("{ending:?}")
        };
        assert_eq!(answer.calls[0].arguments, r#"{"a": "(api_key)"}"#);
        assert!(!format!("{ending:?}").contains("secret-0123"), "{ending:?}");
        let reason = json!({"type": "response.incomplete", "response": {"status": "incomplete",
            "incomplete_details": {"reason": format!("{}sk-secret-0123", "x".repeat(SHORT_CHARS_MAX - 9))}}});
        let (ending, _) = repeated(&[reason]);
        assert!(!format!("{ending:?}").contains("sk-"), "{ending:?}");
        let failed = json!({"type": "error", "message": format!("{}sk-secret-0123", "x".repeat(SHORT_CHARS_MAX - 9))});
        let (ending, _) = repeated(&[failed]);
        assert!(!format!("{ending:?}").contains("sk-"), "{ending:?}");
    }

    #[test]
    fn prefers_the_final_answer_to_commentary() {
        let phased = |text: &str, phase: &str| json!({"type": "message", "phase": phase, "content": [{"type": "output_text", "text": text}]});
        let both = answered(&[completed(json!([
            phased("thinking aloud", "commentary"),
            phased("42", "final_answer")
        ]))]);
        assert_eq!(both.text, "42");
        let commentary = answered(&[completed(json!([
            phased("let me look", "commentary"),
            function("c", "f", "{}")
        ]))]);
        assert_eq!(commentary.text, "let me look");
    }

    #[test]
    fn takes_calls_from_wherever_they_are() {
        fn check(events: &[Value], calls: &[FunctionCall]) {
            assert_eq!(answered(events).calls, calls, "{events:?}");
        }
        let (a, b) = (call("c1", "f", r#"{"x":1}"#), call("c2", "g", "{}"));
        let (wire_a, wire_b) = (function("c1", "f", r#"{"x":1}"#), function("c2", "g", "{}"));
        let announced = json!({"type": "response.output_item.added", "output_index": 0,
            "item": {"type": "function_call", "id": "fc_c1", "call_id": "c1", "name": "f", "arguments": ""}});
        let arguments = |text: &str| {
            json!({"type": "response.function_call_arguments.delta", "output_index": 0,
            "item_id": "fc_c1", "delta": text})
        };

        check(&[completed(json!([wire_a, wire_b]))], &[a.clone(), b.clone()]);
        check(
            &[
                announced.clone(),
                arguments(r#"{"x""#),
                arguments(":1}"),
                completed(json!([])),
            ],
            std::slice::from_ref(&a),
        );
        check(
            &[
                announced.clone(),
                json!({"type": "response.function_call_arguments.done", "item_id": "fc_c1", "arguments": r#"{"x":1}"#}),
                completed(Value::Null),
            ],
            std::slice::from_ref(&a),
        );
        check(
            &[arguments(r#"{"x":1}"#), announced, completed(json!([]))],
            std::slice::from_ref(&a),
        );
        check(
            &[item_done(1, &wire_b), item_done(0, &wire_a), completed(json!([]))],
            &[a.clone(), b.clone()],
        );
        check(
            &[item_done(0, &wire_a), item_done(0, &wire_a), completed(json!([]))],
            std::slice::from_ref(&a),
        );
        check(&[completed(json!([wire_a, wire_a]))], std::slice::from_ref(&a));
        check(
            &[completed(
                json!([{"type": "function_call", "call_id": "c1", "name": "f", "arguments": {"x": 1}}]),
            )],
            std::slice::from_ref(&a),
        );
        check(
            &[completed(json!([{"type": "function_call", "id": "c2", "name": "g"}]))],
            &[b],
        );
    }

    #[test]
    fn refuses_calls_that_cannot_be_answered() {
        use Unreadable::{Malformed, TooLarge};
        assert!(matches!(
            unreadable(&[completed(json!([{"type": "function_call", "name": "f"}]))]),
            Malformed(_)
        ));
        assert!(matches!(
            unreadable(&[completed(json!([{"type": "function_call", "call_id": "c"}]))]),
            Malformed(_)
        ));
        let same_id = completed(json!([function("c", "f", "{}"), function("c", "g", "{}")]));
        assert!(matches!(unreadable(&[same_id]), Malformed(_)));
        assert!(matches!(
            unreadable(&[completed(json!([function(&"c".repeat(257), "f", "{}")]))]),
            Malformed(_)
        ));
        let four: Vec<Value> = (0..4).map(|n| function(&n.to_string(), "f", "{}")).collect();
        assert_eq!(unreadable(&[completed(json!(four))]), TooLarge("tool_calls_max"));
        let long = completed(json!([function("c", "f", &"x".repeat(501))]));
        assert_eq!(unreadable(&[long]), TooLarge("arguments_bytes_max"));
    }

    #[test]
    fn keeps_only_whole_calls_of_an_answer_that_was_cut() {
        let output = json!([
            message("so far"),
            function("whole", "f", "{}"),
            function("half", "f", r#"{"x":"#),
            {"type": "function_call", "call_id": "running", "name": "f", "arguments": "{}", "status": "incomplete"},
        ]);
        let answer = answered(&[json!({"type": "response.incomplete", "response":
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": output}})]);
        assert_eq!(answer.calls, [call("whole", "f", "{}")]);
        assert_eq!(answer.incomplete_reason.as_deref(), Some("max_output_tokens"));
    }

    #[test]
    fn tells_failure_from_answer() {
        fn check(event: Value, expected: (Option<&str>, Option<&str>)) {
            match read(&stream(&[event]), &[]).ending {
                Some(Ending::Failed { code, message, .. }) => {
                    assert_eq!((code.as_deref(), message.as_deref()), expected);
                }
                other => panic!("not a failure: {other:?}"),
            }
        }
        let said = json!({"code": "server_error", "message": "oops"});
        let expected = (Some("server_error"), Some("oops"));
        check(
            json!({"type": "response.failed", "response": {"status": "failed", "error": said}}),
            expected,
        );
        check(
            json!({"type": "response.completed", "response": {"status": "failed", "error": said}}),
            expected,
        );
        check(
            json!({"type": "response.completed", "response": {"error": said, "output": []}}),
            expected,
        );
        check(
            json!({"type": "error", "error": {"type": "server_error", "message": "oops"}}),
            expected,
        );
        check(
            json!({"type": "error", "code": "server_error", "message": "oops"}),
            expected,
        );
        check(
            json!({"type": "response.failed", "response": {"error": "just words"}}),
            (None, Some("just words")),
        );
        check(json!({"type": "response.failed"}), (None, None));
        check(
            json!({"type": "response.completed", "response": {"status": "cancelled"}}),
            (None, None),
        );
    }

    #[test]
    fn an_error_text_in_place_of_a_response_is_a_failure() {
        let whole = Reader::new(LIMITS, Credential::default(), |_: &str| {})
            .whole(br#"{"error": "Unexpected endpoint. (POST /responses)"}"#);
        assert!(
            matches!(&whole, Ok(Ending::Failed { message: Some(said), .. }) if said.contains("Unexpected endpoint")),
            "{whole:?}"
        );
    }

    #[test]
    fn skips_what_it_does_not_know_and_stops_at_what_it_cannot_read() {
        let noise = b"event: ping\ndata: ping\n\n: hi\n\ndata: {\"type\":\"response.new_thing.delta\",\"delta\":5}\n\n\
            data: {\"no\":\"type\"}\n\ndata: [1]\n\ndata: \n\nevent: response.output_text.delta\ndata: {\"delta\":\"by name\"}\n\n\
            data: {\"type\":\"response.output_text.delta\",\"delta\":7,\"output_index\":\"zero\"}\n\n\
            data: {\"type\":\"response.completed\",\"response\":{\"output\":5,\"usage\":\"none\"}}\n\n";
        let Outcome {
            ending: Some(Ending::Answer(answer)),
            streamed,
            ..
        } = read(noise, &[])
        else {
            panic!("no answer")
        };
        assert_eq!((answer.text.as_str(), streamed.as_str()), ("by name", "by name"));
        assert_eq!(answer.usage, None);

        let malformed = |bytes: &[u8]| matches!(read(bytes, &[]).unreadable, Some(Unreadable::Malformed(_)));
        assert!(malformed(b"data: {\"type\":\"response.comp\n\n"));
        assert!(malformed(format!("data: {}\n\n", "[".repeat(5_000)).as_bytes()));
        assert_eq!(read(b"data: [DONE]\n\n", &[]).unreadable, Some(Unreadable::EndedEarly));
        let still = json!({"type": "response.completed", "response": {"status": "in_progress"}});
        assert!(matches!(unreadable(&[still]), Unreadable::Malformed(_)));
    }

    #[test]
    fn bounds_what_it_holds() {
        let too_large = Unreadable::TooLarge("answer_bytes_max");
        let deltas: Vec<Value> = (0..50).map(|_| delta(0, &"x".repeat(100))).collect();
        assert_eq!(unreadable(&deltas), too_large);
        let items: Vec<Value> = (0..50).map(|place| item_done(place, &message(""))).collect();
        assert_eq!(unreadable(&items), too_large, "many empty items");
        let parts: Vec<Value> = (0..100)
            .map(|part| json!({"type": "response.output_text.delta", "content_index": part, "delta": ""}))
            .collect();
        assert_eq!(unreadable(&parts), too_large, "many empty parts");
        assert_eq!(
            unreadable(&[completed(json!([message(&"x".repeat(4_000))]))]),
            too_large
        );
        let same: Vec<Value> = (0..50).map(|_| item_done(0, &message(&"x".repeat(1_000)))).collect();
        assert_eq!(
            read(&stream(&same), &[]).unreadable,
            None,
            "an item said again takes no more room"
        );
    }

    #[test]
    fn counts_tokens_where_the_provider_counted() {
        let with = |usage: Value| {
            answered(&[json!({"type": "response.completed", "response": {"output": [], "usage": usage}})]).usage
        };
        let counted = json!({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 13});
        let expected = Usage {
            input_tokens: 10,
            output_tokens: 3,
            cached_tokens: 4,
            reasoning_tokens: 2,
            total_tokens: 13,
        };
        assert_eq!(with(counted), Some(expected));
        assert_eq!(
            with(json!({"input_tokens": 0, "output_tokens": 0, "total_tokens": 0})),
            None
        );
        assert_eq!(with(Value::Null), None);
        assert_eq!(
            with(json!({"input_tokens": -1, "output_tokens": 1e300, "total_tokens": "9"})),
            None
        );
    }

    #[test]
    fn reads_an_answer_in_one_piece() {
        let whole =
            |body: Value| Reader::new(LIMITS, Credential::default(), |_: &str| {}).whole(body.to_string().as_bytes());
        let Ok(Ending::Answer(answer)) = whole(json!({"id": "resp_2", "output": [message("hi")]})) else {
            panic!()
        };
        assert_eq!(
            (answer.text.as_str(), answer.response_id.as_deref()),
            ("hi", Some("resp_2"))
        );
        let failed = whole(json!({"status": "failed", "output": [], "error": {"code": "model_error"}}));
        assert!(matches!(failed, Ok(Ending::Failed { .. })));
        for body in [
            json!({}),
            json!([]),
            json!("x"),
            json!({"output": {}}),
            json!({"status": "queued", "output": []}),
        ] {
            assert!(matches!(whole(body.clone()), Err(Unreadable::Malformed(_))), "{body}");
        }
        assert!(matches!(
            Reader::new(LIMITS, Credential::default(), |_: &str| {}).whole(b""),
            Err(Unreadable::Malformed(_))
        ));
    }

    fn event() -> impl Strategy<Value = Value> {
        let text = "[a-zü\u{2028}\n\"\\\\]{0,8}";
        prop_oneof![
            (0..3_u64, text).prop_map(|(place, text)| delta(place, &text)),
            (0..3_u64, text).prop_map(|(place, text)| item_done(place, &message(&text))),
            (0..3_u64, text).prop_map(|(place, text)| item_done(place, &function("c", "f", &text))),
            (0..3_u64, text).prop_map(|(place, text)| json!({"type": "response.function_call_arguments.delta",
                "output_index": place, "delta": text})),
            text.prop_map(|text| json!({"type": text, "response": {"id": text}})),
            Just(completed(json!([]))),
            text.prop_map(|text| completed(json!([message(&text)]))),
            Just(json!({"type": "response.failed", "response": null})),
            Just(json!({"type": "response.output_text.delta", "delta": {"deep": [[[]]]}, "output_index": -1})),
        ]
    }

    proptest! {
        #[test]
        fn reads_the_same_however_the_bytes_were_cut(
            events in proptest::collection::vec(event(), 0..12),
            line_end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
            damage in proptest::option::of((any::<usize>(), any::<u8>())),
            cuts in proptest::collection::vec(any::<usize>(), 0..12),
        ) {
            let mut bytes = String::from_utf8(stream(&events)).unwrap().replace('\n', line_end).into_bytes();
            if let Some((at, byte)) = damage
                && !bytes.is_empty()
            {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            let every_byte: Vec<usize> = (0..bytes.len()).collect();
            let whole = read(&bytes, &[]);
            prop_assert_eq!(&read(&bytes, &cuts), &whole);
            prop_assert_eq!(&read(&bytes, &every_byte), &whole);
        }

        #[test]
        fn never_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Reader::new(LIMITS, Credential::default(), |_: &str| {}).whole(&body);
            let _ = read(&[b"data: ", body.as_slice(), b"\n\n"].concat(), &[]);
        }
    }
}
