//! Turns of branches: how a branch ends with them, and what of its parent goes on meanwhile.

use std::sync::Arc;

use contracts::{Root, outgoing::Origin};
use domain::{Actor, BranchContext, JoinMode, StopThen, TurnId};
use futures::StreamExt;
use serde_json::Value;
use storage::{
    Accounts, Role, Setting,
    outbox::outbox_insert,
    session::{
        branch_end::{Ending, Ends, branch_end, branches_lock},
        branch_spawn::{NewBranch, NewGroup, Parent, Spawned, branch_spawn},
    },
};
use testkit::{Reply, Seen, eventually, rows};
use time::{Duration, OffsetDateTime};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::scene::Scene;

const BRANCHES: &str = "
    select concat_ws(' ', b.state, b.detail, b.result, s.close_reason) from branch b join session s on s.id = b.session_id order by b.ordinal";
const RESULTS: &str = "
    select concat_ws(' ', n.state, s.generation) from notification n join session s on s.id = n.session_id where n.kind = 'branch_result'";

/// The parent answers at once, its branches as the script says.
async fn scene(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Scene {
    Scene::with(move |seen| match seen.key.starts_with("branch:") {
        true => script(seen),
        false => Reply::text("ok"),
    })
    .await
}

fn setting(root: &Root) -> Setting<'_> {
    Setting {
        root,
        source: "/signalbox/test",
        origin: Origin::default(),
        now: OffsetDateTime::now_utc(),
    }
}

impl Scene {
    /// Branches of the session's last turn, as the tool-gateway makes them.
    async fn spawn(&self, count: usize) -> Vec<Spawned> {
        let database = self.world.database.connect(Role::ToolGateway).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        let turn = self.turns("id").await.pop().unwrap();
        let (root, by) = (Root::default(), Actor::system());
        let branches = vec![
            NewBranch {
                agent: self.agent,
                label: None,
                request: "Do a part.".to_owned(),
                context: BranchContext::Snapshot,
            };
            count
        ];
        let new = NewGroup {
            parent: Parent {
                account: &self.account,
                task: &self.task,
                session: self.session,
                depth: 0,
                turn: TurnId::parse(&turn).unwrap(),
                by: &by,
            },
            call: Uuid::now_v7(),
            join: JoinMode::All,
            deadline_at: OffsetDateTime::now_utc() + Duration::HOUR,
            branches: &branches,
        };
        let (spawned, messages) = branch_spawn(&tx, &new, &setting(&root)).await.unwrap().unwrap();
        outbox_insert(&tx, messages).await.unwrap();
        tx.commit().await.unwrap();
        spawned
    }

    async fn cancel(&self, branch: Spawned) {
        let database = self.world.database.connect(Role::Orchestrator).await;
        let tx = database.begin(&Accounts::one(&self.account)).await.unwrap();
        branches_lock(&tx, &self.account, |live| live.id == branch.branch)
            .await
            .unwrap();
        let because = Ending::Cancelled {
            by: "Ann",
            reason: None,
        };
        let ends = Ends {
            ends: vec![(branch.branch, because)],
            closing: &[],
            tells: true,
        };
        let root = Root::default();
        let ended = branch_end(&tx, &self.account, &ends, &setting(&root)).await.unwrap();
        outbox_insert(&tx, ended.messages).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn branches_are(&self, expected: &[&str]) {
        eventually(&format!("the branches are {expected:?}"), || async {
            (self.world.database.texts(BRANCHES).await == expected).then_some(())
        })
        .await;
    }

    async fn results_are(&self, expected: &[&str]) {
        eventually(&format!("the items with results are {expected:?}"), || async {
            (self.world.database.texts(RESULTS).await == expected).then_some(())
        })
        .await;
    }
}

/// The coordinator sees all tasks and the briefing; its branch does not.
#[tokio::test]
async fn a_branch_of_the_coordinator_sees_its_base_alone() {
    let scene = scene(|_| Reply::text("It holds.")).await;
    let fixture = scene.world.fixture();
    fixture.account_set(&scene.account, "coordinator_task", "proj-7").await;
    fixture
        .account_set(&scene.account, "briefing", "Be polite to guests.")
        .await;
    fixture.task(&scene.account, "OTHER-1", &[]).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "The first thing").await;
    scene.until("n-1", "delivered").await;
    scene.spawn(1).await;
    scene.results_are(&["delivered 1"]).await;
    running.stop().await;
    let seen = scene.provider.seen();
    for secret in ["OTHER-1", "Be polite to guests."] {
        let knows = |seen: &Seen| (seen.key.starts_with("branch:"), seen.body.to_string().contains(secret));
        let of_both: Vec<(bool, bool)> = seen[..2].iter().map(knows).collect();
        assert_eq!(of_both, [(false, true), (true, false)], "{secret}");
    }
}

/// Of the messages of its base, a branch is shown the one whose turn failed, and not the one that the spawning turn is about.
#[tokio::test]
async fn a_branch_is_told_once_of_a_message_whose_turn_failed_before_it() {
    let script = |seen: &Seen| match (seen.key.starts_with("branch:"), seen.order) {
        (false, 0) => Reply::Status(422, "{}".to_owned(), Vec::new()),
        _ => Reply::text("It holds."),
    };
    let scene = Scene::with(script).await;
    let fixture = scene.world.fixture();
    let running = scene.run().await;
    for (body, end) in [("The first news.", "failed"), ("The second news.", "delivered")] {
        let message = fixture.message(&scene.account, &scene.task, body).await;
        let id = format!("message:{message}:{}", scene.agent);
        scene.enqueue(&id, body).await;
        scene.until(&id, end).await;
    }
    scene.spawn(1).await;
    scene.results_are(&["delivered 1"]).await;
    running.stop().await;
    let seen = scene.provider.seen();
    let branch = seen.iter().find(|seen| seen.key.starts_with("branch:")).unwrap();
    let sent = branch.body["input"].to_string();
    for told in ["The first news.", "The second news."] {
        assert_eq!(sent.matches(told).count(), 1, "{told}: {sent}");
    }
}

#[tokio::test]
async fn the_reply_of_a_branch_is_its_result_and_nobody_s_message() {
    let scene = scene(|_| Reply::text("It holds.")).await;
    let client = scene.world.operator().await;
    let heard = client
        .subscribe("signalbox.event.acme.PROJ-7.turn.finished")
        .await
        .unwrap();
    let running = scene.run().await;
    scene.enqueue("n-1", "The first thing").await;
    scene.until("n-1", "delivered").await;
    scene.spawn(2).await;
    scene.branches_are(&["finished It holds. folded"; 2]).await;
    scene.results_are(&["delivered 1"]).await;
    running.stop().await;
    let posted = "select count(*) from message where body = 'It holds.'";
    assert_eq!(scene.world.database.count(posted).await, 0);
    let told = heard.take(4).map(|message| {
        let event: Value = serde_json::from_slice(&message.payload).unwrap();
        event["data"]["reply_to"].as_str().unwrap().to_owned()
    });
    let mut told: Vec<String> = told.collect().await;
    told.sort_unstable();
    assert_eq!(told, ["parent", "parent", "thread", "thread"]);
}

#[tokio::test]
async fn a_branch_that_is_given_up_is_told_of_with_its_error() {
    let scene = scene(|_| Reply::Status(400, "{\"error\": {\"message\": \"no\"}}".to_owned(), Vec::new())).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "The first thing").await;
    scene.until("n-1", "delivered").await;
    scene.spawn(1).await;
    scene.results_are(&["delivered 1"]).await;
    running.stop().await;
    let branch = scene.world.database.texts(BRANCHES).await.remove(0);
    assert!(branch.starts_with("failed ") && branch.ends_with(" folded"), "{branch}");
    // Its parent knows, so nobody else has to see to it.
    let seen_to = "select (select count(*) from dead_letter) + (select count(*) from recovery)";
    assert_eq!(scene.world.database.count(seen_to).await, 0);
    let failed = "select state from notification where kind = 'subagent'";
    assert_eq!(scene.world.database.texts(failed).await, ["failed"]);
}

#[tokio::test]
async fn a_branch_whose_turn_is_stopped_is_cancelled() {
    let mut scene = scene(|_| Reply::Silence).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "The first thing").await;
    scene.until("n-1", "delivered").await;
    let branch = scene.spawn(1).await[0];
    scene.called(2).await;
    let parent = std::mem::replace(&mut scene.session, branch.session);
    scene.ask(StopThen::Continue, None).await;
    scene.session = parent;
    scene.branches_are(&["cancelled by Ann: stopped cancelled"]).await;
    scene.results_are(&["delivered 1"]).await;
    running.stop().await;
}

#[tokio::test]
async fn what_an_ended_branch_still_says_is_late() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = scene(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("Too late.")))).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "The first thing").await;
    scene.until("n-1", "delivered").await;
    let branch = scene.spawn(1).await[0];
    scene.called(2).await;
    scene.cancel(branch).await;
    gate.add_permits(1);
    eventually("its turn has ended", || async {
        let open = "select count(*) from turn where finished_at is null";
        (scene.world.database.count(open).await == 0).then_some(())
    })
    .await;
    scene.results_are(&["delivered 1"]).await;
    running.stop().await;
    assert_eq!(
        scene.world.database.texts(BRANCHES).await,
        ["cancelled by Ann cancelled"]
    );
    let turn =
        "select concat_ws(' ', state, late) from turn t join session s on s.id = t.session_id where s.kind = 'branch'";
    let turn = scene.world.database.texts(turn).await;
    assert!(turn == ["aborted f"] || turn == ["finished t"], "{turn:?}");
}

#[tokio::test]
async fn no_rule_rotates_a_session_while_its_branches_are_at_work() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = scene(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("done")))).await;
    let running = scene.run().await;
    scene.enqueue("n-1", "The first thing").await;
    scene.until("n-1", "delivered").await;
    let branch = scene.spawn(1).await[0];
    let worn = r#"update session set thread = thread || '{"tokens": 5000000}' where kind = 'task'"#;
    sqlx::query(worn).execute(&scene.world.database.owner).await.unwrap();
    scene.enqueue("n-2", "The second thing").await;
    scene.until("n-2", "delivered").await;
    let sessions =
        "select concat_ws(' ', generation, close_reason) from session where kind = 'task' order by generation";
    assert_eq!(scene.world.database.texts(sessions).await, ["1"]);
    gate.add_permits(1);
    scene.branches_are(&["finished done folded"]).await;
    // Its result opens the next generation.
    scene.results_are(&["delivered 2"]).await;
    running.stop().await;
    assert_eq!(scene.world.database.texts(sessions).await, ["1 rotated", "2"]);
    let asked = format!("branch:{}:", branch.branch);
    assert_eq!(
        scene
            .provider
            .seen()
            .iter()
            .filter(|seen| seen.key.starts_with(&asked))
            .count(),
        1
    );
}

/// As a version of delivery finds one that knows no branches.
#[tokio::test]
async fn a_session_of_a_branch_that_is_not_known_is_left_alone_and_holds_up_no_other() {
    let scene = scene(|_| Reply::text("never asked")).await;
    let (id, branch) = (Uuid::now_v7(), Uuid::now_v7());
    let row = rows("session")
        .with("id", id)
        .with("kind", "branch")
        .with("origin_id", branch);
    let row = row.with("task_id", "proj-7").with("agent_id", scene.agent);
    let key = format!("branch:{branch}:agent:{}:acme:v1", scene.agent);
    row.with("key", key).insert(&scene.world.database.owner).await;
    testkit::enqueued(&scene.account, domain::SessionId(id))
        .with("id", "lost")
        .insert(&scene.world.database.owner)
        .await;
    let running = scene.run().await;
    scene.enqueue("n-1", "The first thing").await;
    scene.until("n-1", "delivered").await;
    running.stop().await;
    assert_eq!(scene.state("lost").await.0, "queued");
    assert_eq!(scene.provider.seen().len(), 1);
}
