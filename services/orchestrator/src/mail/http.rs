//! `/api/messages`, and the mail of sessions.

use api::mail::{Mail, MailText, Marked, NewMail, ReadWaiting, Sent};
use axum::{Json, extract::State, http::StatusCode};
use contracts::event::MailChange;
use domain::{
    Deliver, Generation, MailId, MailTo, MailWhy, MessageType, Owner, Party, QueueMode, SessionKey, SessionOf,
    SessionRef,
    mail::{OF_PERSON_MAX, UNREAD_MAX},
};
use runtime::http::Problem;
use storage::lifecycle::{
    mail_read::mail_read,
    mail_send::{
        Addressee, MailFrom, NewMail as Written, Rates, addressees, mail_item, mail_rates, mail_write, sender_lock,
    },
};
use uuid::Uuid;

use super::{
    changed, recipient,
    store::{self, MailRow, mail_find},
};
use crate::{
    app::{App, database_now},
    auth::{Access, Caller, PersonAccess},
    body::{JsonBody, Named, Query},
    error::ApiError,
    idempotency::{Answer, Done, Post, Work},
    notifications::incoming::Posted,
    paging::{List, ListQuery, Shown},
    permission::Need,
    route::routes,
    sessions::prompt::{item_send, named, writable},
};

routes! {
    "mail": "Mail between people, orchestrators and sessions";
    /// Write to a person, an orchestrator or a session. To a person it is in the inbox at once; an agent gets it as an item of its queue.
    POST "/api/messages" PostMessages => send or 409 or 429;
    /// Mail that one has written or got, with its receipt.
    GET "/api/messages/{mail}" ReadMembers => read;
    /// Mail to a session, over all of its generations, newest first. Nothing is marked.
    GET "/api/sessions/{session}/messages" Read => list;
    /// Read mail that waits in a session's queue, in its agent's place: these pieces, or those among the first 200 items. The agent does
    /// not get them any more; their senders see that they were read.
    PUT "/api/sessions/{session}/messages/read" Person => read_waiting or 404 or 409;
}

async fn send(
    State(app): State<App>,
    access: Access,
    Post { body, once }: Post<NewMail>,
) -> Result<Answer<201, Sent>, ApiError> {
    app.has_room(&access.account)?;
    once.run(&app, access.party(), async |work| {
        let to = recipient(&work.tx, &access.account, &access.caller, &body.to).await?;
        let deliver = body.deliver.unwrap_or(Deliver::Turn);
        if deliver != Deliver::Turn && !may_reach_in(&access.caller, &to) {
            let detail = "only who may stop and resume its turns reaches into one: leave `deliver` out";
            return Err(Problem::new(StatusCode::FORBIDDEN, "not_permitted")
                .detail(detail)
                .into());
        }
        let new = New {
            to: &to,
            address: &body.to,
            content: &body.content,
            kind: body.message_type.unwrap_or(MessageType::Message),
            why: MailWhy::Addressed,
            context_task: body.context_task_id.as_ref(),
            reply_to: None,
            deliver,
        };
        write(&app, work, &access, new).await
    })
    .await
}

/// Whether mail of the caller's may come into a turn in progress, or end it.
fn may_reach_in(caller: &Caller, to: &Addressee) -> bool {
    match &to.party {
        Party::Orchestrator(Owner::Account) => caller.is_admin(),
        // Its turns are its owner's.
        Party::Guest { .. } => false,
        _ => caller.may(Need::Control),
    }
}

/// Mail of the caller's.
pub struct New<'a> {
    pub to: &'a Addressee,
    pub address: &'a str,
    pub content: &'a MailText,
    pub kind: MessageType,
    pub why: MailWhy,
    pub context_task: Option<&'a domain::TaskId>,
    pub reply_to: Option<&'a MailRow>,
    pub deliver: Deliver,
}

/// Writes it, and sends the item of mail to a session.
pub async fn write(app: &App, work: &Work, access: &Access, new: New<'_>) -> Result<Done<Sent>, ApiError> {
    let (account, caller) = (&access.account, &access.caller);
    let person = caller.person();
    let (from, sender) = match person {
        Some(person) => (MailFrom::User(&person.id), format!("user:{}", person.id)),
        None => (
            MailFrom::Service(caller.author_id()),
            format!("service:{}", caller.author_id()),
        ),
    };
    if person.is_some_and(|person| new.to.user() == Some(&person.id)) {
        let detail = "this is your own address: a note to yourself is no mail";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "own_address")
            .detail(detail)
            .into());
    }
    sender_lock(&work.tx, account, &sender).await?;
    let rates = mail_rates(&work.tx, account, (sender, None), new.to.user()).await?;
    room(&rates)?;
    let id = MailId(Uuid::now_v7());
    let actor = caller.actor();
    let written = Written {
        account,
        id,
        from,
        from_name: &actor.name,
        to: new.to,
        address: new.address,
        content: new.content,
        kind: new.kind,
        why: new.why,
        context_task: new.context_task,
        context_session: new.reply_to.and_then(MailRow::context),
        context_ref: None,
        reply_to: new.reply_to.map(|mail| (mail.id, mail.thread_id)),
        question: None,
        turn: None,
        now: work.now,
    };
    mail_write(&work.tx, &written).await?;
    let mut messages = vec![app.event(account, work.now, changed(id, new.to.user(), MailChange::Accepted))];
    let mut notification_id = None;
    let mode = new.deliver.mode(QueueMode::Followup);
    if let Some((item, message)) = mail_item(&written, actor.clone(), mode) {
        let task = new.to.task().cloned();
        let sent = Posted {
            id: item.clone(),
            task,
            message,
        };
        messages.push(item_send(app, work, access, sent).await?);
        notification_id = Some(item);
    }
    let mail = mail_find(&work.tx, account, id).await?.ok_or_else(Problem::not_found)?;
    let sent = Sent {
        mail: mail.of_sender().shown(),
        notification_id,
    };
    Ok(Done::new(sent).with(messages))
}

/// Whether sender and recipient have room.
fn room(rates: &Rates) -> Result<(), ApiError> {
    if rates.of_hour >= OF_PERSON_MAX {
        let next = rates
            .next_at
            .map(|at| format!(", the next one after {}", contracts::Timestamp::from(at)));
        let detail = format!(
            "{OF_PERSON_MAX} pieces of mail in an hour were sent{}",
            next.unwrap_or_default()
        );
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_messages")
            .detail(detail)
            .into());
    }
    if rates.unread >= UNREAD_MAX {
        let detail = format!("the recipient has {UNREAD_MAX} pieces of mail that are not read");
        return Err(Problem::conflict("inbox_full", detail).into());
    }
    Ok(())
}

async fn read(State(app): State<App>, access: Access, Named(mail): Named<MailId>) -> Result<Json<Mail>, ApiError> {
    let tx = access.begin(&app).await?;
    let found = mail_find(&tx, &access.account, mail).await?;
    tx.commit().await?;
    let person = access.caller.person();
    let found = found.filter(|mail| mail.is_of(person.map(|person| &person.id), access.caller.author_id()));
    let found = found.ok_or_else(Problem::not_found)?;
    let is_theirs = person.is_some_and(|person| found.to_user.as_deref() == Some(person.id.as_str()));
    let found = if is_theirs { found } else { found.of_sender() };
    Ok(Json(found.shown()))
}

async fn list(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionRef>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Mail>, ApiError> {
    let account = &access.account;
    let tx = app.begin_list(&access.accounts()).await?;
    let of = named(&tx, account, &session).await?.ok_or_else(Problem::not_found)?;
    if !is_seen(&access, &of) {
        return Err(Problem::not_found().into());
    }
    let key = SessionKey {
        of,
        account: account.clone(),
        generation: Generation::FIRST,
    };
    let page = query.page(&app, List::of(&store::OF_SESSION, "mail of a session", account, &key))?;
    let rows = page
        .read(
            &tx,
            &store::OF_SESSION,
            [key.to_string().into()],
            "list mail of a session",
        )
        .await?;
    tx.commit().await?;
    Ok(rows.show_as(|row: MailRow| row.shown()))
}

/// Whether the caller sees the mail of this conversation.
fn is_seen(access: &Access, of: &SessionOf) -> bool {
    match of {
        SessionOf::Orchestrator(Owner::User(user)) | SessionOf::Guest { owner: user, .. } => access.sees(user),
        SessionOf::Orchestrator(Owner::Account) => access.caller.is_admin(),
        SessionOf::Task { .. } | SessionOf::Agent(_) | SessionOf::Branch { .. } | SessionOf::Replay(_) => true,
    }
}

async fn read_waiting(
    State(app): State<App>,
    person: PersonAccess,
    Named(session): Named<SessionRef>,
    JsonBody(body): JsonBody<ReadWaiting>,
) -> Result<Json<Marked>, ApiError> {
    let access = &person.access;
    let account = &access.account;
    let tx = access.begin(&app).await?;
    let of = named(&tx, account, &session).await?.ok_or_else(Problem::not_found)?;
    if !is_seen(access, &of) {
        return Err(Problem::not_found().into());
    }
    writable(access, of)?;
    let to = MailTo::Session(session);
    // An agent's session without a task gets no mail.
    let to = addressees(&tx, account, (None, &to)).await?.pop();
    let to = to.ok_or_else(Problem::not_found)?;
    let conversation = to.conversation.as_ref().ok_or_else(Problem::not_found)?;
    let setting = app.setting(None, database_now(&tx).await?);
    let ids = body.ids.map(|ids| ids.0);
    let (read, messages) = mail_read(&tx, (conversation, to.task()), ids, &access.caller.actor(), &setting).await?;
    app.commit(tx, messages).await?;
    Ok(marked(read))
}

/// How many changed.
pub fn marked(changed: u64) -> Json<Marked> {
    Json(Marked { changed })
}
