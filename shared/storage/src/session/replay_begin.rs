//! Makes a replay: its row, its session and the only item of that session. When its turn has ended, the session is closed. The session
//! belongs to no conversation, so no other item reaches it; and what ends tasks leaves it alone, as it has no effect on any.

use contracts::{
    content::ContentHash,
    event::{Event, SessionOpened},
    notification::{NotificationMessage, Refusal},
    session::SessionResolved,
};
use domain::{
    AccountId, Actor, AgentId, CloseReason, Conversation, Generation, ReplayId, ReplaySpec, SessionId, SessionKey,
    SessionKind, SessionOf, SessionScope, TaskId, TurnId,
    replay::{REPLAY, replay_item},
};
use sea_orm::{FromQueryResult, Value};

use super::{
    item_enter::{NewEntry, parsed},
    items_append::{NewItem, items_append},
    sessions_close::{CLOSE, ItemRow, LOCK, LOCK_ITEMS, SessionRow, ended_messages, items_cancel, items_uncount},
};
use crate::{Setting, StorageError, Tx, outbox::Owned, setting::fresh_id};

#[derive(Clone, Copy, Debug)]
pub struct NewReplay<'a> {
    pub account: &'a AccountId,
    /// The turn that is run again. It has ended.
    pub source: TurnId,
    /// Its task, as its client spelled it, and its agent.
    pub task: Option<&'a TaskId>,
    pub agent: AgentId,
    pub spec: &'a ReplaySpec,
    pub by: &'a Actor,
}

const REPLAYS_LOCK: &str = "select pg_advisory_xact_lock(hashtextextended('replays of ' || $1, 0))";

/// Replays of an account that have something left to do, and all of a turn. Relies on session_active_origin, whose
/// order is requested, and replay_of_turn.
pub const REPLAYS_COUNT: &str = "
    select (select count(*) from (
                select s.phase, s.queued from session s
                where s.account_id = $1 and s.kind = 'replay' and s.origin_id is not null and s.closed_at is null
                order by s.account_id, s.kind, s.origin_id offset 0) s
            where s.phase <> 'idle' or s.queued > 0) as in_flight,
           (select count(*) from (
               select from replay r where r.account_id = $1 and r.source_turn_id = $2 order by r.created_at, r.id offset 0) as of_it) as of_turn";

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromQueryResult)]
pub struct ReplayCount {
    pub in_flight: i64,
    pub of_turn: i64,
}

/// Counts replays. The account's next replay waits for the end of this transaction, so that the count is exact.
pub async fn replays_count(tx: &Tx, account: &AccountId, source: TurnId) -> Result<ReplayCount, StorageError> {
    const ATTEMPT: &str = "count replays";
    tx.execute(ATTEMPT, REPLAYS_LOCK, [account.into()]).await?;
    let count = tx.one(ATTEMPT, REPLAYS_COUNT, [account.into(), source.into()]).await?;
    count.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}

const REPLAY_INSERT: &str = "
    insert into replay (account_id, id, source_turn_id, session_id, spec, created_by_kind, created_by_id, created_by_name, created_by_via,
                        created_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// It has the persona of the source turn.
const SESSION_REPLAY: &str = "
    insert into session (account_id, id, kind, task_id, agent_id, generation, key, opened_at, origin_id, persona_version_id, persona_why, user_id)
    select $1, $2, 'replay', $3, $4, 1, $5, $6, $7, s.persona_version_id, s.persona_why, s.user_id
    from (select) one
    left join turn t on t.account_id = $1 and t.id = $8
    left join session s on s.account_id = t.account_id and s.id = t.session_id";

/// Gives the replay's id, that of its session, and the messages for the outbox.
pub async fn replay_begin(
    tx: &Tx,
    new: &NewReplay<'_>,
    setting: &Setting<'_>,
) -> Result<(ReplayId, SessionId, Vec<Owned>), StorageError> {
    const ATTEMPT: &str = "begin a replay";
    let (account, replay, session) = (new.account, ReplayId(fresh_id()), SessionId(fresh_id()));
    let key = SessionKey {
        of: SessionOf::Replay(replay),
        account: account.clone(),
        generation: Generation::FIRST,
    }
    .to_string();
    let values: [Value; 10] = [
        account.into(),
        replay.into(),
        new.source.into(),
        session.into(),
        serde_json::to_value(new.spec).expect("texts serialise").into(),
        new.by.kind.into(),
        new.by.id.as_str().into(),
        new.by.name.as_str().into(),
        new.by.via.clone().into(),
        setting.now.into(),
    ];
    tx.execute(ATTEMPT, REPLAY_INSERT, values).await?;
    let values: [Value; 8] = [
        account.into(),
        session.into(),
        new.task.map(TaskId::key).into(),
        new.agent.into(),
        key.as_str().into(),
        setting.now.into(),
        replay.into(),
        new.source.into(),
    ];
    tx.execute("open the session of a replay", SESSION_REPLAY, values)
        .await?;

    let id = replay_item(replay);
    // Only its agent is read.
    let conversation = Conversation::of(account, SessionScope::Agent, None, new.agent);
    let entry = NewEntry {
        id: &id,
        task: new.task,
        message: NotificationMessage::new(REPLAY, new.by.clone(), "A replay".to_owned(), "A replay.".to_owned()),
    };
    let content = parsed(&conversation, &entry).1;
    let content = content.map_err(|refusal: Refusal| StorageError::unreadable(ATTEMPT, refusal))?;
    let origin = &setting.origin;
    let lineage = (origin.cause.as_deref(), origin.hops, &origin.trace);
    let item = NewItem {
        task: new.task,
        agent: Some(new.agent),
        queued: Some((session, 1)),
        ..NewItem::of(
            account,
            &id,
            Some(&content),
            ContentHash::of(new.task, &content),
            lineage,
        )
    };
    if items_append(tx, &[item]).await? != 1 {
        return Err(StorageError::unreadable(ATTEMPT, "an id of ours is used"));
    }

    let opened = SessionOpened {
        session_id: session,
        session_key: key.clone(),
        kind: SessionKind::Replay,
        generation: Generation::FIRST,
        agent_id: Some(new.agent),
    };
    let wake = SessionResolved {
        account: account.clone(),
        task: new.task.cloned(),
        session_id: session,
        session_key: key,
        generation: Generation::FIRST,
        agent_id: Some(new.agent),
        position: 1,
    };
    let messages = vec![
        setting.event(account, new.task, &session.to_string(), Event::SessionOpened(opened)),
        setting.message(&wake.message_id(), &wake),
    ];
    Ok((replay, session, messages))
}

/// Why an item of a replay was cancelled.
const REPLAY_ENDED: &str = "replay ended";

/// Closes sessions of replays whose turn has ended, or cannot begin: what waits in one is its own item, of which nobody is told. The
/// caller holds the sessions.
pub async fn replays_end(
    tx: &Tx,
    account: &AccountId,
    sessions: Vec<SessionId>,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    const ATTEMPT: &str = "close the sessions of replays";
    let rows: Vec<SessionRow> = tx
        .rows(ATTEMPT, LOCK, [account.into(), sessions.clone().into()])
        .await?;
    let values: [Value; 5] = [
        account.into(),
        sessions.clone().into(),
        setting.now.into(),
        CloseReason::Replayed.into(),
        None::<String>.into(),
    ];
    tx.execute(ATTEMPT, CLOSE, values).await?;
    let no_others: Vec<SessionId> = Vec::new();
    let values: [Value; 4] = [account.into(), sessions.into(), None::<String>.into(), no_others.into()];
    let items: Vec<ItemRow> = tx.rows(ATTEMPT, LOCK_ITEMS, values).await?;
    items_uncount(tx, account, items.iter().map(|item| item.session_id)).await?;
    items_cancel(tx, account, (&items, REPLAY_ENDED), |_| None, setting).await?;
    let ended = |row| ended_messages(account, row, (CloseReason::Replayed, None), setting);
    Ok(rows.iter().flat_map(ended).collect())
}
