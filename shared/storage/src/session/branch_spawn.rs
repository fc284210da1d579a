//! Spawns the branches of a tool call: their rows, their sessions and the items that ask them, all or none. The caller holds the
//! parent's session and the agents' rows for share, and the task's row: so none of them ends meanwhile.
//!
//! A branch starts from what its parent knew then, its *base*: the newest messages and activities of the task as a list of ids, since
//! a position in the order of commits would need a lock at every post; and the numbers of what the spawning turn had so far.

use contracts::{
    Timestamp,
    content::ContentHash,
    event::{BranchSpawned, Event, SessionOpened},
    notification::{NotificationMessage, Refusal},
    outgoing::Origin,
    session::SessionResolved,
};
use domain::{
    AccountId, Actor, AgentId, BranchContext, BranchId, Conversation, Generation, JoinMode, MessageId, SessionId,
    SessionKind, TaskId, TaskStatus, TimerKind, TurnId,
    branch::{REQUEST, Spawn, request_id},
    context::Told,
};
use sea_orm::{FromQueryResult, TryGetableFromJson, Value};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    item_enter::{NewEntry, parsed},
    items_append::{NewItem, items_append},
};
use crate::{
    Setting, StorageError, Tx, activities,
    outbox::Owned,
    statement::column,
    timer::{NewTimer, timer_set},
};

/// What a branch's parent knew when it made the branch, but for the task's messages and activities.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Base {
    pub title: String,
    pub description: String,
    pub status: TaskStatus,
    pub updated_at: Timestamp,
    /// The newest version of the task's context.
    #[serde(default)]
    pub context_version: Option<i32>,
    /// The parent's last turn that had ended.
    #[serde(default)]
    pub last_turn: Option<TurnId>,
    /// Of the spawning turn: its number, and how many answers and notes it had so far.
    pub number: i64,
    pub rounds: i32,
    pub notes: i32,
    /// Its hops: a branch's turns have one more, and its result two.
    pub hops: u16,
    /// What the parent's thread was told, and its provider.
    #[serde(default)]
    pub told: Told,
    /// The response at which the parent's thread was, where the provider finds a thread by it.
    #[serde(default)]
    pub thread: Option<String>,
    /// Over all of it, and the messages and activities; in hexadecimal.
    #[serde(default)]
    pub sha256: String,
}

impl TryGetableFromJson for Base {}

impl Base {
    /// With its hash.
    fn sealed(self, messages: &[MessageId], activities: &[Uuid]) -> Base {
        let bare = Base {
            sha256: String::new(),
            ..self
        };
        let whole = serde_json::to_vec(&(&bare, messages, activities)).expect("texts, words and numbers serialise");
        Base {
            sha256: hex::encode(Sha256::digest(whole)),
            ..bare
        }
    }
}

/// The spawning turn.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'a> {
    pub account: &'a AccountId,
    /// As its client spelled it.
    pub task: &'a TaskId,
    pub session: SessionId,
    /// Of its own branch; 0: its session is no branch.
    pub depth: i32,
    pub turn: TurnId,
    /// Its agent, in whose name the branches are asked.
    pub by: &'a Actor,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewBranch {
    pub agent: AgentId,
    pub label: Option<String>,
    pub request: String,
    pub context: BranchContext,
}

#[derive(Clone, Debug)]
pub struct NewGroup<'a> {
    pub parent: Parent<'a>,
    /// Id of the call's record, which is the group's.
    pub call: Uuid,
    pub join: JoinMode,
    pub deadline_at: OffsetDateTime,
    pub branches: &'a [NewBranch],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spawned {
    pub branch: BranchId,
    pub session: SessionId,
}

/// The newest messages, and activities, of a base.
const BASE_MAX: i64 = 200;

#[derive(FromQueryResult)]
struct BaseRow {
    title: String,
    description: String,
    status: TaskStatus,
    updated_at: OffsetDateTime,
    context_version: Option<i32>,
    last_turn: Option<TurnId>,
    number: i64,
    rounds: i32,
    notes: i32,
    told: Told,
    thread: Option<String>,
    messages: Vec<MessageId>,
    activities: Vec<Uuid>,
}

/// Relies on primary keys, turn_number, message_thread and activity_change.
pub const BASE_READ: &str = concat!(
    "select k.title, k.description, k.status, k.updated_at,
            (select c.version from task_context c where c.account_id = k.account_id and c.task_id = k.id
             order by c.account_id desc, c.task_id desc, c.version desc limit 1) as context_version,
            (select l.id from (
                 select * from turn l where l.account_id = t.account_id and l.session_id = t.session_id and l.number < t.number
                 order by l.account_id, l.session_id, l.number desc limit $5) l
             where l.finished_at is not null order by l.number desc limit 1) as last_turn,
            t.number, jsonb_array_length(t.journal) as rounds, jsonb_array_length(coalesce(t.notes, '[]')) as notes,
            coalesce(s.thread -> 'told', '{}') as told, s.provider_thread as thread,
            array(select m.id from message m where m.account_id = k.account_id and m.task_id = k.id
                  order by m.created_at desc, m.id desc limit $5) as messages,
            array(select id",
    activities!(),
    "              and account_id = $1 and task_id = $2 order by created_at desc, id desc limit $5) as activities
     from (select * from task k where k.account_id = $1 and k.id = $2 offset 0) k
     cross join lateral (select * from session s where s.account_id = k.account_id and s.id = $3 offset 0) s
     cross join lateral (select * from turn t where t.account_id = s.account_id and t.id = $4 offset 0) t"
);

const BRANCHES_LOCK: &str = "select pg_advisory_xact_lock(hashtextextended('branches of ' || $1, 0))";

/// Branches that a turn may make, those included that have ended: one that makes and cancels them has an end.
pub const BRANCHES_OF_TURN_MAX: i64 = 64;

/// Live branches of a session, and of its account; and all that the turn in progress has made, up to a limit. Relies on branch_live,
/// and on branch_of_parent, whose order is requested.
pub const BRANCHES_COUNT: &str = "
    select (select count(*) from branch s where s.account_id = $1 and s.parent_session_id = $2 and s.state = 'live') as of_session,
           (select count(*) from branch b where b.account_id = $1 and b.state = 'live') as of_account,
           (select count(*) from (
                select from branch m
                where m.account_id = $1 and m.parent_session_id = $2
                  and m.created_at >= (select t.started_at from turn t where t.account_id = $1 and t.id = $3 offset 0)
                order by m.account_id, m.parent_session_id, m.created_at limit $4) m) as of_turn";

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromQueryResult)]
pub struct LiveCount {
    pub of_session: i64,
    pub of_account: i64,
    pub of_turn: i64,
}

/// Counts live branches. The account's next spawn waits for the end of this transaction, so that the count is exact. The caller
/// holds the session.
pub async fn branches_count(
    tx: &Tx,
    account: &AccountId,
    (session, turn): (SessionId, TurnId),
) -> Result<LiveCount, StorageError> {
    const ATTEMPT: &str = "count branches";
    tx.execute("lock the branches of an account", BRANCHES_LOCK, [account.into()])
        .await?;
    let values: [Value; 4] = [account.into(), session.into(), turn.into(), BRANCHES_OF_TURN_MAX.into()];
    let count = tx.one(ATTEMPT, BRANCHES_COUNT, values).await?;
    count.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}

const BRANCHES_INSERT: &str = "
    insert into branch (account_id, id, group_id, ordinal, task_id, parent_session_id, parent_turn_id, session_id, agent_id, depth,
                        label, request, context, join_mode, base, base_messages, base_activities, deadline_at, created_at)
    select $1, b.id, $2, b.ordinal, $3, $4, $5, b.session_id, b.agent_id, $6, nullif(b.label, ''), b.request, b.context, $7, $8, $9,
           $10, $11, $12
    from unnest($13::uuid[], $14::integer[], $15::uuid[], $16::uuid[], $17::text[], $18::text[], $19::text[])
         as b (id, ordinal, session_id, agent_id, label, request, context)";

/// Each has its parent's persona.
const SESSIONS_BRANCH: &str = "
    insert into session (account_id, id, kind, task_id, agent_id, generation, key, opened_at, origin_id, parent_session_id,
                         persona_version_id, persona_why)
    select $1, s.id, 'branch', $2, s.agent_id, 1, s.key, $3, s.origin_id, $4, p.persona_version_id, p.persona_why
    from unnest($5::uuid[], $6::uuid[], $7::text[], $8::uuid[]) as s (id, agent_id, key, origin_id)
    left join session p on p.account_id = $1 and p.id = $4";

/// Spawns the branches; gives them in their order. None: the turn or its task is gone.
pub async fn branch_spawn(
    tx: &Tx,
    new: &NewGroup<'_>,
    setting: &Setting<'_>,
) -> Result<Option<(Vec<Spawned>, Vec<Owned>)>, StorageError> {
    const ATTEMPT: &str = "spawn branches";
    let Parent {
        account,
        task,
        session,
        turn,
        ..
    } = new.parent;
    let values: [Value; 5] = [
        account.into(),
        task.key().into(),
        session.into(),
        turn.into(),
        BASE_MAX.into(),
    ];
    let Some(row): Option<BaseRow> = tx.one("read the base of branches", BASE_READ, values).await? else {
        return Ok(None);
    };
    let (messages, activities) = (row.messages.clone(), row.activities.clone());
    let base = base(row, setting.origin.hops).sealed(&messages, &activities);
    let spawn = Spawn {
        session,
        turn,
        call: new.call,
    };
    let all: Vec<(i32, &NewBranch, Spawned, Conversation)> = (1..)
        .zip(new.branches)
        .map(|(ordinal, one)| {
            let (branch, session) = spawn.ids(usize::try_from(ordinal).expect("branches of a call are few"));
            let conversation = Conversation::of_branch(account, branch, one.agent);
            (ordinal, one, Spawned { branch, session }, conversation)
        })
        .collect();
    let values: [Value; 19] = [
        account.into(),
        new.call.into(),
        task.key().into(),
        session.into(),
        turn.into(),
        (new.parent.depth + 1).into(),
        new.join.into(),
        serde_json::to_value(&base).expect("a base has string keys").into(),
        messages.into(),
        activities.into(),
        new.deadline_at.into(),
        setting.now.into(),
        column(&all, |(_, _, ids, _)| ids.branch),
        column(&all, |(ordinal, ..)| *ordinal),
        column(&all, |(_, _, ids, _)| ids.session),
        column(&all, |(_, one, ..)| one.agent),
        column(&all, |(_, one, ..)| one.label.clone().unwrap_or_default()),
        column(&all, |(_, one, ..)| one.request.clone()),
        column(&all, |(_, one, ..)| one.context),
    ];
    tx.execute(ATTEMPT, BRANCHES_INSERT, values).await?;
    let key = |conversation: &Conversation| conversation.key(Generation::FIRST).to_string();
    let values: [Value; 8] = [
        account.into(),
        task.key().into(),
        setting.now.into(),
        session.into(),
        column(&all, |(_, _, ids, _)| ids.session),
        column(&all, |(_, one, ..)| one.agent),
        column(&all, |(.., conversation)| key(conversation)),
        column(&all, |(_, _, ids, _)| ids.branch),
    ];
    tx.execute("open the sessions of branches", SESSIONS_BRANCH, values)
        .await?;
    requests_enter(tx, new, &all, setting).await?;
    let group = new.call.to_string();
    let timer = NewTimer {
        account,
        kind: TimerKind::BranchDeadline,
        key: &group,
        due_at: new.deadline_at,
        task: Some(task),
        session: Some(session),
        agent: None,
        note: "",
        payload: serde_json::json!({}),
        chain: 0,
    };
    let (_, mut told) = timer_set(tx, &timer, setting).await?;
    for (_, one, ids, conversation) in &all {
        let opened = SessionOpened {
            session_id: ids.session,
            session_key: key(conversation),
            kind: SessionKind::Branch,
            generation: Generation::FIRST,
            agent_id: Some(one.agent),
        };
        told.push(setting.event(
            account,
            Some(task),
            &ids.session.to_string(),
            Event::SessionOpened(opened),
        ));
        let spawned = BranchSpawned {
            branch_id: ids.branch,
            group_id: new.call,
            agent_id: one.agent,
            label: one.label.clone(),
            context: one.context,
            depth: new.parent.depth + 1,
            session_id: ids.session,
            parent_session_id: session,
            parent_turn_id: turn,
            base_sha256: base.sha256.clone(),
            deadline_at: new.deadline_at.into(),
        };
        told.push(setting.event(
            account,
            Some(task),
            &ids.branch.to_string(),
            Event::BranchSpawned(spawned),
        ));
        let wake = SessionResolved::new(conversation, (ids.session, Generation::FIRST), Some(task), 1);
        told.push(setting.message(&wake.message_id(), &wake));
    }
    let spawned = all.iter().map(|(_, _, ids, _)| *ids).collect();
    Ok(Some((spawned, told)))
}

fn base(row: BaseRow, hops: u16) -> Base {
    Base {
        title: row.title,
        description: row.description,
        status: row.status,
        updated_at: row.updated_at.into(),
        context_version: row.context_version,
        last_turn: row.last_turn,
        number: row.number,
        rounds: row.rounds,
        notes: row.notes,
        hops,
        told: row.told,
        thread: row.thread,
        sha256: String::new(),
    }
}

/// Each branch's first item.
async fn requests_enter(
    tx: &Tx,
    new: &NewGroup<'_>,
    all: &[(i32, &NewBranch, Spawned, Conversation)],
    setting: &Setting<'_>,
) -> Result<(), StorageError> {
    const ATTEMPT: &str = "ask branches";
    let Parent { account, task, by, .. } = new.parent;
    let refused = |refusal: Refusal| StorageError::unreadable(ATTEMPT, refusal);
    let mut items = Vec::with_capacity(all.len());
    for (_, one, ids, conversation) in all {
        let id = request_id(ids.branch);
        let title = one.label.clone().unwrap_or_else(|| "A part of the work".to_owned());
        let message = NotificationMessage::new(REQUEST, by.clone(), title, one.request.clone())
            .with("branch_id", ids.branch.to_string());
        let entry = NewEntry {
            id: &id,
            task: Some(task),
            message,
        };
        let content = parsed(conversation, &entry).1.map_err(refused)?;
        items.push((id, content));
    }
    let origin = Origin {
        hops: setting.origin.hops.saturating_add(1),
        ..setting.origin.clone()
    };
    let lineage = (origin.cause.as_deref(), origin.hops, &origin.trace);
    let rows: Vec<NewItem<'_>> = items
        .iter()
        .zip(all)
        .map(|((id, content), (_, one, ids, _))| NewItem {
            task: Some(task),
            agent: Some(one.agent),
            queued: Some((ids.session, 1)),
            ..NewItem::of(
                account,
                id,
                Some(content),
                ContentHash::of(Some(task), content),
                lineage,
            )
        })
        .collect();
    match items_append(tx, &rows).await? == rows.len() as u64 {
        true => Ok(()),
        false => Err(StorageError::unreadable(ATTEMPT, "an id of ours is used")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_known_by_its_hash() {
        let base = Base {
            title: "Seven".to_owned(),
            description: String::new(),
            status: TaskStatus::InProgress,
            updated_at: Timestamp(OffsetDateTime::UNIX_EPOCH),
            context_version: Some(2),
            last_turn: None,
            number: 3,
            rounds: 1,
            notes: 0,
            hops: 0,
            told: Told::default(),
            thread: None,
            sha256: String::new(),
        };
        let (message, activity) = (MessageId(Uuid::from_u128(1)), Uuid::from_u128(1));
        let sealed = base.clone().sealed(&[message], &[]);
        assert_eq!(sealed.sha256.len(), 64);
        assert_eq!(sealed.clone().sealed(&[message], &[]), sealed);
        assert_ne!(sealed.sha256, base.clone().sealed(&[], &[activity]).sha256);
        let other = Base { rounds: 2, ..base };
        assert_ne!(sealed.sha256, other.sealed(&[message], &[]).sha256);
        let stored = serde_json::to_value(&sealed).unwrap();
        assert_eq!(serde_json::from_value::<Base>(stored).unwrap(), sealed);
    }
}
