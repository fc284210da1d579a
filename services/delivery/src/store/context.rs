//! Reads the inputs of a new turn's prompt: the next item of the queue, the agent, the task, a few messages of its
//! thread. Thread reads always go by account and task (S9).

use std::{collections::HashMap, sync::Arc};

use domain::{
    AccountId, ActorKind, AgentId, AgentSlug, ContextPolicy, InstructionLayout, MessageId, PersonaText, QuestionId,
    QueueMode, Rotation, SessionId, TaskId, TaskStatus, context::Told, identity::IdentityText,
};
use prompt::{InputFacts, MailFacts, OverviewEntry, THREAD_COUNTED_MAX, ThreadMessage};
use sea_orm::{FromQueryResult, TryGetableFromJson};
use serde::Deserialize;
use storage::{
    StorageError, Tx,
    breaker::Seen,
    session::sessions_lock::LockedSession,
    statement::{column, uuid_array},
};
use uuid::Uuid;

use super::{SessionName, branches::ContextRow, runs::Behind};

/// One of the newest messages of a task's thread. Without its text if it is left out anyway.
#[derive(Clone, Debug, Deserialize)]
pub struct Candidate {
    #[serde(flatten)]
    pub message: ThreadMessage,
    /// It wakes this agent by a notification of its own in this session, which has not ended without an answer.
    pub wakes: bool,
    /// That notification's turn has ended without an answer: an assembled past tells of it.
    #[serde(default)]
    pub was_tried: bool,
    /// A turn of this past has written it.
    pub is_past: bool,
}

/// The newest messages of a thread, newest first.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Candidates(pub Vec<Candidate>);

impl TryGetableFromJson for Candidates {}

/// The next item of a session's queue, with the facts for its prompt.
#[derive(Clone, Debug, FromQueryResult)]
pub struct QueuedItem {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    pub session_id: SessionId,
    #[sea_orm(nested)]
    pub facts: InputFacts,
    pub position: i64,
    pub queue_mode: QueueMode,
    /// With mode `collect`: it met a busy session.
    pub joins: bool,
    pub waited_ms: i64,
    pub debounce_ms: Option<serde_json::Value>,
    pub attempts: i32,
    pub hops: i32,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    pub agent_id: AgentId,
    pub agent_slug: AgentSlug,
    pub agent_name: String,
    pub agent_role: String,
    pub provider: String,
    #[sea_orm(from_alias = "instruction_layout")]
    pub layout: InstructionLayout,
    /// The task is the account's coordinator task.
    pub is_on_coordinator_task: bool,
    /// And the agent its coordinator (S6).
    #[sea_orm(skip)]
    pub is_coordinator: bool,
    pub briefing: String,
    /// The account's active holds, counted.
    pub holds: i32,
    /// The breaker of its provider; none: no call of it has failed.
    pub breaker: Option<Seen>,
    /// The account's tool policies, counted.
    pub tool_policies: i32,
    /// The agent's, or else the account's.
    pub context_policy: ContextPolicy,
    pub rotation: Rotation,
    /// The newest few messages of the task's thread.
    pub thread: Option<Candidates>,
    /// The thread's messages since the session's provider was told last, or all, without those that its thread has; at most one more
    /// than [`THREAD_COUNTED_MAX`].
    pub thread_total: i64,
    /// Of the newest few messages those that the provider's thread has.
    pub thread_there: Vec<Uuid>,
    /// The account shows the context of a task to all who work on it.
    pub shows_task_context: bool,
    /// The account has members, to whom agents may write.
    pub mail_enabled: bool,
    /// Its newest version then.
    #[sea_orm(skip)]
    pub task_context: Option<ContextRow>,
    /// Its session's.
    #[sea_orm(skip)]
    pub persona: Option<Arc<PersonaText>>,
    /// Of the orchestrator whose session it is in.
    #[sea_orm(skip)]
    pub identity: Option<IdentityText>,
}

impl QueuedItem {
    pub fn name(&self) -> SessionName {
        (self.account.clone(), self.session_id)
    }

    /// Its task, if the task may await the approval of its plan and the item does not start before that.
    pub fn awaits_approval(&self) -> Option<&TaskId> {
        let facts = &self.facts;
        let task = facts
            .task
            .as_ref()
            .filter(|task| task.status == TaskStatus::AwaitingApproval)?;
        let is_ours = facts.answer_to.is_some() || facts.result_of.is_some();
        let passes = facts.sender.kind == ActorKind::User || is_ours;
        (!passes).then_some(&task.id)
    }

    /// Adds the further items of its run.
    pub fn join(&mut self, further: impl IntoIterator<Item = Behind>) {
        for item in further {
            self.hops = self.hops.max(item.hops);
            self.facts.further.push(item.further());
        }
    }
}

/// Each turn runs it: what only few items need is read by [`ITEMS_COMPLETE`]. Relies on index notification_queue, on primary keys, and on
/// index message_thread, whose order is requested twice: for a table that was analysed while it was empty, another index costs the
/// same. Of messages that are left out, the texts are not read, and the prompt cuts texts far below this limit; a message that the
/// provider's thread has is not looked up in other tables, and is not among the candidates. Messages of the quarter second before the
/// thread was told last count, too, unless the thread has them: clocks differ, and a message is seen once its transaction is committed.
/// A message without a notification says itself whom it woke: its notification is on its way to the queue. The caller holds the
/// session's lock, so no other transaction takes the item.
pub const QUEUE_NEXT: &str = concat!(
    "
    select n.account_id, n.session_id, n.id, n.kind, n.sender_kind, n.sender_id, n.sender_name, n.sender_via,
           n.title, n.body, n.message_id, n.position, n.queue_mode, n.joins,
           (extract(epoch from now() - n.created_at) * 1000)::bigint as waited_ms,
           case when n.joins then n.metadata -> 'collect_debounce_ms' end as debounce_ms, n.attempts, n.hops, n.traceparent, n.tracestate, g.id as agent_id, g.slug as agent_slug, g.name as agent_name,
           g.role as agent_role, g.provider, a.instruction_layout,
           k.display_id as task_id, k.title as task_title, k.description as task_description, k.status as task_status,
           coalesce(k.id = a.coordinator_task, false) as is_on_coordinator_task,
           case when k.id = a.coordinator_task then a.briefing else '' end as briefing, a.holds, a.tool_policies, a.mail_enabled,
           p.context_policy, coalesce(g.rotation, a.rotation) as rotation, ",
    storage::breaker_of!("$6", "g.provider"),
    " as breaker,
           thread.newest as thread, thread.total as thread_total, coalesce(thread.there, '{}') as thread_there,
           k.id is not null and a.task_context_layer = 'always' as shows_task_context
    from unnest($1::text[], $2::uuid[], $5::bigint[], $7::text[], $8::bigint[], $9::text[], $10::timestamptz[], $11::uuid[])
         as w (account_id, id, position, told, told_at, told_provider, opened_at, continues)
    cross join lateral (
        select * from notification n
        where n.account_id = w.account_id and n.session_id = w.id and n.state = 'queued' and n.position >= w.position
        order by n.position limit 1) n
    join account a on a.id = any (array[n.account_id])
    join agent g on g.account_id = any (array[n.account_id]) and g.id = n.agent_id
    left join task k on k.account_id = any (array[n.account_id]) and k.id = n.task_id
    cross join lateral (select coalesce(g.context_policy, a.context_policy) as context_policy) p
    cross join lateral (
        select case when p.context_policy = 'continue' and g.provider = w.told_provider then w.told::uuid[] else '{}' end as told,
               case when p.context_policy = 'continue' and g.provider = w.told_provider then to_timestamp(w.told_at / 1000.0 - 0.25) else '-infinity' end as told_at
        offset 0) x
    cross join lateral (
        select c.total, m.newest, m.there
        from (select count(*) as total from (
                  select from message c where c.account_id = k.account_id and c.task_id = k.id and c.created_at >= x.told_at
                    and coalesce(c.id <> all (x.told), true)
                  order by c.created_at, c.id limit $4) c) c
        cross join (
              select array_agg(m.id) filter (where m.is_told) as there,
                     json_agg(json_build_object('id', m.id, 'author', json_build_object('kind', m.author_kind, 'id', m.author_id,
                                                'name', m.author_name, 'via', m.author_via),
                                                'body', case when m.wakes or m.is_past then '' else left(m.body, 4000) end,
                                                'at', m.created_at, 'wakes', m.wakes, 'was_tried', m.was_tried, 'is_past', m.is_past)
                              order by m.created_at desc, m.id desc) filter (where not m.is_told) as newest
              from (select m.*, m.id = any (x.told) as is_told,
                           case when o.id is null then coalesce(g.id = any (m.woke), false) and m.created_at >= w.opened_at
                                                       and m.turn_id is null and coalesce(m.id <> all (x.told), true)
                                else o.is_here and o.state in ('queued', 'running', 'delivered') end as wakes,
                           coalesce(o.is_here and o.state not in ('queued', 'running', 'delivered') and o.turn_id is not null, false) as was_tried,
                           case when m.id = any (x.told) or m.turn_id is null then false
                                else coalesce((
                                    select t.session_id in (n.session_id, w.continues) from turn t
                                    where t.account_id = m.account_id and t.id = m.turn_id offset 0), false)
                           end as is_past
                    from (select * from message m where m.account_id = k.account_id and m.task_id = k.id
                          order by m.created_at desc, m.id desc limit $3) m
                    left join lateral (
                        select o.id, o.state, o.turn_id, coalesce(o.session_id in (n.session_id, w.continues), false) as is_here
                        from notification o
                        where m.turn_id is null and coalesce(m.id <> all (x.told), true)
                          and o.account_id = m.account_id and o.id = 'message:' || m.id || ':' || g.id offset 0) o on true
                    offset 0) m) m
        offset 0) thread"
);

/// `places`: sessions, and the first position that is read. `keys_json`: the keys of breakers by the names of providers. `told`: what
/// a thread was told that a turn of its provider can go on in.
pub async fn queue_next(
    tx: &Tx,
    places: &[(&LockedSession, i64)],
    messages_max: i64,
    keys_json: &str,
    told: impl Fn(&LockedSession) -> Option<Told>,
) -> Result<Vec<QueuedItem>, StorageError> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let told: Vec<Told> = places
        .iter()
        .map(|(session, _)| told(session).unwrap_or_default())
        .collect();
    let ids = |ids: &[MessageId]| uuid_array(ids.iter().map(|id| id.uuid()));
    let values = [
        column(places, |(session, _)| session.account.clone()),
        column(places, |(session, _)| session.id),
        messages_max.into(),
        (THREAD_COUNTED_MAX + 1).into(),
        column(places, |(_, position)| *position),
        keys_json.into(),
        column(&told, |told| ids(&told.ids)),
        column(&told, |told| told.at.unwrap_or_default()),
        column(&told, |told| told.provider.clone().unwrap_or_default()),
        column(places, |(session, _)| session.opened_at),
        column(places, |(session, _)| {
            session.continues.map_or(Uuid::nil(), SessionId::uuid)
        }),
    ];
    let mut items = tx.rows("take from queues", QUEUE_NEXT, values).await?;
    items_complete(tx, &mut items).await?;
    Ok(items)
}

/// Relies on index question_notification for answers, on
/// branch_item for results of branches, and on primary keys.
pub const ITEMS_COMPLETE: &str = concat!(
    "
    select w.place,
           case when w.kind = 'answer' then (
               select q.id from question q where q.account_id = w.account_id and q.notification_id = w.id
               order by q.account_id, q.notification_id offset 0) end as answer_to,
           case when w.kind = 'branch_result' then (
               select b.group_id from branch b where b.account_id = w.account_id and b.joined_item = w.id
               order by b.account_id, b.joined_item limit 1) end as result_of,
           ",
    storage::mail_facts!("w", "w.session_id"),
    " as mail,
           case when w.is_on_coordinator_task then ",
    storage::coordinates!("a", "w.agent_id"),
    " else false end as is_coordinator,
           tc.version as context_version, tc.body as context_body, tc.characters as context_characters,
           tc.cut_characters as context_cut_characters
    from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::boolean[], $7::text[], $8::uuid[])
         as w (place, account_id, id, kind, agent_id, is_on_coordinator_task, context_of, session_id)
    join account a on a.id = any (array[w.account_id])
    left join lateral (
        select * from task_context c where w.context_of <> '' and c.account_id = w.account_id and c.task_id = w.context_of
        order by c.account_id desc, c.task_id desc, c.version desc limit 1) tc on true"
);

#[derive(FromQueryResult)]
struct Completed {
    place: i64,
    answer_to: Option<QuestionId>,
    result_of: Option<Uuid>,
    mail: Option<MailFacts>,
    is_coordinator: bool,
    #[sea_orm(nested(prefix = "context_"))]
    task_context: Option<ContextRow>,
}

/// Reads what answers, results of branches, mail, items on the coordinator's task, and accounts that show contexts of tasks need besides.
/// Without such an item there is no statement.
async fn items_complete(tx: &Tx, items: &mut [QueuedItem]) -> Result<(), StorageError> {
    let of_kind =
        |item: &QueuedItem| ["answer", "branch_result", domain::mail::ITEM].contains(&item.facts.kind.as_str());
    let asked: Vec<(usize, &QueuedItem)> = items
        .iter()
        .enumerate()
        .filter(|(_, item)| of_kind(item) || item.is_on_coordinator_task || item.shows_task_context)
        .collect();
    if asked.is_empty() {
        return Ok(());
    }
    let context_of = |item: &QueuedItem| {
        let task = item.facts.task.as_ref().filter(|_| item.shows_task_context);
        task.map_or_else(String::new, |task| task.id.key().into())
    };
    let values = [
        column(&asked, |(place, _)| i64::try_from(*place).expect("few items")),
        column(&asked, |(_, item)| item.account.clone()),
        column(&asked, |(_, item)| item.facts.notification.clone()),
        column(&asked, |(_, item)| item.facts.kind.clone()),
        column(&asked, |(_, item)| item.agent_id),
        column(&asked, |(_, item)| item.is_on_coordinator_task),
        column(&asked, |(_, item)| context_of(item)),
        column(&asked, |(_, item)| item.session_id),
    ];
    let rows: Vec<Completed> = tx.rows("complete items", ITEMS_COMPLETE, values).await?;
    for row in rows {
        let item = usize::try_from(row.place).ok().and_then(|place| items.get_mut(place));
        let item = item.expect("a place that we sent");
        item.facts.answer_to = row.answer_to;
        item.facts.result_of = row.result_of;
        item.facts.mail = row.mail;
        item.is_coordinator = row.is_coordinator;
        item.task_context = row.task_context;
    }
    Ok(())
}

/// Relies on index task_newest.
pub const OVERVIEW_LOAD: &str =
    "select display_id, title, status from task where account_id = $1 order by created_at desc, id desc limit $2";

/// The account's newest tasks, for its coordinator alone.
pub async fn overview_load(tx: &Tx, account: &AccountId, tasks_max: i64) -> Result<Vec<OverviewEntry>, StorageError> {
    let values = [account.into(), tasks_max.into()];
    tx.rows("load task overview", OVERVIEW_LOAD, values).await
}

#[derive(FromQueryResult)]
struct LastProfile {
    account_id: AccountId,
    session_id: SessionId,
    profile_hash: String,
}

/// In a session of all of an agent's work, the newest turns are looked at. Relies on index turn_number, whose order is requested.
pub const PROFILES_LAST: &str = "
    select w.account_id, w.id as session_id, t.profile_hash
    from unnest($1::text[], $2::uuid[], $3::text[]) as w (account_id, id, task_id)
    cross join lateral (
        select t.profile_hash from (
            select * from turn t where t.account_id = w.account_id and t.session_id = w.id
            order by t.account_id, t.session_id, t.number desc limit 100) t
        where coalesce(t.task_id, '') = w.task_id order by t.number desc limit 1) t";

/// The hashes of the instructions with which sessions last worked on the task of an item: other tasks have others.
pub async fn profiles_last(
    tx: &Tx,
    asked: &[(&LockedSession, &QueuedItem)],
) -> Result<HashMap<SessionName, String>, StorageError> {
    if asked.is_empty() {
        return Ok(HashMap::new());
    }
    let task = |item: &QueuedItem| {
        item.facts
            .task
            .as_ref()
            .map_or_else(String::new, |task| task.id.key().into())
    };
    let values = [
        column(asked, |(session, _)| session.account.clone()),
        column(asked, |(session, _)| session.id),
        column(asked, |(_, item)| task(item)),
    ];
    let rows: Vec<LastProfile> = tx
        .rows("read instructions of last turns", PROFILES_LAST, values)
        .await?;
    let named = |row: LastProfile| ((row.account_id, row.session_id), row.profile_hash);
    Ok(rows.into_iter().map(named).collect())
}
