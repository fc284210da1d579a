//! Counters of Postgres for a run: commits, statements, written rows, and the statements themselves. The benchmark's own statements are marked
//! `/* bench */` and are not counted.

use anyhow::Context;
use sqlx::PgPool;

use crate::figures::Statement;

/// Counters of the run's database.
#[derive(Clone, Copy)]
pub(crate) struct Counters {
    pub(crate) commits: i64,
    pub(crate) statements: i64,
    pub(crate) rows: i64,
}

impl Counters {
    pub(crate) async fn of(observer: &PgPool) -> anyhow::Result<Counters> {
        sqlx::query("select /* bench */ pg_stat_force_next_flush()")
            .execute(observer)
            .await
            .context("could not flush the counters")?;
        let (commits, statements, rows) = sqlx::query_as(
            "select /* bench */ (xact_commit - counted.own)::bigint, counted.others::bigint,
                (select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint from pg_stat_user_tables)
             from pg_stat_database,
                lateral (select coalesce(sum(calls) filter (where query like '%/* bench */%'), 0) as own,
                            coalesce(sum(calls) filter (where query not like '%/* bench */%'), 0) as others
                         from pg_stat_statements where dbid = pg_stat_database.datid) as counted
             where datname = current_database()",
        )
        .fetch_one(observer)
        .await
        .context("could not read the database's counters")?;
        Ok(Counters {
            commits,
            statements,
            rows,
        })
    }

    pub(crate) fn since(self, before: Counters) -> Counters {
        Counters {
            commits: self.commits - before.commits,
            statements: self.statements - before.statements,
            rows: self.rows - before.rows,
        }
    }
}

/// Statements of the setup do not count.
pub(crate) async fn forget(observer: &PgPool) -> anyhow::Result<()> {
    sqlx::query(
        "select /* bench */ pg_stat_statements_reset(0, oid, 0) from pg_database where datname = current_database()",
    )
    .execute(observer)
    .await
    .context("could not reset the statement statistics")?;
    Ok(())
}

/// The thirty most frequent and the thirty slowest statements, slowest first.
pub(crate) async fn top(observer: &PgPool, notifications: u32) -> anyhow::Result<Vec<Statement>> {
    let rows: Vec<(i64, i64, i64, f64, f64, String)> = sqlx::query_as(
        "with counted as (
            select calls, rows, plans, total_exec_time as ms, total_plan_time as plan_ms, query,
                row_number() over (order by calls desc) as oftenest,
                row_number() over (order by total_exec_time + total_plan_time desc) as longest
            from pg_stat_statements
            where dbid = (select oid from pg_database where datname = current_database())
                and query not like '%/* bench */%'
         )
         select /* bench */ calls, rows, plans, ms, plan_ms, query from counted
         where oftenest <= 30 or longest <= 30 order by ms + plan_ms desc",
    )
    .fetch_all(observer)
    .await
    .context("could not read the statement statistics")?;
    let number = f64::from(notifications.max(1));
    #[expect(clippy::cast_precision_loss, reason = "counts of one run")]
    let each = |count: i64| count as f64 / number;
    let statement = |(calls, rows, plans, ms, plan_ms, query): (i64, i64, i64, f64, f64, String)| Statement {
        calls: each(calls),
        rows: each(rows),
        plans: each(plans),
        ms: ms * 1e3 / number,
        plan_ms: plan_ms * 1e3 / number,
        text: query.split_whitespace().collect::<Vec<_>>().join(" "),
    };
    Ok(rows.into_iter().map(statement).collect())
}
