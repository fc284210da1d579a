//! Gives waiting items to the turns in progress of their sessions, whose locks the caller holds.

use domain::TurnId;
use sea_orm::TryGetableFromJson;
use serde::{Deserialize, Serialize};

use super::SessionName;
use crate::{StorageError, Tx, statement::column};

/// Text that goes to the agent beside the results of its tools. It is stored before it is sent, so that the same call sends
/// the same bytes again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Note {
    /// The number of answers with tool calls before the call that carries it.
    pub round: usize,
    pub text: String,
    pub notification_ids: Vec<String>,
}

/// The notes of a turn, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Notes(pub Vec<Note>);

impl TryGetableFromJson for Notes {}

impl Notes {
    /// What the call after so many answers carries.
    pub fn of_round(&self, round: usize) -> impl Iterator<Item = &Note> {
        self.0.iter().filter(move |note| note.round == round)
    }

    /// The text of that call's note.
    pub fn text(&self, round: usize) -> Option<String> {
        let texts: Vec<&str> = self.of_round(round).map(|note| note.text.as_str()).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }
}

#[derive(Clone, Debug)]
pub struct Join {
    pub session: SessionName,
    pub turn: TurnId,
    pub note: Note,
    /// The number of wake-ups of agents by agents, of the note's items.
    pub hops: i32,
}

/// Relies on the primary keys. The state is compared in a form without selectivity statistics, as in
/// [`super::turns_begin::TURNS_BEGIN`].
pub const ITEMS_JOIN: &str = "
    with given as materialized (
        select r.account_id, r.session_id, r.turn_id, r.note, r.hops,
               array(select jsonb_array_elements_text(r.note -> 'notification_ids')) as ids
        from (select account_id, session_id, turn_id, note::jsonb as note, hops
              from unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::integer[])
                  as g (account_id, session_id, turn_id, note, hops)) r
    ), taken as (
        update notification n set state = 'running', turn_id = i.turn_id, reason = null
        from (select account_id, turn_id, unnest(ids) as id from given) i
        where n.account_id = any (array[i.account_id]) and n.id = i.id and coalesce(n.state = 'queued', false)
    ), uncounted as (
        update session s set queued = s.queued - cardinality(g.ids)
        from given g where s.account_id = any (array[g.account_id]) and s.id = g.session_id
    )
    update turn t set notification_ids = t.notification_ids || g.ids, notes = coalesce(t.notes, '[]') || g.note,
        hops = greatest(t.hops, g.hops)
    from given g where t.account_id = any (array[g.account_id]) and t.id = g.turn_id";

/// The caller has read the items under the sessions' locks. At most one note a turn.
pub async fn items_join(tx: &Tx, joins: &[Join]) -> Result<(), StorageError> {
    if joins.is_empty() {
        return Ok(());
    }
    let note = |join: &Join| serde_json::to_string(&join.note).expect("a note serialises: texts and numbers");
    let values = [
        column(joins, |join| join.session.0.clone()),
        column(joins, |join| join.session.1),
        column(joins, |join| join.turn),
        column(joins, note),
        column(joins, |join| join.hops),
    ];
    tx.execute("give items to turns in progress", ITEMS_JOIN, values)
        .await
        .map(|_| ())
}
