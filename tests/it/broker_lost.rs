//! The broker loses its store after it acknowledged messages and before a service read them. Every accepted notification is
//! processed once, and every reply is posted once, for every way in and any number of replicas.

use std::sync::Arc;

use serde_json::json;
use storage::{Role, session::item_enter::Entered};
use testkit::{Reply, Seen, eventually};
use tokio::sync::Semaphore;

use crate::{
    house::House,
    mail::{receipt, sent},
    orchestrators::person,
};

/// One turn waits at the gate, and then calls another agent; the other agents only reply.
fn script(gate: Arc<Semaphore>) -> impl Fn(&Seen) -> Reply + Send + Sync + 'static {
    move |seen| {
        if seen.input().contains("Ask the tester") && seen.tool_outputs().is_empty() {
            let asks = Reply::call(
                "c-1",
                "response_request",
                json!({"agents": ["tester"], "body": "Please test"}),
            );
            Reply::Gated(Arc::clone(&gate), Box::new(asks))
        } else {
            Reply::text("done")
        }
    }
}

impl House {
    async fn post_notification(&self, body: serde_json::Value) {
        self.post("/api/orgs/acme/notifications", body).await;
    }

    /// Waits until the broker has acknowledged exactly these messages, while no service reads them.
    async fn unread(&self, expected: &[&str]) {
        let kinds = "select split_part(subject, '.', 2) || case when stored_at is null then ' unsent' else '' end
                     from outbox order by 1";
        eventually("the broker has all of it, and nobody has read it", || async {
            (self.world.database.texts(kinds).await == expected).then_some(())
        })
        .await;
    }

    async fn wiped(&mut self) {
        self.world.nats.stop().await.unwrap();
        self.world.nats.wipe_store().await.unwrap();
        self.world.nats.restart().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_accepted_outlives_a_broker_that_nobody_had_read() {
    let gate = Arc::new(Semaphore::new(0));
    let mut house = House::open(script(Arc::clone(&gate))).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.agent("acme", "tester").await;
    house.task("acme", "T-1", &["coder"]).await;

    // A refused notification, to be redriven after its agent was created.
    house
        .post_notification(json!({"id": "again", "task": "T-1", "agent": "late", "body": "x"}))
        .await;
    house.until("acme", "again", "refused").await;
    house.agent("acme", "late").await;
    let letters = house.get("/api/orgs/acme/dead-letters").await;
    let letter = letters["items"][0]["id"].as_str().unwrap().to_owned();

    house
        .post_notification(json!({"id": "ask", "task": "T-1", "agent": "coder", "body": "Ask the tester"}))
        .await;
    eventually("a turn is under way, and all about it is said", || async {
        let unsaid = house.world.database.count("select count(*) from outbox").await;
        (!house.provider.seen().is_empty() && unsaid == 0).then_some(())
    })
    .await;

    // From now on no service reads notifications.
    house.kill(Role::Resolver);
    house
        .post_notification(json!({"id": "one", "task": "T-1", "agent": "coder", "body": "x"}))
        .await;
    house
        .post_notification(json!({"id": "many", "task": "T-1", "agents": ["coder", "tester"], "body": "x"}))
        .await;
    house
        .post("/api/orgs/acme/tasks/T-1/messages", json!({"body": "Hello"}))
        .await;
    house
        .post(&format!("/api/orgs/acme/dead-letters/{letter}/redrive"), json!({}))
        .await;
    house.unread(&["notification"; 4]).await;
    // Two services enter items while no session is open.
    assert_eq!(house.enter(Role::Delivery, "acme", "by-delivery").await, Entered::Sent);
    assert_eq!(
        house.enter(Role::ToolGateway, "acme", "by-tool-gateway").await,
        Entered::Sent
    );
    house.kill(Role::Orchestrator);
    gate.add_permits(1);
    let database = &house.world.database;
    eventually("the turn's record has posted its reply", || async {
        let replies = "select count(*) from message where author_kind = 'agent' and body = 'done'";
        (database.count(replies).await == 1).then_some(())
    })
    .await;
    house.unread(&["notification"; 7]).await;

    house.wiped().await;
    // Two replicas of each, so that every sweep has a concurrent one.
    house.up().await;
    let others = [
        house.world.run(Role::Resolver, resolver::start).await,
        house.world.run(Role::ToolGateway, tool_gateway::start).await,
        house.world.run(Role::Orchestrator, orchestrator::start).await,
        house.world.run(Role::Delivery, delivery::start).await,
    ];

    for id in ["ask", "one", "many", "again", "by-delivery", "by-tool-gateway"] {
        house.until("acme", id, "delivered").await;
    }
    let database = &house.world.database;
    eventually(
        "everything has its turn, and every turn its reply in the thread",
        || async {
            let turns = database
                .count("select count(*) from turn where state = 'finished'")
                .await;
            let replies = database
                .count("select count(*) from message where author_kind = 'agent' and body = 'done'")
                .await;
            (turns == 9 && replies == 7).then_some(())
        },
    )
    .await;
    eventually("nothing is left to be read", || async {
        (database.count("select count(*) from outbox").await == 0).then_some(())
    })
    .await;
    // Includes the two parts of "many", the message's and the tester's.
    let found = database
        .texts(
            "select coalesce(a.slug, '-') || ' ' || n.kind || ' ' || n.state from notification n
             left join agent a on a.account_id = n.account_id and a.id = n.agent_id order by 1",
        )
        .await;
    assert_eq!(
        found,
        [
            "coder message delivered",
            "coder notification delivered",
            "coder notification delivered",
            "coder notification delivered",
            "coder notification delivered",
            "coder notification delivered",
            "late notification delivered",
            "tester notification delivered",
            "tester response_request delivered",
        ]
    );
    assert_eq!(database.count("select count(*) from turn").await, 9);
    let twice =
        "select count(*) from (select from message where turn_id is not null group by turn_id having count(*) > 1) t";
    assert_eq!(database.count(twice).await, 0);
    assert_eq!(
        database.count("select count(*) from dead_letter").await,
        1,
        "only the one from before"
    );
    for other in others {
        assert_eq!(other.failure(), None, "a worker failed");
        other.stop().await;
    }
    house.close().await;
}

/// A refused notification is not published again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_resolver_refuses_is_not_published_again() {
    let house = House::open(|_| Reply::text("done")).await;
    house.account("acme").await;
    house.task("acme", "T-1", &[]).await;
    // An unknown agent; a task without assignees; and an id that has other content by now.
    house
        .post_notification(json!({"id": "who", "task": "T-1", "agent": "nobody", "body": "x"}))
        .await;
    house
        .post_notification(json!({"id": "none", "task": "T-1", "body": "x"}))
        .await;
    house.until("acme", "who", "refused").await;
    house.until("acme", "none", "refused").await;
    let agent = house.agent("acme", "coder").await;
    house.notify("acme", "T-1", "coder", "taken", "x").await;
    house.until("acme", "taken", "delivered").await;
    house
        .post_notification(json!({"id": "taken", "task": "T-1", "agent": agent, "body": "y"}))
        .await;
    let database = &house.world.database;
    eventually("each is a dead letter", || async {
        (database.count("select count(*) from dead_letter").await == 3).then_some(())
    })
    .await;
    let reasons = database.texts("select reason from dead_letter order by 1").await;
    assert_eq!(reasons, ["id_conflict", "no_agent", "unknown_agent"]);
    // Closing waits until no outbox row is left.
    house.close().await;
}

/// Of two pieces of mail, one waits in a queue, and nobody has read of the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mail_that_waited_when_the_broker_lost_its_store_arrives_once() {
    let mut house = House::open(|_| Reply::text("On Friday.")).await;
    house.account("acme").await;
    let ann = person(&house, "acme", "ann").await;
    let first = sent(&house, &ann, "@ann", "When is the release?").await;
    receipt(&house, &ann, &first, "answered").await;
    house.kill(Role::Delivery);
    let queued = sent(&house, &ann, "@ann", "And the next one?").await;
    receipt(&house, &ann, &queued, "delivered").await;
    house.kill(Role::Resolver);
    let unread = sent(&house, &ann, "@ann", "And the one after?").await;
    let database = &house.world.database;
    eventually("the broker has the mail, and nobody has read it", || async {
        let of_mail = "select count(*) from outbox where stored_at is not null";
        (database.count(of_mail).await > 0).then_some(())
    })
    .await;
    for role in [Role::ToolGateway, Role::Orchestrator] {
        house.kill(role);
    }
    house.wiped().await;
    house.up().await;
    for mail in [&queued, &unread] {
        receipt(&house, &ann, mail, "answered").await;
    }
    let database = &house.world.database;
    for (rows, expected) in [
        ("select count(*) from notification where kind = 'mail'", 3),
        (
            "select count(*) from notification where kind = 'mail' and state = 'delivered'",
            3,
        ),
        ("select count(*) from mail where reply_to is not null", 3),
        ("select count(*) from dead_letter", 0),
    ] {
        assert_eq!(database.count(rows).await, expected, "{rows}");
    }
    house.close().await;
}
