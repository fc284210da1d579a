//! Mail, as `storage::lifecycle::{mail_send, mail_read, mail_settle}` writes, reads and settles it, and `storage::session::mail_take` takes
//! it. To a session it is a row and a notification in one transaction; the resolver places the notification.

use contracts::{header, notification::NotificationMessage, tools::check_messages::MESSAGES_MAX};
use delivery::store::SessionName;
use domain::{
    AccountId, Actor, ActorKind, Conversation, Gate, Generation, MailId, MailTo, MailWhy, MessageType, NotificationId,
    NotificationState, Owner, Party, QueueMode, ReceiptState, SessionAddress, SessionKey, SessionOf, SessionPhase,
    SessionRef, SessionScope, TaskId, TurnId, TurnState, UserId, mail,
};
use storage::lifecycle::mail_send::{Addressee, MailFrom, NewMail, mail_item};
use tool_gateway::decisions::{CallFacts, CallRequest, ToolAnswer};
use uuid::Uuid;

use super::{
    Database, Millis,
    calls::{Done, notification},
    intake::LIMITS,
    outbox::Message,
};
use crate::simulation::bugs::Bug;

/// As in `MAIL_SETTLE`: an item that was sent again and did not come back so long was refused.
const AGAIN: Millis = 3_600_000;

#[derive(Clone, Debug)]
pub(crate) struct MailRow {
    /// None: a service.
    pub(crate) from: Option<MailTo>,
    pub(crate) to: Addressee,
    pub(crate) why: MailWhy,
    pub(crate) reply_to: Option<MailId>,
    pub(crate) context_task: Option<TaskId>,
    pub(crate) outcome: Option<ReceiptState>,
    pub(crate) in_turn: Option<TurnId>,
    pub(crate) settled: bool,
    again_at: Option<Millis>,
}

/// What a sweep settled.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) mail: Vec<(MailId, ReceiptState)>,
    /// What went back, and replies of turns.
    pub(crate) bounces: u64,
    pub(crate) answers: u64,
    pub(crate) messages: Vec<Message>,
}

/// `Setting::session_told`. `hops`: of its cause.
pub(super) fn told(account: &AccountId, task: Option<&TaskId>, message: &NotificationMessage, hops: u16) -> Message {
    let mut published = notification(account, task, message, hops.saturating_add(1));
    published.headers.set(header::VOUCHED, "1");
    Message::Notification(published)
}

/// The key of the first generation, which names the conversation.
fn key_of(conversation: &Conversation) -> String {
    conversation.key(Generation::FIRST).to_string()
}

/// The item that brings the mail.
pub(crate) fn item_of(id: MailId) -> NotificationId {
    NotificationId::parse(&mail::item_of(id)).expect("an id of letters, digits and one colon")
}

impl Database {
    /// `addressees`, without names of people. A person's handle is the person's id.
    pub(crate) fn addressee(&self, account: &AccountId, from: Option<&UserId>, to: &MailTo) -> Option<Addressee> {
        let is_there = |user: &UserId| self.members.get(&(account.clone(), user.clone())) == Some(&false);
        let hidden = self.accounts[account].hidden;
        let of = match to {
            MailTo::User(user) => {
                return is_there(user).then(|| Addressee {
                    party: Party::Person(user.clone()),
                    name: user.to_string(),
                    handle: None,
                    conversation: None,
                });
            }
            MailTo::Handle(handle) => {
                let owner = UserId::parse(handle.as_str()).ok()?;
                match from.filter(|from| **from != owner).cloned() {
                    Some(guest) => SessionOf::Guest { owner, guest },
                    None => SessionOf::Orchestrator(Owner::User(owner)),
                }
            }
            MailTo::Session(SessionRef::Address(address)) => address.within(account)?,
            MailTo::Session(SessionRef::Id(_)) | MailTo::Name(_) => return None,
        };
        let (party, conversation) = match of {
            SessionOf::Task { task, agent } => {
                let row = self.tasks.get(&(account.clone(), task.key()))?;
                let of_task = Conversation::of(account, SessionScope::Task, Some(&task), agent);
                self.newest(&of_task).filter(|_| !self.was_removed(&of_task))?;
                let board = row.board.clone();
                (Party::Session { task, board }, of_task)
            }
            SessionOf::Orchestrator(owner) => {
                owner.user().is_none_or(is_there).then_some(())?;
                let conversation = Conversation::of_orchestrator(account, owner.clone(), hidden);
                (Party::Orchestrator(owner), conversation)
            }
            SessionOf::Guest { owner, guest } => {
                is_there(&owner).then_some(())?;
                let conversation = Conversation::of_guest(account, (owner.clone(), guest.clone()), hidden);
                (Party::Guest { owner, guest }, conversation)
            }
            SessionOf::Agent(_) | SessionOf::Branch { .. } | SessionOf::Replay(_) => return None,
        };
        Some(Addressee {
            party,
            name: String::new(),
            handle: None,
            conversation: Some(conversation),
        })
    }

    /// `mail_write` and `mail_item`. Gives the notification for a session. Its words are of those that wrote it, and a repetition's are
    /// the same.
    fn mail_write(&mut self, new: &NewMail<'_>, (sender, mode): (Actor, QueueMode), hops: u16) -> Option<Message> {
        let row = MailRow {
            from: match new.from {
                MailFrom::User(user) => Some(MailTo::User(user.clone())),
                MailFrom::Session(key) => MailTo::parse(key).ok(),
                MailFrom::Service(_) => None,
            },
            to: new.to.clone(),
            why: new.why,
            reply_to: new.reply_to.map(|(mail, _)| mail),
            context_task: new.context_task.cloned(),
            outcome: None,
            in_turn: None,
            settled: false,
            again_at: None,
        };
        self.mail.entry((new.account.clone(), new.id)).or_insert(row);
        self.version += 1;
        let (_, message) = mail_item(new, sender, mode)?;
        Some(told(new.account, new.to.task(), &message, hops))
    }

    fn new_mail<'a>(&self, account: &'a AccountId, id: MailId, from: MailFrom<'a>, to: &'a Addressee) -> NewMail<'a> {
        NewMail {
            account,
            id,
            from,
            from_name: "",
            to,
            address: "",
            content: "m",
            kind: MessageType::Message,
            why: MailWhy::Addressed,
            context_task: None,
            context_session: None,
            context_ref: None,
            reply_to: None,
            question: None,
            turn: None,
            now: self.now(),
        }
    }

    /// `POST /api/messages`, under the id that follows from its key. None: there is nobody to whom the person may write.
    pub(crate) fn person_writes(
        &mut self,
        (account, person): (&AccountId, &UserId),
        (to, mode): (&MailTo, QueueMode),
        id: MailId,
    ) -> Option<Option<Message>> {
        if self.mail.contains_key(&(account.clone(), id)) {
            return Some(None);
        }
        if self.members[&(account.clone(), person.clone())] {
            return None;
        }
        let to = self.addressee(account, Some(person), to)?;
        if !Party::Person(person.clone()).may_write(&to.party) {
            return None;
        }
        let sender = Actor {
            kind: ActorKind::User,
            id: person.to_string(),
            name: person.to_string(),
            via: None,
        };
        let new = self.new_mail(account, id, MailFrom::User(person), &to);
        Some(self.mail_write(&new, (sender, mode), 0))
    }

    /// `tools/send_message.rs`: the argument is the address.
    pub(super) fn run_send_message(&mut self, asked: &CallRequest, facts: &CallFacts) -> Result<Done, ToolAnswer> {
        let failed = |code| Err(ToolAnswer::failed(code, "", ""));
        let own = Conversation::of_session(&facts.session_key, facts.agent);
        let key = own.as_ref().map_or_else(|| facts.session_key.clone(), key_of);
        let from = self.party(&asked.account, facts);
        let to = MailTo::parse(&asked.arguments).expect("agents here write addresses");
        let found = self.addressee(&asked.account, from.person(), &to);
        let Some(to) = found.filter(|to| from.may_write(&to.party)) else {
            return failed("unknown_recipient");
        };
        if to.conversation.is_some() && facts.hops() >= LIMITS.hops_max {
            return failed("hop_limit");
        }
        if to.key().as_ref() == Some(&key) {
            return failed("own_address");
        }
        let id = MailId(Uuid::new_v5(&asked.id, b"mail"));
        let new = self.new_mail(&asked.account, id, MailFrom::Session(&key), &to);
        let item = self.mail_write(&new, (facts.actor(), QueueMode::Collect), facts.hops());
        Ok(Done {
            messages: item.into_iter().collect(),
            ..Done::default()
        })
    }

    /// `own` of `send_message.rs`.
    fn party(&self, account: &AccountId, facts: &CallFacts) -> Party {
        match SessionKey::parse(&facts.session_key).map(|key| key.of) {
            Ok(SessionOf::Orchestrator(owner)) => Party::Orchestrator(owner),
            Ok(SessionOf::Guest { owner, guest }) => Party::Guest { owner, guest },
            Ok(SessionOf::Task { task, .. }) => {
                let row = self.tasks.get(&(account.clone(), task.key()));
                let board = row.and_then(|row| row.board.clone());
                Party::Session { task, board }
            }
            Ok(SessionOf::Agent(_) | SessionOf::Branch { .. } | SessionOf::Replay(_)) | Err(_) => Party::Other,
        }
    }

    /// The items of mail to the conversation that wait in its session (`MAIL_WAITING` and `MAIL_READ`).
    fn mail_waiting(&self, (account, session): &SessionName) -> Vec<NotificationId> {
        let own = key_of(&self.sessions[&(account.clone(), *session)].conversation);
        let waiting = self.queue(account, *session).into_iter();
        let of_mail = waiting.filter(|(_, id, row)| {
            let mail = mail::of_item(id.as_str()).and_then(|mail| self.mail.get(&(account.clone(), mail)));
            row.kind == mail::ITEM && mail.is_some_and(|mail| mail.to.key().as_ref() == Some(&own))
        });
        of_mail.map(|(_, id, _)| id.clone()).collect()
    }

    /// `tools/check_messages.rs` and `MAIL_TAKE`.
    pub(super) fn run_check_messages(&mut self, asked: &CallRequest, facts: &CallFacts, bug: Option<Bug>) -> Done {
        let account = &asked.account;
        let turn = facts.turn.as_ref().expect("the call is of a turn");
        let mut items = self.mail_waiting(&(account.clone(), asked.session));
        if let Some(owner) = facts.person() {
            let first = turn.first_item.as_deref().and_then(|id| NotificationId::parse(id).ok());
            let kind = first.and_then(|first| self.kind_of(account, &owner, &first));
            items.retain(|item| kind.is_some() && self.kind_of(account, &owner, item) == kind);
        }
        items.truncate(MESSAGES_MAX);
        if turn.state != TurnState::AwaitingTools {
            items.clear();
        }
        if bug != Some(Bug::MailPulledTwice) {
            let mut hops = 0;
            for item in &items {
                let row = self
                    .notifications
                    .get_mut(&(account.clone(), item.clone()))
                    .expect("it waits");
                (row.state, row.turn, row.reason) = (NotificationState::Running, Some(turn.id), None);
                hops = hops.max(i32::from(row.hops));
            }
            self.mail_uncount(&(account.clone(), asked.session), items.len());
            let row = self.turns.get_mut(&(account.clone(), turn.id)).expect("found before");
            row.notifications.extend(items.iter().cloned());
            row.hops = row.hops.max(hops);
        }
        Done {
            pulled: items,
            ..Done::default()
        }
    }

    /// `uncounted!`.
    fn mail_uncount(&mut self, session: &SessionName, taken: usize) {
        let (now, taken) = (
            self.now,
            i32::try_from(taken).expect("a queue of the simulation is short"),
        );
        let row = self.sessions.get_mut(session).expect("locked");
        let rests = row.active_turn.is_none() && taken > 0;
        if rests && row.queued <= taken {
            (row.phase, row.wake_at, row.gate, row.gate_ref) = (SessionPhase::Idle, None, None, None);
        } else if rests && row.gate.is_some_and(|gate| gate != Gate::Stopped) {
            row.wake_at = Some(now);
        }
        row.queued -= taken;
    }

    /// `POST …/messages/read`: `mail_read` and `MAIL_CANCEL`. Gives the items of what was read.
    pub(crate) fn person_reads(&mut self, session: &SessionName, by: &Actor) -> Vec<NotificationId> {
        let account = &session.0;
        if self.sessions[session].closed.is_some() {
            return Vec::new();
        }
        let items = self.mail_waiting(session);
        for item in &items {
            let row = self
                .notifications
                .get_mut(&(account.clone(), item.clone()))
                .expect("it waits");
            row.state = NotificationState::Cancelled;
            row.reason = Some(format!("read: by {}", by.name));
            let mail = mail::of_item(item.as_str()).expect("an item of mail");
            let row = self.mail.get_mut(&(account.clone(), mail)).expect("it was found");
            (row.outcome, row.settled) = (Some(ReceiptState::Read), true);
        }
        self.mail_uncount(session, items.len());
        self.sessions.get_mut(session).expect("locked").queue_edits += i64::from(!items.is_empty());
        self.version += 1;
        items
    }

    /// `mail_again`.
    pub(crate) fn mail_again(&mut self, account: &AccountId, item: &NotificationId) {
        let mail = mail::of_item(item.as_str()).and_then(|mail| self.mail.get_mut(&(account.clone(), mail)));
        if let Some(row) = mail.filter(|row| row.outcome.is_none_or(|outcome| outcome == ReceiptState::Bounced)) {
            (row.settled, row.again_at) = (false, Some(self.now));
        }
    }

    /// The condition of `MAIL_SETTLE`.
    fn item_has_ended(&self, (account, id): (&AccountId, MailId), row: &MailRow) -> bool {
        if row.settled || row.to.conversation.is_none() {
            return false;
        }
        self.notifications
            .get(&(account.clone(), item_of(id)))
            .is_some_and(|item| {
                let is_news = row
                    .again_at
                    .is_none_or(|again| item.created_at > again || again < self.now - AGAIN);
                item.state.is_outcome() && (item.state == NotificationState::Delivered || is_news)
            })
    }

    /// What the sweep would settle.
    pub(crate) fn mail_unsettled(&self) -> Vec<(AccountId, MailId)> {
        let mail = self.mail.iter();
        mail.filter(|((account, id), row)| self.item_has_ended((account, *id), row))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// When mail that was sent again is settled at the latest.
    pub(crate) fn mail_next(&self) -> Option<Millis> {
        let unsettled = self.mail.values().filter(|row| !row.settled);
        unsettled.filter_map(|row| Some(row.again_at? + AGAIN + 1)).min()
    }

    /// `mail_settle`.
    pub(crate) fn mail_settle(&mut self, mail: &[(AccountId, MailId)]) -> Settled {
        let mut settled = Settled::default();
        for (account, id) in mail {
            let row = self.mail[&(account.clone(), *id)].clone();
            if !self.item_has_ended((account, *id), &row) {
                continue;
            }
            let item = item_of(*id);
            let (state, turn, hops) = {
                let item = &self.notifications[&(account.clone(), item.clone())];
                (item.state, item.turn, item.hops)
            };
            let outcome = match state {
                NotificationState::Delivered => ReceiptState::InTurn,
                _ => ReceiptState::Bounced,
            };
            let written = self.mail.get_mut(&(account.clone(), *id)).expect("it was found");
            (written.outcome, written.settled, written.in_turn) = (Some(outcome), true, turn);
            settled.mail.push((*id, outcome));
            let sender = row.from.as_ref().and_then(|from| self.addressee(account, None, from));
            let Some(to) = sender else { continue };
            let reply_to = Some((*id, *id));
            // What goes back does not come back.
            if outcome == ReceiptState::Bounced && row.why != MailWhy::Bounce {
                let system = Actor::system();
                let new = NewMail {
                    why: MailWhy::Bounce,
                    reply_to,
                    ..self.new_mail(
                        account,
                        MailId(Uuid::new_v5(&id.0, b"bounce")),
                        MailFrom::Service(&system.id),
                        &to,
                    )
                };
                settled
                    .messages
                    .extend(self.mail_write(&new, (system.clone(), QueueMode::Followup), hops));
                settled.bounces += 1;
            }
            let turn =
                turn.filter(|turn| outcome == ReceiptState::InTurn && self.is_answered(account, (&row, &item), *turn));
            // Two that answer each other by code would go on for ever.
            if let (Some(turn), None, Some(from)) = (turn, row.reply_to, &row.to.conversation) {
                let (key, id) = (key_of(from), MailId(Uuid::new_v5(&turn.uuid(), id.0.as_bytes())));
                let author = Actor {
                    kind: ActorKind::Agent,
                    id: from.agent.to_string(),
                    name: String::new(),
                    via: None,
                };
                let new = NewMail {
                    why: MailWhy::Answer,
                    reply_to,
                    turn: Some(turn),
                    ..self.new_mail(account, id, MailFrom::Session(&key), &to)
                };
                settled
                    .messages
                    .extend(self.mail_write(&new, (author, QueueMode::Collect), hops));
                settled.answers += 1;
            }
        }
        self.version += 1;
        settled
    }

    /// Whether the turn's reply is one to the mail.
    fn is_answered(&self, account: &AccountId, (mail, item): (&MailRow, &NotificationId), turn: TurnId) -> bool {
        let turn = &self.turns[&(account.clone(), turn)];
        let says = turn.state == TurnState::Finished && !turn.no_reply && !turn.late && turn.reply.is_some();
        let is_of_person = matches!(mail.from, Some(MailTo::User(_))) && turn.notifications.first() == Some(item);
        says && (is_of_person || matches!(mail.to.party, Party::Guest { .. }))
    }

    /// `orchestrator_told`. `by`: who did it. None: the orchestrator itself, or it is gone.
    pub(super) fn orchestrator_told(
        &mut self,
        account: &AccountId,
        (board, task): (&Owner, &TaskId),
        (by, hops): (Option<domain::AgentId>, u16),
    ) -> Option<Message> {
        let key = SessionKey {
            of: SessionOf::Orchestrator(board.clone()),
            account: account.clone(),
            generation: Generation::FIRST,
        };
        let to = MailTo::Session(SessionRef::Address(SessionAddress::Key(key)));
        let to = self.addressee(account, None, &to)?;
        if to.conversation.as_ref().map(|of| of.agent) == by {
            return None;
        }
        let (system, id) = (Actor::system(), MailId(self.fresh_id()));
        let new = NewMail {
            why: MailWhy::ChildStatus,
            context_task: Some(task),
            ..self.new_mail(account, id, MailFrom::Service(&system.id), &to)
        };
        self.mail_write(&new, (system.clone(), QueueMode::Collect), hops)
    }
}
