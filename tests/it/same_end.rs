//! The work of one session, notification by notification, and the conditions that must hold at the end after any crash.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use testkit::{Reply, eventually};

use crate::house::House;

/// A tool call with an effect, then a reply.
fn script(seen: &testkit::Seen) -> Reply {
    if seen.tool_outputs().is_empty() {
        let words = seen.input();
        let id = words
            .lines()
            .find_map(|line| line.strip_prefix("Notification: "))
            .unwrap_or("?")
            .trim_matches('"')
            .to_owned();
        Reply::call(
            &format!("c-{id}"),
            "task_message",
            json!({"task_id": "T-1", "body": format!("effect of {id}")}),
        )
    } else {
        Reply::text("done")
    }
}

/// The conditions at the end.
pub(crate) async fn assert_end(house: &House, count: usize) {
    for n in 0..count {
        house.until("acme", &format!("n-{n}"), "delivered").await;
    }
    eventually("every reply is posted", || async {
        (house
            .world
            .database
            .count("select count(*) from message where body = 'done'")
            .await
            == i64::try_from(count).unwrap())
        .then_some(())
    })
    .await;
    let effects = house
        .world
        .database
        .texts("select body from message where body like 'effect of %' order by body")
        .await;
    let mut expected: Vec<String> = (0..count).map(|n| format!("effect of n-{n}")).collect();
    expected.sort();
    assert_eq!(effects, expected, "each effect once");
    let database = &house.world.database;
    assert_eq!(
        database
            .count("select count(*) from turn where state <> 'finished'")
            .await,
        0
    );
    assert_eq!(
        database.count("select count(*) from turn").await,
        i64::try_from(count).unwrap()
    );
    assert_eq!(
        database
            .count("select count(*) from session where closed_at is null")
            .await,
        1
    );
    assert_eq!(database.count("select count(*) from dead_letter").await, 0);
    let order: Vec<String> = database
        .texts("select notification_ids[1] from turn order by number")
        .await;
    assert_eq!(
        order,
        (0..count).map(|n| format!("n-{n}")).collect::<Vec<_>>(),
        "turns run in the order of acceptance"
    );
}

/// Every change has exactly one event: work that is not repeated after a crash may have died before its event was sent. For houses
/// whose event stream was neither wiped nor replayed.
pub(crate) async fn assert_events(house: &House, count: usize) {
    let expected = BTreeMap::from([
        ("message.posted".to_owned(), 2 * count),
        ("session.opened".to_owned(), 1),
        ("turn.finished".to_owned(), count),
        ("turn.started".to_owned(), count),
    ]);
    let jetstream = async_nats::jetstream::new(house.world.operator().await);
    eventually(&format!("the stream has the events {expected:?}"), || async {
        let mut stream = jetstream.get_stream("SIGNALBOX_EVENT").await.unwrap();
        let last = stream.info().await.unwrap().state.last_sequence;
        let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for sequence in 1..=last {
            let message = stream.get_raw_message(sequence).await.unwrap();
            // signalbox.event.{account}.{task}.{two words}
            let name = message.subject.splitn(5, '.').last().unwrap().to_owned();
            let id = message.headers.get("Nats-Msg-Id").unwrap().to_string();
            ids.entry(name).or_default().insert(id);
        }
        let mut found: BTreeMap<String, usize> = ids.into_iter().map(|(name, ids)| (name, ids.len())).collect();
        found.retain(|name, _| expected.contains_key(name));
        (found == expected).then_some(())
    })
    .await;
}

/// An account with one agent and one task.
pub(crate) async fn furnished(settings: &[(&str, &str)]) -> House {
    let house = House::open_with(script, settings).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &[]).await;
    house
}
