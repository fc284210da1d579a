//! What becomes of work on an orchestrator's board is mail to the orchestrator, in the transaction of the move.

use contracts::{event::MailChange, quote};
use domain::{
    AccountId, Actor, ActorKind, Generation, MailId, MailTo, MailWhy, MessageType, Owner, QueueMode, SessionAddress,
    SessionKey, SessionOf, SessionRef, TaskId, TaskStatus,
};
use sea_orm::FromQueryResult;
use uuid::Uuid;

use super::{
    mail_send::{MailFrom, NewMail, addressees, mail_item, mail_write},
    mail_settle::changed,
};
use crate::{Setting, StorageError, Tx, outbox::Owned};

/// Of what others wrote, in a sentence of ours.
pub(super) const SAID_BYTES_MAX: usize = 1024;

/// A move of a task on a board.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChildMove<'a> {
    pub board: &'a Owner,
    pub task: &'a TaskId,
    pub title: &'a str,
    pub to: TaskStatus,
    pub by: &'a Actor,
    pub reason: Option<&'a str>,
    /// The id of its activity: the mail's id follows from it.
    pub activity: Uuid,
}

/// Whether whoever gave the work away is to know. Pure.
pub fn is_told(to: TaskStatus) -> bool {
    match to {
        TaskStatus::Review
        | TaskStatus::Blocked
        | TaskStatus::AwaitingApproval
        | TaskStatus::Failed
        | TaskStatus::Done
        | TaskStatus::Cancelled => true,
        TaskStatus::Inbox
        | TaskStatus::Assigned
        | TaskStatus::Pending
        | TaskStatus::InProgress
        | TaskStatus::Archived => false,
    }
}

/// Gives the messages for the outbox. None: it is of no interest, or the orchestrator moved the task itself, or is off or gone.
pub(super) async fn child_mail(
    tx: &Tx,
    account: &AccountId,
    moved: ChildMove<'_>,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    if !is_told(moved.to) {
        return Ok(Vec::new());
    }
    let quoted = |text: &str| quote::line(text, SAID_BYTES_MAX).0;
    let mut content = format!(
        "Task {} ({}) is {} now. Moved by {}.",
        moved.task,
        quoted(moved.title),
        moved.to,
        quoted(&moved.by.name)
    );
    if let Some(reason) = moved.reason {
        content.push_str(" Reason: ");
        content.push_str(&quoted(reason));
    }
    let said = (&*content, moved.by, moved.activity);
    orchestrator_told(tx, account, (moved.board, moved.task), said, setting).await
}

#[derive(FromQueryResult)]
struct OnBoard {
    board: Owner,
    title: String,
}

/// Relies on the primary key.
const ON_BOARD: &str = "select board, title from task where account_id = $1 and id = $2 and board is not null";

/// The work on a task was given up, and the task stays as it is. Gives the messages for the outbox. None: it is on no board.
pub(crate) async fn child_gave_up(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    (detail, seed): (&str, Uuid),
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let values = [account.into(), task.key().into()];
    let Some(on) = tx
        .one::<OnBoard>("find whose board a task is on", ON_BOARD, values)
        .await?
    else {
        return Ok(Vec::new());
    };
    let title = quote::line(&on.title, SAID_BYTES_MAX).0;
    let content = format!("Task {task} ({title}) does not move on by itself. {detail}");
    orchestrator_told(
        tx,
        account,
        (&on.board, task),
        (&content, &Actor::system(), seed),
        setting,
    )
    .await
}

/// Mail of the system's to a board's orchestrator about a task. None: the orchestrator did it itself, or is off or gone. `seed`: the mail's
/// id follows from it.
pub(super) async fn orchestrator_told(
    tx: &Tx,
    account: &AccountId,
    (board, task): (&Owner, &TaskId),
    (content, by, seed): (&str, &Actor, Uuid),
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let key = SessionKey {
        of: SessionOf::Orchestrator(board.clone()),
        account: account.clone(),
        generation: Generation::FIRST,
    };
    let address = key.to_string();
    let to = MailTo::Session(SessionRef::Address(SessionAddress::Key(key)));
    let Some(to) = addressees(tx, account, (None, &to)).await?.pop() else {
        return Ok(Vec::new());
    };
    let own = to.conversation.as_ref().map(|of| of.agent.to_string());
    if by.kind == ActorKind::Agent && own.as_ref() == Some(&by.id) {
        return Ok(Vec::new());
    }
    let system = Actor::system();
    let new = NewMail {
        account,
        id: MailId(Uuid::new_v5(&seed, b"child")),
        from: MailFrom::Service(&system.id),
        from_name: &system.name,
        to: &to,
        address: &address,
        content,
        kind: MessageType::Notification,
        why: MailWhy::ChildStatus,
        context_task: Some(task),
        context_session: None,
        context_ref: None,
        reply_to: None,
        question: None,
        turn: None,
        now: setting.now,
    };
    mail_write(tx, &new).await?;
    let mut messages = vec![changed(account, (new.id, None), MailChange::Accepted, setting)];
    if let Some((id, message)) = mail_item(&new, system.clone(), QueueMode::Collect) {
        messages.push(setting.session_told((account, None), &id, message));
    }
    Ok(messages)
}
