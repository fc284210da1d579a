//! The partitions of the notification stream: owners and offsets.

use sea_orm::{DbErr, FromQueryResult, QueryResult, Value};
use storage::{
    Database, StorageError, Tx,
    session::items_append_known::{Known, items_append_known},
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::intake::routes::Entering;

/// The lease of a partition. A later claim has a higher fence, and every write under this one then fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    pub partition: u16,
    pub owner: Uuid,
    pub fence: i64,
}

/// The offset up to which a partition was read, and its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartitionOffset {
    pub sequence: u64,
    pub published: Option<OffsetDateTime>,
    /// None before the first read.
    pub stream_created: Option<OffsetDateTime>,
}

/// Existing rows are left out: inserting their keys would wait for batches that have moved their offsets.
const PARTITIONS_ENSURE: &str = "
    insert into resolver_partition (partition)
    select n from generate_series(0, $1 - 1) as n
    where not exists (select from resolver_partition p where p.partition = n) on conflict do nothing";

pub async fn partitions_ensure(database: &Database, count: u16) -> Result<(), StorageError> {
    let ensured = database.execute_alone("enter partitions", PARTITIONS_ENSURE, [i32::from(count).into()]);
    ensured.await.map(|_| ())
}

/// The leases of all partitions.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Census {
    /// Live resolvers, the asking one included.
    pub replicas: usize,
    /// Those of the asking resolver.
    pub mine: Vec<Lease>,
    /// Partitions without a live owner.
    pub free: usize,
}

#[derive(FromQueryResult)]
struct CensusRow {
    partition: i32,
    fence: i64,
    is_mine: bool,
    is_free: bool,
    replicas: i64,
}

/// SQL: live resolvers, as the asking one sees them. A reader that was cut off from the database can do no harm: all
/// its writes are transactions under its fence. So its partitions are free as soon as its connection is gone, before
/// its lease expires. The asking resolver counts as alive.
macro_rules! alive {
    () => {
        concat!(
            "alive as materialized (
        select r.id from replica r
        where r.service = 'resolver' and r.lease_until > now() and (r.id = $1 or ",
            storage::replica_present!("r"),
            "))"
        )
    };
}

const CENSUS: &str = concat!(
    "
    with ",
    alive!(),
    "
    select p.partition, p.fence, coalesce(p.owner = $1, false) as is_mine,
           not exists (select from alive a where a.id = p.owner) as is_free,
           (select count(*) from alive) as replicas
    from resolver_partition p order by p.partition"
);

pub async fn partitions_census(database: &Database, replica: Uuid) -> Result<Census, StorageError> {
    let rows: Vec<CensusRow> = database
        .query_alone("read partition leases", CENSUS, [replica.into()])
        .await?;
    Ok(Census {
        replicas: rows
            .first()
            .map_or(0, |row| usize::try_from(row.replicas).expect("a count")),
        mine: rows
            .iter()
            .filter(|row| row.is_mine && !row.is_free)
            .map(|row| lease(replica, row.partition, row.fence))
            .collect(),
        free: rows.iter().filter(|row| row.is_free).count(),
    })
}

#[derive(FromQueryResult)]
struct ClaimedRow {
    partition: i32,
    fence: i64,
}

/// A locked row belongs to a batch that is being written, or to another claim.
const CLAIM: &str = concat!(
    "
    with ",
    alive!(),
    ", free as (
        select p.partition from resolver_partition p
        where not exists (select from alive a where a.id = p.owner)
        order by p.partition limit $2 for update skip locked
    )
    update resolver_partition p set owner = $1, fence = p.fence + 1
    from free where p.partition = free.partition
    returning p.partition, p.fence"
);

/// Claims up to `limit` free partitions.
pub async fn partitions_claim(database: &Database, replica: Uuid, limit: usize) -> Result<Vec<Lease>, StorageError> {
    let limit = i64::try_from(limit).expect("a number of partitions");
    let rows: Vec<ClaimedRow> = database
        .query_alone("claim partitions", CLAIM, [replica.into(), limit.into()])
        .await?;
    let leases = rows.iter().map(|row| lease(replica, row.partition, row.fence));
    Ok(leases.collect())
}

const RELEASE: &str = "update resolver_partition set owner = null where partition = $1 and owner = $2 and fence = $3";

/// Releases a partition; does nothing when another replica holds it.
pub async fn partition_release(database: &Database, lease: &Lease) -> Result<(), StorageError> {
    let released = database.execute_alone("release partition", RELEASE, guard(lease));
    released.await.map(|_| ())
}

impl FromQueryResult for PartitionOffset {
    fn from_query_result(row: &QueryResult, prefix: &str) -> Result<Self, DbErr> {
        Ok(PartitionOffset {
            sequence: row.try_get::<i64>(prefix, "sequence")?.unsigned_abs(),
            published: row.try_get(prefix, "published")?,
            stream_created: row.try_get(prefix, "stream_created")?,
        })
    }
}

const PLACE_FIND: &str = "
    select sequence, published, stream_created from resolver_partition where partition = $1 and owner = $2 and fence = $3";

/// The offset of a lease's partition; none when another replica holds the lease.
pub async fn place_find(database: &Database, lease: &Lease) -> Result<Option<PartitionOffset>, StorageError> {
    let rows = database.query_alone("read a partition offset", PLACE_FIND, guard(lease));
    Ok(rows.await?.into_iter().next())
}

const OFFSETS: &str = "select sequence, published, stream_created from resolver_partition order by partition";

/// The offset of each partition, in order of the partitions.
pub async fn places_find(database: &Database) -> Result<Vec<PartitionOffset>, StorageError> {
    database.query_alone("read partition offsets", OFFSETS, []).await
}

const PLACE_MOVE: &str = "
    update resolver_partition set sequence = $4, published = $5, stream_created = $6
    where partition = $1 and owner = $2 and fence = $3";

/// Moves the offset in the batch's own transaction. `false`: another replica holds the lease, and the batch must be
/// rolled back.
pub async fn place_move(tx: &Tx, lease: &Lease, to: &PartitionOffset) -> Result<bool, StorageError> {
    Ok(tx.execute("move place", PLACE_MOVE, place_values(lease, to)).await? == 1)
}

fn place_values(lease: &Lease, to: &PartitionOffset) -> [Value; 6] {
    let [partition, owner, fence] = guard(lease);
    let sequence = i64::try_from(to.sequence).expect("a stream does not reach 2^63 messages");
    [
        partition,
        owner,
        fence,
        sequence.into(),
        to.published.into(),
        to.stream_created.into(),
    ]
}

/// Moves the offset and enters the batch.
const BATCH_ENTER: &str = concat!(
    "
    with moved as (
        update resolver_partition set sequence = $37, published = $38, stream_created = $39
        where partition = $34 and owner = $35 and fence = $36 returning 1
    ), ",
    storage::items_append_known!()
);

/// Enters a batch by its routes, and moves the offset, in one statement. None: a route does not hold, an id is known, or
/// another replica holds the lease; the transaction must be rolled back.
pub async fn batch_enter(
    tx: &Tx,
    lease: &Lease,
    to: &PartitionOffset,
    entering: &Entering<'_>,
    waiting_max: i64,
) -> Result<Option<Vec<Known>>, StorageError> {
    let Entering {
        items,
        sessions,
        believed,
    } = entering;
    let place = place_values(lease, to);
    items_append_known(tx, BATCH_ENTER, items, sessions, believed, waiting_max, place).await
}

fn guard(lease: &Lease) -> [Value; 3] {
    [
        i32::from(lease.partition).into(),
        lease.owner.into(),
        lease.fence.into(),
    ]
}

fn lease(owner: Uuid, partition: i32, fence: i64) -> Lease {
    Lease {
        partition: u16::try_from(partition).expect("partitions are few"),
        owner,
        fence,
    }
}
