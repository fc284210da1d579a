//! `Idempotency-Key`: one effect, one answer (I17).

use axum::http::Method;
use serde_json::{Value, json};
use sqlx::Connection;
use testkit::rows;

use crate::{
    seed,
    world::{Answer, OPERATOR, Tenant, World},
};

async fn post(world: &World, token: &str, path: &str, key: &str, body: &Value) -> Answer {
    world
        .call(Method::POST, path)
        .token(token)
        .header("idempotency-key", key)
        .json(body)
        .send()
        .await
}

#[tokio::test]
async fn every_post_has_one_effect_and_one_answer() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "T", &["coder"]).await;
    world.task(&tenant, "U", &[]).await;
    let (busy, _) = seed::busy(&world, &tenant, "T", &coder).await;
    let parked = seed::parked(&world, &tenant, "U", &coder, "stopped").await;
    let letter = seed::letter(&world, "acme", "signalbox.notification.acme.-", "{}", json!({})).await;
    let own = seed::letter(&world, "-", "signalbox.notification.ghost.-", "{}", json!({})).await;
    let posts = [
        (OPERATOR, "/api/accounts".to_owned(), json!({"id": "new", "name": "n"})),
        (OPERATOR, format!("/api/dead-letters/{own}/redrive"), json!({})),
        (
            tenant.admin.as_str(),
            tenant.path("/agents"),
            json!({"slug": "new", "name": "n"}),
        ),
        (&tenant.admin, tenant.path("/tasks"), json!({"title": "t"})),
        (&tenant.admin, tenant.path("/tasks/T/messages"), json!({"body": "b"})),
        (
            &tenant.admin,
            tenant.path("/notifications"),
            json!({"body": "b", "agent": "coder"}),
        ),
        (
            &tenant.admin,
            tenant.path(&format!("/dead-letters/{letter}/redrive")),
            json!({}),
        ),
        (
            &tenant.member,
            tenant.path(&format!("/sessions/{busy}/stop")),
            json!({}),
        ),
        // No turn is in progress: answered 200.
        (
            &tenant.member,
            tenant.path(&format!("/sessions/{parked}/stop")),
            json!({}),
        ),
        (
            &tenant.member,
            tenant.path(&format!("/sessions/{parked}/resume")),
            json!({}),
        ),
        (
            &tenant.member,
            tenant.path(&format!("/sessions/{busy}/reset")),
            json!({"reason": "r"}),
        ),
        // No turn is in progress: answered 200.
        (
            &tenant.member,
            tenant.path(&format!("/sessions/{parked}/reset")),
            json!({"reason": "r"}),
        ),
    ];
    for (number, (token, path, body)) in posts.iter().enumerate() {
        let key = format!("key {number}");
        let first = post(&world, token, path, &key, body).await;
        assert!(first.status.is_success(), "{path}: {first:?}");
        assert!(!first.headers.contains_key("idempotency-replayed"));
        let sent = world.sent().await.len();
        let again = post(&world, token, path, &key, body).await;
        assert_eq!((again.status, &again.body), (first.status, &first.body), "{path}");
        assert_eq!(again.headers["idempotency-replayed"], "true", "{path}");
        assert_eq!(world.sent().await.len(), sent, "{path}: no second effect");
        let mut other = body.clone();
        other["title"] = json!("another");
        if path.ends_with("redrive") || !path.ends_with("/tasks") {
            // another request under the same key, on any route
            continue;
        }
        post(&world, token, path, &key, &other)
            .await
            .is_problem(422, "idempotency_key_reused", "");
    }
    let elsewhere = post(
        &world,
        &tenant.admin,
        &tenant.path("/agents"),
        "key 3",
        &json!({"slug": "x", "name": "x"}),
    )
    .await;
    elsewhere.is_problem(422, "idempotency_key_reused", "");
}

/// I14: the key's secret is in no table.
#[tokio::test]
async fn a_key_is_not_given_again() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let body = json!({"name": "CI", "role": "service"});
    let first = post(&world, &tenant.admin, &tenant.path("/keys"), "k", &body).await;
    let secret = first.body["key"]
        .as_str()
        .unwrap()
        .split('_')
        .nth(3)
        .unwrap()
        .to_owned();
    let again = post(&world, &tenant.admin, &tenant.path("/keys"), "k", &body).await;
    assert_eq!((again.status.as_u16(), &again.body["id"]), (201, &first.body["id"]));
    assert!(again.body["key"].is_null());
    let stored = world.test.texts("select body::text from idempotency").await;
    assert!(stored.iter().all(|body| !body.contains(&secret)));
    assert_eq!(
        world.get(&tenant.admin, &tenant.path("/keys")).await.column("id").len(),
        6
    );
}

#[tokio::test]
async fn a_key_belongs_to_its_account_and_a_refusal_takes_none() {
    let world = World::new().await;
    let (acme, other) = (world.tenant("acme").await, world.tenant("other").await);
    let task = |tenant: &Tenant| (tenant.member.clone(), tenant.path("/tasks"));
    for tenant in [&acme, &other] {
        let (token, path) = task(tenant);
        assert_eq!(
            post(&world, &token, &path, "same", &json!({"title": "t"})).await.status,
            201
        );
    }
    let (token, path) = task(&acme);
    let refused = post(
        &world,
        &token,
        &path,
        "mended",
        &json!({"title": "t", "assignees": ["ghost"]}),
    )
    .await;
    refused.is_problem(400, "unknown_agent", "");
    assert_eq!(
        post(&world, &token, &path, "mended", &json!({"title": "t"}))
            .await
            .status,
        201
    );
    let long = "k".repeat(256);
    post(&world, &token, &path, &long, &json!({"title": "t"}))
        .await
        .is_problem(400, "invalid_field", "Idempotency-Key");
}

#[tokio::test]
async fn a_request_in_flight_is_not_waited_for() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    // holds the lock as the transaction of the first request does
    let mut holder = sqlx::PgConnection::connect(&world.test.url).await.unwrap();
    let mut first = holder.begin().await.unwrap();
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('idempotency acme busy', 0))")
        .execute(&mut *first)
        .await
        .unwrap();
    let body = json!({"title": "t"});
    let second = post(&world, &tenant.member, &tenant.path("/tasks"), "busy", &body).await;
    second.is_problem(409, "request_in_flight", "");
    assert_eq!(second.headers["retry-after"], "1");
    first.rollback().await.unwrap();
    assert_eq!(
        post(&world, &tenant.member, &tenant.path("/tasks"), "busy", &body)
            .await
            .status,
        201
    );
}

/// Two principals that use the same key for the same request.
#[tokio::test]
async fn a_key_is_whoevers_who_chose_it() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.task(&tenant, "T", &[]).await;
    let (path, body) = (tenant.path("/tasks/T/messages"), json!({"body": "b"}));
    let mut authors = Vec::new();
    for token in [&tenant.member, &tenant.service, &tenant.admin, OPERATOR] {
        let first = post(&world, token, &path, "the-same", &body).await;
        assert_eq!(first.status, 201);
        assert!(!first.headers.contains_key("idempotency-replayed"));
        let again = post(&world, token, &path, "the-same", &body).await;
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        assert_eq!(again.headers["idempotency-replayed"], "true");
        authors.push(first.body["author"]["id"].as_str().unwrap().to_owned());
    }
    authors.dedup();
    assert_eq!(authors.len(), 4);
    assert_eq!(world.test.count("select count(*) from message").await, 4);
}

/// A stored answer of an older version has no principal. It is repeated, as that version would.
#[tokio::test]
async fn an_answer_of_the_version_before_is_given_again() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let (path, body) = (tenant.path("/tasks"), json!({"title": "t"}));
    let first = post(&world, &tenant.member, &path, "old", &body).await;
    world.execute("update idempotency set principal = ''").await;
    let again = post(&world, &tenant.member, &path, "old", &body).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.headers["idempotency-replayed"], "true");
}

#[tokio::test]
async fn many_at_once_are_one() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let (path, body) = (tenant.path("/tasks"), json!({"title": "t"}));
    let calls = (0..8).map(|_| post(&world, &tenant.member, &path, "race", &body));
    let answers = futures::future::join_all(calls).await;
    let made: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
    assert!(!made.is_empty());
    assert!(made.iter().all(|answer| answer.body == made[0].body));
    assert!(
        answers
            .iter()
            .all(|answer| answer.status == 201 || answer.body["code"] == "request_in_flight")
    );
    assert_eq!(world.test.count("select count(*) from task").await, 1);
}

/// Rows that cannot be removed in one account stay, and so do rows that another replica has locked; the rest is removed in pieces,
/// until none is left.
#[tokio::test]
async fn one_account_or_replica_keeps_nothing_from_being_forgotten() {
    let world = World::new().await;
    for account in ["acme", "beta"] {
        world.tenant(account).await;
    }
    let accepted = rows("accepted_notification")
        .set("account_id", "a.id")
        .set("id", "'n-' || n");
    let accepted = accepted.set("created_at", "now() - interval '8 days'");
    let accepted = accepted.from("generate_series(1, 12000) n, account a where a.id in ('acme', 'beta')");
    accepted.insert(&world.test.owner).await;
    sqlx::raw_sql(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$;
             create trigger refuse before delete on accepted_notification for each row when (old.account_id = 'acme')
                 execute function refuse();
             create function bounded() returns trigger language plpgsql as $$ begin
                 if (select count(*) from gone) > 5000 then raise 'more than a piece at once'; end if; return null;
             end $$;
             create trigger bounded after delete on accepted_notification referencing old table as gone
                 for each statement execute function bounded()",
    )
    .execute(&world.test.owner)
    .await
    .unwrap();
    let mut other = world.test.owner.begin().await.unwrap();
    sqlx::query("select 1 from accepted_notification where account_id = 'beta' and id = 'n-7' for update")
        .execute(&mut *other)
        .await
        .unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    assert!(orchestrator::forget::forget_once(&world.app, &stop).await.is_err());
    let left = "select account_id || ' ' || count(*) from accepted_notification group by account_id order by 1";
    assert_eq!(world.test.texts(left).await, ["acme 12000", "beta 1"]);
    other.rollback().await.unwrap();
}

/// Rows that are kept are not read, whatever their number. The test counts rows, since times depend on the machine.
#[tokio::test]
async fn what_is_too_young_to_be_forgotten_is_not_read() {
    let world = World::new().await;
    world.tenant("acme").await;
    let ago =
        |old: &str, young: &str| format!("now() - case when n <= 10 then interval '{old}' else interval '{young}' end");
    for rows in [
        rows("accepted_notification")
            .set("id", "'n-' || n")
            .set("created_at", ago("8 days", "1 day")),
        rows("idempotency")
            .set("key", "'k-' || n")
            .set("created_at", ago("2 days", "1 hour")),
    ] {
        rows.from("generate_series(1, 5000) n").insert(&world.test.owner).await;
    }
    const READ: &str = "
        select (sum(t.seq_tup_read) + (select sum(i.idx_tup_read) from pg_stat_user_indexes i
                                       where i.relname in ('accepted_notification', 'idempotency')))::bigint
        from pg_stat_user_tables t where t.relname in ('accepted_notification', 'idempotency')";
    let before = world.test.count(READ).await;
    let stop = tokio_util::sync::CancellationToken::new();
    let forgotten = orchestrator::forget::forget_once(&world.app, &stop).await;
    assert_eq!(forgotten.unwrap(), 20);
    world.app.database.close().await;
    // A backend reports its statistics when it ends.
    testkit::eventually("the service's backends have ended", async || {
        let backends = "select count(*) from pg_stat_activity
                        where datname = current_database() and application_name = 'signalbox-orchestrator'";
        (world.test.count(backends).await == 0).then_some(())
    })
    .await;
    let read = world.test.count(READ).await - before;
    assert!(read < 500, "{read} rows were read");
}

#[tokio::test]
async fn answers_are_forgotten_after_their_time() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    post(
        &world,
        OPERATOR,
        "/api/accounts",
        "k",
        &json!({"id": "new", "name": "n"}),
    )
    .await;
    for key in ["old", "new"] {
        post(
            &world,
            &tenant.member,
            &tenant.path("/tasks"),
            key,
            &json!({"title": "t"}),
        )
        .await;
    }
    for id in ["old", "new"] {
        world
            .post(
                &tenant.member,
                &tenant.path("/notifications"),
                json!({"id": id, "body": "b"}),
            )
            .await;
    }
    world
        .execute(
            "update idempotency set created_at = now() - interval '25 hours' where key = 'old' or account_id = '-'",
        )
        .await;
    world
        .execute("update accepted_notification set created_at = now() - interval '8 days' where id = 'old'")
        .await;
    for owner in ["acme", "-"] {
        let old = seed::letter(&world, owner, "signalbox.notification.acme.T", "{}", json!({})).await;
        seed::letter(&world, owner, "signalbox.notification.acme.T", "new", json!({})).await;
        sqlx::query("update dead_letter set created_at = now() - interval '91 days' where id = $1")
            .bind(old)
            .execute(&world.test.owner)
            .await
            .unwrap();
    }
    let stop = tokio_util::sync::CancellationToken::new();
    orchestrator::forget::forget_once(&world.app, &stop).await.unwrap();
    assert_eq!(world.test.texts("select key from idempotency").await, ["new"]);
    assert_eq!(world.test.texts("select id from accepted_notification").await, ["new"]);
    assert_eq!(
        world.test.texts("select payload from dead_letter").await,
        ["new", "new"]
    );
}

/// The database fails on more than three rows: all rows are removed, in smaller pieces.
#[tokio::test]
async fn what_is_too_much_to_forget_at_once_is_forgotten_in_less() {
    let world = World::new().await;
    world.tenant("acme").await;
    let accepted = rows("accepted_notification")
        .set("id", "'n-' || n")
        .set("created_at", "now() - interval '8 days'");
    accepted
        .from("generate_series(1, 20) n")
        .insert(&world.test.owner)
        .await;
    for sql in [
        "create function few() returns trigger language plpgsql as $$
         begin
             if (select count(*) from gone) > 3 then
                 raise 'too much' using errcode = '57014';
             end if;
             return null;
         end $$",
        "create trigger few after delete on accepted_notification referencing old table as gone for each statement
             execute function few()",
    ] {
        world.execute(sql).await;
    }
    let stop = tokio_util::sync::CancellationToken::new();
    let forgotten = orchestrator::forget::forget_once(&world.app, &stop).await.unwrap();
    assert_eq!(forgotten, 20);
    let left = "select count(*) from accepted_notification";
    assert_eq!(world.test.count(left).await, 0);
}
