//! `send_message`: mail in the name of the caller's session (`storage::lifecycle::mail_send`). Its id follows from the call.

use contracts::{Timestamp, event::MailChange};
use domain::{
    Conversation, Deliver, MailId, MailTo, MailWhy, MessageType, Party, QueueMode, SessionKey, SessionOf,
    mail::{OF_SESSION_MAX, OF_TURN_MAX, UNREAD_MAX},
};
use serde_json::{Map, Value, json};
use storage::lifecycle::{
    mail_send::{Addressee, MailFrom, NewMail, Rates, addressees, mail_answered, mail_item, mail_rates, mail_write},
    mail_settle::changed,
};
use uuid::Uuid;

use super::{Running, ToolError, ToolOutcome, body, send_to_session::hops_left, task_existing};
use crate::{
    arguments::invalid_field,
    call::{Effect, ToolAnswer},
    store::board_of,
};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let (tx, account, facts) = (running.questions.tx, running.account, running.facts);
    let content = body(&arguments, "content")?;
    let address = arguments["to"].as_str().unwrap_or_default().trim();
    let kind = arguments
        .get("message_type")
        .and_then(Value::as_str)
        .and_then(MessageType::parse);
    let kind = kind.unwrap_or(MessageType::Message);
    let deliver = arguments
        .get("deliver")
        .and_then(Value::as_str)
        .and_then(Deliver::parse);
    let deliver = deliver.unwrap_or(Deliver::Turn);
    let own = own(running).await?;
    let to = recipient(running, &own.party, address).await?;
    if !own.party.may_deliver(&to.party, deliver) {
        let why = format!("Mail of yours to {address} is not delivered as {deliver}.");
        return Err(refused(
            "not_permitted",
            why,
            "Leave `deliver` out: the mail gets a turn of its own.",
        )
        .into());
    }
    if to.conversation.is_some() {
        hops_left(running)?;
        if to.key() == Some(own.key.clone()) {
            return Err(refused(
                "own_address",
                "This is your own address.",
                "Write it down in your reply instead.",
            )
            .into());
        }
    }
    let turn = facts.turn.as_ref().map(|turn| turn.id);
    room(&mail_rates(tx, account, (own.key.clone(), turn), to.user()).await?)?;
    let reply_to = match arguments.get("reply_to").and_then(Value::as_str) {
        Some(named) => Some(answered(running, (&own, &to), named).await?),
        None => None,
    };
    if let Some(named) = running.task
        && facts.task().is_none_or(|own| own.key() != named.key())
    {
        task_existing(running, named).await?;
    }
    let task = running.task.or(facts.task());
    let id = MailId(Uuid::new_v5(&running.call, b"mail"));
    let actor = facts.actor();
    let new = NewMail {
        account,
        id,
        from: MailFrom::Session(&own.key),
        from_name: &actor.name,
        to: &to,
        address,
        content,
        kind,
        why: match reply_to {
            Some(_) => MailWhy::Answer,
            None => MailWhy::Addressed,
        },
        context_task: task,
        context_session: Some(&own.key),
        context_ref: arguments.get("context_ref").and_then(Value::as_str),
        reply_to,
        question: None,
        turn,
        now: running.setting.now,
    };
    mail_write(tx, &new).await?;
    let accepted = changed(account, (id, to.user()), MailChange::Accepted, running.setting);
    let mut messages = vec![accepted];
    let alone = match kind {
        MessageType::Message | MessageType::Notification => QueueMode::Collect,
        MessageType::Question | MessageType::Escalation => QueueMode::Followup,
    };
    if let Some((item, message)) = mail_item(&new, actor.clone(), deliver.mode(alone)) {
        let task = to.task();
        messages.push(running.setting.session_told((account, task), &item, message));
    }
    let receipt = match to.user() {
        Some(_) => "delivered",
        None => "accepted",
    };
    Ok(Effect::new(
        json!({"message_id": id, "to": {"name": to.name, "handle": to.handle}, "receipt": receipt}),
        messages,
    ))
}

pub(super) fn refused(code: &'static str, why: impl Into<String>, instead: &str) -> ToolAnswer {
    ToolAnswer::refused(code, why, format!("Nothing was sent. {instead}"))
}

/// The caller, as a sender.
pub(super) struct Own {
    party: Party,
    /// The key of its conversation's first generation.
    pub(super) key: String,
}

pub(super) async fn own(running: Running<'_>) -> Result<Own, ToolError> {
    let facts = running.facts;
    let conversation = Conversation::of_session(&facts.session_key, facts.agent);
    let key = conversation.map(|of| of.key(domain::Generation::FIRST).to_string());
    let parsed = SessionKey::parse(&facts.session_key).ok().map(|key| key.of);
    let party = match parsed {
        Some(SessionOf::Orchestrator(owner)) => Party::Orchestrator(owner),
        Some(SessionOf::Guest { owner, guest }) => Party::Guest { owner, guest },
        Some(SessionOf::Task { task, .. }) => {
            let board = board_of(running.questions.tx, running.account, &task).await?;
            Party::Session { task, board }
        }
        Some(SessionOf::Agent(_) | SessionOf::Branch { .. } | SessionOf::Replay(_)) | None => Party::Other,
    };
    Ok(Own {
        party,
        key: key.unwrap_or_else(|| facts.session_key.clone()),
    })
}

/// Unknown, unreachable and not permitted have one answer.
async fn recipient(running: Running<'_>, from: &Party, address: &str) -> Result<Addressee, ToolError> {
    let to = MailTo::parse(address).map_err(|error| invalid_field("to", &error.to_string()))?;
    let mut found = addressees(running.questions.tx, running.account, (from.person(), &to)).await?;
    found.retain(|to| from.may_write(&to.party));
    match &found[..] {
        [_] => Ok(found.remove(0)),
        [] => {
            let why = "There is nobody of this address to whom you may write.";
            Err(refused(
                "unknown_recipient",
                why,
                "Use an address that you were given, or say in your reply whom it is for.",
            )
            .into())
        }
        several => {
            let ids: Vec<String> = several
                .iter()
                .filter_map(|one| Some(format!("@user:{}", one.user()?)))
                .collect();
            let why = format!("Several people have this name: {}.", ids.join(", "));
            Err(refused("unknown_recipient", why, "Call again with one of these.").into())
        }
    }
}

pub(super) fn room(rates: &Rates) -> Result<(), ToolError> {
    let after = rates
        .next_at
        .map(|at| format!(" The next one may go after {}.", Timestamp::from(at)));
    let (code, why) = match rates {
        Rates { of_turn, .. } if *of_turn >= OF_TURN_MAX => (
            "too_many_messages",
            format!("This turn has sent {OF_TURN_MAX} pieces of mail, and may send no more."),
        ),
        Rates { of_hour, .. } if *of_hour >= OF_SESSION_MAX => (
            "too_many_messages",
            format!(
                "This conversation has sent {OF_SESSION_MAX} pieces of mail within an hour.{}",
                after.unwrap_or_default()
            ),
        ),
        Rates { unread, .. } if *unread >= UNREAD_MAX => (
            "inbox_full",
            format!("The recipient has {UNREAD_MAX} pieces of mail that are not read."),
        ),
        Rates { .. } => return Ok(()),
    };
    Err(refused(code, why, "Say in your reply what is left.").into())
}

/// The mail that the call answers, with its thread: one to this conversation, from whom the answer is for.
async fn answered(
    running: Running<'_>,
    (own, to): (&Own, &Addressee),
    named: &str,
) -> Result<(MailId, MailId), ToolError> {
    let found = match MailId::parse(named.trim()) {
        Ok(id) => mail_answered(running.questions.tx, running.account, (id, &own.key), to).await?,
        Err(_) => None,
    };
    found.ok_or_else(|| {
        let why = "You have got no mail of this id from whom you write to.";
        refused(
            "mail_not_found",
            why,
            "Use the id that stands with the mail, or leave it out.",
        )
        .into()
    })
}
