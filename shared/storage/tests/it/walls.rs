//! The walls between tenants, read from the catalogue, so that a table added later is held to them too.

use domain::AccountId;
use sea_orm::{ConnectionTrait, EntityTrait};
use sqlx::Row;
use storage::{Accounts, Role, entity};
use testkit::{Fixture, TestDatabase};

/// Tables that hold no tenant's data.
const WITHOUT_ACCOUNT: &[&str] = &["replica", "resolver_partition", "seaql_migrations"];

#[tokio::test]
async fn every_table_has_its_walls() {
    let test = TestDatabase::fresh().await;
    let tables = test.texts("select relname::text from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace order by 1").await;
    assert!(tables.len() > 15, "{tables:?}");
    for table in tables.iter().filter(|table| !WITHOUT_ACCOUNT.contains(&table.as_str())) {
        let (enabled, forced): (bool, bool) = {
            let row = sqlx::query("select relrowsecurity, relforcerowsecurity from pg_class where oid = $1::regclass")
                .bind(table)
                .fetch_one(&test.owner)
                .await
                .unwrap();
            (row.get(0), row.get(1))
        };
        assert!(enabled && forced, "{table}: row-level security is not forced");
        let policies: i64 = sqlx::query("select count(*) from pg_policies where tablename = $1 and policyname = 'tenant' and cmd = 'ALL' and with_check is not null")
            .bind(table)
            .fetch_one(&test.owner)
            .await
            .unwrap()
            .get(0);
        assert_eq!(policies, 1, "{table}: no tenant policy");
        let account = if table == "account" { "id" } else { "account_id" };
        let first: Vec<String> = sqlx::query(
            "select (select attname::text from pg_attribute where attrelid = i.indrelid and attnum = i.indkey[0])
             from pg_index i where i.indrelid = $1::regclass and i.indisunique",
        )
        .bind(table)
        .fetch_all(&test.owner)
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
        assert!(
            !first.is_empty() && first.iter().all(|column| column == account),
            "{table}: a unique index does not begin with the account: {first:?}"
        );
    }
}

#[tokio::test]
async fn every_foreign_key_begins_with_the_account() {
    let test = TestDatabase::fresh().await;
    let keys = test
        .texts(
            "select conrelid::regclass::text || '.' ||
                    (select attname from pg_attribute where attrelid = c.conrelid and attnum = c.conkey[1])
             from pg_constraint c where contype = 'f'",
        )
        .await;
    assert!(keys.len() > 10);
    for key in keys {
        assert!(key.ends_with(".account_id"), "{key}");
    }
}

#[tokio::test]
async fn nobody_sees_what_they_did_not_declare() {
    let test = TestDatabase::fresh().await;
    let fixture = Fixture(&test);
    let (ours, theirs) = (fixture.account("ours").await, fixture.account("theirs").await);
    fixture.task(&ours, "T-1", &[]).await;
    fixture.task(&theirs, "T-1", &[]).await;
    for role in [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator] {
        let database = test.connect(role).await;
        let visible = |accounts: Accounts| {
            let database = database.clone();
            async move {
                let tx = database.begin(&accounts).await.unwrap();
                let rows = entity::task::Entity::find().all(&*tx).await.unwrap();
                tx.commit().await.unwrap();
                rows.into_iter().map(|row| row.account_id).collect::<Vec<_>>()
            }
        };
        assert_eq!(visible(Accounts::none()).await, Vec::<String>::new(), "{role:?}");
        assert_eq!(visible(Accounts::one(&ours)).await, ["ours"], "{role:?}");
        assert_eq!(visible(Accounts::many([&ours, &theirs])).await.len(), 2, "{role:?}");
        // and no role can rid itself of it
        assert!(
            database
                .connection()
                .execute_unprepared("set row_security = off; select * from task")
                .await
                .is_err(),
            "{role:?}"
        );
    }
}

#[tokio::test]
async fn a_row_cannot_be_written_into_or_point_into_another_account() {
    let test = TestDatabase::fresh().await;
    let fixture = Fixture(&test);
    let (ours, theirs) = (fixture.account("ours").await, fixture.account("theirs").await);
    fixture.task(&theirs, "T-1", &[]).await;
    let database = test.connect(Role::Orchestrator).await;
    let attempt = |sql: &'static str| {
        let database = database.clone();
        let ours: AccountId = ours.clone();
        async move {
            let tx = database.begin(&Accounts::one(&ours)).await.unwrap();
            tx.execute_unprepared(sql).await.map(|_| ())
        }
    };
    let into = "insert into task (account_id, id, display_id, title, status) values ('theirs', 'x', 'x', 'x', 'inbox')";
    assert!(attempt(into).await.is_err());
    let pointing = "insert into message (account_id, id, task_id, author_kind, author_id, author_name, body)
                    values ('ours', gen_random_uuid(), 't-1', 'user', 'u', 'u', 'b')";
    assert!(attempt(pointing).await.is_err());
    assert_eq!(test.count("select count(*) from message").await, 0);
}
