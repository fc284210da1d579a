//! Turns of an OpenClaw agent with effects of its own that are stopped while its gateway has them: the connection ends, and the gateway's
//! record, as it was recorded, says whether the agent has ended.

use domain::StopThen;
use testkit::{Reply, eventually};

use super::{
    recording::Recording,
    stub::{Act, Stub},
};
use crate::scene::Scene;

/// Stops a turn during its call, and answers each look at the history with one of these: a recording, and the text in it that stands
/// for the call. Gives the turn's state, error class and reply.
async fn stopped_while(histories: &[(&str, &str)]) -> String {
    let mut scene = Scene::with(|_| Reply::text("not asked")).await;
    let stub = Stub::start([vec![Act::Hold]]).await;
    for (setting, value) in [
        ("kind", "openclaw"),
        ("server", "openclaw"),
        ("model", "openclaw/alpha"),
        ("effects", "own"),
    ] {
        scene.world.set(&format!("providers.default.{setting}"), value);
    }
    let url = format!("http://{}/v1/responses", stub.address());
    scene.world.set("providers.default.url", &url);
    scene.world.set("delivery.look_up_delay_ms", 20);
    scene.world.set(
        "delivery.stop_confirm_ms_max",
        if histories.len() > 1 { 10_000 } else { 100 },
    );
    let running = scene.run().await;
    scene.enqueue("n-1", "x").await;
    stub.until(|seen| seen.requests == 1).await;
    let turn = scene.turns("id").await.remove(0);
    let key = scene.world.database.texts("select key from session").await.remove(0);
    let history = |(name, text): &(&str, &str)| {
        let call = format!("\"content\":\"(Signalbox delivery {turn}:1)\\n{text}");
        let marked = Recording::load(name).with(&format!("\"content\":\"{text}"), &call);
        marked.with("task:hist:1795167601", &key).script()
    };
    let mut scripts: Vec<_> = histories.iter().map(history).collect();
    // Each further look finds the same.
    let last = scripts.last().unwrap().clone();
    scripts.extend(std::iter::repeat_n(last, 20));
    stub.then(scripts);
    scene.ask(StopThen::Hold, None).await.unwrap();
    let how = eventually("the turn ends", || async {
        let how = scene.turns("concat_ws(' ', state, error_class, reply)").await.remove(0);
        (!how.starts_with("calling")).then_some(how)
    })
    .await;
    assert!(stub.counts().left >= 1, "the connection was closed");
    running.stop().await;
    how
}

#[tokio::test]
async fn only_the_record_confirms_a_stop_of_an_own_agent() {
    let running = ("k04-history-running", "two MOCK");
    // It answered before it noticed.
    assert_eq!(
        stopped_while(&[running, running, ("k10-history-final", "two MOCK")]).await,
        "finished SLOW: 3"
    );
    assert_eq!(
        stopped_while(&[running, ("k11-history-failed", "failing MOCK")]).await,
        "aborted stopped"
    );
}

/// The gateway keeps no row of a call that its client left: nothing says whether the agent goes on.
#[tokio::test]
async fn a_call_that_its_client_left_is_unconfirmed() {
    assert_eq!(
        stopped_while(&[("k05-history-cancelled", "three MOCK")]).await,
        "aborted stop_unconfirmed"
    );
}
