//! The model's server: receives the service's calls in the two common forms, `/v1/responses` and `/v1/chat/completions`, and holds
//! each until the case decides. Any path may stand before `/v1`. What a call contains is read here; which call was due is not known here.

use std::{convert::Infallible, time::Duration};

use anyhow::{Context, bail};
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use futures::stream;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use crate::protocol::Tool;

const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Calls that wait to be looked at; more are refused with 503.
const CALLS_MAX: usize = 256;

/// The server. It ends when this is dropped.
pub struct Model {
    pub url: String,
    pub calls: mpsc::Receiver<Call>,
    server: JoinHandle<()>,
}

impl Drop for Model {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Model {
    pub async fn start() -> anyhow::Result<Model> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.context("the model's server could not listen")?;
        let url = format!("http://{}", listener.local_addr()?);
        let (tx, calls) = mpsc::channel(CALLS_MAX);
        let router = Router::new()
            .fallback(receive)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(tx);
        let server = tokio::spawn(async move {
            // Ends only with the process: accept errors are retried by axum.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Model { url, calls, server })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Responses,
    Chat,
}

/// A call of the service, held until it is answered.
#[derive(Debug)]
pub struct Call {
    /// What stood before `/v1`.
    pub path: String,
    /// The texts of user messages after the model's last output.
    pub text: String,
    /// The tool calls whose results it brings.
    pub results: Vec<String>,
    form: Form,
    is_stream: bool,
    held: Held,
}

#[derive(Debug)]
enum Held {
    Waiting(oneshot::Sender<Response>),
    /// The answer has begun and does not go on.
    Hanging(mpsc::Sender<Bytes>),
    Answered,
}

async fn receive(State(calls): State<mpsc::Sender<Call>>, uri: Uri, body: Bytes) -> Response {
    let (tx, answer) = oneshot::channel();
    let call = match Call::read(uri.path(), &body, tx) {
        Ok(call) => call,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error:#}")).into_response(),
    };
    if calls.try_send(call).is_err() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    // The server drops this future when the client closes the connection; the sender sees that.
    let answer = answer.await;
    answer.unwrap_or_else(|_| StatusCode::SERVICE_UNAVAILABLE.into_response())
}

impl Call {
    fn read(path: &str, body: &[u8], held: oneshot::Sender<Response>) -> anyhow::Result<Call> {
        let forms = [("/v1/responses", Form::Responses), ("/v1/chat/completions", Form::Chat)];
        let found = forms.map(|(end, form)| Some((path.strip_suffix(end)?, form)));
        let found = found.into_iter().flatten().next();
        let (path, form) = found.context("only /v1/responses and /v1/chat/completions are served")?;
        let body: Value = serde_json::from_slice(body).context("the body is not JSON")?;
        let (text, results) = match (form, &body["input"], &body["messages"]) {
            (Form::Responses, Value::String(text), _) => (text.clone(), Vec::new()),
            (Form::Responses, Value::Array(items), _) | (Form::Chat, _, Value::Array(items)) => news(items),
            _ => bail!("neither `input` nor `messages`"),
        };
        Ok(Call {
            path: path.to_owned(),
            text,
            results,
            form,
            is_stream: body["stream"] == true,
            held: Held::Waiting(held),
        })
    }

    /// Returns when the client has closed the connection of a call without an answer; never for an answered one.
    pub async fn closed(&mut self) {
        match &mut self.held {
            Held::Waiting(tx) => tx.closed().await,
            Held::Hanging(tx) => tx.closed().await,
            Held::Answered => std::future::pending().await,
        }
    }

    pub fn is_answered(&self) -> bool {
        matches!(self.held, Held::Answered)
    }

    fn answer(&mut self, response: Response) -> anyhow::Result<()> {
        match std::mem::replace(&mut self.held, Held::Answered) {
            Held::Waiting(tx) => tx.send(response).ok().context("the service had closed the call"),
            Held::Hanging(_) | Held::Answered => bail!("the call has an answer already"),
        }
    }

    pub fn reply(&mut self, text: &str) -> anyhow::Result<()> {
        let output = match self.form {
            Form::Responses => json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}]}),
            Form::Chat => json!({"role": "assistant", "content": text}),
        };
        self.answer(self.output(&output, "stop"))
    }

    /// The model asks for a tool.
    pub fn ask(&mut self, call_id: &str, tool: &Tool) -> anyhow::Result<()> {
        let arguments = serde_json::to_string(&tool.arguments).expect("arguments have text keys");
        let output = match self.form {
            Form::Responses => json!({"type": "function_call", "id": "fc_1", "call_id": call_id, "status": "completed",
                "name": tool.name, "arguments": arguments}),
            Form::Chat => {
                json!({"role": "assistant", "content": null, "tool_calls": [{"index": 0, "id": call_id, "type": "function",
                "function": {"name": tool.name, "arguments": arguments}}]})
            }
        };
        self.answer(self.output(&output, "tool_calls"))
    }

    pub fn fail(&mut self, status: u16) -> anyhow::Result<()> {
        let status = StatusCode::from_u16(status).context("not a status")?;
        let error = json!({"error": {"type": "server_error", "code": "unavailable", "message": "asked to fail"}});
        self.answer((status, Json(error)).into_response())
    }

    /// Begins an answer and says nothing more.
    pub fn hang(&mut self) -> anyhow::Result<()> {
        let (tx, rx) = mpsc::channel(1);
        // A comment of an event stream, or white space before a JSON text.
        let begin = if self.is_stream { ": hanging\n\n" } else { " " };
        tx.try_send(Bytes::from_static(begin.as_bytes()))
            .context("a new channel is empty")?;
        let rest = async |mut rx: mpsc::Receiver<Bytes>| Some((Ok::<_, Infallible>(rx.recv().await?), rx));
        let body = Body::from_stream(stream::unfold(rx, rest));
        self.answer(([(header::CONTENT_TYPE, self.content_type())], body).into_response())?;
        self.held = Held::Hanging(tx);
        Ok(())
    }

    fn content_type(&self) -> &'static str {
        match self.is_stream {
            true => "text/event-stream",
            false => "application/json",
        }
    }

    fn output(&self, output: &Value, finish: &str) -> Response {
        let usage = json!({"input_tokens": 1, "output_tokens": 1, "total_tokens": 2});
        let body = match self.form {
            Form::Responses => {
                let whole = json!({"id": "resp_1", "object": "response", "created_at": 0, "status": "completed", "model": "conformance",
                    "output": [output], "usage": usage, "error": null});
                if !self.is_stream {
                    return Json(whole).into_response();
                }
                let events = [
                    json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}),
                    json!({"type": "response.output_item.added", "output_index": 0, "item": output}),
                    json!({"type": "response.output_item.done", "output_index": 0, "item": output}),
                    json!({"type": "response.completed", "response": whole}),
                ];
                let event =
                    |data: &Value| format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default());
                events.iter().map(event).collect::<String>()
            }
            Form::Chat => {
                let chunk = |choice: Value, object| json!({"id": "chat_1", "object": object, "created": 0, "model": "conformance", "choices": [choice]});
                if !self.is_stream {
                    let choice = json!({"index": 0, "message": output, "finish_reason": finish});
                    return Json(chunk(choice, "chat.completion")).into_response();
                }
                let choices = [
                    json!({"index": 0, "delta": output, "finish_reason": null}),
                    json!({"index": 0, "delta": {}, "finish_reason": finish}),
                ];
                let event = |choice| format!("data: {}\n\n", chunk(choice, "chat.completion.chunk"));
                choices.map(event).concat() + "data: [DONE]\n\n"
            }
        };
        ([(header::CONTENT_TYPE, self.content_type())], body).into_response()
    }
}

/// What came after the model's last output: user texts, and the ids of the tool calls whose results are there.
fn news(items: &[Value]) -> (String, Vec<String>) {
    let is_output = |item: &Value| {
        let kind = item["type"].as_str().unwrap_or_default();
        item["role"] == "assistant" || kind == "function_call" || kind == "reasoning"
    };
    let from = items.iter().rposition(is_output).map_or(0, |at| at + 1);
    let (mut text, mut results) = (String::new(), Vec::new());
    for item in &items[from..] {
        if item["role"] == "user" {
            let content = &item["content"];
            let parts = content.as_array().into_iter().flatten().map(|part| &part["text"]);
            text.extend(std::iter::once(content).chain(parts).filter_map(Value::as_str));
        }
        let result = item["tool_call_id"].as_str().or(item["call_id"].as_str());
        results.extend(result.map(str::to_owned));
    }
    (text, results)
}

/// Waits for `closed`, at most `limit`; whether it came.
pub async fn closed_within(call: &mut Call, limit: Duration) -> bool {
    tokio::time::timeout(limit, call.closed()).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_begin_after_the_last_output() {
        let check = |items: Value, text: &str, results: &[&str]| {
            let (found, ids) = news(items.as_array().unwrap());
            assert_eq!(found, text, "{items}");
            assert_eq!(ids, results, "{items}");
        };
        let plain = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]);
        check(plain, "a", &[]);
        let responses = json!([{"role": "user", "content": "a"}, {"type": "function_call", "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": "no"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]}]);
        check(responses, "b", &["c"]);
        let chat = json!([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": []},
            {"role": "tool", "tool_call_id": "c", "content": "x"}]);
        check(chat, "", &["c"]);
    }

    #[test]
    fn only_the_two_forms_are_read() {
        let read = |path: &str, body: &str| Call::read(path, body.as_bytes(), oneshot::channel().0);
        assert_eq!(read("/r1/v1/responses", r#"{"input":"hello"}"#).unwrap().path, "/r1");
        assert_eq!(read("/v1/chat/completions", r#"{"messages":[]}"#).unwrap().text, "");
        let messages = r#"{"messages":[]}"#;
        for (path, body) in [
            ("/v1/models", "{}"),
            ("/v1/responses", "{"),
            ("/v1/responses", messages),
        ] {
            assert!(read(path, body).is_err(), "{path} {body}");
        }
    }
}
