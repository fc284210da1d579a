//! Every query on personas. Removed ones stay in the table, since sessions keep their versions, and are not found here.

use std::collections::HashMap;

use api::personas::{NewPersona, Persona, PersonaChange, PersonaVersion, PersonaVersionName};
use domain::{
    AccountId, AgentId, PersonaFiles, PersonaId, PersonaRef, PersonaSlug, PersonaVersionId, PersonaVisibility, UserId,
};
use sea_orm::{FromQueryResult, Value};
use storage::{StorageError, Tx};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::paging::{Column, Listing, Order};

pub const PERSONAS_MAX: i64 = 500;
/// So that one maker leaves room for the others.
pub const PERSONAS_OF_ONE_MAX: i64 = 100;
/// Older versions are removed with the next one, unless a session has them.
const VERSIONS_KEPT: i32 = 50;

/// Who looks: an admin sees every persona, anybody else what is shared and their own.
#[derive(Clone, Copy, Debug)]
pub struct Viewer<'a> {
    pub id: &'a str,
    pub is_admin: bool,
}

impl Viewer<'_> {
    fn values(self) -> [Value; 2] {
        [self.id.into(), self.is_admin.into()]
    }
}

macro_rules! columns {
    ($files:literal) => {
        concat!(
            "select p.account_id, p.id, p.slug, p.name, p.description, p.icon, p.visibility, p.is_default, p.memory_enabled,
                (select g.slug from agent g where g.account_id = p.account_id and g.id = p.agent_id and coalesce(g.removed_at, 'infinity') = 'infinity') as agent,
                v.version_id, v.number, encode(v.hash, 'hex') as hash, ",
            $files,
            " as files, p.created_by, p.created_at, p.updated_at, p.removed_at
             from persona p
             cross join lateral (
                select v.id as version_id, v.number, v.hash, v.files from persona_version v
                where v.account_id = p.account_id and v.id = p.version_id offset 0) v
             where p.account_id = $1"
        )
    };
}
macro_rules! is_visible {
    ($persona:literal) => {
        concat!(
            $persona,
            "removed_at is null and (",
            $persona,
            "visibility = 'shared' or ",
            $persona,
            "created_by = $2 or $3)"
        )
    };
}

#[derive(FromQueryResult)]
pub struct PersonaRow {
    pub id: PersonaId,
    slug: String,
    name: String,
    description: String,
    icon: Option<String>,
    pub visibility: PersonaVisibility,
    pub is_default: bool,
    memory_enabled: bool,
    pub agent: Option<String>,
    version_id: PersonaVersionId,
    pub number: i32,
    hash: String,
    files: Option<serde_json::Value>,
    pub created_by: String,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

impl PersonaRow {
    pub fn shown(self) -> Persona {
        Persona {
            id: self.id,
            slug: self.slug,
            name: self.name,
            description: self.description,
            icon: self.icon,
            visibility: self.visibility.to_string(),
            is_default: self.is_default,
            memory_enabled: self.memory_enabled,
            agent: self.agent,
            version: PersonaVersionName {
                id: self.version_id,
                number: self.number,
                hash: self.hash,
            },
            files: self.files,
            created_by: self.created_by,
            created_at: self.created_at.into(),
            updated_at: self.updated_at.into(),
        }
    }
}

fn stored(files: &PersonaFiles) -> serde_json::Value {
    serde_json::to_value(files.as_slice()).expect("texts and numbers serialise")
}

/// The removal is compared in a form that no partial index has: the primary key finds the row.
pub const FIND: &str = concat!(
    columns!("v.files"),
    " and p.id = $4 and coalesce(p.removed_at, 'infinity') = 'infinity' and (p.visibility = 'shared' or p.created_by = $2 or $3)"
);
pub const FIND_BY_SLUG: &str = concat!(columns!("v.files"), " and p.slug = $4 and ", is_visible!("p."));

pub async fn persona_find(
    tx: &Tx,
    account: &AccountId,
    viewer: Viewer<'_>,
    persona: &PersonaRef,
) -> Result<Option<PersonaRow>, StorageError> {
    let [id, is_admin] = viewer.values();
    let (sql, named) = match persona {
        PersonaRef::Id(id) => (FIND, id.into()),
        PersonaRef::Slug(slug) => (FIND_BY_SLUG, slug.into()),
    };
    tx.one("find persona", sql, [account.into(), id, is_admin, named]).await
}

/// In the order in which they were made. Relies on the primary keys. Its second and third parameter say who looks.
pub const LIST: Listing = Listing {
    rows: columns!("null::jsonb"),
    order: &[("id", Column::Uuid)],
    begins: Order::OldestFirst,
    wanted: Some(is_visible!("")),
    bytes: "octet_length(name) + octet_length(description)",
    names: ("", ""),
};

#[derive(FromQueryResult)]
struct Slug {
    id: PersonaId,
    maker: String,
    slug: String,
}

/// Relies on the primary key.
pub const SLUGS: &str = "
    select p.id, w.maker, p.slug from unnest($2::uuid[], $3::text[]) as w (id, maker)
    cross join lateral (
        select * from persona p
        where p.account_id = $1 and p.id = w.id and coalesce(p.removed_at, 'infinity') = 'infinity'
          and (p.visibility = 'shared' or p.created_by = w.maker) offset 0) p";

/// The slugs of personas, each with who named it, which new generations still have. For none there is no statement.
pub async fn persona_slugs(
    tx: &Tx,
    account: &AccountId,
    personas: Vec<(Uuid, String)>,
) -> Result<HashMap<(Uuid, String), String>, StorageError> {
    if personas.is_empty() {
        return Ok(HashMap::new());
    }
    let (ids, makers): (Vec<Uuid>, Vec<String>) = personas.into_iter().unzip();
    let values = [account.into(), ids.into(), makers.into()];
    let rows: Vec<Slug> = tx.rows("read slugs of personas", SLUGS, values).await?;
    Ok(rows
        .into_iter()
        .map(|row| ((row.id.uuid(), row.maker), row.slug))
        .collect())
}

const COUNT: &str = "
    select count(*) as of_account, count(*) filter (where created_by = $2) as of_maker
    from persona where account_id = $1 and removed_at is null";

#[derive(FromQueryResult)]
pub struct Counted {
    pub of_account: i64,
    pub of_maker: i64,
}

/// How many there are. The account is locked.
pub async fn personas_count(tx: &Tx, account: &AccountId, maker: &str) -> Result<Counted, StorageError> {
    const ATTEMPT: &str = "count personas";
    let counted = tx.one(ATTEMPT, COUNT, [account.into(), maker.into()]).await?;
    counted.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}

const INSERT: &str = "
    insert into persona (account_id, id, slug, name, description, icon, visibility, is_default, memory_enabled, agent_id, version_id,
                         created_by, created_at, updated_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $13)";

/// Makes a persona with its first version. Fails with a unique violation when another persona has the slug.
pub async fn persona_insert(
    tx: &Tx,
    account: &AccountId,
    new: &NewPersona,
    (agent, by): (Option<AgentId>, &str),
    now: OffsetDateTime,
) -> Result<PersonaId, StorageError> {
    let (persona, version) = (PersonaId(Uuid::now_v7()), PersonaVersionId(Uuid::now_v7()));
    let text = |text: Option<String>| text.unwrap_or_default();
    let values = [
        account.into(),
        persona.into(),
        (&new.slug).into(),
        new.name.to_string().into(),
        text(new.description.clone().map(String::from)).into(),
        new.icon.clone().map(String::from).into(),
        new.visibility.unwrap_or(PersonaVisibility::Private).into(),
        new.is_default.unwrap_or_default().into(),
        new.memory_enabled.unwrap_or_default().into(),
        agent.into(),
        version.into(),
        by.into(),
        now.into(),
    ];
    tx.execute("make persona", INSERT, values).await?;
    version_insert(tx, account, (persona, version, 1), (&new.slug, &new.files, by), now).await?;
    Ok(persona)
}

const VERSION_INSERT: &str = "
    insert into persona_version (account_id, id, persona_id, number, slug, files, hash, created_by, created_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9)";

async fn version_insert(
    tx: &Tx,
    account: &AccountId,
    (persona, version, number): (PersonaId, PersonaVersionId, i32),
    (slug, files, by): (&PersonaSlug, &PersonaFiles, &str),
    now: OffsetDateTime,
) -> Result<(), StorageError> {
    let values = [
        account.into(),
        version.into(),
        persona.into(),
        number.into(),
        slug.into(),
        stored(files).into(),
        files.hash().to_vec().into(),
        by.into(),
        now.into(),
    ];
    tx.execute("write a persona's files", VERSION_INSERT, values)
        .await
        .map(drop)
}

#[derive(FromQueryResult)]
pub struct Locked {
    pub id: PersonaId,
    pub slug: PersonaSlug,
    pub visibility: PersonaVisibility,
    pub is_default: bool,
    pub created_by: String,
    pub version_id: PersonaVersionId,
}

/// Alone: of a row that is locked after another transaction has changed it, a join would find nothing.
macro_rules! locked {
    ($named:literal) => {
        concat!(
            "select id, slug, visibility, is_default, created_by, version_id from persona where account_id = $1 and ",
            $named,
            " and ",
            is_visible!(""),
            " for update"
        )
    };
}
const LOCK: &str = locked!("id = $4");
const LOCK_BY_SLUG: &str = locked!("slug = $4");

/// For whoever changes it: two at one time come one after the other.
pub async fn persona_lock(
    tx: &Tx,
    account: &AccountId,
    viewer: Viewer<'_>,
    persona: &PersonaRef,
) -> Result<Option<Locked>, StorageError> {
    let [id, is_admin] = viewer.values();
    let (sql, named) = match persona {
        PersonaRef::Id(id) => (LOCK, id.into()),
        PersonaRef::Slug(slug) => (LOCK_BY_SLUG, slug.into()),
    };
    tx.one("lock persona", sql, [account.into(), id, is_admin, named]).await
}

#[derive(FromQueryResult)]
pub struct NewestVersion {
    pub number: i32,
    pub hash: Vec<u8>,
}

/// Relies on the primary key.
const VERSION_NEWEST: &str = "select number, hash from persona_version where account_id = $1 and id = $2";

/// The newest version of a locked persona.
pub async fn version_newest(tx: &Tx, account: &AccountId, persona: &Locked) -> Result<NewestVersion, StorageError> {
    const ATTEMPT: &str = "find a persona's newest version";
    let found = tx
        .one(ATTEMPT, VERSION_NEWEST, [account.into(), persona.version_id.into()])
        .await?;
    found.ok_or_else(|| StorageError::unreadable(ATTEMPT, "the persona has no version"))
}

/// Relies on persona_default.
pub const DEFAULT_CLEAR: &str = "
    update persona set is_default = false, updated_at = $3
    where account_id = $1 and is_default and removed_at is null and id is distinct from $2
    returning id";

#[derive(FromQueryResult)]
struct Id {
    id: PersonaId,
}

/// Makes room for another default, perhaps one that is to be made: gives the one that was it. The account is locked.
pub async fn default_clear(
    tx: &Tx,
    account: &AccountId,
    but: Option<PersonaId>,
    now: OffsetDateTime,
) -> Result<Option<PersonaId>, StorageError> {
    let values = [account.into(), but.into(), now.into()];
    let cleared: Option<Id> = tx.one("unset the default persona", DEFAULT_CLEAR, values).await?;
    Ok(cleared.map(|cleared| cleared.id))
}

const CHANGE: &str = "
    update persona set slug = coalesce($3, slug), name = coalesce($4, name), description = coalesce($5, description),
        icon = case when $6 then $7 else icon end, visibility = coalesce($8, visibility), is_default = coalesce($9, is_default),
        memory_enabled = coalesce($10, memory_enabled), agent_id = case when $11 then $12 else agent_id end, updated_at = $13
    where account_id = $1 and id = $2";

/// Fails with a unique violation when another persona has the slug. The persona is locked.
pub async fn persona_change(
    tx: &Tx,
    account: &AccountId,
    persona: PersonaId,
    change: PersonaChange,
    agent: Option<AgentId>,
    now: OffsetDateTime,
) -> Result<(), StorageError> {
    let values = [
        account.into(),
        persona.into(),
        change.slug.into(),
        change.name.map(String::from).into(),
        change.description.map(String::from).into(),
        change.icon.is_some().into(),
        change.icon.flatten().map(String::from).into(),
        change.visibility.into(),
        change.is_default.into(),
        change.memory_enabled.into(),
        change.agent.is_some().into(),
        agent.into(),
        now.into(),
    ];
    tx.execute("change persona", CHANGE, values).await.map(drop)
}

const NEWEST: &str = "update persona set version_id = $3, updated_at = $4 where account_id = $1 and id = $2";
/// Versions that are removed at one time: with each new one, one becomes too old.
const REMOVED_AT_ONCE: i64 = 60;
/// Locked first: a session that opens with one holds it, and the next statement sees the session. Those that sessions have keep no
/// younger one from its turn. Relies on persona_version_number and session_persona.
pub const VERSIONS_LOCK: &str = "
    select v.id from persona_version v where v.account_id = $1 and v.persona_id = $2 and v.number <= $3
      and not exists (
        select from session s where s.account_id = $1 and s.persona_version_id >= v.id and s.persona_version_id <= v.id
        order by s.persona_version_id offset 0)
    order by v.number limit $4 for update of v skip locked";
/// Relies on session_persona and the primary key.
pub const VERSIONS_REMOVE: &str = "
    delete from persona_version v using (select $1 as account_id, o.id from unnest($2::uuid[]) as o (id) offset 0) old
    where v.account_id = any (array[old.account_id]) and v.id = old.id
      and not exists (
        select from session s where s.account_id = $1 and s.persona_version_id >= v.id and s.persona_version_id <= v.id
        order by s.persona_version_id offset 0)";

#[derive(FromQueryResult)]
struct Version {
    id: PersonaVersionId,
}

/// Removes versions up to this number that no session has.
async fn versions_remove(tx: &Tx, account: &AccountId, persona: PersonaId, up_to: i32) -> Result<(), StorageError> {
    let values = [account.into(), persona.into(), up_to.into(), REMOVED_AT_ONCE.into()];
    let old: Vec<Version> = tx.rows("lock old files", VERSIONS_LOCK, values).await?;
    if old.is_empty() {
        return Ok(());
    }
    let old: Vec<PersonaVersionId> = old.into_iter().map(|version| version.id).collect();
    let values = [account.into(), old.into()];
    tx.execute("remove old files", VERSIONS_REMOVE, values).await.map(drop)
}

/// Makes the next version, and removes what is too old and in no session. The persona is locked.
pub async fn files_write(
    tx: &Tx,
    account: &AccountId,
    (persona, before): (&Locked, i32),
    (files, by): (&PersonaFiles, &str),
    now: OffsetDateTime,
) -> Result<(), StorageError> {
    let (version, number) = (PersonaVersionId(Uuid::now_v7()), before + 1);
    version_insert(
        tx,
        account,
        (persona.id, version, number),
        (&persona.slug, files, by),
        now,
    )
    .await?;
    let newest = [account.into(), persona.id.into(), version.into(), now.into()];
    tx.execute("name the newest files", NEWEST, newest).await?;
    versions_remove(tx, account, persona.id, number - VERSIONS_KEPT).await
}

const REMOVE: &str = "update persona set removed_at = $3, is_default = false where account_id = $1 and id = $2";

/// Its slug becomes free. The persona is locked.
pub async fn persona_remove(
    tx: &Tx,
    account: &AccountId,
    persona: PersonaId,
    now: OffsetDateTime,
) -> Result<(), StorageError> {
    let values = [account.into(), persona.into(), now.into()];
    tx.execute("remove persona", REMOVE, values).await.map(drop)
}

/// At most as many as one may make. Relies on persona_private.
pub const PRIVATE_REMOVE: &str = "
    update persona set removed_at = $3
    where account_id = $1 and created_by = $2 and visibility = 'private' and removed_at is null
    returning id";

/// Removes what a member has shared with nobody: no one would see what goes on in the account's prompts. Gives what was removed.
pub async fn private_remove(
    tx: &Tx,
    account: &AccountId,
    maker: &UserId,
    now: OffsetDateTime,
) -> Result<Vec<PersonaId>, StorageError> {
    let values = [account.into(), maker.into(), now.into()];
    let removed: Vec<Id> = tx
        .rows("remove a member's private personas", PRIVATE_REMOVE, values)
        .await?;
    Ok(removed.into_iter().map(|removed| removed.id).collect())
}

/// Removed personas that are looked at when another one is made: more than one, so that their number falls.
const CLEARED_AT_ONCE: i64 = 3;
/// The one that was looked at longest ago. A statement that opens a session may just have chosen a version of one that was removed a
/// moment ago: its row would refer to nothing. Relies on persona_removed, whose order is requested.
pub const REMOVED: &str = "
    select id from persona where account_id = $1 and removed_at < now() - interval '10 minutes' order by removed_at limit $2";
/// One whose versions sessions still have is looked at again after all others.
const REMOVED_LATER: &str = "update persona set removed_at = now() where account_id = $1 and id = any ($2::uuid[])";
/// Relies on persona_version_number.
pub const EMPTY_REMOVE: &str = "
    delete from persona p where p.account_id = $1 and p.id = $2
      and not exists (
        select from persona_version v where v.account_id = p.account_id and v.persona_id = p.id order by v.number offset 0)";

/// Removes what is left of a few removed personas. The account is locked.
pub async fn removed_clear(tx: &Tx, account: &AccountId) -> Result<(), StorageError> {
    let removed: Vec<Id> = tx
        .rows(
            "find removed personas",
            REMOVED,
            [account.into(), CLEARED_AT_ONCE.into()],
        )
        .await?;
    if removed.is_empty() {
        return Ok(());
    }
    for persona in &removed {
        versions_remove(tx, account, persona.id, i32::MAX).await?;
        tx.execute(
            "remove empty persona",
            EMPTY_REMOVE,
            [account.into(), persona.id.into()],
        )
        .await?;
    }
    let ids: Vec<PersonaId> = removed.into_iter().map(|persona| persona.id).collect();
    tx.execute("put removed personas off", REMOVED_LATER, [account.into(), ids.into()])
        .await
        .map(drop)
}

#[derive(FromQueryResult)]
pub struct VersionRow {
    id: PersonaVersionId,
    number: i32,
    hash: String,
    files: Option<serde_json::Value>,
    created_by: String,
    created_at: OffsetDateTime,
}

impl VersionRow {
    pub fn shown(self) -> PersonaVersion {
        PersonaVersion {
            version: PersonaVersionName {
                id: self.id,
                number: self.number,
                hash: self.hash,
            },
            files: self.files,
            created_by: self.created_by,
            created_at: self.created_at.into(),
        }
    }
}

/// Newest first. Relies on persona_version_number.
pub const VERSIONS: Listing = Listing {
    rows: "select account_id, id, number, encode(hash, 'hex') as hash, null::jsonb as files, created_by, created_at
        from persona_version where account_id = $1 and persona_id = $2",
    order: &[("number", Column::Integer)],
    begins: Order::NewestFirst,
    wanted: None,
    bytes: "octet_length(created_by)",
    names: ("", ""),
};

/// Relies on persona_version_number.
pub const VERSION: &str = "
    select id, number, encode(hash, 'hex') as hash, files, created_by, created_at
    from persona_version where account_id = $1 and persona_id = $2 and number >= $3 and number <= $3
    order by account_id, persona_id, number limit 1";

pub async fn version_find(
    tx: &Tx,
    account: &AccountId,
    persona: PersonaId,
    number: i32,
) -> Result<Option<VersionRow>, StorageError> {
    let values = [account.into(), persona.into(), number.into()];
    tx.one("read a persona's version", VERSION, values).await
}
