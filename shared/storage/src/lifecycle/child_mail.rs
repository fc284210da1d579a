//! What becomes of work on an orchestrator's board is mail to the orchestrator, in the transaction of the move.

use contracts::{event::MailChange, quote};
use domain::{
    AccountId, Actor, ActorKind, Generation, MailId, MailTo, MailWhy, MessageType, Owner, QueueMode, SessionAddress,
    SessionKey, SessionOf, SessionRef, TaskId, TaskStatus,
};
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

/// Whether whoever gave the work away is to know.
fn is_told(to: TaskStatus) -> bool {
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
    let key = SessionKey {
        of: SessionOf::Orchestrator(moved.board.clone()),
        account: account.clone(),
        generation: Generation::FIRST,
    };
    let address = key.to_string();
    let to = MailTo::Session(SessionRef::Address(SessionAddress::Key(key)));
    let Some(to) = addressees(tx, account, &to).await?.pop() else {
        return Ok(Vec::new());
    };
    let own = to.conversation.as_ref().map(|of| of.agent.to_string());
    if moved.by.kind == ActorKind::Agent && own.as_ref() == Some(&moved.by.id) {
        return Ok(Vec::new());
    }
    let said = |text: &str| quote::line(text, SAID_BYTES_MAX).0;
    let mut content = format!(
        "Task {} ({}) is {} now. Moved by {}.",
        moved.task,
        said(moved.title),
        moved.to,
        said(&moved.by.name)
    );
    if let Some(reason) = moved.reason {
        content.push_str(" Reason: ");
        content.push_str(&said(reason));
    }
    let system = Actor::system();
    let new = NewMail {
        account,
        id: MailId(Uuid::new_v5(&moved.activity, b"child")),
        from: MailFrom::Service(&system.id),
        from_name: &system.name,
        to: &to,
        address: &address,
        content: &content,
        kind: MessageType::Notification,
        why: MailWhy::ChildStatus,
        context_task: Some(moved.task),
        context_session: None,
        context_ref: None,
        reply_to: None,
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
