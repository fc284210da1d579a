//! Reads pages of turns for the audit, and the rows that their parts name. Four statements a page, and others for turns of branches and of
//! sessions with personas, always within the account. The texts of a page are bounded: a page ends before the turn whose sources would be too long.

use std::{
    collections::{HashMap, HashSet},
    ops::{Deref, DerefMut},
};

use contracts::tools::{self, Audience, ToolDefinition};
use domain::{
    AccountId, Actor, AgentId, AgentSlug, ContextSize, Generation, MessageId, PersonaText, PersonaVersionId,
    QuestionId, ReplayId, SessionId, SessionKey, StopKind, TaskId, Timestamp, TurnContext, TurnId,
    identity::IdentityText,
};
use prompt::{
    MailFacts, Manifest,
    manifest::{Because, PartKind, Source},
};
use sea_orm::{ColIdx, FromQueryResult, QueryResult, TryGetError, TryGetable, Value};
use serde::Deserialize;
use serde_json::Value as Json;
use storage::{
    StorageError, Tx,
    identity::{OrchestratorName, identities_read, orchestrator_name},
    persona::personas_read,
    session::{branch_spawn::Base, items_join::Notes},
    statement::column,
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::input::NOTIFICATION;
use crate::{
    paging::{Column, Listing, Order},
    turns::{
        sent::past_of,
        store::{Pasts, SpawningTurn, pasts_of, spawning_turns},
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
    pub task: Readable<Option<TaskId>>,
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
    pub context: Readable<Option<TurnContext>>,
    pub notes: Readable<Notes>,
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
    pub home_generation: Generation,
    pub home_started_at: OffsetDateTime,
    pub home_kind: Option<String>,
    pub home_closed_at: Option<OffsetDateTime>,
    pub home_opened_at: Option<OffsetDateTime>,
    /// The turn's task by another row: of a replay the source turn's, of a branch the branch's. None: that row has none, or is gone.
    pub home_task: Readable<Option<TaskId>>,
    /// The last stop of a turn of the home session.
    pub stop_kind: Option<StopKind>,
    pub stop_by: Option<String>,
    /// The generation that this session was rotated from.
    pub continues_id: Option<Uuid>,
    /// That generation's turns are kept.
    pub continues_kept: bool,
    /// The source turn of the replay.
    pub source_turn_id: Option<Uuid>,
    /// The branch that the home session runs.
    pub branch_id: Option<Uuid>,
    /// The persona of the home session.
    pub persona_version_id: Option<PersonaVersionId>,
    pub home_key: Option<String>,
    /// The agent's work on the task was handed over to another agent, or may have been.
    pub was_handed_over: bool,
    /// The session whose turn made this one.
    pub parent_session_id: Option<Uuid>,
    /// The generation that this one was rotated from.
    pub parent_continues_id: Option<Uuid>,
    /// Its provider was seen to run another session.
    pub is_mismatched: bool,
    /// An earlier turn of its session was about another task, of those that were looked at.
    pub mixes_tasks: bool,
    /// The number of the turn that made its branch. None: it is of no branch, or the branch's row is gone.
    pub spawning_number: Option<i64>,
    /// The response that it goes on from is of an earlier turn of its session, or, of a fork, of a turn that the parent had before the
    /// spawning one; of those that were looked at.
    pub from_is_own: bool,
    pub coordinator_task: Option<TaskId>,
    pub briefing: String,
    pub agent_slug: Option<AgentSlug>,
    pub agent_name: Option<String>,
    pub agent_role: Option<String>,
    /// The instructions that a replay was asked for with.
    pub replay_instructions: Option<String>,
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

/// A column of a turn. In another form than ours it has its default, and the audit says so: one such row does not end the audit of its
/// account.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Readable<T> {
    value: T,
    pub is_unreadable: bool,
}

impl<T> From<T> for Readable<T> {
    fn from(value: T) -> Readable<T> {
        Readable {
            value,
            is_unreadable: false,
        }
    }
}

impl<T> Deref for Readable<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Readable<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: TryGetable + Default> TryGetable for Readable<T> {
    fn try_get_by<I: ColIdx>(row: &QueryResult, column: I) -> Result<Readable<T>, TryGetError> {
        match T::try_get_by(row, column) {
            Ok(value) => Ok(value.into()),
            Err(TryGetError::DbErr(_)) => Ok(Readable {
                value: T::default(),
                is_unreadable: true,
            }),
            Err(error) => Err(error),
        }
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

/// So many of the turns before one are looked at, the newest ones: the limits of [`JOINED`].
pub(super) const TURNS_LOOKED_AT: i64 = 1_000;

/// Of the base of a branch, the number of the turn that made it.
macro_rules! spawning_number {
    () => {
        "case when b.base ->> 'number' ~ '^[0-9]{1,18}$' then (b.base ->> 'number')::bigint end"
    };
}

/// What else the judge needs of a turn. Of the turns before it, and of those before a branch, the newest thousand are looked at.
const JOINED: (&str, &str) = (
    concat!(", now() as read_at, i.body as instructions, s.key as session_key, s.kind as session_kind, r.id as replay_id,
       coalesce(u.session_id, page.session_id) as home_id, coalesce(u.number, page.number) as home_number,
       coalesce(h.generation, page.generation) as home_generation,
       coalesce(u.started_at, page.started_at) as home_started_at, h.kind as home_kind, h.closed_at as home_closed_at,
       h.opened_at as home_opened_at, h.stop_kind, h.stop_by,
       case when r.id is not null then u.task_id when h.kind = 'branch' then b.task_id else page.task_id end as home_task,
       h.continues_id, h.parent_session_id, h.persona_version_id, h.key as home_key, r.source_turn_id,
       case h.kind when 'branch' then h.origin_id end as branch_id,
       coalesce(h.kind = 'system', false) or exists (
           select from (select o.close_reason from session o
                        where o.account_id = page.account_id and o.kind = 'task' and o.task_id = page.task_id and o.agent_id = page.agent_id
                        order by o.account_id desc, o.kind desc, o.task_id desc, o.agent_id desc, o.user_id desc, o.generation desc
                        limit 1000) o
           where o.close_reason = 'handed_over') as was_handed_over,
       (select p.continues_id from session p where p.account_id = page.account_id and p.id = h.parent_session_id offset 0) as parent_continues_id,
       s.mismatch is not null as is_mismatched, a.coordinator_task,
       case when a.coordinator_task = page.task_id then a.briefing else '' end as briefing,
       g.slug as agent_slug, g.name as agent_name, coalesce(r.spec #>> '{profile,role}', g.role) as agent_role,
       r.spec #>> '{profile,instructions}' as replay_instructions,
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
                          and o.number < ", spawning_number!(), "
                        order by o.number desc limit 1000) o
           where o.response_id = page.context ->> 'from') as from_is_own,
       ", spawning_number!(), " as spawning_number"),
    "join account a on a.id = page.account_id
     left join session s on s.account_id = page.account_id and s.id = page.session_id
     left join replay r on r.account_id = page.account_id and r.id = case s.kind when 'replay' then s.origin_id end
     left join turn u on u.account_id = page.account_id and u.id = r.source_turn_id
     left join session h on h.account_id = page.account_id and h.id = case when r.id is null then page.session_id else u.session_id end
     left join branch b on b.account_id = page.account_id and b.id = case h.kind when 'branch' then h.origin_id end
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
                from.map_or(Uuid::nil(), |from| first_id(from.saturating_sub(CLOCKS_DIFFER))),
                until.map_or(Uuid::max(), |until| first_id(until.saturating_add(CLOCKS_DIFFER))),
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
    /// The mail that it brings.
    pub mail: Option<MailFacts>,
    /// Of a notification's session.
    pub session_kind: Option<String>,
}

/// A version of a task's context, as far as it is kept.
#[derive(Clone, Debug)]
pub struct Known {
    pub body: String,
    /// None: it is not there.
    pub size: Option<ContextSize>,
    pub newest: i32,
}

/// A branch.
#[derive(Clone, Debug)]
pub struct Branch {
    pub parent: SessionId,
    pub task: Option<TaskId>,
    pub label: Option<String>,
    pub base: Base,
    /// The messages of its base.
    pub messages: Vec<Uuid>,
    /// Its agent's slug.
    pub agent: Option<String>,
}

/// What else is read of a version of a context.
#[derive(Deserialize)]
struct KnownFacts {
    versions: Option<Vec<i32>>,
    characters: Option<i32>,
    cut_characters: Option<i32>,
}

/// What else is read of a branch.
#[derive(Deserialize)]
struct BranchFacts {
    base: Base,
    messages: Vec<Uuid>,
    agent: Option<String>,
}

/// A call of a tool with a result; or one that delivery answered, or one of a replay's source turn, by the hash of the answer.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Call {
    /// `call`; `answered` by delivery; `recorded` of a replay's source turn.
    pub what: String,
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub call_id: String,
    pub name: String,
    pub state: String,
    pub result_bytes: i32,
    /// It was refused, and its result has the form of a refusal.
    pub is_refusal: bool,
    /// Of tools whose arguments are looked at; none: those before it are too long.
    pub arguments: Option<String>,
    /// What it asked of an external model.
    pub request: Option<Json>,
    /// The version of the task's context that the request names.
    pub context: Option<String>,
    /// The tasks of the artifacts that it names, and that are there.
    pub artifact_tasks: Option<Vec<String>>,
    /// SHA-256 of an answer, as hexadecimal digits.
    pub sha256: Option<String>,
}

/// What a turn was about, and its error.
#[derive(Clone, Debug)]
pub struct Before {
    pub about: (Actor, String),
    pub error: Option<String>,
}

/// The rows that the parts of a page name.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub notifications: HashMap<String, Item>,
    pub messages: HashMap<Uuid, Item>,
    /// The turns before one, newest first: of turns that are told of a stopped one.
    pub before: HashMap<(SessionId, i64), Vec<Before>>,
    /// When the title or the description of a task was changed last.
    pub updated: HashMap<TaskId, OffsetDateTime>,
    pub pasts: Pasts,
    pub calls: HashMap<TurnId, Vec<Call>>,
    /// By the keys of tasks.
    pub contexts: HashMap<(String, i32), Known>,
    pub branches: HashMap<Uuid, Branch>,
    /// Of the branches whose turns are on the page.
    pub spawning: HashMap<Uuid, SpawningTurn>,
    /// The numbers of turns that branches know.
    pub numbers: HashMap<Uuid, i64>,
    pub personas: HashMap<PersonaVersionId, PersonaText>,
    /// As they are now.
    pub identities: HashMap<OrchestratorName, IdentityText>,
}

/// As delivery reads them: of a message the beginning that a prompt may show, and of what a stopped turn was about. Of
/// activities, the newest thousand are looked at; of a task's context there are fifty versions. Relies on primary keys, and on turn_number,
/// activity_change, question_notification and branch_item, whose orders are requested.
pub const SOURCES: &str = concat!(
    "
    select x.what, x.id, x.number, x.task_id, x.session_id, x.agent_id, x.kind, x.title, case when x.is_whole then x.body else '' end as body,
           x.is_whole, x.message_id, x.sender_kind, x.sender_id, x.sender_name, x.sender_via, x.at, x.revision, x.answer_to, x.result_of, x.mail,
           x.session_kind, x.facts
    from (
        select i.*, sum(octet_length(i.body)) over (partition by i.what order by i.place) - octet_length(i.body) < $7 as is_whole
        from (
            select 'notification' as what, w.place, n.id, 0::bigint as number, n.task_id, n.session_id, n.agent_id, n.kind, n.title, n.body,
                   n.message_id, n.sender_kind, n.sender_id, n.sender_name, n.sender_via, n.created_at as at, n.revision::bigint as revision,
                   case when n.kind = 'answer' then (
                       select q.id from question q where q.account_id = n.account_id and q.notification_id = n.id
                       order by q.account_id, q.notification_id offset 0) end as answer_to,
                   case when n.kind = 'branch_result' then (
                       select b.group_id from branch b where b.account_id = n.account_id and b.joined_item = n.id
                       order by b.account_id, b.joined_item limit 1) end as result_of,
                   ",
    storage::mail_facts!("n", "n.session_id"),
    " as mail,
                   (select o.kind from session o where o.account_id = n.account_id and o.id = n.session_id offset 0) as session_kind,
                   null::jsonb as facts
            from unnest($2::text[]) with ordinality as w (id, place)
            cross join lateral (select * from notification n where n.account_id = $1 and n.id = w.id offset 0) n
            union all
            select 'message', 0, m.id::text, 0, m.task_id, null, null, '', null, left(m.body, 4000), null,
                   m.author_kind, m.author_id, m.author_name, m.author_via, m.created_at, 1, null, null, null, null, null
            from unnest($3::uuid[]) as w (id)
            cross join lateral (select * from message m where m.account_id = $1 and m.id = w.id offset 0) m
            union all
            select 'before', 0, w.session_id::text, w.number, n.task_id, w.session_id, null, '', t.error, left(n.body, 400), null,
                   n.sender_kind, n.sender_id, n.sender_name, n.sender_via, n.created_at, t.number, null, null, null, null, null
            from unnest($4::uuid[], $5::bigint[]) as w (session_id, number)
            cross join lateral (
                select t.number, t.notification_ids[1] as first, left(t.error, 600) as error from turn t
                where t.account_id = $1 and t.session_id = w.session_id and t.number < w.number order by t.number desc limit 16) t
            cross join lateral (select * from notification n where n.account_id = $1 and n.id = t.first offset 0) n
            union all
            select 'task', 0, w.id, 0, w.id, null, null, '', null, '', null, 'service', '', '', null, a.created_at, 1, null, null, null, null, null
            from unnest($6::text[]) as w (id)
            cross join lateral (
                select a.created_at from (
                    select a.kind, a.created_at from activity a
                    where a.account_id = $1 and a.task_id = w.id and a.kind <> 'message.posted'
                    order by a.created_at desc, a.id desc limit 1000) a
                where a.kind = 'task.updated' order by a.created_at desc limit 1) a
            union all
            select 'context', 0, w.id, w.version, w.id, null, null, '', null, coalesce(c.body, ''), null, 'service', '', '', null, now(), 1,
                   null, null, null, null,
                   jsonb_build_object('versions', v.versions, 'characters', c.characters, 'cut_characters', c.cut_characters)
            from unnest($8::text[], $9::integer[]) as w (id, version)
            cross join lateral (
                select jsonb_agg(c.version) as versions from (
                    select c.version from task_context c where c.account_id = $1 and c.task_id = w.id
                    order by c.account_id, c.task_id, c.version) c) v
            left join lateral (
                select * from task_context c where c.account_id = $1 and c.task_id = w.id and c.version = w.version offset 0) c on true
            union all
            select 'branch', w.place, b.id::text, 0, b.task_id, b.parent_session_id, b.agent_id, '', b.label, '', null,
                   'service', '', '', null, b.created_at, 1, null, null, null, null,
                   jsonb_build_object('base', b.base, 'messages', to_jsonb(b.base_messages), 'agent', g.slug)
            from unnest($10::uuid[]) with ordinality as w (id, place)
            cross join lateral (select * from branch b where b.account_id = $1 and b.id = w.id offset 0) b
            left join lateral (select g.slug from agent g where g.account_id = b.account_id and g.id = b.agent_id offset 0) g on true
            union all
            select 'known', 0, t.id::text, t.number, null, t.session_id, null, '', null, '', null, 'service', '', '', null, now(), 1, null, null, null,
                   null, null
            from unnest($11::uuid[]) as w (id)
            cross join lateral (
                select t.id, t.number, t.session_id from turn t where t.account_id = $1 and t.id = w.id offset 0) t) i) x
    order by x.what, x.revision desc"
);

#[derive(FromQueryResult)]
struct SourceRow {
    what: String,
    id: String,
    number: i64,
    #[sea_orm(nested)]
    item: Item,
    facts: Option<Json>,
}

/// A JSON array, or an empty one in the place of anything else.
macro_rules! array {
    ($json:literal) => {
        concat!(
            "case jsonb_typeof(",
            $json,
            ") when 'array' then ",
            $json,
            " else '[]' end"
        )
    };
}

/// The calls of turns; what delivery answered itself, as it does to every call of a replay; and the records of a replay's source turn. Of a
/// row in another form than ours nothing is cast. Relies on primary keys, and on tool_call_turn, whose order is requested.
pub const CALLS: &str = concat!(
    "
    select c.what, c.turn_id, c.session_id, c.call_id, c.name, c.state, c.result_bytes, c.is_refusal,
           case when c.bytes_before < $4 then c.arguments end as arguments, c.request,
           case when c.bytes_before < $4 then c.context end as context, c.artifact_tasks, c.sha256
    from (
        select c.*, sum(c.bytes) over (order by c.place, c.ordinal, c.id) - c.bytes as bytes_before
        from (
            select c.*, octet_length(c.arguments) + coalesce(octet_length(c.context), 0) as bytes
            from (
                select 'call' as what, w.place, c.id::text, c.turn_id, c.session_id, c.ordinal, c.call_id, c.name, c.state,
                       octet_length(c.result) as result_bytes,
                       case when c.state = 'refused' then c.result ~ '^[{]\"error\":[{]\"code\":\"[a-z_]{1,40}\",' else false end as is_refusal,
                       case when c.name = any ($3::text[]) then c.arguments else '' end as arguments,
                       c.request, k.body as context, f.tasks as artifact_tasks, null::text as sha256
                from unnest($2::uuid[]) with ordinality as w (id, place)
                cross join lateral (
                    select * from tool_call c where c.account_id = $1 and c.turn_id = w.id and c.result is not null order by c.ordinal) c
                left join lateral (
                    select k.body from task_context k
                    where k.account_id = $1 and k.task_id = lower(c.request ->> 'task')
                      and k.version = case when c.request ->> 'context_version' ~ '^[0-9]{1,9}$' then (c.request ->> 'context_version')::integer end
                    offset 0) k on true
                left join lateral (
                    select array_agg(f.task_id) as tasks
                    from (select case when n.id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then n.id::uuid end as id
                          from jsonb_array_elements_text(", array!("c.request -> 'artifacts'"), ") as n (id) offset 0) n
                    cross join lateral (
                        select f.task_id from artifact f where f.account_id = $1 and f.id = n.id offset 0) f) f on true
                union all
                select 'answered', w.place, '', t.id, t.session_id, 0, coalesce(c.call ->> 'call_id', ''), coalesce(c.call ->> 'name', ''),
                       'finished', octet_length(c.call ->> 'answered'), false, '', null, null, null,
                       encode(sha256(convert_to(c.call ->> 'answered', 'UTF8')), 'hex')
                from unnest($2::uuid[]) with ordinality as w (id, place)
                cross join lateral (
                    select t.id, t.session_id, t.journal from turn t
                    where t.account_id = $1 and t.id = w.id and jsonb_path_exists(t.journal, '$[*].calls[*].answered ? (@ != null)')
                    offset 0) t
                cross join lateral jsonb_array_elements(", array!("t.journal"), ") as r (round)
                cross join lateral jsonb_array_elements(", array!("r.round -> 'calls'"), ") as c (call)
                where c.call ->> 'answered' is not null
                union all
                select 'recorded', w.place, c.id::text, w.id, c.session_id, c.ordinal, c.call_id, c.name, c.state, 0, false, '', null, null, null,
                       encode(sha256(convert_to(c.result, 'UTF8')), 'hex')
                from unnest($5::uuid[], $6::uuid[]) with ordinality as w (id, source, place)
                cross join lateral (
                    select * from tool_call c where c.account_id = $1 and c.turn_id = w.source and c.result is not null order by c.ordinal) c) c) c) c
    order by c.place, c.ordinal, c.id"
);

/// What the parts of a turn name.
#[derive(Default)]
struct Named {
    notifications: Vec<String>,
    messages: Vec<Uuid>,
    pasts: Vec<Uuid>,
    /// Those of them that are of a base.
    bases: Vec<Uuid>,
    /// Versions of tasks' contexts.
    contexts: Vec<(TaskId, i32)>,
    /// Subagents at work.
    branches: Vec<Uuid>,
    /// It is told of a stopped turn.
    stopped: bool,
}

/// A version of a task's context, by its source `task_context/{task}/{version}`.
pub(super) fn context_named(source: &str) -> Option<(TaskId, i32)> {
    let (task, version) = source.strip_prefix("task_context/")?.rsplit_once('/')?;
    Some((TaskId::parse(task).ok()?.key(), version.parse().ok()?))
}

/// A branch, by its source `branch/{id}`.
pub(super) fn branch_named(source: &str) -> Option<Uuid> {
    Uuid::try_parse(source.strip_prefix("branch/")?).ok()
}

fn named(turn: &AuditedTurn) -> Named {
    let mut named = Named::default();
    let manifest = turn.manifest().ok().flatten();
    for part in manifest.iter().flat_map(|manifest| &manifest.parts) {
        named.stopped |= part.part == PartKind::Stopped;
        match &part.source {
            Source::Message(id) => named.messages.push(*id),
            Source::Named(name) => {
                named
                    .notifications
                    .extend(name.strip_prefix(NOTIFICATION).map(str::to_owned));
                named.contexts.extend(context_named(name));
                named.branches.extend(branch_named(name));
            }
            Source::TurnInput(id) | Source::TurnReply(id) => {
                named.bases.extend((part.because == Because::Base).then_some(*id));
            }
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
    let contexts = each_once(all.iter().flat_map(|named| named.contexts.clone()));
    let own = each_once(turns.iter().filter_map(|turn| turn.branch_id));
    let others = all.iter().flat_map(|named| named.branches.clone());
    let branches = each_once(own.iter().copied().chain(others));
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
        column(&contexts, |(task, _)| task.to_string()),
        column(&contexts, |(_, version)| *version),
        branches.into(),
        each_once(all.iter().flat_map(|named| named.bases.clone())).into(),
    ];
    let mut sources = Sources::default();
    let rows: Vec<SourceRow> = tx.rows("read sources of prompts", SOURCES, values).await?;
    for row in rows {
        sources.add(row);
    }
    let pasts = each_once(all.iter().flat_map(|named| named.pasts.clone()));
    sources.pasts = pasts_of(tx, account, pasts, SOURCES_BYTES_MAX).await?;
    sources.spawning = spawning_turns(tx, account, own, SOURCES_BYTES_MAX).await?;
    let is_whole = |(named, turn): (&Named, &AuditedTurn)| {
        let spawning = turn.branch_id.and_then(|id| sources.spawning.get(&id));
        let is_cut = |id: &String| sources.notifications.get(id).is_some_and(|item| !item.is_whole);
        let is_past_cut = |id: &Uuid| sources.pasts.get(id).is_some_and(|past| !past.is_whole);
        !named.notifications.iter().any(is_cut)
            && !named.pasts.iter().any(is_past_cut)
            && spawning.is_none_or(|spawning| spawning.is_whole)
    };
    let whole = all.iter().zip(turns.iter()).take_while(|one| is_whole(*one)).count();
    turns.truncate(whole.max(1));
    let ids: Vec<Uuid> = turns.iter().map(|turn| turn.id.uuid()).collect();
    let replays: Vec<(Uuid, Uuid)> = turns
        .iter()
        .filter_map(|turn| Some((turn.id.uuid(), turn.source_turn_id?)))
        .collect();
    let values = [
        account.into(),
        ids.into(),
        looked_at().into(),
        bytes_max.into(),
        column(&replays, |(turn, _)| *turn),
        column(&replays, |(_, source)| *source),
    ];
    let calls: Vec<Call> = tx.rows("read results of tools", CALLS, values).await?;
    for call in calls {
        sources.calls.entry(call.turn_id).or_default().push(call);
    }
    let personas = turns.iter().filter_map(|turn| turn.persona_version_id);
    let personas = each_once(personas.map(|id| (account.clone(), id)));
    let personas = personas_read(tx, &personas).await?;
    sources.personas = personas.into_iter().map(|((_, id), text)| (id, text)).collect();
    let orchestrators = each_once(turns.iter().filter_map(AuditedTurn::orchestrator));
    sources.identities = identities_read(tx, &orchestrators).await?.into_iter().collect();
    Ok(sources)
}

impl AuditedTurn {
    /// Whose orchestrator's its home session is, and whom it answers.
    pub fn orchestrator(&self) -> Option<OrchestratorName> {
        let key = SessionKey::parse(self.home_key.as_deref()?).ok()?;
        orchestrator_name(&self.account, &key.of)
    }
}

impl Sources {
    fn add(&mut self, row: SourceRow) {
        let SourceRow {
            what,
            id,
            number,
            item,
            facts,
        } = row;
        match &*what {
            "notification" => drop(self.notifications.insert(id, item)),
            "message" => drop(Uuid::try_parse(&id).map(|id| self.messages.insert(id, item))),
            "before" => {
                if let Some(session) = item.session_id {
                    let before = Before {
                        about: (item.sender, item.body),
                        error: item.title,
                    };
                    self.before.entry((session, number)).or_default().push(before);
                }
            }
            "context" => drop(known(number, item, facts).map(|(name, known)| self.contexts.insert(name, known))),
            "branch" => drop(branch(&id, item, facts).map(|(id, branch)| self.branches.insert(id, branch))),
            "known" => drop(Uuid::try_parse(&id).map(|id| self.numbers.insert(id, number))),
            _ => drop(item.task_id.map(|task| self.updated.insert(task.key(), item.at))),
        }
    }
}

/// None: the task has no version.
fn known(version: i64, item: Item, facts: Option<Json>) -> Option<((String, i32), Known)> {
    let facts: KnownFacts = serde_json::from_value(facts?).ok()?;
    let known = Known {
        body: item.body,
        size: facts
            .characters
            .zip(facts.cut_characters)
            .map(|(characters, cut_characters)| ContextSize {
                characters,
                cut_characters,
            }),
        newest: facts.versions?.into_iter().max()?,
    };
    Some(((item.task_id?.to_string(), i32::try_from(version).ok()?), known))
}

/// None: another version wrote it.
fn branch(id: &str, item: Item, facts: Option<Json>) -> Option<(Uuid, Branch)> {
    let facts: BranchFacts = serde_json::from_value(facts?).ok()?;
    let branch = Branch {
        parent: item.session_id?,
        task: item.task_id,
        label: item.title,
        base: facts.base,
        messages: facts.messages,
        agent: facts.agent,
    };
    Some((Uuid::try_parse(id).ok()?, branch))
}

/// The tools whose arguments may name a task, or are sent to a model; by all of their names.
fn looked_at() -> Vec<String> {
    let is_looked_at =
        |tool: &&ToolDefinition| tool.task_argument().is_some() || matches!(tool.offered_to, Audience::Model(_));
    let looked_at = tools::all().iter().filter(is_looked_at);
    let names = looked_at.flat_map(|tool| tool.aliases.iter().chain([&tool.name]));
    names.map(|name| (*name).to_owned()).collect()
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

    #[test]
    fn a_span_may_end_and_begin_at_any_time() {
        let at = |text: &str| serde_json::from_value::<Timestamp>(text.into()).unwrap();
        let (first, last) = (at("0001-01-01T00:00:00Z"), at("9999-12-31T23:59:59.999999999Z"));
        let check = |at: Timestamp, expected: [Uuid; 2]| {
            let span = Span {
                from: Some(at),
                until: Some(at),
            };
            assert_eq!(Scope::Account.values(span)[..2], expected.map(Value::from), "{at}");
        };
        check(first, [Uuid::nil(), Uuid::nil()]);
        check(last, [first_id(last.0 - CLOCKS_DIFFER), first_id(last.0)]);
    }
}
