//! E-mail: what a person is told of by it, once; a mail server that fails; digests; sign-in links.

use std::sync::Arc;

use axum::http::Method;
use orchestrator::{
    forget::forget_once,
    outbound::{
        sender::Sender,
        sends_email,
        smtp::Mailer,
        store::{self, Ended, accounts_of, digest_join},
    },
    settings::{EmailSettings, OutboundSettings},
};
use serde_json::{Value, json};
use testkit::{MailServer, Manner, eventually};
use tokio_util::sync::CancellationToken;

use crate::{
    members::member,
    world::{Answer, Tenant, World},
};

const STATES: &str = "select concat_ws(' ', state, attempts, reason) from outbound_delivery order by created_at, id";
const ATTEMPTS: &str = "select concat_ws(' ', number, status, class) from outbound_attempt order by number";

/// An account with two people, and a mail server.
struct Setting {
    world: World,
    acme: Tenant,
    ann: String,
    ben: String,
    server: Arc<MailServer>,
}

async fn setting() -> Setting {
    testkit::install_tls_provider();
    let server = MailServer::start().await;
    let world = World::new().await;
    sends_email(&world.app, Some(50_000)).await.unwrap();
    let acme = world.tenant("acme").await;
    let ann = member(&world, &acme, "ann", "member").await;
    let ben = member(&world, &acme, "ben", "member").await;
    Setting {
        world,
        acme,
        ann,
        ben,
        server,
    }
}

impl Setting {
    fn sender(&self) -> Sender {
        let email: EmailSettings =
            serde_json::from_value(json!({"smtp_url": self.server.url, "from": "Signalbox <signalbox@example.com>"}))
                .unwrap();
        let limits = OutboundSettings::default();
        let mailer = Mailer::of(&email, &limits).unwrap().unwrap();
        Sender::new(self.world.app.clone(), mailer, limits)
    }

    /// Sends what is due now.
    async fn send(&self) -> u64 {
        let mut sender = self.sender();
        let begun = sender.look().await.unwrap();
        sender.drain().await;
        begun
    }

    /// Ben writes to a person.
    async fn write(&self, to: &str, kind: &str, content: &str) -> Value {
        let mail = json!({"to": format!("@user:{to}"), "content": content, "message_type": kind});
        let sent = self.world.post(&self.ben, "/api/messages", mail).await;
        assert_eq!(sent.status, 201, "{sent:?}");
        sent.body
    }

    async fn prefers(&self, preference: Value) {
        let path = "/api/me/notification-preferences";
        let set = self.world.put(&self.ann, path, preference).await;
        assert_eq!(set.status, 200, "{set:?}");
    }

    async fn states(&self) -> Vec<String> {
        self.world.test.texts(STATES).await
    }

    async fn attempts(&self) -> Vec<String> {
        self.world.test.texts(ATTEMPTS).await
    }

    /// What waits or is held is due.
    async fn hurry(&self) {
        self.world
            .execute("update outbound_delivery set next_at = now() - interval '1 second' where next_at is not null")
            .await;
    }

    async fn deliveries(&self) -> Value {
        let inbox = self.world.get(&self.ann, "/api/me/inbox").await;
        let shown = inbox.body["items"][0]["deliveries"].as_array().unwrap().iter();
        shown
            .map(|one| json!([one["way"], one["state"], one["reason"]]))
            .collect()
    }

    /// A program asks for sign-in links.
    async fn ask(&self, email: &str) -> Answer {
        let call = self.world.call(Method::POST, "/sign-in/link");
        call.json(&json!({"email": email})).send().await
    }
}

#[tokio::test]
async fn an_escalation_comes_by_e_mail_once() {
    let setting = setting().await;
    let mail = setting
        .write("ann", "escalation", "The build is red.\nSince noon.")
        .await;
    // Where a person hears of mail, whoever writes it does not learn.
    assert_eq!(mail["deliveries"].as_array().unwrap().len(), 1);
    assert_eq!(
        setting.deliveries().await,
        json!([["web", "sent", null], ["email", "waiting", null]])
    );
    assert_eq!((setting.send().await, setting.send().await), (1, 0));

    let taken = setting.server.taken();
    let [email] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!(
        (email.from.as_str(), email.to.as_str()),
        ("signalbox@example.com", "ann@example.com")
    );
    let header = |name| email.header(name).unwrap();
    assert_eq!(header("Subject"), "[Signalbox] escalation: The build is red.");
    assert_eq!(header("Auto-Submitted"), "auto-generated");
    let id = &setting.world.test.texts("select id::text from outbound_delivery").await[0];
    assert_eq!(header("Message-ID"), format!("<{id}@example.com>"));
    let link = format!("http://127.0.0.1:8080/c/acme/inbox/{}", mail["id"].as_str().unwrap());
    let text = email.text();
    assert!(
        text.starts_with("The build is red.\r\nSince noon.\r\n") && text.contains(&link),
        "{text}"
    );
    assert_eq!(setting.states().await, ["sent 1"]);
    assert_eq!(setting.attempts().await, ["1 accepted"]);
    assert_eq!(
        setting.deliveries().await,
        json!([["web", "sent", null], ["email", "sent", null]])
    );
}

#[tokio::test]
async fn who_hears_by_e_mail_is_what_they_prefer() {
    let setting = setting().await;
    for kind in ["message", "notification", "question", "escalation"] {
        setting.write("ann", kind, kind).await;
    }
    // A question comes by e-mail to whoever would hear of it by Slack.
    let written = "select concat_ws(' ', type, instead_of) from outbound_delivery order by type";
    assert_eq!(
        setting.world.test.texts(written).await,
        ["escalation", "question slack"]
    );

    setting.world.execute("delete from outbound_delivery").await;
    for kind in ["question", "escalation"] {
        setting
            .prefers(json!({"message_type": kind, "deliver_slack": false, "deliver_email": false}))
            .await;
        setting.write("ann", kind, "quiet").await;
    }
    setting
        .prefers(json!({"message_type": "message", "deliver_email": true}))
        .await;
    setting.write("ann", "message", "loud").await;
    assert_eq!(setting.world.test.texts(written).await, ["message"]);

    setting.world.execute("delete from outbound_delivery").await;
    setting
        .world
        .execute("update member set email = null where user_id = 'ann'")
        .await;
    setting.write("ann", "message", "no address").await;
    assert_eq!(setting.states().await, [""; 0]);
    setting
        .world
        .execute("update member set email = 'ann@example.com' where user_id = 'ann'")
        .await;
    sends_email(&setting.world.app, None).await.unwrap();
    setting.write("ann", "message", "no mail server").await;
    assert_eq!(setting.states().await, [""; 0]);

    // One waits, and no more may.
    sends_email(&setting.world.app, Some(1)).await.unwrap();
    for content in ["first", "second"] {
        setting.write("ann", "message", content).await;
    }
    let expected = ["waiting 0", "dead 0 too many e-mails of the account wait"];
    assert_eq!(setting.states().await, expected);
}

#[tokio::test]
async fn a_busy_server_is_asked_again_and_a_refusal_is_the_end() {
    let setting = setting().await;
    setting.write("ann", "escalation", "one").await;
    setting.server.once(Manner::Refuses(451));
    assert_eq!(setting.send().await, 1);
    assert_eq!(
        setting.states().await,
        ["waiting 1 the mail server does not take it now (451)"]
    );
    let pause = "select (extract(epoch from next_at - now()) between 1 and 2.4)::text from outbound_delivery";
    assert_eq!(setting.world.test.texts(pause).await, ["true"]);
    assert_eq!(setting.send().await, 0);
    setting.server.once(Manner::Drops);
    setting.hurry().await;
    assert_eq!(setting.send().await, 1);
    setting.hurry().await;
    assert_eq!(setting.send().await, 1);
    assert_eq!(setting.states().await, ["sent 3"]);
    assert_eq!(setting.attempts().await, ["1 451 busy", "2 unreachable", "3 accepted"]);
    assert_eq!(setting.server.taken().len(), 1);

    setting.world.execute("delete from outbound_delivery").await;
    setting.write("ann", "escalation", "two").await;
    setting.server.once(Manner::Refuses(550));
    assert_eq!(setting.send().await, 1);
    assert_eq!(setting.states().await, ["dead 1 the mail server refused it (550)"]);
    assert_eq!(setting.attempts().await, ["1 550 refused"]);
    let dead = json!(["email", "dead", "the mail server refused it (550)"]);
    assert_eq!(setting.deliveries().await[1], dead);

    // Signalbox itself is not let in: what waits is not lost by it.
    setting.world.execute("delete from outbound_delivery").await;
    setting.write("ann", "escalation", "three").await;
    setting.server.always(Manner::Refuses(535));
    for attempt in 1..=6 {
        setting.hurry().await;
        assert_eq!(setting.send().await, 1, "{attempt}");
        let state = setting.states().await.remove(0);
        assert!(
            state.starts_with(if attempt < 6 { "waiting" } else { "dead" }),
            "{state}"
        );
    }
}

#[tokio::test]
async fn what_a_sender_that_died_had_is_sent_by_another_one() {
    let setting = setting().await;
    setting.write("ann", "escalation", "one").await;
    let tx = setting.world.app.database.begin(&accounts_of("acme")).await.unwrap();
    let claimed = store::claim(&tx, "acme", (60.0, 4)).await.unwrap().remove(0);
    tx.commit().await.unwrap();
    assert_eq!(setting.send().await, 0);
    setting.hurry().await;
    assert_eq!(setting.send().await, 1);
    assert_eq!(setting.states().await, ["sent 2"]);

    // It was not dead, and is too late.
    let tx = setting.world.app.database.begin(&accounts_of("acme")).await.unwrap();
    let ended = Ended {
        state: domain::DeliveryState::Dead,
        reason: Some("late"),
        again_s: 0.0,
        brought: &[],
    };
    assert!(!store::end(&tx, "acme", &claimed, (&ended, None)).await.unwrap());
    tx.commit().await.unwrap();
    assert_eq!(setting.states().await, ["sent 2"]);

    // The server took it, and nobody heard: it comes twice, under one id.
    setting.world.execute("delete from outbound_delivery").await;
    setting.write("ann", "escalation", "two").await;
    setting.server.once(Manner::LosesAnswer);
    setting.send().await;
    setting.hurry().await;
    setting.send().await;
    let ids: Vec<_> = setting.server.taken()[1..]
        .iter()
        .map(|email| email.header("Message-ID"))
        .collect();
    assert!(ids.len() == 2 && ids[0] == ids[1], "{ids:?}");
}

#[tokio::test]
async fn a_digest_brings_what_is_not_read_by_then() {
    let setting = setting().await;
    setting
        .prefers(json!({"message_type": "message", "deliver_email": true, "digest": "hourly"}))
        .await;
    for content in ["one", "two", "three"] {
        setting.write("ann", "message", content).await;
    }
    assert_eq!(setting.states().await, ["held 0", "held 0", "held 0"]);
    assert_eq!(setting.send().await, 0);
    let inbox = setting.world.get(&setting.ann, "/api/me/inbox").await;
    let read = inbox.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|mail| mail["content"] == "two");
    let read = read.unwrap()["id"].as_str().unwrap();
    let path = format!("/api/me/inbox/{read}/read");
    assert_eq!(setting.world.put(&setting.ann, &path, json!({})).await.status, 200);

    setting.hurry().await;
    assert_eq!((setting.send().await, setting.send().await), (1, 0));
    let taken = setting.server.taken();
    let [email] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!(email.header("Subject").unwrap(), "[Signalbox] digest: 2 in your inbox");
    let text = email.text();
    assert!(
        text.contains(": one\r\n") && text.contains(": three\r\n") && !text.contains(": two"),
        "{text}"
    );
    // One of the three brought the others, whichever that was.
    let states = "select state from outbound_delivery order by state";
    assert_eq!(setting.world.test.texts(states).await, ["sent", "sent", "superseded"]);
}

#[tokio::test]
async fn nobody_who_was_removed_is_told() {
    let setting = setting().await;
    setting.write("ann", "escalation", "one").await;
    let path = setting.acme.path("/members/ann");
    assert_eq!(setting.world.delete(&setting.acme.admin, &path).await.status, 204);
    assert_eq!(setting.send().await, 1);
    assert_eq!(setting.server.asked(), 0);
    let expected = "superseded 1 read or archived before, or its person was removed or has no address";
    assert_eq!(setting.states().await, [expected]);
}

#[tokio::test]
async fn a_server_that_hangs_for_one_account_keeps_no_other_waiting() {
    let setting = setting().await;
    let beta = setting.world.tenant("beta").await;
    member(&setting.world, &beta, "cleo", "member").await;
    let of_beta = member(&setting.world, &beta, "dan", "member").await;
    setting.server.with("ann@example.com", Manner::Hangs);
    for content in 0..10 {
        setting.write("ann", "escalation", &content.to_string()).await;
    }
    let mail = json!({"to": "@user:cleo", "content": "hello", "message_type": "escalation"});
    assert_eq!(setting.world.post(&of_beta, "/api/messages", mail).await.status, 201);

    let mut sender = setting.sender();
    assert_eq!(sender.look().await.unwrap(), 5);
    eventually("the other account's e-mail is taken", || async {
        let taken = setting.server.taken();
        (taken.len() == 1 && taken[0].to == "cleo@example.com").then_some(())
    })
    .await;
    // No more of the account than its places.
    assert_eq!(sender.look().await.unwrap(), 0);
    let sending = "select count(*)::text from outbound_delivery where account_id = 'acme' and state = 'sending'";
    assert_eq!(setting.world.test.texts(sending).await, ["4"]);
}

#[tokio::test]
async fn sign_in_links_come_by_e_mail_to_those_who_have_the_address() {
    let setting = setting().await;
    let beta = setting.world.tenant("beta").await;
    let new = json!({"user_id": "ann", "name": "Ann", "email": "ann@example.com", "role": "member"});
    let made = setting.world.post(&beta.admin, &beta.path("/members"), new).await;
    assert_eq!(made.status, 201, "{made:?}");
    // Who has come in by a link that was mailed, or by a provider that vouches for the address.
    let proven = "update member set address_proven = true where account_id = 'acme' and user_id = 'ann'";
    setting.world.execute(proven).await;

    // Nothing says whether somebody has the address.
    for email in ["ann@example.com", "ANN@example.com", "nobody@example.com"] {
        let asked = setting.ask(email).await;
        assert_eq!((asked.status.as_u16(), &asked.body), (202, &json!("")), "{email}");
    }
    setting.ask("ann").await.is_problem(400, "invalid_field", "");
    assert_eq!(setting.send().await, 3);
    let taken = setting.server.taken();
    assert_eq!(
        taken.iter().map(|email| email.to.as_str()).collect::<Vec<_>>(),
        ["ann@example.com"; 2]
    );
    let mut states = setting.states().await;
    states.sort();
    assert_eq!(states, ["sent 1", "sent 1", "superseded 1 no member has this address"]);
    let links = |text: &str| -> Vec<String> {
        let links = text.lines().filter_map(|line| line.split_once("http://127.0.0.1:8080"));
        links.map(|(_, path)| path.trim().to_owned()).collect()
    };
    let (first, second) = (links(&taken[0].text()), links(&taken[1].text()));
    assert_eq!((first.len(), second.len()), (2, 2), "{taken:?}");
    let used = setting.world.call(Method::POST, &first[0]).send().await;
    let then = setting.world.call(Method::POST, &second[0]).send().await;
    // Each e-mail ends the links of the one before, whichever was sent last.
    let mut statuses = [used.status.as_u16(), then.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 410]);

    // The sixth of an hour is answered like the others.
    for _ in 0..4 {
        assert_eq!(setting.ask("ann@example.com").await.status, 202);
    }
    assert_eq!(setting.send().await, 3);

    // An admin who gives a person another address does not come in as the person.
    let path = setting.acme.path("/members/ben");
    let changed = json!({"email": "eve@example.com"});
    assert_eq!(
        setting.world.patch(&setting.acme.admin, &path, changed).await.status,
        200
    );
    setting.ask("eve@example.com").await;
    let before = setting.server.taken().len();
    assert_eq!(setting.send().await, 1);
    assert_eq!(setting.server.taken().len(), before);

    // Nor by the address of an invitation that the person has used.
    let vic = json!({"user_id": "vic", "name": "Vic", "email": "vic@example.com", "role": "member", "invite": true});
    let vic = setting
        .world
        .post(&setting.acme.admin, &setting.acme.path("/members"), vic)
        .await;
    let link = vic.body["link"]["sign_in_link"].as_str().unwrap().to_owned();
    let link = link.strip_prefix("http://127.0.0.1:8080").unwrap();
    assert_eq!(setting.world.call(Method::POST, link).send().await.status, 201);
    setting.ask("vic@example.com").await;
    assert_eq!(setting.send().await, 1);
    assert_eq!(setting.server.taken().len(), before);

    let page = setting
        .world
        .call(Method::GET, "/sign-in")
        .header("accept", "text/html");
    let page = page.send().await.body;
    assert!(page.as_str().unwrap().contains("action=\"/sign-in/link\""), "{page}");
    assert_eq!(setting.world.get("", "/api/sign-in/methods").await.body["email"], true);
    let without = World::new().await;
    let asked = without
        .call(Method::POST, "/sign-in/link")
        .json(&json!({"email": "ann@example.com"}));
    asked
        .send()
        .await
        .is_problem(404, "not_found", "no e-mail is sent here");
}

#[tokio::test]
async fn a_digest_comes_at_an_hour_of_the_persons_day() {
    let world = World::new().await;
    let cases = [
        // The hour that spring leaves out is the one after it.
        ("2026-03-29 00:30+00", "daily", 2, "Europe/Berlin", "2026-03-29 01:00"),
        ("2026-03-29 01:00+00", "daily", 2, "Europe/Berlin", "2026-03-30 00:00"),
        ("2026-03-28 07:00+00", "daily", 8, "Europe/Berlin", "2026-03-29 06:00"),
        // Of the hour that comes twice in autumn, the second one.
        ("2026-10-24 22:00+00", "daily", 2, "Europe/Berlin", "2026-10-25 01:00"),
        ("2026-10-25 00:30+00", "daily", 2, "Europe/Berlin", "2026-10-25 01:00"),
        ("2026-10-25 01:00+00", "daily", 2, "Europe/Berlin", "2026-10-26 01:00"),
        ("2026-10-24 06:00+00", "daily", 8, "Europe/Berlin", "2026-10-25 07:00"),
        ("2026-01-01 23:30+00", "daily", 0, "UTC", "2026-01-02 00:00"),
        ("2026-01-01 00:00+00", "daily", 0, "UTC", "2026-01-02 00:00"),
        // A day that begins at one.
        ("2026-03-08 04:30+00", "daily", 0, "America/Havana", "2026-03-08 05:00"),
        ("2026-07-01 10:10+00", "hourly", 0, "Asia/Kolkata", "2026-07-01 10:30"),
        ("2026-03-29 00:30+00", "hourly", 0, "Europe/Berlin", "2026-03-29 01:00"),
        ("2026-10-25 00:30+00", "hourly", 0, "Europe/Berlin", "2026-10-25 01:00"),
        ("2026-10-25 01:00+00", "hourly", 0, "Europe/Berlin", "2026-10-25 02:00"),
    ];
    for (moment, digest, hour, zone, expected) in cases {
        let at: String = sqlx::query_scalar(
            "select to_char(digest_at($1::timestamptz, $2, $3, $4) at time zone 'UTC', 'YYYY-MM-DD HH24:MI')",
        )
        .bind(moment)
        .bind(digest)
        .bind(hour)
        .bind(zone)
        .fetch_one(&world.test.owner)
        .await
        .unwrap();
        assert_eq!(at, expected, "{moment} {digest} {hour} {zone}");
    }
}

/// Of three messages, two are joined to a digest that nobody sends any more, and one is new.
#[tokio::test]
async fn what_nobody_sends_ends_after_a_week() {
    let setting = setting().await;
    setting
        .prefers(json!({"message_type": "message", "deliver_email": true, "digest": "hourly"}))
        .await;
    setting.write("ann", "message", "one").await;
    setting.write("ann", "message", "two").await;
    setting.hurry().await;
    let tx = setting.world.app.database.begin(&accounts_of("acme")).await.unwrap();
    digest_join(&tx, "acme").await.unwrap();
    tx.commit().await.unwrap();
    setting.write("ann", "message", "three").await;
    let forget = async || {
        forget_once(&setting.world.app, &CancellationToken::new())
            .await
            .unwrap()
    };
    assert_eq!(forget().await, 0);
    let late = "update outbound_delivery set next_at = now() - interval '8 days' where state = 'waiting'";
    setting.world.execute(late).await;
    assert_eq!(forget().await, 2);
    let dead = "dead 0 nothing sent it: Signalbox sends no e-mail";
    assert_eq!(setting.states().await, [dead, dead, "held 0"]);
    assert_eq!(forget().await, 0);
}
