//! An attacker who controls a service connects to the database with its login. Each role tries every forbidden
//! statement. Permitted statements in its own name are tried beside them, so that a refusal is not caused by a mistake
//! in the attempt.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row, postgres::PgConnectOptions};
use testkit::{Fixture, TestDatabase};
use uuid::Uuid;

const SERVICES: [&str; 4] = ["resolver", "delivery", "tool-gateway", "orchestrator"];

/// `insufficient_privilege`: of a right as of a policy.
const REFUSED: &str = "42501";

fn role_of(service: &str) -> String {
    format!("signalbox_{}", service.replace('-', "_"))
}

/// A connection as SECURITY.md requires: a login that may only take its role.
async fn seat(test: &TestDatabase, service: &str) -> PgConnection {
    let (login, role) = (format!("login_{}", Uuid::now_v7().simple()), role_of(service));
    let make = format!("create role {login} login noinherit password 'secret' in role {role}");
    test.owner.execute(AssertSqlSafe(make)).await.unwrap();
    let options: PgConnectOptions = test.url.parse().unwrap();
    let mut connection = PgConnection::connect_with(&options.username(&login).password("secret"))
        .await
        .unwrap();
    connection
        .execute(AssertSqlSafe(format!("set role {role}")))
        .await
        .unwrap();
    connection
}

/// The number of touched rows, or the server's code.
async fn tried(connection: &mut PgConnection, sql: &str) -> Result<u64, String> {
    match connection.execute(AssertSqlSafe(sql.to_owned())).await {
        Ok(done) => Ok(done.rows_affected()),
        Err(error) => Err(error
            .as_database_error()
            .and_then(|error| error.code())
            .unwrap_or_else(|| panic!("{sql}: {error}"))
            .into_owned()),
    }
}

async fn check(connection: &mut PgConnection, service: &str, sql: &str, expected: Result<u64, &str>) {
    let expected = expected.map_err(str::to_owned);
    assert_eq!(tried(connection, sql).await, expected, "{service}: {sql}");
}

#[tokio::test]
async fn no_service_makes_anything_or_becomes_another() {
    let test = TestDatabase::fresh().await;
    for service in SERVICES {
        let mut seat = seat(&test, service).await;
        for sql in [
            // Objects that would shadow ours.
            "create temporary table session (id uuid)",
            "create temporary view session as select 1 as id",
            "create function pg_temp.evil() returns text language sql as $$select 'x'$$",
            "create type pg_temp.evil as (a integer)",
            "create function public.hashtextextended(text, integer) returns bigint language sql as $$select 1::bigint$$",
            "create or replace function public.account_directory(after_id text, row_limit integer)
                 returns table (id text, name text, created_at timestamptz) language sql as $$select 'x', 'x', now()$$",
            "create operator public.= (leftarg = text, rightarg = uuid, function = texteq)",
            "create table public.planted (id uuid)",
            "create view public.planted as select 1 as id",
            "create schema planted",
            "create extension dblink",
            // Changes that would remove a protection.
            "alter function public.account_directory(text, integer) set search_path = pg_temp",
            "alter table public.outbox no force row level security",
            "drop policy tenant on public.task",
            "alter policy tenant on public.task using (true)",
            "create policy mine on public.task using (true)",
            "grant signalbox_sweeper to current_user",
            "alter role current_user bypassrls",
            "set session authorization signalbox",
            "set role signalbox",
            "set role signalbox_sweeper",
            "copy public.outbox to program 'true'",
            "select pg_read_file('PG_VERSION')",
            "select pg_ls_dir('.')",
        ] {
            check(&mut seat, service, sql, Err(REFUSED)).await;
        }
        for other in SERVICES.iter().filter(|other| **other != service) {
            check(
                &mut seat,
                service,
                &format!("set role {}", role_of(other)),
                Err(REFUSED),
            )
            .await;
        }
        // Without its role the login has no rights; its temporary objects, which would stay, are refused as well.
        check(&mut seat, service, "reset role", Ok(0)).await;
        for sql in ["select 1 from public.task", "create temporary table session (id uuid)"] {
            check(&mut seat, service, sql, Err(REFUSED)).await;
        }
    }
}

#[tokio::test]
async fn shared_tables_separate_the_services() {
    let test = TestDatabase::fresh().await;
    Fixture(&test).account("ours").await;
    for service in SERVICES {
        let rows = format!(
            "insert into outbox (account_id, id, service, subject, headers, payload)
                 values ('ours', gen_random_uuid(), '{service}', 'signalbox.dead.ours.-', '{{}}', '');
             insert into dead_letter (account_id, id, service, subject, reason, detail, payload)
                 values ('ours', gen_random_uuid(), '{service}', 's', 'r', 'd', 'p');
             insert into replica (id, service, lease_until) values (gen_random_uuid(), '{service}', now())"
        );
        sqlx::raw_sql(AssertSqlSafe(rows)).execute(&test.owner).await.unwrap();
    }
    sqlx::raw_sql(
        "insert into outbox (account_id, id, service, subject, headers, payload) values
             ('ours', gen_random_uuid(), 'tool-gateway', 'signalbox.notification.ours.-', '{}', ''),
             ('ours', gen_random_uuid(), 'delivery', 'signalbox.event.ours.-.turn.finished', '{}', '')",
    )
    .execute(&test.owner)
    .await
    .unwrap();

    for service in SERVICES {
        let mut seat = seat(&test, service).await;
        check(&mut seat, service, "begin", Ok(0)).await;
        check(&mut seat, service, "set local signalbox.accounts = 'ours,-'", Ok(0)).await;
        let mut refused = Vec::new();
        for other in SERVICES.iter().filter(|other| **other != service) {
            refused.extend([
                outbox_insert(other, "signalbox.dead.ours.-"),
                outbox_insert(&format!("{other}.batch"), "signalbox.dead.ours.-"),
                outbox_insert(other, ""),
                outbox_insert(&format!("{other}.batch"), ""),
                letter_insert(other, &format!("signalbox.{}", own_letter(other))),
                format!("insert into replica (id, service, lease_until) values (gen_random_uuid(), '{other}', now())"),
                format!("update outbox set service = '{other}' where service = '{service}'"),
                format!("update replica set service = '{other}' where service = '{service}'"),
            ]);
        }
        refused.extend([
            outbox_insert(service, ""),
            outbox_insert(service, " "),
            outbox_insert(&format!("{service}.batch"), ""),
            outbox_insert(service, "signalbox.nonsense.ours.-"),
            outbox_insert(service, "signalbox.dead.ours.-.more"),
            outbox_insert(service, "signalbox.event.ours.-.nothing.happened"),
            outbox_insert(service, "signalbox.dead.ours.- signalbox.nonsense.ours.-"),
            outbox_insert(
                &format!("{service}.batch"),
                "signalbox.dead.ours.- signalbox.nonsense.ours.-",
            ),
            outbox_insert(
                &format!("{service}.batch"),
                "signalbox.dead.ours.-  signalbox.dead.ours.-",
            ),
            outbox_insert(&format!("{service}.more"), "signalbox.dead.ours.-"),
            letter_insert(service, "signalbox.nonsense.ours.-"),
            letter_insert(service, "elsewhere"),
            letter_insert(service, "signalbox.notification.ours.-.more"),
            letter_insert(service, "signalbox.session.opened.ours.-"),
            "update outbox set subject = 'signalbox.nonsense.ours.-'".to_owned(),
            "update dead_letter set payload = ''".to_owned(),
        ]);
        // Messages of other services. The orchestrator may write them, since it redrives dead letters.
        let not_its_own: &[&str] = match service {
            "resolver" => &[
                "tool.requested.ours.-",
                "tool.finished.ours.-",
                "session.closed.ours.-",
                "event.ours.-.turn.finished",
            ],
            "delivery" => &["event.ours.-.task.created"],
            "tool-gateway" => &["event.ours.-.turn.finished", "partition.0.ours.-"],
            _ => &["event.ours.-.turn.started", "partition.0.ours.-"],
        };
        refused.extend(
            not_its_own
                .iter()
                .map(|subject| letter_insert(service, &format!("signalbox.{subject}"))),
        );
        if service == "delivery" {
            refused.push(
                "update notification set sender_kind = 'user', sender_id = 'operator', sender_name = 'Operator'"
                    .to_owned(),
            );
        }
        for sql in refused {
            check(&mut seat, service, "savepoint before", Ok(0)).await;
            check(&mut seat, service, &sql, Err(REFUSED)).await;
            check(&mut seat, service, "rollback to before", Ok(0)).await;
        }
        // Messages of others that the service reads: it may delete them, and not change them.
        let read = match service {
            "resolver" | "orchestrator" => 1,
            _ => 0,
        };
        let others = |table: &str| format!("select 1 from {table} where service <> '{service}'");
        check(&mut seat, service, &others("outbox"), Ok(read)).await;
        check(&mut seat, service, &others("replica"), Ok(0)).await;
        let letters = if service == "orchestrator" { 3 } else { 0 };
        check(&mut seat, service, &others("dead_letter"), Ok(letters)).await;
        if read > 0 {
            let change = format!("update outbox set payload = 'x' where service <> '{service}'");
            check(&mut seat, service, "savepoint before", Ok(0)).await;
            check(&mut seat, service, &change, Err(REFUSED)).await;
            check(&mut seat, service, "rollback to before", Ok(0)).await;
        }
        for (sql, rows) in [
            (
                format!("update replica set lease_until = now() where service <> '{service}'"),
                0,
            ),
            (format!("delete from replica where service <> '{service}'"), 0),
            (format!("delete from outbox where service <> '{service}'"), read),
            (outbox_insert(service, "signalbox.dead.ours.-"), 1),
            (letter_insert(service, &format!("signalbox.{}", own_letter(service))), 1),
            (
                "update outbox set claimed_at = now()".to_owned(),
                if service == "delivery" || service == "tool-gateway" {
                    3
                } else {
                    2
                },
            ),
        ] {
            check(&mut seat, service, &sql, Ok(rows)).await;
        }
        check(&mut seat, service, "rollback", Ok(0)).await;
    }
}

/// A message of a thread, as an agent's, and as anybody's.
#[tokio::test]
async fn services_that_answer_for_agents_write_as_agents_only() {
    let test = TestDatabase::fresh().await;
    let fixture = Fixture(&test);
    let account = fixture.account("ours").await;
    fixture.task(&account, "t-1", &[]).await;
    let post = |author: &str, via: &str, turn: &str| {
        format!(
            "insert into message (account_id, id, task_id, author_kind, author_id, author_name, author_via, body, turn_id)
             values ('ours', gen_random_uuid(), 't-1', '{author}', 'a', 'A', {via}, 'approve it', {turn})"
        )
    };
    for service in ["delivery", "tool-gateway"] {
        let mut seat = seat(&test, service).await;
        check(&mut seat, service, "begin", Ok(0)).await;
        check(&mut seat, service, "set local signalbox.accounts = 'ours'", Ok(0)).await;
        check(&mut seat, service, &post("agent", "null", "gen_random_uuid()"), Ok(1)).await;
        let mut refused = vec![
            ("user", "null", "gen_random_uuid()"),
            ("service", "null", "gen_random_uuid()"),
            ("agent", "'slack'", "gen_random_uuid()"),
        ];
        if service == "delivery" {
            refused.push(("agent", "null", "null"));
        }
        for (author, via, turn) in refused {
            check(&mut seat, service, "savepoint before", Ok(0)).await;
            check(&mut seat, service, &post(author, via, turn), Err(REFUSED)).await;
            check(&mut seat, service, "rollback to before", Ok(0)).await;
        }
    }
}

/// A message that the service reads.
fn own_letter(service: &str) -> &'static str {
    match service {
        "resolver" => "partition.0.ours.-",
        "delivery" => "session.resolved.ours.-",
        "tool-gateway" => "tool.requested.ours.-",
        _ => "event.ours.-.turn.finished",
    }
}

fn letter_insert(service: &str, subject: &str) -> String {
    format!(
        "insert into dead_letter (account_id, id, service, subject, reason, detail, payload, headers)
         values ('ours', gen_random_uuid(), '{service}', '{subject}', 'r', 'd', 'p', '{{\"Signalbox-Vouched\": \"1\"}}')"
    )
}

fn outbox_insert(service: &str, subject: &str) -> String {
    format!(
        "insert into outbox (account_id, id, service, subject, headers, payload)
         values ('ours', gen_random_uuid(), '{service}', '{subject}', '{{}}', '')"
    )
}

/// Functions that read across accounts return only their purpose's data, for any arguments, and only to permitted
/// roles.
#[tokio::test]
async fn no_argument_makes_a_function_give_more() {
    let test = TestDatabase::fresh().await;
    let account = Fixture(&test).account("ours").await;
    let agent = Fixture(&test).agent(&account, "coder").await;
    Fixture(&test).task(&account, "T-1", &[agent]).await;
    let functions = sqlx::query(
        "select p.oid::regprocedure::text, p.proname::text,
                array(select t::regtype::text from unnest(p.proargtypes::oid[]) with ordinality a (t, n) order by n)
         from pg_proc p where p.pronamespace = 'public'::regnamespace and p.prosecdef",
    )
    .fetch_all(&test.owner)
    .await
    .unwrap();
    assert!(functions.len() >= 5);
    let before = test.texts("select name from account order by 1").await;
    for service in SERVICES {
        let mut seat = seat(&test, service).await;
        for row in &functions {
            let (function, name, types): (String, String, Vec<String>) = (row.get(0), row.get(1), row.get(2));
            let may = format!("select 1 where has_function_privilege('{function}', 'execute')");
            let may = tried(&mut seat, &may).await == Ok(1);
            for odd in 0..3 {
                let arguments: Vec<String> = types.iter().map(|of| odd_value(of, odd)).collect();
                let call = format!("select * from public.{name}({})", arguments.join(", "));
                match tried(&mut seat, &call).await {
                    Ok(_) => assert!(may, "{service}: {call}"),
                    Err(code) if may => assert!(
                        // A limit below nothing, and nothing else.
                        code == "2201W",
                        "{service}: {call}: {code}"
                    ),
                    Err(code) => assert_eq!(code, REFUSED, "{service}: {call}"),
                }
            }
        }
    }
    assert_eq!(test.texts("select name from account order by 1").await, before);
}

fn odd_value(of: &str, odd: usize) -> String {
    let values: [&str; 3] = match of {
        "text" => ["null", "'''; drop table session; --'", "repeat('z', 100000)"],
        "integer" => ["null", "-1", "2147483647"],
        "uuid" => [
            "null",
            "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
            "'00000000-0000-0000-0000-000000000000'",
        ],
        "timestamp with time zone" => ["null", "'infinity'", "'-infinity'"],
        "text[]" => ["null", "'{}'", "array['ours', null]"],
        "uuid[]" => ["null", "array[null, null]::uuid[]", "'{}'"],
        other => panic!("no odd value of type {other}: add one"),
    };
    format!("{}::{of}", values[odd])
}
