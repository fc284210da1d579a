//! `check_messages`: takes mail that waits in the caller's queue (`storage::session::mail_take`). A claim takes the same items under the
//! same lock, so each goes to one of them.

use std::collections::HashSet;

use contracts::{
    Timestamp,
    tools::check_messages::{BYTES_MAX, MESSAGES_MAX},
};
use domain::{MailId, TurnState, mail};
use serde_json::{Map, Value, json};
use storage::{
    StorageError,
    session::{
        items_alike::{Joining, items_alike},
        mail_take::{mail_take, mail_waiting},
    },
};

use super::{Running, ToolOutcome, send_message::own};
use crate::{
    call::Effect,
    store::{MailRow, mail_read},
};

/// Items of the queue that are looked at.
const LOOKED_AT: i64 = 200;

pub(super) async fn run(running: Running<'_>, _: Map<String, Value>) -> ToolOutcome {
    let (tx, account) = (running.questions.tx, running.account);
    let session = (account.clone(), running.session);
    // What an agent reads while it is called would be lost to a call that is made again: it waits for the next turn.
    let turn = running.facts.turn.as_ref();
    let may_take = turn.is_none_or(|turn| turn.state == TurnState::AwaitingTools);
    let waiting = mail_waiting(tx, &session, LOOKED_AT).await?;
    let waiting = alike(running, waiting).await?;
    let ids = waiting.iter().filter_map(|item| mail::of_item(item)).collect();
    let own = own(running).await?;
    let mut found = mail_read(tx, account, &own.key, ids).await?;
    // In the order of the queue.
    found.sort_by_key(|row| waiting.iter().position(|item| mail::of_item(item) == Some(row.id)));
    let there = found.len();
    let mut bytes = 0;
    found.truncate(MESSAGES_MAX);
    found.retain(|row| {
        bytes += row.content.len();
        bytes <= BYTES_MAX || bytes == row.content.len()
    });
    let items = found.iter().map(|row| mail::item_of(row.id)).collect();
    let taken = match may_take {
        true => mail_take(tx, &session, items, turn.map(|turn| turn.id)).await?,
        false => Vec::new(),
    };
    let taken: HashSet<MailId> = taken.iter().filter_map(|item| mail::of_item(item)).collect();
    let messages: Vec<Value> = found.iter().filter(|row| taken.contains(&row.id)).map(shown).collect();
    let remaining = there - messages.len();
    Ok(Effect::new(
        json!({"messages": messages, "remaining": remaining}),
        Vec::new(),
    ))
}

/// Those of these items that may share the turn: all, where the session belongs to no person.
async fn alike(running: Running<'_>, waiting: Vec<String>) -> Result<Vec<String>, StorageError> {
    let person = running.facts.person();
    let (Some(turn), Some(owner)) = (&running.facts.turn, &person) else {
        return Ok(waiting);
    };
    let Some(first) = &turn.first_item else {
        return Ok(Vec::new());
    };
    let joining: Vec<Joining<'_>> = waiting
        .iter()
        .map(|id| Joining {
            account: running.account,
            owner,
            first,
            id,
        })
        .collect();
    let alike = items_alike(running.questions.tx, &joining).await?;
    let alike: HashSet<String> = alike.into_iter().map(|(_, id)| id.to_string()).collect();
    Ok(waiting.into_iter().filter(|id| alike.contains(id)).collect())
}

fn shown(mail: &MailRow) -> Value {
    json!({
        "message_id": mail.id,
        "from": mail.from_name,
        "from_address": mail.from_address,
        "message_type": mail.message_type,
        "content": mail.content,
        "context_task_id": mail.context_task_id,
        "reply_to": mail.reply_to,
        "sent_at": Timestamp::from(mail.created_at),
    })
}
