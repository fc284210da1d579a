//! `forward_to_user`: mail of the account's orchestrator to a person's own one, with whose words its turn is about. Its id follows from the
//! call. The person's orchestrator treats it as what others have written.

use contracts::{event::MailChange, quote};
use domain::{MailId, MailTo, MailWhy, MessageType, Owner, Party, QueueMode, UserId};
use serde_json::{Map, Value, json};
use storage::lifecycle::{
    mail_send::{Addressee, MailFrom, NewMail, addressees, mail_item, mail_rates, mail_write},
    mail_settle::changed,
};
use uuid::Uuid;

use super::{
    Running, ToolError, ToolOutcome, body,
    send_message::{own, refused, room},
    send_to_session::hops_left,
};
use crate::{call::Effect, store::item_sender};

/// Longest shown part of a sender's name.
const NAME_BYTES_MAX: usize = 256;

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let (tx, account, facts) = (running.questions.tx, running.account, running.facts);
    let message = body(&arguments, "message")?;
    let own = own(running).await?;
    let to = orchestrator_of(running, arguments["user_id"].as_str().unwrap_or_default()).await?;
    hops_left(running)?;
    let turn = facts.turn.as_ref().map(|turn| turn.id);
    room(&mail_rates(tx, account, (own.key.clone(), turn), None).await?)?;
    let first = facts.turn.as_ref().and_then(|turn| turn.first_item.as_deref());
    let sender = match first {
        Some(item) => item_sender(tx, account, item).await?,
        None => None,
    };
    let provenance = match (&sender, first) {
        (Some(sender), Some(item)) => {
            let name = quote::line(&sender.name, NAME_BYTES_MAX).0;
            format!("It is about what {} {name} wrote (notification {item}).", sender.kind)
        }
        _ => "It does not say whose words it is about.".to_owned(),
    };
    let content = format!("The account's orchestrator passes this on. {provenance}\n\n{message}");
    let id = MailId(Uuid::new_v5(&running.call, b"mail"));
    let actor = facts.actor();
    let new = NewMail {
        account,
        id,
        from: MailFrom::Session(&own.key),
        from_name: &actor.name,
        to: &to,
        address: arguments["user_id"].as_str().unwrap_or_default(),
        content: &content,
        kind: MessageType::Message,
        why: MailWhy::Forwarded,
        context_task: facts.task(),
        context_session: Some(&own.key),
        context_ref: first,
        reply_to: None,
        question: None,
        turn,
        now: running.setting.now,
    };
    mail_write(tx, &new).await?;
    let mut messages = vec![changed(account, (id, None), MailChange::Accepted, running.setting)];
    if let Some((item, message)) = mail_item(&new, actor.clone(), QueueMode::Collect) {
        messages.push(running.setting.session_told((account, None), &item, message));
    }
    Ok(Effect::new(json!({"message_id": id, "receipt": "accepted"}), messages))
}

/// The person's own orchestrator. Nobody of this id, and a person without one, have one answer.
async fn orchestrator_of(running: Running<'_>, named: &str) -> Result<Addressee, ToolError> {
    let named = named.trim();
    let user = UserId::parse(named.strip_prefix("@user:").unwrap_or(named)).ok();
    let address = user.and_then(|user| format!("orchestrator:{user}").parse().ok());
    let found = match address {
        Some(session) => addressees(running.questions.tx, running.account, (None, &MailTo::Session(session))).await?,
        None => Vec::new(),
    };
    let own = found
        .into_iter()
        .find(|to| matches!(to.party, Party::Orchestrator(Owner::User(_))));
    own.ok_or_else(|| {
        let why = "There is no person of this id who has an orchestrator.";
        refused("unknown_recipient", why, "Use the id of a person of the account.").into()
    })
}
