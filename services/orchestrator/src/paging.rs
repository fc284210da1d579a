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

    /// The cursor if only the first of the rows are shown.
    pub fn cursor_after(&self, shown: usize) -> Option<&str> {
        match shown < self.behind.len() {
            true => shown.checked_sub(1).map(|last| self.behind[last].as_str()),
            false => self.next_cursor(),
        }
    }

    /// Writes the page: as many items as fit, in order, at least one. Items are serialized one at a time.
    pub fn show<T: Serialize>(self, items: impl IntoIterator<Item = T>) -> Shown<T> {
        self.show_each(items.into_iter().map(|item| [item]))
    }

    /// The same, for rows that are shown as several items, or none: each row's whole, or not.
    pub fn show_each<T: Serialize, I: IntoIterator<Item = T>>(self, rows: impl IntoIterator<Item = I>) -> Shown<T> {
        const WRITTEN: &str = "items have string keys, and a write to memory does not fail";
        const BEGIN: &[u8] = b"{\"items\":[";
        let mut body = BEGIN.to_vec();
        let mut shown = 0;
        for row in rows {
            let end = body.len();
            for item in row {
                if body.len() > BEGIN.len() {
                    body.push(b',');
                }
                serde_json::to_writer(&mut body, &item).expect(WRITTEN);
            }
            if shown > 0 && body.len() > self.bytes_max {
                body.truncate(end);
                break;
            }
            shown += 1;
        }
        let next_cursor = serde_json::to_string(&self.cursor_after(shown)).expect(WRITTEN);
        write!(body, "],\"next_cursor\":{next_cursor}}}").expect(WRITTEN);
        Shown {
            json: body,
            items: PhantomData,
        }
    }
}

/// The columns of a list's order. Together they are unique. A text may only be the last one: it may hold blanks, which separate
/// the values of a cursor.
pub type Columns = &'static [(&'static str, Column)];

/// The type of such a column.
#[derive(Clone, Copy, Debug)]
pub enum Column {
    Time,
    Uuid,
    Integer,
    BigInt,
    Text,
}

impl Column {
    /// The row's value, as a cursor has it. The database keeps microseconds.
    fn write(self, row: &QueryResult, name: &str) -> Result<String, sea_orm::DbErr> {
        Ok(match self {
            Self::Time => (row.try_get::<OffsetDateTime>("", name)?.unix_timestamp_nanos() / 1000).to_string(),
            Self::Uuid => row.try_get::<Uuid>("", name)?.simple().to_string(),
            Self::Integer => row.try_get::<i32>("", name)?.to_string(),
            Self::BigInt => row.try_get::<i64>("", name)?.to_string(),
            Self::Text => row.try_get("", name)?,
        })
    }

    fn read(self, text: &str) -> Option<Value> {
        Some(match self {
            Self::Time => {
                let nanos = text.parse::<i128>().ok()?.checked_mul(1000)?;
                let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?;
                // Postgres' first timestamp is later than this type's.
                (at.year() >= 1).then_some(at)?.into()
            }
            Self::Uuid => Uuid::try_parse(text).ok()?.into(),
            Self::Integer => text.parse::<i32>().ok()?.into(),
            Self::BigInt => text.parse::<i64>().ok()?.into(),
            Self::Text => text.into(),
        })
    }
}

/// A list's statement, in constant pieces; [`Listing::sql`] joins them.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    /// The whole list without filters: `select … from … where account_id = $1 …`. An index has these rows in the list's order.
    pub rows: &'static str,
    pub order: Columns,
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
            let columns = self.order.iter().map(|(column, _)| format!("{prefix}{column}{way}"));
            columns.collect::<Vec<_>>().join(", ")
        };
        let [looked_at_max, rows_max, bytes_max] = [1, 2, 3].map(|n| format!("${}", parameters + n));
        let place = if goes_on {
            let values = (0..self.order.len()).map(|n| format!("${}", parameters + 4 + n));
            let values = values.collect::<Vec<_>>().join(", ");
            let columns: Vec<&str> = self.order.iter().map(|(column, _)| *column).collect();
            format!(" and ({}) {behind} ({values})", columns.join(", "))
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
    pub fn page<'a>(&self, app: &App, list: List<'a>) -> Result<Page<'a>, Problem> {
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
    pub order: Columns,
}

impl<'a> List<'a> {
    /// All rows of a kind in the account, or under `of`.
    pub fn of(listing: &Listing, name: &'static str, account: &'a AccountId, of: impl ToString) -> List<'a> {
        List {
            name,
            account: account.as_str(),
            filters: of.to_string(),
            order: listing.order,
        }
    }
}

/// Start and length of a page.
#[derive(Debug)]
pub struct Page<'a> {
    list: List<'a>,
    limit: usize,
    bytes_max: usize,
    looked_at_max: usize,
    /// The place of the last item of the previous page.
    pub after: Option<String>,
    /// The same as values of the list's order.
    after_values: Vec<Value>,
}

impl<'a> Page<'a> {
    pub fn new(
        list: List<'a>,
        settings: &OrchestratorSettings,
        limit: Option<Limit>,
        cursor: Option<&Cursor>,
    ) -> Result<Page<'a>, Problem> {
        let limit_max = settings.list_items_max.usize();
        let limit = match limit {
            None => settings.list_items_default.usize().min(limit_max),
            Some(Limit(limit)) => limit_max.min(usize::try_from(limit.get()).unwrap_or(limit_max)),
        };
        let (after, after_values) = match cursor {
            None => (None, Vec::new()),
            Some(Cursor(cursor)) => list
                .read(cursor)
                .map(|(place, values)| (Some(place), values))
                .ok_or_else(|| invalid_field("cursor", "not a cursor of this list; start again without one"))?,
        };
        Ok(Page {
            list,
            limit,
            bytes_max: settings.list_bytes_max.usize(),
            looked_at_max: settings.scan_rows_max.usize(),
            after,
            after_values,
        })
    }

    /// The same with another number of items, for a list whose items are short.
    pub fn of(mut self, items: usize) -> Page<'a> {
        self.limit = items;
        self
    }

    /// The same with a lower limit of items.
    pub fn at_most(mut self, items_max: usize) -> Page<'a> {
        self.limit = self.limit.min(items_max);
        self
    }

    /// Rows to request: one more than the page has, which tells whether a next page exists.
    pub fn rows(&self) -> usize {
        self.limit + 1
    }

    /// Reads the page in a transaction of [`storage::Database::begin_list`]. The listing's first parameter is the account;
    /// `values` are those of its further parameters.
    pub async fn read<R: FromQueryResult>(
        &self,
        tx: &Tx,
        listing: &Listing,
        values: impl IntoIterator<Item = Value>,
        attempt: &'static str,
    ) -> Result<Rows<R>, StorageError> {
        let number = |count: usize| Value::from(i64::try_from(count).unwrap_or(i64::MAX));
        let mut values: Vec<Value> = std::iter::once(self.list.account.into()).chain(values).collect();
        // Made of constants.
        let sql = listing.sql(values.len(), self.after.is_some());
        let looked_at_max = self.looked_at_max.max(self.rows());
        values.extend([number(looked_at_max), number(self.rows()), number(self.bytes_max)]);
        values.extend_from_slice(&self.after_values);
        let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
        let found = tx.query_all_raw(statement).await.attempt(attempt)?;
        self.found(&found, number(looked_at_max)).attempt(attempt)
    }

    /// The page and its cursor, from the statement's rows.
    fn found<R: FromQueryResult>(
        &self,
        found: &[QueryResult],
        looked_at_max: Value,
    ) -> Result<Rows<R>, sea_orm::DbErr> {
        let mut rows = Vec::with_capacity(found.len());
        let mut is_last_looked_at = false;
        let mut is_cut = false;
        for row in found {
            let is_wanted: bool = row.try_get("", "is_wanted")?;
            let number: i64 = row.try_get("", "place")?;
            let page_rows: i64 = row.try_get("", "page_rows")?;
            is_last_looked_at = Value::from(number) == looked_at_max;
            is_cut = usize::try_from(page_rows).is_ok_and(|page_rows| page_rows > found.len());
            rows.push((is_wanted, self.list.place(row)?, R::from_query_result(row, "")?));
        }
        let is_more = is_cut || is_last_looked_at;
        Ok(self.cut_to(rows, is_more))
    }

    /// Cuts the rows to the page, for lists without a filter and with short rows.
    pub fn cut<R>(&self, rows: Vec<R>, place: impl Fn(&R) -> String) -> Rows<R> {
        let rows = rows.into_iter().map(|row| (true, place(&row), row)).collect();
        self.cut_to(rows, false)
    }

    /// Rows with whether they are wanted, and with their places. `is_more`: the list continues after these rows, whatever
    /// their number.
    pub fn cut_to<R>(&self, mut rows: Vec<(bool, String, R)>, is_more: bool) -> Rows<R> {
        let is_more = is_more || rows.len() > self.limit;
        rows.truncate(self.limit);
        let next_cursor = rows.last().filter(|_| is_more);
        let next_cursor = next_cursor.map(|(_, place, _)| self.list.write(place));
        let (behind, rows) = rows
            .into_iter()
            .filter_map(|(is_wanted, place, row)| is_wanted.then(|| (self.list.write(&place), row)))
            .unzip();
        let places = Places {
            behind,
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
    /// The place of a row: its values of the list's order.
    fn place(&self, row: &QueryResult) -> Result<String, sea_orm::DbErr> {
        let values = self.order.iter().map(|(name, column)| column.write(row, name));
        Ok(values.collect::<Result<Vec<String>, _>>()?.join(" "))
    }

    fn write(&self, place: &str) -> String {
        let mut bytes = self.tag(place).to_vec();
        bytes.extend_from_slice(place.as_bytes());
        hex::encode(bytes)
    }

    /// The place of a cursor, and its values.
    fn read(&self, cursor: &str) -> Option<(String, Vec<Value>)> {
        if cursor.len() > CURSOR_BYTES_MAX {
            return None;
        }
        let bytes = hex::decode(cursor).ok()?;
        let (tag, place) = bytes.split_at_checked(TAG_BYTES)?;
        // Anyone can compute the tag, so a value that Postgres cannot compare is refused.
        let place = std::str::from_utf8(place).ok().filter(|place| !place.contains('\0'))?;
        let values: Vec<&str> = place.splitn(self.order.len(), ' ').collect();
        if tag != self.tag(place) || values.len() != self.order.len() {
            return None;
        }
        let values = self
            .order
            .iter()
            .zip(values)
            .map(|((_, column), text)| column.read(text));
        Some((place.to_owned(), values.collect::<Option<_>>()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn list(account: &str, filters: &str) -> List<'static> {
        List {
            name: "tasks",
            account: Box::leak(account.to_owned().into_boxed_str()),
            filters: filters.to_owned(),
            order: &[("number", Column::BigInt)],
        }
    }

    fn page(limit: Option<u32>, cursor: Option<&str>) -> Result<Page<'static>, Problem> {
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
    fn shown<T>(page: &Page<'static>, shown: &Shown<T>) -> (Vec<String>, Option<i64>) {
        let body: serde_json::Value = serde_json::from_slice(&shown.json).unwrap();
        let items = body["items"].as_array().unwrap().iter().map(ToString::to_string);
        let cursor = body["next_cursor"]
            .as_str()
            .map(|cursor| page.list.read(cursor).unwrap().0.parse().unwrap());
        (items.collect(), cursor)
    }

    #[test]
    fn the_cursor_goes_on_after_the_last_item() {
        let page = page(Some(2), None).unwrap();
        let check = |rows: Vec<i64>, items: &[&str], cursor: Option<i64>| {
            let found = shown(&page, &page.cut(rows, i64::to_string).show());
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
            let rows = rows
                .into_iter()
                .map(|(is_wanted, row)| (is_wanted, row.to_string(), row));
            let found = shown(&page, &page.cut_to(rows.collect(), is_more).show());
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
        let page = Page::new(list("acme", ""), &settings, None, None).unwrap();
        let check = |lengths: &[usize], items: usize, cursor: Option<i64>| {
            let rows = (0..lengths.len()).map(|n| i64::try_from(n).unwrap()).collect();
            let text = |n: i64| "x".repeat(lengths[usize::try_from(n).unwrap()]);
            let (found, place) = shown(&page, &page.cut(rows, i64::to_string).show_as(text));
            assert_eq!((found.len(), place), (items, cursor), "{lengths:?}");
        };
        check(&[10, 10, 10], 3, None);
        check(&[40, 30, 30], 2, Some(1));
        check(&[500, 1], 1, Some(0));
        check(&[500], 1, None);
    }

    #[test]
    fn a_cursor_of_another_list_or_a_changed_one_is_refused() {
        let cursor = list("acme", "").write("20");
        let mut changed = cursor.clone();
        changed.replace_range(cursor.len() - 1.., "1");
        for bad in [changed.as_str(), "", "00", "not hex", "é", &"00".repeat(600)] {
            assert!(page(None, Some(bad)).is_err(), "{bad}");
        }
        assert!(list("other", "").read(&cursor).is_none());
        assert!(list("acme", "status=done").read(&cursor).is_none());
    }

    #[test]
    fn a_cursor_that_somebody_made_does_not_reach_the_database() {
        let check = |order, place: &str, good: bool| {
            let list = List {
                order,
                ..list("acme", "")
            };
            assert_eq!(list.read(&list.write(place)).is_some(), good, "{place:?}");
        };
        let (texts, times): (Columns, Columns) = (
            &[("id", Column::Text)],
            &[("created_at", Column::Time), ("id", Column::Text)],
        );
        check(texts, "a", true);
        check(texts, "a\0", false);
        check(times, "1700000000123456 id with blanks", true);
        check(times, "1700000000123456", false);
        check(times, "-300000000000000000 a", false);
        check(times, "170141183460469231731687303715884105727 a", false);
    }

    #[test]
    fn moments_read_back_to_the_microsecond() {
        let at = OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_000).unwrap();
        assert_eq!(Column::Time.read("1700000000123456"), Some(at.into()));
    }
}
