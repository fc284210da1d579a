//! What crosses accounts: ids, names and moments only, through functions that the sweeper role owns. Every function
//! here is one of those; nothing else may look across.

use std::collections::BTreeMap;

use domain::{AccountId, SessionId};
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
    /// 0: the session is where the next look goes on.
    page: i32,
}

/// The search for sessions that something should happen to and nobody is seeing to. It goes round, a page a look, and
/// takes from every account that has any, coming by a bounded number of its sessions; what a dead holder left comes first.
/// Whatever stays neglected for a while (an account at its limit, say) hides nobody behind it.
#[derive(Debug, Default)]
pub struct NeglectedRound {
    /// The account where the last look ended, if there may be more of them.
    after: Option<AccountId>,
    /// Where the last look ended within accounts that had more than their share of it, and in which round that was.
    passed: BTreeMap<AccountId, (SessionId, u64)>,
    number: u64,
}

impl NeglectedRound {
    /// About `limit` of them, at least one of each account that is looked at.
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
            // Whoever was not come by in this round has nothing any more.
            self.passed.retain(|_, (_, round)| *round == self.number);
            self.number += 1;
        }
        Ok(found)
    }
}

const SESSION_NEGLECTED: &str = "select * from session_neglected($1, $2, $3, $4)";

#[derive(FromQueryResult)]
struct Head {
    account_id: String,
    session_id: Uuid,
    created_at: OffsetDateTime,
}

/// What was found waiting for its turn.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Sessions with something in their queue.
    pub sessions: usize,
    /// When the notification was accepted that has waited longest.
    pub oldest: Option<OffsetDateTime>,
}

impl Waiting {
    fn add(&mut self, head: &Head) {
        self.sessions += 1;
        self.oldest = Some(
            self.oldest
                .map_or(head.created_at, |oldest| oldest.min(head.created_at)),
        );
    }
}

/// The search for what has waited longest. It goes round over the sessions with a queue, a page a look, so that no look
/// costs more where more waits; what it says is as of the last whole round, and of the one under way where that has found
/// worse.
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
            .query_alone("look what has waited longest", NOTIFICATION_WAITING, values)
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
        Ok(Waiting {
            sessions: self.last.sessions.max(self.so_far.sessions),
            oldest: [self.last.oldest, self.so_far.oldest].into_iter().flatten().min(),
        })
    }
}

const NOTIFICATION_WAITING: &str = "select * from notification_waiting($1, $2, $3)";

#[derive(FromQueryResult)]
struct Over<I: sea_orm::TryGetable> {
    account_id: AccountId,
    id: I,
    moment: OffsetDateTime,
}

/// A walk through what is over, the oldest first, a page at a time. Each page goes on behind the one before, so that what
/// cannot be removed, or is being removed by another, holds up nothing.
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

    /// The next page, by account; none when there are no more.
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
