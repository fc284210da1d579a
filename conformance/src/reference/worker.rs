//! Makes the calls of one session, one at a time, and drops the call in progress when the queue says so.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hyper::Method;
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::queue::{Next, Part, Queue};
use crate::http;

const CALL_LIMIT: Duration = Duration::from_secs(600);
/// A rest without a time.
const LONG: Duration = Duration::from_secs(3_600);

/// The form of the calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Form {
    Responses,
    Chat,
}

pub(super) struct Session {
    queue: Mutex<Queue>,
    changed: Notify,
}

impl Session {
    /// Starts a worker, which runs until the process ends.
    pub(super) fn start(queue: Queue, form: Form, agent_url: &str) -> Arc<Session> {
        let session = Arc::new(Session {
            queue: Mutex::new(queue),
            changed: Notify::new(),
        });
        tokio::spawn(Arc::clone(&session).work(form, agent_url.to_owned()));
        session
    }

    /// Reads or changes the queue, and wakes the worker.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        let result = change(&mut self.queue());
        self.changed.notify_one();
        result
    }

    /// A panic in another thread ends the process anyway.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn work(self: Arc<Session>, form: Form, agent_url: String) {
        loop {
            let next = self.queue().next(Instant::now());
            match next {
                Next::Rest(at) => {
                    let at = at.unwrap_or_else(|| Instant::now() + LONG);
                    // Both branches may be dropped: the loop decides again.
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = sleep_until(at) => {}
                    }
                }
                Next::Call(parts) => {
                    let call = call(form, &agent_url, &parts);
                    let mut call = std::pin::pin!(call);
                    let answer = loop {
                        // Dropping the call closes its connection, which is the purpose.
                        tokio::select! {
                            answer = &mut call => break Some(answer),
                            () = self.changed.notified() => if self.queue().is_cut() { break None },
                        }
                    };
                    if let Some(answer) = answer {
                        self.queue().answered(answer, Instant::now());
                    }
                }
            }
        }
    }
}

async fn call(form: Form, agent_url: &str, parts: &[Part]) -> Option<Part> {
    let (path, field) = match form {
        Form::Responses => ("responses", "input"),
        Form::Chat => ("chat/completions", "messages"),
    };
    let items: Vec<Value> = parts.iter().flat_map(|part| part_items(form, part)).collect();
    let body = json!({"model": "reference", "stream": false, field: items});
    let url = format!("{agent_url}/v1/{path}");
    match http::send(Method::POST, &url, None, Some(&body), CALL_LIMIT).await {
        Ok((200, answer)) => read(form, &answer),
        Ok(_) | Err(_) => None,
    }
}

fn part_items(form: Form, part: &Part) -> Vec<Value> {
    match (part, form) {
        (Part::User(text), _) => vec![json!({"role": "user", "content": text})],
        (Part::Reply(text), _) => vec![json!({"role": "assistant", "content": text})],
        (Part::Tool(call, name), Form::Responses) => vec![
            json!({"type": "function_call", "call_id": call, "name": name, "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": call, "output": "done"}),
        ],
        (Part::Tool(call, name), Form::Chat) => vec![
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": call, "type": "function", "function": {"name": name, "arguments": "{}"}}]}),
            json!({"role": "tool", "tool_call_id": call, "content": "done"}),
        ],
    }
}

fn read(form: Form, answer: &Value) -> Option<Part> {
    let (text, call, name) = match form {
        Form::Responses => {
            let item = &answer["output"][0];
            (&item["content"][0]["text"], &item["call_id"], &item["name"])
        }
        Form::Chat => {
            let message = &answer["choices"][0]["message"];
            let call = &message["tool_calls"][0];
            (&message["content"], &call["id"], &call["function"]["name"])
        }
    };
    match text.as_str() {
        Some(text) => Some(Part::Reply(text.to_owned())),
        None => Some(Part::Tool(call.as_str()?.to_owned(), name.as_str()?.to_owned())),
    }
}
