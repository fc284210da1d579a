//! Queries across accounts: ids, names and times only, through functions that the sweeper role owns. No other query may
//! read across accounts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use domain::{AccountId, Gate, HoldId, SessionId};
use sea_orm::FromQueryResult;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Database, StorageError};

/// Accounts in the order of their ids, after `after`: `id`, `name`, `created_at`.
pub async fn account_directory<T: FromQueryResult + Send + Sync>(
    database: &Database,
    after: Option<&str>,
    limit: i32,
) -> Result<Vec<T>, StorageError> {
    let values = [after.map(str::to_owned).into(), limit.into()];
    let sql = "select * from account_directory($1, $2)";
    database.query_alone("list accounts", sql, values).await
}

#[derive(FromQueryResult)]
struct Looked {
    account_id: AccountId,
    session_id: Option<SessionId>,
    /// 0: the session is where the next search of the account continues.
    page: i32,
}

/// The search for neglected sessions: those with pending work and no live holder. It goes round, a page a call. A call
/// reads a bounded number of each account's sessions, those of dead holders first, and returns some of every account
/// that has any. A session that stays neglected for a while (its account is at its limit, say) hides no other.
#[derive(Debug, Default)]
pub struct NeglectedRound {
    /// The account where the last call ended, if more accounts may follow.
    after: Option<AccountId>,
    /// Where the last call ended within accounts that had more sessions than their share of the page, and the number of
    /// that round.
    passed: BTreeMap<AccountId, (SessionId, u64)>,
    number: u64,
}

impl NeglectedRound {
    /// About `limit` sessions, at least one of each account that is read.
    pub async fn look(&mut self, database: &Database, limit: i32) -> Result<Vec<(AccountId, SessionId)>, StorageError> {
        let after = self.after.as_ref().map_or("", AccountId::as_str);
        let accounts: Vec<AccountId> = self.passed.keys().cloned().collect();
        let sessions: Vec<SessionId> = self.passed.values().map(|(session, _)| *session).collect();
        let values = [after.into(), accounts.into(), sessions.into(), limit.into()];
        let rows: Vec<Looked> = database
            .query_alone("find neglected sessions", SESSION_NEGLECTED, values)
            .await?;
        let mut found = Vec::with_capacity(rows.len());
        let (mut accounts, mut last) = (0, None);
        for row in rows {
            let account = row.account_id;
            if last.as_ref() != Some(&account) {
                accounts += 1;
                self.passed.remove(&account);
                last = Some(account.clone());
            }
            let Some(session) = row.session_id else {
                continue;
            };
            if row.page == 0 {
                self.passed.insert(account, (session, self.number));
            } else {
                found.push((account, session));
            }
        }
        self.after = last.filter(|_| accounts >= limit);
        if self.after.is_none() {
            // An account that was not reached in this round has no neglected sessions any more.
            self.passed.retain(|_, (_, round)| *round == self.number);
            self.number += 1;
        }
        Ok(found)
    }
}

#[derive(FromQueryResult)]
struct Found {
    account_id: AccountId,
    session_id: SessionId,
}

/// Sessions under a replica's leases whose turns are to end.
pub async fn session_stopping(
    database: &Database,
    replica: Uuid,
    limit: i32,
) -> Result<Vec<(AccountId, SessionId)>, StorageError> {
    let sql = "select * from session_stopping($1, $2)";
    let rows: Vec<Found> = database
        .query_alone("find stop requests", sql, [replica.into(), limit.into()])
        .await?;
    Ok(rows.into_iter().map(|row| (row.account_id, row.session_id)).collect())
}

/// Sessions of all accounts that something without an account keeps.
pub async fn session_parked(
    database: &Database,
    gate_ref: Uuid,
    limit: i32,
) -> Result<Vec<(AccountId, SessionId)>, StorageError> {
    let sql = "select * from session_parked($1, $2)";
    let rows: Vec<Found> = database
        .query_alone("find parked sessions", sql, [gate_ref.into(), limit.into()])
        .await?;
    Ok(rows.into_iter().map(|row| (row.account_id, row.session_id)).collect())
}

/// Accounts of a page of [`session_parked_shares`].
pub const PARKED_ACCOUNTS_MAX: usize = 50;

/// Some of those sessions: of so many accounts after one, which take turns. In the order of accounts.
pub async fn session_parked_shares(
    database: &Database,
    gate_ref: Uuid,
    after: Option<&AccountId>,
    limit: i32,
) -> Result<Vec<(AccountId, SessionId)>, StorageError> {
    let sql = "select * from session_parked_shares($1, $2, $3)";
    let after = after.map_or("", AccountId::as_str);
    let rows: Vec<Found> = database
        .query_alone(
            "find shares of parked sessions",
            sql,
            [gate_ref.into(), after.into(), limit.into()],
        )
        .await?;
    Ok(rows.into_iter().map(|row| (row.account_id, row.session_id)).collect())
}

/// Open questions of all accounts.
#[derive(Clone, Copy, Debug, FromQueryResult)]
pub struct OpenQuestions {
    /// At most as many as were counted.
    pub questions: i64,
    /// Since when the oldest is open.
    pub oldest: Option<OffsetDateTime>,
}

/// How many questions are open, at most `limit`, and since when the oldest.
pub async fn question_waiting(database: &Database, limit: i32) -> Result<OpenQuestions, StorageError> {
    const ATTEMPT: &str = "count open questions";
    let sql = "select * from question_waiting($1)";
    let rows: Vec<OpenQuestions> = database.query_alone(ATTEMPT, sql, [limit.into()]).await?;
    let row = rows.into_iter().next();
    row.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}

#[derive(FromQueryResult)]
struct First {
    due_at: OffsetDateTime,
}

/// When the timer was, or is, due that is due first.
pub async fn timer_first(database: &Database) -> Result<Option<OffsetDateTime>, StorageError> {
    let sql = "select * from timer_first()";
    let rows: Vec<First> = database.query_alone("find first timer", sql, []).await?;
    Ok(rows.into_iter().next().map(|row| row.due_at))
}

/// When the delivery was, or is, due that is due first.
pub async fn outbound_first(database: &Database) -> Result<Option<OffsetDateTime>, StorageError> {
    let sql = "select * from outbound_first()";
    let rows: Vec<First> = database.query_alone("find first delivery", sql, []).await?;
    Ok(rows.into_iter().next().map(|row| row.due_at))
}

/// A hold that a sweep has something to do for.
#[derive(Debug, FromQueryResult)]
pub struct HoldDue {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    #[sea_orm(from_alias = "hold_id")]
    pub hold: HoldId,
    /// Its time is over, and it is not marked.
    pub is_over: bool,
}

/// A page of the unsettled holds after a hold; with the first page those whose time is over, at the end.
pub async fn hold_due(database: &Database, after: Option<&HoldDue>, limit: i32) -> Result<Vec<HoldDue>, StorageError> {
    let (account, hold) = after.map_or(("", Uuid::nil()), |after| (after.account.as_str(), after.hold.uuid()));
    let values = [account.into(), hold.into(), limit.into()];
    let sql = "select * from hold_due($1, $2, $3)";
    database.query_alone("find unsettled holds", sql, values).await
}

#[derive(FromQueryResult)]
struct Share {
    account_id: AccountId,
    place: String,
    is_last: bool,
    /// None: nothing is to be done at this place.
    found: Option<String>,
}

/// A search that goes round over the accounts, with a share of every account in a round, so that an account with very many rows
/// delays no other.
#[derive(Debug)]
pub struct ShareRound {
    sql: &'static str,
    /// Where the last round ended in accounts that had more than their share.
    begun: BTreeMap<AccountId, String>,
    /// Where this one has.
    passed: BTreeMap<AccountId, String>,
}

impl ShareRound {
    /// Tasks without work that an agent may have to move on.
    pub fn of_tasks() -> ShareRound {
        ShareRound::of("select * from task_neglected($1, $2, $3, $4, $5)")
    }

    /// Recoveries that are not closed.
    pub fn of_recoveries() -> ShareRound {
        ShareRound::of("select * from recovery_unclosed($1, $2, $3, $4, $5)")
    }

    /// Reviews that wait for a verdict.
    pub fn of_reviews() -> ShareRound {
        ShareRound::of("select * from review_open($1, $2, $3, $4, $5)")
    }

    /// Mail to sessions that is not settled.
    pub fn of_mail() -> ShareRound {
        ShareRound::of("select * from mail_unsettled($1, $2, $3, $4, $5)")
    }

    fn of(sql: &'static str) -> ShareRound {
        ShareRound {
            sql,
            begun: BTreeMap::new(),
            passed: BTreeMap::new(),
        }
    }

    /// The ids of the next accounts' share, by account; none at the end of a round. `after`: none begins a round.
    pub async fn look(
        &mut self,
        database: &Database,
        after: Option<&AccountId>,
        (accounts_max, share): (i32, i32),
    ) -> Result<BTreeMap<AccountId, Vec<String>>, StorageError> {
        if after.is_none() {
            self.begun = std::mem::take(&mut self.passed);
        }
        let accounts: Vec<AccountId> = self.begun.keys().cloned().collect();
        let places: Vec<String> = self.begun.values().cloned().collect();
        let values = [
            after.map_or("", AccountId::as_str).into(),
            accounts.into(),
            places.into(),
            accounts_max.into(),
            share.into(),
        ];
        let rows: Vec<Share> = database
            .query_alone("read a share of every account", self.sql, values)
            .await?;
        let mut found: BTreeMap<AccountId, Vec<String>> = BTreeMap::new();
        for row in rows {
            let ids = found.entry(row.account_id.clone()).or_default();
            ids.extend(row.found);
            if row.is_last {
                self.passed.insert(row.account_id, row.place);
            }
        }
        Ok(found)
    }
}

#[derive(FromQueryResult)]
struct Due {
    account_id: AccountId,
    is_due: Option<bool>,
    is_walked: bool,
}

/// The search for accounts with due timers. Usually few timers are due, and one query finds their accounts. If as many are due
/// as are read, they may be of one account: then each look also goes on through the accounts that have timers.
#[derive(Debug, Default)]
pub struct TimerRound {
    after: Option<AccountId>,
}

impl TimerRound {
    /// Accounts with due timers, each once.
    pub async fn look(&mut self, database: &Database, limit: i32) -> Result<Vec<AccountId>, StorageError> {
        let after = self.after.take();
        let values = [after.as_ref().map_or("", AccountId::as_str).into(), limit.into()];
        let sql = "select * from timer_due($1, $2)";
        let rows: Vec<Due> = database.query_alone("find due timers", sql, values).await?;
        let walked = rows.iter().filter(|row| row.is_walked).count();
        let is_full = i32::try_from(walked).is_ok_and(|walked| walked >= limit);
        self.after = rows.last().filter(|_| is_full).map(|row| row.account_id.clone());
        let due = rows.into_iter().filter(|row| row.is_due == Some(true));
        let due: BTreeSet<AccountId> = due.map(|row| row.account_id).collect();
        Ok(due.into_iter().collect())
    }
}

#[derive(FromQueryResult)]
struct DueOwner {
    account_id: String,
    is_due: Option<bool>,
    is_walked: bool,
}

/// The search for accounts with due deliveries, as that for timers: also through all that have some, if very many are due.
#[derive(Debug, Default)]
pub struct OutboundRound {
    after: Option<String>,
}

impl OutboundRound {
    /// Accounts with due deliveries, each once, and [`crate::accounts::OPERATOR`] if there are sign-in links.
    pub async fn look(&mut self, database: &Database, limit: i32) -> Result<BTreeSet<String>, StorageError> {
        let values = [self.after.take().unwrap_or_default().into(), limit.into()];
        let sql = "select * from outbound_due($1, $2)";
        let rows: Vec<DueOwner> = database.query_alone("find due deliveries", sql, values).await?;
        let walked = rows.iter().filter(|row| row.is_walked).count();
        let is_full = i32::try_from(walked).is_ok_and(|walked| walked >= limit);
        self.after = rows.last().filter(|_| is_full).map(|row| row.account_id.clone());
        let due = rows.into_iter().filter(|row| row.is_due == Some(true));
        Ok(due.map(|row| row.account_id).collect())
    }
}

const SESSION_NEGLECTED: &str = "select * from session_neglected($1, $2, $3, $4)";

#[derive(FromQueryResult)]
struct Head {
    account_id: String,
    session_id: Uuid,
    /// Now, if a person has stopped the queue.
    created_at: OffsetDateTime,
    gate: Option<Gate>,
}

/// The backlog of the queues.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Sessions with a non-empty queue.
    pub sessions: usize,
    /// Those of them that a gate keeps.
    pub parked: BTreeMap<Gate, usize>,
    /// The acceptance time of the oldest notification in a queue that may go on.
    pub oldest: Option<OffsetDateTime>,
}

impl Waiting {
    fn add(&mut self, head: &Head) {
        self.sessions += 1;
        if let Some(gate) = head.gate {
            *self.parked.entry(gate).or_default() += 1;
        }
        self.oldest = Some(
            self.oldest
                .map_or(head.created_at, |oldest| oldest.min(head.created_at)),
        );
    }
}

/// The search for the oldest queued notification. It goes round over the sessions with a queue, a page a call, so that
/// a call's cost does not grow with the backlog. Its result is that of the last whole round, or of the current one if
/// that has found an older notification.
#[derive(Debug, Default)]
pub struct WaitingRound {
    after: Option<(String, Uuid)>,
    so_far: Waiting,
    last: Waiting,
}

impl WaitingRound {
    pub async fn look(&mut self, database: &Database, sessions_max: i32) -> Result<Waiting, StorageError> {
        let (account, session) = self.after.clone().unwrap_or_default();
        let values = [account.into(), session.into(), sessions_max.into()];
        let heads: Vec<Head> = database
            .query_alone("read queue age", NOTIFICATION_WAITING, values)
            .await?;
        heads.iter().for_each(|head| self.so_far.add(head));
        let full = i32::try_from(heads.len()).is_ok_and(|found| found >= sessions_max);
        self.after = heads
            .into_iter()
            .last()
            .filter(|_| full)
            .map(|head| (head.account_id, head.session_id));
        if self.after.is_none() {
            self.last = std::mem::take(&mut self.so_far);
        }
        let mut parked = self.last.parked.clone();
        for (gate, sessions) in &self.so_far.parked {
            let known = parked.entry(*gate).or_default();
            *known = (*known).max(*sessions);
        }
        Ok(Waiting {
            sessions: self.last.sessions.max(self.so_far.sessions),
            parked,
            oldest: [self.last.oldest, self.so_far.oldest].into_iter().flatten().min(),
        })
    }
}

#[derive(FromQueryResult)]
struct OverdueHead {
    account_id: AccountId,
    session_id: SessionId,
    is_overdue: Option<bool>,
}

/// The search for sessions with items that have waited too long. It goes round over the sessions with a queue, a page a call.
#[derive(Debug, Default)]
pub struct OverdueRound {
    after: Option<(AccountId, SessionId)>,
}

impl OverdueRound {
    /// Of the next so many sessions, those in which one of the first items is older.
    pub async fn look(
        &mut self,
        database: &Database,
        age: Duration,
        sessions_max: i32,
    ) -> Result<Vec<(AccountId, SessionId)>, StorageError> {
        let after = self.after.take();
        let (account, session) = after.as_ref().map_or(("", Uuid::nil()), |(account, session)| {
            (account.as_str(), session.uuid())
        });
        let values = [
            account.into(),
            session.into(),
            i32::try_from(age.as_secs()).unwrap_or(i32::MAX).into(),
            sessions_max.into(),
        ];
        let sql = "select * from item_overdue($1, $2, $3, $4)";
        let rows: Vec<OverdueHead> = database.query_alone("find overdue items", sql, values).await?;
        let is_full = i32::try_from(rows.len()).is_ok_and(|found| found >= sessions_max);
        let last = rows.last().filter(|_| is_full);
        self.after = last.map(|row| (row.account_id.clone(), row.session_id));
        let overdue = rows.into_iter().filter(|row| row.is_overdue == Some(true));
        Ok(overdue.map(|row| (row.account_id, row.session_id)).collect())
    }
}

const NOTIFICATION_WAITING: &str = "select * from notification_waiting($1, $2, $3)";

#[derive(FromQueryResult)]
struct Over<I: sea_orm::TryGetable> {
    account_id: AccountId,
    id: I,
    moment: OffsetDateTime,
}

/// A walk over expired rows, the oldest first, a page at a time. Each page begins after the one before, so that a row
/// that cannot be removed, or that another replica is removing, blocks nothing.
#[derive(Debug)]
pub struct Walk<I> {
    attempt: &'static str,
    sql: &'static str,
    older_than: OffsetDateTime,
    after: (OffsetDateTime, String, I),
    is_over: bool,
}

/// Closed sessions that are not emptied yet.
pub fn session_outlived(older_than: OffsetDateTime) -> Walk<Uuid> {
    const SQL: &str =
        "select account_id, session_id as id, closed_at as moment from session_outlived($1, $2, $3, $4, $5)";
    Walk::new("find expired sessions", SQL, older_than)
}

/// Refused notifications.
pub fn notification_refused(older_than: OffsetDateTime) -> Walk<String> {
    const SQL: &str =
        "select account_id, notification_id as id, created_at as moment from notification_refused($1, $2, $3, $4, $5)";
    Walk::new("find refused notifications", SQL, older_than)
}

impl<I> Walk<I>
where
    I: Clone + Default + Into<sea_orm::Value> + sea_orm::TryGetable + Send,
{
    fn new(attempt: &'static str, sql: &'static str, older_than: OffsetDateTime) -> Walk<I> {
        Walk {
            attempt,
            sql,
            older_than,
            after: (OffsetDateTime::UNIX_EPOCH, String::new(), I::default()),
            is_over: false,
        }
    }

    /// The next page, by account; none at the end.
    pub async fn next(
        &mut self,
        database: &Database,
        limit: u32,
    ) -> Result<Option<BTreeMap<AccountId, Vec<I>>>, StorageError> {
        if self.is_over {
            return Ok(None);
        }
        let (moment, account, id) = self.after.clone();
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let values = [
            self.older_than.into(),
            moment.into(),
            account.into(),
            id.into(),
            limit.into(),
        ];
        let found: Vec<Over<I>> = database.query_alone(self.attempt, self.sql, values).await?;
        self.is_over = i32::try_from(found.len()).is_ok_and(|found| found < limit);
        let mut page: BTreeMap<AccountId, Vec<I>> = BTreeMap::new();
        for Over { account_id, id, moment } in found {
            self.after = (moment, account_id.to_string(), id.clone());
            page.entry(account_id).or_default().push(id);
        }
        Ok(Some(page).filter(|page| !page.is_empty()))
    }
}
