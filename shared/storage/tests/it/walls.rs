//! The isolation of tenants, read from the catalogue, so that later tables are checked too.

use domain::AccountId;
use sea_orm::{ConnectionTrait, EntityTrait};
use sqlx::{AssertSqlSafe, Row};
use storage::{
    Accounts, Database, Role, entity,
    fitness::{self, Fault, Setting},
};
use testkit::{Fixture, TestDatabase};

/// Tables without tenants' data.
const WITHOUT_ACCOUNT: &[&str] = &[
    "login_identity",
    "login_session",
    "outbound_way",
    "provider_breaker",
    "replica",
    "resolver_partition",
    "seaql_migrations",
    "sign_in_token",
];

#[tokio::test]
async fn every_table_has_its_walls() {
    let test = TestDatabase::fresh().await;
    let tables = test.texts("select relname::text from pg_class where relkind in ('r', 'p') and relnamespace = 'public'::regnamespace order by 1").await;
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
            "select format('%s.%s -> %s.%s',
                    conrelid::regclass, (select attname from pg_attribute where attrelid = c.conrelid and attnum = c.conkey[1]),
                    confrelid::regclass, (select attname from pg_attribute where attrelid = c.confrelid and attnum = c.confkey[1]))
             from pg_constraint c where contype = 'f'",
        )
        .await;
    assert!(keys.len() > 10);
    for key in keys {
        let (from, to) = key.split_once(" -> ").unwrap();
        assert!(
            from.ends_with(".account_id") && (to.ends_with(".account_id") || to == "account.id"),
            "{key}"
        );
    }
}

/// The check at the start and this test use the same facts.
#[tokio::test]
async fn the_schema_is_fit_for_use_anywhere() {
    let test = TestDatabase::fresh().await;
    let database = test.connect(Role::Resolver).await;
    let facts = fitness::look(&database).await.unwrap();
    // The login of tests is a superuser on a server without fsync, which is accepted on one's own machine only.
    let elsewhere = Setting {
        is_local: false,
        migrates: false,
    };
    let faults: Vec<String> = facts.faults(elsewhere).iter().map(Fault::to_string).collect();
    let expected = [
        "fsync, full_page_writes is off: what is committed may be lost",
        "login signalbox is above row-level security",
    ];
    assert_eq!(faults, expected);
}

/// Each hole that an attacker used, made again: the start refuses it and names it.
#[tokio::test]
async fn a_database_without_these_walls_is_refused() {
    let test = TestDatabase::fresh().await;
    let name = test.texts("select current_database()::text").await.remove(0);
    let database = test.connect(Role::Resolver).await;
    let holes = [
        (
            format!("grant temporary on database {name} to public"),
            "objects can be created that shadow ours: temporary objects by everybody",
        ),
        (
            format!(
                "revoke temporary on database {name} from public; grant create on schema public to signalbox_sweeper"
            ),
            "objects can be created that shadow ours: objects in schema public by signalbox_sweeper",
        ),
        (
            "revoke create on schema public from signalbox_sweeper;
             alter function account_directory(text, integer) reset search_path"
                .to_owned(),
            "account_directory(text,integer) may run code of a service",
        ),
        (
            "alter function account_directory(text, integer) set search_path = public, pg_temp;
             create function hashtextextended(text, integer) returns bigint language sql as 'select 1::bigint';
             alter function hashtextextended(text, integer) owner to signalbox_sweeper"
                .to_owned(),
            "hashtextextended(text,integer) may run code of a service",
        ),
        (
            "drop function public.hashtextextended(text, integer); drop policy own_resolver on outbox".to_owned(),
            "a service may write in another's name: no policy on outbox for signalbox_resolver",
        ),
    ];
    for (hole, says) in holes {
        sqlx::raw_sql(AssertSqlSafe(hole)).execute(&test.owner).await.unwrap();
        let facts = fitness::look(&database).await.unwrap();
        let local = Setting {
            is_local: true,
            migrates: false,
        };
        let faults: Vec<String> = facts.faults(local).iter().map(Fault::to_string).collect();
        assert_eq!(faults, [says]);
    }
}

/// An unqualified name in a function means an object of a migration, and no role can create another one: read from the
/// catalogue for every function, schema and database.
#[tokio::test]
async fn nothing_can_be_put_in_the_place_of_ours() {
    let test = TestDatabase::fresh().await;
    let functions = test
        .texts(
            "select format('%s %s', p.oid::regprocedure, array_to_string(p.proconfig, ' ')) from pg_proc p
             where p.pronamespace = 'public'::regnamespace
               and p.proconfig is distinct from array['search_path=public, pg_temp']",
        )
        .await;
    assert_eq!(functions, Vec::<String>::new());
    let may = test
        .texts(
            r"with role (oid, name) as (
                  select 0::oid, 'public' union all select oid, rolname::text from pg_roles
                  where rolname like 'signalbox\_%' and not rolsuper)
              select format('%s: %s', r.name, p.kind) from role r, unnest(array['temporary', 'create']) p (kind)
              where has_database_privilege(r.oid, current_database(), p.kind)
              union all
              select format('%s: create in %s', r.name, n.nspname) from role r, pg_namespace n
              where has_schema_privilege(r.oid, n.oid, 'create')",
        )
        .await;
    assert_eq!(may, Vec::<String>::new());
    // Tables are owned by their owner; functions by the sweeper, which may read ids, names and times.
    let owned = test
        .texts(
            r"select c.relname::text from pg_class c where c.relowner::regrole::text like 'signalbox\_%'
              union all
              select p.oid::regprocedure::text from pg_proc p
              where p.proowner::regrole::text like 'signalbox\_%' and not p.prosecdef",
        )
        .await;
    assert_eq!(owned, Vec::<String>::new());
    // A service's statements use no other schema.
    for role in [
        Role::Resolver,
        Role::Delivery,
        Role::ToolGateway,
        Role::Orchestrator,
        Role::Owner,
    ] {
        let database = test.connect(role).await;
        let path = database
            .connection()
            .query_one_raw(storage::statement("show search_path", []))
            .await;
        let path: String = path.unwrap().unwrap().try_get("", "search_path").unwrap();
        assert_eq!(path, "public,pg_temp", "{role:?}");
    }
}

/// A right of every role is also a right of every future role.
#[tokio::test]
async fn no_right_is_granted_to_every_role() {
    let test = TestDatabase::fresh().await;
    let granted = test
        .texts(
            "select format('%s %s', c.relname, a.privilege_type) from pg_class c, aclexplode(c.relacl) a
             where c.relnamespace = 'public'::regnamespace and a.grantee = 0
             union all
             select format('%s.%s %s', c.relname, t.attname, a.privilege_type)
             from pg_class c join pg_attribute t on t.attrelid = c.oid, aclexplode(t.attacl) a
             where c.relnamespace = 'public'::regnamespace and a.grantee = 0
             union all
             select format('%s %s', p.oid::regprocedure, a.privilege_type)
             from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
             where p.pronamespace = 'public'::regnamespace and a.grantee = 0
             union all
             select format('schema %s', a.privilege_type) from pg_namespace n, aclexplode(n.nspacl) a
             where n.nspname = 'public' and a.grantee = 0 and a.privilege_type = 'CREATE'",
        )
        .await;
    assert_eq!(granted, Vec::<String>::new());
}

/// Functions that read across accounts, their permitted callers, and their results: ids, names and times.
#[tokio::test]
async fn what_looks_across_accounts_is_reviewed() {
    let test = TestDatabase::fresh().await;
    let functions = test
        .texts(
            "select format('%s gives %s, owned by %s, for %s', p.oid::regprocedure, pg_get_function_result(p.oid),
                    p.proowner::regrole,
                    (select string_agg(a.grantee::regrole::text, ', ' order by a.grantee::regrole::text)
                     from aclexplode(p.proacl) a where a.grantee <> p.proowner))
             from pg_proc p where p.pronamespace = 'public'::regnamespace and p.prosecdef order by 1",
        )
        .await;
    insta::assert_snapshot!("functions", functions.join("\n"));
}

/// The expected policies, which a start compares. `INSTA_UPDATE=always` writes the file.
#[tokio::test]
async fn what_every_policy_says_is_reviewed() {
    let test = TestDatabase::fresh().await;
    let policies = fitness::policies(&test.connect(Role::Resolver).await).await.unwrap();
    let policies = policies.join("\n") + "\n";
    let major = test
        .texts("select current_setting('server_version_num')::integer / 10000 || ''")
        .await;
    assert_eq!(
        major,
        [fitness::POLICIES_MAJOR.to_string()],
        "the list is made with this version"
    );
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/policies.txt");
        std::fs::write(file, &policies).unwrap();
        return;
    }
    assert_eq!(policies, fitness::POLICIES_EXPECTED);
}

/// A policy of the right name that permits everything, an additional one, and one for another role.
#[tokio::test]
async fn a_changed_policy_is_refused() {
    let test = TestDatabase::fresh().await;
    let database = test.connect(Role::Resolver).await;
    let mut expected = Vec::new();
    for (hole, policy) in [
        (
            "alter policy own_delivery on outbox with check (true)",
            "own_delivery on outbox",
        ),
        (
            "alter policy own_resolver on dead_letter using (true)",
            "own_resolver on dead_letter",
        ),
        (
            "alter policy own_tool_gateway on replica to signalbox_delivery",
            "own_tool_gateway on replica",
        ),
        ("alter policy tenant on message using (true)", "tenant on message"),
        ("create policy mine on task using (true)", "mine on task"),
    ] {
        sqlx::raw_sql(hole).execute(&test.owner).await.unwrap();
        expected.push(policy.to_owned());
        expected.sort();
        let mut found = policies_changed(&database).await;
        found.sort();
        assert_eq!(found, expected, "{hole}");
    }
    // Foreign tables, and policies of a newer version.
    let newer = "create table theirs (id uuid); create policy mine on theirs using (true);
                 insert into seaql_migrations (version, applied_at) values ('9999_newer', 0)";
    sqlx::raw_sql(newer).execute(&test.owner).await.unwrap();
    assert_eq!(policies_changed(&database).await, [""; 0]);
}

async fn policies_changed(database: &Database) -> Vec<String> {
    let found = fitness::look(database).await.unwrap().found;
    let changed = found.into_iter().find(|fault| fault.kind == &fitness::POLICIES_CHANGED);
    changed.map_or_else(Vec::new, |fault| fault.names)
}

/// The grants of each role. A change of a line is a decision.
#[tokio::test]
async fn each_role_has_what_was_reviewed_and_no_more() {
    let test = TestDatabase::fresh().await;
    let grants = test
        .texts(
            r"with held as (
                select a.grantee, c.relname, a.privilege_type, null as columns
                from pg_class c, aclexplode(c.relacl) a where c.relnamespace = 'public'::regnamespace
                union all
                select a.grantee, c.relname, a.privilege_type, string_agg(t.attname, ', ' order by t.attname)
                from pg_class c join pg_attribute t on t.attrelid = c.oid, aclexplode(t.attacl) a
                where c.relnamespace = 'public'::regnamespace group by 1, 2, 3
              )
              select format('%s %s: %s', h.grantee::regrole, h.relname,
                     string_agg(lower(h.privilege_type) || coalesce(' (' || h.columns || ')', ''), ', '
                                order by h.privilege_type, h.columns))
              from held h join pg_roles r on r.oid = h.grantee
              where r.rolname like 'signalbox\_%' group by h.grantee, h.relname order by 1",
        )
        .await;
    insta::assert_snapshot!("grants", grants.join("\n"));
    // A role that is a member of another has its rights.
    let members = test
        .texts(
            r"select format('%s is a %s', member::regrole, roleid::regrole) from pg_auth_members
              where member::regrole::text like 'signalbox\_%' order by 1",
        )
        .await;
    assert_eq!(members, Vec::<String>::new());
}

/// A service that was taken over approves nothing in the name of a person: neither a plan nor a call nor a review.
#[tokio::test]
async fn only_the_orchestrator_decides_for_people() {
    let test = TestDatabase::fresh().await;
    let account = Fixture(&test).account("acme").await;
    for kind in ["question", "plan", "tool", "review"] {
        let row = format!(
            "insert into question (account_id, id, kind, title, body, audience)
             values ('acme', gen_random_uuid(), '{kind}', 't', 'b', '{{role:admin}}')"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(row))
            .execute(&test.owner)
            .await
            .unwrap();
    }
    let attempt = async |role: Role, sql: &str| {
        let tx = test.connect(role).await.begin(&Accounts::one(&account)).await.unwrap();
        let rows = tx.execute_unprepared(sql).await.map(|done| done.rows_affected());
        tx.rollback().await.unwrap();
        rows.ok()
    };
    let approve = "update question set state = 'answered', verdict = 'approved', answer = '{}', ended_by_kind = 'user'";
    let as_agent = "update question set state = 'answered', verdict = 'approved', ended_by_kind = 'agent'";
    let withdraw = "update question set state = 'withdrawn'";
    let check = async |role: Role, sql: &str, kind: &str, expected: Option<u64>| {
        let of_kind = format!("{sql} where kind = '{kind}'");
        assert_eq!(attempt(role, &of_kind).await, expected, "{role:?}: {of_kind}");
    };
    for kind in ["question", "plan", "review"] {
        check(Role::Delivery, approve, kind, Some(0)).await;
        check(Role::Delivery, withdraw, kind, Some(0)).await;
        check(Role::ToolGateway, approve, kind, None).await;
        check(Role::ToolGateway, as_agent, kind, Some(1)).await;
        check(Role::Orchestrator, approve, kind, Some(1)).await;
    }
    check(Role::Delivery, approve, "tool", None).await;
    check(Role::Delivery, withdraw, "tool", Some(1)).await;
    check(Role::ToolGateway, approve, "tool", None).await;
    check(Role::ToolGateway, as_agent, "tool", None).await;
    check(Role::ToolGateway, withdraw, "tool", Some(1)).await;
    check(Role::Orchestrator, approve, "tool", Some(1)).await;
    // Nor do they write what a person has done.
    let withdraw_as_user = "update question set state = 'withdrawn', ended_by_kind = 'user'";
    check(Role::Delivery, withdraw_as_user, "tool", None).await;
    check(Role::ToolGateway, withdraw_as_user, "question", None).await;
    check(Role::Orchestrator, withdraw_as_user, "question", Some(1)).await;
    let answered = "insert into question (account_id, id, kind, title, body, audience, state, verdict, ended_by_kind)
                    values ('acme', gen_random_uuid(), 'review', 't', 'b', '{role:admin}', 'answered', 'approved', 'user')";
    assert_eq!(attempt(Role::ToolGateway, answered).await, None);
    assert_eq!(attempt(Role::Orchestrator, answered).await, Some(1));
    let fixture = Fixture(&test);
    fixture.task(&account, "T-1", &[]).await;
    let stage = "insert into task_stage (account_id, task_id, ordinal, name, audience) values ('acme', 't-1', 1, 's', '{role:admin}')";
    sqlx::raw_sql(stage).execute(&test.owner).await.unwrap();
    let pass =
        "update task_stage set passed_at = now(), question = (select id from question where kind = 'review' limit 1)";
    assert_eq!(attempt(Role::ToolGateway, pass).await, None, "its review is open");
    assert_eq!(attempt(Role::Orchestrator, pass).await, Some(1));
    let planned = "insert into task (account_id, id, display_id, title, status, plan_approved) values ('acme', 't-2', 'T-2', 't', 'inbox', true)";
    assert_eq!(attempt(Role::Resolver, planned).await, None);
    for gate in ["plan_gate = 'off'", "plan_audience = '{role:member}'", "stages = 0"] {
        let loosen = format!("update task set {gate}");
        assert_eq!(attempt(Role::ToolGateway, &loosen).await, None, "{loosen}");
    }
    for stage in ["audience = '{}'", "name = 'x'"] {
        let loosen = format!("update task_stage set {stage}");
        assert_eq!(attempt(Role::ToolGateway, &loosen).await, None, "{loosen}");
    }
}

#[tokio::test]
async fn only_declared_accounts_are_visible() {
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
        // no role can switch it off
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
    fixture.agent(&ours, "coder").await;
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
    let pointing = "insert into task_assignee (account_id, task_id, agent_id) select 'ours', 't-1', id from agent";
    assert!(attempt(pointing).await.is_err());
    assert_eq!(test.count("select count(*) from task_assignee").await, 0);
}
