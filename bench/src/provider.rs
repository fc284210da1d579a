//! The provider of all subjects: answers at once or after a delay, and keeps a [`Book`] of the calls. A separate process on one
//! thread.

use std::{convert::Infallible, io::Write, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State},
    http::header::CONTENT_TYPE,
    response::Response,
    routing::{get, post},
};
use futures::stream;
use serde_json::{Value, json};

use crate::{
    arguments::ProviderArguments,
    book::{Book, Seen},
    work::{Answer, mark, marked, reply},
};

const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
const HISTORY: (&str, &str) = ("task_history", "{}");
const MESSAGE: (&str, &str) = ("task_message", r#"{"body": "Looking into it."}"#);
/// Field of a request that carries tool results.
const RESULT: &[u8] = b"function_call_output";

struct Provider {
    answer: Answer,
    delay: Duration,
    whole: Bytes,
    streamed: Vec<Bytes>,
    book: Book,
}

/// Serves until it is killed; its first line of output is its address.
pub(crate) async fn serve(arguments: ProviderArguments) -> anyhow::Result<std::process::ExitCode> {
    let text = reply(arguments.reply_bytes);
    let provider = Arc::new(Provider {
        answer: arguments.answer,
        delay: Duration::from_millis(arguments.delay_ms),
        whole: response(&[message(&text)]).to_string().into(),
        streamed: events(&text),
        book: Book::new(arguments.answer.calls_a_turn()),
    });
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .context("the provider could not listen")?;
    let mut output = std::io::stdout();
    writeln!(output, "{}", listener.local_addr().context("no address")?)?;
    output.flush()?;
    let router = Router::new()
        .route("/v1/responses", post(respond))
        .route("/seen", get(seen))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(provider);
    axum::serve(listener, router).await.context("the provider ended")?;
    Ok(std::process::ExitCode::SUCCESS)
}

async fn seen(State(provider): State<Arc<Provider>>) -> Json<Seen> {
    Json(provider.book.seen())
}

async fn respond(State(provider): State<Arc<Provider>>, request: Bytes) -> Response {
    let marked = marked(&request);
    let call = provider.book.begin(marked);
    if !provider.delay.is_zero() {
        tokio::time::sleep(provider.delay).await;
    }
    let response = match provider.answer {
        Answer::HeldOnEven if marked.is_some_and(|(_, number)| number % 2 == 0) => std::future::pending().await,
        Answer::Whole | Answer::HeldOnEven => json_body(provider.whole.clone().into()),
        Answer::Streamed => event_stream(provider.streamed.clone()),
        Answer::AfterTool | Answer::AfterTools if memchr::memmem::find(&request, RESULT).is_some() => {
            json_body(provider.whole.clone().into())
        }
        Answer::AfterTool => calling(marked, &[HISTORY]),
        Answer::AfterTools => calling(marked, &[HISTORY, MESSAGE, HISTORY]),
    };
    call.answered();
    response
}

fn json_body(body: Body) -> Response {
    Response::builder()
        .header(CONTENT_TYPE, "application/json")
        .body(body)
        .expect("a response from constants")
}

fn event_stream(events: Vec<Bytes>) -> Response {
    Response::builder()
        .header(CONTENT_TYPE, "text/event-stream")
        .body(Body::from_stream(stream::iter(
            events.into_iter().map(Ok::<_, Infallible>),
        )))
        .expect("a response from constants")
}

fn message(text: &str) -> Value {
    json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

fn response(output: &[Value]) -> Value {
    json!({"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "bench",
        "output": output, "usage": {"input_tokens": 420, "output_tokens": 16, "total_tokens": 436}})
}

/// Calls of tools that every agent has, by name and arguments. Their call ids carry pair and number, since only the call id
/// returns with the result.
fn calling(marked: Option<(u32, u32)>, tools: &[(&str, &str)]) -> Response {
    let (pair, number) = marked.unwrap_or_default();
    let calls: Vec<Value> = tools
        .iter()
        .enumerate()
        .map(|(place, (name, arguments))| {
            json!({
                "type": "function_call", "id": format!("fc_{number}_{place}"),
                "call_id": format!("{}{place}", mark(pair, number)),
                "name": name, "arguments": arguments, "status": "completed",
            })
        })
        .collect();
    json_body(response(&calls).to_string().into())
}

/// The same text word by word.
fn events(text: &str) -> Vec<Bytes> {
    let event = |kind: &str, mut data: Value| {
        data["type"] = json!(kind);
        Bytes::from(format!("event: {kind}\ndata: {data}\n\n"))
    };
    let begun = json!({"response": {"id": "resp_1", "status": "in_progress", "output": []}});
    let mut events = vec![event("response.created", begun)];
    events.extend(text.split_inclusive(' ').map(|word| {
        let delta = json!({"output_index": 0, "content_index": 0, "delta": word});
        event("response.output_text.delta", delta)
    }));
    events.push(event(
        "response.output_item.done",
        json!({"output_index": 0, "item": message(text)}),
    ));
    events.push(event(
        "response.completed",
        json!({"response": response(&[message(text)])}),
    ));
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}
