//! Every query on replays. `storage::session::replay_begin` makes and ends them.

use api::replays::{Replay, ReplayCall};
use domain::{
    AccountId, Actor, AgentId, Matched, ReplayHistory, ReplayId, ReplaySpec, ReplayState, SessionId, TaskId, Timestamp,
    TurnContext, TurnId, TurnState,
};
use sea_orm::{FromQueryResult, TryGetableFromJson};
use serde::Deserialize;
use storage::{StorageError, Tx};

use crate::paging::{Column, Listing, Order};

/// A turn that is to be run again.
#[derive(Clone, PartialEq, Eq, Debug, FromQueryResult)]
pub struct Source {
    /// As its client spelled it.
    pub task: Option<TaskId>,
    pub agent_id: AgentId,
    pub provider: String,
    pub is_replay: bool,
    pub is_over: bool,
    /// Its texts are there, in the form of a version that said where its context came from.
    pub is_whole: bool,
    pub has_agent: bool,
}

/// The agent's row is held until the end of the transaction, so that it is not removed while a session is opened for it. Relies on
/// the primary keys.
pub const SOURCE: &str = "
    select k.display_id as task, t.agent_id, t.provider, t.finished_at is not null as is_over, coalesce(s.kind = 'replay', false) as is_replay,
           s.id is not null and i.hash is not null and t.context is not null and t.manifest_packed is not null as is_whole,
           g.removed_at is null as has_agent
    from (select * from turn t where t.account_id = $1 and t.id = $2 offset 0) t
    join agent g on g.account_id = any (array[t.account_id]) and g.id = t.agent_id
    left join session s on s.account_id = any (array[t.account_id]) and s.id = t.session_id
    left join instruction_text i on i.account_id = any (array[t.account_id]) and i.hash = t.profile_hash
    left join task k on k.account_id = any (array[t.account_id]) and k.id = t.task_id
    for share of g";

pub async fn source_find(tx: &Tx, account: &AccountId, turn: TurnId) -> Result<Option<Source>, StorageError> {
    tx.one("find the turn to replay", SOURCE, [account.into(), turn.into()])
        .await
}

macro_rules! columns {
    ($from:literal) => {
        concat!(
            "select account_id, id, source_turn_id, session_id, spec, created_by_kind, created_by_id, created_by_name, created_by_via,
                    created_at from replay where account_id = $1 and ",
            $from
        )
    };
}

/// Of the newest turn in its session, and of the source turn.
macro_rules! names {
    () => {
        ", s.id is null or s.closed_at is not null as is_closed, t.id as turn_id, t.state as turn_state, t.reply, t.usage, t.error, t.context,
       o.context as source_context, o.recorded,
       (select json_agg(json_build_object('name', c.call ->> 'name', 'matched', coalesce(c.call ->> 'matched', 'none')) order by j.n, c.n)
        from jsonb_array_elements(t.journal) with ordinality as j (round, n)
        cross join lateral jsonb_array_elements(j.round -> 'calls') with ordinality as c (call, n)) as calls"
    };
}
macro_rules! joins {
    () => {
        "left join lateral (
        select * from session s where s.account_id = any (array[page.account_id]) and s.id = page.session_id offset 0) s on true
     left join lateral (
        select * from turn t where t.account_id = page.account_id and t.session_id = page.session_id
        order by t.account_id desc, t.session_id desc, t.number desc limit 1) t on true
     left join lateral (
        select o.context, (select coalesce(sum(jsonb_array_length(j.round -> 'calls')), 0)::bigint
                           from jsonb_array_elements(o.journal) as j (round)) as recorded
        from turn o where o.account_id = page.account_id and o.id = page.source_turn_id offset 0) o on true"
    };
}

/// Relies on replay_of_turn, and on turn_number, whose order is requested.
pub const LIST: Listing = Listing {
    rows: columns!("source_turn_id = $2"),
    order: &[("created_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: None,
    bytes: "octet_length(spec::text)",
    names: (names!(), joins!()),
};

#[derive(Debug, FromQueryResult)]
pub struct ReplayRow {
    id: ReplayId,
    source_turn_id: TurnId,
    session_id: SessionId,
    spec: ReplaySpec,
    #[sea_orm(nested(prefix = "created_by_"))]
    created_by: Actor,
    created_at: Timestamp,
    is_closed: bool,
    turn_id: Option<TurnId>,
    turn_state: Option<TurnState>,
    reply: Option<String>,
    usage: Option<serde_json::Value>,
    error: Option<String>,
    context: Option<TurnContext>,
    source_context: Option<TurnContext>,
    recorded: Option<i64>,
    calls: Option<Calls>,
}

#[derive(Debug, Deserialize)]
struct Calls(Vec<ReplayCall>);

impl TryGetableFromJson for Calls {}

impl ReplayRow {
    pub fn shown(self) -> Replay {
        let contexts = self.source_context.as_ref().zip(self.context.as_ref());
        let calls = self.calls.map_or_else(Vec::new, |calls| calls.0);
        let used = calls.iter().filter(|call| call.matched != Matched::None).count();
        let recorded = self.recorded.and_then(|recorded| usize::try_from(recorded).ok());
        Replay {
            id: self.id,
            state: ReplayState::of(self.turn_state, self.is_closed),
            source_turn: self.source_turn_id,
            session: self.session_id,
            turn: self.turn_id,
            spec: self.spec,
            history: contexts.map(|(source, own)| ReplayHistory::of(source, own)),
            unused_calls: recorded.map(|recorded| recorded.saturating_sub(used)),
            calls,
            reply: self.reply,
            usage: self.usage,
            error: self.error,
            created_by: self.created_by,
            created_at: self.created_at,
        }
    }
}

/// Relies on the primary keys, and on turn_number, whose order is requested.
pub const FIND: &str = concat!(
    "select page.*",
    names!(),
    " from (",
    columns!("id = $2"),
    ") page ",
    joins!()
);

pub async fn replay_find(tx: &Tx, account: &AccountId, replay: ReplayId) -> Result<Option<ReplayRow>, StorageError> {
    tx.one("find replay", FIND, [account.into(), replay.into()]).await
}
