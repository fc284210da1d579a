//! The difference between two turns.

use prompt::{Manifest, PastLimits};
use serde_json::{Value, json};

use crate::{
    prompted::{Desk, Told},
    seed,
    world::World,
};

fn states(diff: &Value) -> Vec<String> {
    let layers = diff["layers"].as_array().unwrap();
    let line = |layer: &Value| {
        format!(
            "{} {}",
            layer["layer"].as_str().unwrap(),
            layer["state"].as_str().unwrap()
        )
    };
    layers.iter().map(line).collect()
}

#[tokio::test]
async fn says_what_differs_in_each_layer() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let desk = Desk::open(&world, &tenant).await;
    let first = desk.told(1, desk.notified("n-1", "One.").await);
    let manifest: Manifest = desk.write(&first).await;
    let mut second: Told = desk.told(2, desk.notified("n-2", "Two.").await);
    let limits = PastLimits {
        entries_max: 50,
        bytes_max: 131_072,
        body_bytes_max: 4_096,
        reply_bytes_max: 8_192,
    };
    second.past = desk.past_of(&[(&first, manifest)], &limits);
    second.context =
        serde_json::from_value(json!({"asked": "continue", "used": "continue", "reason": "thread_lost", "thread": 2}))
            .unwrap();
    desk.write(&second).await;
    seed::tool_call(&world, &tenant, second.id.uuid(), 1, r#"{"task_id": "PROJ-7"}"#).await;
    world
        .execute("update turn set provider = 'other', tools = '{no_reply,task_status}' where number = 2")
        .await;

    let path = |query: &str| tenant.path(&format!("/turns/{}/diff?with={}{query}", first.id, second.id));
    let diff = world.get(&tenant.member, &path("")).await.body;
    assert_eq!(
        states(&diff),
        [
            "instructions same",
            "context added",
            "input changed",
            "results added",
            "reply changed"
        ]
    );
    assert_eq!(diff["provider"], json!({"before": "default", "after": "other"}));
    assert_eq!(
        (
            &diff["context"]["before"]["thread"],
            &diff["context"]["after"]["reason"]
        ),
        (&json!(1), &json!("thread_lost"))
    );
    assert_eq!(diff["tools"]["added"], json!(["task_status"]));
    assert_eq!(diff["tools"]["removed"], json!(["task_history"]));
    assert_eq!(
        (&diff["usage"], &diff["layers"][2]["diff"]),
        (&Value::Null, &Value::Null)
    );

    let diff = world.get(&tenant.member, &path("&text=true")).await.body;
    let text = |layer: usize| diff["layers"][layer]["diff"].as_str().unwrap_or_default().to_owned();
    assert!(
        text(2).contains("-One.\n") && text(2).contains("+Two.\n"),
        "{}",
        text(2)
    );
    assert!(
        text(1).contains("+Reply 1.\n") && !text(1).contains("\n-"),
        "{}",
        text(1)
    );
    assert_eq!(
        text(4).lines().filter(|line| line.starts_with(['-', '+'])).count(),
        2,
        "{}",
        text(4)
    );
    assert_eq!(diff["lines_left_out"], 0);

    // The other way round; and with itself.
    let path = tenant.path(&format!("/turns/{}/diff?with={}", second.id, first.id));
    let diff = world.get(&tenant.member, &path).await.body;
    assert_eq!(states(&diff)[1], "context removed");
    let path = tenant.path(&format!("/turns/{0}/diff?with={0}&text=true", second.id));
    let diff = world.get(&tenant.member, &path).await.body;
    assert!(states(&diff).iter().all(|line| line.ends_with(" same")), "{diff}");
    assert_eq!((&diff["context"], &diff["tools"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn another_account_has_no_turns_to_compare_with() {
    let world = World::new().await;
    let (tenant, other) = (world.tenant("acme").await, world.tenant("globex").await);
    let (ours, theirs) = (Desk::open(&world, &tenant).await, Desk::open(&world, &other).await);
    let (own, foreign) = (ours.turn(1).await, theirs.turn(1).await);
    for (turn, with) in [(own.id, foreign.id), (foreign.id, own.id), (foreign.id, foreign.id)] {
        let path = tenant.path(&format!("/turns/{turn}/diff?with={with}"));
        world.get(&tenant.member, &path).await.is_problem(404, "not_found", "");
    }
    let path = tenant.path(&format!("/turns/{}/diff", own.id));
    world
        .get(&tenant.member, &path)
        .await
        .is_problem(400, "invalid_field", "with");
}
