//! `/api/me/inbox`.

use api::mail::{Archive, ByType, InboxCount, Mail, Marked, NewReply, Read, ReadMany, Sent, Snooze};
use axum::{Json, extract::State};
use contracts::event::MailChange;
use domain::{AccountId, Deliver, Generation, MailId, MailWhy, MessageType, SessionKey, TaskId, UserId};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::Tx;
use time::Duration;

use crate::{
    app::{App, database_now},
    auth::PersonAccess,
    body::{JsonBody, Named, Query},
    error::{ApiError, invalid_field},
    idempotency::{Answer, Post},
    mail::{
        changed,
        http::{New, marked, write},
        recipient,
        store::{self, COUNTED_MAX, MailRow, mail_find},
    },
    paging::{Cursor, Limit, List, Page, Shown},
    route::routes,
    sessions::prompt::named,
};

routes! {
    "inbox": "Mail to a person";
    /// The inbox, newest first.
    GET "/api/me/inbox" Person => list;
    /// What is not read, counted up to 1,000.
    GET "/api/me/inbox/count" Person => count;
    /// Mark many as read.
    PUT "/api/me/inbox/read" Person => read_many;
    /// One piece of mail.
    GET "/api/me/inbox/{mail}" Person => read;
    /// Mark it as read, or as unread.
    PUT "/api/me/inbox/{mail}/read" Person => mark or 404;
    /// Archive it, or take it back.
    PUT "/api/me/inbox/{mail}/archive" Person => archive or 404;
    /// Put it off: it comes back unread.
    PUT "/api/me/inbox/{mail}/snooze" Person => snooze or 404;
    /// Answer its sender.
    POST "/api/me/inbox/{mail}/reply" Person => reply or 404 or 409;
}

/// From five minutes to 90 days.
const SNOOZE: (Duration, Duration) = (Duration::minutes(5), Duration::days(90));

/// What the inbox is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Which {
    #[default]
    Shown,
    Snoozed,
    Archived,
    /// Shown and snoozed.
    All,
}

impl Which {
    fn word(self) -> &'static str {
        match self {
            Which::Shown => "shown",
            Which::Snoozed => "snoozed",
            Which::Archived => "archived",
            Which::All => "all",
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InboxQuery {
    /// Default `shown`.
    #[serde(default)]
    state: Which,
    /// `true`: only what is not read.
    #[serde(alias = "unreadOnly")]
    unread_only: Option<bool>,
    #[serde(alias = "messageType")]
    message_type: Option<MessageType>,
    /// Only mail from this session, by its id or its key: that of its conversation, whatever the generation.
    #[serde(alias = "fromSessionId")]
    #[schemars(length(max = 384))]
    from_session_id: Option<String>,
    /// Only mail from this person.
    #[serde(alias = "fromUserId")]
    from_user_id: Option<UserId>,
    /// Only mail that this session wrote, or that answers such mail; by its id or its key.
    #[serde(alias = "context_session_id", alias = "contextSessionId")]
    #[schemars(length(max = 384))]
    context_session: Option<String>,
    /// Only mail about this task.
    task: Option<TaskId>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    person: PersonAccess,
    Query(query): Query<InboxQuery>,
) -> Result<Shown<Mail>, ApiError> {
    let account = &person.access.account;
    let listing = match query.state {
        Which::Archived => &store::ARCHIVED,
        Which::Shown | Which::Snoozed | Which::All => &store::INBOX,
    };
    let (task, unread) = (
        query.task.map(|task| task.key()),
        query.unread_only.filter(|only| *only),
    );
    let filters = format!(
        "{} {:?} {unread:?} {:?} {:?} {:?} {:?} {task:?}",
        person.user, query.state, query.message_type, query.from_user_id, query.context_session, query.from_session_id
    );
    let list = List::of(listing, "inbox", account, filters);
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&person.access.accounts()).await?;
    let values = [
        (&person.user).into(),
        query.state.word().into(),
        unread.into(),
        query.message_type.into(),
        conversation(&tx, account, query.context_session).await?.into(),
        query.from_user_id.map(|user| user.to_string()).into(),
        task.into(),
        conversation(&tx, account, query.from_session_id).await?.into(),
    ];
    let rows = page.read(&tx, listing, values, "list inbox").await?;
    tx.commit().await?;
    Ok(rows.show_as(|row: MailRow| row.shown()))
}

/// As mail has a session: by the key of its first generation. A name of nothing stays, and no mail has it.
async fn conversation(tx: &Tx, account: &AccountId, session: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(session) = session else { return Ok(None) };
    let of = match session.parse() {
        Ok(session) => named(tx, account, &session).await?,
        Err(_) => None,
    };
    let key = of.map(|of| SessionKey {
        of,
        account: account.clone(),
        generation: Generation::FIRST,
    });
    Ok(Some(key.map_or(session, |key| key.to_string())))
}

async fn count(State(app): State<App>, person: PersonAccess) -> Result<Json<InboxCount>, ApiError> {
    let tx = person.access.begin(&app).await?;
    let counted = store::unread(&tx, &person.access.account, &person.user).await?;
    let snooze_moments = store::snooze_moments(&tx, &person.access.account, &person.user).await?;
    tx.commit().await?;
    let by_type = ByType {
        message: counted.message,
        notification: counted.notification,
        question: counted.question,
        escalation: counted.escalation,
    };
    let unread = by_type.message + by_type.notification + by_type.question + by_type.escalation;
    Ok(Json(InboxCount {
        unread: unread.min(COUNTED_MAX),
        more: unread > COUNTED_MAX,
        by_type,
        next_surfaces_at: counted.next_at.map(Into::into),
        snooze_moments,
    }))
}

/// Mail to the person. What is somebody else's is as unknown as what is not there.
async fn own(tx: &Tx, account: &AccountId, user: &UserId, mail: MailId) -> Result<MailRow, ApiError> {
    let found = mail_find(tx, account, mail).await?;
    let found = found.filter(|mail| mail.to_user.as_deref() == Some(user.as_str()));
    Ok(found.ok_or_else(Problem::not_found)?)
}

async fn read(
    State(app): State<App>,
    person: PersonAccess,
    Named(mail): Named<MailId>,
) -> Result<Json<Mail>, ApiError> {
    let tx = person.access.begin(&app).await?;
    let found = own(&tx, &person.access.account, &person.user, mail).await?;
    tx.commit().await?;
    Ok(Json(found.shown()))
}

/// Commits a change of the person's mail, and shows it.
async fn done(
    app: &App,
    tx: Tx,
    person: &PersonAccess,
    (mail, change): (MailId, MailChange),
) -> Result<Json<Mail>, ApiError> {
    let account = &person.access.account;
    let found = own(&tx, account, &person.user, mail).await?;
    let now = database_now(&tx).await?;
    let event = app.event(account, now, changed(mail, Some(&person.user), change));
    app.commit(tx, vec![event]).await?;
    Ok(Json(found.shown()))
}

async fn mark(
    State(app): State<App>,
    person: PersonAccess,
    Named(mail): Named<MailId>,
    JsonBody(body): JsonBody<Read>,
) -> Result<Json<Mail>, ApiError> {
    let tx = person.access.begin(&app).await?;
    let ids = (vec![mail], body.read.unwrap_or(true));
    store::mark(&tx, &person.access.account, &person.user, ids).await?;
    done(&app, tx, &person, (mail, MailChange::Read)).await
}

async fn read_many(
    State(app): State<App>,
    person: PersonAccess,
    JsonBody(body): JsonBody<ReadMany>,
) -> Result<Json<Marked>, ApiError> {
    let account = &person.access.account;
    let tx = person.access.begin(&app).await?;
    let read = store::mark(&tx, account, &person.user, (body.ids.0, true)).await?;
    let now = database_now(&tx).await?;
    let event = |mail: &MailId| app.event(account, now, changed(*mail, Some(&person.user), MailChange::Read));
    app.commit(tx, read.iter().map(event).collect()).await?;
    Ok(marked(read.len() as u64))
}

async fn archive(
    State(app): State<App>,
    person: PersonAccess,
    Named(mail): Named<MailId>,
    JsonBody(body): JsonBody<Archive>,
) -> Result<Json<Mail>, ApiError> {
    let tx = person.access.begin(&app).await?;
    store::archive(&tx, &person.access.account, &person.user, (mail, body.archived)).await?;
    done(&app, tx, &person, (mail, MailChange::Archived)).await
}

async fn snooze(
    State(app): State<App>,
    person: PersonAccess,
    Named(mail): Named<MailId>,
    JsonBody(body): JsonBody<Snooze>,
) -> Result<Json<Mail>, ApiError> {
    let tx = person.access.begin(&app).await?;
    let (now, until) = (database_now(&tx).await?, body.until.map(|until| until.0));
    if let Some(until) = until
        && !(now + SNOOZE.0..=now + SNOOZE.1).contains(&until)
    {
        return Err(invalid_field("until", "from five minutes to 90 days from now").into());
    }
    store::snooze(&tx, &person.access.account, &person.user, (mail, until)).await?;
    done(&app, tx, &person, (mail, MailChange::Snoozed)).await
}

async fn reply(
    State(app): State<App>,
    person: PersonAccess,
    Named(mail): Named<MailId>,
    Post { body, once }: Post<NewReply>,
) -> Result<Answer<201, Sent>, ApiError> {
    let access = &person.access;
    app.has_room(&access.account)?;
    once.run(&app, access.party(), async |work| {
        let answered = own(&work.tx, &access.account, &person.user, mail).await?;
        let address = answered.reply_address().ok_or_else(|| {
            let detail = "a service has written this, and reads no mail";
            ApiError::from(Problem::conflict("no_reply_address", detail))
        })?;
        let to = recipient(&work.tx, &access.account, &access.caller, &address).await?;
        let new = New {
            to: &to,
            address: &address,
            content: &body.content,
            kind: MessageType::Message,
            why: MailWhy::Answer,
            context_task: None,
            reply_to: Some(&answered),
            deliver: Deliver::Turn,
        };
        write(&app, work, access, new).await
    })
    .await
}
