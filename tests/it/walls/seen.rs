//! Tests the trials: each table's wall is removed, and a statement that reads the table must be reported.

use sqlx::Row;
use testkit::{Fixture, Tenant, TestDatabase};

use super::{
    scratch::Scratch,
    trials::{Executed, Part, Trials, Tried},
};
use crate::crossing::{ATTACKER, VICTIM};

/// Through a role that may see all rows of an account. Tables shared by services are also divided between them: each service sees
/// its own outbox rows, for every account.
const READERS: &str = "
    select p.tablename::text, min(r.name), p.qual from pg_policies p
    cross join unnest(array['signalbox_resolver', 'signalbox_delivery', 'signalbox_tool_gateway',
                            'signalbox_orchestrator']) as r (name)
    where p.policyname = 'tenant' and has_any_column_privilege(r.name, p.tablename::text, 'select')
      and not exists (select from pg_policies o where o.tablename = p.tablename and o.permissive = 'RESTRICTIVE'
                      and o.qual is not null and r.name = any (o.roles))
    group by 1, 3";

async fn tried(url: &str, role: &str, sql: &str) -> Tried {
    let twins = [VICTIM, ATTACKER];
    let trials = Trials::new(twins, Scratch::open(url, twins).await, Part { nth: 0, of: 1 });
    let executed = Executed {
        role: role.to_owned(),
        declared: VICTIM.to_owned(),
        sql: sql.to_owned(),
        types: vec![25],
        values: vec![Some(VICTIM.into())],
    };
    trials.hold(executed).await;
    trials.book().into_values().next().expect("it was tried")
}

async fn execute(test: &TestDatabase, sql: String) {
    let run = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&test.owner);
    run.await.unwrap();
}

#[tokio::test]
async fn a_wall_that_is_down_is_seen() {
    let test = TestDatabase::fresh().await;
    Tenant::furnish(&test.owner, VICTIM).await;
    Fixture(&test)
        .twin(&domain::AccountId::parse(VICTIM).unwrap(), ATTACKER)
        .await;
    let readers = sqlx::query(READERS).fetch_all(&test.owner).await.unwrap();
    assert!(readers.len() > 14, "the catalogue lists the tables");
    for row in readers {
        let (table, role, policy): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        let account = if table == "account" { "id" } else { "account_id" };
        let held = format!("select count(*) from {table} where {account} = $1");
        let alter = |using: &str| format!("alter policy tenant on {table} using ({using})");

        let whole = tried(&test.url, &role, &held).await;
        assert_eq!(whole.crossed, None);
        let condition = &whole.conditions[0];
        assert!(condition.is_tried && condition.is_missed, "{table}: {whole:?}");
        assert_eq!(condition.crossed, None, "the wall stands");
        // Statements without any account condition.
        let forgotten = tried(&test.url, &role, &format!("select count(*), $1 from {table}")).await;
        assert!(forgotten.crossed.is_some(), "{table}: {forgotten:?}");

        execute(&test, alter("true")).await;
        let open = tried(&test.url, &role, &held).await;
        assert!(open.conditions[0].crossed.is_some(), "{table}: {open:?}");
        execute(&test, alter(&policy)).await;
    }
}
