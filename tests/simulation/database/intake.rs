//! The resolver's transactions. A batch reads before it locks, so other transactions may commit in between: the facts
//! ([`Database::facts`]), the active sessions that it saw ([`Database::active_seen`]), and the rows under its locks
//! ([`Database::batch_write`]) are three snapshots.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{
    Headers, TraceContext, content::ContentHash, notification::NotificationMessage, session::SessionResolved,
};
use delivery::store::SessionName;
use domain::{
    Actor, ActorKind, AgentRef, AgentSlug, CloseReason, Conversation, ConversationOf, Fence, Gate, Generation,
    NotificationId, NotificationState, Owner, QueueLimits, QueueMode, SessionEvent, SessionId, SessionPhase,
    TASK_CLOSED, TaskId, TaskStatus, UserId,
};
use resolver::{
    intake::{
        batch::{Queued, Work, account_of, conversations, decide_all, queue, refuse_unplaced},
        decide::{Accepted, AcceptedTask},
        facts::{BatchFacts, Fact, Known, Questions},
        received::Received,
        refusals::refusal_rows,
        resolve::Found,
        routes::{Address, Route, Routed, learned},
        sessions::assign,
    },
    store::partitions::{Lease, PartitionOffset},
};
use storage::{
    lifecycle::close_reason,
    session::{
        arrivals::Arrived,
        items_append::NewItem,
        items_append_known::{Believed, Known as KnownSession},
        sessions_lock::{ActiveSession, SessionThread},
        sessions_open::Newest,
    },
};

use super::{
    Database, DeadLetter, NotificationRow, SessionRow, Task,
    calls::notification,
    outbox::{Message, receipt},
};
use crate::simulation::bugs::Bug;

/// Hops as in `[resolver]`; few items, so that queues are full at times.
pub(crate) const LIMITS: QueueLimits = QueueLimits {
    hops_max: 8,
    items_max: 4,
};

/// An item of Signalbox's own that was entered.
#[derive(Debug)]
pub(crate) struct OwnItem {
    pub(crate) account: domain::AccountId,
    pub(crate) id: NotificationId,
    pub(crate) session: SessionId,
    pub(crate) number: i64,
    pub(crate) messages: Vec<Message>,
}

/// The result of a batch.
#[derive(Debug)]
pub(crate) enum Written {
    Committed {
        wakes: Vec<Message>,
        /// Items queued for the first time or again: sequence, session, number.
        queued: Vec<(NotificationId, u64, SessionId, i64)>,
        learned: Vec<(Address, Route)>,
        /// Items that opened the gates of parked sessions.
        opened: usize,
    },
    Stale,
    Raced,
}

impl Database {
    /// `FACTS_FIND`, twice: the second time for the parts of a fan-out.
    pub(crate) fn facts(&self, batch: &[Received]) -> BatchFacts {
        let mut facts = BatchFacts::default();
        self.answer(&Questions::about(batch), &mut facts);
        self.answer(&Questions::about_parts(batch, &facts), &mut facts);
        facts
    }

    fn answer(&self, questions: &Questions, facts: &mut BatchFacts) {
        for id in &questions.accounts {
            if let Some(account) = self.accounts.get(id) {
                let fact = Fact::Account {
                    session_scope: account.scope,
                    auto_create_tasks: account.auto_create_tasks,
                };
                facts.add(id, fact);
            }
        }
        for (account, id) in &questions.agents {
            if self
                .agents
                .get(&(account.clone(), *id))
                .is_some_and(|agent| !agent.removed)
            {
                facts.add(account, Fact::Agent(AgentRef::Id(*id), *id));
            }
        }
        for (account, slug) in &questions.slugs {
            let named = self
                .agents
                .iter()
                .find(|((owner, _), agent)| owner == account && !agent.removed && agent.slug == slug.as_str());
            if let Some(((_, id), agent)) = named {
                let slug = AgentSlug::parse(&agent.slug).expect("slugs of the simulation are slugs");
                facts.add(account, Fact::Agent(AgentRef::Slug(slug), *id));
            }
        }
        for (account, owner) in &questions.owners {
            let member = owner.user().map(|user| (account.clone(), user.clone()));
            let is_there = member.is_none_or(|member| self.members.get(&member) == Some(&false));
            if is_there && let Some(of) = self.accounts.get(account) {
                facts.add(account, Fact::Orchestrator(owner.clone(), of.hidden));
            }
        }
        for (account, guest) in &questions.guests {
            let is_there = |user: &UserId| self.members.get(&(account.clone(), user.clone())) == Some(&false);
            if guest.0 != guest.1
                && is_there(&guest.0)
                && is_there(&guest.1)
                && let Some(of) = self.accounts.get(account)
            {
                facts.add(account, Fact::Guest(guest.clone(), of.hidden));
            }
        }
        for (account, id) in &questions.tasks {
            if self.tasks.contains_key(&(account.clone(), id.key())) {
                facts.add(account, Fact::Task(id.clone()));
            }
        }
        for (account, id) in &questions.assigned {
            let assignees = self
                .tasks
                .get(&(account.clone(), id.key()))
                .map(|task| task.assignees.as_slice());
            for agent in assignees.unwrap_or_default() {
                if !self.agents[&(account.clone(), *agent)].removed {
                    facts.add(account, Fact::Assignee(id.key(), *agent));
                }
            }
        }
        for (account, id) in &questions.notifications {
            if let Some(row) = self.notifications.get(&(account.clone(), id.clone())) {
                let known = Known {
                    hash: row.hash,
                    edited: None,
                    agent: row.agent,
                    state: row.state,
                };
                facts.add(account, Fact::Notification(id.clone(), known));
            }
        }
    }

    /// The snapshot of `SESSIONS_LOCK` before the statement waits for a lock.
    pub(crate) fn active_seen(&self, batch: &[Received], facts: &BatchFacts) -> BTreeMap<Conversation, SessionId> {
        let mut facts = facts.clone();
        let decided = decide_all(batch, &mut facts, &LIMITS);
        conversations(&decided, &facts)
            .into_iter()
            .filter_map(|conversation| {
                let (_, id) = self.active(&conversation)?;
                let id = *id;
                Some((conversation, id))
            })
            .collect()
    }

    /// `BATCH_ENTER`: one statement, and so one step; a session's row is that of after the wait for its lock. None: a
    /// route does not hold, an id is known, or the lease is another's.
    pub(crate) fn batch_enter(
        &mut self,
        lease: &Lease,
        to: &PartitionOffset,
        batch: &[Received],
        routed: &Routed<'_>,
        bug: Option<Bug>,
    ) -> Option<Written> {
        let entering = routed.entering();
        if !self.place_is_ours(lease) {
            return None;
        }
        let known: Option<Vec<KnownSession>> = entering
            .sessions
            .iter()
            .map(|(name, items)| {
                let row = self.sessions.get(name)?;
                let is_open = row.closed.is_none() || bug == Some(Bug::RouteBelieved);
                let has_room = i64::from(row.queued + items) <= routed.most;
                let may_stay_shut = row.gate.is_none_or(|gate| gate == Gate::Collect);
                let goes_on = row.stop.as_ref().is_none_or(|stop| stop.turn.is_none());
                (is_open && has_room && may_stay_shut && goes_on).then_some(KnownSession {
                    generation: Generation(row.generation),
                    queue_tail: row.queue_tail,
                    rests: row.phase == SessionPhase::Idle && row.queued == 0,
                })
            })
            .collect();
        let known = known?;
        let holds = |one: &Believed<'_>| {
            let agent = &self.agents[&(one.account.clone(), one.agent)];
            let task = one
                .task
                .is_none_or(|task| self.tasks.contains_key(&(one.account.clone(), task.key())));
            self.accounts[one.account].scope == one.scope
                && !agent.removed
                && one.slug.is_none_or(|slug| slug.as_str() == agent.slug)
                && task
        };
        let ids: BTreeSet<(&domain::AccountId, &NotificationId)> =
            entering.items.iter().map(|(row, _)| (row.account, row.id)).collect();
        let is_known = |(account, id): &(&domain::AccountId, &NotificationId)| {
            self.notifications.contains_key(&((*account).clone(), (*id).clone()))
        };
        let are_new = ids.len() == entering.items.len() && !ids.iter().any(is_known);
        let hold = entering.believed.iter().all(holds) || bug == Some(Bug::RouteBelieved);
        if !hold || !are_new {
            return None;
        }

        self.place_write(lease, to);
        let mut places = Vec::new();
        for ((row, n), received) in entering.items.iter().zip(batch) {
            let session = &known[usize::try_from(*n - 1).expect("from 1")];
            let met_rest = session.rests && row.queued.is_some_and(|(_, position)| position == 1);
            let place = row.queued.map(|(id, position)| (id, session.queue_tail + position));
            let row = NewItem {
                queued: place,
                joins: row.queue_mode == QueueMode::Collect && !met_rest,
                ..row.clone()
            };
            self.notification_enter(&row, (&received.payload, &received.subject), false, bug);
            let (session, position) = place.expect("all go to sessions");
            places.push((row.id.clone(), received.sequence, session, position));
        }
        if bug != Some(Bug::ReceiptBeforeRead) {
            self.outbox_receive(batch.iter().filter_map(|received| receipt(&received.headers)));
        }
        let wakes = self.wakes(&routed.work(&entering.sessions, &known));
        self.version += 1;
        Some(Written::Committed {
            wakes,
            queued: places,
            learned: Vec::new(),
            opened: 0,
        })
    }

    fn wakes(&self, work: &[Work<'_>]) -> Vec<Message> {
        let (root, now) = (contracts::Root::default(), self.now());
        let wakes = work.iter().filter_map(|work| {
            let outgoing = work.wake(&root, now)?;
            serde_json::from_slice(&outgoing.payload)
                .ok()
                .map(Message::SessionResolved)
        });
        wakes.collect()
    }

    /// Everything from the locks to the commit: `PLACE_MOVE`, tasks, `SESSIONS_LOCK`, `SESSIONS_NEWEST_*`,
    /// `SESSIONS_OPEN`, `REFUSED_REPLACE`, `ITEMS_APPEND`, `ITEMS_REQUEUE`, `UNCOUNT`'s opposite.
    pub(crate) fn batch_write(
        &mut self,
        lease: &Lease,
        to: &PartitionOffset,
        batch: &[Received],
        mut facts: BatchFacts,
        seen: &BTreeMap<Conversation, SessionId>,
        bug: Option<Bug>,
    ) -> Written {
        if !self.place_is_ours(lease) {
            return Written::Stale;
        }
        let mut decided = decide_all(batch, &mut facts, &LIMITS);
        let wanted: Vec<Conversation> = conversations(&decided, &facts).into_iter().collect();
        let found: Vec<Found> = wanted.iter().map(|one| self.found(one, seen.get(one), bug)).collect();
        let assigned = assign(wanted.iter().zip(found), || SessionId(self.fresh_id()));
        let sessions = refuse_unplaced(&mut decided, assigned, &facts, &LIMITS);
        // `SESSIONS_OPEN … on conflict do nothing`: another resolver opened one of them, by either index.
        let taken = |conversation: &Conversation, generation: Generation| {
            self.active(conversation).is_some()
                || (bug != Some(Bug::GenerationReused) && self.newest(conversation) >= Some(generation.0))
        };
        let mut opened: Vec<(Conversation, SessionId, Generation)> = Vec::new();
        let mut raced = false;
        for (conversation, resolved) in &sessions {
            let session = resolved.session;
            if resolved.finding == resolver::intake::resolve::Finding::Reused {
                continue;
            }
            if taken(conversation, session.generation) {
                raced = true;
            } else {
                opened.push((conversation.clone(), session.id, session.generation));
            }
        }
        if raced && bug != Some(Bug::RaceIgnored) {
            return Written::Raced;
        }
        let mut queued = queue(&decided, &facts, &sessions);
        let replaced: Vec<_> = decided
            .accepted
            .iter()
            .filter_map(|(received, accepted)| Some((account_of(received).clone(), accepted.replaces.clone()?)))
            .collect();
        if self.conflicts(&queued) {
            return Written::Raced;
        }

        self.place_write(lease, to);
        for (received, accepted) in &decided.accepted {
            self.task_create(received, accepted);
        }
        for (conversation, id, generation) in opened {
            self.session_open(conversation, id, generation, 0);
        }
        for whole in replaced {
            if self
                .notifications
                .get(&whole)
                .is_some_and(|row| row.state == NotificationState::Refused)
            {
                self.notifications.remove(&whole);
            }
        }
        let sequences: BTreeMap<(&domain::AccountId, &str), u64> = decided
            .accepted
            .iter()
            .map(|(received, _)| ((account_of(received), received.id.as_str()), received.sequence))
            .collect();
        let mut places = Vec::new();
        for (row, requeue) in queued
            .new
            .iter()
            .map(|row| (row, false))
            .chain(queued.again.iter().map(|row| (row, true)))
        {
            // Of several with its id, the one with its content.
            let Some(received) = batch.iter().rev().find(|received| {
                received.account.as_ref() == Some(row.account)
                    && received.hash.bytes() == row.hash
                    && (received.id == *row.id || row.id.as_str().starts_with(&format!("{}:", received.id)))
            }) else {
                continue;
            };
            self.notification_enter(row, (&received.payload, &received.subject), requeue, bug);
            let (session, position) = row.queued.expect("what was accepted is queued");
            let sequence = sequences
                .get(&(row.account, received.id.as_str()))
                .copied()
                .unwrap_or(received.sequence);
            places.push((row.id.clone(), sequence, session, position));
        }
        for (row, received) in queued
            .closed
            .0
            .iter()
            .chain(&queued.closed.1)
            .filter_map(|row| Some((row, batch.iter().rev().find(|received| received.id == *row.id)?)))
        {
            self.notification_enter(row, (&received.payload, &received.subject), false, bug);
        }
        let arrived: Vec<Arrived<'_>> = queued.arrived.iter().map(|(_, arrived)| *arrived).collect();
        let (stops, released) = self.arrivals_apply(&arrived, bug);
        for work in &mut queued.work {
            work.released = released.contains(&(work.conversation.account.clone(), work.session.id));
        }
        for row in refusal_rows(&decided.refused) {
            if !self.notifications.contains_key(&(row.account.clone(), row.id.clone()))
                && let Some(received) = batch.iter().find(|received| received.id == *row.id)
            {
                self.notification_enter(&row, (&received.payload, &received.subject), false, bug);
            }
        }
        for (received, refused) in &decided.refused {
            let letter = DeadLetter {
                id: self.fresh_id(),
                account: received.account.clone().filter(|_| refused.account_exists),
                subject: received.subject.clone(),
                notification: Some(received.id.clone()),
                payload: received.payload.clone(),
                redrives: 0,
            };
            self.dead_letters.push(letter);
        }
        if bug != Some(Bug::ReceiptBeforeRead) {
            self.outbox_receive(batch.iter().filter_map(|received| receipt(&received.headers)));
        }
        let stops = stops.into_iter().map(Message::SessionStopRequested);
        let wakes = self.wakes(&queued.work).into_iter().chain(stops).collect();
        let learned = learned(&decided, &queued.work, &facts);
        if bug == Some(Bug::DuplicateQueued) {
            self.queue_duplicates(batch);
        }
        self.version += 1;
        Written::Committed {
            wakes,
            queued: places,
            learned,
            opened: released.len(),
        }
    }

    /// Of a conversation, under lock: the session seen before if it is still open, else the newest one now.
    fn found(&self, conversation: &Conversation, seen: Option<&SessionId>, bug: Option<Bug>) -> Found {
        if bug == Some(Bug::GuestInOwnSession)
            && let ConversationOf::Guest { owner, .. } = &conversation.of
        {
            let owner = Owner::User(owner.clone());
            let own = self
                .of_account(&conversation.account)
                .find(|(_, row)| row.closed.is_none() && row.conversation.orchestrator() == Some(&owner));
            if let Some(session) = own.and_then(|(name, _)| self.active_session(name)) {
                return Found::Active(session);
            }
        }
        let any = (bug == Some(Bug::OwnerUnread) && conversation.orchestrator().is_some()).then(|| {
            let mut open = self
                .of_account(&conversation.account)
                .filter(|(_, row)| row.closed.is_none());
            let ((_, id), _) = open.find(|(_, row)| row.conversation.orchestrator().is_some())?;
            Some(id)
        });
        let seen = any.flatten().or(seen);
        let locked = seen.and_then(|id| self.active_session(&(conversation.account.clone(), *id)));
        if let Some(session) = locked {
            return Found::Active(session);
        }
        if self.was_removed(conversation) {
            return Found::Removed;
        }
        let closed = |generation: Option<i32>| {
            Found::Closed(Newest {
                generation: generation.map(Generation),
                ended: self.has_ended(conversation),
            })
        };
        match self.newest(conversation) {
            None => closed(None),
            Some(newest) if bug == Some(Bug::GenerationReused) => closed(Some(newest - 1)),
            Some(newest) => closed(Some(newest)),
        }
    }

    /// A session as `SESSIONS_LOCK` reads it for its next item. None: it is closed.
    pub(super) fn active_session(&self, name: &SessionName) -> Option<ActiveSession> {
        let row = self.sessions.get(name)?;
        row.closed.is_none().then_some(ActiveSession {
            id: name.1,
            generation: Generation(row.generation),
            queue_tail: row.queue_tail,
            queued: row.queued,
            rests: row.phase == SessionPhase::Idle && row.queued == 0,
            gate: row.gate,
            active_turn: row.active_turn,
            will_hold: row.will_hold(),
        })
    }

    /// `ended` of `SESSIONS_NEWEST_OF_TASKS`.
    fn has_ended(&self, conversation: &Conversation) -> bool {
        let Some(task) = conversation.task() else { return false };
        let status = self.tasks.get(&(conversation.account.clone(), task.clone()));
        let of_conversation = self
            .of_account(&conversation.account)
            .filter(|(_, row)| row.conversation == *conversation);
        let newest = of_conversation.max_by_key(|(_, row)| row.generation);
        let closed_by_task = newest
            .and_then(|(_, row)| row.closed)
            .is_some_and(|(_, reason)| reason != CloseReason::AgentRemoved);
        closed_by_task || status.is_some_and(|task| close_reason(task.status).is_some())
    }

    /// `item_enter` of an item of Signalbox's own: into the open session of its conversation, at once. None: no session is open.
    pub(super) fn item_enter(
        &mut self,
        conversation: &Conversation,
        task: Option<&TaskId>,
        message: NotificationMessage,
        hops: u16,
        bug: Option<Bug>,
    ) -> Option<OwnItem> {
        let session = self.active_session(&self.active(conversation)?.clone())?;
        let fresh = || NotificationId::parse(&self.fresh_id().to_string()).expect("a UUID is an id");
        let id = message.id.clone().unwrap_or_else(fresh);
        let message = NotificationMessage {
            id: Some(id.clone()),
            agent: Some(conversation.agent.to_string()),
            sender: Some(Actor::system()),
            ..message
        };
        let published = notification(&conversation.account, task, &message, hops);
        let content =
            contracts::notification::read(&Headers::default(), &published.payload).expect("an item of ours is read");
        let (hash, trace) = (ContentHash::of(task, &content), TraceContext::default());
        let number = session.queue_tail + 1;
        let row = NewItem {
            task,
            agent: Some(conversation.agent),
            queued: Some((session.id, number)),
            ..NewItem::of(&conversation.account, &id, Some(&content), hash, (None, hops, &trace))
        };
        self.notification_enter(&row, (&published.payload, &published.subject), false, bug);
        let arrived = Arrived {
            conversation,
            session,
            mode: content.mode(),
            sender: &content.sender,
            task,
        };
        let (stops, released) = self.arrivals_apply(&[arrived], bug);
        let place = (session.id, session.generation);
        let wake = (session.rests || !released.is_empty())
            .then(|| Message::SessionResolved(SessionResolved::new(conversation, place, task, number)));
        let stops = stops.into_iter().map(Message::SessionStopRequested);
        Some(OwnItem {
            account: conversation.account.clone(),
            id,
            session: session.id,
            number,
            messages: stops.chain(wake).collect(),
        })
    }

    /// Whether `ITEMS_APPEND` or `ITEMS_REQUEUE` would write fewer rows than asked.
    fn conflicts(&self, queued: &Queued<'_>) -> bool {
        let row = |new: &NewItem<'_>| self.notifications.get(&(new.account.clone(), new.id.clone()));
        queued.new.iter().any(|new| row(new).is_some())
            || queued.again.iter().any(|new| {
                row(new).is_none_or(|row| !matches!(row.state, NotificationState::Refused | NotificationState::Failed))
            })
    }

    /// `TASK_INSERT … on conflict do nothing`.
    fn task_create(&mut self, received: &Received, accepted: &Accepted) {
        if let AcceptedTask::New(task) = &accepted.task {
            let key = (account_of(received).clone(), task.key());
            self.tasks.entry(key).or_insert(Task {
                status: TaskStatus::Inbox,
                assignees: Vec::new(),
                board: None,
                is_child: false,
            });
        }
    }

    /// `SESSIONS_OPEN`, and `OPEN_NEXT` of a closing transaction.
    pub(super) fn session_open(
        &mut self,
        conversation: Conversation,
        id: SessionId,
        generation: Generation,
        queued: i32,
    ) {
        let row = SessionRow {
            key: conversation.key(generation).to_string(),
            generation: generation.0,
            closed: None,
            phase: SessionPhase::Idle,
            fence: Fence::default(),
            lease_owner: None,
            wake_at: None,
            asked: 0,
            active_turn: None,
            queued,
            queue_tail: i64::from(queued),
            turn_count: 0,
            interrupted: false,
            stop: None,
            stopped_turn: None,
            gate: None,
            gate_ref: None,
            queue_edits: 0,
            thread: SessionThread::default(),
            opened_at: self.now,
            continues: None,
            reset: None,
            parent: None,
            replay: None,
            conversation,
        };
        self.sessions.insert((row.conversation.account.clone(), id), row);
    }

    /// One row of `ITEMS_APPEND` or `ITEMS_REQUEUE`, counted in its session.
    fn notification_enter(
        &mut self,
        new: &NewItem<'_>,
        (payload, subject): (&bytes::Bytes, &str),
        requeue: bool,
        bug: Option<Bug>,
    ) {
        let metadata: serde_json::Value = serde_json::from_str(&new.metadata).expect("what was written is read");
        let row = NotificationRow {
            task: new.task.map(TaskId::key),
            agent: new.agent,
            place: new
                .queued
                .map(|(session, number)| (session, new.queue_mode.position(number))),
            mode: new.queue_mode,
            joins: new.joins,
            kind: new.kind.to_owned(),
            author: new.sender.map_or((ActorKind::Service, String::new()), |sender| {
                (sender.kind, sender.id.clone())
            }),
            author_name: new.sender.map(|sender| sender.name.clone()).unwrap_or_default(),
            is_claimed: new.sender.is_some_and(|sender| sender.via.is_some()),
            body: new.body.to_owned(),
            debounce_ms: metadata.get("collect_debounce_ms").cloned(),
            reopens: metadata.get("reopen").and_then(serde_json::Value::as_bool),
            source: ["question_id", "timer_id", "results_of"]
                .iter()
                .find_map(|name| metadata.get(name)?.as_str()?.parse().ok()),
            revision: 1,
            hash: ContentHash::from_bytes(&new.hash).expect("32 bytes"),
            state: if new.queued.is_some() {
                NotificationState::Queued
            } else if new.reason.as_deref() == Some(TASK_CLOSED) {
                NotificationState::Cancelled
            } else {
                NotificationState::Refused
            },
            reason: new.reason.clone(),
            turn: None,
            attempts: 0,
            hops: new.hops,
            created_at: self.now,
            payload: payload.clone(),
            subject: subject.to_owned(),
        };
        self.notifications.insert((new.account.clone(), new.id.clone()), row);
        debug_assert!(!requeue || new.queued.is_some(), "what is queued again has a place");
        if let Some((session, _)) = new.queued
            && let Some(session) = self.sessions.get_mut(&(new.account.clone(), session))
        {
            session.on(SessionEvent::Entered, bug);
            session.queued += 1;
            session.queue_tail += 1;
        }
    }

    fn queue_duplicates(&mut self, batch: &[Received]) {
        for received in batch {
            let Some(account) = &received.account else { continue };
            if let Some(row) = self.notifications.get_mut(&(account.clone(), received.id.clone()))
                && row.state == NotificationState::Delivered
                && let Some((session, _)) = row.place
                && let Some(session) = self.sessions.get_mut(&(account.clone(), session))
                && session.closed.is_none()
            {
                row.state = NotificationState::Queued;
                session.queue_tail += 1;
                row.place = row.place.map(|(id, _)| (id, session.queue_tail));
                session.queued += 1;
            }
        }
    }

    /// The condition of `PLACE_MOVE`, `PLACE_FIND` and `RELEASE`.
    pub(crate) fn place_is_ours(&self, lease: &Lease) -> bool {
        let row = &self.partitions[usize::from(lease.partition)];
        row.owner == Some(lease.owner) && row.fence == lease.fence
    }

    /// `PLACE_MOVE`.
    pub(crate) fn place_write(&mut self, lease: &Lease, to: &PartitionOffset) {
        let row = &mut self.partitions[usize::from(lease.partition)];
        (row.sequence, row.published, row.stream_created) = (to.sequence, to.published, to.stream_created);
        self.version += 1;
    }

    /// `PLACE_FIND`.
    pub(crate) fn place_find(&self, lease: &Lease) -> Option<PartitionOffset> {
        let row = &self.partitions[usize::from(lease.partition)];
        self.place_is_ours(lease).then_some(PartitionOffset {
            sequence: row.sequence,
            published: row.published,
            stream_created: row.stream_created,
        })
    }

    /// `CLAIM`: a partition without a live owner.
    pub(crate) fn partition_claim(&mut self, owner: uuid::Uuid) -> Option<Lease> {
        let free = (0..self.partitions.len()).find(|n| self.partition_is_free(*n))?;
        let row = &mut self.partitions[free];
        row.owner = Some(owner);
        row.fence += 1;
        self.version += 1;
        Some(Lease {
            partition: u16::try_from(free).expect("partitions are few"),
            owner,
            fence: row.fence,
        })
    }

    pub(crate) fn partition_is_free(&self, n: usize) -> bool {
        let row = &self.partitions[n];
        !row.locked && row.owner.is_none_or(|owner| !self.is_alive(owner))
    }
}
