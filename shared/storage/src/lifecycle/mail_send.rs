//! Mail: finds whom an address means, and writes mail. To a person it is in the inbox with this transaction; to a session it is also a
//! notification (`mail:{mail id}`), which the caller sends and the resolver places: queue, brakes and limits are those of every item.

use contracts::notification::NotificationMessage;
use domain::{
    AccountId, Actor, AgentId, Conversation, Generation, MailId, MailTo, MailWhy, MessageType, NotificationId, Owner,
    Party, QuestionId, QueueMode, SessionId, SessionKey, SessionOf, SessionRef, TaskId, TurnId, UserId,
};
use sea_orm::FromQueryResult;
use time::OffsetDateTime;

use super::announce::announce;
use crate::{StorageError, Tx};

/// Whom an address means.
#[derive(Clone, Debug)]
pub struct Addressee {
    pub party: Party,
    pub name: String,
    /// Of an orchestrator.
    pub handle: Option<String>,
    /// None: a person.
    pub conversation: Option<Conversation>,
}

impl Addressee {
    /// The person, if it is one.
    pub fn user(&self) -> Option<&UserId> {
        match &self.party {
            Party::Person(user) => Some(user),
            Party::Orchestrator(_) | Party::Guest { .. } | Party::Session { .. } | Party::Other | Party::Service => {
                None
            }
        }
    }

    /// The task of its conversation.
    pub fn task(&self) -> Option<&TaskId> {
        match &self.party {
            Party::Session { task, .. } => Some(task),
            Party::Person(_) | Party::Orchestrator(_) | Party::Guest { .. } | Party::Other | Party::Service => None,
        }
    }

    /// The key of its conversation's first generation, which names the conversation.
    pub fn key(&self) -> Option<String> {
        self.conversation
            .as_ref()
            .map(|of| of.key(Generation::FIRST).to_string())
    }
}

#[derive(FromQueryResult)]
struct FoundRow {
    user_id: Option<UserId>,
    name: String,
    handle: Option<String>,
    owner: Option<Owner>,
    /// Others may ask it.
    is_reachable: bool,
    agent_id: Option<AgentId>,
    task_id: Option<TaskId>,
    board: Option<Owner>,
}

/// Several people of one name, at most so many, are shown in an error.
const NAMESAKES_MAX: i64 = 5;

/// Relies on the primary key. The lock on the member's row keeps a removal out until the mail is written; other changes of the member do not
/// wait. A member who is being removed is not found: the removal waits for the session of the member's orchestrator, and that session may be
/// the one that writes this mail.
const PERSON: &str = "
    select m.user_id, m.name, null as handle, null as owner, false as is_reachable, null::uuid as agent_id, null as task_id, null as board
    from member m where m.account_id = $1 and m.user_id = $2 and m.removed_at is null for key share skip locked";

/// By name. An account's members are few: all are read, and row-level security keeps `lower` out of conditions of an index.
pub const NAMESAKES: &str = "
    select m.user_id, m.name, null as handle, null as owner, false as is_reachable, null::uuid as agent_id, null as task_id, null as board
    from member m where m.account_id = $1 and lower(m.name) = lower($2) and m.removed_at is null order by m.user_id limit $3 for key share skip locked";

macro_rules! orchestrator {
    ($of:literal) => {
        concat!(
            "select null as user_id, i.name, i.handle, coalesce('user:' || i.user_id, 'account') as owner,
                    i.reachable <> 'off' as is_reachable, g.id as agent_id, null as task_id, null as board
             from orchestrator_identity i
             join agent g on g.account_id = i.account_id and g.kind = 'orchestrator'
             where i.account_id = $1 and (i.user_id is not null or i.enabled) and ",
            $of
        )
    };
}

/// Relies on orchestrator_identity_handle, whose order is requested with the handle as a range: a single value is no order; and on
/// agent_orchestrator.
pub const BY_HANDLE: &str = orchestrator!("i.handle >= $2 and i.handle <= $2 order by i.handle limit 1");
/// Relies on the primary key and agent_orchestrator.
pub const BY_OWNER: &str = orchestrator!("i.owner = $2");

/// An agent's conversation on a task that it has had. Relies on session_generation and primary keys.
pub const BY_TASK: &str = "
    select null as user_id, g.name, null as handle, null as owner, false as is_reachable, g.id as agent_id, t.display_id as task_id, t.board
    from (select * from task t where t.account_id = $1 and t.id = $2 offset 0) t
    cross join lateral (select * from agent g where g.account_id = t.account_id and g.id >= $3 and g.id <= $3 order by g.id limit 1) g
    where g.removed_at is null and exists (
        select from session s where s.account_id = t.account_id and s.kind = 'task' and s.task_id = t.id and s.agent_id = g.id
        order by s.user_id offset 0)";

#[derive(FromQueryResult)]
struct SessionRow {
    key: String,
}

/// Relies on the primary key.
const KEY_OF: &str = "select key from session where account_id = $1 and id = $2";

/// Everybody whom the address may mean: several only for a name. Of what a person may not see, the caller decides. `from`: the person in
/// whose name others' orchestrators are asked; by their handles such a person reaches the sessions in which they answer it, and none where
/// they are not to.
pub async fn addressees(
    tx: &Tx,
    account: &AccountId,
    (from, to): (Option<&UserId>, &MailTo),
) -> Result<Vec<Addressee>, StorageError> {
    const ATTEMPT: &str = "find recipient";
    let of = match to {
        MailTo::Session(session) => session_of(tx, account, session).await?,
        MailTo::User(_) | MailTo::Handle(_) | MailTo::Name(_) => None,
    };
    let rows: Vec<FoundRow> = match to {
        MailTo::User(user) => tx.rows(ATTEMPT, PERSON, [account.into(), user.into()]).await?,
        MailTo::Handle(handle) => tx.rows(ATTEMPT, BY_HANDLE, [account.into(), handle.into()]).await?,
        MailTo::Name(name) => {
            let mut found = Vec::new();
            if let Ok(user) = UserId::parse(&name.to_lowercase()) {
                found = tx.rows(ATTEMPT, PERSON, [account.into(), user.into()]).await?;
            }
            if found.is_empty() {
                let values = [account.into(), name.clone().into(), NAMESAKES_MAX.into()];
                found = tx.rows(ATTEMPT, NAMESAKES, values).await?;
            }
            found
        }
        MailTo::Session(_) => match &of {
            Some(SessionOf::Task { task, agent }) => {
                let values = [account.into(), task.key().into(), (*agent).into()];
                tx.rows(ATTEMPT, BY_TASK, values).await?
            }
            Some(SessionOf::Orchestrator(_) | SessionOf::Guest { .. }) => {
                let owner = of.as_ref().and_then(SessionOf::person);
                let owner = owner.map_or_else(String::new, ToString::to_string);
                tx.rows(ATTEMPT, BY_OWNER, [account.into(), owner.into()]).await?
            }
            Some(SessionOf::Agent(_) | SessionOf::Branch { .. } | SessionOf::Replay(_)) | None => Vec::new(),
        },
    };
    let guest = |row: &FoundRow| match (to, &of, row.owner.as_ref().and_then(Owner::user)) {
        (_, Some(SessionOf::Guest { guest, .. }), _) => Some(guest.clone()),
        (MailTo::Handle(_), _, Some(owner)) => from.filter(|from| *from != owner).cloned(),
        (_, _, _) => None,
    };
    let found = rows.into_iter().filter_map(|row| {
        let guest = guest(&row);
        row.addressee(account, guest)
    });
    Ok(found.collect())
}

async fn session_of(tx: &Tx, account: &AccountId, session: &SessionRef) -> Result<Option<SessionOf>, StorageError> {
    let id = match session {
        SessionRef::Address(address) => return Ok(address.within(account)),
        SessionRef::Id(id) => *id,
    };
    Ok(session_key(tx, account, id).await?.map(|key| key.of))
}

async fn session_key(tx: &Tx, account: &AccountId, id: SessionId) -> Result<Option<SessionKey>, StorageError> {
    let row: Option<SessionRow> = tx.one("find session", KEY_OF, [account.into(), id.into()]).await?;
    Ok(row.and_then(|row| SessionKey::parse(&row.key).ok()))
}

/// The name of the session's conversation: the key of its first generation.
pub(super) async fn conversation_of(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
) -> Result<Option<SessionKey>, StorageError> {
    let key = session_key(tx, account, session).await?;
    Ok(key.map(|key| SessionKey {
        generation: Generation::FIRST,
        ..key
    }))
}

impl FoundRow {
    /// `guest`: whom the orchestrator is to answer, if it is another person than its owner.
    fn addressee(self, account: &AccountId, guest: Option<UserId>) -> Option<Addressee> {
        let (party, conversation) = match (self.user_id, self.owner, self.agent_id, self.task_id) {
            (Some(user), ..) => (Party::Person(user), None),
            (None, Some(Owner::User(owner)), Some(agent), _) if guest.is_some() => {
                let guest = guest.filter(|_| self.is_reachable)?;
                let names = (owner.clone(), guest.clone());
                (
                    Party::Guest { owner, guest },
                    Some(Conversation::of_guest(account, names, agent)),
                )
            }
            (None, Some(owner), Some(agent), _) => (
                Party::Orchestrator(owner.clone()),
                Some(Conversation::of_orchestrator(account, owner, agent)),
            ),
            (None, None, Some(agent), Some(task)) => {
                let conversation = Conversation::of(account, domain::SessionScope::Task, Some(&task), agent);
                let board = self.board;
                (Party::Session { task, board }, Some(conversation))
            }
            _ => return None,
        };
        Some(Addressee {
            party,
            name: self.name,
            handle: self.handle,
            conversation,
        })
    }
}

/// Who writes.
#[derive(Clone, Copy, Debug)]
pub enum MailFrom<'a> {
    User(&'a UserId),
    /// By its conversation: the key of the first generation.
    Session(&'a str),
    Service(&'a str),
}

#[derive(Clone, Debug)]
pub struct NewMail<'a> {
    pub account: &'a AccountId,
    pub id: MailId,
    pub from: MailFrom<'a>,
    pub from_name: &'a str,
    pub to: &'a Addressee,
    /// As it was written.
    pub address: &'a str,
    pub content: &'a str,
    pub kind: MessageType,
    pub why: MailWhy,
    pub context_task: Option<&'a TaskId>,
    /// The sender's conversation, or of a reply that of what it answers.
    pub context_session: Option<&'a str>,
    pub context_ref: Option<&'a str>,
    /// What it answers, with its thread.
    pub reply_to: Option<(MailId, MailId)>,
    /// Of which it tells.
    pub question: Option<QuestionId>,
    pub turn: Option<TurnId>,
    pub now: OffsetDateTime,
}

const INSERT: &str = "
    insert into mail (account_id, id, from_user, from_session, from_service, from_name, to_user, to_session, to_address, content,
                      message_type, why, context_task_id, context_session, context_ref, reply_to, thread_id, turn_id, created_at, surface_at, question_id)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $19, $20)
    on conflict do nothing";

/// New mail in a thread brings what its person has put off back at once. Relies on mail_put_off, whose order is requested with the thread
/// as a range: a single value is no order.
pub const BACK: &str = "
    update mail m set surface_at = $4
    from (
        select s.ctid from mail s
        where s.account_id = $1 and s.thread_id >= $2 and s.thread_id <= $2 and s.to_user is not distinct from $3
          and s.archived_at is null and s.surface_at > $4 and s.surface_at <> s.created_at
        order by s.thread_id, s.created_at limit 100 for update) w
    where m.ctid = w.ctid";

/// Relies on mail_put_off_for. A function, since whoever ends a task may not read what people write to each other.
const BACK_OF_TASK: &str = "select mail_back($1, $2)::text as back";

/// The end of a task brings back what people have put off about it.
pub(super) async fn mail_back(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<(), StorageError> {
    let values = [account.into(), task.key().into()];
    tx.execute("bring mail about a task back", BACK_OF_TASK, values)
        .await
        .map(drop)
}

/// Writes mail once, however often it is asked for. A person is told of it as the person wishes.
pub async fn mail_write(tx: &Tx, new: &NewMail<'_>) -> Result<(), StorageError> {
    let (user, session, service) = match new.from {
        MailFrom::User(user) => (Some(user.to_string()), None, None),
        MailFrom::Session(key) => (None, Some(key.to_owned()), None),
        MailFrom::Service(id) => (None, None, Some(id.to_owned())),
    };
    let thread = new.reply_to.map_or(new.id, |(_, thread)| thread);
    let values = [
        new.account.into(),
        new.id.into(),
        user.into(),
        session.into(),
        service.into(),
        new.from_name.into(),
        new.to.user().map(ToString::to_string).into(),
        new.to.key().into(),
        new.address.into(),
        new.content.into(),
        new.kind.into(),
        new.why.into(),
        new.context_task.map(TaskId::key).into(),
        new.context_session.into(),
        new.context_ref.into(),
        new.reply_to.map(|(mail, _)| mail).into(),
        thread.into(),
        new.turn.into(),
        new.now.into(),
        new.question.into(),
    ];
    tx.execute("write mail", INSERT, values).await?;
    if new.to.user().is_some() {
        announce(tx, new.account, new.id).await?;
    }
    if let (Some(user), Some(_)) = (new.to.user(), new.reply_to) {
        let values = [new.account.into(), thread.into(), user.into(), new.now.into()];
        tx.execute("bring mail back", BACK, values).await?;
    }
    Ok(())
}

/// The notification for the recipient's session. None: it is for a person.
pub fn mail_item(new: &NewMail<'_>, sender: Actor, mode: QueueMode) -> Option<(NotificationId, NotificationMessage)> {
    let key = new.to.key()?;
    let id = NotificationId::parse(&format!("mail:{}", new.id)).expect("an id of letters, digits and one colon");
    let mut message = NotificationMessage::new(domain::mail::ITEM, sender, String::new(), new.content.to_owned());
    message.title = None;
    message.id = Some(id.clone());
    message.session = Some(key);
    message.queue_mode = Some(mode);
    let message = message.with("mail_id", new.id.to_string());
    let message = match guest_of(new) {
        Some(owner) => message.with(domain::mail::GUEST_OF, owner.to_string()),
        None => message,
    };
    Some((id, message))
}

/// The owner of the orchestrator, of mail between it and a guest, and of what is forwarded to it.
fn guest_of(new: &NewMail<'_>) -> Option<UserId> {
    if let (MailWhy::Forwarded, Party::Orchestrator(Owner::User(owner))) = (new.why, &new.to.party) {
        return Some(owner.clone());
    }
    if let Party::Guest { owner, .. } = &new.to.party {
        return Some(owner.clone());
    }
    let MailFrom::Session(key) = new.from else { return None };
    match SessionKey::parse(key).ok()?.of {
        SessionOf::Guest { owner, .. } => Some(owner),
        SessionOf::Orchestrator(_)
        | SessionOf::Task { .. }
        | SessionOf::Agent(_)
        | SessionOf::Branch { .. }
        | SessionOf::Replay(_) => None,
    }
}

/// What limits a sender, and a recipient.
#[derive(Clone, Copy, Debug, FromQueryResult)]
pub struct Rates {
    /// Mail of the sender in the last hour, and of its turn; at most a few more than allowed are counted.
    pub of_hour: i64,
    pub of_turn: i64,
    /// When the oldest of the hour is an hour old.
    pub next_at: Option<OffsetDateTime>,
    pub unread: i64,
}

const SENDER_LOCK: &str =
    "select pg_advisory_xact_lock(hashtextextended('mail of ' || $1 || ' ' || $2, 0))::text as locked";

/// Mail of one sender over HTTP goes one after the other, so that no limit counts the same room twice. A session's calls hold its lock.
pub async fn sender_lock(tx: &Tx, account: &AccountId, sender: &str) -> Result<(), StorageError> {
    let values = [account.into(), sender.into()];
    tx.execute("lock sender of mail", SENDER_LOCK, values).await.map(drop)
}

/// Relies on mail_sent and mail_unread, whose orders are requested.
pub const RATES: &str = "
    select (select count(*) from (
                select from mail m where m.account_id = $1 and m.sender = $2 and m.created_at > now() - interval '1 hour'
                order by m.created_at limit $5) m) as of_hour,
           (select count(*) from (
                select m.turn_id from mail m
                where m.account_id = $1 and m.sender = $2 and m.created_at > now() - interval '1 hour'
                order by m.created_at limit $5) m
            where m.turn_id = $3) as of_turn,
           (select m.created_at + interval '1 hour' from mail m
            where m.account_id = $1 and m.sender = $2 and m.created_at > now() - interval '1 hour'
            order by m.created_at limit 1) as next_at,
           (select count(*) from (
                select from mail m
                where m.account_id = $1 and m.to_user = $4 and m.archived_at is null and m.read_at is null
                order by m.surface_at limit $6) m) as unread";

/// `sender`: as the column has it.
pub async fn mail_rates(
    tx: &Tx,
    account: &AccountId,
    (sender, turn): (String, Option<TurnId>),
    to: Option<&UserId>,
) -> Result<Rates, StorageError> {
    const ATTEMPT: &str = "count mail";
    let most = domain::mail::OF_PERSON_MAX.max(domain::mail::OF_SESSION_MAX);
    let values = [
        account.into(),
        sender.into(),
        turn.into(),
        to.cloned().into(),
        most.into(),
        domain::mail::UNREAD_MAX.into(),
    ];
    let found = tx.one(ATTEMPT, RATES, values).await?;
    found.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}

#[derive(FromQueryResult)]
struct AnsweredRow {
    thread_id: MailId,
}

/// Relies on the primary key.
const ANSWERED: &str = "
    select thread_id from mail where account_id = $1 and id = $2 and to_session = $3 and (from_user = $4 or from_session = $5)";

/// Mail to this conversation from whom the answer is for, with its thread.
pub async fn mail_answered(
    tx: &Tx,
    account: &AccountId,
    (mail, key): (MailId, &str),
    to: &Addressee,
) -> Result<Option<(MailId, MailId)>, StorageError> {
    let values = [
        account.into(),
        mail.into(),
        key.into(),
        to.user().cloned().into(),
        to.key().into(),
    ];
    let found: Option<AnsweredRow> = tx.one("find mail that is answered", ANSWERED, values).await?;
    Ok(found.map(|row| (mail, row.thread_id)))
}
