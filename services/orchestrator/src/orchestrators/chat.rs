//! What a person and their orchestrator said to each other, over all generations that are kept.

use std::collections::HashMap;

use api::orchestrators::{ChatItem, ChatQuestion};
use domain::{AccountId, UserId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::paging::{Column, Listing, Order, Page, Shown};

/// Turns, newest first; those in which the orchestrator answered a guest are no part of it. Relies on turn_of_person and the primary key.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, session_id, notification_ids, state, reply, error, started_at, finished_at
        from turn where account_id = $1 and user_id = $2",
    order: &[("started_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: Some(
        "coalesce((select s.kind from session s where s.account_id = looked_at.account_id and s.id = looked_at.session_id offset 0), '') <> 'guest'",
    ),
    bytes: "coalesce(octet_length(reply), 0) + 4096 * least(cardinality(notification_ids), 50)",
    names: ("", ""),
};

#[derive(FromQueryResult)]
struct TurnRow {
    id: Uuid,
    notification_ids: Vec<String>,
    state: String,
    reply: Option<String>,
    error: Option<String>,
    started_at: OffsetDateTime,
    finished_at: Option<OffsetDateTime>,
}

#[derive(FromQueryResult)]
struct SaidRow {
    id: String,
    sender_name: String,
    sender_kind: String,
    sender_via: Option<String>,
    body: String,
    cut: bool,
    created_at: OffsetDateTime,
}

/// Characters that are shown of what was said.
const TEXT_CHARACTERS_MAX: i32 = 4_096;
/// Items of one turn that are shown.
const SAID_MAX: usize = 50;

/// Relies on the primary key.
pub const SAID: &str = "
    select n.id, n.sender_name, n.sender_kind, n.sender_via, left(n.body, $3) as body, length(n.body) > $3 as cut, n.created_at
    from unnest($2::text[]) as w (id)
    cross join lateral (select * from notification n where n.account_id = $1 and n.id = w.id offset 0) n";

#[derive(FromQueryResult)]
struct StepRow {
    turn_id: Uuid,
    name: String,
    state: String,
    started_at: OffsetDateTime,
    question_id: Option<Uuid>,
    question_title: Option<String>,
    question_state: Option<String>,
}

/// Steps of one turn that are shown.
const STEPS_MAX: i64 = 50;

/// Relies on tool_call_turn, whose order is requested, and on primary keys.
pub const STEPS: &str = "
    select c.turn_id, c.name, c.state, c.started_at, q.id as question_id, q.title as question_title, q.state as question_state
    from unnest($2::uuid[]) as w (id)
    cross join lateral (
        select * from tool_call c where c.account_id = $1 and c.turn_id = w.id order by c.ordinal limit $3) c
    left join lateral (
        select q.id, q.title, q.state from question q
        where q.account_id = c.account_id
          and q.id = case when c.name = 'ask_question' and c.state = 'finished' then (c.result::jsonb ->> 'question_id')::uuid end
        offset 0) q on true
    order by c.turn_id, c.ordinal";

/// A page of the chat: whole turns.
pub async fn chat(
    tx: &Tx,
    account: &AccountId,
    user: &UserId,
    page: &Page<'_>,
) -> Result<Shown<ChatItem>, StorageError> {
    let rows = page
        .read(tx, &LIST, [user.into()], "list turns of an orchestrator")
        .await?;
    let (turns, places): (Vec<TurnRow>, _) = rows.apart();
    let shown = |turn: &TurnRow| turn.notification_ids.iter().take(SAID_MAX).cloned().collect::<Vec<_>>();
    let ids: Vec<String> = turns.iter().flat_map(shown).collect();
    let values = [account.into(), ids.into(), TEXT_CHARACTERS_MAX.into()];
    let said: Vec<SaidRow> = tx.rows("read what was said", SAID, values).await?;
    let said: HashMap<&str, &SaidRow> = said.iter().map(|said| (said.id.as_str(), said)).collect();
    let ids: Vec<Uuid> = turns.iter().map(|turn| turn.id).collect();
    let values = [account.into(), ids.into(), STEPS_MAX.into()];
    let steps: Vec<StepRow> = tx.rows("read steps of turns", STEPS, values).await?;
    let mut of_turn: HashMap<Uuid, Vec<StepRow>> = HashMap::new();
    for step in steps {
        of_turn.entry(step.turn_id).or_default().push(step);
    }
    let groups = turns.into_iter().map(|turn| {
        let mut items: Vec<ChatItem> = turn
            .notification_ids
            .iter()
            .filter_map(|id| said.get(id.as_str()))
            .map(|said| ChatItem::Said {
                at: said.created_at.into(),
                notification_id: said.id.clone(),
                from: said.sender_name.clone(),
                from_kind: said.sender_kind.clone(),
                via: said.sender_via.clone(),
                text: said.body.clone(),
                cut: said.cut,
            })
            .collect();
        items.extend(of_turn.remove(&turn.id).into_iter().flatten().map(|step| step.shown()));
        items.extend(turn.reply_shown());
        items.reverse();
        items
    });
    Ok(places.show_each(groups.collect::<Vec<_>>()))
}

impl StepRow {
    fn shown(self) -> ChatItem {
        let (at, turn_id) = (self.started_at.into(), self.turn_id);
        match (self.question_id, self.question_title, self.question_state) {
            (Some(question_id), Some(title), Some(state)) => ChatItem::Question(ChatQuestion {
                at,
                turn_id,
                question_id,
                title,
                state,
            }),
            _ => ChatItem::Step {
                at,
                turn_id,
                tool: self.name,
                state: self.state,
            },
        }
    }
}

impl TurnRow {
    /// What a turn in progress will say is not known yet.
    fn reply_shown(self) -> Option<ChatItem> {
        self.finished_at.map(|at| ChatItem::Reply {
            at: at.into(),
            turn_id: self.id,
            state: self.state,
            text: self.reply,
            error: self.error,
            begun_at: self.started_at.into(),
        })
    }
}
