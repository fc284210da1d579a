//! Mail, as it is read: with its receipt, which is that of its item until it is settled.

use api::mail::{Delivery, Mail, MailParty, Receipt, Routed, SnoozeMoments};
use domain::{
    AccountId, DeliveryState, MailId, QuestionId, ReceiptState, SessionId, TurnId, UserId, notification::RouteSource,
};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};
use time::OffsetDateTime;

use crate::paging::{Column, Listing, Order};

#[derive(FromQueryResult)]
pub struct MailRow {
    pub id: MailId,
    from_user: Option<String>,
    from_session: Option<String>,
    from_service: Option<String>,
    from_name: String,
    pub to_user: Option<String>,
    to_session: Option<String>,
    to_name: Option<String>,
    from_handle: Option<String>,
    to_handle: Option<String>,
    to_address: String,
    message_type: String,
    content: String,
    why: String,
    context_task_id: Option<String>,
    context_session: Option<String>,
    context_ref: Option<String>,
    reply_to: Option<MailId>,
    pub thread_id: MailId,
    question_id: Option<QuestionId>,
    read_at: Option<OffsetDateTime>,
    archived_at: Option<OffsetDateTime>,
    surface_at: OffsetDateTime,
    created_at: OffsetDateTime,
    now: OffsetDateTime,
    outcome: Option<String>,
    reason: Option<String>,
    settled_at: Option<OffsetDateTime>,
    in_turn_id: Option<TurnId>,
    in_turn_number: Option<i64>,
    answered_by: Option<MailId>,
    answered_at: Option<OffsetDateTime>,
    item_state: Option<String>,
    item_reason: Option<String>,
    item_session: Option<SessionId>,
    item_at: Option<OffsetDateTime>,
    item_turn: Option<TurnId>,
    item_turn_number: Option<i64>,
    email_state: Option<String>,
    email_reason: Option<String>,
    email_instead_of: Option<String>,
    email_at: Option<OffsetDateTime>,
}

/// Columns of a row `m` of mail, and what becomes of it. The item of mail that is settled may be gone. Relies on primary keys,
/// mail_answer and outbound_delivery_about.
macro_rules! columns {
    () => {
        "m.account_id, m.id, m.from_user, m.from_session, m.from_service, m.from_name, m.to_user, m.to_session, m.to_address, m.message_type,
         m.content, m.why, m.context_task_id, m.context_session, m.context_ref, m.reply_to, m.thread_id, m.question_id, m.read_at, m.archived_at, m.surface_at,
         m.created_at, m.outcome, m.reason, m.settled_at, m.in_turn_id, m.in_turn_number"
    };
}
/// The handle of the orchestrator that a conversation's key names. Its owner is read apart: on a table with policies the server uses no index
/// for the result of a function that is not leakproof.
macro_rules! handle_of {
    ($mail:literal, $key:literal) => {
        concat!(
            "(select i.handle from (select ",
            $mail,
            ".account_id, case when ",
            $mail,
            $key,
            " like 'orchestrator:org:%' then '' when ",
            $mail,
            $key,
            " like 'orchestrator:%' then split_part(",
            $mail,
            $key,
            ", ':', 3) end as owner offset 0) k
              cross join lateral (
                select i.handle from orchestrator_identity i where i.account_id = k.account_id and i.owner = k.owner offset 0) i)"
        )
    };
}
macro_rules! names {
    ($mail:literal) => {
        concat!(
            ", ",
            handle_of!($mail, ".from_session"),
            " as from_handle, ",
            handle_of!($mail, ".to_session"),
            " as to_handle, now() as now, (select p.name from member p where p.account_id = ",
            $mail,
            ".account_id and p.user_id = ",
            $mail,
            ".to_user) as to_name, a.id as answered_by, a.created_at as answered_at, n.state as item_state, n.reason as item_reason,
             n.session_id as item_session, n.created_at as item_at, t.id as item_turn, t.number as item_turn_number,
             e.state as email_state, e.reason as email_reason, e.instead_of as email_instead_of, e.at as email_at"
        )
    };
}
macro_rules! joins {
    ($mail:literal) => {
        concat!(
            "left join lateral (
                select a.id, a.created_at from mail a
                where a.account_id = ",
            $mail,
            ".account_id and a.reply_to = ",
            $mail,
            ".id and a.why <> 'bounce' order by a.created_at limit 1) a on true
             left join lateral (
                select * from notification n
                where ",
            $mail,
            ".settled_at is null and n.account_id = ",
            $mail,
            ".account_id and n.id = 'mail:' || ",
            $mail,
            ".id offset 0) n on true
             left join lateral (select * from turn t where t.account_id = n.account_id and t.id = n.turn_id offset 0) t on true
             left join lateral (
                select d.state, d.reason, d.instead_of, coalesce(d.ended_at, d.created_at) as at from outbound_delivery d
                where d.account_id = ",
            $mail,
            ".account_id and d.about_id = ",
            $mail,
            ".id and d.kind = 'email' offset 0) e on true"
        )
    };
}

impl MailRow {
    /// Where an answer goes. None: a service wrote it.
    pub fn reply_address(&self) -> Option<String> {
        let person = self.from_user.as_ref().map(|user| format!("@user:{user}"));
        person.or_else(|| self.from_session.clone())
    }

    /// As whoever wrote it reads it: what its recipient does with it, and where they hear of it, is theirs, but that they have read it.
    pub fn of_sender(self) -> MailRow {
        MailRow {
            email_state: None,
            archived_at: None,
            surface_at: self.created_at,
            ..self
        }
    }

    /// The conversation that it is for.
    pub fn to_session(&self) -> Option<&str> {
        self.to_session.as_deref()
    }

    /// The conversation that a reply is about.
    pub fn context(&self) -> Option<&str> {
        self.from_session.as_deref().or(self.context_session.as_deref())
    }

    /// Whether it is the person's, or the author's: written by them, or to them.
    pub fn is_of(&self, person: Option<&UserId>, author: &str) -> bool {
        match person.map(UserId::as_str) {
            Some(user) => [&self.from_user, &self.to_user]
                .into_iter()
                .any(|of| of.as_deref() == Some(user)),
            None => self.from_service.as_deref() == Some(author),
        }
    }

    pub fn shown(self) -> Mail {
        let receipt = self.receipt();
        let deliveries = self.deliveries();
        let party = |user: Option<String>, session: Option<String>, service: Option<String>, name, handle| MailParty {
            kind: match (&user, &session) {
                (Some(_), _) => "person",
                (None, Some(_)) => "session",
                (None, None) => "service",
            }
            .to_owned(),
            id: user.or(service),
            session_key: session,
            name,
            handle,
        };
        let to_name = self.to_name.unwrap_or(self.to_address);
        Mail {
            id: self.id,
            from: party(
                self.from_user,
                self.from_session,
                self.from_service,
                self.from_name,
                self.from_handle,
            ),
            to: party(self.to_user, self.to_session, None, to_name, self.to_handle),
            message_type: self.message_type,
            content: self.content,
            why: self.why,
            context_task_id: self.context_task_id,
            context_session: self.context_session,
            context_ref: self.context_ref,
            reply_to: self.reply_to,
            thread_id: self.thread_id,
            question_id: self.question_id,
            read_at: self.read_at.map(Into::into),
            archived_at: self.archived_at.map(Into::into),
            snoozed_until: (self.surface_at > self.now).then(|| self.surface_at.into()),
            created_at: self.created_at.into(),
            receipt,
            deliveries,
        }
    }

    /// Of mail to a person.
    fn deliveries(&self) -> Vec<Delivery> {
        let web = self.to_user.as_ref().map(|_| Delivery {
            way: "web".to_owned(),
            state: DeliveryState::Sent.to_string(),
            at: self.created_at.into(),
            reason: None,
        });
        let email = self.email_state.clone().zip(self.email_at).map(|(state, at)| Delivery {
            way: "email".to_owned(),
            state,
            at: at.into(),
            reason: self.email_reason.clone(),
        });
        let skipped = self
            .email_instead_of
            .clone()
            .filter(|_| email.is_some())
            .map(|way| Delivery {
                way,
                state: DeliveryState::Superseded.to_string(),
                at: self.created_at.into(),
                reason: Some("this way cannot be used here: e-mail instead".to_owned()),
            });
        web.into_iter().chain(skipped).chain(email).collect()
    }

    /// As the routing log has it, for this person.
    pub fn routed(self, person: Option<&str>) -> Routed {
        let is_theirs = self.to_user.as_deref() == person && person.is_some();
        let mail = if is_theirs { self } else { self.of_sender() }.shown();
        Routed {
            source: RouteSource::Mail.to_string(),
            id: mail.id,
            notification_id: mail.to.session_key.as_ref().map(|_| format!("mail:{}", mail.id)),
            from: mail.from,
            to: mail.to,
            message_type: mail.message_type,
            why: mail.why,
            context_task_id: mail.context_task_id,
            created_at: mail.created_at,
            receipt: mail.receipt,
        }
    }

    fn receipt(&self) -> Receipt {
        let (state, at) = self.state();
        Receipt {
            state,
            at: at.into(),
            turn_id: self.in_turn_id.or(self.item_turn),
            turn_number: self.in_turn_number.or(self.item_turn_number),
            answered_by: self.answered_by,
            reason: self.reason.clone().or_else(|| self.item_reason.clone()),
        }
    }

    fn state(&self) -> (ReceiptState, OffsetDateTime) {
        if let Some(at) = self.answered_at {
            return (ReceiptState::Answered, at);
        }
        if self.to_user.is_some() {
            return match self.read_at {
                Some(at) => (ReceiptState::Read, at),
                None if self.outcome.as_deref() == Some("bounced") => {
                    (ReceiptState::Bounced, self.settled_at.unwrap_or(self.created_at))
                }
                None => (ReceiptState::Delivered, self.created_at),
            };
        }
        match (self.outcome.as_deref(), self.settled_at) {
            // Also while what bounced is sent again.
            (Some("bounced"), at) => return (ReceiptState::Bounced, at.unwrap_or(self.created_at)),
            (Some("read"), Some(at)) => return (ReceiptState::Read, at),
            (Some(_), Some(at)) => return (ReceiptState::InTurn, at),
            (_, _) => {}
        }
        match (self.item_state.as_deref(), self.item_at) {
            (Some("refused" | "failed" | "cancelled"), Some(at)) => (ReceiptState::Bounced, at),
            (Some("running" | "delivered"), Some(at)) => (ReceiptState::InTurn, at),
            (Some(_), Some(at)) if self.item_session.is_some() => (ReceiptState::Delivered, at),
            (_, _) => (ReceiptState::Accepted, self.created_at),
        }
    }
}

/// Relies on primary keys and mail_answer.
pub const FIND: &str = concat!(
    "select ",
    columns!(),
    names!("m"),
    " from mail m ",
    joins!("m"),
    " where m.account_id = $1 and m.id = $2"
);

pub async fn mail_find(tx: &Tx, account: &AccountId, mail: MailId) -> Result<Option<MailRow>, StorageError> {
    tx.one("find mail", FIND, [account.into(), mail.into()]).await
}

/// Mail to a session's conversation, newest first. Relies on mail_of_session.
pub const OF_SESSION: Listing = Listing {
    rows: concat!(
        "select ",
        columns!(),
        " from mail m where m.account_id = $1 and m.to_session = $2"
    ),
    order: &[("created_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: None,
    bytes: "octet_length(content)",
    names: (names!("page"), joins!("page")),
};

/// Whose orchestrator a conversation's key names; null where it is no person's.
macro_rules! person_of {
    ($key:literal) => {
        concat!(
            "case when ",
            $key,
            " like 'orchestrator:%' and ",
            $key,
            " not like 'orchestrator:org:%' then split_part(",
            $key,
            ", ':', 3) end"
        )
    };
}
/// Whether the caller sees the session of a conversation's key: `$4` the person, `$6` everybody's, `$7` an admin.
macro_rules! is_seen {
    ($key:literal) => {
        concat!(
            "coalesce(case when ",
            $key,
            " is null then false when ",
            $key,
            " not like 'orchestrator:%' then true when ",
            $key,
            " like 'orchestrator:org:%' then $7::boolean else $6::boolean or ",
            person_of!($key),
            " = $4 end, false)"
        )
    };
}

/// All mail that the caller may know of, newest first: what the person `$4` or the author `$5` wrote or got, and that of sessions that
/// the caller sees. `$2`: from when on; `$3`: a person whose it is, or whose orchestrator's. Relies on mail_newest.
pub const ROUTED: Listing = Listing {
    rows: concat!(
        "select ",
        columns!(),
        " from mail m where m.account_id = $1 and m.created_at > '-infinity' and m.created_at >= coalesce($2::timestamptz, '-infinity')"
    ),
    wanted: Some(concat!(
        "($3::text is null or $3 in (from_user, to_user, ",
        person_of!("from_session"),
        ", ",
        person_of!("to_session"),
        ")) and (coalesce($4::text in (from_user, to_user), false) or coalesce($4::text is null and from_service = $5::text, false) or ",
        is_seen!("from_session"),
        " or ",
        is_seen!("to_session"),
        ")"
    )),
    ..OF_SESSION
};

/// What a person's inbox shows, newest first. `$3`: the state `shown`, `snoozed` or `all`; then the filters. Relies on mail_shown.
pub const INBOX: Listing = Listing {
    rows: concat!(
        "select ",
        columns!(),
        " from mail m where m.account_id = $1 and m.to_user = $2 and m.archived_at is null"
    ),
    order: &[("surface_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: Some(
        "case $3::text when 'shown' then surface_at <= now() when 'snoozed' then surface_at > now() else true end
         and ($4::boolean is null or (read_at is null) = $4) and ($5::text is null or message_type = $5)
         and ($6::text is null or context_session = $6) and ($7::text is null or from_user = $7) and ($8::text is null or context_task_id = $8)
         and ($9::text is null or from_session = $9)",
    ),
    bytes: "octet_length(content)",
    names: (names!("page"), joins!("page")),
};

/// What a person has archived, the last first. Relies on mail_archived.
pub const ARCHIVED: Listing = Listing {
    rows: concat!(
        "select ",
        columns!(),
        " from mail m where m.account_id = $1 and m.to_user = $2 and m.archived_at is not null"
    ),
    order: &[("archived_at", Column::Time), ("id", Column::Uuid)],
    wanted: Some(
        "$3::text is not null and ($4::boolean is null or (read_at is null) = $4) and ($5::text is null or message_type = $5)
         and ($6::text is null or context_session = $6) and ($7::text is null or from_user = $7) and ($8::text is null or context_task_id = $8)
         and ($9::text is null or from_session = $9)",
    ),
    ..INBOX
};

#[derive(FromQueryResult)]
pub struct CountRow {
    pub message: i64,
    pub notification: i64,
    pub question: i64,
    pub escalation: i64,
    pub next_at: Option<OffsetDateTime>,
}

/// Unread mail is counted up to this many.
pub const COUNTED_MAX: i64 = 1_000;

/// Relies on mail_unread, whose order is requested, and mail_shown.
pub const COUNT: &str = "
    select count(*) filter (where m.message_type = 'message') as message,
           count(*) filter (where m.message_type = 'notification') as notification,
           count(*) filter (where m.message_type = 'question') as question,
           count(*) filter (where m.message_type = 'escalation') as escalation,
           (select s.surface_at from mail s
            where s.account_id = $1 and s.to_user = $2 and s.archived_at is null and s.surface_at > now()
            order by s.surface_at limit 1) as next_at
    from (select m.message_type from mail m
          where m.account_id = $1 and m.to_user = $2 and m.archived_at is null and m.read_at is null and m.surface_at <= now()
          order by m.surface_at desc limit $3) m";

pub async fn unread(tx: &Tx, account: &AccountId, user: &UserId) -> Result<CountRow, StorageError> {
    const ATTEMPT: &str = "count unread mail";
    let values = [account.into(), user.into(), (COUNTED_MAX + 1).into()];
    let counted = tx.one(ATTEMPT, COUNT, values).await?;
    counted.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}

/// Relies on the primary key.
pub const SNOOZE_MOMENTS: &str = "
    select case when z.evening > now() then z.evening end as evening, z.tomorrow, z.monday
    from member m
    cross join lateral (select date_trunc('day', now() at time zone m.time_zone) as today) d
    cross join lateral (
        select (d.today + interval '18 hours') at time zone m.time_zone as evening,
               (d.today + interval '1 day 9 hours') at time zone m.time_zone as tomorrow,
               (date_trunc('week', d.today) + interval '7 days 9 hours') at time zone m.time_zone as monday) z
    where m.account_id = $1 and m.user_id = $2";

pub async fn snooze_moments(tx: &Tx, account: &AccountId, user: &UserId) -> Result<SnoozeMoments, StorageError> {
    const ATTEMPT: &str = "read when mail may come back";
    let found = tx.one(ATTEMPT, SNOOZE_MOMENTS, [account.into(), user.into()]).await?;
    found.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no member"))
}

/// Marks mail of the person as read, or as unread. Gives what changed. Relies on the primary key.
pub const MARK: &str = "
    update mail m set read_at = case when $4 then coalesce(m.read_at, now()) end
    from (select $1 as account_id, id from unnest($3::uuid[]) as w (id) offset 0) w
    where m.account_id = any (array[w.account_id]) and m.id = w.id and m.to_user = $2 and (m.read_at is null) = $4
    returning m.id";

#[derive(FromQueryResult)]
struct Changed {
    id: MailId,
}

pub async fn mark(
    tx: &Tx,
    account: &AccountId,
    user: &UserId,
    (ids, is_read): (Vec<MailId>, bool),
) -> Result<Vec<MailId>, StorageError> {
    let values = [account.into(), user.into(), ids.into(), is_read.into()];
    let rows: Vec<Changed> = tx.rows("mark mail", MARK, values).await?;
    Ok(rows.into_iter().map(|row| row.id).collect())
}

const ARCHIVE: &str = "
    update mail set archived_at = case when $4 then coalesce(archived_at, now()) end
    where account_id = $1 and id = $3 and to_user = $2";

pub async fn archive(
    tx: &Tx,
    account: &AccountId,
    user: &UserId,
    (mail, is_archived): (MailId, bool),
) -> Result<u64, StorageError> {
    let values = [account.into(), user.into(), mail.into(), is_archived.into()];
    tx.execute("archive mail", ARCHIVE, values).await
}

/// What is put off is unread, and not archived.
const SNOOZE: &str = "
    update mail set surface_at = coalesce($4, least(surface_at, now())), archived_at = null,
        read_at = case when $4::timestamptz is null then read_at end
    where account_id = $1 and id = $3 and to_user = $2";

pub async fn snooze(
    tx: &Tx,
    account: &AccountId,
    user: &UserId,
    (mail, until): (MailId, Option<OffsetDateTime>),
) -> Result<u64, StorageError> {
    let values = [account.into(), user.into(), mail.into(), until.into()];
    tx.execute("put mail off", SNOOZE, values).await
}
