//! The queue of a session: what waits, why, who may change it, and every way in which a change is refused.

use axum::http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    seed,
    world::{Answer, Tenant, World},
};

/// The waiting items in their order, with their modes.
const WAITING: &str = "
    select concat_ws(' ', id, queue_mode) from notification where state = 'queued' order by position";
const COUNTS: &str = "
    select concat_ws(' ', s.phase, s.gate, s.queued, s.queue_edits,
        (select count(*) from notification n where n.session_id = s.id and n.state = 'queued') = s.queued) from session s";
const ACTIVITIES: &str = "
    select concat_ws(' ', detail ->> 'op', detail ->> 'item', actor_name) from activity where kind = 'queue.changed' order by id";

/// An account with an agent on a task, and a session of it.
struct Scene {
    world: World,
    tenant: Tenant,
    coder: String,
    session: Uuid,
}

impl Scene {
    async fn parked(gate: &str) -> Scene {
        Scene::with(async |world, tenant, coder| seed::parked(world, tenant, "PROJ-7", coder, gate).await).await
    }

    async fn busy() -> (Scene, Uuid) {
        let mut turn = Uuid::nil();
        let scene = Scene::with(async |world, tenant, coder| {
            let (session, its) = seed::busy(world, tenant, "PROJ-7", coder).await;
            turn = its;
            session
        });
        (scene.await, turn)
    }

    async fn with(session: impl AsyncFnOnce(&World, &Tenant, &str) -> Uuid) -> Scene {
        let world = World::new().await;
        let tenant = world.tenant("acme").await;
        let coder = world.agent(&tenant, "coder").await;
        world.task(&tenant, "PROJ-7", &[]).await;
        let session = session(&world, &tenant, &coder).await;
        Scene {
            world,
            tenant,
            coder,
            session,
        }
    }

    /// Waiting items of the member.
    async fn items(&self, ids: &[&str]) {
        for id in ids {
            self.item(id, "followup", "notification").await;
        }
    }

    async fn item(&self, id: &str, mode: &str, kind: &str) {
        let sender = key_id(&self.tenant.member);
        seed::item(&self.world, &self.tenant, self.session, (id, mode, kind, sender)).await;
    }

    fn path(&self, rest: &str) -> String {
        self.tenant.path(&format!("/sessions/{}/queue{rest}", self.session))
    }

    async fn queue(&self) -> Value {
        let read = self.world.get(&self.tenant.member, &self.path("")).await;
        assert_eq!(read.status, 200, "{read:?}");
        read.body
    }

    async fn revision(&self) -> Value {
        self.queue().await["revision"].take()
    }

    async fn put(&self, body: Value) -> Answer {
        let call = self.world.call(Method::PUT, &self.path("/order"));
        call.token(&self.tenant.member).json(&body).send().await
    }

    async fn post(&self, rest: &str, body: Value) -> Answer {
        self.world.post(&self.tenant.member, &self.path(rest), body).await
    }

    async fn texts(&self, sql: &'static str) -> Vec<String> {
        self.world.test.texts(sql).await
    }
}

/// The sender of what a key publishes.
fn key_id(key: &str) -> &str {
    key.split('_').nth(2).expect("a key has its id")
}

fn subjects(sent: &[crate::world::Sent]) -> Vec<&str> {
    let mut subjects: Vec<&str> = sent.iter().map(|sent| sent.subject.as_str()).collect();
    subjects.sort_unstable();
    subjects
}

#[tokio::test]
async fn a_queue_is_listed_in_its_order_and_each_item_says_why_it_waits() {
    let (scene, turn) = Scene::busy().await;
    scene.items(&["n-1", "n-2"]).await;
    scene.item("n-3", "steer", "notification").await;
    let theirs = ("n-4", "followup", "notification", "somebody");
    seed::item(&scene.world, &scene.tenant, scene.session, theirs).await;
    scene
        .world
        .execute("update notification set body = repeat('ä', 2000) where id = 'n-2'")
        .await;
    let queue = scene.queue().await;
    assert_eq!(queue["revision"], "4.1.0");
    assert_eq!((&queue["gate"], &queue["stopping"]), (&Value::Null, &json!(false)));
    assert_eq!(queue["running"], json!({"turn_id": turn, "items": []}));
    let shown = |name: &str| -> Vec<Value> {
        let items = queue["items"].as_array().unwrap().iter();
        items.map(|item| item[name].clone()).collect()
    };
    assert_eq!(shown("id"), ["n-3", "n-1", "n-2", "n-4"]);
    assert_eq!(shown("place"), [1, 2, 3, 4]);
    assert_eq!(shown("editable"), [true, true, true, false]);
    assert_eq!(shown("body_cut"), [false, false, true, false]);
    assert_eq!(queue["items"][2]["body"], "ä".repeat(1024));
    let why = &queue["items"][1]["why"];
    let expected = json!({"code": "queued", "on": null, "ref": turn, "text": format!("place 2: behind turn {turn}")});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&why[name], value, "{why}");
    }
    let first = scene.world.get(&scene.tenant.service, &scene.path("?limit=3")).await;
    assert_eq!(first.column("editable"), ["false", "false", "false"], "of another key");
    let cursor = first.body["next_cursor"].as_str().unwrap();
    let next = scene
        .world
        .get(&scene.tenant.admin, &scene.path(&format!("?cursor={cursor}")))
        .await;
    assert_eq!(
        (next.column("id"), next.column("place")),
        (vec!["n-4".to_owned()], vec!["4".to_owned()])
    );
    assert_eq!(next.column("editable"), ["true"], "an admin's");

    let told = scene
        .world
        .get(&scene.tenant.member, &scene.tenant.path("/notifications/n-1"))
        .await;
    assert_eq!(
        (&told.body["revision"], &told.body["why"]["ref"]),
        (&json!(1), &json!(turn))
    );
    let listed = scene
        .world
        .get(&scene.tenant.member, &scene.tenant.path("/notifications"))
        .await;
    assert_eq!(listed.body["items"].as_array().unwrap().len(), 4);
    assert_eq!(listed.body["items"][0]["why"]["code"], "queued");
    let session = scene.tenant.path(&format!("/sessions/{}", scene.session));
    let session = scene.world.get(&scene.tenant.member, &session).await;
    assert_eq!(session.body["can"], json!({"inject": true, "steer": true}));
}

#[tokio::test]
async fn an_author_changes_what_waits_and_a_stranger_sees_it_only() {
    let (scene, _) = Scene::busy().await;
    scene.items(&["n-1"]).await;
    let path = scene.path("/n-1");
    let (member, service, admin) = (&scene.tenant.member, &scene.tenant.service, &scene.tenant.admin);
    let before = scene.world.sent().await.len();
    let changed = json!({"revision": 1, "body": "new text", "title": "t"});
    let refused = scene.world.patch(service, &path, changed.clone()).await;
    refused.is_problem(403, "not_author", "its author may change it, or an admin");
    let hidden = scene.world.patch(&scene.tenant.publisher, &path, changed.clone()).await;
    hidden.is_problem(404, "not_found", "");
    let forbidden = scene.world.patch(&scene.tenant.gateway, &path, changed.clone()).await;
    forbidden.is_problem(403, "forbidden", "");

    let answer = scene.world.patch(member, &path, changed.clone()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let expected =
        json!({"id": "n-1", "body": "new text", "title": "t", "revision": 2, "place": 1, "queue_mode": "followup"});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&answer.body[name], value, "{name}");
    }
    let stale = scene.world.patch(member, &path, changed).await;
    stale.is_problem(409, "item_changed", "has revision 2 now");
    assert_eq!(stale.body["revision"], 2);
    let other = scene
        .world
        .patch(admin, &path, json!({"revision": 2, "queue_mode": "collect"}))
        .await;
    assert_eq!(
        (&other.body["queue_mode"], &other.body["body"]),
        (&json!("collect"), &json!("new text"))
    );
    let row = "select concat_ws(' ', joins, revision, content_hash = '', length(edited_hash)) from notification";
    assert_eq!(scene.texts(row).await, ["t 3 t 32"]);
    assert_eq!(
        scene.texts(ACTIVITIES).await,
        ["replace n-1 a member", "replace n-1 a admin"]
    );
    let sent = scene.world.sent().await.split_off(before);
    assert_eq!(subjects(&sent), ["signalbox.event.acme.PROJ-7.queue.changed"; 2]);
    let data = json!({"session_id": scene.session, "session_key": format!("task:proj-7:agent:{}:acme:v1", scene.coder),
        "generation": 1, "agent_id": scene.coder, "op": "replace", "item": "n-1", "revision": "1.1.1",
        "by": {"kind": "user", "id": key_id(member), "name": "a member"}});
    assert_eq!(sent[0].payload["data"], data);

    for (body, status, code, words) in [
        (json!({"revision": 3}), 422, "invalid", "nothing to change"),
        (json!({"revision": 3, "body": " "}), 422, "invalid", "empty"),
        (
            json!({"revision": 3, "body": "x".repeat(256 * 1024 + 1)}),
            413,
            "too_large",
            "262145 bytes",
        ),
        (
            json!({"revision": 3, "queue_mode": "reject"}),
            400,
            "invalid_field",
            "queue_mode",
        ),
        (json!({"revision": "3", "body": "b"}), 400, "invalid_field", "revision"),
        (json!({"body": "b"}), 400, "invalid_field", "revision"),
    ] {
        scene
            .world
            .patch(member, &path, body)
            .await
            .is_problem(status, code, words);
    }
    let theirs = scene.world.tenant("globex").await;
    let elsewhere = scene.tenant.path(&format!("/sessions/{}/queue/n-1", Uuid::now_v7()));
    for (key, path) in [
        (member, scene.path("/n-9")),
        (member, elsewhere),
        (&theirs.admin, path.clone()),
        (&theirs.admin, path.replace("acme", "globex")),
    ] {
        let answer = scene.world.patch(key, &path, json!({"revision": 3, "body": "b"})).await;
        answer.is_problem(404, "not_found", "");
    }
    assert_eq!(
        scene.texts(ACTIVITIES).await.len(),
        2,
        "a refused change leaves nothing"
    );
}

#[tokio::test]
async fn what_has_started_or_ended_is_not_changed() {
    let (scene, turn) = Scene::busy().await;
    scene.items(&["n-1"]).await;
    let (member, path) = (&scene.tenant.member, scene.path("/n-1"));
    let change = json!({"revision": 1, "body": "b"});
    let check = async |status, code, words: &str| {
        scene
            .world
            .patch(member, &path, change.clone())
            .await
            .is_problem(status, code, words);
        let withdrawn = scene.world.delete(member, &path).await;
        withdrawn.is_problem(status, code, words);
        for rest in ["/n-1/steer", "/n-1/inject"] {
            scene.post(rest, json!({})).await.is_problem(status, code, words);
        }
        let revision = scene.revision().await;
        scene
            .post("/n-1/promote", json!({"revision": revision}))
            .await
            .is_problem(status, code, words);
        withdrawn
    };
    let taken = "update notification set state = 'running', turn_id = (select active_turn_id from session)";
    scene.world.execute(taken).await;
    let refused = check(409, "already_started", "stop the turn").await;
    assert_eq!(refused.body["turn_id"], json!(turn));
    assert!(refused.body["since"].is_string(), "{refused:?}");
    scene.world.execute("update turn set notification_ids = '{n-1}'").await;
    let running = scene.queue().await["running"].take();
    let item = &running["items"][0];
    assert_eq!(
        (&item["id"], &item["place"], &item["editable"]),
        (&json!("n-1"), &Value::Null, &json!(false))
    );
    assert_eq!(
        (&item["why"]["code"], &item["why"]["ref"]),
        (&json!("running"), &json!(turn))
    );
    scene
        .world
        .execute("update notification set state = 'cancelled', reason = 'task closed'")
        .await;
    let refused = check(409, "already_ended", "cancelled (task closed)").await;
    assert_eq!(refused.body["state"], "cancelled");
    assert_eq!(scene.texts(ACTIVITIES).await, [] as [String; 0]);
}

#[tokio::test]
async fn a_withdrawn_item_is_cancelled_and_an_emptied_session_rests() {
    let scene = Scene::parked("stopped").await;
    scene.items(&["n-1", "n-2"]).await;
    let before = scene.world.sent().await.len();
    let service = scene.world.delete(&scene.tenant.service, &scene.path("/n-1")).await;
    service.is_problem(403, "not_author", "a");
    for revision in ["7", "x"] {
        let stale = scene
            .world
            .delete(&scene.tenant.member, &scene.path(&format!("/n-1?revision={revision}")))
            .await;
        stale.is_problem(409, "item_changed", "revision 1");
    }
    let gone = scene
        .world
        .delete(&scene.tenant.member, &scene.path("/n-1?revision=1"))
        .await;
    assert_eq!(
        (gone.status.as_u16(), &gone.body["place"], &gone.body["why"]),
        (200, &Value::Null, &Value::Null)
    );
    assert_eq!(
        scene.texts(COUNTS).await,
        ["backoff stopped 1 1 t"],
        "what waits still waits"
    );
    scene.world.delete(&scene.tenant.admin, &scene.path("/n-2")).await;
    assert_eq!(scene.texts(COUNTS).await, ["idle 0 2 t"]);
    let rest = "select (wake_at is null and gated_since is null)::text from session";
    assert_eq!(scene.texts(rest).await, ["true"]);
    let ended = "select concat_ws(' ', id, state, reason) from notification order by id";
    assert_eq!(
        scene.texts(ended).await,
        [
            "n-1 cancelled withdrawn: by a member",
            "n-2 cancelled withdrawn: by a admin"
        ]
    );
    assert_eq!(
        scene.texts(ACTIVITIES).await,
        ["withdraw n-1 a member", "withdraw n-2 a admin"]
    );
    let sent = scene.world.sent().await.split_off(before);
    let event = |fact: &str| format!("signalbox.event.acme.PROJ-7.{fact}");
    let expected = [
        "notification.cancelled",
        "notification.cancelled",
        "queue.changed",
        "queue.changed",
        "session.released",
    ];
    assert_eq!(subjects(&sent), expected.map(event), "nothing is woken");
    let again = scene.world.delete(&scene.tenant.member, &scene.path("/n-1")).await;
    again.is_problem(409, "already_ended", "withdrawn: by a member");
}

#[tokio::test]
async fn items_are_put_into_another_order_by_who_knows_the_present_one() {
    let scene = Scene::parked("stopped").await;
    scene.items(&["n-1", "n-2", "n-3"]).await;
    scene.item("n-4", "steer", "notification").await;
    let stale = json!({"revision": "3.1.0", "items": ["n-3", "n-2", "n-1", "n-4"]});
    for body in [stale.clone(), json!({"revision": "nonsense", "items": stale["items"]})] {
        let refused = scene.put(body).await;
        refused.is_problem(409, "queue_changed", "has revision 4.1.0 now");
        assert_eq!(refused.body["revision"], "4.1.0");
    }
    for items in [
        json!(["n-1"]),
        json!(["n-1", "n-1", "n-2", "n-3", "n-4"]),
        json!(["n-1", "n-2", "n-3", "n-9"]),
    ] {
        let refused = scene.put(json!({"revision": "4.1.0", "items": items})).await;
        refused.is_problem(409, "queue_changed", "names all that wait, each once");
    }
    assert_eq!(
        scene.texts(WAITING).await,
        ["n-4 steer", "n-1 followup", "n-2 followup", "n-3 followup"]
    );
    assert_eq!(scene.texts(COUNTS).await, ["backoff stopped 4 0 t"]);

    let ordered = scene
        .put(json!({"revision": "4.1.0", "items": ["n-4", "n-3", "n-1", "n-2"]}))
        .await;
    assert_eq!(ordered.column("id"), ["n-4", "n-3", "n-1", "n-2"]);
    assert_eq!(
        (&ordered.body["revision"], &ordered.body["gate"]),
        (&json!("4.1.1"), &json!("stopped"))
    );

    let before = scene.world.sent().await.len();
    let refused = scene.post("/n-2/promote", json!({"revision": "4.1.0"})).await;
    refused.is_problem(409, "queue_changed", "4.1.1");
    let promoted = scene.post("/n-2/promote", json!({"revision": "4.1.1"})).await;
    assert_eq!(
        (promoted.status.as_u16(), promoted.column("id")),
        (200, ["n-4", "n-2", "n-3", "n-1"].map(str::to_owned).to_vec())
    );
    assert_eq!(promoted.body["gate"], Value::Null, "what a person stopped goes on");
    assert_eq!(promoted.body["items"][0]["why"]["code"], "queued");
    assert_eq!(
        scene.texts("select (wake_at <= now())::text from session").await,
        ["true"]
    );
    let places = "select position::text from notification where position > 0 order by 1";
    assert_eq!(scene.texts(places).await, ["1", "2", "3"]);
    let sent = scene.world.sent().await.split_off(before);
    let wake_up = sent.iter().find(|sent| sent.subject.contains("resolved")).unwrap();
    assert_eq!(
        wake_up.headers["Nats-Msg-Id"],
        format!("session.resolved:{}:4:edit:2", scene.session)
    );
    assert_eq!(sent.len(), 3, "{sent:?}");
    assert_eq!(
        scene.texts(ACTIVITIES).await,
        ["order a member", "promote n-2 a member"]
    );
    let service = scene
        .world
        .post(
            &scene.tenant.service,
            &scene.path("/n-2/promote"),
            json!({"revision": "4.1.2"}),
        )
        .await;
    service.is_problem(403, "forbidden", "");
}

#[tokio::test]
async fn a_steered_item_ends_the_turn_and_keeps_its_author() {
    let (scene, turn) = Scene::busy().await;
    scene.items(&["n-1", "n-2"]).await;
    let other = json!({"turn_id": Uuid::now_v7()});
    let refused = scene.post("/n-2/steer", other).await;
    refused.is_problem(409, "stale_turn", "in progress since");
    assert_eq!(refused.body["turn_id"], json!(turn));
    let before = scene.world.sent().await.len();
    let call = async |key: &str| {
        let call = scene
            .world
            .call(Method::POST, &scene.path("/n-2/steer"))
            .token(&scene.tenant.admin);
        call.header("idempotency-key", key)
            .json(&json!({"turn_id": turn}))
            .send()
            .await
    };
    let steered = call("one").await;
    assert_eq!(
        (steered.status.as_u16(), &steered.body["place"]),
        (202, &json!(1)),
        "{steered:?}"
    );
    assert_eq!(call("one").await.body, steered.body, "once");
    assert_eq!(scene.texts(WAITING).await, ["n-2 steer", "n-1 followup"]);
    let request = "select concat_ws(' ', stop_turn_id, stop_kind, stop_by, stop_then) from session";
    assert_eq!(scene.texts(request).await, [format!("{turn} steered a admin continue")]);
    let kept = "select concat_ws(' ', sender_id, metadata ->> 'by') from notification where id = 'n-2'";
    assert_eq!(
        scene.texts(kept).await,
        [format!("{} a admin", key_id(&scene.tenant.member))]
    );
    let sent = scene.world.sent().await.split_off(before);
    let expected = [
        "signalbox.event.acme.PROJ-7.queue.changed",
        "signalbox.session.stop_requested.acme.PROJ-7",
    ];
    assert_eq!(subjects(&sent), expected);
    // A later steer goes behind it.
    scene.item("n-3", "steer", "notification").await;
    assert_eq!(scene.texts(WAITING).await, ["n-2 steer", "n-3 steer", "n-1 followup"]);
    let path = scene.path("/n-2");
    let change = json!({"revision": 2, "queue_mode": "followup"});
    let again = scene.world.patch(&scene.tenant.member, &path, change).await;
    assert_eq!(again.body["place"], 3, "back in its number's place");
}

#[tokio::test]
async fn a_steer_by_its_author_stops_the_turn_too_and_other_text_of_a_steer_does_not() {
    let (scene, _) = Scene::busy().await;
    scene.items(&["n-1"]).await;
    scene.item("n-2", "steer", "notification").await;
    let stopping = "select count(stop_turn_id)::text from session";
    let (member, path) = (&scene.tenant.member, scene.path("/n-2"));
    scene
        .world
        .patch(
            member,
            &path,
            json!({"revision": 1, "body": "b", "queue_mode": "steer"}),
        )
        .await;
    assert_eq!(scene.texts(stopping).await, ["0"]);
    scene
        .world
        .patch(
            member,
            &scene.path("/n-1"),
            json!({"revision": 1, "queue_mode": "steer"}),
        )
        .await;
    assert_eq!(scene.texts(stopping).await, ["1"]);
    assert_eq!(scene.texts(WAITING).await, ["n-2 steer", "n-1 steer"]);
}

#[tokio::test]
async fn an_item_is_injected_into_a_turn_in_progress_only() {
    let (scene, turn) = Scene::busy().await;
    scene.items(&["n-1", "n-2"]).await;
    let injected = scene.post("/n-2/inject", json!({"turn_id": turn})).await;
    assert_eq!(
        (injected.status.as_u16(), &injected.body["queue_mode"]),
        (202, &json!("inject"))
    );
    assert_eq!(
        scene.texts(WAITING).await,
        ["n-1 followup", "n-2 inject"],
        "in its place"
    );
    let stale = scene.post("/n-1/inject", json!({"turn_id": Uuid::nil()})).await;
    stale.is_problem(409, "stale_turn", "in progress since");

    let rest = Scene::parked("stopped").await;
    rest.items(&["n-1"]).await;
    rest.post("/n-1/inject", json!({}))
        .await
        .is_problem(409, "no_turn", "gets a turn of its own");
    rest.post("/n-1/inject", json!({"turn_id": turn}))
        .await
        .is_problem(409, "stale_turn", "no turn is: name none");
    assert_eq!(rest.texts(WAITING).await, ["n-1 followup"]);
    assert_eq!(rest.texts(COUNTS).await, ["backoff stopped 1 0 t"]);
    let path = rest.tenant.path(&format!("/sessions/{}", rest.session));
    let session = rest.world.get(&rest.tenant.member, &path).await;
    assert_eq!(session.body["can"], json!({"inject": false, "steer": true}));
}

#[tokio::test]
async fn signalbox_s_own_items_are_moved_and_withdrawn_by_an_admin() {
    let (scene, _) = Scene::busy().await;
    scene.items(&["n-1"]).await;
    scene.item("a-1", "followup", "answer").await;
    let (admin, path) = (&scene.tenant.admin, scene.path("/a-1"));
    scene
        .world
        .patch(admin, &path, json!({"revision": 1, "body": "b"}))
        .await
        .is_problem(409, "immutable_item", "type answer");
    for rest in ["/a-1/steer", "/a-1/inject"] {
        scene
            .world
            .post(admin, &scene.path(rest), json!({}))
            .await
            .is_problem(409, "immutable_item", "move it");
    }
    let queue = scene.queue().await;
    assert_eq!(queue["items"][1]["editable"], false);
    let promoted = scene.post("/a-1/promote", json!({"revision": queue["revision"]})).await;
    assert_eq!(promoted.column("id"), ["a-1", "n-1"]);
    scene
        .world
        .delete(&scene.tenant.member, &path)
        .await
        .is_problem(409, "immutable_item", "withdraw");
    assert_eq!(scene.world.delete(admin, &path).await.status, 200);
    assert_eq!(scene.texts(WAITING).await, ["n-1 followup"]);
}

#[tokio::test]
async fn another_head_ends_the_waiting_of_a_run() {
    let scene = Scene::parked("collect").await;
    for id in ["n-1", "n-2"] {
        scene.item(id, "collect", "notification").await;
    }
    let before = scene.world.sent().await.len();
    scene.world.delete(&scene.tenant.member, &scene.path("/n-1")).await;
    assert_eq!(scene.texts(COUNTS).await, ["backoff 1 1 t"], "the claim looks again");
    let sent = scene.world.sent().await.split_off(before);
    assert!(
        subjects(&sent).contains(&"signalbox.session.resolved.acme.PROJ-7"),
        "{sent:?}"
    );
    assert!(
        !subjects(&sent).iter().any(|subject| subject.contains("released")),
        "{sent:?}"
    );
}

#[tokio::test]
async fn edits_and_claims_and_entries_leave_one_place_an_item_and_true_counts() {
    let (scene, _) = Scene::busy().await;
    let mut random = 7_u32;
    let mut below = |limit: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as usize % limit
    };
    for step in 0..80 {
        let queue = scene.queue().await;
        let mut ids: Vec<&str> = queue["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["id"].as_str().unwrap())
            .collect();
        let at = below(ids.len().max(1));
        let id = ids.get(at).map(|id| (*id).to_owned());
        match (below(7), id) {
            (0 | 1, _) | (_, None) => {
                let mode = ["followup", "steer", "collect", "inject"][below(4)];
                scene.item(&format!("n-{step}"), mode, "notification").await;
            }
            (2, Some(_)) => {
                // A claim takes the head.
                let sql = "with taken as (update notification set state = 'delivered' where id = (
                    select id from notification where state = 'queued' order by position limit 1) returning id)
                    update session set queued = queued - 1, turn_count = turn_count + 1 from taken";
                scene.world.execute(sql).await;
            }
            (3, Some(id)) => {
                let answer = scene
                    .world
                    .delete(&scene.tenant.admin, &scene.path(&format!("/{id}")))
                    .await;
                assert_eq!(answer.status, 200, "{answer:?}");
            }
            (4, Some(id)) => {
                let answer = scene
                    .post(&format!("/{id}/promote"), json!({"revision": queue["revision"]}))
                    .await;
                assert_eq!(answer.status, 200, "{answer:?}");
            }
            (5, Some(_)) => {
                ids.rotate_left(at);
                let answer = scene.put(json!({"revision": queue["revision"], "items": ids})).await;
                assert_eq!(answer.column("id"), ids);
            }
            (_, Some(id)) => {
                let what = ["steer", "inject"][below(2)];
                let answer = scene.post(&format!("/{id}/{what}"), json!({})).await;
                // After the first steer, the turn is stopping.
                assert!([202, 409].contains(&answer.status.as_u16()), "{answer:?}");
            }
        }
        let numbers =
            "select count(distinct (position + (1::bigint << 40)) % (1::bigint << 40))::text || ' of ' || count(*)
            from notification where state = 'queued'";
        let counted = scene.texts(numbers).await.remove(0);
        let (places, items) = counted.split_once(" of ").unwrap();
        assert_eq!(places, items, "step {step}: each item has a place of its own");
        assert!(scene.texts(COUNTS).await[0].ends_with(" t"), "step {step}");
    }
}

#[tokio::test]
async fn a_lease_is_taken_from_its_holder_by_an_admin() {
    let (scene, turn) = Scene::busy().await;
    let path = scene.tenant.path(&format!("/sessions/{}/release", scene.session));
    let (world, admin) = (&scene.world, &scene.tenant.admin);
    let rows = "select concat_ws(' ', s.phase, s.fence, t.fence, s.active_turn_id = t.id, s.lease_owner) from session s, turn t";
    let before = (scene.texts(rows).await, world.sent().await.len());
    assert_eq!(world.post(admin, &path, json!({})).await.status, 200);
    assert_eq!(
        (scene.texts(rows).await, world.sent().await.len()),
        before,
        "no one holds it"
    );
    world
        .execute(
            "update session set phase = 'running', fence = 3, lease_owner = '00000000-0000-0000-0000-000000000007'",
        )
        .await;
    world
        .post(&scene.tenant.member, &path, json!({}))
        .await
        .is_problem(403, "forbidden", "");
    let answer = world.post(admin, &path, json!({})).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["phase"]),
        (200, &json!("backoff")),
        "{answer:?}"
    );
    assert_eq!(scene.texts(rows).await, ["backoff 4 4 t"]);
    assert_eq!(
        scene.texts("select (wake_at <= now())::text from session").await,
        ["true"]
    );
    let activity = "select concat_ws(' ', detail ->> 'holder', detail ->> 'turn_id', actor_name) from activity where kind = 'session.lease_released'";
    assert_eq!(
        scene.texts(activity).await,
        [format!("00000000-0000-0000-0000-000000000007 {turn} a admin")]
    );
    let sent = world.sent().await.split_off(before.1);
    assert_eq!(
        subjects(&sent),
        [
            "signalbox.event.acme.PROJ-7.session.lease_released",
            "signalbox.session.resolved.acme.PROJ-7"
        ]
    );
}
