//! What orchestrators remember, as people read and write it; and the sweep of what has faded.

use std::collections::BTreeMap;

use domain::{AccountId, MemoryCategory, MemoryId, Owner, Relevance, UserId};
use orchestrator::forget::forget_once;
use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::TestRunner,
};
use serde_json::{Value, json};
use storage::{
    Accounts, Role,
    lifecycle::memory::{MemoryOf, NewMemory, Wanted, memories_recall, memory_write},
};
use time::{Duration, OffsetDateTime};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{members::member, world::World};

const MINE: &str = "/api/me/memories";
const OF_SESSIONS: &str = "/api/me/memories/session";

fn contents(answer: &Value) -> Vec<&str> {
    let items = answer["items"].as_array().unwrap();
    items.iter().map(|item| item["content"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_person_writes_finds_and_removes_memories() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    let write = async |body: Value| world.post(&ann, MINE, body).await;
    let first = write(
        json!({"content": "The team of acme/billing prefers Rust.", "category": "repo_affinity", "key": " Billing "}),
    )
    .await;
    assert_eq!(
        (first.status.as_u16(), &first.body["replaced"], &first.body["pruned"]),
        (201, &json!(false), &json!(0)),
        "{first:?}"
    );
    // The key in another spelling, and no key: the same content.
    let again = write(json!({"content": "They prefer Go.", "category": "repo_affinity", "key": "BILLING"})).await;
    assert_eq!(again.body["id"], first.body["id"]);
    assert_eq!(again.body["replaced"], true);
    for replaced in [false, true] {
        let written = write(json!({"content": "  Lunch is at noon. "})).await;
        assert_eq!(written.body["replaced"], replaced, "{written:?}");
    }
    let all = world.get(&ann, MINE).await;
    assert_eq!(contents(&all.body).len(), 2);
    assert_eq!(all.body["matched"], true);
    let of = async |query: &str| world.get(&ann, &format!("{MINE}?{query}")).await.body;
    let found = of("query=prefer%20nothing-else").await;
    assert_eq!(contents(&found), ["They prefer Go."]);
    assert_eq!(
        (&found["items"][0]["key"], &found["items"][0]["access_count"]),
        (&json!("billing"), &json!(0)),
        "a person's look counts for nothing: {found}"
    );
    // A word's beginning, from three letters; with less, the word only.
    assert_eq!(contents(&of("query=lun").await), ["  Lunch is at noon. "]);
    let none = of("query=lu").await;
    assert_eq!((contents(&none).len(), &none["matched"]), (2, &json!(false)));
    assert_eq!(contents(&of("category=general").await), ["  Lunch is at noon. "]);
    assert!(contents(&of("category=task_pattern").await).is_empty());

    let path = format!("{MINE}/{}", first.body["id"].as_str().unwrap());
    assert_eq!(world.delete(&ann, &path).await.status, 204);
    world.delete(&ann, &path).await.is_problem(404, "not_found", "");
    assert_eq!(contents(&world.get(&ann, MINE).await.body).len(), 1);

    let changed = world.sent_on("signalbox.event.acme.-.memory.changed").await;
    let said: Vec<&str> = changed
        .iter()
        .map(|sent| sent.payload["data"]["change"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(said, ["created", "changed", "created", "changed", "removed"]);
    assert!(changed.iter().all(|sent| !sent.payload.to_string().contains("prefer")));
}

#[tokio::test]
async fn what_is_no_memory_is_refused() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    for (path, body, code) in [
        (MINE, json!({"content": " "}), "invalid_field"),
        (MINE, json!({"content": "x".repeat(4097)}), "invalid_field"),
        (MINE, json!({"content": "x", "category": "gossip"}), "invalid_field"),
        (MINE, json!({"content": "x", "key": "k".repeat(129)}), "invalid_field"),
        (MINE, json!({"content": "x", "repo": "acme/billing"}), "invalid_field"),
        (OF_SESSIONS, json!({"content": "x"}), "no_repository"),
    ] {
        world.post(&ann, path, body.clone()).await.is_problem(400, code, "");
    }
    world
        .get(&ann, OF_SESSIONS)
        .await
        .is_problem(400, "no_repository", "repo");
    world
        .get(&ann, &format!("{MINE}?category=gossip"))
        .await
        .is_problem(400, "invalid_field", "");
    // A key of the account is nobody.
    world.get(&tenant.admin, MINE).await.is_problem(403, "not_a_person", "");
}

/// An orchestrator's, and those of sessions by repository, are apart; and a person's from all others', an admin's too.
#[tokio::test]
async fn memories_are_of_one_owner_and_one_repository() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    let ben = member(&world, &tenant, "ben", "admin").await;
    world.post(&ann, MINE, json!({"content": "ann's own"})).await;
    for repo in ["Acme/Billing ", "acme/shop"] {
        let new = json!({"content": format!("of {repo}"), "repoFullName": repo});
        assert_eq!(world.post(&ann, OF_SESSIONS, new).await.status, 201);
    }
    let id = world.get(&ann, MINE).await.body["items"][0]["id"].clone();
    for (key, path, expected) in [
        (&ann, MINE.to_owned(), vec!["ann's own"]),
        (
            &ann,
            format!("{OF_SESSIONS}?repo=acme/billing"),
            vec!["of Acme/Billing "],
        ),
        (&ben, MINE.to_owned(), vec![]),
        (&ben, format!("{OF_SESSIONS}?repo=acme/shop"), vec![]),
        (&ben, tenant.path("/orchestrator/memories"), vec![]),
    ] {
        let found = world.get(key, &path).await;
        assert_eq!(contents(&found.body), expected, "{path}");
    }
    let path = format!("{MINE}/{}", id.as_str().unwrap());
    world.delete(&ben, &path).await.is_problem(404, "not_found", "");
    assert_eq!(
        world.get(&ann, &tenant.path("/orchestrator/memories")).await.status,
        403
    );
}

#[tokio::test]
async fn of_201_the_least_relevant_other_goes() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    world
        .execute(
            "insert into memory (account_id, id, owner, key, category, content, relevance, touched_at, fades_at, created_at)
             select 'acme', gen_random_uuid(), 'user:ann', 'k' || n, 'general', 'memory ' || n, 1, now() - n * interval '1 hour',
                    now() + (9000 - n) * interval '1 hour', now()
             from generate_series(1, 200) n",
        )
        .await;
    let written = world.post(&ann, MINE, json!({"content": "one more"})).await;
    assert_eq!(written.body["pruned"], 1, "{written:?}");
    let all = world.get(&ann, MINE).await.body;
    let all = contents(&all);
    assert_eq!(all.len(), 200);
    assert!(!all.contains(&"memory 200") && all.contains(&"memory 199") && all[0] == "one more");
}

/// What has faded is neither returned nor kept; what an agent reads, is freshened.
#[tokio::test]
async fn memories_fade_unless_they_are_read() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    for content in ["faded", "fading", "fresh"] {
        world.post(&ann, MINE, json!({"content": content})).await;
    }
    world
        .execute(
            "update memory m set touched_at = now() - f.days * interval '1 day', fades_at = m.fades_at - f.days * interval '1 day'
             from (values ('faded', 240), ('fading', 100)) as f (content, days) where m.content = f.content",
        )
        .await;
    let found = world.get(&ann, MINE).await.body;
    assert_eq!(contents(&found), ["fresh", "fading"]);
    let relevance = |found: &Value, n: usize| found["items"][n]["relevance"].as_f64().unwrap();
    assert!((relevance(&found, 1) - 0.366).abs() < 0.001, "{found}");

    let (account, user) = (AccountId::parse("acme").unwrap(), UserId::parse("ann").unwrap());
    let owner = Owner::User(user);
    let database = world.test.connect(Role::ToolGateway).await;
    let tx = database.begin(&Accounts::one(&account)).await.unwrap();
    let of = MemoryOf {
        account: &account,
        owner: &owner,
        repository: None,
    };
    let wanted = Wanted {
        categories: MemoryCategory::ALL,
        query: Some("fading"),
        memories_max: 10,
        bytes_max: usize::MAX,
        now: OffsetDateTime::now_utc(),
    };
    let recalled = memories_recall(&tx, of, &wanted).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(recalled.rows.len(), 1);
    let found = world.get(&ann, MINE).await.body;
    assert!((relevance(&found, 1) - 0.466).abs() < 0.001, "{found}");
    assert_eq!(found["items"][1]["access_count"], 1);

    let kept = "select content from memory order by content";
    assert_eq!(world.test.texts(kept).await, ["faded", "fading", "fresh"]);
    forget_once(&world.app, &CancellationToken::new()).await.unwrap();
    assert_eq!(world.test.texts(kept).await, ["fading", "fresh"]);
}

/// Keys, and how relevant each is at this moment.
async fn stored(world: &World, at: OffsetDateTime) -> BTreeMap<String, f64> {
    let rows = "select key || ' ' || relevance || ' ' || extract(epoch from touched_at)::double precision from memory";
    let rows = world.test.texts(rows).await;
    let read = |row: String| {
        let mut words = row.split(' ');
        let key = words.next()?.to_owned();
        let (stored, touched) = (words.next()?.parse().ok()?, words.next()?.parse::<f64>().ok()?);
        let touched_at = OffsetDateTime::UNIX_EPOCH + Duration::seconds_f64(touched);
        Some((key, Relevance { stored, touched_at }.now(at)))
    };
    rows.into_iter().map(|row| read(row).expect("three words")).collect()
}

/// Whatever is written and read: never more than 200, and what goes is never more relevant than another one that stays.
#[tokio::test]
async fn never_more_than_200_and_the_least_relevant_one_goes() {
    let world = World::new().await;
    world.tenant("acme").await;
    let (account, owner) = (AccountId::parse("acme").unwrap(), Owner::Account);
    let of = MemoryOf {
        account: &account,
        owner: &owner,
        repository: None,
    };
    let database = world.test.connect(Role::Orchestrator).await;
    let mut runner = TestRunner::deterministic();
    // A key, whether it is read, and how many hours pass.
    let act = (0..260_u32, 0..4_u32, 0..72_i64);
    let mut now = OffsetDateTime::now_utc() - Duration::days(1000);
    let mut pruned = 0;
    for _ in 0..1_200 {
        let (key, kind, hours) = act.new_tree(&mut runner).unwrap().current();
        now += Duration::hours(hours) + Duration::SECOND;
        let (key, content) = (format!("k{key}"), format!("memory of {key}"));
        let tx = database.begin(&Accounts::one(&account)).await.unwrap();
        if kind == 0 {
            let wanted = Wanted {
                categories: MemoryCategory::ALL,
                query: Some(&content),
                memories_max: 10,
                bytes_max: usize::MAX,
                now,
            };
            memories_recall(&tx, of, &wanted).await.unwrap();
            tx.commit().await.unwrap();
            continue;
        }
        let before = stored(&world, now).await;
        let new = NewMemory {
            id: MemoryId(Uuid::now_v7()),
            category: MemoryCategory::General,
            content: &content,
            key: Some(&key),
            session: None,
            now,
        };
        let written = memory_write(&tx, of, &new).await.unwrap();
        tx.commit().await.unwrap();
        let after = stored(&world, now).await;
        assert!(after.len() <= 200 && (after[&key] - 1.0).abs() < 1e-9);
        let gone: Vec<f64> = before
            .iter()
            .filter(|(key, _)| !after.contains_key(*key))
            .map(|(_, relevance)| *relevance)
            .collect();
        assert_eq!(written.replaced, before.contains_key(&key));
        assert_eq!(gone.len(), usize::try_from(written.pruned).unwrap());
        assert_eq!(
            gone.len(),
            (before.len() + usize::from(!written.replaced)).saturating_sub(200)
        );
        let others = after.iter().filter(|(other, _)| **other != key);
        let least = others.map(|(_, relevance)| *relevance).fold(1.0, f64::min);
        assert!(
            gone.iter().all(|relevance| *relevance <= least + 1e-9),
            "{gone:?} {least}"
        );
        pruned += written.pruned;
    }
    assert!(pruned > 50, "{pruned}");
}

#[tokio::test]
async fn two_writers_at_199_leave_200_and_one_key_has_one_memory() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    world
        .execute(
            "insert into memory (account_id, id, owner, key, category, content, relevance, touched_at, fades_at, created_at)
             select 'acme', gen_random_uuid(), 'user:ann', 'k' || n, 'general', 'm', 0.5, now(), now() + interval '1 day', now()
             from generate_series(1, 199) n",
        )
        .await;
    let write = async |content: &str| {
        world
            .post(&ann, MINE, json!({"content": content, "key": "shared"}))
            .await
    };
    let (one, other) = tokio::join!(write("one"), write("other"));
    assert_eq!(one.body["id"], other.body["id"], "{one:?} {other:?}");
    world.execute("delete from memory where key = 'shared'").await;
    // The second one waits until the first one is there to be counted.
    let (account, user) = (AccountId::parse("acme").unwrap(), UserId::parse("ann").unwrap());
    let owner = Owner::User(user.clone());
    let of = MemoryOf {
        account: &account,
        owner: &owner,
        repository: None,
    };
    let new = NewMemory {
        id: MemoryId(Uuid::now_v7()),
        category: MemoryCategory::General,
        content: "one",
        key: None,
        session: None,
        now: OffsetDateTime::now_utc(),
    };
    let database = world.test.connect(Role::Orchestrator).await;
    let tx = database
        .begin(&Accounts::one(&account).with_person(&user))
        .await
        .unwrap();
    assert_eq!(memory_write(&tx, of, &new).await.unwrap().pruned, 0);
    let first = async {
        let waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted";
        testkit::eventually("the second one waits", async || {
            (world.test.count(waits).await > 0).then_some(())
        })
        .await;
        tx.commit().await.unwrap();
    };
    let (other, ()) = tokio::join!(world.post(&ann, MINE, json!({"content": "other"})), first);
    assert_eq!(other.body["pruned"], 1, "{other:?}");
    assert_eq!(world.test.count("select count(*) from memory").await, 200);
}
