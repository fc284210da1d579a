//! `/api/sessions/{session}/prompt`: what a person, or a service in the name of one, writes to an agent. It is a notification that is
//! addressed by the session.

use api::{
    orchestrators::{NewPrompt, Prompted},
    sessions::Session,
};
use axum::{extract::State, http::StatusCode};
use contracts::notification::NotificationMessage;
use domain::{AccountId, Deliver, Generation, NotificationId, QueueMode, SessionKey, SessionOf, SessionRef, TaskId};
use runtime::http::Problem;
use storage::{
    Tx,
    accepted::{NewAccepted, notification_accept},
    outbox::Owned,
};
use uuid::Uuid;

use super::store;
use crate::{
    app::App,
    auth::Access,
    body::Named,
    error::ApiError,
    idempotency::{Answer, Done, Post, Work},
    notifications::incoming::Posted,
    orchestrators::store::orchestrator_now,
    permission::Need,
    route::routes,
};

routes! {
    "prompts": "What people write to agents";
    /// Write to a session: one's own orchestrator, or one that works on a task. It is named by an id, by the key of any of its generations,
    /// or as `orchestrator:{user}`; by admins also the account's orchestrator. The open generation gets it, or the next one.
    POST "/api/sessions/{session}/prompt" PostMessages => prompt or 404 or 409;
}

/// The type of such notifications.
const KIND: &str = "prompt";

async fn prompt(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionRef>,
    Post { body, once }: Post<NewPrompt>,
) -> Result<Answer<202, Prompted>, ApiError> {
    let account = &access.account;
    app.has_room(account)?;
    once.run(&app, access.party(), async |work| {
        let of = named(&work.tx, account, &session)
            .await?
            .ok_or_else(Problem::not_found)?;
        let to = writable(&access, of)?;
        let deliver = body.deliver.unwrap_or(Deliver::Turn);
        if deliver != Deliver::Turn && !access.caller.may(Need::Control) {
            let detail = "only who may stop and resume turns reaches into one: leave `deliver` out";
            return Err(Problem::new(StatusCode::FORBIDDEN, "not_permitted")
                .detail(detail)
                .into());
        }
        let mode = deliver.mode(QueueMode::Followup);
        let (id, outgoing) = prompted(&app, work, &access, to, (body.content.to_string(), mode)).await?;
        let accepted = Prompted {
            notification_id: id.to_string(),
        };
        Ok(Done::new(accepted).with(vec![outgoing]))
    })
    .await
}

/// Whose session it is. None: there is none of this name in the account.
pub async fn named(tx: &Tx, account: &AccountId, session: &SessionRef) -> Result<Option<SessionOf>, ApiError> {
    let id = match session {
        SessionRef::Address(address) => return Ok(address.within(account)),
        SessionRef::Id(id) => *id,
    };
    let session = store::session_find(tx, account, id).await?;
    let key = session.and_then(|session| SessionKey::parse(&session.key).ok());
    Ok(key.map(|key| key.of))
}

/// The session itself, as the caller sees it: by its id, by the key of its generation, or as an orchestrator, whose open generation it is.
pub async fn session_of(tx: &Tx, account: &AccountId, session: &SessionRef) -> Result<Option<Session>, ApiError> {
    let id = match session {
        SessionRef::Id(id) => Some(*id),
        SessionRef::Address(address) => match address.within(account) {
            None => None,
            Some(SessionOf::Orchestrator(owner)) => orchestrator_now(tx, account, &owner).await?.map(|now| now.id),
            Some(_) => store::session_of_key(tx, account, address).await?,
        },
    };
    match id {
        Some(id) => Ok(store::session_find(tx, account, id).await?),
        None => Ok(None),
    }
}

/// The address for the resolver, and the task of the subject, of a session that the caller may write to. What may not be written to and
/// what is not there have one answer.
pub fn writable(access: &Access, of: SessionOf) -> Result<(String, Option<TaskId>), Problem> {
    let task = match &of {
        SessionOf::Task { task, .. } => Some(task.clone()),
        SessionOf::Agent(_) => None,
        SessionOf::Orchestrator(owner) => access
            .caller
            .may_prompt(owner)
            .then_some(None)
            .ok_or_else(Problem::not_found)?,
        SessionOf::Guest { owner, .. } if !access.sees(owner) => return Err(Problem::not_found()),
        SessionOf::Guest { .. } => {
            let detail = "a guest's session takes mail of its guest only: write to your own orchestrator";
            return Err(Problem::conflict("not_promptable", detail));
        }
        SessionOf::Branch { .. } | SessionOf::Replay(_) => {
            let detail = "a branch or a replay takes no prompts: write to the session that began it";
            return Err(Problem::conflict("not_promptable", detail));
        }
    };
    let key = SessionKey {
        of,
        account: access.account.clone(),
        generation: Generation::FIRST,
    };
    Ok((key.to_string(), task))
}

/// Accepts what the caller writes to the session with this address, on this task. Gives its id and the message for the outbox.
pub async fn prompted(
    app: &App,
    work: &Work,
    access: &Access,
    (address, task): (String, Option<TaskId>),
    (content, mode): (String, QueueMode),
) -> Result<(NotificationId, Owned), ApiError> {
    let id = NotificationId::from(Uuid::now_v7());
    let mut message = NotificationMessage::new(KIND, access.caller.actor(), String::new(), content);
    message.title = None;
    message.id = Some(id.clone());
    message.session = Some(address);
    message.queue_mode = Some(mode);
    let posted = Posted {
        id: id.clone(),
        task,
        message,
    };
    let outgoing = item_send(app, work, access, posted).await?;
    Ok((id, outgoing))
}

/// Accepts an item for the session in its message; gives the message for the outbox.
pub async fn item_send(app: &App, work: &Work, access: &Access, posted: Posted) -> Result<Owned, ApiError> {
    let account = &access.account;
    let new = NewAccepted {
        account,
        id: &posted.id,
        task: posted.task.as_ref(),
        agent: None,
        kind: posted.kind(),
        content_hash: posted.content_hash(),
        publisher: Some(access.caller.principal()),
        at: work.now,
    };
    notification_accept(&work.tx, &new).await?;
    let origin = app.setting(None, work.now).origin;
    let outgoing = posted.outgoing(&app.root, account, &origin, work.now.into());
    app.meters.published("api", 1);
    Ok(outgoing)
}
