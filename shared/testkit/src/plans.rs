//! Checks how statements find their rows. A batch's statement is prepared once, and its plan is used after the tables
//! have grown: so it must use the same indexes for tables of any size. The plans are those of the service's own
//! connections.

use std::fmt::Write as _;

use domain::AccountId;
use sea_orm::{ConnectionTrait, Statement};
use storage::{Accounts, Database, Tx};

/// A statement, its number of parameters, and the exact set of indexes by which it may find rows. It must search each
/// index by more than the account, unless the index is marked as [`OF_THE_ACCOUNT`].
pub type Planned = (&'static str, usize, &'static [&'static str]);

/// After an index's name: it may be read for the whole account, as for the newest rows of a list.
const OF_THE_ACCOUNT: &str = " of the account";

/// Fails if statements do not use their indexes, and names each. `tables` describes their content, for the failure's text.
pub async fn check_plans(database: &Database, account: &AccountId, statements: &[Planned], tables: &str) {
    let mut faults = String::new();
    for (sql, parameters, indexes) in statements {
        let tx = database.begin(&Accounts::one(account)).await.expect("a transaction");
        let plan = plan(&tx, sql, *parameters).await;
        tx.rollback().await.expect("a rollback");
        let found: Vec<String> = faults_of(&plan, indexes);
        if !found.is_empty() {
            writeln!(faults, "{}\n{sql}\n{plan}\n", found.join(", ")).expect("a string");
        }
    }
    assert!(faults.is_empty(), "{tables}:\n{faults}");
}

/// What is wrong with how a plan finds its rows.
fn faults_of(plan: &str, indexes: &[&str]) -> Vec<String> {
    let scans = scans(plan);
    let mut faults = Vec::new();
    for index in indexes {
        let name = index.strip_suffix(OF_THE_ACCOUNT).unwrap_or(index);
        if !scans.iter().any(|scan| scan.index == name) {
            faults.push(format!("{name} is not used"));
        }
    }
    for scan in &scans {
        let index = scan.index;
        let whole = indexes
            .iter()
            .any(|named| named.strip_suffix(OF_THE_ACCOUNT) == Some(index));
        if !whole && !indexes.contains(&index) {
            faults.push(format!("{index} is used"));
        }
        if !whole && !scan.finds_few() {
            faults.push(format!("{index} is read as a whole, or all of the account's"));
        }
    }
    if plan.contains("Seq Scan") {
        faults.push("a table is read as a whole".to_owned());
    }
    faults
}

/// An index that a plan reads, and its search condition.
struct Scan<'a> {
    index: &'a str,
    condition: &'a str,
}

impl Scan<'_> {
    /// Whether the condition compares more than the account. A column that is bounded on both sides is compared, too.
    fn finds_few(&self) -> bool {
        let compared = self
            .condition
            .split(" AND ")
            .any(|part| part.contains(" = ") && !part.trim_start_matches('(').starts_with("account_id "));
        compared || (self.condition.contains(" >= ") && self.condition.contains(" <= "))
    }
}

fn scans(plan: &str) -> Vec<Scan<'_>> {
    let lines: Vec<&str> = plan.lines().collect();
    lines
        .iter()
        .enumerate()
        .filter_map(|(n, line)| {
            let (_, rest) = line
                .split_once(" using ")
                .or_else(|| line.split_once("Bitmap Index Scan on "))?;
            Some(Scan {
                index: rest.split_whitespace().next()?,
                condition: lines
                    .get(n + 1)
                    .and_then(|next| next.trim_start().strip_prefix("Index Cond: "))
                    .unwrap_or_default(),
            })
        })
        .collect()
}

/// The plan that the service's own connections keep.
async fn plan(tx: &Tx, sql: &str, parameters: usize) -> String {
    let nulls = vec!["null"; parameters].join(", ");
    for sql in [
        "set local plan_cache_mode = force_generic_plan".to_owned(),
        format!("prepare of_a_batch as {sql}"),
    ] {
        tx.execute_unprepared(&sql).await.expect("a statement");
    }
    let explain = Statement::from_string(
        sea_orm::DbBackend::Postgres,
        format!("explain execute of_a_batch({nulls})"),
    );
    let lines = tx.query_all_raw(explain).await.expect("a plan");
    tx.execute_unprepared("deallocate of_a_batch")
        .await
        .expect("a statement");
    let lines: Vec<String> = lines
        .iter()
        .map(|line| line.try_get_by_index(0).expect("a line of a plan"))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_for_a_whole_account_is_not_finding() {
        let plan = "\
Nested Loop
  ->  Index Scan using turn_pkey on turn t
        Index Cond: ((account_id = w.account_id) AND (id = w.id))
  ->  Index Scan using tool_call_pkey on tool_call c
        Index Cond: (account_id = t.account_id)
        Filter: (turn_id = t.id)
  ->  Index Only Scan using tool_call_turn on tool_call d
        Index Cond: (ordinal > 0)
  ->  Index Scan using notification_pkey on notification n
        Filter: (id = r.id)
  ->  Bitmap Index Scan on task_newest
        Index Cond: (account_id = ANY ($1))";
        let found: Vec<(&str, bool)> = scans(plan).iter().map(|scan| (scan.index, scan.finds_few())).collect();
        assert_eq!(
            found,
            [
                ("turn_pkey", true),
                ("tool_call_pkey", false),
                ("tool_call_turn", false),
                ("notification_pkey", false),
                ("task_newest", false),
            ]
        );
    }
}
