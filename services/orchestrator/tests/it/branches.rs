//! Branches over HTTP: lists, one in full, its end, and the graph of a task's turns.

use std::collections::BTreeSet;

use axum::http::Method;
use serde_json::{Value, json};
use testkit::rows;
use uuid::Uuid;

use crate::{
    seed,
    world::{Tenant, World},
};

/// A session with a turn in progress, two live branches of it, and one that has ended: the session, and the branches' ids.
async fn working(account: &str) -> (World, Tenant, Uuid, Vec<Uuid>) {
    let world = World::new().await;
    let tenant = world.tenant(account).await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    let (session, _) = seed::busy(&world, &tenant, "PROJ-7", &coder).await;
    let mut branches = Vec::new();
    for state in ["finished", "live", "live"] {
        branches.push(seed::branch(&world, &tenant, session, state).await.0);
    }
    (world, tenant, session, branches)
}

fn ids(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    items.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_task_shows_its_branches_newest_first() {
    let (world, tenant, session, branches) = working("acme").await;
    let path = tenant.path("/tasks/PROJ-7/branches");
    let newest: Vec<String> = branches.iter().rev().map(Uuid::to_string).collect();
    assert_eq!(ids(&world.get(&tenant.member, &path).await.body), newest);
    let live = world.get(&tenant.member, &format!("{path}?state=live")).await.body;
    assert_eq!(ids(&live), newest[..2]);
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = world.get(&tenant.member, &format!("{path}?limit=1{cursor}")).await.body;
        seen.extend(ids(&page));
        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, newest);
    world
        .get(&tenant.member, &format!("{path}?state=over"))
        .await
        .is_problem(400, "invalid_field", "state");
    let missing = tenant.path("/tasks/PROJ-8/branches");
    assert_eq!(world.get(&tenant.member, &missing).await.status, 404);

    let shown = world
        .get(&tenant.member, &tenant.path(&format!("/branches/{}", branches[0])))
        .await
        .body;
    let expected = json!({"task": "PROJ-7", "label": "tests", "state": "finished", "depth": 1, "ordinal": 1, "context": "snapshot",
        "join": "all", "parent_session_id": session});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&shown[name], value, "{name}");
    }
    assert_eq!(
        (&shown["agent"]["slug"], &shown["base"]["title"]),
        (&json!("coder"), &json!("t"))
    );
    let unknown = tenant.path(&format!("/branches/{}", Uuid::now_v7()));
    assert_eq!(world.get(&tenant.member, &unknown).await.status, 404);

    let of_session = tenant.path(&format!("/sessions?parent={session}"));
    let sessions = world.get(&tenant.member, &of_session).await.body;
    assert_eq!(ids(&sessions).len(), 3);
    for one in sessions["items"].as_array().unwrap() {
        assert_eq!(
            (&one["kind"], &one["parent_session_id"]),
            (&json!("branch"), &json!(session))
        );
        assert!(newest.contains(&one["branch_id"].as_str().unwrap().to_owned()), "{one}");
    }
}

#[tokio::test]
async fn a_branch_is_ended_once_by_whoever_may_stop_turns() {
    let (world, tenant, session, branches) = working("acme").await;
    let path = tenant.path(&format!("/branches/{}/cancel", branches[1]));
    for token in [&tenant.service, &tenant.publisher, &tenant.gateway] {
        assert_eq!(world.post(token, &path, json!({})).await.status, 403);
    }
    let cancel = async || {
        let call = world
            .call(Method::POST, &path)
            .token(&tenant.member)
            .header("idempotency-key", "k");
        call.json(&json!({"reason": "not needed"})).send().await
    };
    let first = cancel().await;
    assert_eq!(
        (first.status.as_u16(), &first.body["state"], &first.body["detail"]),
        (200, &json!("cancelled"), &json!("by a member: not needed"))
    );
    assert_eq!(
        cancel().await.body,
        first.body,
        "a repetition has the answer of the first"
    );
    let again = world.post(&tenant.admin, &path, json!({})).await;
    assert_eq!(
        (again.status.as_u16(), &again.body["ended_at"]),
        (200, &first.body["ended_at"])
    );
    let events = world.sent_on("signalbox.event.acme.PROJ-7.branch.ended").await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].payload["data"]["state"], "cancelled");
    let folded: &'static str = format!("select kind from notification where session_id = '{session}'").leak();
    assert_eq!(
        world.test.texts(folded).await,
        ["branch_result"],
        "each here is a group of its own"
    );
    let none = tenant.path(&format!("/branches/{}/cancel", Uuid::now_v7()));
    assert_eq!(world.post(&tenant.member, &none, json!({})).await.status, 404);
}

#[tokio::test]
async fn a_graph_is_read_by_pages_without_a_turn_twice() {
    let (world, tenant, session, branches) = working("acme").await;
    // Two more turns of the session, the first one with the result of the branch that has ended.
    let of_session = format!("session s where s.id = '{session}'");
    let item = rows("notification")
        .with("id", "r-1")
        .with("state", "delivered")
        .from(&of_session);
    item.insert(&world.test.owner).await;
    for number in 2..=3 {
        let row = rows("turn").with("number", number);
        let row = match number {
            2 => row.with("notification_ids", "{r-1}"),
            _ => row,
        };
        row.from(&of_session).insert(&world.test.owner).await;
    }
    world
        .execute(format!(
            "update branch set joined_item = 'r-1' where id = '{}'",
            branches[0]
        ))
        .await;
    let path = tenant.path("/tasks/PROJ-7/graph");
    let whole = world.get(&tenant.member, &path).await.body;
    assert_eq!(whole["next_cursor"], Value::Null);
    let lines = |graph: &Value| {
        let nodes = graph["nodes"].as_array().unwrap().iter();
        let nodes: Vec<String> = nodes.map(|node| node["turn"].as_str().unwrap().to_owned()).collect();
        let edges = graph["edges"].as_array().unwrap().iter();
        (nodes, edges.map(Value::to_string).collect::<Vec<String>>())
    };
    let (nodes, edges) = lines(&whole);
    assert_eq!(nodes.len(), 4);
    let kinds: Vec<&str> = whole["edges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|edge| edge["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["next", "folded", "next", "spawned"]);

    let (mut paged, mut cursor) = ((Vec::new(), Vec::new()), String::new());
    loop {
        let page = world.get(&tenant.member, &format!("{path}?limit=1{cursor}")).await.body;
        let (nodes, edges) = lines(&page);
        assert!(nodes.len() <= 1);
        paged.0.extend(nodes);
        paged.1.extend(edges);
        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, (nodes.clone(), edges));
    assert_eq!(nodes.iter().collect::<BTreeSet<_>>().len(), nodes.len());
    let missing = tenant.path("/tasks/PROJ-8/graph");
    assert_eq!(world.get(&tenant.member, &missing).await.status, 404);
}

/// A generation and branches may have no turn, however many: the graph goes on behind them.
#[tokio::test]
async fn a_graph_goes_on_behind_what_has_no_turns() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    let (oldest, _) = seed::branch(&world, &tenant, session, "finished").await;
    world
        .execute(format!(
            "update branch set created_at = now() - interval '1 day' where id = '{oldest}'"
        ))
        .await;
    let (newest, _) = seed::branch(&world, &tenant, session, "finished").await;
    let path = tenant.path("/tasks/PROJ-7/graph");
    let pages = async |limit: &str| {
        let (mut pages, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = world.get(&tenant.member, &format!("{path}?{limit}{cursor}")).await.body;
            let nodes = page["nodes"].as_array().unwrap().iter();
            pages.push(
                nodes
                    .map(|node| node["branch"].as_str().unwrap().to_owned())
                    .collect::<Vec<String>>(),
            );
            let Some(next) = page["next_cursor"].as_str() else {
                return pages;
            };
            cursor = format!("&cursor={next}");
        }
    };
    let (oldest, newest) = (oldest.to_string(), newest.to_string());
    // The session takes no place.
    assert_eq!(pages("limit=1").await, [[oldest.as_str()], [newest.as_str()]]);
    assert_eq!(pages("").await, [[oldest.as_str(), newest.as_str()]]);
    let empty = async |count: u32| {
        let row = rows("branch").with("state", "cancelled");
        let row = row.set("created_at", "now() - interval '1 hour' - n * interval '1 ms'");
        row.from(format!(
            "session s join generate_series(1, {count}) n on s.id = '{session}'"
        ))
        .insert(&world.test.owner)
        .await;
    };
    // With the session and the two others a thousand, at which one page looks.
    empty(997).await;
    let none: [&str; 0] = [];
    assert_eq!(pages("limit=1").await, [[oldest.as_str()], [newest.as_str()]]);
    assert_eq!(pages("").await, [&[oldest.as_str(), &newest][..], &none]);
    // The newest is the 2,001st, and a page begins with the lane with which the one before it ended.
    empty(1_001).await;
    let one_by_one = [&[oldest.as_str()][..], &none, &none, &[&newest]];
    assert_eq!(pages("limit=1").await, one_by_one);
    assert_eq!(pages("").await, [&[oldest.as_str()][..], &none, &[&newest]]);
}
