//! Actions of people and publishers: offer notifications, move tasks, remove an agent, redrive dead letters, stop and resume; here
//! also [`answers`] to questions, the [`control`] of queues, mail and boards ([`people`]). An action is repeated until its client gets the answer.

mod answers;
mod control;
mod people;

use contracts::{header, notification::NotificationMessage};
use delivery::store::SessionName;
use domain::{
    AccountId, Actor, ActorKind, AgentId, BranchId, HoldId, MailId, NotificationId, QuestionId, QueueMode, ReplaySpec,
    ResetInFlight, ResetQueue, StopKind, StopThen, TaskId, TaskStatus, TurnId, UserId, hold::Hold,
};

use self::answers::Reply;
use super::{
    database::{
        calls::notification,
        edits::Edit,
        lifecycle::CANCELLED_BY,
        outbox::{Message, Published, Service},
    },
    world::{Fate, PERSONS, World},
};

#[derive(Clone, Debug)]
pub(crate) enum Deed {
    /// By its index among the offers.
    Publish(usize),
    Move(AccountId, TaskId, TaskStatus),
    Remove(AccountId, AgentId),
    RemovePerson(AccountId, UserId),
    /// By the dead letter's index.
    Redrive(usize),
    /// Stop the turn of a session: this turn only, or the one in progress.
    Stop(SessionName, Option<TurnId>, StopThen),
    /// Go on with what waits behind a stopped turn.
    Resume(SessionName),
    /// Answer or withdraw a question. Whether it was seen open, in the transaction that is about to end it.
    Reply(AccountId, QuestionId, Reply, bool),
    Edit(Box<Edit>),
    Hold(AccountId, Box<Hold>),
    Release(AccountId, HoldId),
    /// End a session's generation.
    Reset(SessionName, ResetQueue, ResetInFlight),
    EndBranch(AccountId, BranchId),
    Replay(AccountId, TurnId, ReplaySpec),
    /// A person writes mail, to an address.
    Write(AccountId, UserId, String, QueueMode, MailId),
    /// A person reads mail that waits for a session.
    ReadMail(SessionName),
    /// What a task waits for.
    Block(AccountId, TaskId, Vec<TaskId>),
}

/// The name of the person who stops.
const STOPPED_BY: &str = "Sam";

/// Who answers and edits: also the author of many notifications.
fn person() -> Actor {
    Actor {
        kind: ActorKind::User,
        id: "somebody".to_owned(),
        name: "Bob".to_owned(),
        via: None,
    }
}

impl World {
    pub(crate) fn plan_deeds(&mut self) {
        for n in 0..self.settings.offers {
            let deed = self.offer(n);
            self.deeds.push(deed);
            if self.random.chance(250) {
                let (account, _) = self.random.pick(&self.agents).clone();
                let task = self.some_task();
                let status = *self.random.pick(&[
                    TaskStatus::Done,
                    TaskStatus::Done,
                    TaskStatus::Cancelled,
                    TaskStatus::InProgress,
                ]);
                self.deeds.push(Deed::Move(account, task, status));
            }
        }
        if self.random.chance(150) {
            let (account, agent) = self.random.pick(&self.agents).clone();
            let place = self.random.below(self.deeds.len());
            self.deeds.insert(place, Deed::Remove(account, agent));
        }
        if self.random.chance(150) {
            let (account, _) = self.random.pick(&self.agents).clone();
            let user = UserId::parse(self.random.pick::<&str>(&PERSONS)).expect("a person");
            // Mostly late: it is something to remove a person whose session is open.
            let place = self.deeds.len() - self.random.below(self.deeds.len() / 2);
            self.deeds.insert(place, Deed::RemovePerson(account, user));
        }
    }

    fn some_task(&mut self) -> TaskId {
        let name: &str = self.random.pick::<&str>(&["t-1", "t-1", "t-2", "T-9"]);
        TaskId::parse(name).expect("a task")
    }

    fn offer(&mut self, n: usize) -> Deed {
        let (mut account, mut agent) = self.random.pick(&self.agents).clone();
        let mut task = self.random.chance(850).then(|| self.some_task());
        let is_focused = self.random.chance(self.settings.focus);
        if is_focused {
            (account, agent) = self.agents[0].clone();
            task = Some(TaskId::parse("t-1").expect("a task"));
        }
        // The same ids in both accounts, and sometimes an id that was used for other content.
        let id = if self.random.chance(40) { 0 } else { n };
        let id = NotificationId::parse(&format!("n-{id}")).expect("an id");
        let (one, many) = match self.random.below(10) {
            _ if is_focused => (Some(agent.to_string()), Vec::new()),
            0 => (None, vec!["ada".to_owned(), "ben".to_owned()]),
            1 if task.is_some() => (None, Vec::new()),
            2 => (Some("ada".to_owned()), Vec::new()),
            3 => (Some("nobody".to_owned()), Vec::new()),
            _ => (Some(agent.to_string()), Vec::new()),
        };
        // To a person's orchestrator, the account's, or that of somebody who is no member.
        let to = (!is_focused && self.random.chance(100)).then(|| {
            let of_account = format!("org:{account}");
            let guest = format!("{account}:ann:guest:bob:v1");
            let of = *self
                .random
                .pick::<&str>(&["ann", "ann", "bob", &of_account, &guest, "eve"]);
            format!("orchestrator:{of}")
        });
        let (one, many) = match to {
            None => (one, many),
            Some(_) => {
                task = task.filter(|_| self.random.chance(100));
                (None, Vec::new())
            }
        };
        let kind = match self.random.below(10) {
            0 => ActorKind::Agent,
            1..=4 => ActorKind::Service,
            _ => ActorKind::User,
        };
        let (author, name) = match kind {
            ActorKind::Agent => (agent.to_string(), "Ada"),
            // Whose own session it may be for: the person's words and others' are for turns of their own.
            ActorKind::User if to.is_some() && self.random.chance(500) => ("ann".to_owned(), "Ann"),
            ActorKind::User | ActorKind::Service if self.random.chance(700) => ("somebody".to_owned(), "Bob"),
            ActorKind::User | ActorKind::Service => ("other".to_owned(), "Cleo"),
        };
        let queue_mode = match self.random.below(1000) {
            n if n < self.settings.collects as usize => Some(QueueMode::Collect),
            n if n < (self.settings.collects + self.settings.steers) as usize => Some(QueueMode::Steer),
            _ if self.random.chance(self.settings.injects) => Some(QueueMode::Inject),
            n if n.is_multiple_of(2) => Some(QueueMode::Followup),
            _ => None,
        };
        let mut metadata = serde_json::Map::new();
        if self.random.chance(100) {
            metadata.insert("reopen".to_owned(), true.into());
        }
        if self.random.chance(300) {
            let ms: u64 = *self.random.pick(&[0, 50, 500, 5_000]);
            metadata.insert("collect_debounce_ms".to_owned(), ms.into());
        }
        let message = NotificationMessage {
            id: Some(id.clone()),
            kind: None,
            agent: one,
            agents: many,
            session: to,
            title: None,
            body: n.to_string(),
            message_id: None,
            sender: Some(Actor {
                kind,
                id: author,
                name: name.to_owned(),
                via: None,
            }),
            queue_mode,
            metadata,
        };
        let published = notification(&account, task.as_ref(), &message, 0);
        let by_api = self.random.chance(400);
        Deed::Publish(self.witness.offer(account, id, published, by_api))
    }

    pub(crate) fn can_do(&self, n: usize) -> bool {
        match &self.deeds[n] {
            Deed::Publish(offer) if !self.witness.offers[*offer].by_api => self.broker_is_up(),
            Deed::Redrive(_)
            | Deed::Publish(_)
            | Deed::Move(..)
            | Deed::Remove(..)
            | Deed::RemovePerson(..)
            | Deed::Stop(..)
            | Deed::Resume(_)
            | Deed::Reply(..)
            | Deed::Edit(_)
            | Deed::Hold(..)
            | Deed::Release(..)
            | Deed::Reset(..)
            | Deed::EndBranch(..)
            | Deed::Replay(..)
            | Deed::Write(..)
            | Deed::ReadMail(_)
            | Deed::Block(..) => self.orchestrator().is_some(),
        }
    }

    pub(super) fn orchestrator(&self) -> Option<usize> {
        (0..self.processes.len()).find(|p| {
            self.processes[*p].service == Service::Orchestrator && self.processes[*p].is_running(self.database.now)
        })
    }

    pub(crate) fn do_deed(&mut self, n: usize) {
        let deed = self.deeds[n].clone();
        if let Deed::Reply(account, question, reply, false) = &deed
            && self.database.questions[&(account.clone(), *question)].state.is_open()
        {
            self.deeds[n] = Deed::Reply(account.clone(), *question, *reply, true);
            return;
        }
        if self.done(&deed) {
            self.deeds.remove(n);
        } else if let Deed::Reply(account, question, reply, true) = deed {
            self.deeds[n] = Deed::Reply(account, question, reply, false);
        }
    }

    fn done(&mut self, deed: &Deed) -> bool {
        match deed {
            Deed::Publish(offer) if !self.witness.offers[*offer].by_api => self.offer_to_broker(*offer),
            Deed::Publish(offer) => self.offer_to_api(*offer),
            Deed::Move(account, task, status) => self.move_task(account, task, *status),
            Deed::Remove(account, agent) => self.remove_agent(account, *agent),
            Deed::RemovePerson(account, user) => self.remove_person(account, user),
            Deed::Redrive(letter) => self.redrive(*letter),
            Deed::Stop(session, turn, then) => self.stop(session, *turn, *then),
            Deed::Resume(session) => self.resume(session),
            Deed::Reply(account, question, reply, seen) => self.reply(account, *question, *reply, *seen),
            Deed::Edit(edit) => self.edit(edit),
            Deed::Hold(account, hold) => self.hold(account, hold),
            Deed::Release(account, hold) => self.release(account, *hold),
            Deed::Reset(session, queue, in_flight) => self.reset(session, *queue, *in_flight),
            Deed::EndBranch(account, branch) => self.end_branch(account, *branch),
            Deed::Replay(account, turn, spec) => self.replay(account, *turn, spec),
            Deed::Write(account, person, to, mode, id) => self.write_mail((account, person), (to, *mode), *id),
            Deed::ReadMail(session) => self.read_mail(session),
            Deed::Block(account, task, blockers) => self.block(account, task, blockers),
        }
    }

    fn offer_to_broker(&mut self, n: usize) -> bool {
        let offer = self.witness.offers[n].clone();
        let stored = self.publish(Message::Notification(offer.published));
        self.note("offered", [n as u64, u64::from(stored)], || {
            format!("{} over the broker: {stored}", offer.id)
        });
        self.witness.offers[n].accepted |= stored;
        stored
    }

    fn offer_to_api(&mut self, n: usize) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let offer = self.witness.offers[n].clone();
        let answered = self.commit_messages(p, vec![Message::Notification(offer.published)]);
        self.note("offered", [n as u64, u64::from(answered)], || {
            format!("{} to the API: {answered}", offer.id)
        });
        self.witness.offers[n].accepted |= answered;
        answered
    }

    /// One transaction of an orchestrator with outbox rows. `true`: it was answered.
    fn commit_messages(&mut self, p: usize, messages: Vec<Message>) -> bool {
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        self.database.version += 1;
        self.commit_rows(p, fate, messages)
    }

    fn move_task(&mut self, account: &AccountId, task: &TaskId, status: TaskStatus) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let closed = self
            .database
            .task_status_set(account, task, status, None, self.bug)
            .unwrap_or_default();
        self.note(
            "task moved",
            [closed.sessions.len() as u64, closed.cancelled.len() as u64],
            || {
                format!(
                    "{account}/{task} to {status}: closes {:?}, cancels {:?}, cuts {:?}; {fate:?}",
                    closed.sessions, closed.cancelled, closed.cut
                )
            },
        );
        self.branches_ended(&closed.branches);
        for turn in &closed.cut {
            let asked = (StopKind::Cancelled, CANCELLED_BY, StopThen::Continue);
            self.witness.stop_asked(&self.database, account, *turn, asked);
        }
        self.commit_rows(p, fate, closed.messages)
    }

    fn remove_agent(&mut self, account: &AccountId, agent: AgentId) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let closed = self.database.agent_remove(account, agent, self.bug).unwrap_or_default();
        self.branches_ended(&closed.branches);
        self.note(
            "agent removed",
            [closed.sessions.len() as u64, closed.cancelled.len() as u64],
            || {
                format!(
                    "{account}/{agent}: closes {:?}, cancels {:?}; {fate:?}",
                    closed.sessions, closed.cancelled
                )
            },
        );
        self.commit_rows(p, fate, closed.messages)
    }

    fn remove_person(&mut self, account: &AccountId, user: &UserId) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let closed = self.database.member_remove(account, user, self.bug).unwrap_or_default();
        self.note(
            "person removed",
            [closed.sessions.len() as u64, closed.cancelled.len() as u64],
            || {
                format!(
                    "{account}/{user}: closes {:?}, cancels {:?}; {fate:?}",
                    closed.sessions, closed.cancelled
                )
            },
        );
        self.commit_rows(p, fate, closed.messages)
    }

    /// As `dead_letters/redrive.rs`: the same payload on the same subject, marked as a redrive.
    fn redrive(&mut self, n: usize) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let letter = &mut self.database.dead_letters[n];
        letter.redrives += 1;
        let letter = letter.clone();
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        if let (Some(account), Some(item)) = (&letter.account, &letter.notification) {
            self.database.mail_again(account, item);
        }
        let mut published = Published {
            subject: contracts::Root::default().notification_published(&letter.subject),
            headers: contracts::Headers::default(),
            payload: letter.payload,
        };
        published.headers.set(header::REDRIVE, letter.id.to_string());
        published.headers.set(header::VOUCHED, "1");
        published
            .headers
            .set(header::MESSAGE_ID, format!("redrive:{}:{}", letter.id, letter.redrives));
        self.note("redriven", [n as u64, 0], || format!("{:?}", letter.notification));
        self.database.version += 1;
        self.commit_rows(p, fate, vec![Message::Notification(published)])
    }

    /// A person looks at a session and stops its turn; or a client that looked earlier names a turn that is over.
    pub(crate) fn plan_stop(&mut self) {
        let busy: Vec<SessionName> = self.database.busy();
        if busy.is_empty() {
            return;
        }
        let name = self.random.pick(&busy).clone();
        let active = self.database.sessions[&name].active_turn;
        let older: Vec<TurnId> = self.database.turns_of(&name);
        let turn = match self.random.below(10) {
            0..=3 => None,
            4..=6 => active,
            _ => Some(*self.random.pick(&older)),
        };
        let then = if self.random.chance(700) {
            StopThen::Hold
        } else {
            StopThen::Continue
        };
        self.deeds.insert(0, Deed::Stop(name, turn, then));
    }

    pub(crate) fn plan_resume(&mut self) {
        let parked = self.database.parked();
        if !parked.is_empty() {
            let name = self.random.pick(&parked).clone();
            self.deeds.insert(0, Deed::Resume(name));
        }
    }

    /// `POST …/stop`. Under the key of a request that was answered, nothing runs again: here, a client without an answer
    /// gives up.
    fn stop(&mut self, session: &SessionName, named: Option<TurnId>, then: StopThen) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let stopped = self.database.person_stops(session, named, (STOPPED_BY, then), self.bug);
        self.note("stop asked", [stopped.stops.len() as u64, 0], || {
            format!("session {}: {named:?}, then {then}: {stopped:?}; {fate:?}", session.1)
        });
        if let Some(turn) = stopped.expected {
            let asked = (StopKind::Stopped, STOPPED_BY, then);
            self.witness.stop_asked(&self.database, &session.0, turn, asked);
        }
        let messages = stopped.stops.into_iter().map(Message::SessionStopRequested).collect();
        self.commit_rows(p, fate, messages);
        true
    }

    /// `POST …/resume`. A repetition finds no gate.
    fn resume(&mut self, session: &SessionName) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let opened = self.database.person_resumes(session, self.bug);
        self.note("resumed", [u64::from(opened), 0], || {
            format!("session {}: {opened}; {fate:?}", session.1)
        });
        self.witness.resumed(&self.database, session);
        let wake = opened.then(|| self.database.wake_up(session));
        self.commit_rows(p, fate, wake.into_iter().collect())
    }
}
