//! `get_session_status`: one session of the orchestrator's board, with its queue, its newest turns and the newest messages of its task.

use contracts::{
    Timestamp,
    tools::get_session_status::{MESSAGES_MAX, QUEUE_MAX, REPLY_BYTES_MAX, TURNS_MAX},
};
use domain::{
    NotificationState,
    next::{ItemNow, item_next},
};
use serde_json::{Map, Value, json};

use super::{
    Running, ToolOutcome,
    children::{child, shown},
};
use crate::{
    call::{Effect, cut},
    store::{Newest, WaitingRow, child_queue, child_turns},
};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let child = child(running, &arguments).await?;
    let (tx, account) = (running.questions.tx, running.account);
    let queue = child_queue(tx, account, &child, QUEUE_MAX).await?;
    let characters_max = i32::try_from(REPLY_BYTES_MAX).unwrap_or(i32::MAX);
    let turns = child_turns(tx, account, &child, (TURNS_MAX, characters_max)).await?;
    let newest = Newest {
        task: (account.clone(), child.task.clone()),
        rows: MESSAGES_MAX,
    };
    let messages = running.questions.messages(newest).await;
    let queue: Vec<Value> = queue
        .iter()
        .map(|item| {
            json!({
                "from": item.sender_name,
                "type": item.kind,
                "since": Timestamp::from(item.created_at),
                "waits_for": waits_for(item),
            })
        })
        .collect();
    let turns: Vec<Value> = turns
        .iter()
        .map(|turn| {
            json!({
                "number": turn.number,
                "state": turn.state,
                "started_at": Timestamp::from(turn.started_at),
                "finished_at": turn.finished_at.map(Timestamp::from),
                "reply": turn.reply.as_deref().map(|reply| cut(reply, REPLY_BYTES_MAX)),
            })
        })
        .collect();
    let messages: Vec<Value> = messages
        .iter()
        .map(|message| {
            json!({
                "author": message.author.name,
                "body": cut(&message.body, REPLY_BYTES_MAX),
                "created_at": Timestamp::from(message.created_at),
            })
        })
        .collect();
    let result = json!({
        "session": shown(&child, account),
        "queued": child.queued,
        "queue": queue,
        "turns": turns,
        "messages": messages,
    });
    Ok(Effect::new(result, Vec::new()))
}

/// In the words in which people are told.
fn waits_for(item: &WaitingRow) -> Option<String> {
    let now = ItemNow {
        state: NotificationState::Queued,
        turn: None,
        created_at: item.created_at.into(),
        place: u64::try_from(item.place).ok(),
    };
    item_next(&now, Some(&item.session)).map(|next| next.text)
}
