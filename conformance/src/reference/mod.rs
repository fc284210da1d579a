//! The reference: a service in memory that passes every case, and the driver that connects it. A crash drops the call in progress;
//! what is in the queue counts as stored.
//!
//! In reading order: [`queue`] (what everything means), `worker` (the calls), [`bug`] (planted bugs).

pub mod bug;
pub mod queue;
mod worker;

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Map;
use tokio::time::Instant;

pub use self::worker::Form;
use self::{
    bug::Bug,
    queue::{Edit, ITEMS_MAX, NewItem, Queue},
    worker::Session,
};
use crate::protocol::{Answer, Feature, Gate, Hello, Mode, Op, PROTOCOL, Request, Tool};

/// Sessions are never removed; a run of all cases makes about fifty.
const SESSIONS_MAX: usize = 10_000;

pub struct Reference {
    bug: Option<Bug>,
    form: Form,
    agent_url: String,
    sessions: BTreeMap<String, Arc<Session>>,
}

impl Reference {
    pub fn new(bug: Option<Bug>, form: Form) -> Reference {
        Reference {
            bug,
            form,
            agent_url: String::new(),
            sessions: BTreeMap::new(),
        }
    }

    pub fn answer(&mut self, request: Request) -> Answer {
        let session = match &request {
            Request::Hello { protocol, agent_url } => {
                if *protocol != PROTOCOL {
                    return Answer::refused("protocol", format!("it is {PROTOCOL} here"));
                }
                self.agent_url.clone_from(agent_url);
                return Answer::ok(self.hello());
            }
            Request::Session { session, .. } => {
                if self.sessions.len() >= SESSIONS_MAX {
                    return Answer::refused("too_many", "too many sessions");
                }
                let started = Session::start(Queue::new(self.bug), self.form, &self.agent_url);
                self.sessions.insert(session.clone(), started);
                return Answer::done();
            }
            Request::Crash { .. } => {
                self.sessions.values().for_each(|session| session.with(Queue::crash));
                return Answer::done();
            }
            Request::Send { session, .. }
            | Request::Edit { session, .. }
            | Request::Order { session, .. }
            | Request::Stop { session, .. }
            | Request::Hold { session, .. }
            | Request::Resume { session, .. }
            | Request::Queue { session }
            | Request::Outcome { session, .. } => session,
        };
        match self.sessions.get(session) {
            Some(session) => session.with(|queue| of_session(queue, request)),
            None => Answer::refused("not_found", "no such session"),
        }
    }

    fn hello(&self) -> Hello {
        let bug = self.bug.map_or(String::new(), |bug| format!(" with bug {bug:?}"));
        Hello {
            name: format!("reference{bug}"),
            modes: Mode::ALL.to_vec(),
            ops: Op::ALL.to_vec(),
            features: Feature::ALL.to_vec(),
            differs: BTreeMap::new(),
            tool: Some(Tool {
                name: "look".to_owned(),
                arguments: Map::new(),
            }),
            queue_items_max: Some(ITEMS_MAX),
        }
    }
}

fn of_session(queue: &mut Queue, request: Request) -> Answer {
    match request {
        Request::Send {
            item: id,
            by,
            mode,
            text,
            kind,
            ..
        } => queue.send(
            NewItem {
                id,
                by,
                mode,
                kind,
                text,
            },
            Instant::now(),
        ),
        Request::Edit {
            item,
            op,
            by,
            revision,
            turn,
            text,
            ..
        } => queue.edit(Edit {
            item: &item,
            op,
            by: &by,
            revision: revision.as_deref(),
            turn: turn.as_deref(),
            text,
        }),
        Request::Order { items, revision, .. } => queue.order(&items, revision.as_deref()),
        Request::Stop { by, then, turn, .. } => queue.stop(&by, then, turn.as_deref()),
        Request::Hold { by, running, .. } => queue.hold(&by, running),
        Request::Resume {
            gate: Gate::Stopped, ..
        } => queue.resume(),
        Request::Resume { gate: Gate::Pause, .. } => queue.pause_end(),
        Request::Queue { .. } => Answer::ok(queue.look()),
        Request::Outcome { item, .. } => match queue.state(&item) {
            Some(outcome) => Answer::ok(outcome),
            None => Answer::refused("not_found", "no such item"),
        },
        Request::Hello { .. } | Request::Session { .. } | Request::Crash { .. } => {
            Answer::refused("invalid", "not of a session")
        }
    }
}
