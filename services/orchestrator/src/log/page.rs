//! Reads a page of a log: generations and their turns in one order, a generation before its first turn.

use std::collections::HashMap;

use api::log::{Log, LogTurn};
use domain::{AccountId, SessionId};
use storage::{StorageError, Tx};
use uuid::Uuid;

use super::{
    earlier::earlier_turns,
    segments::{Generation, beginning, segments, shown},
    store::{GenerationRow, LogRow, branches, generations, turns},
};
use crate::{
    paging::{Column, Columns, Page, Places},
    turns::store::{TurnRow, whole},
};

/// Turns of a page, and generations.
pub(super) const ROWS_MAX: usize = 50;
/// A generation counts as a row before its first turn.
pub(super) const ORDER: Columns = &[("generation", Column::Integer), ("number", Column::BigInt)];

/// `only`: one generation. None: the session or the generation is not there.
pub(super) async fn log_page(
    tx: &Tx,
    account: &AccountId,
    (session, only): (SessionId, Option<i32>),
    page: &Page<'_>,
) -> Result<Option<Log>, StorageError> {
    let after = page.after.as_deref().and_then(place).unwrap_or_default();
    let from = only.unwrap_or(after.0.max(1));
    let rows_max = i64::try_from(page.rows()).unwrap_or(i64::MAX);
    let found = generations(tx, account, session, (from, rows_max + 1)).await?;
    let is_wanted = |row: &&GenerationRow| row.generation >= from && only.is_none_or(|only| row.generation == only);
    if found.is_empty() || only.is_some() && !found.iter().any(|row| is_wanted(&row)) {
        return Ok(None);
    }
    let sessions = found.iter().filter(is_wanted).map(|row| {
        let is_begun = row.generation == after.0;
        (row.id, if is_begun { after.1 } else { 0 })
    });
    let sessions: Vec<(SessionId, i64)> = sessions.collect();
    let bytes_max = i64::try_from(page.bytes_max()).unwrap_or(i64::MAX);
    let read = turns(tx, account, &sessions, (rows_max, bytes_max)).await?;
    let (rows, places) = cut(page, found.iter().filter(is_wanted), read, after);
    let (begun, bodies) = apart(rows);

    let turns_at: Vec<usize> = bodies.iter().map(|(at, _)| *at).collect();
    let rows_read = begun.len() + bodies.len();
    let bodies = bodies.into_iter().map(|(_, turn)| turn).collect();
    let turns = whole(tx, account, bodies, page.bytes_max()).await?;
    let earlier = earlier_turns(tx, account, &turns).await?;
    let branches = branches(tx, account, turns.iter().map(|turn| turn.id).collect()).await?;
    let turns = shown(turns, earlier.shown(), branches, page.bytes_max());
    // Long calls and texts of other rows may have cut the page once more.
    let rows_shown = turns_at.get(turns.len()).copied().unwrap_or(rows_read);

    let begun: Vec<i32> = begun
        .into_iter()
        .filter(|(at, _)| *at < rows_shown)
        .map(|(_, number)| number)
        .collect();
    Ok(Some(Log {
        segments: segments(on_page(&found, &begun, turns)),
        next_cursor: places.cursor_after(rows_shown).map(str::to_owned),
    }))
}

/// Generation and number of a cursor.
fn place(place: &str) -> Option<(i32, i64)> {
    let (generation, number) = place.split_once(' ')?;
    Some((generation.parse().ok()?, number.parse().ok()?))
}

/// A generation's beginning, or a turn.
enum Row {
    Generation(i32),
    Turn(Box<TurnRow>),
}

impl Row {
    fn at(&self) -> (i32, i64) {
        match self {
            Row::Generation(number) => (*number, 0),
            Row::Turn(turn) => turn.place(),
        }
    }
}

/// The rows of the page in their order. Turns that were too long end it, and with them the generations behind.
fn cut<'a>(
    page: &Page<'_>,
    generations: impl Iterator<Item = &'a GenerationRow>,
    turns: Vec<LogRow>,
    after: (i32, i64),
) -> (Vec<Row>, Places) {
    let is_cut = turns
        .first()
        .is_some_and(|row| usize::try_from(row.page_rows).is_ok_and(|rows| rows > turns.len()));
    let mut rows: Vec<Row> = turns.into_iter().map(|row| Row::Turn(Box::new(row.turn))).collect();
    let last = rows.last().map(Row::at).filter(|_| is_cut);
    let generations = generations.map(|row| Row::Generation(row.generation));
    rows.extend(generations.filter(|row| row.at() > after && last.is_none_or(|last| row.at() < last)));
    rows.sort_by_key(Row::at);
    let placed = rows.into_iter().map(|row| {
        let (generation, number) = row.at();
        (true, format!("{generation} {number}"), row)
    });
    page.cut_to(placed.collect(), is_cut).apart()
}

/// With its place on the page.
type Placed<T> = (usize, T);

/// The generations that begin on the page, and the turns.
fn apart(rows: Vec<Row>) -> (Vec<Placed<i32>>, Vec<Placed<TurnRow>>) {
    let (mut begun, mut turns) = (Vec::new(), Vec::new());
    for (at, row) in rows.into_iter().enumerate() {
        match row {
            Row::Generation(number) => begun.push((at, number)),
            Row::Turn(turn) => turns.push((at, *turn)),
        }
    }
    (begun, turns)
}

/// The generations that have something on the page. `turns`: each with its session.
fn on_page(found: &[GenerationRow], begun: &[i32], turns: Vec<(Uuid, LogTurn)>) -> Vec<Generation> {
    let mut of: HashMap<Uuid, Vec<LogTurn>> = HashMap::new();
    for (session, turn) in turns {
        of.entry(session).or_default().push(turn);
    }
    let befores = std::iter::once(None).chain(found.iter().map(Some));
    let mut generations = Vec::new();
    for (before, own) in befores.zip(found) {
        let turns = of.remove(&own.id.uuid()).unwrap_or_default();
        let begins = begun.contains(&own.generation);
        if begins || !turns.is_empty() {
            let before = before.filter(|before| before.generation == own.generation - 1);
            generations.push(Generation {
                session: own.id.uuid(),
                number: own.generation,
                begins: begins.then(|| beginning(before, own)),
                turns,
            });
        }
    }
    generations
}
