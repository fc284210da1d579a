//! The evidence: the campaign's records, a snapshot of the database, and lookups over both. It has no rules.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Context;
use domain::{HoldRunning, HoldScope, QueueMode, Verdict};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use sqlx::{Connection, Executor, PgConnection, Row};
use time::{OffsetDateTime, serde::rfc3339};

use crate::records::{Agent, Offer, Offered, Records, Tenant};

#[derive(Clone, Debug, Deserialize)]
pub(super) struct NotificationRow {
    pub(super) account_id: String,
    pub(super) id: String,
    pub(super) session_id: Option<String>,
    pub(super) position: Option<i64>,
    pub(super) body: String,
    pub(super) state: String,
    pub(super) reason: Option<String>,
    pub(super) task_id: Option<String>,
    /// The turn that took it last.
    pub(super) turn_id: Option<String>,
    pub(super) queue_mode: QueueMode,
    /// With mode `collect`: it met a busy session.
    pub(super) joins: bool,
    /// `answer`, `timer`, …
    pub(super) kind: String,
    /// The question, the timer or the call that made branches that it is of.
    pub(super) of: Option<String>,
    pub(super) sender_kind: String,
    pub(super) sender_id: String,
    /// More than 1: it was edited, or failed and began again.
    pub(super) revision: i64,
    #[serde(with = "rfc3339")]
    pub(super) created_at: OffsetDateTime,
}

impl NotificationRow {
    /// A person took it out of its queue.
    pub(super) fn is_withdrawn(&self) -> bool {
        let reason = self.reason.as_deref().unwrap_or_default();
        self.state == "cancelled" && reason.starts_with("withdrawn: by ")
    }
}

impl SessionRow {
    /// The branch or the replay whose only session it is; None: its task and its agent are its conversation.
    pub(super) fn origin(&self) -> Option<&str> {
        let of = self
            .key
            .strip_prefix("branch:")
            .or_else(|| self.key.strip_prefix("replay:"));
        of?.split(':').next()
    }
}

impl NotificationRow {
    pub(super) fn is_steer(&self) -> bool {
        self.queue_mode == QueueMode::Steer
    }

    /// How many items its session had when it was accepted.
    pub(super) fn number(&self) -> Option<i64> {
        let position = self.position?;
        Some(if position < 0 {
            position - QueueMode::Steer.position(0)
        } else {
            position
        })
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SessionRow {
    pub(super) account_id: String,
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) task_id: Option<String>,
    pub(super) agent_id: Option<String>,
    pub(super) generation: i32,
    pub(super) key: String,
    #[serde(with = "rfc3339")]
    pub(super) opened_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    pub(super) closed_at: Option<OffsetDateTime>,
    pub(super) close_reason: Option<String>,
    pub(super) provider_thread: Option<String>,
    pub(super) phase: String,
    pub(super) queued: i32,
    pub(super) lease_owner: Option<String>,
    pub(super) gate: Option<String>,
    /// Slug and version of its persona.
    pub(super) persona: Option<(String, i64)>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct TurnRow {
    pub(super) account_id: String,
    pub(super) id: String,
    pub(super) session_id: String,
    pub(super) task_id: Option<String>,
    pub(super) generation: i32,
    pub(super) number: i64,
    pub(super) state: String,
    pub(super) notification_ids: Vec<String>,
    pub(super) journal: Value,
    pub(super) response_id: Option<String>,
    pub(super) reply: Option<String>,
    pub(super) late: bool,
    pub(super) no_reply: bool,
    pub(super) error: Option<String>,
    pub(super) error_class: Option<String>,
    #[serde(with = "rfc3339")]
    pub(super) started_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    pub(super) finished_at: Option<OffsetDateTime>,
    /// Start of the claim under which its last provider call was made.
    #[serde(with = "rfc3339::option")]
    pub(super) sent_at: Option<OffsetDateTime>,
    /// Its agent was told that an earlier turn was interrupted, or ended by a reset.
    pub(super) told: bool,
    /// Its provider's thread began with it.
    pub(super) opens_thread: bool,
    /// SHA-256 of its instructions, of its input, and of each of its notes.
    pub(super) profile_hash: String,
    pub(super) input_sha256: String,
    pub(super) notes_sha256: Vec<String>,
    /// The notifications of its notes.
    pub(super) noted: Vec<String>,
    /// Packed.
    pub(super) manifest: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct CallRow {
    pub(super) account_id: String,
    pub(super) id: String,
    pub(super) session_id: String,
    pub(super) turn_id: Option<String>,
    pub(super) call_id: String,
    pub(super) ordinal: i32,
    pub(super) name: String,
    pub(super) arguments: String,
    pub(super) state: String,
    /// The result had no effect: its generation was closed, or another holder had the session.
    pub(super) late: bool,
    #[serde(with = "rfc3339")]
    pub(super) started_at: OffsetDateTime,
    /// Read after the locks, so of two calls of which one saw the other's end, the later one has the later time.
    #[serde(with = "rfc3339::option")]
    pub(super) finished_at: Option<OffsetDateTime>,
    pub(super) result_sha256: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct MessageRow {
    pub(super) account_id: String,
    pub(super) id: String,
    pub(super) task_id: String,
    pub(super) author_kind: String,
    pub(super) body: String,
    pub(super) turn_id: Option<String>,
}

/// A question or a timer: what ends once.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct OnceRow {
    pub(super) account_id: String,
    pub(super) id: String,
    pub(super) state: String,
    pub(super) session_id: Option<String>,
    /// Of a question; of a timer `check_later`.
    pub(super) kind: String,
    #[serde(default)]
    pub(super) task_id: Option<String>,
    /// What the client answered.
    #[serde(default)]
    pub(super) text: Option<String>,
    #[serde(default)]
    pub(super) verdict: Option<Verdict>,
    /// The call that is asked about.
    #[serde(default)]
    pub(super) tool_call: Option<String>,
    /// The item that it became.
    pub(super) notification_id: Option<String>,
    #[serde(with = "rfc3339::option")]
    pub(super) ended_at: Option<OffsetDateTime>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct BranchRow {
    pub(super) account_id: String,
    pub(super) id: String,
    /// The call that made it.
    pub(super) group_id: String,
    pub(super) session_id: String,
    pub(super) parent_session_id: String,
    pub(super) join_mode: String,
    pub(super) state: String,
    pub(super) joined_item: Option<String>,
    #[serde(with = "rfc3339::option")]
    pub(super) ended_at: Option<OffsetDateTime>,
}

impl BranchRow {
    pub(super) fn is_live(&self) -> bool {
        self.state == "live"
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct HoldRow {
    pub(super) account_id: String,
    pub(super) id: String,
    pub(super) scope_kind: HoldScope,
    pub(super) scope_id: String,
    pub(super) running: HoldRunning,
    #[serde(with = "rfc3339")]
    pub(super) created_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    pub(super) released_at: Option<OffsetDateTime>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct ReplayRow {
    pub(super) account_id: String,
    pub(super) id: String,
    pub(super) source_turn_id: String,
    pub(super) session_id: String,
}

/// A status change of a task.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct MoveRow {
    pub(super) account_id: String,
    pub(super) task_id: String,
    pub(super) to: String,
    #[serde(with = "rfc3339")]
    pub(super) created_at: OffsetDateTime,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct OutboxRow {
    pub(super) account_id: String,
    pub(super) service: String,
    pub(super) subject: String,
}

/// Mail to a conversation, or an answer.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct MailRow {
    pub(super) account_id: String,
    pub(super) id: String,
    pub(super) why: String,
    pub(super) reply_to: Option<String>,
    /// The turn that wrote it.
    pub(super) turn_id: Option<String>,
    pub(super) to_session: Option<String>,
    pub(super) outcome: Option<String>,
    pub(super) in_turn_id: Option<String>,
}

/// A task that waited for others, all of which are done, the last one after it began to wait.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct FreedRow {
    pub(super) account_id: String,
    pub(super) task_id: String,
    pub(super) status: String,
    pub(super) agents: usize,
    /// How many were told.
    pub(super) items: usize,
}

/// The tables, as one snapshot.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    pub(super) notifications: Vec<NotificationRow>,
    pub(super) sessions: Vec<SessionRow>,
    pub(super) turns: Vec<TurnRow>,
    pub(super) calls: Vec<CallRow>,
    pub(super) messages: Vec<MessageRow>,
    pub(super) moves: Vec<MoveRow>,
    pub(super) holds: Vec<HoldRow>,
    /// Account, task, newest version of its context.
    pub(super) contexts: Vec<(String, String, i64)>,
    /// Account, number and text of a version of its persona.
    pub(super) personas: Vec<(String, i64, String)>,
    pub(super) questions: Vec<OnceRow>,
    /// Of kind `check_later`.
    pub(super) timers: Vec<OnceRow>,
    pub(super) branches: Vec<BranchRow>,
    pub(super) replays: Vec<ReplayRow>,
    pub(super) mail: Vec<MailRow>,
    pub(super) freed: Vec<FreedRow>,
    /// Account, owner, number of memories.
    pub(super) memories: Vec<(String, String, usize)>,
    pub(super) outbox: Vec<OutboxRow>,
    /// Account, id and reason of dead letters.
    pub(super) buried: Vec<(String, String, String)>,
    /// Account, task, agent.
    pub(super) assignees: Vec<(String, String, String)>,
    /// Idle connections of services inside a transaction.
    pub(super) open_transactions: Vec<String>,
    /// Forbidden texts found in the tables, as `(owner, table, key)`. The database searches, so that not all texts are transferred.
    pub(super) foreign: Vec<(String, String, String)>,
    pub(super) secret: Vec<(String, String, String)>,
}

const NOTIFICATIONS: &str = "
    select to_jsonb(r) from (select account_id, id, session_id, position, body, state, reason, task_id, turn_id, queue_mode, joins,
                                    kind, coalesce(metadata ->> 'question_id', metadata ->> 'timer_id', metadata ->> 'group_id') as of, sender_kind, sender_id,
                                    revision, created_at from notification) r";
const SESSIONS: &str = "
    select to_jsonb(r) from (select account_id, id, kind, task_id, agent_id, generation, key, opened_at, closed_at, close_reason,
                                    provider_thread, phase,
                                    queued, lease_owner, gate,
                                    (select jsonb_build_array(v.slug, v.number) from persona_version v
                                     where v.account_id = session.account_id and v.id = session.persona_version_id) as persona
                             from session) r";
const TURNS: &str = "
    select to_jsonb(r) from (select account_id, id, session_id, task_id, generation, number, state, notification_ids, journal,
                                    response_id, reply, late, no_reply, error, error_class, started_at, finished_at,
                                    sent_at, input like 'Note from Signalbox: an earlier turn%'
                                        or input like '%this conversation was ended by a reset by %' as told,
                                    coalesce(context ->> 'reason' is not null or context ->> 'used' = 'assembled', true) as opens_thread,
                                    profile_hash, encode(sha256(convert_to(input, 'UTF8')), 'hex') as input_sha256,
                                    array(select encode(sha256(convert_to(note ->> 'text', 'UTF8')), 'hex')
                                          from jsonb_array_elements(notes) note) as notes_sha256,
                                    array(select jsonb_array_elements_text(note -> 'notification_ids')
                                          from jsonb_array_elements(notes) note) as noted,
                                    encode(manifest_packed, 'hex') as manifest from turn) r";
const CALLS: &str = "
    select to_jsonb(r) from (select account_id, id, session_id, turn_id, call_id, ordinal, name, arguments, state, late,
                                    started_at, finished_at, encode(sha256(convert_to(result, 'UTF8')), 'hex') as result_sha256
                             from tool_call) r";
const MESSAGES: &str = "
    select to_jsonb(r) from (select account_id, id, task_id, author_kind, body, turn_id from message) r";
const MOVES: &str = "
    select to_jsonb(r) from (select account_id, task_id, detail ->> 'to' as to, created_at from activity
                             where kind = 'task.status_changed') r";
const HOLDS: &str = "
    select to_jsonb(r) from (select account_id, id, scope_kind, scope_id, running, created_at, released_at from hold) r";
const CONTEXTS: &str = "
    select jsonb_build_array(account_id, task_id, max(version)) from task_context group by account_id, task_id";
const PERSONAS: &str = "
    select jsonb_build_array(account_id, number, files -> 0 ->> 'content') from persona_version";
const QUESTIONS: &str = "
    select to_jsonb(r) from (select account_id, id, kind, state, session_id, task_id, answer ->> 'text' as text, verdict, tool_call,
                                    notification_id, ended_at from question) r";
const TIMERS: &str = "
    select to_jsonb(r) from (select account_id, id, kind, state, session_id, notification_id, ended_at
                             from timer where kind = 'check_later') r";
const BRANCHES: &str = "
    select to_jsonb(r) from (select account_id, id, group_id, session_id, parent_session_id, join_mode, state, joined_item, ended_at
                             from branch) r";
const REPLAYS: &str = "select to_jsonb(r) from (select account_id, id, source_turn_id, session_id from replay) r";
const MAIL: &str = "
    select to_jsonb(r) from (select account_id, id, why, reply_to, turn_id, to_session, outcome, in_turn_id from mail) r";
const FREED: &str = "
    select to_jsonb(r) from (
        select t.account_id, t.id as task_id, t.status,
               (select count(*) from task_assignee a where a.account_id = t.account_id and a.task_id = t.id) as agents,
               (select count(*) from notification n
                where n.account_id = t.account_id and n.kind = 'task_unblocked' and lower(n.metadata ->> 'task_id') = t.id) as items
        from task t join task_dependency d on d.account_id = t.account_id and d.task_id = t.id
        group by t.account_id, t.id, t.status
        having bool_and(d.satisfied_at is not null) and bool_or(d.satisfied_at > d.created_at)) r";
const MEMORIES: &str = "
    select jsonb_build_array(account_id, owner, count(*)) from memory group by account_id, owner, repository";
const OUTBOX: &str = "select to_jsonb(r) from (select account_id, service, subject from outbox) r";
const BURIED: &str = "select to_jsonb(array[account_id, id::text, reason]) from dead_letter";
const ASSIGNEES: &str = "select to_jsonb(array[account_id, task_id, agent_id::text]) from task_assignee";

/// A single observation is no finding: between two statements of a transaction every connection is in this state.
const OPEN_TRANSACTIONS: &str = "
    select to_jsonb(application_name || ' since ' || state_change) from pg_stat_activity
    where application_name like 'signalbox-%' and state like 'idle in transaction%' and state_change < now() - interval '2 s'";

/// All stored texts, as `account, place, text`.
macro_rules! words {
    () => {
        "(select account_id, 'notification ' || id as place, concat_ws(' ', body, title, metadata::text, reason) as text
          from notification
          union all select account_id, 'message ' || id, concat_ws(' ', body, author_name) from message
          union all select account_id, 'turn ' || id, concat_ws(' ', input, journal::text, reply, error, manifest::text,
                    encode(manifest_packed, 'escape')) from turn
          union all select account_id, 'tool call ' || id, concat_ws(' ', arguments, result) from tool_call
          union all select account_id, 'activity ' || id, detail::text from activity
          union all select account_id, 'dead letter ' || id, concat_ws(' ', payload, headers::text, detail) from dead_letter
          union all select account_id, 'idempotency ' || key, body::text from idempotency
          union all select account_id, 'instructions ' || hash, body from instruction_text
          union all select account_id, 'question ' || id, concat_ws(' ', title, body, answer::text, reason) from question
          union all select account_id, 'context of ' || task_id || ' ' || version, body from task_context
          union all select account_id, 'persona ' || id, files::text from persona_version
          union all select account_id, 'mail ' || id, concat_ws(' ', content, from_name, to_address, reason) from mail
          union all select account_id, 'memory ' || id, concat_ws(' ', key, content) from memory
          union all select account_id, 'timer ' || id, concat_ws(' ', note, reason) from timer
          union all select account_id, 'branch ' || id, concat_ws(' ', label, request, base::text, result, detail) from branch
          union all select account_id, 'outbox ' || id, headers::text || encode(payload, 'escape') from outbox) as said"
    };
}
const FOREIGN: &str = concat!(
    "select to_jsonb(array[w.owner, said.account_id, said.place]) from unnest($1::text[], $2::text[]) as w (owner, word), ",
    words!(),
    " where said.account_id not in (w.owner, '-') and strpos(said.text, w.word) > 0 limit 100"
);
const SECRET: &str = concat!(
    "select to_jsonb(array[w.owner, said.account_id, said.place]) from unnest($1::text[], $2::text[]) as w (owner, word), ",
    words!(),
    " where strpos(said.text, w.word) > 0 limit 100"
);

impl Rows {
    pub(super) async fn load(records: &Records) -> anyhow::Result<Rows> {
        let mut connection = PgConnection::connect(&records.database_url)
            .await
            .context("could not connect to look at the database")?;
        connection
            .execute("set timezone = 'UTC'; begin isolation level repeatable read read only")
            .await
            .context("could not begin to look")?;
        let accounts = records.accounts.iter();
        let (owners, canaries) = accounts.map(|one| (one.id.clone(), one.canary.clone())).unzip();
        let (names, secrets) = records.secrets.clone().into_iter().unzip();
        let rows = Rows {
            notifications: load(&mut connection, NOTIFICATIONS).await?,
            sessions: load(&mut connection, SESSIONS).await?,
            turns: load(&mut connection, TURNS).await?,
            calls: load(&mut connection, CALLS).await?,
            messages: load(&mut connection, MESSAGES).await?,
            moves: load(&mut connection, MOVES).await?,
            holds: load(&mut connection, HOLDS).await?,
            contexts: load(&mut connection, CONTEXTS).await?,
            personas: load(&mut connection, PERSONAS).await?,
            questions: load(&mut connection, QUESTIONS).await?,
            timers: load(&mut connection, TIMERS).await?,
            branches: load(&mut connection, BRANCHES).await?,
            replays: load(&mut connection, REPLAYS).await?,
            mail: load(&mut connection, MAIL).await?,
            freed: load(&mut connection, FREED).await?,
            memories: load(&mut connection, MEMORIES).await?,
            outbox: load(&mut connection, OUTBOX).await?,
            buried: load(&mut connection, BURIED).await?,
            assignees: load(&mut connection, ASSIGNEES).await?,
            open_transactions: load(&mut connection, OPEN_TRANSACTIONS).await?,
            foreign: search(&mut connection, FOREIGN, owners, canaries).await?,
            secret: search(&mut connection, SECRET, names, secrets).await?,
        };
        connection.close().await.ok();
        Ok(rows)
    }
}

async fn load<T: DeserializeOwned>(connection: &mut PgConnection, sql: &'static str) -> anyhow::Result<Vec<T>> {
    let rows = sqlx::query(sql).fetch_all(connection).await.context(sql)?;
    let read = |row: &sqlx::postgres::PgRow| serde_json::from_value(row.get::<Value, _>(0)).context(sql);
    rows.iter().map(read).collect()
}

async fn search(
    connection: &mut PgConnection,
    sql: &'static str,
    whose: Vec<String>,
    words: Vec<String>,
) -> anyhow::Result<Vec<(String, String, String)>> {
    let searching = sqlx::query(sql).bind(whose).bind(words);
    let rows = searching.fetch_all(connection).await.context(sql)?;
    let read = |row: &sqlx::postgres::PgRow| serde_json::from_value(row.get::<Value, _>(0)).context(sql);
    rows.iter().map(read).collect()
}

/// Account and id.
pub(super) type Name<'a> = (&'a str, &'a str);

pub(super) struct Evidence<'a> {
    pub(super) records: &'a Records,
    pub(super) rows: &'a Rows,
    /// The system is idle: no fault is in progress that is not recorded.
    pub(super) at_rest: bool,
    pub(super) notifications: HashMap<Name<'a>, &'a NotificationRow>,
    pub(super) sessions: HashMap<Name<'a>, &'a SessionRow>,
    pub(super) turns: HashMap<Name<'a>, &'a TurnRow>,
    /// Turns of a session, by number.
    pub(super) turns_of: BTreeMap<Name<'a>, Vec<&'a TurnRow>>,
}

impl<'a> Evidence<'a> {
    pub(super) fn new(records: &'a Records, rows: &'a Rows, at_rest: bool) -> Evidence<'a> {
        let mut turns_of: BTreeMap<Name<'a>, Vec<&TurnRow>> = BTreeMap::new();
        for turn in &rows.turns {
            let session = (turn.account_id.as_str(), turn.session_id.as_str());
            turns_of.entry(session).or_default().push(turn);
        }
        for turns in turns_of.values_mut() {
            turns.sort_by_key(|turn| turn.number);
        }
        Evidence {
            records,
            rows,
            at_rest,
            notifications: rows
                .notifications
                .iter()
                .map(|row| (name(&row.account_id, &row.id), row))
                .collect(),
            sessions: rows
                .sessions
                .iter()
                .map(|row| (name(&row.account_id, &row.id), row))
                .collect(),
            turns: rows
                .turns
                .iter()
                .map(|row| (name(&row.account_id, &row.id), row))
                .collect(),
            turns_of,
        }
    }

    pub(super) fn tenant(&self, account: &str) -> Option<&'a Tenant> {
        self.records.accounts.iter().find(|tenant| tenant.id == account)
    }

    pub(super) fn agent(&self, account: &str, slug: &str) -> Option<&'a Agent> {
        let agents = &self.tenant(account)?.agents;
        agents.iter().find(|agent| agent.slug == slug)
    }

    /// The items of a turn's run, as far as they are there: without those that were given to the turn in progress.
    pub(super) fn items_of(&self, turn: &'a TurnRow) -> impl Iterator<Item = &'a NotificationRow> {
        let ids = turn.notification_ids.iter().enumerate();
        ids.filter_map(|(place, id)| {
            let row = self.notifications.get(&(turn.account_id.as_str(), id.as_str()))?;
            (place == 0 || row.queue_mode != QueueMode::Inject).then_some(*row)
        })
    }

    /// Ids of an offer's notification rows; none for an offer that is no notification.
    pub(super) fn ids_of(&self, offer: &Offer) -> Vec<String> {
        match &offer.what {
            Offered::Notification { id, agents, .. } if agents.len() == 1 => vec![id.clone()],
            Offered::Notification { id, agents, .. } => agents
                .iter()
                .filter_map(|slug| Some(format!("{id}:{}", self.agent(&offer.account, slug)?.id)))
                .collect(),
            Offered::Mail { work, .. } => {
                let mark = format!("effect={};", work.effect);
                let is_its = |row: &&NotificationRow| {
                    row.account_id == offer.account
                        && row.kind == "mail"
                        && row.sender_kind == "user"
                        && row.body.contains(&mark)
                };
                let rows = self.rows.notifications.iter().filter(is_its);
                rows.map(|row| row.id.clone()).collect()
            }
            Offered::Message { work, .. } => {
                self.posted(&offer.account, &work.effect)
                    .flat_map(|message| {
                        let woken = self.rows.assignees.iter().filter(move |(account, task, _)| {
                            *account == message.account_id && *task == message.task_id
                        });
                        woken.map(|(_, _, agent)| format!("message:{}:{agent}", message.id))
                    })
                    .collect()
            }
            Offered::Repeat { .. }
            | Offered::Conflict { .. }
            | Offered::KeyReused { .. }
            | Offered::Poison { .. }
            | Offered::Status { .. }
            | Offered::Persona
            | Offered::Stop { .. }
            | Offered::Reset { .. }
            | Offered::Replay { .. }
            | Offered::Resume { .. }
            | Offered::Hold { .. }
            | Offered::Release { .. }
            | Offered::Edit { .. }
            | Offered::EndBranch { .. }
            | Offered::Answer { .. }
            | Offered::Handover { .. }
            | Offered::Task { .. }
            | Offered::Remember => Vec::new(),
        }
    }

    /// Messages of people and services with this text.
    pub(super) fn posted(&self, account: &str, effect: &str) -> impl Iterator<Item = &'a MessageRow> {
        let mark = format!("effect={effect};");
        let account = account.to_owned();
        self.rows.messages.iter().filter(move |message| {
            message.account_id == account && message.author_kind != "agent" && message.body.contains(&mark)
        })
    }

    /// Ids that may have a row because they were offered, by account.
    pub(super) fn offered(&self) -> BTreeSet<(String, String)> {
        let mut offered = BTreeSet::new();
        for offer in &self.records.offers {
            let mut enter = |id: String| offered.insert((offer.account.clone(), id));
            self.ids_of(offer).into_iter().for_each(|id| {
                enter(id);
            });
            match &offer.what {
                // A refused fan-out has a row of its own.
                Offered::Notification { id, .. } | Offered::Conflict { id, .. } => {
                    enter(id.clone());
                }
                Offered::Poison { id: Some(id), .. } => {
                    enter(id.clone());
                }
                Offered::Poison { id: None, .. }
                | Offered::Repeat { .. }
                | Offered::KeyReused { .. }
                | Offered::Message { .. }
                | Offered::Status { .. }
                | Offered::Persona
                | Offered::Stop { .. }
                | Offered::Reset { .. }
                | Offered::Replay { .. }
                | Offered::Resume { .. }
                | Offered::Hold { .. }
                | Offered::Release { .. }
                | Offered::Edit { .. }
                | Offered::EndBranch { .. }
                | Offered::Answer { .. }
                | Offered::Handover { .. }
                | Offered::Mail { .. }
                | Offered::Task { .. }
                | Offered::Remember => {}
            }
        }
        offered
    }
}

/// Whether it is a session on this task.
pub(super) fn is_on(session: &SessionRow, task: &str) -> bool {
    session
        .task_id
        .as_deref()
        .is_some_and(|of| of.eq_ignore_ascii_case(task))
}

pub(super) fn name<'a>(account: &'a str, id: &'a str) -> Name<'a> {
    (account, id)
}
