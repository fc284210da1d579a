//! The reference: a service in memory that passes every case, and the driver that connects it. A crash drops the call in progress;
//! what is in the queue counts as stored.
//!
//! In reading order: [`queue`] (what everything means), `worker` (the calls), [`bug`] (planted bugs).

pub mod bug;
pub mod queue;
mod worker;

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

pub use self::worker::Form;
use self::{
    bug::Bug,
    queue::{ITEMS_MAX, Queue},
    worker::Session,
};
use crate::protocol::{Answer, Feature, Hello, Mode, Op, PROTOCOL, Request, Tool, Verb};

/// Sessions are never removed; a run of all cases makes about a hundred.
const SESSIONS_MAX: usize = 10_000;

pub struct Reference {
    bug: Option<Bug>,
    form: Form,
    agent_url: String,
    sessions: BTreeMap<String, Arc<Session>>,
}

impl Reference {
    pub fn new(bug: Option<Bug>, form: Form) -> Reference {
        let (agent_url, sessions) = (String::new(), BTreeMap::new());
        Reference {
            bug,
            form,
            agent_url,
            sessions,
        }
    }

    pub fn answer(&mut self, request: Request) -> Answer {
        let Request { session, by, verb } = request;
        let session = session.unwrap_or_default();
        match (verb, by) {
            (
                Verb::Hello {
                    protocol: PROTOCOL,
                    agent_url,
                },
                _,
            ) => {
                self.agent_url = agent_url;
                return Answer::ok(self.hello());
            }
            (Verb::Hello { .. }, _) => return Answer::refused("protocol", format!("it is {PROTOCOL} here")),
            (Verb::Crash { .. }, _) => self.sessions.values().for_each(|session| session.with(Queue::crash)),
            (Verb::Session { .. }, _) if self.sessions.len() < SESSIONS_MAX => {
                let started = Session::start(Queue::new(self.bug), self.form, &self.agent_url);
                self.sessions.insert(session, started);
            }
            (verb, Some(by)) => {
                return match self.sessions.get(&session) {
                    Some(session) => session.with(|queue| queue.answer(by, verb, Instant::now())),
                    None => Answer::refused("not_found", "no such session"),
                };
            }
            (_, None) => return Answer::refused("invalid", "no author, or too many sessions"),
        }
        Answer::done()
    }

    fn hello(&self) -> Hello {
        Hello {
            name: self
                .bug
                .map_or("reference".to_owned(), |bug| format!("reference with bug {bug:?}")),
            modes: Mode::ALL.to_vec(),
            ops: Op::ALL.to_vec(),
            features: Feature::ALL.to_vec(),
            tool: Some(Tool {
                name: "look".to_owned(),
                ..Tool::default()
            }),
            queue_items_max: Some(ITEMS_MAX),
            ..Hello::default()
        }
    }
}
