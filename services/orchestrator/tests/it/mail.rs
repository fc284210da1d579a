//! Mail that waits for an agent and is read by a person, and the retention of mail.

use axum::http::Method;
use contracts::{Root, outgoing::Origin};
use domain::{AccountId, Actor, MailId, TaskId, TaskStatus};
use orchestrator::{forget::forget_once, mail::sweep::settle_once};
use serde_json::{Value, json};
use storage::{
    Accounts, Role, Setting,
    directory::ShareRound,
    lifecycle::{TaskMove, mail_settle::mail_again, task_status_set},
};
use testkit::rows;
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    members::member,
    seed,
    world::{Answer, Tenant, World},
};

/// What of a session and its items changes.
const COUNTS: &str = "
    select concat_ws(' ', s.phase, s.gate, s.queued, s.queue_edits, s.wake_at <= now()) from session s where s.closed_at is null order by s.key";
const OUTCOMES: &str = "select concat_ws(' ', state, reason) from notification order by position";

struct Scene {
    world: World,
    tenant: Tenant,
    ann: String,
    session: Uuid,
}

impl Scene {
    /// A session on a task that is parked, and Ann.
    async fn new() -> Scene {
        let world = World::new().await;
        let tenant = world.tenant("acme").await;
        let ann = member(&world, &tenant, "ann", "member").await;
        let coder = world.agent(&tenant, "coder").await;
        world.task(&tenant, "PROJ-7", &[]).await;
        let session = seed::parked(&world, &tenant, "PROJ-7", &coder, "pause").await;
        Scene {
            world,
            tenant,
            ann,
            session,
        }
    }

    /// Mail whose item waits in the session's queue; gives its id.
    async fn mail(&self, to: &str, session: Uuid) -> String {
        let mail = json!({"to": to, "content": "Look at the build."});
        let sent = self.world.post(&self.ann, "/api/messages", mail).await;
        assert_eq!(sent.status, 201, "{sent:?}");
        let id = sent.body["id"].as_str().unwrap().to_owned();
        let item = format!("mail:{id}");
        seed::item(&self.world, &self.tenant, session, (&item, "followup", "mail", "ann")).await;
        id
    }

    async fn read(&self, key: &str, session: &str, body: Value) -> Answer {
        let path = format!("/api/sessions/{session}/messages/read");
        let call = self.world.call(Method::PUT, &path).token(key);
        call.json(&body).send().await
    }

    async fn receipt(&self, mail: &str) -> Value {
        let read = self.world.get(&self.ann, &format!("/api/messages/{mail}")).await;
        read.body["receipt"].clone()
    }
}

#[tokio::test]
async fn a_person_reads_mail_that_waits_and_the_agent_does_not_get_it() {
    let scene = Scene::new().await;
    let (world, session) = (&scene.world, scene.session.to_string());
    let (first, second) = (
        scene.mail(&session, scene.session).await,
        scene.mail(&session, scene.session).await,
    );
    let first_item = format!("mail:{first}");
    // An item of the type that no mail has, and another type: neither is mail.
    for (id, kind) in [("mail:0190b5a8-0000-7000-8000-00000000000f", "mail"), ("n-1", "k")] {
        seed::item(world, &scene.tenant, scene.session, (id, "followup", kind, "ann")).await;
    }
    let read = scene.read(&scene.ann, &session, json!({"ids": [first]})).await;
    assert_eq!(
        (read.status.as_u16(), &read.body["changed"]),
        (200, &json!(1)),
        "{read:?}"
    );
    let receipt = scene.receipt(&first).await;
    assert_eq!(
        (&receipt["state"], &receipt["reason"]),
        (&json!("read"), &json!("read: by ann's name"))
    );
    assert_eq!(scene.receipt(&second).await["state"], "delivered");
    assert_eq!(
        world.test.texts(COUNTS).await,
        ["backoff pause 3 1 t"],
        "what is first now is looked at"
    );
    let ended = world
        .sent_on("signalbox.event.acme.PROJ-7.notification.cancelled")
        .await;
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].payload["data"]["id"], first_item.as_str());

    // Again, and with all: each piece is read once.
    let again = scene.read(&scene.ann, &session, json!({"ids": [first]})).await;
    assert_eq!(again.body["changed"], 0, "{again:?}");
    let all = scene.read(&scene.ann, &session, json!({})).await;
    assert_eq!(all.body["changed"], 1, "{all:?}");
    assert_eq!(
        world.test.texts(OUTCOMES).await,
        [
            "cancelled read: by ann's name",
            "cancelled read: by ann's name",
            "queued",
            "queued"
        ]
    );
    let changes = world.sent_on("signalbox.event.acme.-.mail.changed").await;
    let read = changes.iter().filter(|sent| sent.payload["data"]["change"] == "read");
    assert_eq!(read.count(), 2, "{changes:?}");
}

#[tokio::test]
async fn only_who_sees_and_may_write_reads_the_mail_of_a_session() {
    let scene = Scene::new().await;
    let (world, tenant) = (&scene.world, &scene.tenant);
    let ben = member(world, tenant, "ben", "admin").await;
    let session = scene.session.to_string();
    world.post(&scene.ann, "/api/me/orchestrator/wake", json!({})).await;
    let own = world.get(&scene.ann, "/api/me/orchestrator").await.body["session_id"].clone();
    let own = own.as_str().unwrap();
    let mail = scene.mail("orchestrator:ann", own.parse().unwrap()).await;
    let all = json!({});
    for key in [&tenant.admin, &tenant.member, &tenant.service] {
        let answer = scene.read(key, &session, all.clone()).await;
        answer.is_problem(403, "not_a_person", "person's key");
    }
    // An admin looks at it, and takes nothing from it.
    for named in ["orchestrator:ann", own, "orchestrator:nobody", "orchestrator:org:acme"] {
        scene
            .read(&ben, named, all.clone())
            .await
            .is_problem(404, "not_found", "");
    }
    let guest = "orchestrator:acme:ann:guest:ben:v1";
    scene
        .read(&scene.ann, guest, all.clone())
        .await
        .is_problem(409, "not_promptable", "");
    scene
        .read(&scene.ann, &Uuid::nil().to_string(), all.clone())
        .await
        .is_problem(404, "not_found", "");
    for (body, word) in [
        (json!({"ids": []}), "0 ids"),
        (json!({"ids": vec![Uuid::nil(); 201]}), "201 ids"),
        (json!({"ids": ["x"]}), "ids"),
        (json!({"mail": []}), "mail"),
    ] {
        scene
            .read(&scene.ann, &session, body)
            .await
            .is_problem(400, "invalid_field", word);
    }
    assert_eq!(scene.receipt(&mail).await["state"], "delivered");
    // Mail of another conversation is none of this one.
    let other = scene.read(&scene.ann, &session, json!({"ids": [mail]})).await;
    assert_eq!(other.body["changed"], 0, "{other:?}");
    let read = scene.read(&scene.ann, "orchestrator:ann", all).await;
    assert_eq!(read.body["changed"], 1, "{read:?}");
    assert_eq!(scene.receipt(&mail).await["state"], "read");
}

/// Mail to a session goes some time after its outcome, mail to a person after it was archived; what is in an inbox stays.
#[tokio::test]
async fn mail_is_kept_for_a_time() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let over = |days: u32| format!("now() - interval '{days} days'");
    let to_session = |name: &str| {
        rows("mail")
            .with("content", name)
            .set("to_user", "null")
            .with("to_session", "orchestrator:acme:ann:v1")
            .set("created_at", over(900))
    };
    let to_person = |name: &str| rows("mail").with("content", name).set("created_at", over(900));
    for row in [
        to_session("settled long ago")
            .set("settled_at", over(366))
            .with("outcome", "read"),
        to_session("settled")
            .set("settled_at", over(364))
            .with("outcome", "in_turn"),
        to_session("waits"),
        to_person("archived long ago").set("archived_at", over(366)),
        to_person("archived").set("archived_at", over(364)),
        to_person("in the inbox").set("read_at", over(800)),
        to_person("bounced")
            .set("settled_at", over(800))
            .with("outcome", "bounced"),
    ] {
        row.insert(&world.test.owner).await;
    }
    assert_eq!(forget_once(&world.app, &CancellationToken::new()).await.unwrap(), 2);
    assert_eq!(
        world.test.texts("select content from mail order by content").await,
        ["archived", "bounced", "in the inbox", "settled", "waits"]
    );
    assert_eq!(forget_once(&world.app, &CancellationToken::new()).await.unwrap(), 0);
}

/// The sweep may look before the item is back in its queue, after it has failed again, and not before it is sent again.
#[tokio::test]
async fn mail_that_is_sent_again_waits_for_its_new_end() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let session = scene.session.to_string();
    let mails = [
        scene.mail(&session, scene.session).await,
        scene.mail(&session, scene.session).await,
        scene.mail(&session, scene.session).await,
        scene.mail(&session, scene.session).await,
    ];
    let acme = AccountId::parse("acme").unwrap();
    let again = async |mail: &str| {
        let tx = world.app.database.begin(&Accounts::one(&acme)).await.unwrap();
        mail_again(&tx, &acme, MailId::parse(mail).unwrap()).await.unwrap();
        tx.commit().await.unwrap();
    };
    let settle = async || {
        let mut round = ShareRound::of_mail();
        settle_once(&world.app, &mut round, &CancellationToken::new())
            .await
            .unwrap()
    };
    let unsettled = async || {
        let sql = "select id::text from mail where to_session is not null and settled_at is null and why = 'addressed' order by id";
        world.test.texts(sql).await
    };
    world
        .execute("update notification set state = 'failed', reason = 'broke' where id like 'mail:%'")
        .await;
    let [fails_again, is_delivered, is_refused, at_once] = &mails;
    again(at_once).await;
    settle().await;
    assert_eq!(unsettled().await, std::slice::from_ref(at_once));
    assert_eq!(scene.receipt(&mails[0]).await["state"], "bounced");

    for mail in [fails_again, is_delivered, is_refused] {
        again(mail).await;
    }
    let mut waiting = mails.to_vec();
    waiting.sort_unstable();
    settle().await;
    assert_eq!(unsettled().await, waiting, "the end before is no news");
    // As the resolver does.
    for (mail, state) in [
        (fails_again, "failed"),
        (is_delivered, "delivered"),
        (at_once, "delivered"),
    ] {
        let sql = format!("update notification set state = '{state}', created_at = now() where id = 'mail:{mail}'");
        world.execute(sql).await;
    }
    settle().await;
    assert_eq!(unsettled().await, std::slice::from_ref(is_refused));
    assert_eq!(scene.receipt(fails_again).await["state"], "bounced");
    assert_eq!(scene.receipt(is_delivered).await["state"], "in_turn");
    world
        .execute("update mail set again_at = again_at - interval '2 hours'")
        .await;
    settle().await;
    assert_eq!(unsettled().await, [""; 0]);
    let bounces = "select count(*) from mail where why = 'bounce'";
    assert_eq!(world.test.count(bounces).await, 3, "each goes back once");
}

/// What was put off comes back with the end of its task, and what a removed person has not read goes back: once to each who wrote.
#[tokio::test]
async fn what_is_put_off_or_unread_comes_back() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let ben = member(world, &scene.tenant, "ben", "member").await;
    for content in ["first", "second"] {
        let mail = json!({"to": "@user:ben", "content": content, "context_task_id": "PROJ-7"});
        assert_eq!(world.post(&scene.ann, "/api/messages", mail).await.status, 201);
    }
    let inbox = async || world.get(&ben, "/api/me/inbox").await.column("content");
    assert_eq!(inbox().await, ["second", "first"]);
    let first = world.get(&ben, "/api/me/inbox").await.column("id")[1].clone();
    let until = (OffsetDateTime::now_utc() + Duration::days(1))
        .format(&Rfc3339)
        .unwrap();
    let snoozed = world
        .put(&ben, &format!("/api/me/inbox/{first}/snooze"), json!({"until": until}))
        .await;
    assert_eq!(snoozed.status, 200, "{snoozed:?}");
    assert_eq!(inbox().await, ["second"]);
    // An agent ends the task, which may not read what people write to each other.
    let database = world.test.connect(Role::ToolGateway).await;
    let acme = AccountId::parse("acme").unwrap();
    let tx = database.begin(&Accounts::one(&acme)).await.unwrap();
    let root = Root::default();
    let setting = Setting {
        root: &root,
        source: "/signalbox/test",
        origin: Origin::default(),
        now: OffsetDateTime::now_utc(),
    };
    let asked = TaskMove {
        account: &acme,
        task: &TaskId::parse("PROJ-7").unwrap(),
        to: TaskStatus::Done,
        by: &Actor::system(),
        turn: None,
        reason: None,
        passes_stages: false,
    };
    task_status_set(&tx, &asked, &setting).await.unwrap().unwrap();
    tx.commit().await.unwrap();
    assert_eq!(inbox().await, ["first", "second"]);

    let removed = world
        .delete(&scene.tenant.admin, &scene.tenant.path("/members/ben"))
        .await;
    assert_eq!(removed.status, 204, "{removed:?}");
    let back = world.get(&scene.ann, "/api/me/inbox").await;
    let back = back.body["items"].as_array().unwrap();
    assert_eq!(back.len(), 1, "{back:?}");
    assert_eq!(back[0]["why"], "bounce");
    assert!(
        back[0]["content"].as_str().unwrap().contains("It began: \"second\""),
        "{back:?}"
    );
}

/// Of four places, six hours apart, one is past its evening.
#[tokio::test]
async fn mail_may_be_put_off_to_an_evening_a_morning_and_a_monday() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let mut evenings = 0;
    for zone in ["Etc/GMT-12", "Etc/GMT-6", "Etc/GMT", "Etc/GMT+6"] {
        let changed = world.patch(&scene.ann, "/api/me", json!({"time_zone": zone})).await;
        assert_eq!(changed.status, 200, "{changed:?}");
        let count = world.get(&scene.ann, "/api/me/inbox/count").await;
        let there = async |moment: &Value| {
            let shown = "select to_char($1::timestamptz at time zone $2, 'HH24:MI') || ' in '
                || (($1::timestamptz at time zone $2)::date - (now() at time zone $2)::date) || ' days'
                || case when extract(isodow from $1::timestamptz at time zone $2) = 1 then ', a Monday' else '' end";
            let shown = sqlx::query_scalar::<_, String>(shown)
                .bind(moment.as_str().unwrap())
                .bind(zone);
            shown.fetch_one(&world.test.owner).await.unwrap()
        };
        let moments = &count.body["snooze_moments"];
        if !moments["evening"].is_null() {
            evenings += 1;
            assert!(
                there(&moments["evening"]).await.starts_with("18:00 in 0 days"),
                "{moments}"
            );
        }
        assert!(
            there(&moments["tomorrow"]).await.starts_with("09:00 in 1 days"),
            "{moments}"
        );
        let monday = there(&moments["monday"]).await;
        let is_next = (1..=7).any(|days| monday == format!("09:00 in {days} days, a Monday"));
        assert!(is_next, "{monday}");
    }
    assert_eq!(evenings, 3);
}

#[tokio::test]
async fn an_inbox_is_searched_by_who_wrote_whatever_the_session_is_called() {
    let scene = Scene::new().await;
    let (world, session) = (&scene.world, scene.session);
    let read = world.get(&scene.ann, &format!("/api/sessions/{session}")).await;
    let key = read.body["key"].as_str().unwrap().to_owned();
    let mail = |kind: &str| {
        rows("mail")
            .with("to_user", "ann")
            .set("from_user", "null")
            .with("from_name", "coder")
            .with("from_session", &key)
            .with("context_session", &key)
            .with("message_type", kind)
    };
    for row in [
        mail("question"),
        mail("message").set("read_at", "now()"),
        rows("mail").with("to_user", "ann").with("from_user", "ben"),
    ] {
        row.insert(&world.test.owner).await;
    }
    let later = key.replace(":v1", ":v9");
    for (query, expected) in [
        (String::new(), 3),
        (format!("from_session_id={session}"), 2),
        (format!("fromSessionId={later}&unreadOnly=true"), 1),
        (format!("fromSessionId={session}&messageType=question"), 1),
        (format!("context_session_id={session}"), 2),
        (format!("contextSessionId={key}"), 2),
        (format!("context_session={session}"), 2),
        ("fromUserId=ben".to_owned(), 1),
        (format!("from_session_id={}", Uuid::now_v7()), 0),
        ("from_session_id=nothing".to_owned(), 0),
    ] {
        let listed = world.get(&scene.ann, &format!("/api/me/inbox?{query}")).await;
        assert_eq!(listed.column("id").len(), expected, "{query}: {listed:?}");
    }
    let archived = format!("/api/me/inbox?state=archived&from_session_id={session}");
    assert_eq!(world.get(&scene.ann, &archived).await.column("id").len(), 0);
}

#[tokio::test]
async fn a_party_that_is_an_orchestrator_has_its_handle() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let enabled = json!({"enabled": true, "handle": "ops"});
    let path = scene.tenant.path("/orchestrator/identity");
    world.put(&scene.tenant.admin, &path, enabled).await;
    let own = json!({"handle": "jarvis"});
    world.put(&scene.ann, "/api/me/orchestrator/identity", own).await;
    member(world, &scene.tenant, "ben", "member").await;
    let session = scene.session.to_string();
    for (to, handle) in [
        ("orchestrator:ann", json!("jarvis")),
        ("@ops", json!("ops")),
        ("@user:ben", Value::Null),
        (&*session, Value::Null),
    ] {
        let sent = world
            .post(&scene.ann, "/api/messages", json!({"to": to, "content": "c"}))
            .await;
        assert_eq!(sent.status, 201, "{sent:?}");
        assert_eq!(
            (&sent.body["to"]["handle"], &sent.body["from"]["handle"]),
            (&handle, &Value::Null),
            "{to}"
        );
    }
    let from = rows("mail")
        .with("to_user", "ann")
        .set("from_user", "null")
        .with("from_session", "orchestrator:acme:ben:v1")
        .with("from_name", "n");
    from.insert(&world.test.owner).await;
    let inbox = world.get(&scene.ann, "/api/me/inbox").await;
    assert_eq!(inbox.body["items"][0]["from"]["handle"], "ben", "{inbox:?}");
    let own = json!({"to": "@user:ann", "content": "c"});
    let own = world.post(&scene.ann, "/api/messages", own).await;
    own.is_problem(400, "own_address", "");
}
