//! Lists: limits of items, bytes and scanned rows, and a cursor for the next page.
//!
//! A page ends at its limit of items, or before the item that would make it longer than `list_bytes_max`. It has at least one item,
//! so that a list always advances. A filter scans `scan_rows_max` rows in the list's order. Rows that it leaves out were read all
//! the same, so a page may have few items, or none, and still a cursor. So neither memory nor work of a request grows with the
//! stored data.
//!
//! A cursor holds the position of the last scanned row in the list's order (keyset paging: every page costs the same, and no row is
//! skipped when rows come and go) and a tag over the list: account and filters. A cursor of another list, or a forged one, is
//! refused. The tag is no secret: the query names the account and decides what a cursor may show.
//!
//! A route makes a [`Page`] of its request, the store reads the page by its [`Listing`], and the result is [`Rows`], written as
//! [`Shown`].

use std::{io::Write, marker::PhantomData, num::NonZeroU32};

use api::Items;
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use domain::AccountId;
use runtime::http::{Problem, openapi::Operation};
use schemars::JsonSchema;
use sea_orm::{ConnectionTrait, DbBackend, FromQueryResult, QueryResult, Statement, Value};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use storage::{StorageError, Tx, error::Attempt};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{app::App, error::invalid_field, route::Described, settings::OrchestratorSettings};

const TAG_BYTES: usize = 8;
const CURSOR_BYTES_MAX: usize = 1024;

/// A page as it is sent: written item by item, read as [`Items`].
#[derive(Debug)]
pub struct Shown<T> {
    json: Vec<u8>,
    items: PhantomData<T>,
}

impl<T> IntoResponse for Shown<T> {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, json)], self.json).into_response()
    }
}

impl<T: JsonSchema> Described for Shown<T> {
    fn describe(operation: &mut Operation<'_>) {
        operation.answers::<Items<T>>(StatusCode::OK, "OK");
    }
}

/// Rows of a page, as read from the database.
#[derive(Debug)]
pub struct Rows<R> {
    pub rows: Vec<R>,
    places: Places,
}

/// Positions of a page's rows in their list.
#[derive(Debug)]
pub struct Places {
    /// The cursor after each row.
    behind: Vec<String>,
    /// The cursor after the last scanned row; none at the end of the list.
    next_cursor: Option<String>,
    bytes_max: usize,
}

impl<R> Rows<R> {
    /// For rows that are shown with further data.
    pub fn apart(self) -> (Vec<R>, Places) {
        (self.rows, self.places)
    }

    /// For rows that are shown as they are.
    pub fn show(self) -> Shown<R>
    where
        R: Serialize,
    {
        self.show_as(|row| row)
    }

    pub fn show_as<T: Serialize>(self, show: impl FnMut(R) -> T) -> Shown<T> {
        self.places.show(self.rows.into_iter().map(show))
    }
}

impl Places {
    /// The cursor if all rows are shown.
    pub fn next_cursor(&self) -> Option<&str> {
        self.next_cursor.as_deref()
    }

    /// Writes the page: as many items as fit, in order, at least one. Items are serialized one at a time.
    pub fn show<T: Serialize>(self, items: impl IntoIterator<Item = T>) -> Shown<T> {
        const WRITTEN: &str = "items have string keys, and a write to memory does not fail";
        let mut body = b"{\"items\":[".to_vec();
        let mut shown = 0;
        for item in items {
            let end = body.len();
            if shown > 0 {
                body.push(b',');
            }
            serde_json::to_writer(&mut body, &item).expect(WRITTEN);
            if shown > 0 && body.len() > self.bytes_max {
                body.truncate(end);
                break;
            }
            shown += 1;
        }
        let next_cursor = if shown < self.behind.len() {
            shown.checked_sub(1).map(|last| &self.behind[last])
        } else {
            self.next_cursor.as_ref()
        };
        let next_cursor = serde_json::to_string(&next_cursor).expect(WRITTEN);
        write!(body, "],\"next_cursor\":{next_cursor}}}").expect(WRITTEN);
        Shown {
            json: body,
            items: PhantomData,
        }
    }
}

/// A list's statement, in constant pieces; [`Listing::sql`] joins them.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    /// The whole list without filters: `select … from … where account_id = $1 …`. An index has these rows in the list's order.
    pub rows: &'static str,
    /// The columns of that order.
    pub order: &'static [&'static str],
    pub begins: Order,
    /// The filter: a condition on columns of `rows` that needs no index.
    pub wanted: Option<&'static str>,
    /// The bytes of a `page` row's long columns.
    pub bytes: &'static str,
    /// Further columns with a leading comma, and the joins to `page` that bring them.
    pub names: (&'static str, &'static str),
}

impl Listing {
    /// The statement, for a listing with so many parameters of its own. The further parameters: rows to scan, rows to return, bytes
    /// to return; then the position to continue after.
    pub fn sql(&self, parameters: usize, goes_on: bool) -> String {
        let (way, behind) = match self.begins {
            Order::OldestFirst => ("", ">"),
            Order::NewestFirst => (" desc", "<"),
        };
        let order = |prefix: &str| {
            let columns = self.order.iter().map(|column| format!("{prefix}{column}{way}"));
            columns.collect::<Vec<_>>().join(", ")
        };
        let [looked_at_max, rows_max, bytes_max] = [1, 2, 3].map(|n| format!("${}", parameters + n));
        let place = if goes_on {
            let values = (0..self.order.len()).map(|n| format!("${}", parameters + 4 + n));
            let values = values.collect::<Vec<_>>().join(", ");
            format!(" and ({}) {behind} ({values})", self.order.join(", "))
        } else {
            String::new()
        };
        let Listing { rows, bytes, .. } = self;
        let wanted = self.wanted.unwrap_or("true");
        let (names, joins) = self.names;
        // The last scanned row is returned even if it is filtered out: the next page continues after it.
        format!(
            "select page.*{names} from (
                select page.*, count(*) over () as page_rows,
                    sum(coalesce({bytes}, 0)) over (rows unbounded preceding) - coalesce({bytes}, 0) as bytes_before
                from (
                    select looked_at.*, ({wanted}) is true as is_wanted
                    from (
                        select listed.*, row_number() over (order by {order_listed}) as place
                        from ({rows}{place} order by {order} limit {looked_at_max}) listed
                    ) looked_at
                    where ({wanted}) is true or looked_at.place = {looked_at_max}
                    order by {order} limit {rows_max}
                ) page
            ) page {joins} where page.bytes_before <= {bytes_max} order by {order_page}",
            order = order(""),
            order_listed = order("listed."),
            order_page = order("page."),
        )
    }
}

/// The query of a list without filters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

impl ListQuery {
    pub fn page<'a, P: Position>(&self, app: &App, list: List<'a>) -> Result<Page<'a, P>, Problem> {
        Page::new(list, &app.settings, self.limit, self.cursor.as_ref())
    }
}

/// The requested number of items. A larger number than the list's limit gets the limit and a cursor.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Limit(#[schemars(range(min = 1, max = 4_294_967_295_u32))] pub NonZeroU32);

/// `next_cursor` of the previous page.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Cursor(#[schemars(length(max = 1024), regex(pattern = "^[0-9A-Fa-f]*$"))] pub String);

/// Identifies the list of a cursor. `filters` are all parameters of the request but limit and cursor.
#[derive(Debug)]
pub struct List<'a> {
    pub name: &'static str,
    pub account: &'a str,
    pub filters: String,
}

impl<'a> List<'a> {
    /// All rows of a kind in the account, or under `of`.
    pub fn of(name: &'static str, account: &'a AccountId, of: impl ToString) -> List<'a> {
        List {
            name,
            account: account.as_str(),
            filters: of.to_string(),
        }
    }
}

/// A position in a list's order.
pub trait Position: Sized {
    fn write(&self) -> String;
    fn read(text: &str) -> Option<Self>;
    /// One value for each column of the order.
    fn values(&self) -> Vec<Value>;
}

/// Start and length of a page.
#[derive(Debug)]
pub struct Page<'a, P> {
    list: List<'a>,
    limit: usize,
    bytes_max: usize,
    looked_at_max: usize,
    /// The last item of the previous page.
    pub after: Option<P>,
}

impl<'a, P: Position> Page<'a, P> {
    pub fn new(
        list: List<'a>,
        settings: &OrchestratorSettings,
        limit: Option<Limit>,
        cursor: Option<&Cursor>,
    ) -> Result<Page<'a, P>, Problem> {
        let limit_max = settings.list_items_max.usize();
        let limit = match limit {
            None => settings.list_items_default.usize().min(limit_max),
            Some(Limit(limit)) => limit_max.min(usize::try_from(limit.get()).unwrap_or(limit_max)),
        };
        let after = match cursor {
            None => None,
            Some(Cursor(cursor)) => Some(
                list.read(cursor)
                    .ok_or_else(|| invalid_field("cursor", "not a cursor of this list; start again without one"))?,
            ),
        };
        Ok(Page {
            list,
            limit,
            bytes_max: settings.list_bytes_max.usize(),
            looked_at_max: settings.scan_rows_max.usize(),
            after,
        })
    }

    /// The same with a lower limit of items.
    pub fn at_most(mut self, items_max: usize) -> Page<'a, P> {
        self.limit = self.limit.min(items_max);
        self
    }

    /// Rows to request: one more than the page has, which tells whether a next page exists.
    pub fn rows(&self) -> usize {
        self.limit + 1
    }

    /// Reads the page; `values` are those of the listing's own parameters. In a transaction of
    /// [`storage::Database::begin_list`].
    pub async fn read<R: FromQueryResult>(
        &self,
        tx: &Tx,
        listing: &Listing,
        values: impl IntoIterator<Item = Value>,
        position: impl Fn(&R) -> P,
        attempt: &'static str,
    ) -> Result<Rows<R>, StorageError> {
        let number = |count: usize| Value::from(i64::try_from(count).unwrap_or(i64::MAX));
        let mut values: Vec<Value> = values.into_iter().collect();
        // Made of constants.
        let sql = listing.sql(values.len(), self.after.is_some());
        let looked_at_max = self.looked_at_max.max(self.rows());
        values.extend([number(looked_at_max), number(self.rows()), number(self.bytes_max)]);
        values.extend(self.after.iter().flat_map(Position::values));
        let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
        let found = tx.query_all_raw(statement).await.attempt(attempt)?;
        self.found(&found, number(looked_at_max), position).attempt(attempt)
    }

    /// The page and its cursor, from the statement's rows.
    fn found<R: FromQueryResult>(
        &self,
        found: &[QueryResult],
        looked_at_max: Value,
        position: impl Fn(&R) -> P,
    ) -> Result<Rows<R>, sea_orm::DbErr> {
        let mut rows = Vec::with_capacity(found.len());
        let mut is_last_looked_at = false;
        let mut is_cut = false;
        for row in found {
            let is_wanted: bool = row.try_get("", "is_wanted")?;
            let place: i64 = row.try_get("", "place")?;
            let page_rows: i64 = row.try_get("", "page_rows")?;
            is_last_looked_at = Value::from(place) == looked_at_max;
            is_cut = usize::try_from(page_rows).is_ok_and(|page_rows| page_rows > found.len());
            rows.push((is_wanted, R::from_query_result(row, "")?));
        }
        let is_more = is_cut || is_last_looked_at;
        Ok(self.cut_to(rows, is_more, position))
    }

    /// Cuts the rows to the page, for lists without a filter and with short rows.
    pub fn cut<R>(&self, rows: Vec<R>, position: impl Fn(&R) -> P) -> Rows<R> {
        let rows = rows.into_iter().map(|row| (true, row)).collect();
        self.cut_to(rows, false, position)
    }

    /// `is_more`: the list continues after these rows, whatever their number.
    fn cut_to<R>(&self, mut rows: Vec<(bool, R)>, is_more: bool, position: impl Fn(&R) -> P) -> Rows<R> {
        let is_more = is_more || rows.len() > self.limit;
        rows.truncate(self.limit);
        let behind = |row: &R| self.list.write(&position(row));
        let next_cursor = rows.last().filter(|_| is_more).map(|(_, row)| behind(row));
        let rows: Vec<R> = rows
            .into_iter()
            .filter_map(|(is_wanted, row)| is_wanted.then_some(row))
            .collect();
        let places = Places {
            behind: rows.iter().map(behind).collect(),
            next_cursor,
            bytes_max: self.bytes_max,
        };
        Rows { rows, places }
    }

    /// The limit of the items' bytes, after the first item.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }
}

/// The order of a list in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    OldestFirst,
    NewestFirst,
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
        // Anyone can compute the tag, so a value that Postgres cannot compare is refused.
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
pub struct Keyset<I> {
    pub at: OffsetDateTime,
    pub id: I,
}

/// Ids that are part of a [`Keyset`].
pub trait KeysetId: Sized + Clone + Into<Value> {
    fn write(&self) -> String;
    fn read(text: &str) -> Option<Self>;
}

impl KeysetId for Uuid {
    fn write(&self) -> String {
        self.simple().to_string()
    }
    fn read(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok()
    }
}

impl KeysetId for String {
    fn write(&self) -> String {
        self.clone()
    }
    fn read(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl<I: KeysetId> Position for Keyset<I> {
    fn write(&self) -> String {
        format!("{} {}", self.at.unix_timestamp_nanos() / 1000, self.id.write())
    }
    fn read(text: &str) -> Option<Self> {
        let (micros, id) = text.split_once(' ')?;
        let nanos = micros.parse::<i128>().ok()?.checked_mul(1000)?;
        let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?;
        // Postgres' first timestamp is later than this type's.
        (at.year() >= 1).then_some(Keyset { at, id: I::read(id)? })
    }
    fn values(&self) -> Vec<Value> {
        vec![self.at.into(), self.id.clone().into()]
    }
}

/// Lists in order of a unique number.
impl Position for i64 {
    fn write(&self) -> String {
        self.to_string()
    }
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn values(&self) -> Vec<Value> {
        vec![(*self).into()]
    }
}

/// Lists in order of growing ids.
impl Position for Uuid {
    fn write(&self) -> String {
        self.simple().to_string()
    }
    fn read(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok()
    }
    fn values(&self) -> Vec<Value> {
        vec![(*self).into()]
    }
}

/// Lists in order of a number that several rows may share.
impl Position for (i32, Uuid) {
    fn write(&self) -> String {
        format!("{} {}", self.0, self.1.simple())
    }
    fn read(text: &str) -> Option<Self> {
        let (number, id) = text.split_once(' ')?;
        Some((number.parse().ok()?, Uuid::try_parse(id).ok()?))
    }
    fn values(&self) -> Vec<Value> {
        vec![self.0.into(), self.1.into()]
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
    fn values(&self) -> Vec<Value> {
        vec![self.clone().into()]
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
        let limit = limit.map(|limit| Limit(NonZeroU32::new(limit).unwrap()));
        let cursor = cursor.map(|cursor| Cursor(cursor.to_owned()));
        Page::new(
            list("acme", ""),
            &OrchestratorSettings::default(),
            limit,
            cursor.as_ref(),
        )
    }

    #[test]
    fn a_page_has_a_limit_whatever_is_asked_for() {
        assert_eq!(page(None, None).unwrap().limit, 50);
        assert_eq!(page(Some(7), None).unwrap().limit, 7);
        assert_eq!(page(Some(u32::MAX), None).unwrap().limit, 200);
        assert_eq!(page(Some(90), None).unwrap().at_most(50).limit, 50);
    }

    /// Reads the page; gives its items and the position of its cursor.
    fn shown<T>(page: &Page<'static, i64>, shown: &Shown<T>) -> (Vec<String>, Option<i64>) {
        let body: serde_json::Value = serde_json::from_slice(&shown.json).unwrap();
        let items = body["items"].as_array().unwrap().iter().map(ToString::to_string);
        let cursor = body["next_cursor"]
            .as_str()
            .map(|cursor| page.list.read(cursor).unwrap());
        (items.collect(), cursor)
    }

    #[test]
    fn the_cursor_goes_on_after_the_last_item() {
        let page = page(Some(2), None).unwrap();
        let check = |rows: Vec<i64>, items: &[&str], cursor: Option<i64>| {
            let found = shown(&page, &page.cut(rows, |row| *row).show());
            assert_eq!(found, (items.iter().map(|item| (*item).to_owned()).collect(), cursor));
        };
        check(vec![10, 20, 30], &["10", "20"], Some(20));
        check(vec![10, 20], &["10", "20"], None);
        check(Vec::new(), &[], None);
    }

    #[test]
    fn a_page_without_what_is_wanted_goes_on_behind_what_was_looked_at() {
        let page = page(Some(2), None).unwrap();
        let check = |rows: Vec<(bool, i64)>, is_more, items: &[&str], cursor: Option<i64>| {
            let found = shown(&page, &page.cut_to(rows, is_more, |row| *row).show());
            assert_eq!(found, (items.iter().map(|item| (*item).to_owned()).collect(), cursor));
        };
        check(vec![(false, 30)], true, &[], Some(30));
        check(vec![(true, 10), (false, 30)], true, &["10"], Some(30));
        check(vec![(true, 10), (true, 20), (false, 30)], true, &["10", "20"], Some(20));
        check(vec![(true, 10)], false, &["10"], None);
    }

    #[test]
    fn a_page_ends_where_its_bytes_do_and_has_one_item_at_least() {
        let settings = OrchestratorSettings {
            list_bytes_max: runtime::settings::Bytes::new(100),
            ..OrchestratorSettings::default()
        };
        let page: Page<'_, i64> = Page::new(list("acme", ""), &settings, None, None).unwrap();
        let check = |lengths: &[usize], items: usize, cursor: Option<i64>| {
            let rows = (0..lengths.len()).map(|n| i64::try_from(n).unwrap()).collect();
            let text = |n: i64| "x".repeat(lengths[usize::try_from(n).unwrap()]);
            let (found, place) = shown(&page, &page.cut(rows, |row| *row).show_as(text));
            assert_eq!((found.len(), place), (items, cursor), "{lengths:?}");
        };
        check(&[10, 10, 10], 3, None);
        check(&[40, 30, 30], 2, Some(1));
        check(&[500, 1], 1, Some(0));
        check(&[500], 1, None);
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
        assert!(Keyset::<String>::read("-300000000000000000 a").is_none());
    }

    #[test]
    fn moments_read_back_to_the_microsecond() {
        let at = OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_000).unwrap();
        let moment = Keyset {
            at,
            id: "id with blanks".to_owned(),
        };
        assert_eq!(Keyset::read(&moment.write()), Some(moment));
    }
}
