//! How statements find their rows. A batch's statement is prepared once and its plan outlives what the tables held when
//! it was made: so the same indexes must be used whatever that is. Checked as the service's own connections would plan.

use domain::AccountId;
use sea_orm::{ConnectionTrait, Statement};
use storage::{Accounts, Database, Tx};

/// A statement, how many parameters it has, and the indexes by which it may find rows: all of these and no others.
pub type Planned = (&'static str, usize, &'static [&'static str]);

/// Fails when a statement does not go by its indexes. `tables` says what they hold now, for the failure's text.
pub async fn check_plans(database: &Database, account: &AccountId, statements: &[Planned], tables: &str) {
    for (sql, parameters, indexes) in statements {
        let tx = database.begin(&Accounts::one(account)).await.expect("a transaction");
        let plan = plan(&tx, sql, *parameters).await;
        tx.rollback().await.expect("a rollback");
        let used: Vec<&str> = plan
            .lines()
            .filter_map(|line| {
                let (_, rest) = line
                    .split_once(" using ")
                    .or_else(|| line.split_once("Bitmap Index Scan on "))?;
                rest.split_whitespace().next()
            })
            .collect();
        for index in *indexes {
            assert!(used.contains(index), "{tables}: {index} is not used\n{sql}\n{plan}");
        }
        for index in &used {
            assert!(indexes.contains(index), "{tables}: {index} is used\n{sql}\n{plan}");
        }
        assert!(!plan.contains("Seq Scan"), "{tables}\n{sql}\n{plan}");
    }
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
