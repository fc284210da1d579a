//! External calls: a model is asked once for each call, in the one form, whatever crashes and repeats; others neither wait for it nor
//! hold it up; its answer is the call's result, and what it makes are artifacts of the task.

use base64::{Engine, engine::general_purpose::STANDARD};
use domain::ToolCallState::{Failed, Finished, Refused, Unknown};
use serde_json::{Value, json};
use testkit::{Says, StubModel, eventually, rows};
use uuid::Uuid;

use crate::{
    branches::{inside, spawn},
    world::{Gateway, TestSession, World},
};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\nan image";
const CALLS: &str =
    "select concat_ws(' ', ordinal, name, state, late, model, request ->> 'tries') from tool_call order by ordinal";
/// The grace for a runner to come back is ten leases.
const SHORT_LEASE: &str = "[replica]\nlease_ms = 900\nrenew_ms = 300";
const RUNNING: &str = "select count(*) from tool_call where state = 'running'";

/// The settings of one that answers in text, and of one that makes images.
fn settings(model: &StubModel) -> String {
    let entry = |name: &str, kind: &str, more: &str| {
        format!(
            "[models.{name}]\nkind = \"{kind}\"\nurl = \"{}\"\nmodel = \"m-1\"\napi_key = \"sk-secret\"\n\
             private_addresses = true\n{more}\n",
            model.url()
        )
    };
    let elsewhere = entry("theirs", "openresponses", "accounts = [\"other\"]");
    let plain = entry("plain", "openresponses", "accepts = [\"text\"]\ntimeout_ms = 2000");
    let paints = entry("paints", "images", "sizes = [\"1024x1024\"]\noutput_format = \"png\"");
    [entry("asks", "openresponses", ""), plain, paints, elsewhere].concat()
}

fn refuses(status: u16) -> Says {
    Says::plain(status, r#"{"error": {"message": "no, with sk-secret"}}"#)
}

fn images(contents: &[&[u8]]) -> Says {
    let encoded: Vec<String> = contents.iter().map(|content| STANDARD.encode(content)).collect();
    Says::images(&encoded.iter().map(String::as_str).collect::<Vec<_>>())
}

struct Work {
    world: World,
    model: StubModel,
    coder: TestSession,
    gateway: Gateway,
}

impl Work {
    async fn with(says: impl Fn(usize, &str) -> Says + Send + Sync + 'static) -> Work {
        Work::of("", says).await
    }

    /// An agent that is offered the tools, on a task with a context.
    async fn of(section: &str, says: impl Fn(usize, &str) -> Says + Send + Sync + 'static) -> Work {
        let world = World::new().await;
        let model = StubModel::start(says).await;
        let gateway = world.gateway_with(&format!("{section}\n{}", settings(&model))).await;
        let coder = world.coder("acme").await;
        world.offer(&coder).await;
        world.context("acme", "We build a shop.", 0).await;
        Work {
            world,
            model,
            coder,
            gateway,
        }
    }

    async fn another_gateway(&self, section: &str) -> Gateway {
        let section = format!("{section}\n{}", settings(&self.model));
        self.world.gateway_with(&section).await
    }

    async fn call(&self, ordinal: i32, tool: &str, arguments: Value) -> crate::world::Answer {
        self.world.call(&self.coder.request(ordinal, tool, &arguments)).await
    }

    async fn calls(&self) -> Vec<String> {
        self.world.database.texts(CALLS).await
    }

    async fn running(&self, count: i64) {
        eventually("running calls", async || {
            (self.world.database.count(RUNNING).await == count).then_some(())
        })
        .await;
    }

    async fn is_sent(&self, times: usize) {
        eventually("requests at the model", async || {
            (self.model.sent().len() == times).then_some(())
        })
        .await;
    }

    /// The database is away for this long: no call and no registration can be read or written.
    async fn away_for(&self, seconds: f64) {
        let mut away = self.world.database.owner.begin().await.unwrap();
        sqlx::query("lock table replica, tool_call in access exclusive mode")
            .execute(&mut *away)
            .await
            .unwrap();
        sqlx::query("select pg_sleep($1)")
            .bind(seconds)
            .execute(&mut *away)
            .await
            .unwrap();
        away.rollback().await.unwrap();
    }

    async fn execute(&self, sql: &'static str) {
        sqlx::query(sql).execute(&self.world.database.owner).await.unwrap();
    }

    async fn end(self) {
        self.world.end(&[&self.gateway]).await;
    }
}

impl World {
    async fn offer(&self, session: &TestSession) {
        let offer = "update turn set tools = tools || '{ask_model,read_media,generate_media}' where id = $1";
        self.run(sqlx::query(offer).bind(session.turn.uuid())).await;
    }

    async fn context(&self, account: &str, body: &str, cut_characters: i32) {
        let insert = "insert into task_context (account_id, task_id, version, body, characters, cut_characters, author_kind, author_id, author_name)
                      select $1, 'proj-7', 1 + count(*), $2, char_length($2), $3, 'user', 'ann', 'Ann' from task_context where account_id = $1";
        self.run(
            sqlx::query(insert)
                .bind(account.to_owned())
                .bind(body.to_owned())
                .bind(cut_characters),
        )
        .await;
    }

    async fn artifact(&self, account: &str, task: &str, content: &[u8], media_type: &str) -> String {
        let id = Uuid::now_v7();
        let bytes = format!("'\\x{}'::bytea", hex::encode(content));
        let stored = rows("artifact_content")
            .with("account_id", account)
            .set("content", &bytes)
            .set("sha256", format!("sha256({bytes})"));
        stored.insert(&self.database.owner).await;
        let artifact = rows("artifact")
            .with("account_id", account)
            .with("id", id)
            .with("task_id", task);
        let artifact = artifact
            .with("media_type", media_type)
            .with("bytes", content.len())
            .set("sha256", format!("sha256({bytes})"));
        artifact.insert(&self.database.owner).await;
        id.to_string()
    }
}

#[tokio::test]
async fn a_model_is_asked_in_the_one_form_and_no_other() {
    let work = Work::with(|_, _| Says::text("Looks <good>.")).await;
    let image = work.world.artifact("acme", "proj-7", PNG, "image/png").await;
    let pdf = work
        .world
        .artifact("acme", "proj-7", b"%PDF-1", "application/pdf")
        .await;
    let arguments = json!({"request": "Review it.", "artifacts": [image, pdf, image]});
    let answer = work.call(1, "ask_model", arguments).await.ok();
    assert_eq!(
        answer,
        json!({"ok": true, "model": "asks", "text": "Looks <good>.", "usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}})
    );
    let sent = work.model.sent().remove(0);
    let expected = concat!(
        r#"{"input":[{"content":[{"text":"[Task Context]\nWe build a shop.\n\n[Request]\nReview it.","type":"input_text"},"#,
        r#"{"image_url":"data:image/png;base64,iVBORw0KGgphbiBpbWFnZQ==","type":"input_image"},"#,
        r#"{"file_data":"data:application/pdf;base64,JVBERi0x","filename":"a.txt","type":"input_file"}],"role":"user","type":"message"}],"#,
        r#""model":"m-1","store":false,"stream":false}"#
    );
    assert_eq!(sent.body, expected);
    let call = work
        .world
        .database
        .texts("select id::text from tool_call")
        .await
        .remove(0);
    for (header, value) in [
        ("authorization", "Bearer sk-secret"),
        ("content-type", "application/json"),
        ("idempotency-key", &call),
    ] {
        assert_eq!(sent.headers[header], value);
    }
    let named: Vec<&str> = sent.headers.keys().map(reqwest::header::HeaderName::as_str).collect();
    assert!(
        !named
            .iter()
            .any(|name| name.starts_with("x-") || name.contains("session")),
        "{named:?}"
    );
    let recorded = "select concat_ws(' ', model, request ->> 'context_version', request -> 'artifacts' ->> 0, usage ->> 'total_tokens',
                           request ->> 'text_sha256' = encode(sha256(convert_to($$[Task Context]
We build a shop.

[Request]
Review it.$$, 'UTF8')), 'hex')) from tool_call";
    assert_eq!(
        work.world.database.texts(recorded).await,
        [format!("asks 1 {image} 7 t")]
    );
    work.end().await;
}

/// The newest context, whole, in any letters; with a warning where it was cut; and none where the task needs none.
#[tokio::test]
async fn a_context_is_sent_whole_or_its_lack_is_said() {
    let work = Work::with(|_, _| Says::text("ok")).await;
    let letters = "\u{1f600}".repeat(10_000);
    work.world.context("acme", &letters, 0).await;
    assert!(
        work.call(1, "ask_model", json!({"request": "r"}))
            .await
            .ok()
            .get("warning")
            .is_none()
    );
    work.world.context("acme", &letters, 1).await;
    let answer = work.call(2, "ask_model", json!({"request": "r"})).await.ok();
    assert_eq!(
        answer["warning"],
        "The task context was cut from 10,001 to 10,000 characters. Consider shortening it."
    );
    for sent in work.model.sent() {
        let body: Value = serde_json::from_str(&sent.body).unwrap();
        let text = body["input"][0]["content"][0]["text"].as_str().unwrap();
        assert_eq!(text, format!("[Task Context]\n{letters}\n\n[Request]\nr"));
    }
    work.execute("delete from task_context").await;
    for (ordinal, tool, arguments) in [
        (3, "ask_model", json!({"request": "r"})),
        (
            4,
            "read_media",
            json!({"request": "r", "url": "https://example.com/a.png"}),
        ),
        (5, "generate_media", json!({"request": "r"})),
    ] {
        let answer = work.call(ordinal, tool, arguments).await;
        assert_eq!(answer.code(Refused), "task_context_missing");
        let message = answer.result["error"]["message"].as_str().unwrap();
        assert_eq!(
            message,
            "CONTEXT.md not found: task PROJ-7 has no task context. Before using external-model tools or spawning subagents, write one."
        );
        assert!(
            answer.result["error"]["hint"]
                .as_str()
                .unwrap()
                .contains("task_context_write")
        );
    }
    assert_eq!(work.model.sent().len(), 2, "nothing was sent");
    work.execute("update task set task_context = 'optional'").await;
    work.call(6, "ask_model", json!({"request": "Just this."})).await.ok();
    let body: Value = serde_json::from_str(&work.model.sent().remove(2).body).unwrap();
    assert_eq!(body["input"][0]["content"][0]["text"], "Just this.");
    work.end().await;
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_before_anything_is_sent() {
    let work = Work::of("artifact_bytes_max = 1000", |_, _| Says::text("ok")).await;
    work.world.coder("other").await;
    work.world.fixture().task(&work.coder.account, "PROJ-8", &[]).await;
    let theirs = work.world.artifact("other", "proj-7", PNG, "image/png").await;
    let elsewhere = work.world.artifact("acme", "proj-8", PNG, "image/png").await;
    let image = work
        .world
        .artifact("acme", "proj-7", b"\x89PNG\r\n\x1a\n", "image/png")
        .await;
    let nobodys = Uuid::now_v7().to_string();
    let mut ordinal = 0;
    let mut ask = async |tool: &str, arguments: Value| {
        ordinal += 1;
        work.call(ordinal, tool, arguments).await
    };
    let mut words = Vec::new();
    for id in [&theirs, &elsewhere, &nobodys] {
        let answer = ask("ask_model", json!({"request": "r", "artifacts": [image, id]})).await;
        assert_eq!(answer.code(Refused), "not_found");
        words.push(answer.result.to_string().replace(id, "<id>"));
    }
    assert!(words.iter().all(|one| *one == words[0]), "{words:?}");
    let check = |answer: crate::world::Answer, code: &str, words: &str| {
        assert_eq!(answer.code(answer.state), code);
        assert!(answer.result.to_string().contains(words), "{}", answer.result);
    };
    check(
        ask("ask_model", json!({"request": "r", "model": "theirs"})).await,
        "unknown_model",
        "asks, plain",
    );
    check(
        ask("ask_model", json!({"request": "r", "model": "paints"})).await,
        "unknown_model",
        "asks, plain",
    );
    check(
        ask("generate_media", json!({"request": "r", "model": "asks"})).await,
        "unknown_model",
        "paints",
    );
    check(
        ask("generate_media", json!({"request": "r", "size": "1x1"})).await,
        "invalid_arguments",
        "1024x1024",
    );
    check(
        ask("generate_media", json!({"request": "r", "count": 5})).await,
        "invalid_arguments",
        "count",
    );
    check(
        ask("ask_model", json!({"request": " "})).await,
        "invalid_arguments",
        "blank",
    );
    check(
        ask("ask_model", json!({"request": "r", "context": "mine"})).await,
        "invalid_arguments",
        "context",
    );
    check(
        ask("read_media", json!({"request": "r"})).await,
        "invalid_arguments",
        "artifacts or url",
    );
    check(
        ask(
            "read_media",
            json!({"request": "r", "artifacts": [image], "url": "https://h/"}),
        )
        .await,
        "invalid_arguments",
        "not both",
    );
    check(
        ask(
            "ask_model",
            json!({"request": "r", "model": "plain", "artifacts": [image]}),
        )
        .await,
        "unsupported_media_type",
        "image/png",
    );
    for url in [
        "http://example.com/a.png",
        "https://127.0.0.1/a.png",
        "https://u@example.com/",
        "file:///etc/passwd",
    ] {
        check(
            ask("read_media", json!({"request": "r", "url": url})).await,
            "url_not_allowed",
            "https://",
        );
    }
    assert_eq!(work.model.sent().len(), 0);
    work.end().await;
}

#[tokio::test]
async fn a_model_that_fails_is_told_of_with_its_class() {
    let work = Work::with(|_, body| {
        let ask = |word: &str| body.contains(word);
        match () {
            () if ask("bad") => refuses(400),
            () if ask("key") => refuses(401),
            () if ask("busy") => refuses(429).retry_after("60"),
            () if ask("broken") => refuses(500),
            () if ask("nonsense") => Says::plain(200, "<html>"),
            () if ask("huge") => Says::text(&"x".repeat(1_100_000)),
            () if ask("long") => Says::text(&"y".repeat(70_000)),
            () => Says::text("late").after(10),
        }
    })
    .await;
    let mut ordinal = 0;
    let mut ask = async |request: &str| {
        ordinal += 1;
        work.call(ordinal, "ask_model", json!({"request": request, "model": "plain"}))
            .await
    };
    for (request, code, words) in [
        ("bad", "model_failed", "(bad_request)"),
        ("key", "model_failed", "(unauthorized): HTTP 401: no, with (api_key)"),
        ("busy", "model_failed", "(rate_limited)"),
        ("broken", "model_failed", "(server_error)"),
        ("nonsense", "model_failed", "(malformed)"),
        ("huge", "model_answer_too_large", "1 MiB"),
        ("slow", "model_timeout", "within 2 s"),
    ] {
        let answer = ask(request).await;
        assert_eq!(answer.code(Failed), code, "{request}");
        assert!(
            answer.result.to_string().contains(words),
            "{request}: {}",
            answer.result
        );
    }
    assert_eq!(work.model.sent().len(), 7, "each once");
    let answer = ask("long").await.ok();
    assert_eq!(answer["text"].as_str().unwrap().len(), 60 * 1024);
    assert!(answer["warning"].as_str().unwrap().contains("cut from 70000"));
    work.end().await;
}

/// What nothing ran of is asked again, and what may have run by its kind.
#[tokio::test]
async fn a_call_that_was_not_carried_out_is_made_again() {
    let work = Work::with(|number, _| match number {
        1 => refuses(503).retry_after("0"),
        2 => refuses(429).retry_after("1"),
        _ => Says::text("at last"),
    })
    .await;
    let answer = work.call(1, "ask_model", json!({"request": "r"})).await.ok();
    assert_eq!(answer["text"], "at last");
    let keys: Vec<_> = work
        .model
        .sent()
        .iter()
        .map(|sent| sent.headers["idempotency-key"].clone())
        .collect();
    assert!(keys.len() == 3 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    work.end().await;
}

#[tokio::test]
async fn images_become_artifacts_of_the_task() {
    let work = Work::of(
        "artifact_bytes_max = 100\nartifact_account_bytes_max = 40",
        |_, body| match () {
            () if body.contains("words") => images(&[b"no image"]),
            () if body.contains("large") => images(&[&[b'x'; 200]]),
            () if body.contains("much") => images(&[b"\x89PNG\r\n\x1a\nand much, much more"]),
            () => images(&[PNG, b"\xff\xd8\xff a photo"]),
        },
    )
    .await;
    let arguments = json!({"request": "A logo.", "name": "logo.PNG", "count": 2, "size": "1024x1024"});
    let answer = work.call(1, "generate_media", arguments).await.ok();
    let sent: Value = serde_json::from_str(&work.model.sent()[0].body).unwrap();
    assert_eq!(
        sent,
        json!({"model": "m-1", "prompt": "[Task Context]\nWe build a shop.\n\n[Request]\nA logo.", "n": 2, "size": "1024x1024", "output_format": "png"})
    );
    let shown = |artifact: &Value| {
        format!("{} {} {}", artifact["name"], artifact["media_type"], artifact["bytes"]).replace('"', "")
    };
    let artifacts = answer["artifacts"].as_array().unwrap();
    let found: Vec<String> = artifacts.iter().map(shown).collect();
    assert_eq!(found, ["logo-1.png image/png 16", "logo-2.jpeg image/jpeg 11"]);
    assert!(answer.get("text").is_none() && answer["model"] == "paints");
    let stored = "select concat_ws(' ', task_id, name, source, source_ref = (select id::text from tool_call), created_by_kind) from artifact order by name";
    assert_eq!(
        work.world.database.texts(stored).await,
        ["proj-7 logo-1.png model t agent", "proj-7 logo-2.jpeg model t agent"]
    );
    // What was made can be looked at.
    let check = async |ordinal, request: &str, code: &str, words: &str| {
        let answer = work.call(ordinal, "generate_media", json!({"request": request})).await;
        assert_eq!(answer.code(Failed), code, "{request}");
        assert!(
            answer.result.to_string().contains(words),
            "{request}: {}",
            answer.result
        );
    };
    check(2, "words", "model_failed", "no image").await;
    check(3, "large", "model_answer_too_large", "100 bytes").await;
    check(4, "much", "artifact_quota", "of 40").await;
    assert_eq!(work.world.database.count("select count(*) from artifact").await, 2);
    assert_eq!(
        work.world.database.count("select artifact_bytes from account").await,
        27
    );
    work.end().await;
}

/// A request that comes twice, in two replicas, while the call runs and after it.
#[tokio::test]
async fn a_repeated_request_asks_nobody() {
    let work = Work::with(|_, _| Says::text("once").after(1)).await;
    let other = work.another_gateway("").await;
    let request = work.coder.request(1, "ask_model", &json!({"request": "r"}));
    work.world.ask(&request).await;
    work.running(1).await;
    for id in ["again-1", "again-2"] {
        work.world.ask_as(&request, id).await;
    }
    work.world.answer(&request).await.ok();
    work.world.ask_as(&request, "again-3").await;
    work.world.delivered(4).await;
    eventually("the first result again", async || {
        (work.world.finished(&request).len() >= 2).then_some(())
    })
    .await;
    let finished = work.world.finished(&request);
    assert!(finished.iter().all(|one| *one == finished[0]), "{finished:?}");
    assert_eq!(work.model.sent().len(), 1);
    assert_eq!(work.calls().await, ["1 ask_model finished f asks 1"]);
    work.world.end(&[&work.gateway, &other]).await;
}

/// While a model is asked, other calls of the answer run; but the task does not end before the answer.
#[tokio::test]
async fn other_calls_neither_wait_nor_are_waited_for() {
    let work = Work::with(|_, _| Says::text("done thinking").after(3)).await;
    let asks = work.coder.request(1, "ask_model", &json!({"request": "r"}));
    let says = work
        .coder
        .request(2, "task_message", &json!({"task_id": "PROJ-7", "body": "hi"}));
    let paints = work.coder.request(3, "ask_model", &json!({"request": "s"}));
    let ends = work
        .coder
        .request(4, "task_status", &json!({"task_id": "PROJ-7", "status": "done"}));
    for request in [&asks, &says, &paints, &ends] {
        work.world.record(request).await;
    }
    for request in [&ends, &paints, &says, &asks] {
        work.world.ask(request).await;
    }
    work.world.answer(&says).await.ok();
    work.running(2).await;
    assert!(work.world.finished(&ends).is_empty());
    for request in [&asks, &paints] {
        work.world.answer(request).await.ok();
    }
    work.world.answer(&ends).await.ok();
    let calls = work.calls().await;
    assert!(calls.iter().all(|call| call.contains(" finished f")), "{calls:?}");
    work.end().await;
}

/// A runner whose calls were taken: another asks again what changes nothing; of the rest nobody knows, and what was told stays.
#[tokio::test]
async fn what_a_runner_left_has_one_outcome() {
    let work = Work::of(SHORT_LEASE, |number, body| match body.contains("prompt") {
        true => images(&[PNG]).after(3),
        false if number == 1 => Says::text("of the first").after(5),
        false => Says::text("of the second"),
    })
    .await;
    let (asks, paints) = (
        work.coder.request(1, "ask_model", &json!({"request": "r"})),
        work.coder.request(2, "generate_media", &json!({"request": "r"})),
    );
    work.world.ask(&asks).await;
    work.is_sent(1).await;
    work.world.ask(&paints).await;
    work.is_sent(2).await;
    // As if another runner had taken them, and were gone.
    work.execute("update tool_call set runner = gen_random_uuid()").await;
    // The process takes a call only after its own worker for it has ended, which changed nothing.
    assert_eq!(work.world.answer(&asks).await.ok()["text"], "of the second");
    let unknown = work.world.answer(&paints).await;
    assert_eq!(unknown.code(Unknown), "outcome_unknown");
    assert_eq!(
        work.calls().await,
        ["1 ask_model finished f asks 2", "2 generate_media unknown f paints 1"]
    );
    assert_eq!(work.world.finished(&paints).len(), 1);
    assert_eq!(work.world.database.count("select count(*) from artifact").await, 0);
    assert_eq!(work.model.sent().len(), 3);
    work.end().await;
}

/// A process that died comes back no more: its calls get their outcome from two others, which looked at the same time.
#[tokio::test]
async fn what_a_dead_process_left_has_one_outcome() {
    let work = Work::of(SHORT_LEASE, |number, _| match number {
        1 | 2 => Says::text("never").after(120),
        _ => Says::text("of another"),
    })
    .await;
    let (asks, paints) = (
        work.coder.request(1, "ask_model", &json!({"request": "r"})),
        work.coder.request(2, "generate_media", &json!({"request": "r"})),
    );
    work.world.ask(&asks).await;
    work.world.ask(&paints).await;
    work.is_sent(2).await;
    work.gateway.cut_off();
    let others = [
        work.another_gateway(SHORT_LEASE).await,
        work.another_gateway(SHORT_LEASE).await,
    ];
    assert_eq!(work.world.answer(&asks).await.ok()["text"], "of another");
    let unknown = work.world.answer(&paints).await;
    assert_eq!(unknown.code(Unknown), "outcome_unknown");
    assert_eq!(
        work.calls().await,
        ["1 ask_model finished f asks 2", "2 generate_media unknown f paints 1"]
    );
    assert_eq!(work.world.finished(&paints).len(), 1);
    assert_eq!(work.model.sent().len(), 3);
    work.world.end(&[&others[0], &others[1]]).await;
}

/// The database is away while the answer comes, for longer than a registration lasts. Another process is back first, and finds the
/// calls without a runner; the first one is back later, while its answer is not recorded yet.
#[tokio::test]
async fn an_outage_loses_no_answer_to_another_process() {
    let work = Work::of(SHORT_LEASE, |number, body| match body.contains("prompt") {
        true => images(&[PNG]).after(1),
        false if number == 1 => Says::text("never").after(120),
        false => Says::text("of the other"),
    })
    .await;
    let (asks, paints) = (
        work.coder.request(1, "ask_model", &json!({"request": "r"})),
        work.coder.request(2, "generate_media", &json!({"request": "r"})),
    );
    // For the first process, whose lease is the shorter one, the database stays away: it neither registers nor records its image.
    sqlx::raw_sql(
        "create function away() returns trigger language plpgsql set search_path = public, pg_temp as $$
             begin raise exception 'away' using errcode = 'cannot_connect_now'; end $$;
         create trigger away before insert on replica for each row
             when (new.lease_until < now() + interval '1 second') execute function away();
         create trigger away before insert on artifact for each row execute function away()",
    )
    .execute(&work.world.database.owner)
    .await
    .unwrap();
    work.world.ask(&asks).await;
    work.is_sent(1).await;
    work.world.ask(&paints).await;
    work.is_sent(2).await;
    let other = work.another_gateway("[replica]\nlease_ms = 1500\nrenew_ms = 300").await;
    work.away_for(2.0).await;
    // The other one has looked for calls without a runner: what may be asked again it has asked again.
    assert_eq!(work.world.answer(&asks).await.ok()["text"], "of the other");
    work.execute("drop trigger away on replica").await;
    eventually(
        "the first process is the runner again, or the call has ended",
        async || {
            let kept = "select count(*) from tool_call c where c.name = 'generate_media' and (c.finished_at is not null
                    or exists (select from replica r where r.id = c.runner and r.lease_until > now()))";
            (work.world.database.count(kept).await == 1).then_some(())
        },
    )
    .await;
    work.execute("drop trigger away on artifact").await;
    let answer = work.world.answer(&paints).await;
    assert_eq!(answer.state, Finished, "{answer:?}");
    assert_eq!(work.world.database.count("select count(*) from artifact").await, 1);
    assert_eq!(work.model.sent().len(), 3);
    work.world.end(&[&work.gateway, &other]).await;
}

/// The database is away while the answer comes, for longer than the runner's registration lasts.
#[tokio::test]
async fn an_outage_loses_no_answer() {
    let work = Work::of(SHORT_LEASE, |_, _| images(&[PNG]).after(1)).await;
    let paints = work.coder.request(1, "generate_media", &json!({"request": "r"}));
    work.world.ask(&paints).await;
    work.is_sent(1).await;
    let mut away = work.world.database.owner.begin().await.unwrap();
    sqlx::query("lock table replica, tool_call in access exclusive mode")
        .execute(&mut *away)
        .await
        .unwrap();
    eventually("the lease is over, and the outcome is to be recorded", async || {
        let tries = "select count(*) from pg_stat_activity w join pg_stat_activity l on l.datname = w.datname
                     where w.wait_event_type = 'Lock' and w.query like '%as left_ms%'
                       and l.query like 'lock table%' and clock_timestamp() - l.xact_start > interval '1 second'";
        (work.world.database.count(tries).await > 0).then_some(())
    })
    .await;
    away.rollback().await.unwrap();
    let answer = work.world.answer(&paints).await;
    assert_eq!(answer.state, Finished, "{answer:?}");
    assert_eq!(work.model.sent().len(), 1);
    eventually("a second registration: the first one was lost", async || {
        (work.world.database.count("select count(*) from replica").await == 2).then_some(())
    })
    .await;
    work.end().await;
}

#[tokio::test]
async fn a_stop_leaves_the_call_to_the_next_runner() {
    let work = Work::with(|number, _| match number {
        1 => Says::text("never").after(20),
        _ => Says::text("of the next"),
    })
    .await;
    let asks = work.coder.request(1, "ask_model", &json!({"request": "r"}));
    work.world.ask(&asks).await;
    work.is_sent(1).await;
    work.gateway.stop().await;
    assert_eq!(work.world.database.count(RUNNING).await, 1);
    let next = work.another_gateway("").await;
    assert_eq!(work.world.answer(&asks).await.ok()["text"], "of the next");
    work.world.end(&[&next]).await;
}

#[tokio::test]
async fn a_call_that_ends_after_its_session_is_late_and_its_files_are_kept() {
    let work = Work::with(|_, _| images(&[PNG]).after(2)).await;
    let paints = work.coder.request(1, "generate_media", &json!({"request": "r"}));
    work.world.ask(&paints).await;
    work.is_sent(1).await;
    work.execute("update session set closed_at = now(), close_reason = 'task_done'")
        .await;
    let answer = work.world.answer(&paints).await;
    assert!(answer.state == Finished && answer.late, "{answer:?}");
    assert_eq!(work.world.database.count("select count(*) from artifact").await, 1);
    work.end().await;
}

/// One account may have some of a model's places, and another one finds some.
#[tokio::test]
async fn an_account_with_many_calls_leaves_places_for_others() {
    let work = Work::of("external_calls_account_max = 2\nexternal_calls_max = 8", |_, body| {
        Says::text("ok").after(if body.contains("slow") { 8 } else { 0 })
    })
    .await;
    let other = work.world.coder("other").await;
    work.world.offer(&other).await;
    work.world.context("other", "Another shop.", 0).await;
    for ordinal in [1, 2] {
        work.world
            .ask(&work.coder.request(ordinal, "ask_model", &json!({"request": "slow"})))
            .await;
    }
    work.is_sent(2).await;
    let third = work.call(3, "ask_model", json!({"request": "quick"})).await;
    assert_eq!(third.code(Failed), "rate_limited");
    let theirs = other.request(1, "ask_model", &json!({"request": "quick"}));
    work.world.call(&theirs).await.ok();
    assert_eq!(work.model.sent().len(), 3);
    for ordinal in [1, 2] {
        let request = work.coder.request(ordinal, "ask_model", &json!({"request": "slow"}));
        work.world.answer(&request).await.ok();
    }
    work.end().await;
}

/// A subagent may ask, and shows the model the version of the context that its parent knew.
#[tokio::test]
async fn a_model_that_a_branch_asks_is_shown_what_its_parent_knew() {
    let work = Work::with(|_, _| Says::text("It does.")).await;
    work.execute("update turn set tools = tools || '{subagent_spawn}'")
        .await;
    let made = work.world.call(&spawn(&work.coder, 1, 1)).await.ok();
    let below = inside(&work.world, &work.coder, &made, 0).await;
    work.world.context("acme", "We build a factory.", 0).await;
    work.world.offer(&below).await;
    let asks = below.request(1, "ask_model", &json!({"request": "Does it hold?"}));
    let answer = work.world.call(&asks).await.ok();
    assert!(answer.to_string().contains("It does."), "{answer}");
    let sent = work.model.sent().remove(0).body;
    assert!(
        sent.contains("We build a shop.") && !sent.contains("a factory"),
        "{sent}"
    );
    work.end().await;
}
