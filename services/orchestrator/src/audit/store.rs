//! Reads pages of turns for the audit, and the rows that their parts name. Four statements a page, always within the account. The
//! texts of a page are bounded: a page ends before the turn whose sources would be too long.

use std::collections::{HashMap, HashSet};

use contracts::tools;
use domain::{
    AccountId, Actor, AgentId, AgentSlug, Generation, MessageId, QuestionId, ReplayId, SessionId, TaskId, Timestamp,
    TurnContext, TurnId,
};
use prompt::{
    Manifest,
    manifest::{PartKind, Source},
};
use sea_orm::{FromQueryResult, Value};
use serde_json::Value as Json;
use storage::{StorageError, Tx, session::items_join::Notes};
use time::OffsetDateTime;
use uuid::Uuid;

use super::input::NOTIFICATION;
use crate::{
    paging::{Column, Listing, Order},
    turns::{
        sent::past_of,
        store::{Pasts, pasts_of},
    },
};

/// Turns of a page.
pub const TURNS_MAX: usize = 50;
/// Bytes of the texts that are read for a page: of notifications, and of earlier turns. A turn's own are shorter.
const SOURCES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The turns that are audited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scope {
    Account,
    Task(TaskId),
    Session(SessionId),
    Turn(TurnId),
}

/// When the turns began. Each bound may be absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    pub from: Option<Timestamp>,
    /// The first time that is not in it.
    pub until: Option<Timestamp>,
}

/// A turn with what its parts are held against.
#[derive(Clone, Debug, FromQueryResult)]
pub struct AuditedTurn {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    pub id: TurnId,
    #[sea_orm(from_alias = "session_id")]
    pub session: SessionId,
    #[sea_orm(from_alias = "task_id")]
    pub task: Option<TaskId>,
    #[sea_orm(from_alias = "agent_id")]
    pub agent: AgentId,
    pub generation: Generation,
    pub number: i64,
    pub profile_version: String,
    pub profile_hash: String,
    pub input: String,
    pub manifest: Json,
    pub manifest_packed: Option<Vec<u8>>,
    pub tools: Option<Vec<String>>,
    pub context: Option<TurnContext>,
    pub notes: Notes,
    pub started_at: OffsetDateTime,
    /// When the row was read.
    pub read_at: OffsetDateTime,
    pub instructions: Option<String>,
    pub session_key: Option<String>,
    pub session_kind: Option<String>,
    /// The replay that its session runs.
    pub replay_id: Option<ReplayId>,
    /// The session whose rows its prompt names, its number there, and when it began: its own; of a replay, those of the source turn.
    pub home_id: SessionId,
    pub home_number: i64,
    pub home_started_at: OffsetDateTime,
    pub home_kind: Option<String>,
    pub home_closed_at: Option<OffsetDateTime>,
    pub home_opened_at: Option<OffsetDateTime>,
    /// The generation that this session was rotated from.
    pub continues_id: Option<Uuid>,
    /// That generation's turns are kept.
    pub continues_kept: bool,
    /// The session whose turn made this one.
    pub parent_session_id: Option<Uuid>,
    /// The generation that this one was rotated from.
    pub parent_continues_id: Option<Uuid>,
    /// Its provider was seen to run another session.
    pub is_mismatched: bool,
    /// An earlier turn of its session was about another task.
    pub mixes_tasks: bool,
    /// The response that it goes on from is of an earlier turn of its session, or of the parent.
    pub from_is_own: bool,
    pub coordinator_task: Option<TaskId>,
    pub briefing: String,
    pub agent_slug: Option<AgentSlug>,
    pub agent_name: Option<String>,
    pub agent_role: Option<String>,
    /// As its client spelled it.
    pub task_display: Option<TaskId>,
    pub task_title: Option<String>,
    pub task_description: Option<String>,
}

impl AuditedTurn {
    /// None: no version that this one knows has written it. An error: this version has written it, and it cannot be read.
    pub fn manifest(&self) -> Result<Option<Manifest>, Unreadable> {
        match &self.manifest_packed {
            None => Ok(serde_json::from_value(self.manifest.clone()).ok()),
            Some(packed) => match Manifest::unpacked(packed) {
                None if Manifest::is_known(packed) => Err(Unreadable),
                read => Ok(read),
            },
        }
    }
}

impl AuditedTurn {
    /// When what it shows of its task was read: a branch knows what its parent knew when it was made.
    pub fn knew_at(&self) -> OffsetDateTime {
        let opened = self
            .home_opened_at
            .filter(|_| self.home_kind.as_deref() == Some("branch"));
        opened.unwrap_or(self.home_started_at)
    }
}

/// A manifest that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable;

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "select account_id, id, session_id, task_id, agent_id, generation, number, profile_version, profile_hash, input, manifest,
                    manifest_packed, tools, context, coalesce(notes, '[]') as notes, started_at
             from turn where account_id = $1 and ",
            $rest
        )
    };
}

/// What else the judge needs of a turn. Of the turns before it, the newest thousand are looked at.
const JOINED: (&str, &str) = (
    ", now() as read_at, i.body as instructions, s.key as session_key, s.kind as session_kind, r.id as replay_id,
       coalesce(u.session_id, page.session_id) as home_id, coalesce(u.number, page.number) as home_number,
       coalesce(u.started_at, page.started_at) as home_started_at, h.kind as home_kind, h.closed_at as home_closed_at,
       h.opened_at as home_opened_at, h.continues_id, h.parent_session_id,
       (select p.continues_id from session p where p.account_id = page.account_id and p.id = h.parent_session_id offset 0) as parent_continues_id,
       s.mismatch is not null as is_mismatched, a.coordinator_task,
       case when a.coordinator_task = page.task_id then a.briefing else '' end as briefing,
       g.slug as agent_slug, g.name as agent_name, g.role as agent_role,
       k.display_id as task_display, k.title as task_title, k.description as task_description,
       h.continues_id is not null and exists (
           select from session c where c.account_id = page.account_id and c.id = h.continues_id and c.emptied_at is null offset 0) as continues_kept,
       coalesce(h.kind = 'system', false) and exists (
           select from (select o.task_id from turn o
                        where o.account_id = page.account_id and o.session_id = h.id and o.number < coalesce(u.number, page.number)
                        order by o.number desc limit 1000) o
           where o.task_id is distinct from page.task_id) as mixes_tasks,
       page.context ->> 'from' is not null and exists (
           select from (select o.response_id from turn o
                        where o.account_id = page.account_id and o.session_id = h.id and o.number < coalesce(u.number, page.number)
                        order by o.number desc limit 1000) o
           where o.response_id = page.context ->> 'from'
           union all
           select from (select o.response_id from turn o
                        where o.account_id = page.account_id and o.session_id = h.parent_session_id and page.context ->> 'used' = 'fork'
                        order by o.number desc limit 1000) o
           where o.response_id = page.context ->> 'from') as from_is_own",
    "join account a on a.id = page.account_id
     left join session s on s.account_id = page.account_id and s.id = page.session_id
     left join replay r on r.account_id = page.account_id and r.id = case s.kind when 'replay' then s.origin_id end
     left join turn u on u.account_id = page.account_id and u.id = r.source_turn_id
     left join session h on h.account_id = page.account_id and h.id = case when r.id is null then page.session_id else u.session_id end
     left join instruction_text i on i.account_id = page.account_id and i.hash = page.profile_hash
     left join agent g on g.account_id = page.account_id and g.id = page.agent_id
     left join task k on k.account_id = page.account_id and k.id = page.task_id",
);

const BYTES: &str =
    "octet_length(input) + octet_length(manifest::text) + 4 * coalesce(octet_length(manifest_packed), 0)
    + octet_length(notes::text)";

/// By id: ids grow in the order in which turns begin, as replicas' clocks tell. A task has no turn that is older than the task; an hour is
/// more than clocks differ. Relies on turn_pkey and task_pkey.
pub const LIST: Listing = Listing {
    rows: select!(
        "id >= greatest($2, (
            select (lpad(to_hex((extract(epoch from k.created_at - interval '1 hour') * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
            from task k where k.account_id = $1 and k.id = $4)) and id <= $3"
    ),
    order: &[("id", Column::Uuid)],
    begins: Order::OldestFirst,
    wanted: Some(
        "($4::text is null or task_id = $4)
         and ($5::timestamptz is null or started_at >= $5) and ($6::timestamptz is null or started_at < $6)",
    ),
    bytes: BYTES,
    names: JOINED,
};

/// Relies on turn_number.
pub const OF_SESSION: Listing = Listing {
    rows: select!("session_id = $2"),
    order: &[("number", Column::BigInt)],
    begins: Order::OldestFirst,
    wanted: Some("($3::timestamptz is null or started_at >= $3) and ($4::timestamptz is null or started_at < $4)"),
    bytes: BYTES,
    names: JOINED,
};

/// An hour: more than clocks of replicas differ.
const CLOCKS_DIFFER: time::Duration = time::Duration::HOUR;

impl Scope {
    pub fn listing(&self) -> &'static Listing {
        match self {
            Scope::Session(_) => &OF_SESSION,
            Scope::Account | Scope::Task(_) | Scope::Turn(_) => &LIST,
        }
    }

    pub fn values(&self, span: Span) -> Vec<Value> {
        let times = [span.from, span.until].map(|at| at.map(|at| at.0));
        let [from, until] = times.map(Value::from);
        let (first, last) = match (self, times) {
            (Scope::Turn(turn), _) => (turn.uuid(), turn.uuid()),
            (Scope::Account | Scope::Task(_) | Scope::Session(_), [from, until]) => (
                from.map_or(Uuid::nil(), |from| first_id(from - CLOCKS_DIFFER)),
                until.map_or(Uuid::max(), |until| first_id(until + CLOCKS_DIFFER)),
            ),
        };
        match self {
            Scope::Session(session) => vec![(*session).into(), from, until],
            Scope::Task(task) => vec![first.into(), last.into(), task.key().into(), from, until],
            Scope::Account | Scope::Turn(_) => {
                vec![first.into(), last.into(), None::<String>.into(), from, until]
            }
        }
    }
}

/// The least id that is made at a time.
fn first_id(at: OffsetDateTime) -> Uuid {
    let ms = u64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
    Uuid::from_u128(u128::from(ms.min((1 << 48) - 1)) << 80)
}

/// A notification or a message, as a prompt's part says it.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Item {
    pub task_id: Option<TaskId>,
    pub session_id: Option<SessionId>,
    pub agent_id: Option<AgentId>,
    pub kind: String,
    pub title: Option<String>,
    pub body: String,
    /// False: it was not read, since those before it are too long.
    pub is_whole: bool,
    pub message_id: Option<MessageId>,
    #[sea_orm(nested(prefix = "sender_"))]
    pub sender: Actor,
    pub at: OffsetDateTime,
    /// More than 1: it may have been edited.
    pub revision: i64,
    /// The question that it answers.
    pub answer_to: Option<QuestionId>,
    /// The group of branches whose results it brings.
    pub result_of: Option<Uuid>,
}

/// A call of a tool with a result.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Call {
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub call_id: String,
    pub name: String,
    pub state: String,
    pub result_bytes: i32,
    /// Of tools whose arguments may name a task; none: those before it are too long.
    pub arguments: Option<String>,
}

/// The rows that the parts of a page name.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub notifications: HashMap<String, Item>,
    pub messages: HashMap<Uuid, Item>,
    /// What the turns before one were about, newest first: of turns that are told of a stopped one.
    pub before: HashMap<(SessionId, i64), Vec<(Actor, String)>>,
    /// When the title or the description of a task was changed last.
    pub updated: HashMap<TaskId, OffsetDateTime>,
    pub pasts: Pasts,
    pub calls: HashMap<TurnId, Vec<Call>>,
}

/// As delivery reads them: of a message the beginning that a prompt may show, and of what a stopped turn was about. Of
/// activities, the newest thousand are looked at. Relies on primary keys, and on turn_number, activity_change,
/// question_notification and branch_item, whose orders are requested.
pub const SOURCES: &str = "
    select x.what, x.id, x.number, x.task_id, x.session_id, x.agent_id, x.kind, x.title, case when x.is_whole then x.body else '' end as body,
           x.is_whole, x.message_id, x.sender_kind, x.sender_id, x.sender_name, x.sender_via, x.at, x.revision, x.answer_to, x.result_of
    from (
        select i.*, sum(octet_length(i.body)) over (order by i.place) - octet_length(i.body) < $7 as is_whole
        from (
            select 'notification' as what, w.place, n.id, 0::bigint as number, n.task_id, n.session_id, n.agent_id, n.kind, n.title, n.body,
                   n.message_id, n.sender_kind, n.sender_id, n.sender_name, n.sender_via, n.created_at as at, n.revision::bigint as revision,
                   case when n.kind = 'answer' then (
                       select q.id from question q where q.account_id = n.account_id and q.notification_id = n.id
                       order by q.account_id, q.notification_id offset 0) end as answer_to,
                   case when n.kind = 'branch_result' then (
                       select b.group_id from branch b where b.account_id = n.account_id and b.joined_item = n.id
                       order by b.account_id, b.joined_item limit 1) end as result_of
            from unnest($2::text[]) with ordinality as w (id, place)
            cross join lateral (select * from notification n where n.account_id = $1 and n.id = w.id offset 0) n
            union all
            select 'message', 0, m.id::text, 0, m.task_id, null, null, '', null, left(m.body, 4000), null,
                   m.author_kind, m.author_id, m.author_name, m.author_via, m.created_at, 1, null, null
            from unnest($3::uuid[]) as w (id)
            cross join lateral (select * from message m where m.account_id = $1 and m.id = w.id offset 0) m
            union all
            select 'before', 0, w.session_id::text, w.number, n.task_id, w.session_id, null, '', null, left(n.body, 400), null,
                   n.sender_kind, n.sender_id, n.sender_name, n.sender_via, n.created_at, t.number, null, null
            from unnest($4::uuid[], $5::bigint[]) as w (session_id, number)
            cross join lateral (
                select t.number, t.notification_ids[1] as first from turn t
                where t.account_id = $1 and t.session_id = w.session_id and t.number < w.number order by t.number desc limit 16) t
            cross join lateral (select * from notification n where n.account_id = $1 and n.id = t.first offset 0) n
            union all
            select 'task', 0, w.id, 0, w.id, null, null, '', null, '', null, 'service', '', '', null, a.created_at, 1, null, null
            from unnest($6::text[]) as w (id)
            cross join lateral (
                select a.created_at from (
                    select a.kind, a.created_at from activity a
                    where a.account_id = $1 and a.task_id = w.id and a.kind <> 'message.posted'
                    order by a.created_at desc, a.id desc limit 1000) a
                where a.kind = 'task.updated' order by a.created_at desc limit 1) a) i) x
    order by x.what, x.revision desc";

#[derive(FromQueryResult)]
struct SourceRow {
    what: String,
    id: String,
    number: i64,
    #[sea_orm(nested)]
    item: Item,
}

/// Relies on tool_call_turn, whose order is requested.
pub const CALLS: &str = "
    select c.turn_id, c.session_id, c.call_id, c.name, c.state, c.result_bytes, case when c.bytes_before < $4 then c.arguments end as arguments
    from (
        select c.*, sum(octet_length(c.arguments)) over (order by c.place, c.ordinal, c.id) - octet_length(c.arguments) as bytes_before
        from (
            select w.place, c.id, c.turn_id, c.session_id, c.ordinal, c.call_id, c.name, c.state, octet_length(c.result) as result_bytes,
                   case when c.name = any ($3::text[]) then c.arguments else '' end as arguments
            from unnest($2::uuid[]) with ordinality as w (id, place)
            cross join lateral (
                select * from tool_call c where c.account_id = $1 and c.turn_id = w.id and c.result is not null order by c.ordinal) c) c) c
    order by c.place, c.ordinal, c.id";

/// What the parts of a turn name.
#[derive(Default)]
struct Named {
    notifications: Vec<String>,
    messages: Vec<Uuid>,
    pasts: Vec<Uuid>,
    /// It is told of a stopped turn.
    stopped: bool,
}

fn named(turn: &AuditedTurn) -> Named {
    let mut named = Named::default();
    let manifest = turn.manifest().ok().flatten();
    for part in manifest.iter().flat_map(|manifest| &manifest.parts) {
        named.stopped |= part.part == PartKind::Stopped;
        match &part.source {
            Source::Message(id) => named.messages.push(*id),
            Source::Named(name) => named
                .notifications
                .extend(name.strip_prefix(NOTIFICATION).map(str::to_owned)),
            Source::TurnInput(_) | Source::TurnReply(_) => {}
        }
    }
    named.pasts = manifest.as_ref().map(past_of).unwrap_or_default();
    let noted = turn.notes.0.iter().flat_map(|note| note.notification_ids.clone());
    named.notifications.extend(noted);
    named
}

/// Reads the rows that these turns name. Turns whose sources are too long together are left out from the end; the first one
/// stays.
pub async fn sources_of(tx: &Tx, account: &AccountId, turns: &mut Vec<AuditedTurn>) -> Result<Sources, StorageError> {
    let all: Vec<Named> = turns.iter().map(named).collect();
    let bytes_max = i64::try_from(SOURCES_BYTES_MAX).unwrap_or(i64::MAX);
    let stopped: Vec<(Uuid, i64)> = turns
        .iter()
        .zip(&all)
        .filter(|(_, named)| named.stopped)
        .flat_map(|(turn, _)| {
            // A rotation hands the note of a stopped turn on.
            let continued = turn.continues_id.map(|id| (id, i64::MAX));
            [Some((turn.home_id.uuid(), turn.home_number)), continued]
        })
        .flatten()
        .collect();
    let tasks: HashSet<&TaskId> = turns.iter().filter_map(|turn| turn.task.as_ref()).collect();
    let values = [
        account.into(),
        each_once(all.iter().flat_map(|named| named.notifications.clone())).into(),
        each_once(all.iter().flat_map(|named| named.messages.clone())).into(),
        stopped
            .iter()
            .map(|(session, _)| *session)
            .collect::<Vec<Uuid>>()
            .into(),
        stopped.iter().map(|(_, number)| *number).collect::<Vec<i64>>().into(),
        tasks
            .into_iter()
            .map(|task| task.key().to_string())
            .collect::<Vec<String>>()
            .into(),
        bytes_max.into(),
    ];
    let mut sources = Sources::default();
    let rows: Vec<SourceRow> = tx.rows("read sources of prompts", SOURCES, values).await?;
    for row in rows {
        sources.add(row);
    }
    let pasts = each_once(all.iter().flat_map(|named| named.pasts.clone()));
    sources.pasts = pasts_of(tx, account, pasts, SOURCES_BYTES_MAX).await?;
    let is_whole = |named: &Named| {
        let is_cut = |id: &String| sources.notifications.get(id).is_some_and(|item| !item.is_whole);
        let is_past_cut = |id: &Uuid| sources.pasts.get(id).is_some_and(|past| !past.is_whole);
        !named.notifications.iter().any(is_cut) && !named.pasts.iter().any(is_past_cut)
    };
    let whole = all.iter().take_while(|named| is_whole(named)).count();
    turns.truncate(whole.max(1));
    let ids: Vec<Uuid> = turns.iter().map(|turn| turn.id.uuid()).collect();
    let values = [account.into(), ids.into(), naming_tasks().into(), bytes_max.into()];
    let calls: Vec<Call> = tx.rows("read results of tools", CALLS, values).await?;
    for call in calls {
        sources.calls.entry(call.turn_id).or_default().push(call);
    }
    Ok(sources)
}

impl Sources {
    fn add(&mut self, SourceRow { what, id, number, item }: SourceRow) {
        match &*what {
            "notification" => drop(self.notifications.insert(id, item)),
            "message" => drop(Uuid::try_parse(&id).map(|id| self.messages.insert(id, item))),
            "before" => {
                if let Some(session) = item.session_id {
                    self.before
                        .entry((session, number))
                        .or_default()
                        .push((item.sender, item.body));
                }
            }
            _ => drop(item.task_id.map(|task| self.updated.insert(task.key(), item.at))),
        }
    }
}

/// The tools whose arguments may name a task, by all of their names.
fn naming_tasks() -> Vec<String> {
    let naming = tools::all().into_iter().filter(|tool| tool.task_argument().is_some());
    let names = naming.flat_map(|tool| tool.aliases.iter().chain([&tool.name]).copied().collect::<Vec<&str>>());
    names.map(str::to_owned).collect()
}

fn each_once<T: Clone + Eq + std::hash::Hash>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = HashSet::new();
    all.filter(|one| seen.insert(one.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_time_lie_between_its_bounds() {
        let at = OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_000).unwrap();
        let id = |at: OffsetDateTime| {
            let ms = u64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap();
            Uuid::new_v7(uuid::Timestamp::from_unix(
                uuid::NoContext,
                ms / 1_000,
                u32::try_from(ms % 1_000).unwrap() * 1_000_000,
            ))
        };
        let ms = time::Duration::MILLISECOND;
        assert!(first_id(at) <= id(at));
        assert!(id(at - ms) < first_id(at));
        assert!(id(at) < first_id(at + ms));
        assert_eq!(first_id(OffsetDateTime::UNIX_EPOCH - ms), Uuid::nil());
    }
}
