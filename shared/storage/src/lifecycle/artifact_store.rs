//! Artifacts: a file of a task, its content, and the room that the account has for contents. An account has the same bytes once; an
//! artifact names them, and they go with the last one that does.
//!
//! | crossing | order | so |
//! |---|---|---|
//! | two uploads of the same bytes | the account's lock | the second finds the content, and names it too |
//! | the last artifact is removed, another names the same bytes | the account's lock | the content stays, or is stored again |
//! | uploads into the last room | the account's lock | the sum that each compares is the one that it adds to |
//!
//! The lock is an advisory one, taken before locks of sessions: an upload keeps nobody else of the account waiting, and a session's
//! claim waits for no file. The account's row is written last.

use std::fmt;

use contracts::event::{ArtifactCreated, ArtifactRemoved, Event};
use domain::{AccountId, Actor, ArtifactId, ArtifactSource, MediaType, TaskId};
use sea_orm::FromQueryResult;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::{Setting, StorageError, Tx, outbox::Owned};

/// Contents that a process writes at one time: each is in memory several times over. An account writes one at a time, by its lock,
/// so none keeps the others waiting for long.
static WRITERS: Semaphore = Semaphore::const_new(4);
/// Bytes that are hashed before others get the thread.
const HASHED_BYTES: usize = 1024 * 1024;

/// Content that may be stored: of a known type, and hashed.
#[derive(Clone)]
pub struct File {
    pub media_type: MediaType,
    pub sha256: [u8; 32],
    content: Vec<u8>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.content.len(), self.media_type)
    }
}

impl File {
    /// None: it is of no type that is kept.
    pub async fn of(content: Vec<u8>) -> Option<File> {
        let media_type = MediaType::of(&content)?;
        let mut hash = Sha256::new();
        for piece in content.chunks(HASHED_BYTES) {
            hash.update(piece);
            tokio::task::yield_now().await;
        }
        Some(File {
            media_type,
            sha256: hash.finalize().into(),
            content,
        })
    }

    pub fn content(&self) -> &[u8] {
        &self.content
    }

    pub fn bytes(&self) -> i32 {
        i32::try_from(self.content.len()).expect("a file is at most 15 MB")
    }
}

#[derive(Clone, Debug)]
pub struct NewArtifact<'a> {
    pub account: &'a AccountId,
    pub task: &'a TaskId,
    /// Derived from its cause if the same artifact may be stored twice (a tool call's); else random.
    pub id: ArtifactId,
    pub name: &'a str,
    pub file: &'a File,
    pub source: ArtifactSource,
    /// The address, or the tool call.
    pub source_ref: Option<&'a str>,
    pub by: &'a Actor,
}

/// Why an artifact was not stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotStored {
    /// The account has no such task.
    TaskNotThere,
    /// Another artifact has its id: of other bytes, or of another task or name.
    Another,
    /// The account has no room for it.
    Quota { bytes: i64, bytes_max: u64 },
}

/// What was stored, or was there already.
#[derive(Debug)]
pub struct Stored {
    /// The task as its client spelled it.
    pub task: TaskId,
    /// None if it was there already.
    pub event: Option<Owned>,
}

const ARTIFACTS_LOCK: &str = "select pg_advisory_xact_lock(hashtextextended('artifacts of ' || $1, 0))";

async fn artifacts_lock(tx: &Tx, account: &AccountId) -> Result<(), StorageError> {
    tx.execute("lock artifacts", ARTIFACTS_LOCK, [account.into()])
        .await
        .map(|_| ())
}

/// Relies on the primary keys.
pub const ARTIFACT_ROOM: &str = "
    select a.artifact_bytes, k.display_id as task, c.sha256 is not null as is_known, o.id is not null as is_there,
           coalesce(o.sha256 = $4 and o.task_id = $2 and o.name = $5, false) as is_same
    from account a
    left join lateral (select * from task k where k.account_id = a.id and k.id = $2 offset 0) k on true
    left join lateral (select * from artifact o where o.account_id = a.id and o.id = $3 offset 0) o on true
    left join lateral (select c.sha256 from artifact_content c where c.account_id = a.id and c.sha256 = $4 offset 0) c on true
    where a.id = $1";

#[derive(FromQueryResult)]
struct RoomRow {
    artifact_bytes: i64,
    task: Option<TaskId>,
    is_known: bool,
    is_there: bool,
    is_same: bool,
}

const CONTENT_INSERT: &str = "insert into artifact_content (account_id, sha256, content) values ($1, $2, $3)";

const ARTIFACT_INSERT: &str = "
    insert into artifact (account_id, id, task_id, name, media_type, bytes, sha256, source, source_ref, created_by_kind, created_by_id,
                          created_by_name, created_by_via, created_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";

const ROOM_TAKE: &str = "update account set artifact_bytes = artifact_bytes + $2 where id = $1";

/// Stores an artifact, or finds it. A statement after the lock sees what the lock has waited for.
pub async fn artifact_store(
    tx: &Tx,
    new: &NewArtifact<'_>,
    account_bytes_max: domain::Bytes,
    setting: &Setting<'_>,
) -> Result<Result<Stored, NotStored>, StorageError> {
    const ATTEMPT: &str = "store artifact";
    let (account, file) = (new.account, new.file);
    artifacts_lock(tx, account).await?;
    let sha256 = || file.sha256.to_vec().into();
    let values = [
        account.into(),
        new.task.key().into(),
        new.id.into(),
        sha256(),
        new.name.into(),
    ];
    let room: Option<RoomRow> = tx.one(ATTEMPT, ARTIFACT_ROOM, values).await?;
    let room = room.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no such account"))?;
    let Some(task) = room.task else {
        return Ok(Err(NotStored::TaskNotThere));
    };
    if room.is_there {
        let found = Stored { task, event: None };
        return Ok(if room.is_same {
            Ok(found)
        } else {
            Err(NotStored::Another)
        });
    }
    let bytes = file.bytes();
    if !room.is_known {
        let (bytes, bytes_max) = (room.artifact_bytes + i64::from(bytes), account_bytes_max.get());
        if bytes > account_bytes_max.i64() {
            return Ok(Err(NotStored::Quota { bytes, bytes_max }));
        }
        let _writer = WRITERS.acquire().await.expect("the semaphore is never closed");
        let values = [account.into(), sha256(), file.content.clone().into()];
        tx.execute("store content", CONTENT_INSERT, values).await?;
    }
    let by = new.by;
    let values = [
        account.into(),
        new.id.into(),
        new.task.key().into(),
        new.name.into(),
        file.media_type.into(),
        bytes.into(),
        sha256(),
        new.source.into(),
        new.source_ref.into(),
        by.kind.into(),
        by.id.as_str().into(),
        by.name.as_str().into(),
        by.via.clone().into(),
        setting.now.into(),
    ];
    tx.execute(ATTEMPT, ARTIFACT_INSERT, values).await?;
    if !room.is_known {
        room_take(tx, account, bytes).await?;
    }
    let created = ArtifactCreated {
        artifact_id: new.id,
        name: new.name.to_owned(),
        media_type: file.media_type.to_string(),
        bytes,
        source: new.source,
        by: by.clone(),
    };
    let event = setting.event(
        account,
        Some(&task),
        &new.id.to_string(),
        Event::ArtifactCreated(created),
    );
    let event = Some(event);
    Ok(Ok(Stored { task, event }))
}

async fn room_take(tx: &Tx, account: &AccountId, bytes: i32) -> Result<(), StorageError> {
    let values = [account.into(), i64::from(bytes).into()];
    tx.execute("count artifacts", ROOM_TAKE, values).await.map(|_| ())
}

#[derive(FromQueryResult)]
struct RemovedRow {
    task: TaskId,
    name: String,
    bytes: i32,
    sha256: Vec<u8>,
}

/// Relies on the primary keys.
pub const ARTIFACT_REMOVE: &str = "
    delete from artifact a where a.account_id = $1 and a.id = $2
    returning (select k.display_id from task k where k.account_id = a.account_id and k.id = a.task_id) as task, a.name, a.bytes, a.sha256";

/// Relies on the primary key and artifact_named.
pub const CONTENT_REMOVE: &str = "
    delete from artifact_content c where c.account_id = $1 and c.sha256 = $2
      and not exists (select from artifact a where a.account_id = c.account_id and a.sha256 = c.sha256 order by a.created_at limit 1)";

/// Removes an artifact, and its content with the last one that names it. None: there is no such artifact.
pub async fn artifact_remove(
    tx: &Tx,
    account: &AccountId,
    id: ArtifactId,
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<Option<Owned>, StorageError> {
    artifacts_lock(tx, account).await?;
    let values = [account.into(), id.into()];
    let removed: Option<RemovedRow> = tx.one("remove artifact", ARTIFACT_REMOVE, values).await?;
    let Some(removed) = removed else { return Ok(None) };
    let values = [account.into(), removed.sha256.into()];
    if tx.execute("remove content", CONTENT_REMOVE, values).await? > 0 {
        room_take(tx, account, -removed.bytes).await?;
    }
    let event = Event::ArtifactRemoved(ArtifactRemoved {
        artifact_id: id,
        name: removed.name,
        by: by.clone(),
    });
    Ok(Some(setting.event(
        account,
        Some(&removed.task),
        &id.to_string(),
        event,
    )))
}

/// Relies on the primary keys.
pub const ARTIFACT_CONTENT: &str = "
    select c.content from artifact a
    cross join lateral (
        select c.content from artifact_content c where c.account_id = a.account_id and c.sha256 = a.sha256 offset 0) c
    where a.account_id = $1 and a.id = $2";

#[derive(FromQueryResult)]
struct ContentRow {
    content: Vec<u8>,
}

/// The content of an artifact; none: there is no such artifact. The caller has room for it in memory.
pub async fn artifact_content(tx: &Tx, account: &AccountId, id: ArtifactId) -> Result<Option<Vec<u8>>, StorageError> {
    let row: Option<ContentRow> = tx
        .one("read artifact", ARTIFACT_CONTENT, [account.into(), id.into()])
        .await?;
    Ok(row.map(|row| row.content))
}
