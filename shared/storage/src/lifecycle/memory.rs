//! What orchestrators remember (O9): people by API and orchestrators by tool write and read the same rows. An owner's memories are few, so
//! each statement reads them all, by their key; what changes them holds the owner's lock, so that their number is exact. How relevant one
//! is, [`domain::decay`] says.

use contracts::event::{Change, Event, MemoryChanged};
use domain::{AccountId, MemoryCategory, MemoryId, Owner, Relevance, SessionId, decay::MEMORIES_MAX};
use sea_orm::FromQueryResult;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::{StorageError, Tx};

/// Whose memories, and of which repository; none: an orchestrator's.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOf<'a> {
    pub account: &'a AccountId,
    pub owner: &'a Owner,
    pub repository: Option<&'a str>,
}

const LOCK: &str = "select pg_advisory_xact_lock(hashtextextended('memory of ' || $1 || ' ' || $2, 0))::text as locked";

async fn lock(tx: &Tx, of: MemoryOf<'_>) -> Result<(), StorageError> {
    let values = [of.account.into(), of.owner.into()];
    tx.execute("lock memories", LOCK, values).await.map(drop)
}

#[derive(Clone, Copy, Debug)]
pub struct NewMemory<'a> {
    /// If no memory has its key.
    pub id: MemoryId,
    pub category: MemoryCategory,
    pub content: &'a str,
    pub key: Option<&'a str>,
    pub session: Option<SessionId>,
    pub now: OffsetDateTime,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrittenMemory {
    pub id: MemoryId,
    /// One that had the key.
    pub replaced: bool,
    /// How many went for it.
    pub pruned: u64,
}

impl WrittenMemory {
    pub fn change(self) -> Change {
        if self.replaced {
            Change::Changed
        } else {
            Change::Created
        }
    }
}

#[derive(FromQueryResult)]
struct WrittenRow {
    id: MemoryId,
}

/// Relies on memory_key.
pub const MEMORY_WRITE: &str = "
    insert into memory (account_id, id, owner, repository, key, category, content, relevance, touched_at, fades_at, session_id, created_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $9)
    on conflict (account_id, owner, repository, key) do update
        set category = excluded.category, content = excluded.content, relevance = excluded.relevance, touched_at = excluded.touched_at,
            fades_at = excluded.fades_at, session_id = excluded.session_id
    returning id";

/// All but the most relevant others; of two of one relevance goes the one that was touched first. Relies on memory_key.
pub const MEMORIES_PRUNE: &str = "
    delete from memory m
    where m.account_id = $1 and m.owner = $2 and m.repository = $3 and m.id = any (array(
        select o.id from memory o where o.account_id = $1 and o.owner = $2 and o.repository = $3 and o.id <> $4
        order by (o.fades_at, o.touched_at, o.id) desc offset $5))";

/// Memories of one owner's sessions, of all repositories together.
const IN_REPOSITORIES_MAX: i64 = 4_000;
/// The same of all repositories together. Relies on memory_key.
pub const MEMORIES_PRUNE_ALL: &str = "
    delete from memory m
    where m.account_id = $1 and m.owner = $2 and m.repository > '' and m.id = any (array(
        select o.id from memory o where o.account_id = $1 and o.owner = $2 and o.repository > '' and o.id <> $3
        order by (o.fades_at, o.touched_at, o.id) desc offset $4))";

/// The same key replaces; without one, the same content.
pub async fn memory_write(tx: &Tx, of: MemoryOf<'_>, new: &NewMemory<'_>) -> Result<WrittenMemory, StorageError> {
    const ATTEMPT: &str = "write memory";
    lock(tx, of).await?;
    let whole = Relevance::whole(new.now);
    let values = [
        of.account.into(),
        new.id.into(),
        of.owner.into(),
        of.repository.unwrap_or_default().into(),
        key_of(new.key, new.content).into(),
        new.category.into(),
        new.content.into(),
        whole.stored.into(),
        whole.touched_at.into(),
        whole.fades_at().into(),
        new.session.into(),
    ];
    let row: Option<WrittenRow> = tx.one(ATTEMPT, MEMORY_WRITE, values).await?;
    let id = row.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))?.id;
    let values = [
        of.account.into(),
        of.owner.into(),
        of.repository.unwrap_or_default().into(),
        id.into(),
        (MEMORIES_MAX - 1).into(),
    ];
    let mut pruned = tx.execute("prune memories", MEMORIES_PRUNE, values).await?;
    if of.repository.is_some() {
        let values = [
            of.account.into(),
            of.owner.into(),
            id.into(),
            (IN_REPOSITORIES_MAX - 1).into(),
        ];
        pruned += tx
            .execute("prune memories of repositories", MEMORIES_PRUNE_ALL, values)
            .await?;
    }
    Ok(WrittenMemory {
        id,
        replaced: id != new.id,
        pruned,
    })
}

/// Begins the key of what was written without one.
const HASHED: &str = "sha256:";

fn key_of(key: Option<&str>, content: &str) -> String {
    let folded = |text: &str| text.trim().to_lowercase();
    let key = key.map(folded).filter(|key| !key.is_empty());
    key.unwrap_or_else(|| format!("{HASHED}{}", hex::encode(Sha256::digest(folded(content)))))
}

/// Which memories are read.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub categories: &'a [MemoryCategory],
    pub query: Option<&'a str>,
    pub memories_max: usize,
    pub bytes_max: usize,
    pub now: OffsetDateTime,
}

#[derive(Clone, Debug, FromQueryResult)]
pub struct MemoryRow {
    pub id: MemoryId,
    pub category: String,
    key: String,
    pub content: String,
    pub access_count: i32,
    pub session_id: Option<SessionId>,
    pub created_at: OffsetDateTime,
    pub touched_at: OffsetDateTime,
    relevance: f64,
    /// None: it does not match.
    rank: Option<f32>,
}

impl MemoryRow {
    fn relevance(&self) -> Relevance {
        Relevance {
            stored: self.relevance,
            touched_at: self.touched_at,
        }
    }

    pub fn relevance_now(&self, now: OffsetDateTime) -> f64 {
        self.relevance().now(now)
    }

    /// As it was given.
    pub fn key(&self) -> Option<&str> {
        Some(&*self.key).filter(|key| !key.starts_with(HASHED))
    }
}

#[derive(Clone, Debug)]
pub struct Memories {
    /// The best first.
    pub rows: Vec<MemoryRow>,
    /// False: nothing matches, and these are the most relevant ones.
    pub matched: bool,
}

/// Relies on memory_key: the moment is no condition of an index, or memory_faded would be read for the whole account. Punctuation parts
/// words, so that a repository is found by its name. An owner's memories are few: no index of words is kept.
pub const MEMORIES_FIND: &str = "
    select m.id, m.category, m.key, m.content, m.access_count, m.session_id, m.created_at, m.touched_at, m.relevance,
           case when w.words @@ $6::text::tsquery then ts_rank(w.words, $6::text::tsquery) end as rank
    from memory m
    cross join lateral (
        select case when $6::text is not null then to_tsvector('simple', translate(m.content, '/.@:-_+#', '        ')) end as words
        offset 0) w
    where m.account_id = $1 and m.owner = $2 and m.repository = $3 and m.category = any ($4) and coalesce(m.fades_at > $5, false)";

/// Those that match any word of the query, by rank and relevance; without any, the most relevant ones. Reading changes nothing.
pub async fn memories_find(tx: &Tx, of: MemoryOf<'_>, wanted: &Wanted<'_>) -> Result<Memories, StorageError> {
    let categories: Vec<String> = wanted.categories.iter().map(ToString::to_string).collect();
    let values = [
        of.account.into(),
        of.owner.into(),
        of.repository.unwrap_or_default().into(),
        categories.into(),
        wanted.now.into(),
        wanted.query.map(any_word).into(),
    ];
    let mut rows: Vec<MemoryRow> = tx.rows("find memories", MEMORIES_FIND, values).await?;
    let matched = rows.iter().any(|row| row.rank.is_some());
    rows.retain(|row| !matched || row.rank.is_some());
    let score = |row: &MemoryRow| f64::from(row.rank.unwrap_or(1.0)) * row.relevance_now(wanted.now);
    rows.sort_by(|one, other| {
        score(other)
            .total_cmp(&score(one))
            .then(other.touched_at.cmp(&one.touched_at))
    });
    rows.truncate(wanted.memories_max);
    let mut bytes = 0;
    rows.retain(|row| {
        bytes += row.content.len();
        bytes <= wanted.bytes_max
    });
    Ok(Memories {
        rows,
        matched: matched || wanted.query.is_none(),
    })
}

/// Letters from which on a word also stands for those that it begins.
const PREFIX_LETTERS: usize = 3;

/// Each word or the beginning of one, as a `tsquery`. Of letters and digits only, which need no quoting.
fn any_word(query: &str) -> String {
    let words = query
        .split(|of: char| !of.is_alphanumeric())
        .filter(|word| !word.is_empty());
    let words = words.map(|word| {
        let begins = if word.chars().count() < PREFIX_LETTERS {
            ""
        } else {
            ":*"
        };
        format!("'{}'{begins}", word.to_lowercase())
    });
    words.collect::<Vec<_>>().join(" | ")
}

/// Relies on memory_key: an owner has few in a repository.
pub const MEMORIES_TOUCH: &str = "
    update memory m set relevance = w.relevance, touched_at = $5, fades_at = w.fades_at, access_count = m.access_count + 1
    from unnest($2::uuid[], $3::double precision[], $4::timestamptz[]) as w (id, relevance, fades_at)
    where m.account_id = any (array[$1]) and m.owner = $6 and m.repository = $7 and m.id = w.id";

/// The same for an agent: what it reads, it remembers better. They are given as they are then.
pub async fn memories_recall(tx: &Tx, of: MemoryOf<'_>, wanted: &Wanted<'_>) -> Result<Memories, StorageError> {
    lock(tx, of).await?;
    let mut found = memories_find(tx, of, wanted).await?;
    for row in &mut found.rows {
        let read = row.relevance().read(wanted.now);
        (row.relevance, row.touched_at) = (read.stored, read.touched_at);
    }
    let values = [
        of.account.into(),
        found.rows.iter().map(|row| row.id).collect::<Vec<_>>().into(),
        found.rows.iter().map(|row| row.relevance).collect::<Vec<_>>().into(),
        found
            .rows
            .iter()
            .map(|row| row.relevance().fades_at())
            .collect::<Vec<_>>()
            .into(),
        wanted.now.into(),
        of.owner.into(),
        of.repository.unwrap_or_default().into(),
    ];
    tx.execute("touch memories", MEMORIES_TOUCH, values).await?;
    Ok(found)
}

/// Relies on the primary key.
const REMOVE: &str = "delete from memory where account_id = $1 and id = $2 and owner = $3";

/// Whether it was there.
pub async fn memory_remove(tx: &Tx, account: &AccountId, owner: &Owner, id: MemoryId) -> Result<bool, StorageError> {
    let values = [account.into(), id.into(), owner.into()];
    Ok(tx.execute("remove memory", REMOVE, values).await? > 0)
}

/// The event of a change, which says nothing of what is remembered.
pub fn changed(owner: &Owner, memory: MemoryId, change: Change) -> Event {
    Event::MemoryChanged(MemoryChanged {
        user_id: owner.user().cloned(),
        memory_id: memory,
        change,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_has_many_spellings() {
        assert_eq!(key_of(Some(" Billing\n"), "a"), "billing");
        assert_eq!(key_of(None, " Use Rust "), key_of(Some(" "), "use rust"));
        assert_ne!(key_of(None, "use rust"), key_of(None, "use go"));
    }

    #[test]
    fn a_query_is_any_of_its_words() {
        for (query, expected) in [
            ("Acme/billing-api", "'acme':* | 'billing':* | 'api':*"),
            ("ci", "'ci'"),
            ("it's | & ! :*", "'it' | 's'"),
            (" ?! ", ""),
            ("Größe", "'größe':*"),
        ] {
            assert_eq!(any_word(query), expected, "{query}");
        }
    }
}
