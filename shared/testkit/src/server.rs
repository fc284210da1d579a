//! The behaviour of the servers that a provider's setting `server` names: the fields that each accepts, its memory, its
//! refusals, and the shape of its stream. A stub that is [like](crate::StubProvider::like) one of them passes its
//! script exactly the input of a model behind that server.
//!
//! OpenClaw follows recordings of a gateway; Ollama and vLLM follow their sources; OpenAI and LM Studio follow their
//! documentation and their users' reports. None of those four was recorded.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

/// A real server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// Strict: refuses unknown fields, and results of unknown calls. Models named `gpt-4…` have no reasoning.
    OpenAi,
    /// Its store is off, the default.
    Vllm,
    Ollama,
    LmStudio,
    OpenClaw,
    /// Keeps a conversation under the session key.
    Generic,
}

/// The server's state between two requests.
#[derive(Default)]
pub(crate) struct Memory {
    by_key: HashMap<String, Vec<Value>>,
    by_response: HashMap<String, Vec<Value>>,
    /// Whole responses, for clients that request one.
    pub(crate) responses: HashMap<String, Value>,
    /// Reasoning that this server has sealed.
    sealed: HashSet<String>,
}

/// A refused request.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub status: u16,
    pub body: String,
}

impl Refusal {
    fn new(status: u16, message: &str, param: Option<&str>, code: Value) -> Refusal {
        let error = json!({"message": message, "type": "invalid_request_error", "param": param, "code": code});
        Refusal {
            status,
            body: json!({ "error": error }).to_string(),
        }
    }

    /// In OpenClaw's form.
    fn plain(message: &str) -> Refusal {
        let error = json!({"message": message, "type": "invalid_request_error"});
        Refusal {
            status: 400,
            body: json!({ "error": error }).to_string(),
        }
    }
}

const EVERYBODYS: &[&str] = &[
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "stream",
    "user",
    "previous_response_id",
    "store",
    "metadata",
    "max_output_tokens",
    "temperature",
    "top_p",
    "truncation",
    "reasoning",
];
const OPENAIS: &[&str] = &[
    "include",
    "prompt_cache_key",
    "parallel_tool_calls",
    "safety_identifier",
    "background",
    "text",
];

impl Server {
    /// Every server, by its name in settings.
    pub const ALL: [(Server, &'static str); 6] = [
        (Server::OpenAi, "openai"),
        (Server::Vllm, "vllm"),
        (Server::Ollama, "ollama"),
        (Server::LmStudio, "lmstudio"),
        (Server::OpenClaw, "openclaw"),
        (Server::Generic, "generic"),
    ];

    /// The model's input for this request: the server's memory, then the request's input.
    pub(crate) fn hear(self, memory: &Memory, key: &str, body: &Value) -> Result<Vec<Value>, Refusal> {
        let Value::Object(fields) = body else {
            return Err(Refusal::plain("the body is not an object"));
        };
        self.fields_check(fields)?;
        let mut context = self.remembered(memory, key, fields)?;
        context.extend(items(&body["input"]));
        match self {
            Server::OpenAi => {
                pairs_check(&context)?;
                reasoning_check(memory, &context)?;
            }
            Server::Vllm | Server::Ollama => arguments_check(&context)?,
            Server::LmStudio | Server::OpenClaw | Server::Generic => {}
        }
        let has_sealed = |item: &Value| item["type"] == "reasoning" && item["encrypted_content"].is_string();
        if self == Server::Vllm && context.iter().any(has_sealed) {
            return Err(Refusal::new(
                400,
                "Encrypted content is not supported.",
                None,
                json!(400),
            ));
        }
        Ok(context)
    }

    fn fields_check(self, fields: &Map<String, Value>) -> Result<(), Refusal> {
        match self {
            Server::OpenAi => {
                let unknown = fields
                    .keys()
                    .find(|field| !EVERYBODYS.contains(&field.as_str()) && !OPENAIS.contains(&field.as_str()));
                if let Some(field) = unknown {
                    let message = format!("Unknown parameter: '{field}'.");
                    return Err(Refusal::new(400, &message, Some(field), json!("unknown_parameter")));
                }
                let wants_sealed = fields
                    .get("include")
                    .is_some_and(|include| include[0] == "reasoning.encrypted_content");
                if wants_sealed && !reasons(fields) {
                    let message = "Encrypted content is not supported with this model.";
                    return Err(Refusal::new(400, message, Some("include"), Value::Null));
                }
            }
            Server::OpenClaw => {
                let refused = fields
                    .iter()
                    .find(|(field, value)| !EVERYBODYS.contains(&field.as_str()) || value.is_null());
                if let Some((field, _)) = refused {
                    return Err(Refusal::plain(&format!("{field}: Unrecognized key")));
                }
            }
            // They ignore unknown fields.
            Server::Vllm | Server::Ollama | Server::LmStudio | Server::Generic => {}
        }
        Ok(())
    }

    fn remembered(self, memory: &Memory, key: &str, fields: &Map<String, Value>) -> Result<Vec<Value>, Refusal> {
        let previous = fields.get("previous_response_id").and_then(Value::as_str);
        match (self, previous) {
            (Server::OpenClaw | Server::Generic, _) => Ok(memory.by_key.get(key).cloned().unwrap_or_default()),
            (Server::Ollama, _) | (Server::OpenAi | Server::Vllm | Server::LmStudio, None) => Ok(Vec::new()),
            (Server::Vllm, Some(id)) => {
                let message = format!("Response with id '{id}' not found.");
                Err(Refusal::new(404, &message, Some("response_id"), json!(404)))
            }
            (Server::OpenAi | Server::LmStudio, Some(id)) => memory.by_response.get(id).cloned().ok_or_else(|| {
                let message = format!("Previous response with id '{id}' not found.");
                let code = json!("previous_response_not_found");
                Refusal::new(400, &message, Some("previous_response_id"), code)
            }),
        }
    }

    /// The output items of an answer.
    pub(crate) fn output(
        self,
        memory: &mut Memory,
        order: usize,
        body: &Value,
        text: &str,
        calls: &[(String, String, Value)],
    ) -> Vec<Value> {
        let mut output: Vec<Value> = self.thoughts(memory, order, body).into_iter().collect();
        if self == Server::OpenClaw && !calls.is_empty() {
            output.push(
                json!({"type": "message", "id": format!("msg_{order}"), "role": "assistant", "phase": "commentary",
                "content": [{"type": "output_text", "text": text}], "status": "completed"}),
            );
        } else if !text.is_empty() {
            let mut part = json!({"type": "output_text", "text": text});
            if !matches!(self, Server::LmStudio | Server::OpenClaw) {
                part["annotations"] = json!([]);
            }
            output.push(
                json!({"type": "message", "id": format!("msg_{order}"), "role": "assistant", "content": [part],
                "status": "completed"}),
            );
        }
        output.extend(calls.iter().map(|(call_id, name, arguments)| {
            json!({"type": "function_call", "id": format!("fc_{order}_{call_id}"), "call_id": call_id, "name": name,
                "arguments": arguments.to_string(), "status": "completed"})
        }));
        output
    }

    fn thoughts(self, memory: &mut Memory, order: usize, body: &Value) -> Option<Value> {
        let id = format!("rs_{order}");
        match self {
            Server::OpenAi => {
                let fields = body.as_object()?;
                let sealed = format!("sealed-{order}");
                let asked = body["include"][0] == "reasoning.encrypted_content";
                reasons(fields).then(|| {
                    let mut item = json!({"type": "reasoning", "id": id, "summary": []});
                    if asked {
                        memory.sealed.insert(sealed.clone());
                        item["encrypted_content"] = json!(sealed);
                    }
                    item
                })
            }
            Server::Vllm => Some(
                json!({"type": "reasoning", "id": id, "summary": [], "encrypted_content": null, "status": null,
                "content": [{"type": "reasoning_text", "text": "Let me see."}]}),
            ),
            // Not sealed at all, in spite of the name.
            Server::Ollama => Some(
                json!({"type": "reasoning", "id": id, "encrypted_content": "Let me see.",
                "summary": [{"type": "summary_text", "text": "Let me see."}]}),
            ),
            Server::LmStudio | Server::OpenClaw | Server::Generic => None,
        }
    }

    /// Stores the parts of an answered request that this server keeps.
    pub(crate) fn keep(self, memory: &mut Memory, key: &str, body: &Value, context: &[Value], response: &Value) {
        let output = response["output"].as_array().cloned().unwrap_or_default();
        let all: Vec<Value> = context.iter().cloned().chain(output).collect();
        match self {
            Server::OpenClaw | Server::Generic => {
                memory.by_key.insert(key.to_owned(), all);
            }
            Server::OpenAi | Server::LmStudio if body["store"] != false => {
                let id = response["id"].as_str().unwrap_or_default().to_owned();
                memory.by_response.insert(id.clone(), all);
                if self == Server::OpenAi {
                    memory.responses.insert(id, response.clone());
                }
            }
            Server::OpenAi | Server::LmStudio | Server::Vllm | Server::Ollama => {}
        }
    }

    /// The events of a stream, by type; the last one carries the whole response.
    pub(crate) fn events(self, response: &Value) -> Vec<(&'static str, Value)> {
        let mut begun = response.clone();
        begun["status"] = json!("in_progress");
        begun["output"] = json!([]);
        let mut events = vec![
            ("response.created", json!({"response": begun})),
            ("response.in_progress", json!({"response": begun})),
        ];
        for (index, item) in response["output"].as_array().into_iter().flatten().enumerate() {
            let mut added = item.clone();
            let arguments = item["arguments"].as_str().unwrap_or_default();
            // OpenClaw sends them at once.
            let in_pieces = item["type"] == "function_call" && self != Server::OpenClaw;
            if in_pieces {
                added["arguments"] = json!("");
            }
            if item["type"] == "message" {
                added["content"] = json!([]);
            }
            events.push((
                "response.output_item.added",
                json!({"output_index": index, "item": added}),
            ));
            let place = |name: &str, value: &str| json!({"item_id": item["id"], "output_index": index, "content_index": 0, name: value});
            if in_pieces {
                let half = arguments.len() / 2;
                for piece in [&arguments[..half], &arguments[half..]] {
                    events.push(("response.function_call_arguments.delta", place("delta", piece)));
                }
                events.push(("response.function_call_arguments.done", place("arguments", arguments)));
            }
            if item["type"] == "reasoning" && self == Server::Vllm {
                events.push(("response.reasoning_text.delta", place("delta", "Let me see.")));
            }
            for text in item["content"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|part| part["text"].as_str())
            {
                if item["type"] == "message" {
                    for piece in text.split_inclusive(' ') {
                        events.push(("response.output_text.delta", place("delta", piece)));
                    }
                    events.push(("response.output_text.done", place("text", text)));
                }
            }
            events.push((
                "response.output_item.done",
                json!({"output_index": index, "item": item}),
            ));
        }
        events.push(("response.completed", json!({"response": response})));
        events
    }
}

/// A request's input as items.
pub(crate) fn items(input: &Value) -> Vec<Value> {
    match input {
        Value::String(text) => vec![json!({"type": "message", "role": "user", "content": text})],
        Value::Array(items) => items.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

fn reasons(fields: &Map<String, Value>) -> bool {
    fields["model"]
        .as_str()
        .is_some_and(|model| !model.starts_with("gpt-4"))
}

/// Every result answers an earlier call, and every call has its result.
fn pairs_check(context: &[Value]) -> Result<(), Refusal> {
    let mut open: Vec<&str> = Vec::new();
    let mut known: HashSet<&str> = HashSet::new();
    for item in context {
        let call_id = item["call_id"].as_str().unwrap_or_default();
        if item["type"] == "function_call" {
            known.insert(call_id);
            open.push(call_id);
        } else if item["type"] == "function_call_output" {
            if !known.contains(call_id) {
                let message = format!("No tool call found for function call output with call_id {call_id}.");
                return Err(Refusal::new(400, &message, Some("input"), Value::Null));
            }
            open.retain(|waits| *waits != call_id);
        }
    }
    match open.first() {
        Some(call_id) => {
            let message = format!("No tool output found for function call {call_id}.");
            Err(Refusal::new(400, &message, Some("input"), Value::Null))
        }
        None => Ok(()),
    }
}

/// Returned reasoning is this server's own, complete, and followed by its output.
fn reasoning_check(memory: &Memory, context: &[Value]) -> Result<(), Refusal> {
    for (place, item) in context
        .iter()
        .enumerate()
        .filter(|(_, item)| item["type"] == "reasoning")
    {
        let id = item["id"].as_str().unwrap_or_default();
        // Reasoning in the server's own memory has no seal.
        let is_remembered = memory.by_response.values().flatten().any(|known| known == item);
        let sealed = item["encrypted_content"].as_str();
        if !is_remembered && sealed.is_none() {
            let message =
                format!("Item with id '{id}' not found. Items are not persisted when `store` is set to false.");
            return Err(Refusal::new(404, &message, Some("input"), Value::Null));
        }
        if sealed.is_some_and(|sealed| !memory.sealed.contains(sealed)) {
            let message = format!("The encrypted content for item {id} could not be verified.");
            return Err(Refusal::new(400, &message, None, json!("invalid_encrypted_content")));
        }
        let follows = context.get(place + 1).map(|item| &item["type"]);
        if follows.is_none_or(|kind| kind == "function_call_output") {
            let message = format!("Item '{id}' of type 'reasoning' was provided without its required following item.");
            return Err(Refusal::new(400, &message, Some("input"), Value::Null));
        }
    }
    Ok(())
}

/// They parse the arguments of returned calls.
fn arguments_check(context: &[Value]) -> Result<(), Refusal> {
    for item in context.iter().filter(|item| item["type"] == "function_call") {
        let arguments = item["arguments"].as_str().unwrap_or_default();
        if let Err(error) = serde_json::from_str::<Map<String, Value>>(arguments) {
            let message = format!("failed to parse function call arguments: {error}");
            return Err(Refusal::new(400, &message, None, Value::Null));
        }
    }
    Ok(())
}
