//! Pages have limits, whatever a tenant has stored: of bytes, and of the rows that a filter scans. No row is lost or repeated at a
//! page's end.

use std::{collections::BTreeSet, num::NonZeroU32};

use api::messages::Message;
use orchestrator::{
    messages::store::LIST,
    paging::{Limit, List, Page},
};
use runtime::settings::{Bytes, Count};
use testkit::rows;

use crate::{
    seed::{self, Ended},
    world::{Tenant, World},
};

const BYTES_MAX: usize = 100_000;
const LOOKED_AT_MAX: usize = 100;

async fn world() -> (World, Tenant) {
    let world = World::with(|settings| {
        settings.list_bytes_max = Bytes::new(BYTES_MAX as u64);
        settings.scan_rows_max = Count::new(LOOKED_AT_MAX as u32);
    })
    .await;
    let tenant = world.tenant("acme").await;
    (world, tenant)
}

/// Reads a whole list; gives the number of items of each page. No page exceeds its limit.
async fn pages(world: &World, tenant: &Tenant, list: &str, name: &str) -> Vec<usize> {
    let (mut seen, mut counts) = (BTreeSet::new(), Vec::new());
    let mut path = tenant.path(list);
    loop {
        let page = world.get(&tenant.admin, &path).await;
        assert_eq!(page.status, 200, "{path}: {page:?}");
        let ids = page.column(name);
        let bytes = page.body.to_string().len();
        assert!(ids.len() < 2 || bytes <= BYTES_MAX + 256, "{path}: {bytes} bytes");
        counts.push(ids.len());
        for id in ids {
            assert!(seen.insert(id), "{path}: comes twice");
        }
        let Some(cursor) = page.body["next_cursor"].as_str() else {
            return counts;
        };
        let separator = if list.contains('?') { '&' } else { '?' };
        path = tenant.path(&format!("{list}{separator}cursor={cursor}"));
    }
}

#[tokio::test]
async fn a_page_has_so_many_bytes_and_the_rest_is_on_the_next() {
    let (world, tenant) = world().await;
    let agent = world.agent(&tenant, "coder").await;
    world.task(&tenant, "T", &["coder"]).await;
    // Control characters take six bytes each in JSON.
    let bodies = "repeat(case n % 2 when 0 then 'x' else chr(1) end, 30000)";
    for rows in [
        rows("message")
            .with("task_id", "t")
            .set("body", bodies)
            .from("generate_series(1, 20) n"),
        rows("task")
            .set("display_id", "'long-' || n")
            .with("description", "x".repeat(60_000))
            .from("generate_series(1, 9) n"),
        rows("dead_letter")
            .with("payload", "x".repeat(200_000))
            .from("generate_series(1, 3)"),
    ] {
        rows.insert(&world.test.owner).await;
    }
    let messages = pages(&world, &tenant, "/tasks/T/messages", "id").await;
    assert_eq!(messages.iter().sum::<usize>(), 20);
    assert!(
        messages.len() > 10 && messages.iter().all(|count| *count >= 1),
        "{messages:?}"
    );
    let tasks = pages(&world, &tenant, "/tasks", "id").await;
    assert_eq!(tasks.iter().sum::<usize>(), 10);
    assert!(tasks.len() >= 9, "{tasks:?}");
    assert_eq!(pages(&world, &tenant, "/dead-letters", "id").await, [1, 1, 1]);

    let session = seed::session(&world, &tenant, "T", &agent, 1, true).await;
    let mut last = None;
    for number in 1..=3 {
        let turn = seed::turn(&world, &tenant, session, number, Ended::default()).await;
        for ordinal in 0..3 {
            seed::tool_call(&world, &tenant, turn, ordinal, &format!("\"{}\"", "x".repeat(45_000))).await;
        }
        last = Some(turn);
    }
    let turns = format!("/sessions/{session}/turns");
    assert_eq!(pages(&world, &tenant, &turns, "id").await, [1, 1, 1]);
    // A turn that is too long alone reports its left-out calls and where they are listed.
    let turn = last.unwrap();
    let (short, long) = (format!("/turns/{turn}"), format!("/turns/{turn}/tool-calls"));
    let whole = world.get(&tenant.admin, &tenant.path(&short)).await;
    assert_eq!(whole.body["tool_calls"].as_array().unwrap().len(), 3);
    seed::tool_call(&world, &tenant, turn, 3, "{}").await;
    let cut = world.get(&tenant.admin, &tenant.path(&short)).await;
    assert_eq!(cut.body["tool_calls"].as_array().unwrap().len(), 3);
    assert_eq!(cut.body["tool_calls_left_out"], 1);
    assert_eq!(pages(&world, &tenant, &long, "call_id").await, [2, 2]);
    let missing = tenant.path(&format!("/turns/{session}/tool-calls"));
    world
        .get(&tenant.admin, &missing)
        .await
        .is_problem(404, "not_found", "");
}

/// Rows after the end of a page are not read from the database.
#[tokio::test]
async fn no_more_is_read_than_a_page_may_have() {
    let (world, tenant) = world().await;
    world.task(&tenant, "T", &[]).await;
    let messages = rows("message").with("task_id", "t").with("body", "x".repeat(30_000));
    messages.from("generate_series(1, 20)").insert(&world.test.owner).await;
    let account = domain::AccountId::parse(&tenant.id).unwrap();
    let task = domain::TaskId::parse("T").unwrap();
    let list = List::of(&LIST, "messages", &account, &task);
    let page = Page::new(
        list,
        &world.app.settings,
        Some(Limit(NonZeroU32::new(200).unwrap())),
        None,
    )
    .unwrap();
    let tx = world.app.begin_sweep(&account).await.unwrap();
    let read = page
        .read::<Message>(&tx, &LIST, [task.key().into()], "list messages")
        .await;
    assert_eq!(read.unwrap().rows.len(), 4);
}

/// A slow list ends after its own timeout, far below that of other statements.
#[tokio::test]
async fn a_list_takes_its_time_and_no_more() {
    let world = World::with(|settings| settings.list_timeout_ms = runtime::settings::Millis::new(50)).await;
    let tenant = world.tenant("acme").await;
    let mut held = world.test.owner.begin().await.unwrap();
    sqlx::query("lock table task in access exclusive mode")
        .execute(&mut *held)
        .await
        .unwrap();
    let answer = world.get(&tenant.member, &tenant.path("/tasks")).await;
    held.rollback().await.unwrap();
    answer.is_problem(503, "unavailable", "took too long");
}

/// Of a thousand rows, only the last one matches. Each request scans a hundred.
#[tokio::test]
async fn a_filter_looks_at_so_many_rows_and_says_where_it_goes_on() {
    let (world, tenant) = world().await;
    let (many, later) = ("generate_series(1, 1000) n", "now() + n * interval '1 ms'");
    let but_the_first = |word: &str, other: &str| format!("case n when 1 then {word} else {other} end");
    for rows in [
        rows("notification")
            .set("id", "'n-' || n")
            .set("state", but_the_first("'failed'", "'delivered'"))
            .set("created_at", later)
            .from(many),
        rows("task")
            .set("display_id", "'t-' || n")
            .set("status", but_the_first("'done'", "'inbox'"))
            .set("created_at", later)
            .from(many),
        rows("agent").set("slug", "'a-' || n").from(many),
        rows("api_key")
            .set("id", "md5(n::text)")
            .set("revoked_at", "now()")
            .from(many),
        rows("session")
            .set("opened_at", "now() + row_number() over () * interval '1 ms'")
            .set("closed_at", "case a.slug when 'a-7' then null else now() end")
            .from("agent a"),
    ] {
        rows.insert(&world.test.owner).await;
    }
    for (list, name, wanted) in [
        ("/notifications?state=failed&limit=1", "id", 1),
        ("/notifications?agent=a-1", "id", 0),
        ("/tasks?status=done", "id", 1),
        ("/agents?kind=orchestrator", "handle", 0),
        ("/keys", "id", 5),
        ("/sessions?active=true", "id", 1),
        ("/sessions?agent=a-1", "id", 1),
    ] {
        let counts = pages(&world, &tenant, list, name).await;
        assert_eq!(counts.iter().sum::<usize>(), wanted, "{list}: {counts:?}");
        assert!(counts.len() >= 10, "{list}: {counts:?}");
    }
    // Without a filter a page is full.
    let all = pages(&world, &tenant, "/notifications?limit=200", "id").await;
    assert_eq!(all.iter().sum::<usize>(), 1000);
    assert!(all.len() <= 6, "{all:?}");
}
