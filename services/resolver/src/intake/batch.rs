//! A whole batch: every decision sees the ones before it, every accepted notification gets its place. Pure.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{Outgoing, Root, Timestamp, session::SessionResolved};
use domain::{AccountId, Conversation, NotificationState, QueueMode, SessionKey, TaskId};
use time::OffsetDateTime;

use super::{
    decide::{Accepted, AcceptedTask, Decision, Refused, decide},
    facts::{Fact, Facts, Known},
    received::Received,
    resolve::Finding,
    sessions::{Resolved, Session},
};
use storage::session::items_append::NewItem;

use crate::SOURCE;

/// What was decided about a batch, each in the order of the stream.
#[derive(Debug, Default)]
pub struct Decided<'a> {
    pub accepted: Vec<(&'a Received, Accepted)>,
    pub refused: Vec<(&'a Received, Refused)>,
    pub duplicates: u64,
}

/// Decides about each message. What is decided becomes a fact for the next.
pub fn decide_all<'a>(batch: &'a [Received], facts: &mut Facts, hops_max: u16) -> Decided<'a> {
    let mut decided = Decided::default();
    for received in batch {
        match decide(received, facts, hops_max) {
            Decision::Accept(accepted) => {
                remember_accepted(received, &accepted, facts);
                decided.duplicates += accepted.duplicates;
                decided.accepted.push((received, accepted));
            }
            Decision::Duplicate => decided.duplicates += 1,
            Decision::Refuse(refused) => {
                remember_refused(received, &refused, facts);
                decided.refused.push((received, refused));
            }
        }
    }
    decided
}

fn remember_accepted(received: &Received, accepted: &Accepted, facts: &mut Facts) {
    let account = account_of(received);
    if let AcceptedTask::New(task) = &accepted.task {
        facts.add(account, Fact::Task(task.clone()));
    }
    for entry in &accepted.entries {
        let known = Known {
            hash: received.hash,
            agent: Some(entry.agent),
            state: NotificationState::Queued,
        };
        facts.add(account, Fact::Notification(entry.id.clone(), known));
    }
}

fn remember_refused(received: &Received, refused: &Refused, facts: &mut Facts) {
    if let Some(account) = received.account.as_ref().filter(|_| refused.keep_row) {
        let known = Known {
            hash: received.hash,
            agent: refused.agent,
            state: NotificationState::Refused,
        };
        facts.add(account, Fact::Notification(received.id.clone(), known));
    }
}

/// Of a notification that was accepted.
pub fn account_of(received: &Received) -> &AccountId {
    received.account.as_ref().expect("without an account it is refused")
}

/// Every conversation that something was accepted for.
pub fn conversations(decided: &Decided<'_>, facts: &Facts) -> BTreeSet<Conversation> {
    decided
        .accepted
        .iter()
        .flat_map(|(received, accepted)| {
            accepted
                .entries
                .iter()
                .map(|entry| conversation(received, accepted, entry.agent, facts))
        })
        .collect()
}

pub fn conversation(received: &Received, accepted: &Accepted, agent: domain::AgentId, facts: &Facts) -> Conversation {
    let account = account_of(received);
    let scope = facts
        .account(account)
        .expect("without an account it is refused")
        .session_scope;
    Conversation::of(account, scope, accepted.task.id(), agent)
}

/// Whatever was accepted for an agent that was removed while we looked is refused after all, as a whole.
pub fn refuse_removed(decided: &mut Decided<'_>, resolved: &Resolved, facts: &Facts) {
    if resolved.refused.is_empty() {
        return;
    }
    let accepted = std::mem::take(&mut decided.accepted);
    for (received, accepted) in accepted {
        let refusal = accepted.entries.iter().find_map(|entry| {
            resolved
                .refused
                .get(&conversation(received, &accepted, entry.agent, facts))
        });
        match refusal {
            None => decided.accepted.push((received, accepted)),
            Some(refusal) => decided.refused.push((
                received,
                Refused {
                    refusal: refusal.clone(),
                    agent: None,
                    account_exists: true,
                    task: accepted.task.id().cloned(),
                    keep_row: received.given_id.is_some() && accepted.entries.iter().all(|entry| !entry.requeue),
                },
            )),
        }
    }
}

/// The rows of what was accepted, and the sessions as they are afterwards.
#[derive(Debug, Default)]
pub struct Queued<'a> {
    pub new: Vec<NewItem<'a>>,
    pub again: Vec<NewItem<'a>>,
    pub work: Vec<Work<'a>>,
}

/// What a session got from this batch.
#[derive(Debug)]
pub struct Work<'a> {
    pub conversation: &'a Conversation,
    pub session: Session,
    pub items: u64,
    /// Place of the newest.
    pub position: i64,
    /// The newest notification, and its task as its client spelled it.
    pub newest: &'a Received,
    pub task: Option<&'a TaskId>,
}

/// Gives every accepted notification its place: the order in a queue is the order of the stream.
pub fn queue<'a>(decided: &'a Decided<'a>, facts: &Facts, sessions: &'a BTreeMap<Conversation, Session>) -> Queued<'a> {
    let mut queued = Queued::default();
    let mut work: BTreeMap<&Conversation, Work<'a>> = BTreeMap::new();
    for (received, accepted) in &decided.accepted {
        for entry in &accepted.entries {
            let conversation = conversation(received, accepted, entry.agent, facts);
            let (conversation, session) = sessions
                .get_key_value(&conversation)
                .expect("every accepted notification has a session");
            let task = accepted.task.id();
            let got = work.entry(conversation).or_insert(Work {
                conversation,
                session: *session,
                items: 0,
                position: session.queue_tail,
                newest: received,
                task,
            });
            got.items += 1;
            got.position += 1;
            (got.newest, got.task) = (received, task);
            let row = NewItem {
                id: &entry.id,
                task,
                agent: Some(entry.agent),
                queued: Some((session.id, got.position)),
                ..row(received, account_of(received))
            };
            if entry.requeue {
                queued.again.push(row);
            } else {
                queued.new.push(row);
            }
        }
    }
    queued.work = work.into_values().collect();
    queued
}

/// A row of what was sent, not queued anywhere.
pub fn row<'a>(received: &'a Received, account: &'a AccountId) -> NewItem<'a> {
    use contracts::notification::KIND_DEFAULT;
    let content = received.content.as_ref().ok();
    NewItem {
        account,
        id: &received.id,
        task: None,
        agent: None,
        queued: None,
        kind: content.map_or(KIND_DEFAULT, |content| &content.kind),
        title: content.and_then(|content| content.title.as_deref()).unwrap_or_default(),
        body: content.map_or("", |content| &content.body),
        message_id: content.and_then(|content| content.message_id),
        sender: content.map(|content| &content.sender),
        queue_mode: content
            .and_then(|content| content.queue_mode)
            .unwrap_or(QueueMode::Followup),
        metadata: content.map_or_else(
            || "{}".to_owned(),
            |content| serde_json::to_string(&content.metadata).expect("what was read as JSON is written as JSON"),
        ),
        hash: received.hash.bytes(),
        reason: None,
        cause: received.cause.as_deref(),
        hops: received.hops,
        trace: &received.trace,
    }
}

impl Work<'_> {
    pub fn key(&self) -> SessionKey {
        self.conversation.key(self.session.generation)
    }

    /// Nothing more than a wake-up: the truth is in the rows, and a lost one is found by delivery's sweep. None where
    /// somebody has been told already, or sees to the session as it is.
    pub fn wake(&self, root: &Root, now: OffsetDateTime) -> Option<Outgoing> {
        if !self.session.rests {
            return None;
        }
        let account = &self.conversation.account;
        let message = SessionResolved {
            account: account.clone(),
            task: self.task.cloned(),
            session_id: self.session.id,
            session_key: self.key().to_string(),
            generation: self.session.generation,
            agent_id: Some(self.conversation.agent),
            position: self.position,
        };
        let (id, at) = (message.message_id(), Timestamp::from(now));
        Some(Outgoing::of(root, &id, SOURCE, &self.newest.origin(), at, &message))
    }

    pub fn finding(&self) -> Finding {
        self.session.finding
    }
}
