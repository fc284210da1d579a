//! Lists: a limit, and a cursor that says where the next page begins.
//!
//! A cursor holds the last item's place in the list's order (keyset, so that a page costs the same however far in it
//! is, and nothing is skipped when items come and go) and a tag over the list that it was made for: account, filters
//! and all. A cursor of another list, or one that somebody wrote, is refused. The tag is no secret: what a cursor may
//! show is decided by the query, which names the account.
//!
//! A route makes its [`Page`] of what was asked for, the store reads it ([`Page::read`], or SQL of its own with
//! [`Page::values`] and [`Page::cut`]), and what comes out is [`Rows`], shown as [`Items`].

use domain::AccountId;
use runtime::http::Problem;
use sea_orm::{
    EntityTrait, ModelTrait, QueryFilter, QueryOrder, QuerySelect, Select, Value,
    sea_query::{self, Nullable},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use storage::{StorageError, Tx, error::Attempt};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{app::App, config::OrchestratorSettings, error::invalid_field};

const TAG_BYTES: usize = 8;
const CURSOR_BYTES_MAX: usize = 1024;

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Items<T> {
    pub items: Vec<T>,
    /// Ask again with `cursor` set to this; null when there is no more.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// Rows of a page, as they stand in the database.
#[derive(Debug)]
pub struct Rows<R> {
    pub rows: Vec<R>,
    pub next_cursor: Option<String>,
}

impl<R> Rows<R> {
    pub fn show<T>(self, show: impl FnMut(R) -> T) -> Items<T> {
        Items {
            items: self.rows.into_iter().map(show).collect(),
            next_cursor: self.next_cursor,
        }
    }
}

/// What a list without filters may be asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    limit: Option<u32>,
    cursor: Option<String>,
}

impl ListQuery {
    pub fn page<'a, P: Position>(&self, app: &App, list: List<'a>) -> Result<Page<'a, P>, Problem> {
        Page::new(list, &app.settings, self.limit, self.cursor.as_deref())
    }
}

/// Which list a cursor belongs to. `filters` are all that the request asked for beside limit and cursor.
#[derive(Debug)]
pub struct List<'a> {
    pub name: &'static str,
    pub account: &'a str,
    pub filters: String,
}

impl<'a> List<'a> {
    /// All that the account has of something, or what hangs on `of`.
    pub fn of(name: &'static str, account: &'a AccountId, of: impl ToString) -> List<'a> {
        List {
            name,
            account: account.as_str(),
            filters: of.to_string(),
        }
    }
}

/// An item's place in its list's order.
pub trait Position: Sized {
    fn write(&self) -> String;
    fn read(text: &str) -> Option<Self>;
}

/// Where a page begins and how long it is.
#[derive(Debug)]
pub struct Page<'a, P> {
    list: List<'a>,
    limit: usize,
    /// The last item of the page before.
    pub after: Option<P>,
}

impl<'a, P: Position> Page<'a, P> {
    pub fn new(
        list: List<'a>,
        settings: &OrchestratorSettings,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Page<'a, P>, Problem> {
        let limit_max = settings.list_items_max.usize();
        let limit = match limit {
            None => settings.list_items_default.usize().min(limit_max),
            Some(0) => return Err(invalid_field("limit", format_args!("from 1 to {limit_max}"))),
            Some(limit) => limit_max.min(usize::try_from(limit).unwrap_or(limit_max)),
        };
        let after = match cursor {
            None => None,
            Some(cursor) => Some(list.read(cursor).ok_or_else(|| {
                invalid_field(
                    "cursor",
                    "not one that this list gave out; begin again without a cursor",
                )
            })?),
        };
        Ok(Page { list, limit, after })
    }

    /// The same, with fewer items than the common limit.
    pub fn at_most(mut self, items_max: usize) -> Page<'a, P> {
        self.limit = self.limit.min(items_max);
        self
    }

    /// How many rows to ask for: one more than the page has tells whether there is another.
    pub fn rows(&self) -> u64 {
        u64::try_from(self.limit + 1).expect("a page's limit is far below 2^64")
    }

    /// Cuts what was read to the page, and makes the cursor of the next from its last row.
    pub fn cut<R>(&self, mut rows: Vec<R>, position: impl Fn(&R) -> P) -> Rows<R> {
        let next_cursor = if rows.len() > self.limit {
            rows.truncate(self.limit);
            rows.last().map(|row| self.list.write(&position(row)))
        } else {
            None
        };
        Rows { rows, next_cursor }
    }
}

/// Which end of time a list begins at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    OldestFirst,
    NewestFirst,
}

impl<I: MomentId + sea_query::ValueType + Nullable + Clone + Into<Value>> Page<'_, Moment<I>> {
    /// Reads the page of `query` in order of time; `columns` are those of the moment and of the id. An index on them
    /// makes every page cost the same.
    pub async fn read<E: EntityTrait>(
        &self,
        tx: &Tx,
        query: Select<E>,
        columns: (E::Column, E::Column),
        order: Order,
        attempt: &'static str,
    ) -> Result<Rows<E::Model>, StorageError> {
        let (at, id) = columns;
        let query = match &self.after {
            None => query,
            Some(last) => query.filter(sql::behind(at, id, last, order)),
        };
        let way = match order {
            Order::OldestFirst => sea_query::Order::Asc,
            Order::NewestFirst => sea_query::Order::Desc,
        };
        let rows = query
            .order_by(at, way.clone())
            .order_by(id, way)
            .limit(self.rows())
            .all(&**tx)
            .await
            .attempt(attempt)?;
        const WHAT: &str = "the columns of a list are of its moments' types";
        Ok(self.cut(rows, |row| Moment {
            at: sea_query::ValueType::try_from(row.get(at)).expect(WHAT),
            id: sea_query::ValueType::try_from(row.get(id)).expect(WHAT),
        }))
    }

    /// For a statement that is written out: moment and id of the last item (both null on the first page), and how many
    /// rows to read.
    pub fn values(&self) -> [Value; 3] {
        let after = self.after.as_ref();
        [
            after.map(|after| after.at).into(),
            after.map(|after| after.id.clone()).into(),
            i64::try_from(self.rows()).unwrap_or(i64::MAX).into(),
        ]
    }
}

impl List<'_> {
    fn write<P: Position>(&self, position: &P) -> String {
        let place = position.write();
        let mut bytes = self.tag(&place).to_vec();
        bytes.extend_from_slice(place.as_bytes());
        hex::encode(bytes)
    }

    fn read<P: Position>(&self, cursor: &str) -> Option<P> {
        if cursor.len() > CURSOR_BYTES_MAX {
            return None;
        }
        let bytes = hex::decode(cursor).ok()?;
        let (tag, place) = bytes.split_at_checked(TAG_BYTES)?;
        // Anybody can make the tag: what Postgres could not compare with is no place.
        let place = std::str::from_utf8(place).ok().filter(|place| !place.contains('\0'))?;
        (tag == self.tag(place)).then(|| P::read(place)).flatten()
    }

    fn tag(&self, place: &str) -> [u8; TAG_BYTES] {
        let mut hash = Sha256::new();
        for part in [self.name, self.account, &self.filters, place] {
            hash.update(part.len().to_be_bytes());
            hash.update(part.as_bytes());
        }
        let hash = hash.finalize();
        std::array::from_fn(|i| hash[i])
    }
}

/// Lists in order of time. The database keeps microseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moment<I> {
    pub at: OffsetDateTime,
    pub id: I,
}

/// Ids that stand in a [`Moment`].
pub trait MomentId: Sized {
    fn write(&self) -> String;
    fn read(text: &str) -> Option<Self>;
}

impl MomentId for Uuid {
    fn write(&self) -> String {
        self.simple().to_string()
    }
    fn read(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok()
    }
}

impl MomentId for String {
    fn write(&self) -> String {
        self.clone()
    }
    fn read(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl<I: MomentId> Position for Moment<I> {
    fn write(&self) -> String {
        format!("{} {}", self.at.unix_timestamp_nanos() / 1000, self.id.write())
    }
    fn read(text: &str) -> Option<Self> {
        let (micros, id) = text.split_once(' ')?;
        let nanos = micros.parse::<i128>().ok()?.checked_mul(1000)?;
        let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?;
        // Postgres begins later than this type does.
        (at.year() >= 1).then_some(Moment { at, id: I::read(id)? })
    }
}

/// Lists in order of a number.
impl Position for i64 {
    fn write(&self) -> String {
        self.to_string()
    }
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// Lists in order of a text.
impl Position for String {
    fn write(&self) -> String {
        self.clone()
    }
    fn read(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

/// The page's beginning, as a condition. Compares the columns as a pair, which an index on both can follow.
mod sql {
    use sea_orm::{ColumnTrait, ExprTrait, IntoSimpleExpr, Value, sea_query::Expr};

    use super::{Moment, Order};

    /// What comes after `last` in this order.
    pub(super) fn behind<C: ColumnTrait, I: Clone + Into<Value>>(at: C, id: C, last: &Moment<I>, order: Order) -> Expr {
        let pair = Expr::tuple([at.into_simple_expr(), id.into_simple_expr()]);
        let place = Expr::tuple([Expr::value(last.at), Expr::value(last.id.clone())]);
        match order {
            Order::OldestFirst => pair.gt(place),
            Order::NewestFirst => pair.lt(place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(account: &str, filters: &str) -> List<'static> {
        List {
            name: "tasks",
            account: Box::leak(account.to_owned().into_boxed_str()),
            filters: filters.to_owned(),
        }
    }

    fn page(limit: Option<u32>, cursor: Option<&str>) -> Result<Page<'static, i64>, Problem> {
        Page::new(list("acme", ""), &OrchestratorSettings::default(), limit, cursor)
    }

    #[test]
    fn a_page_has_a_limit_whatever_is_asked_for() {
        assert_eq!(page(None, None).unwrap().limit, 50);
        assert_eq!(page(Some(7), None).unwrap().limit, 7);
        assert_eq!(page(Some(u32::MAX), None).unwrap().limit, 200);
        assert!(page(Some(0), None).is_err());
        assert_eq!(page(Some(90), None).unwrap().at_most(50).limit, 50);
    }

    #[test]
    fn the_cursor_goes_on_after_the_last_item() {
        let first = page(Some(2), None).unwrap();
        let cut = first.cut(vec![10, 20, 30], |row| *row);
        assert_eq!(cut.rows, [10, 20]);
        assert_eq!(page(Some(2), cut.next_cursor.as_deref()).unwrap().after, Some(20));
        let last = first.cut(vec![10, 20], |row| *row);
        assert_eq!((last.rows, last.next_cursor), (vec![10, 20], None));
    }

    #[test]
    fn a_cursor_of_another_list_or_a_changed_one_is_refused() {
        let cursor = list("acme", "").write(&20_i64);
        let mut changed = cursor.clone();
        changed.replace_range(cursor.len() - 1.., "1");
        for bad in [changed.as_str(), "", "00", "not hex", "é", &"00".repeat(600)] {
            assert!(page(None, Some(bad)).is_err(), "{bad}");
        }
        assert!(list("other", "").read::<i64>(&cursor).is_none());
        assert!(list("acme", "status=done").read::<i64>(&cursor).is_none());
    }

    #[test]
    fn a_cursor_that_somebody_made_does_not_reach_the_database() {
        let list = list("acme", "");
        assert!(list.read::<String>(&list.write(&"a".to_owned())).is_some());
        assert!(list.read::<String>(&list.write(&"a\0".to_owned())).is_none());
        assert!(Moment::<String>::read("-300000000000000000 a").is_none());
    }

    #[test]
    fn moments_read_back_to_the_microsecond() {
        let at = OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_000).unwrap();
        let moment = Moment {
            at,
            id: "id with blanks".to_owned(),
        };
        assert_eq!(Moment::read(&moment.write()), Some(moment));
    }
}
