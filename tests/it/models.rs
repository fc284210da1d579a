//! External models through all services: an agent asks one beside another tool, and the turn goes on with both results, whatever
//! the tool-gateway dies of meanwhile; the account sees which models there are.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use storage::Role;
use testkit::{OPERATOR_TOKEN, Reply, Says, StubModel, eventually};

use tokio::time::timeout;

use crate::house::House;

/// Of a dead runner, soon: what is paid for is called unknown after ten leases.
const SETTINGS: &[(&str, &str)] = &[
    ("replica.lease_ms", "900"),
    ("replica.renew_ms", "300"),
    ("nats.limits.ack_wait_ms", "1000"),
    ("delivery.tools_again_ms", "1000"),
];
/// A model's answer, as base64.
const PNG: &str = "iVBORw0KGgphbiBpbWFnZQ==";

/// An agent that asks a model, posts, and has an image made, in one answer.
async fn house(model: &StubModel) -> House {
    let url = model.url();
    let of = |name: &'static str, kind: &'static str| {
        [
            ("kind", kind),
            ("url", url.as_str()),
            ("model", "m"),
            ("private_addresses", "true"),
        ]
        .map(|(key, value)| (format!("models.{name}.{key}"), value.to_owned()))
    };
    let models: Vec<(String, String)> = of("asks", "openresponses")
        .into_iter()
        .chain(of("paints", "images"))
        .collect();
    let more = models.iter().map(|(key, value)| (&**key, &**value));
    let settings: Vec<(&str, &str)> = SETTINGS.iter().copied().chain(more).collect();
    let house = House::open_with(
        |seen| match seen.tool_outputs().is_empty() {
            true => Reply::Calls(vec![
                (
                    "c-1".to_owned(),
                    "ask_model".to_owned(),
                    json!({"request": "Review it."}),
                ),
                (
                    "c-2".to_owned(),
                    "task_message".to_owned(),
                    json!({"task_id": "T-1", "body": "meanwhile"}),
                ),
                (
                    "c-3".to_owned(),
                    "generate_media".to_owned(),
                    json!({"request": "Paint it."}),
                ),
            ]),
            false => Reply::text("done"),
        },
        &settings,
    )
    .await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &["coder"]).await;
    let context = "insert into task_context (account_id, task_id, version, body, characters, cut_characters, author_kind, author_id, author_name)
                   values ('acme', 't-1', 1, 'We build a shop.', 16, 0, 'user', 'ann', 'Ann')";
    sqlx::query(context).execute(&house.world.database.owner).await.unwrap();
    house
}

fn says(seconds: u64) -> impl Fn(usize, &str) -> Says + Send + Sync + 'static {
    move |_, body| match body.contains("prompt") {
        true => Says::images(&[PNG]).after(seconds),
        false => Says::text("Looks good.").after(seconds),
    }
}

impl House {
    async fn outputs(&self) -> Vec<(String, Value)> {
        let last = self.provider.seen().pop().expect("a call of the provider");
        let outputs = last.tool_outputs().into_iter();
        let mut outputs: Vec<(String, Value)> = outputs
            .map(|(id, output)| (id, serde_json::from_str(&output).unwrap()))
            .collect();
        outputs.sort_by(|one, other| one.0.cmp(&other.0));
        outputs
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_with_external_calls_goes_on_with_all_results() {
    let model = StubModel::start(says(2)).await;
    let house = house(&model).await;
    house.notify("acme", "T-1", "coder", "n-1", "x").await;
    // The message is posted while both models are asked: none of the three waits for another, so any of them may be first.
    eventually("the message, and both calls running", async || {
        let meanwhile = "select count(*) from message m where m.body = 'meanwhile'
                         and (select count(*) from tool_call c where c.state = 'running') = 2";
        (house.world.database.count(meanwhile).await == 1).then_some(())
    })
    .await;
    house.until("acme", "n-1", "delivered").await;
    let outputs = house.outputs().await;
    assert_eq!(outputs[0].1["text"], "Looks good.");
    assert_eq!(outputs[1].1["ok"], true);
    let artifact = outputs[2].1["artifacts"][0].clone();
    assert_eq!(artifact["media_type"], "image/png");
    assert_eq!(model.sent().len(), 2);

    let listed = house.get("/api/orgs/acme/tasks/T-1/artifacts").await;
    assert_eq!(listed["items"][0]["id"], artifact["id"]);
    let url = format!(
        "{}/api/orgs/acme/artifacts/{}/content",
        house.api(),
        artifact["id"].as_str().unwrap()
    );
    let (status, _) = house.call(Method::HEAD, url, OPERATOR_TOKEN, &[], None).await;
    assert_eq!(status, 200);
    let models = house.get("/api/orgs/acme/models").await;
    let shown: Vec<String> = models["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| format!("{} {} {}", model["name"], model["kind"], model["is_default"]).replace('"', ""))
        .collect();
    assert_eq!(shown, ["asks openresponses true", "paints images true"]);
    assert!(!models.to_string().contains(&model.url()), "{models}");
    let turn = house.provider.seen().remove(0).body["tools"].to_string();
    assert!(turn.contains("ask_model") && turn.contains("generate_media"), "{turn}");
    house.close().await;
}

/// The tool-gateway dies at the nth time that a step of an external call is reached, and comes back: what is read is read again,
/// what is paid for is paid once.
#[cfg(debug_assertions)]
async fn dies_at(point: &'static str, nths: &[usize]) {
    for &nth in nths {
        let model = StubModel::start(says(0)).await;
        let mut house = house(&model).await;
        house.running(Role::ToolGateway).crash_at(point, nth);
        house.notify("acme", "T-1", "coder", "n-1", "x").await;
        let dead = timeout(Duration::from_secs(20), house.running(Role::ToolGateway).crashed());
        dead.await.unwrap_or_else(|_| panic!("{point} {nth} is not reached"));
        house.kill(Role::ToolGateway);
        house.up().await;
        house.until("acme", "n-1", "delivered").await;
        let outputs = house.outputs().await;
        let about = format!("{point} {nth}: {outputs:?}");
        assert_eq!(outputs.len(), 3, "{about}");
        assert_eq!(outputs[0].1["text"], "Looks good.", "{about}");
        assert_eq!(outputs[1].1["ok"], true, "{about}");
        let painted = model.sent().iter().filter(|sent| sent.body.contains("prompt")).count();
        assert!(painted <= 1, "{about}: paid {painted} times");
        let artifacts = house.world.database.count("select count(*) from artifact").await;
        match outputs[2].1["error"]["code"].as_str() {
            None => assert_eq!((artifacts, painted), (1, 1), "{about}"),
            Some("outcome_unknown") => assert_eq!(artifacts, 0, "{about}"),
            Some(other) => panic!("{about}: {other}"),
        }
        assert_eq!(
            house
                .world
                .database
                .count("select count(*) from message where body = 'meanwhile'")
                .await,
            1
        );
        assert_eq!(
            house
                .world
                .database
                .count("select count(*) from tool_call where finished_at is null")
                .await,
            0
        );
        house.close().await;
    }
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_before_a_call_is_recorded_leaves_one_outcome() {
    dies_at("tool_gateway.effect_written", &[1]).await;
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_after_a_call_is_recorded_leaves_one_outcome() {
    dies_at("tool_gateway.effect_committed", &[1, 3]).await;
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_after_a_model_has_answered_leaves_one_outcome() {
    dies_at("tool_gateway.call_answered", &[1, 2]).await;
}
