//! The end of mail to sessions: what has become of its item goes to its row, since items go with their session. A person is answered with
//! the turn's reply; what no turn took goes back to whoever wrote it.

use contracts::{
    event::{Event, MailChange, MailChanged},
    outgoing::Origin,
    quote,
};
use domain::{
    AccountId, Actor, ActorKind, MailId, MailTo, MailWhy, MessageType, QueueMode, SessionAddress, SessionRef, TaskId,
    TurnId, UserId, mail::HTTP_BYTES_MAX,
};
use sea_orm::FromQueryResult;
use uuid::Uuid;

use super::child_mail::SAID_BYTES_MAX;
use super::mail_send::{Addressee, MailFrom, NewMail, addressees, mail_item, mail_write};
use crate::{Setting, StorageError, Tx, outbox::Owned};

#[derive(FromQueryResult)]
struct Settled {
    id: MailId,
    from_user: Option<UserId>,
    from_session: Option<String>,
    to_session: String,
    to_address: String,
    why: MailWhy,
    reply_to: Option<MailId>,
    thread_id: MailId,
    context_task_id: Option<TaskId>,
    begins: String,
    is_bounced: bool,
    reason: Option<String>,
    turn_id: Option<TurnId>,
    /// Of its item.
    hops: i32,
    /// What the turn said, if anybody is to hear it: the turn began with this mail of a person, or answers a guest. What an agent takes
    /// meanwhile from others it answers itself.
    reply: Option<String>,
}

/// Relies on primary keys: what is not settled is compared in a form that no partial index has. Mail whose item has not ended is not locked.
/// Of mail whose item was sent again, the item's end before that is no news; an item that did not come back within an hour was refused.
pub const MAIL_SETTLE: &str = "
    update mail m set outcome = case n.state when 'delivered' then 'in_turn' else 'bounced' end, reason = n.reason, in_turn_id = n.turn_id,
        in_turn_number = (select t.number from turn t where t.account_id = $1 and t.id = n.turn_id), settled_at = now()
    from (
        select n.id, n.state, n.reason, n.turn_id, n.hops, n.created_at, w.id as mail
        from unnest($2::uuid[]) as w (id)
        cross join lateral (select * from notification n where n.account_id = $1 and n.id = 'mail:' || w.id and n.kind = 'mail' offset 0) n
        where n.state in ('delivered', 'failed', 'refused', 'cancelled') offset 0) n
    cross join lateral (
        select u.ctid from mail u
        where u.account_id = $1 and u.id = n.mail and coalesce(u.settled_at, 'infinity') = 'infinity'
          and (u.again_at is null or n.state = 'delivered' or n.created_at > u.again_at or u.again_at < now() - interval '1 hour')
        for update) u
    where m.ctid = u.ctid
    returning m.id, m.from_user, m.from_session, m.to_session, m.to_address, m.why, m.reply_to, m.thread_id, m.context_task_id,
              left(m.content, 200) as begins, m.outcome = 'bounced' as is_bounced, m.reason, n.turn_id, n.hops,
              case when m.from_service is null and n.state = 'delivered' then (
                  select nullif(t.reply, '') from turn t
                  where t.account_id = $1 and t.id = n.turn_id and t.state = 'finished' and not t.no_reply and not t.late
                    and (m.from_user is not null and t.notification_ids[1] = n.id
                         or m.to_session like 'orchestrator:%' and split_part(m.to_session, ':', 4) = 'guest')) end as reply";

const MAIL_AGAIN: &str = "
    update mail set settled_at = null, again_at = now()
    where account_id = $1 and id = $2 and to_session is not null and coalesce(outcome, 'bounced') = 'bounced'";

/// The item of mail that bounced, or is about to, is sent again: the mail stays bounced until a turn has taken it.
pub async fn mail_again(tx: &Tx, account: &AccountId, mail: MailId) -> Result<(), StorageError> {
    let values = [account.into(), mail.into()];
    tx.execute("await mail again", MAIL_AGAIN, values).await.map(drop)
}

/// Settles those of these whose items have ended. Gives the messages for the outbox.
pub async fn mail_settle(
    tx: &Tx,
    account: &AccountId,
    mail: Vec<MailId>,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let values = [account.into(), mail.into()];
    let settled: Vec<Settled> = tx.rows("settle mail", MAIL_SETTLE, values).await?;
    let mut messages = Vec::new();
    for mail in settled {
        messages.push(changed(account, (mail.id, None), MailChange::Settled, setting));
        // What goes back does not come back.
        if mail.is_bounced && mail.why != MailWhy::Bounce {
            messages.extend(bounce(tx, account, &mail, setting).await?);
        }
        // Two that answer each other by code would go on for ever.
        if let (Some(reply), None, Some(turn)) = (&mail.reply, mail.reply_to, mail.turn_id) {
            messages.extend(answer(tx, account, &mail, (turn, reply), setting).await?);
        }
    }
    Ok(messages)
}

/// The turn's reply goes to whoever wrote: a person, or an orchestrator as a guest. None: they were removed.
async fn answer(
    tx: &Tx,
    account: &AccountId,
    mail: &Settled,
    (turn, reply): (TurnId, &str),
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let Some(to) = mail.sender(tx, account).await? else {
        return Ok(Vec::new());
    };
    let from = match SessionAddress::parse(&mail.to_session) {
        Ok(address) => {
            let own = MailTo::Session(SessionRef::Address(address));
            addressees(tx, account, (None, &own)).await?.pop()
        }
        Err(_) => None,
    };
    let name = from
        .as_ref()
        .map_or_else(|| mail.to_address.clone(), |from| from.name.clone());
    let content = match reply.floor_char_boundary(HTTP_BYTES_MAX - REST.len()) {
        end if end < reply.len() => format!("{}{REST}", &reply[..end]),
        _ => reply.to_owned(),
    };
    let new = NewMail {
        account,
        id: MailId(Uuid::new_v5(&turn.uuid(), mail.id.0.as_bytes())),
        from: MailFrom::Session(&mail.to_session),
        from_name: &name,
        to: &to,
        address: &mail.to_address,
        content: &content,
        kind: MessageType::Message,
        why: MailWhy::Answer,
        context_task: mail.context_task_id.as_ref(),
        context_session: Some(&mail.to_session),
        context_ref: None,
        reply_to: Some((mail.id, mail.thread_id)),
        question: None,
        turn: Some(turn),
        now: setting.now,
    };
    mail_write(tx, &new).await?;
    let mut messages = vec![changed(account, (new.id, to.user()), MailChange::Accepted, setting)];
    let agent = from.and_then(|from| from.conversation).map(|of| of.agent);
    let author = agent.map_or_else(Actor::system, |agent| Actor {
        kind: ActorKind::Agent,
        id: agent.to_string(),
        name: name.clone(),
        via: None,
    });
    if let Some((id, message)) = mail_item(&new, author, QueueMode::Collect) {
        messages.push(mail.after(setting).session_told((account, to.task()), &id, message));
    }
    Ok(messages)
}

impl Settled {
    /// Whoever wrote it. None: they are gone, or it was a service.
    async fn sender(&self, tx: &Tx, account: &AccountId) -> Result<Option<Addressee>, StorageError> {
        let session = self.from_session.as_deref();
        let session = session.and_then(|key| SessionAddress::parse(key).ok());
        let to = match (&self.from_user, session) {
            (Some(user), _) => MailTo::User(user.clone()),
            (None, Some(address)) => MailTo::Session(SessionRef::Address(address)),
            (None, None) => return Ok(None),
        };
        Ok(addressees(tx, account, (None, &to)).await?.pop())
    }

    /// The setting of what follows from its item: two who write to each other what goes back have no more hops than two who hear each
    /// other.
    fn after<'s>(&self, setting: &Setting<'s>) -> Setting<'s> {
        Setting {
            origin: Origin {
                hops: u16::try_from(self.hops).unwrap_or_default(),
                ..setting.origin.clone()
            },
            ..*setting
        }
    }
}

/// What stands at the end of a reply that is too long for mail.
const REST: &str = "\n\n[The turn has the rest of this reply.]";

/// Namespace of the ids of bounces, which follow from what went back.
const BOUNCES: &[u8] = b"bounce";

/// Conversations and people that learn at most of a removal: each of its newest mail.
const RETURNED_MAX: i64 = 100;

/// What a person has not read says so to whoever wrote it, and is kept as long as what was archived; each who wrote is told once. Relies
/// on mail_unread.
pub const MAIL_RETURN: &str = "
    with back as (
        update mail m set outcome = 'bounced', reason = 'the person was removed', settled_at = $3, archived_at = $3
        where m.ctid = any (array(
            select u.ctid from mail u
            where u.account_id = $1 and u.to_user = $2 and u.archived_at is null and u.read_at is null order by u.surface_at for update))
        returning m.*
    )
    select b.id, b.from_user, b.from_session, b.to_user as to_session, b.to_address, b.why, b.reply_to, b.thread_id, b.context_task_id,
           left(b.content, 200) as begins, true as is_bounced, b.reason, null::uuid as turn_id, 0 as hops, null::text as reply
    from (select distinct on (b.sender) b.* from back b where b.from_service is null and b.why <> 'bounce'
          order by b.sender, b.created_at desc, b.id limit $4) b";

/// The mail of a person who was removed goes back. Gives the messages for the outbox.
pub async fn mail_return(
    tx: &Tx,
    account: &AccountId,
    user: &UserId,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let values = [account.into(), user.into(), setting.now.into(), RETURNED_MAX.into()];
    let returned: Vec<Settled> = tx.rows("return a person's mail", MAIL_RETURN, values).await?;
    let mut messages = Vec::new();
    for mail in returned {
        messages.push(changed(account, (mail.id, Some(user)), MailChange::Settled, setting));
        messages.extend(bounce(tx, account, &mail, setting).await?);
    }
    Ok(messages)
}

/// None: whoever wrote it is gone, or is a service.
async fn bounce(
    tx: &Tx,
    account: &AccountId,
    mail: &Settled,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let Some(to) = mail.sender(tx, account).await? else {
        return Ok(Vec::new());
    };
    let why = mail.reason.as_deref().unwrap_or("nobody took it");
    let said = |text: &str| quote::line(text, SAID_BYTES_MAX).0;
    let content = format!(
        "Your mail to {} was not delivered: {}. It began: {}",
        said(&mail.to_address),
        said(why),
        said(&mail.begins)
    );
    let system = Actor::system();
    let new = NewMail {
        account,
        id: MailId(Uuid::new_v5(&mail.id.0, BOUNCES)),
        from: MailFrom::Service(&system.id),
        from_name: &system.name,
        to: &to,
        address: &mail.to_address,
        content: &content,
        kind: MessageType::Notification,
        why: MailWhy::Bounce,
        context_task: mail.context_task_id.as_ref(),
        context_session: mail.from_session.as_deref(),
        context_ref: None,
        reply_to: Some((mail.id, mail.thread_id)),
        question: None,
        turn: None,
        now: setting.now,
    };
    mail_write(tx, &new).await?;
    let mut messages = vec![changed(account, (new.id, to.user()), MailChange::Accepted, setting)];
    if let Some((id, message)) = mail_item(&new, system.clone(), QueueMode::Followup) {
        messages.push(mail.after(setting).session_told((account, to.task()), &id, message));
    }
    Ok(messages)
}

/// The event of a change of mail.
pub fn changed(
    account: &AccountId,
    (mail, to_user): (MailId, Option<&UserId>),
    change: MailChange,
    setting: &Setting<'_>,
) -> Owned {
    let data = MailChanged {
        mail_id: mail,
        to_user: to_user.cloned(),
        change,
    };
    let id = format!(
        "{mail}:{}",
        serde_json::to_string(&change).unwrap_or_default().trim_matches('"')
    );
    setting.event(account, None, &id, Event::MailChanged(data))
}
