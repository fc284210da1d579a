//! Decides a whole batch: every decision sees the ones before it, and every accepted notification gets its queue
//! position. Pure.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{
    Outgoing, Root, Timestamp,
    notification::{Notification, Recipients, Refusal},
    session::SessionResolved,
};
use domain::{
    AccountId, Actor, Conversation, NotificationState, QueueLimits, QueueMode, SessionKey, SessionOf, TASK_CLOSED,
    TaskId, session::admission,
};
use serde_json::Value;
use time::OffsetDateTime;

use super::{
    decide::{Accepted, AcceptedTask, Decision, Entry, Refused, decide},
    facts::{BatchFacts, Fact, Known},
    received::Received,
    resolve::{Finding, ResolvedSession},
    sessions::AssignedSessions,
};
use storage::session::{arrivals::Arrived, items_append::NewItem, sessions_lock::ActiveSession};

use crate::SOURCE;

/// The decisions of a batch, each list in stream order.
#[derive(Debug, Default)]
pub struct Decided<'a> {
    pub accepted: Vec<(&'a Received, Accepted)>,
    pub refused: Vec<(&'a Received, Refused)>,
    /// For agents whose session the task's end has closed, and which are not to open it again: they are cancelled.
    pub closed: Vec<(&'a Received, Option<TaskId>, Entry)>,
    pub duplicates: u64,
}

/// Decides each message. Each decision becomes a fact for the next.
pub fn decide_all<'a>(batch: &'a [Received], facts: &mut BatchFacts, limits: &QueueLimits) -> Decided<'a> {
    let mut decided = Decided::default();
    for received in batch {
        match decide(received, facts, limits) {
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

fn remember_accepted(received: &Received, accepted: &Accepted, facts: &mut BatchFacts) {
    let account = account_of(received);
    if let AcceptedTask::New(task) = &accepted.task {
        facts.add(account, Fact::Task(task.clone()));
    }
    for entry in &accepted.entries {
        let known = Known {
            hash: received.hash,
            edited: None,
            agent: Some(entry.agent),
            state: NotificationState::Queued,
        };
        facts.add(account, Fact::Notification(entry.id.clone(), known));
    }
}

fn remember_refused(received: &Received, refused: &Refused, facts: &mut BatchFacts) {
    if let Some(account) = received.account.as_ref().filter(|_| refused.keep_row) {
        let known = Known {
            hash: received.hash,
            edited: None,
            agent: refused.agent,
            state: NotificationState::Refused,
        };
        facts.add(account, Fact::Notification(received.id.clone(), known));
    }
}

/// The account of an accepted notification.
pub fn account_of(received: &Received) -> &AccountId {
    received
        .account
        .as_ref()
        .expect("a notification without an account is refused")
}

/// The conversations of all accepted notifications.
pub fn conversations(decided: &Decided<'_>, facts: &BatchFacts) -> BTreeSet<Conversation> {
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

pub fn conversation(
    received: &Received,
    accepted: &Accepted,
    agent: domain::AgentId,
    facts: &BatchFacts,
) -> Conversation {
    let account = account_of(received);
    if let Ok(Notification {
        recipients: Recipients::Session(address),
        ..
    }) = &received.content
        && let Some(of) = address.within(account)
    {
        match of {
            SessionOf::Orchestrator(owner) => return Conversation::of_orchestrator(account, owner, agent),
            SessionOf::Guest { owner, guest } => return Conversation::of_guest(account, (owner, guest), agent),
            SessionOf::Task { .. } | SessionOf::Agent(_) | SessionOf::Branch { .. } | SessionOf::Replay(_) => {}
        }
    }
    let scope = facts
        .account(account)
        .expect("a notification without an account is refused")
        .session_scope;
    Conversation::of(account, scope, accepted.task.id(), agent)
}

/// Refuses, as a whole, each notification whose agent was removed meanwhile or whose session's queue would be too long.
/// Returns the sessions of the others: a refused notification opens none, and creates no task.
pub fn refuse_unplaced(
    decided: &mut Decided<'_>,
    assigned: AssignedSessions,
    facts: &BatchFacts,
    limits: &QueueLimits,
) -> BTreeMap<Conversation, ResolvedSession> {
    let entries: usize = decided
        .accepted
        .iter()
        .map(|(_, accepted)| accepted.entries.len())
        .sum();
    let added = u32::try_from(entries).unwrap_or(u32::MAX);
    let has_room = |resolved: &ResolvedSession| {
        let most = limits.items_max_for(&Actor::publisher());
        most.is_none_or(|most| resolved.waiting().saturating_add(added) <= most)
    };
    let mut sessions = assigned.sessions;
    if assigned.refused.is_empty() && sessions.values().all(|resolved| has_room(resolved) && !resolved.ended) {
        return sessions;
    }
    let mut placed = BTreeSet::new();
    // Tasks whose first notification is refused: the next one creates the task.
    let mut uncreated = BTreeSet::new();
    for (received, mut accepted) in std::mem::take(&mut decided.accepted) {
        if let AcceptedTask::Known(task) = &accepted.task
            && uncreated.remove(&(account_of(received), task.key()))
        {
            accepted.task = AcceptedTask::New(task.clone());
        }
        if !reopens(received) {
            let stays_closed = |entry: &mut Entry| {
                let place = conversation(received, &accepted, entry.agent, facts);
                sessions.get(&place).is_some_and(|resolved| resolved.ended)
            };
            let mut entries = accepted.entries.clone();
            let closed: Vec<Entry> = entries.extract_if(.., stays_closed).collect();
            accepted.entries = entries;
            let task = accepted.task.id();
            decided
                .closed
                .extend(closed.into_iter().map(|entry| (received, task.cloned(), entry)));
            if accepted.entries.is_empty() {
                continue;
            }
        }
        let places: Vec<Conversation> = accepted
            .entries
            .iter()
            .map(|entry| conversation(received, &accepted, entry.agent, facts))
            .collect();
        let refusal = places.iter().find_map(|place| match sessions.get(place) {
            None => assigned.refused.get(place).cloned(),
            Some(resolved) => {
                let sender = &received.content.as_ref().ok()?.sender;
                let why = admission(received.hops, sender, resolved.waiting(), limits).err()?;
                Some(Refusal::inadmissible(why, received.cause.as_deref()))
            }
        });
        let Some(refusal) = refusal else {
            for place in &places {
                sessions.entry(place.clone()).and_modify(|resolved| {
                    resolved.session.queued += 1;
                    resolved.ended = false;
                });
            }
            placed.extend(places);
            decided.accepted.push((received, accepted));
            continue;
        };
        // A row of the whole would also describe parts that were accepted before.
        let is_first = accepted.duplicates == 0 && accepted.replaces.is_none();
        if let AcceptedTask::New(task) = &accepted.task {
            uncreated.insert((account_of(received), task.key()));
        }
        let refused = Refused {
            refusal,
            agent: None,
            account_exists: true,
            task: accepted.task.id().cloned(),
            keep_row: received.given_id.is_some() && is_first && accepted.entries.iter().all(|entry| !entry.requeue),
        };
        decided.refused.push((received, refused));
    }
    // A message that was refused before may name a task that the batch was to create.
    for (received, refused) in &mut decided.refused {
        let is_uncreated = |task: &TaskId| uncreated.contains(&(account_of(received), task.key()));
        refused.task.take_if(|task| is_uncreated(task));
    }
    sessions.retain(|conversation, _| placed.contains(conversation));
    sessions
}

/// Whether it may open the session of a task that has ended.
fn reopens(received: &Received) -> bool {
    let content = received.content.as_ref().ok();
    content.and_then(|content| content.metadata.get("reopen")) != Some(&Value::Bool(false))
}

/// The rows of the accepted notifications, and the sessions after this batch.
#[derive(Debug, Default)]
pub struct Queued<'a> {
    pub new: Vec<NewItem<'a>>,
    pub again: Vec<NewItem<'a>>,
    /// Cancelled at once: new ones, and those that were tried before.
    pub closed: (Vec<NewItem<'a>>, Vec<NewItem<'a>>),
    pub work: Vec<Work<'a>>,
    /// Items that may do more than wait.
    pub arrived: Vec<(&'a Received, Arrived<'a>)>,
}

/// The work that a session received from this batch.
#[derive(Debug)]
pub struct Work<'a> {
    pub conversation: &'a Conversation,
    pub session: ActiveSession,
    pub finding: Finding,
    pub items: u64,
    /// Stream offset of the newest notification.
    pub position: i64,
    /// One of the items opened its gate.
    pub released: bool,
    /// The newest notification, and its task as its client spelled it.
    pub newest: &'a Received,
    pub task: Option<&'a TaskId>,
}

/// Queues every accepted notification: the order of a queue is the order of the stream.
pub fn queue<'a>(
    decided: &'a Decided<'a>,
    facts: &BatchFacts,
    sessions: &'a BTreeMap<Conversation, ResolvedSession>,
) -> Queued<'a> {
    let mut queued = Queued::default();
    let mut work: BTreeMap<&Conversation, Work<'a>> = BTreeMap::new();
    for (received, accepted) in &decided.accepted {
        for entry in &accepted.entries {
            let conversation = conversation(received, accepted, entry.agent, facts);
            let (conversation, resolved) = sessions
                .get_key_value(&conversation)
                .expect("every accepted notification has a session");
            let task = accepted.task.id();
            let got = work.entry(conversation).or_insert(Work {
                conversation,
                session: resolved.session,
                finding: resolved.finding,
                items: 0,
                position: resolved.session.queue_tail,
                released: false,
                newest: received,
                task,
            });
            let met_rest = got.session.rests && got.items == 0;
            got.items += 1;
            got.position += 1;
            (got.newest, got.task) = (received, task);
            let row = row(received, account_of(received));
            let row = NewItem {
                id: &entry.id,
                task,
                agent: Some(entry.agent),
                queued: Some((got.session.id, got.position)),
                joins: row.queue_mode == QueueMode::Collect && !met_rest,
                ..row
            };
            if let Some(sender) = row.sender
                && Arrived::may_matter(row.queue_mode, &got.session)
            {
                let arrived = Arrived {
                    conversation,
                    session: got.session,
                    mode: row.queue_mode,
                    sender,
                    task,
                };
                queued.arrived.push((received, arrived));
            }
            if entry.requeue {
                queued.again.push(row);
            } else {
                queued.new.push(row);
            }
        }
    }
    for (received, task, entry) in &decided.closed {
        let row = NewItem {
            id: &entry.id,
            task: task.as_ref(),
            agent: Some(entry.agent),
            reason: Some(TASK_CLOSED.to_owned()),
            ..row(received, account_of(received))
        };
        match entry.requeue {
            false => queued.closed.0.push(row),
            true => queued.closed.1.push(row),
        }
    }
    queued.work = work.into_values().collect();
    queued
}

/// An unqueued row of the received message.
pub fn row<'a>(received: &'a Received, account: &'a AccountId) -> NewItem<'a> {
    let content = received.content.as_ref().ok();
    let lineage = (received.cause.as_deref(), received.hops, &received.trace);
    NewItem::of(account, &received.id, content, received.hash, lineage)
}

impl Work<'_> {
    pub fn key(&self) -> SessionKey {
        self.conversation.key(self.session.generation)
    }

    /// Builds the wake-up for delivery. The rows hold the state, and delivery's sweep finds a session whose wake-up was
    /// lost. None when delivery was already woken for the session, or already works on it.
    pub fn wake(&self, root: &Root, now: OffsetDateTime) -> Option<Outgoing> {
        if !self.session.rests && !self.released {
            return None;
        }
        let place = (self.session.id, self.session.generation);
        let message = SessionResolved::new(self.conversation, place, self.task, self.position);
        let (id, at) = (message.message_id(), Timestamp::from(now));
        Some(Outgoing::of(root, &id, SOURCE, &self.newest.origin(), at, &message))
    }
}
