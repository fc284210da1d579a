//! Mail to people about what waits for them: a question, or a task that needs a person. In the transaction of what it is about.

use contracts::event::MailChange;
use domain::{
    AccountId, Actor, Audience, MailId, MailTo, MailWhy, MessageType, Owner, QuestionId, SessionId, SessionOf, TaskId,
    UserId,
};
use sea_orm::FromQueryResult;
use uuid::Uuid;

use super::{
    mail_send::{MailFrom, NewMail, addressees, conversation_of, mail_write},
    mail_settle::changed,
};
use crate::{Setting, StorageError, Tx, outbox::Owned};

/// Members who are asked by name; and for a role, on a task: its owner, else who wrote last in its thread, else the admins. `$3`: people
/// by name. `$4`: whether a role is asked. `$5`: only admins may answer. Relies on primary keys, and on message_thread, member_admin and
/// mail_unread, whose orders are requested.
pub const HEARERS: &str = "
    with owner as (
        select m.user_id from (
            select t.board, substr(t.board, 6) as user_id from (
                select t.board from task t where t.account_id = $1 and t.id = $2 offset 0) t) t
        cross join lateral (
            select m.user_id, m.role from member m where m.account_id = $1 and m.user_id = t.user_id and m.removed_at is null offset 0) m
        where t.board like 'user:%' and $4::bool and (m.role = 'admin' or not $5::bool)
    ), wrote as (
        select w.user_id from (
            select m.author_id as user_id, max(m.created_at) as at from (
                select m.author_id, m.author_kind, m.created_at from message m
                where m.account_id = $1 and m.task_id = $2 order by m.created_at desc, m.id desc limit 200) m
            where m.author_kind = 'user' group by m.author_id) w
        cross join lateral (
            select m.role from member m where m.account_id = $1 and m.user_id = w.user_id and m.removed_at is null offset 0) m
        where $4::bool and not exists (select from owner) and (m.role = 'admin' or not $5::bool)
        order by w.at desc limit 5
    ), admins as (
        select m.user_id from member m
        where m.account_id = $1 and m.role = 'admin' and m.removed_at is null
          and $4::bool and not exists (select from owner) and not exists (select from wrote)
        order by m.account_id limit 20
    )
    select h.user_id from (
        select user_id from owner union select user_id from wrote union select user_id from admins union select unnest($3::text[])) h
    where (select count(*) from (
               select from mail m where m.account_id = $1 and m.to_user = h.user_id and m.archived_at is null and m.read_at is null
               order by m.surface_at limit $6) m) < $6
    order by h.user_id";

/// Who has so much unread mail is told no more: an outage may stop a thousand tasks at once.
const UNREAD_MAX: i64 = 1_000;

#[derive(FromQueryResult)]
struct Hearer {
    user_id: UserId,
}

/// What people are told.
#[derive(Clone, Debug)]
pub(crate) struct Told<'a> {
    pub account: &'a AccountId,
    pub task: Option<&'a TaskId>,
    pub audience: &'a [Audience],
    /// The session that says it, with its agent's name. None: Signalbox does.
    pub from: Option<(SessionId, &'a str)>,
    pub content: &'a str,
    pub kind: MessageType,
    pub why: MailWhy,
    pub question: Option<QuestionId>,
    /// The mail's ids follow from it.
    pub seed: Uuid,
}

/// Gives the messages for the outbox. Who is gone, or is being removed, is not told.
pub(crate) async fn people_told(tx: &Tx, told: &Told<'_>, setting: &Setting<'_>) -> Result<Vec<Owned>, StorageError> {
    let account = told.account;
    let conversation = match told.from {
        Some((session, _)) => conversation_of(tx, account, session).await?,
        None => None,
    };
    // What an orchestrator asks is for whom it works.
    let own = match conversation.as_ref().map(|key| &key.of) {
        Some(SessionOf::Orchestrator(Owner::User(owner)) | SessionOf::Guest { owner, .. }) => {
            Some(vec![Audience::User(owner.clone())])
        }
        Some(SessionOf::Orchestrator(Owner::Account)) => Some(vec![Audience::Admins]),
        Some(SessionOf::Task { .. } | SessionOf::Agent(_) | SessionOf::Branch { .. } | SessionOf::Replay(_)) | None => {
            None
        }
    };
    let audience = own.as_deref().unwrap_or(told.audience);
    let named: Vec<String> = audience
        .iter()
        .filter_map(|one| one.person().map(ToString::to_string))
        .collect();
    let asks = |one: Audience| audience.contains(&one);
    let members = asks(Audience::Members);
    let admins = asks(Audience::Admins) || asks(Audience::Orchestrator(None));
    if named.is_empty() && !members && !admins {
        return Ok(Vec::new());
    }
    let values = [
        account.into(),
        told.task.map(TaskId::key).into(),
        named.into(),
        (members || admins).into(),
        (!members).into(),
        UNREAD_MAX.into(),
    ];
    let hearers: Vec<Hearer> = tx.rows("find who hears of it", HEARERS, values).await?;
    if hearers.is_empty() {
        return Ok(Vec::new());
    }
    let system = Actor::system();
    let conversation = conversation.as_ref().map(ToString::to_string);
    let (from, from_name) = match (&conversation, told.from) {
        (Some(key), Some((_, name))) => (MailFrom::Session(key), name),
        _ => (MailFrom::Service(&system.id), &*system.name),
    };
    let mut messages = Vec::new();
    for Hearer { user_id } in hearers {
        let id = MailId(Uuid::new_v5(&told.seed, user_id.as_str().as_bytes()));
        let address = format!("@user:{user_id}");
        let Some(to) = addressees(tx, account, (None, &MailTo::User(user_id))).await?.pop() else {
            continue;
        };
        let new = NewMail {
            account,
            id,
            from,
            from_name,
            to: &to,
            address: &address,
            content: told.content,
            kind: told.kind,
            why: told.why,
            context_task: told.task,
            context_session: conversation.as_deref(),
            context_ref: None,
            reply_to: None,
            question: told.question,
            turn: None,
            now: setting.now,
        };
        mail_write(tx, &new).await?;
        messages.push(changed(account, (id, to.user()), MailChange::Accepted, setting));
    }
    Ok(messages)
}

/// Relies on mail_question, whose order is requested.
pub const QUESTIONS_READ: &str = "
    update mail m set read_at = coalesce(m.read_at, $3), reason = $4
    from (
        select m.ctid from unnest($2::uuid[]) as w (id)
        cross join lateral (
            select m.ctid from mail m where m.account_id = $1 and m.question_id >= w.id and m.question_id <= w.id
            order by m.question_id for update) m) w
    where m.ctid = w.ctid
    returning m.id, m.to_user";

#[derive(FromQueryResult)]
struct Read {
    id: MailId,
    to_user: Option<UserId>,
}

/// Mail about questions that have ended is read, and says how.
pub(super) async fn questions_read(
    tx: &Tx,
    account: &AccountId,
    questions: Vec<QuestionId>,
    how: &str,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    if questions.is_empty() {
        return Ok(Vec::new());
    }
    let values = [account.into(), questions.into(), setting.now.into(), how.into()];
    let read: Vec<Read> = tx.rows("read mail about questions", QUESTIONS_READ, values).await?;
    let read = read
        .iter()
        .map(|read| changed(account, (read.id, read.to_user.as_ref()), MailChange::Read, setting));
    Ok(read.collect())
}
