//! Removes each account condition of a statement and compares the results. A trial runs in the name of its own account, and with
//! the same ids in the name of the other account, on the rows that the statement will meet, and is rolled back.
//!
//! With only its account declared, as services declare it, the result may not change: row-level security holds alone. With both
//! accounts declared, the whole statement's result may not change either: its conditions hold alone. If the result changes with
//! both accounts declared and one condition removed, the condition is shown to matter.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::sleep;

use super::{
    conditions::{conditions, tables_of, without},
    listed::is_held_by_others,
    scratch::{Outcome, Scratch},
    sources::plain,
};

/// Trials of a statement in each step of the walk until every condition was shown to matter. In a step each is with other values:
/// what a service repeats, as for a turn that waits, keeps no other turn from its trial.
const TRIES: usize = 5;
/// The first trials of a statement try all of its conditions, the later ones those that were not shown to matter.
const TRIES_OF_ALL: usize = 2;
/// Of a trial whose rows other services hold or change.
const ATTEMPTS: usize = 10;

/// A statement that a service will execute.
#[derive(Clone, Debug)]
pub(crate) struct Executed {
    pub(crate) role: String,
    /// The accounts that its transaction declared, as the setting's text.
    pub(crate) declared: String,
    pub(crate) sql: String,
    pub(crate) types: Vec<u32>,
    pub(crate) values: Vec<Option<Vec<u8>>>,
}

impl Executed {
    fn name(&self) -> (String, String) {
        let rest = if self.declared.is_empty() { FOR_NONE } else { "" };
        (format!("{}{rest}", self.role), named(&self.sql))
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.role, &self.declared, &self.sql, &self.values).hash(&mut hasher);
        hasher.finish()
    }
}

/// Lists of any length count as one statement.
fn named(sql: &str) -> String {
    let mut parts = sql.split(" IN (");
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        named.push_str(" IN (...)");
        named.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    named
}

/// A condition and its results.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) text: String,
    /// The condition was removed, and the statement executed without it.
    pub(crate) is_tried: bool,
    /// A wrong result without the condition.
    pub(crate) crossed: Option<String>,
    /// With both accounts declared, its removal changed the result.
    pub(crate) is_missed: bool,
    /// Listed as one whose removal changes nothing.
    is_held_by_others: bool,
}

impl Condition {
    fn is_through(&self) -> bool {
        self.is_tried && (self.is_missed || self.is_held_by_others)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tried {
    tries: usize,
    tries_in_step: usize,
    /// Trials that can be repeated with tables emptied; the first, second, fourth … are.
    tries_emptied: usize,
    pub(crate) conditions: Vec<Condition>,
    /// A wrong result of the whole statement with both accounts declared.
    pub(crate) crossed: Option<String>,
}

impl Tried {
    fn is_through(&self) -> bool {
        self.conditions.iter().all(Condition::is_through)
    }
}

/// By role and text, apart for transactions that declare no account.
pub(crate) type Book = BTreeMap<(String, String), Tried>;

/// Suffix of the role for work without an account.
pub(crate) const FOR_NONE: &str = " for no account";

/// A part of all statements, chosen by text.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) nth: u64,
    pub(crate) of: u64,
}

impl Part {
    /// Whether this part has the statement, by its name in the book.
    pub(crate) fn has(self, sql: &str) -> bool {
        sql.bytes().map(u64::from).sum::<u64>() % self.of == self.nth
    }
}

/// Where each condition of a statement begins and ends.
type Places = Arc<[(usize, usize)]>;

pub(crate) struct Trials {
    /// Statements of other parts are only recorded as executed.
    part: Part,
    twins: [&'static str; 2],
    scratch: tokio::sync::Mutex<Scratch>,
    book: Mutex<Book>,
    /// What was tried in this step: digests of statements with their values.
    tried: Mutex<HashSet<u64>>,
    conditions: Mutex<HashMap<String, Places>>,
    /// Statements without parameters, which cannot be tried.
    simple: Mutex<Vec<String>>,
}

impl Trials {
    /// `twins`: names of one length, so that one can replace the other. The first account is active, the second rests.
    pub(crate) fn new(twins: [&'static str; 2], scratch: Scratch, part: Part) -> Trials {
        assert_eq!(twins[0].len(), twins[1].len());
        Trials {
            part,
            twins,
            scratch: tokio::sync::Mutex::new(scratch),
            book: Mutex::default(),
            tried: Mutex::default(),
            conditions: Mutex::default(),
            simple: Mutex::default(),
        }
    }

    pub(crate) fn book(&self) -> Book {
        self.book.lock().unwrap().clone()
    }

    /// Begins another step: untested conditions may meet other rows now.
    pub(crate) fn next_step(&self) {
        self.tried.lock().unwrap().clear();
        for ((role, _), tried) in self.book.lock().unwrap().iter_mut() {
            if !tried.is_through() && !role.ends_with(FOR_NONE) {
                tried.tries_in_step = 0;
            }
        }
    }

    /// Statements with a condition that came without parameters.
    pub(crate) fn simple_ones(&self) -> Vec<String> {
        self.simple.lock().unwrap().clone()
    }

    pub(crate) fn simple(&self, sql: &str) {
        if !self.conditions_of(sql).is_empty() {
            self.simple.lock().unwrap().push(sql.to_owned());
        }
    }

    /// Found once for each text.
    fn conditions_of(&self, sql: &str) -> Arc<[(usize, usize)]> {
        let mut known = self.conditions.lock().unwrap();
        if let Some(places) = known.get(sql) {
            return Arc::clone(places);
        }
        let places: Arc<[(usize, usize)]> = conditions(sql).into();
        known.insert(sql.to_owned(), Arc::clone(&places));
        places
    }

    /// Tries a statement before its execution.
    pub(crate) async fn hold(&self, executed: Executed) {
        if executed.role.is_empty() || self.is_of_both(&executed) {
            return;
        }
        let places = self.conditions_of(&executed.sql);
        if places.is_empty() && executed.declared.is_empty() {
            return;
        }
        let digest = executed.digest();
        if !self.tried.lock().unwrap().insert(digest) {
            return;
        }
        let mut tried = self.begun(&executed, &places);
        if !self.part.has(&named(&executed.sql)) {
            return;
        }
        if tried.tries > TRIES_OF_ALL && (tried.is_through() || tried.tries_in_step > TRIES) {
            return;
        }
        let mut is_settled = false;
        for _ in 0..ATTEMPTS {
            is_settled = self.attempt(&executed, &places, &mut tried).await;
            if is_settled {
                break;
            }
            // Whoever holds the rows needs the connection for its own trial before it can go on.
            sleep(Duration::from_millis(50)).await;
        }
        if !is_settled {
            // The next execution with the same values has a trial too.
            self.tried.lock().unwrap().remove(&digest);
        }
        self.note(&executed, &tried);
    }

    /// `false`: another service holds its rows now, or has changed them after the snapshot.
    async fn attempt(&self, executed: &Executed, places: &[(usize, usize)], tried: &mut Tried) -> bool {
        let mut scratch = self.scratch.lock().await;
        if !scratch.begin(&executed.sql).await {
            return false;
        }
        let mut is_tried = false;
        for asked in &self.askers(executed) {
            is_tried |= self.try_out(&mut scratch, asked, places, tried).await;
        }
        scratch.end().await;
        is_tried && !scratch.is_overtaken
    }

    fn begun(&self, executed: &Executed, places: &[(usize, usize)]) -> Tried {
        let mut book = self.book.lock().unwrap();
        let tried = book.entry(executed.name()).or_insert_with(|| Tried {
            conditions: places
                .iter()
                .map(|&(start, end)| Condition {
                    text: executed.sql[start..end].to_owned(),
                    is_tried: false,
                    crossed: None,
                    is_missed: false,
                    is_held_by_others: is_held_by_others(&plain(&executed.sql), &executed.sql[start..end]),
                })
                .collect(),
            ..Tried::default()
        });
        tried.tries += 1;
        tried.tries_in_step += 1;
        tried.clone()
    }

    /// Another connection may have tried the same statement meanwhile.
    fn note(&self, executed: &Executed, seen: &Tried) {
        let mut book = self.book.lock().unwrap();
        let tried = book.get_mut(&executed.name()).expect("it was begun");
        tried.tries_emptied = tried.tries_emptied.max(seen.tries_emptied);
        tried.crossed = tried.crossed.take().or_else(|| seen.crossed.clone());
        for (condition, seen) in tried.conditions.iter_mut().zip(&seen.conditions) {
            condition.crossed = condition.crossed.take().or_else(|| seen.crossed.clone());
            condition.is_tried |= seen.is_tried;
            condition.is_missed |= seen.is_missed;
        }
    }

    /// The unchanged statement, and the same for the other account.
    fn askers(&self, executed: &Executed) -> [Executed; 2] {
        let [from, to] = self.sides(executed);
        let other = Executed {
            declared: executed.declared.replace(from, to),
            values: executed
                .values
                .iter()
                .map(|value| value.as_ref().map(|bytes| renamed(bytes, from, to)))
                .collect(),
            ..executed.clone()
        };
        [executed.clone(), other]
    }

    /// A transaction for both accounts shows nothing about one of them alone.
    fn is_of_both(&self, executed: &Executed) -> bool {
        let is_declared = |twin: &&str| executed.declared.split(',').any(|name| name == *twin);
        self.twins.iter().all(is_declared)
    }

    /// The statement's account, and the other one.
    fn sides(&self, executed: &Executed) -> [&'static str; 2] {
        let [first, second] = self.twins;
        if executed.declared.contains(second) {
            [second, first]
        } else {
            [first, second]
        }
    }

    /// `false`: another service holds its rows now.
    async fn try_out(
        &self,
        scratch: &mut Scratch,
        asked: &Executed,
        places: &[(usize, usize)],
        tried: &mut Tried,
    ) -> bool {
        let whole = scratch.outcome(asked, &asked.sql, &asked.declared, "").await;
        if !whole.is_clear() {
            return false;
        }
        // The second account rests, so none of its rows is locked: a wait means a row of the first account.
        let [own, other] = self.sides(asked);
        let rests = own == self.twins[1];
        let is_seen = |outcome: &Outcome| outcome.is_clear() || rests && *outcome == Outcome::Waits;
        let is_other = |outcome: &Outcome| is_seen(outcome) && *outcome != whole;
        let told = |outcome: &Outcome| Some(format!("{asked:?}: {whole:?} and then {outcome:?}"));
        // A transaction without a declared account works for none, and sees what its role may see.
        let both = (!asked.declared.is_empty()).then(|| format!("{},{other}", asked.declared));
        if let Some(both) = &both {
            let outcome = scratch.outcome(asked, &asked.sql, both, "").await;
            if is_other(&outcome) {
                tried.crossed = told(&outcome);
            }
        }
        for (place, condition) in places.iter().zip(&mut tried.conditions) {
            if condition.is_through() && tried.tries > TRIES_OF_ALL {
                continue;
            }
            let sql = without(&asked.sql, *place);
            if condition.crossed.is_none() {
                let outcome = scratch.outcome(asked, &sql, &asked.declared, "").await;
                condition.is_tried |= is_seen(&outcome);
                if is_other(&outcome) {
                    condition.crossed = told(&outcome);
                }
            }
            if let (Some(both), false) = (&both, condition.is_missed) {
                condition.is_missed = is_other(&scratch.outcome(asked, &sql, both, "").await);
            }
            // Without a declared account only the conditions hold.
            condition.is_missed |= both.is_none() && condition.crossed.is_some();
        }
        // Rows of the active account may be locked: only those of the other one can be removed.
        if rests && tried.tries_in_step == 1 && !tried.is_through() && !whole.is_nothing() {
            tried.tries_emptied += 1;
            if tried.tries_emptied.is_power_of_two() {
                self.empty(scratch, asked, places, tried).await;
            }
        }
        true
    }

    /// A condition that compares rows of a table, while the asker has none there: if it is removed, the other account's rows are found.
    async fn empty(&self, scratch: &mut Scratch, asked: &Executed, places: &[(usize, usize)], tried: &mut Tried) {
        let [own, other] = self.sides(asked);
        let both = match asked.declared.as_str() {
            "" => String::new(),
            declared => format!("{declared},{other}"),
        };
        let compared = places.iter().zip(&tried.conditions);
        let compared = compared.filter(|(_, condition)| !condition.is_through());
        let tables: BTreeSet<&str> = compared.flat_map(|(place, _)| tables_of(&asked.sql, *place)).collect();
        for table in tables {
            let Some(emptied) = scratch.emptied(table, own) else {
                continue;
            };
            let whole = scratch.outcome(asked, &asked.sql, &both, &emptied).await;
            let compared = places.iter().zip(&mut tried.conditions);
            for (place, condition) in compared.filter(|(_, condition)| !condition.is_through()) {
                let outcome = scratch
                    .outcome(asked, &without(&asked.sql, *place), &both, &emptied)
                    .await;
                condition.is_missed |= outcome != whole && outcome != Outcome::Overtaken;
            }
        }
    }
}

/// Replaces one name with the other.
pub(crate) fn renamed(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut renamed = bytes.to_vec();
    let mut at = 0;
    while let Some(found) = renamed[at..]
        .windows(from.len())
        .position(|part| part == from.as_bytes())
    {
        at += found;
        renamed[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    renamed
}

#[test]
fn lists_of_any_length_are_one_statement() {
    assert_eq!(named("a IN ($1, $2) AND b IN ($3)"), "a IN (...) AND b IN (...)");
}

#[test]
fn names_are_exchanged_wherever_they_stand() {
    assert_eq!(renamed(b"alder,-/alder-1", "alder", "birch"), b"birch,-/birch-1");
}
