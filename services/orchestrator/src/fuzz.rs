//! Fuzz tests of everything that reads HTTP input: bodies, queries, cursors, keys, dead letters.

use std::num::NonZeroU32;

use api::{
    accounts::{AccountChange, NewAccount},
    agents::{AgentChange, NewAgent},
    contexts::NewTaskContext,
    keys::NewKey,
    messages::NewMessage,
    queue::{ItemChange, Order},
    sessions::Stop,
    tasks::{NewTask, TaskChange},
};
use axum::{extract::FromRequestParts, http::HeaderMap};
use contracts::{Headers, Root, notification};
use domain::{AccountId, KeptContext, KeyId, KeyRole, task_context::CHARACTERS_MAX};
use futures::FutureExt;
use runtime::http::bearer;
use serde::{Deserialize, de::DeserializeOwned};
use storage::{api_key::KeyHolder, entity::dead_letter::Model};
use testkit::fuzz::Fuzz;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    audit::{Rendered, judge, judge_tests::turn, store::Sources},
    auth::Caller,
    body::{self, Query},
    dead_letters::redrive::redrive,
    diff::layers::{LINES_MAX, compared},
    idempotency,
    notifications::incoming,
    paging::{Column, Columns, Cursor, Limit, List, Page},
    settings::OrchestratorSettings,
    sign_in::{
        cookie::{Cookie, Cookies},
        next_of,
    },
};

const WORDS: &[&str] = &[
    "id",
    "title",
    "name",
    "slug",
    "body",
    "status",
    "assignees",
    "description",
    "metadata",
    "role",
    "author",
    "kind",
    "mentions",
    "settings",
    "provider",
    "model",
    "instructions",
    "session_scope",
    "notify",
    "null",
    "acme",
    "expires_at",
];

fn fuzz(target: &'static str) -> Fuzz {
    Fuzz::new(target, env!("CARGO_MANIFEST_DIR")).words(WORDS)
}

#[test]
fn api_body() {
    fn reads<T: DeserializeOwned>(input: &[u8]) -> bool {
        body::parse::<T>(input).is_ok()
    }
    let seeds = [
        r#"{"id":"acme","name":"Acme"}"#,
        r#"{"slug":"coder","name":"Coder","provider":"main","instructions":"i"}"#,
        r#"{"id":"PROJ-7","title":"t","description":"d","assignees":["coder"],"status":"assigned"}"#,
        r#"{"body":"b","author":{"id":"u","name":"U"}}"#,
        r#"{"name":"k","role":"admin","expires_at":"2026-11-20T10:00:00Z"}"#,
        r#"{"name":"k","role":"admin","expires_at":"9999-12-31T23:59:59-23:59"}"#,
        r#"{"status":"done"}"#,
        r#"{"turn_id":"0190b5a8-0000-7000-8000-000000000001","then":"hold"}"#,
        r#"{"revision":1,"body":"b","title":"t","queue_mode":"steer"}"#,
        r#"{"revision":"7.2.1","items":["n-1","n-2"]}"#,
        r#"{"body":" é\u0301 ","if_version":3.0}"#,
        "",
    ];
    fuzz("api_body")
        .seeds(seeds)
        .flood(1024 * 1024)
        // Each input is read as twelve types.
        .work_per_byte(12 * 256)
        .must_meet(&["read", "refused"])
        .run(|input| {
            let read = [
                reads::<NewAccount>(input),
                reads::<AccountChange>(input),
                reads::<NewAgent>(input),
                reads::<AgentChange>(input),
                reads::<NewTask>(input),
                reads::<TaskChange>(input),
                reads::<NewMessage>(input),
                reads::<Stop>(input),
                reads::<ItemChange>(input),
                reads::<Order>(input),
                body::parse::<NewTaskContext>(input).is_ok_and(|new| {
                    let kept = KeptContext::of(&new.body);
                    assert!(kept.is_none_or(|kept| kept.body.chars().count() <= CHARACTERS_MAX));
                    true
                }),
                body::parse::<NewKey>(input).is_ok_and(|key| {
                    // A value that was read can be stored and shown.
                    if let Some(expires_at) = key.expires_at {
                        assert_eq!(contracts::Timestamp::from(expires_at.0), expires_at);
                        let shown = serde_json::to_value(expires_at).expect("a moment is written");
                        assert_eq!(serde_json::from_value(shown).ok(), Some(expires_at));
                    }
                    true
                }),
            ];
            if read.contains(&true) { "read" } else { "refused" }
        });
}

#[test]
fn posted_notification() {
    let caller = Caller::Key(KeyHolder {
        sees_everybody: false,
        account: AccountId::parse("acme").unwrap(),
        id: KeyId::parse("0011223344556677").unwrap(),
        name: "CI".to_owned(),
        role: KeyRole::Service,
        person: None,
        agent: None,
    });
    let account = AccountId::parse("acme").unwrap();
    let seed = r#"{"task":"PROJ-7","id":"ci-1","type":"ci_failed","agents":["coder"],"title":"CI","body":"b",
        "sender":{"kind":"service","id":"ci"},"queue_mode":"interrupt","metadata":{"run":1},"branch":"main"}"#;
    fuzz("posted_notification")
        .seeds([seed, r#"{"body":"b"}"#])
        .words(&[
            "task",
            "type",
            "agent",
            "agents",
            "sender",
            "queue_mode",
            "metadata",
            "message_id",
        ])
        .flood(1024 * 1024)
        .must_meet(&["posted", "malformed", "invalid_field"])
        .run(|input| {
            let read = body::fields(input).and_then(|fields| incoming::read(fields, &caller, Uuid::nil()));
            match read {
                Ok(posted) => {
                    let at = OffsetDateTime::UNIX_EPOCH.into();
                    let (_, outgoing) = posted.outgoing(&Root::default(), &account, &Default::default(), at);
                    let again =
                        notification::read(&outgoing.headers, &outgoing.payload).expect("what is accepted is readable");
                    assert_eq!(
                        (again.id, again.body),
                        (Some(posted.id.clone()), posted.message.body.clone())
                    );
                    "posted"
                }
                Err(problem) => problem.code(),
            }
        });
}

#[test]
fn cookie() {
    let secret = "0f".repeat(32);
    fuzz("cookie")
        .seeds([
            format!("signalbox-local={secret}"),
            format!("a=b; __Host-signalbox={secret}; signalbox-local=x"),
            "/c/acme?tab=1".to_owned(),
        ])
        .words(&[
            "signalbox-local=",
            "__Host-signalbox=",
            "; ",
            ";",
            "=",
            "//",
            "/\\",
            "%2f",
            "\t",
        ])
        .must_meet(&["read", "none"])
        .run(|input| {
            let text = String::from_utf8_lossy(input);
            let next = next_of(Some(&text));
            assert!(next.starts_with('/') && !next.starts_with("//") && !next.contains('\\'));
            let mut headers = HeaderMap::new();
            let Ok(value) = axum::http::HeaderValue::from_bytes(input) else {
                return "no header";
            };
            headers.insert(axum::http::header::COOKIE, value);
            match Cookies::Local.read(&headers, Cookie::Session) {
                Some(read) => {
                    assert_eq!(text.matches(read.expose()).count().min(1), 1);
                    "read"
                }
                None => "none",
            }
        });
}

#[test]
fn query() {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Asked {
        #[expect(dead_code, reason = "read for its errors")]
        task: Option<String>,
        limit: Option<u32>,
    }
    fuzz("query")
        .seeds(["task=a%20b&limit=3", "limit=&task=", "limit=4294967296"])
        .words(&["task=", "limit=", "&", "%", "%00", "%ff", "+", "=", "limit=0"])
        .must_meet(&["read", "refused"])
        .run(|input| {
            let Ok(text) = std::str::from_utf8(input) else {
                return "no URL";
            };
            let Ok(request) = axum::http::Request::get(format!("/list?{text}")).body(()) else {
                return "no URL";
            };
            let (mut parts, ()) = request.into_parts();
            // The future never waits.
            let read = Query::<Asked>::from_request_parts(&mut parts, &())
                .now_or_never()
                .expect("it is ready at once");
            match read {
                Ok(Query(asked)) => {
                    assert!(asked.limit.is_none() || text.contains('='));
                    "read"
                }
                Err(_) => "refused",
            }
        });
}

#[test]
fn cursor() {
    const NUMBER: Columns = &[("number", Column::BigInt)];
    const AT_ID: Columns = &[("created_at", Column::Time), ("id", Column::Uuid)];
    const AT_TEXT: Columns = &[("created_at", Column::Time), ("id", Column::Text)];
    const TEXT: Columns = &[("id", Column::Text)];
    fn page(order: Columns, cursor: Option<&str>) -> Option<Page<'static>> {
        let list = List {
            name: "tasks",
            account: "acme",
            filters: String::new(),
            order,
        };
        let cursor = cursor.map(|cursor| Cursor(cursor.to_owned()));
        let limit = Some(Limit(NonZeroU32::MIN));
        Page::new(list, &OrchestratorSettings::default(), limit, cursor.as_ref()).ok()
    }
    fn made(place: &str) -> String {
        let first = page(TEXT, None).expect("a first page needs no cursor");
        let (_, places) = first.cut(vec![(), ()], |()| place.to_owned()).apart();
        places.next_cursor().expect("there is more").to_owned()
    }
    let seeds = [
        made("7"),
        made("PROJ-7"),
        made("1700000000123456 00000000000000000000000000000000"),
        made("1700000000123456 id with blanks"),
    ];
    fuzz("cursor")
        .seeds(seeds)
        .words(&["00", "ff", "20", "2d"])
        .must_meet(&["read", "refused"])
        .run(|input| {
            let Ok(text) = std::str::from_utf8(input) else {
                return "refused";
            };
            let read = [NUMBER, AT_ID, AT_TEXT, TEXT].map(|order| page(order, Some(text)).and_then(|page| page.after));
            // An accepted cursor is one that was issued: written again it is the same, but for the case of its hex digits.
            for place in read.iter().flatten() {
                assert_eq!(made(place), text.to_ascii_lowercase());
            }
            if read.iter().any(Option::is_some) {
                "read"
            } else {
                "refused"
            }
        });
}

#[test]
fn authorization() {
    fuzz("authorization")
        .seeds(["Bearer abc", "bearer  abc ", "Basic abc"])
        .words(&["Bearer ", "\t", " "])
        .must_meet(&["token", "none"])
        .run(|input| {
            let Ok(value) = axum::http::HeaderValue::from_bytes(input) else {
                return "none";
            };
            let headers = HeaderMap::from_iter([(axum::http::header::AUTHORIZATION, value)]);
            match bearer(&headers) {
                Ok(Some(token)) => {
                    assert!(!token.is_empty());
                    "token"
                }
                Ok(None) | Err(_) => "none",
            }
        });
}

#[test]
fn idempotency_key() {
    fuzz("idempotency_key")
        .seeds(["a-1", "0190b5a8-0000-7000-8000-000000000001", &"k".repeat(255)])
        .words(&[" ", "\t", "~", "é"])
        .must_meet(&["key", "refused"])
        .run(|input| {
            let Ok(value) = axum::http::HeaderValue::from_bytes(input) else {
                return "refused";
            };
            let headers = HeaderMap::from_iter([(idempotency::HEADER, value)]);
            match idempotency::key(&headers) {
                Ok(key) => {
                    assert!(key.is_some_and(|key| (1..=255).contains(&key.len()) && key.as_bytes() == input));
                    "key"
                }
                Err(_) => "refused",
            }
        });
}

/// Subject, headers as JSON, and payload, one a line.
#[test]
fn redriven_letter() {
    let seeds = [
        "signalbox.notification.acme.PROJ-7\n{\"Nats-Msg-Id\":\"m\",\"ce-id\":\"c\",\"Signalbox-Hops\":\"2\"}\n{\"body\":\"b\"}",
        "signalbox.partition.3.acme.-\n{}\nnonsense",
        "signalbox.event.acme.t.turn.finished\n{\"Nats-Expected-Stream\":\"x\"}\n{}",
        "signalbox.notification.other.t\n{}\n{}",
    ];
    let account = AccountId::parse("acme").unwrap();
    fuzz("redriven_letter")
        .seeds(seeds)
        .words(&[
            "signalbox.",
            "notification",
            "session",
            "tool",
            "requested",
            ".*",
            ".>",
            "..",
            "Nats-Rollup",
            "nats-x",
        ])
        .must_meet(&["sent", "not_redrivable"])
        .run(|input| {
            let text = String::from_utf8_lossy(input);
            let mut lines = text.splitn(3, '\n');
            let mut line = || lines.next().unwrap_or_default().to_owned();
            let letter = Model {
                account_id: "acme".to_owned(),
                id: Uuid::from_u128(7),
                service: "resolver".to_owned(),
                subject: line(),
                reason: "r".to_owned(),
                detail: "d".to_owned(),
                headers: serde_json::from_str(&line()).unwrap_or_default(),
                payload: line(),
                attempts: 1,
                created_at: OffsetDateTime::UNIX_EPOCH,
                redriven_at: None,
                redrives: 0,
            };
            match redrive(&Root::default(), Some(&account), &letter) {
                Ok(outgoing) => {
                    let tokens: Vec<&str> = outgoing.subject.split('.').collect();
                    assert!(tokens.len() >= 4 && tokens.contains(&"acme"), "{}", outgoing.subject);
                    assert!(!outgoing.subject.contains(['*', '>', ' ', '\n', '\r']));
                    let Headers(headers) = &outgoing.headers;
                    let instructions = headers
                        .keys()
                        .filter(|name| name.to_ascii_lowercase().starts_with("nats-"));
                    assert_eq!(instructions.count(), 1, "only the message's own id");
                    "sent"
                }
                Err(problem) => problem.code(),
            }
        });
}

/// A turn whose manifest and input are anything: it has verdicts, and every byte of its input is in a part or is a violation.
#[test]
fn audited_turn() {
    use prompt::{
        Manifest,
        manifest::{Layer, Part, PartKind, Source},
    };
    let text = "Notification: \"n\"\nType: \"t\"\nTask: t-1\nTask status: inbox\nTask title: \"t\"\nFrom: user \"A\" (id \"a\")\nBody:\n";
    let mut manifest = Manifest::new(domain::InstructionLayout::Layered);
    let kinds = [
        PartKind::Notification,
        PartKind::TaskState,
        PartKind::Message,
        PartKind::Stopped,
        PartKind::Briefing,
    ];
    let part = |kind| Part::of(Layer::Input, kind, Source::named("task/t-1"), text);
    manifest.parts = kinds.map(part).into();
    let seed = [manifest.packed(), text.repeat(kinds.len()).into_bytes()].join(&b"\xff\xff"[..]);
    fuzz("audited_turn")
        .seeds([seed])
        .flood(256 * 1024)
        .must_meet(&["violation", "unproven"])
        .run(|input| {
            let (packed, text) = match input.windows(2).position(|pair| pair == b"\xff\xff") {
                Some(at) => (&input[..at], &input[at + 2..]),
                None => (input, &b""[..]),
            };
            let mut turn = turn();
            turn.manifest_packed = Some(packed.to_vec());
            turn.input = String::from_utf8_lossy(text).into_owned();
            let judged = judge(&turn, &Sources::default(), &mut Rendered::default());
            let mut words: Vec<&str> = judged.iter().map(|part| part.verdict.word()).collect();
            words.sort_unstable();
            words.last().copied().unwrap_or("none")
        });
}

/// Two texts, with a NUL between: their difference is within its limit, and says whether they are the same.
#[test]
fn compared_texts() {
    let seeds = ["a\nb\nc\0a\nc\n", "a\0a", "\0", "a\r\nb\0"];
    fuzz("compared_texts")
        .seeds(seeds)
        .flood(256 * 1024)
        .work_per_byte(2_048)
        .must_meet(&["same", "changed", "added", "removed", "none"])
        .run(|input| {
            let text = String::from_utf8_lossy(input);
            let (before, after) = text.split_once('\0').unwrap_or((&text, ""));
            let Some(layer) = compared("input", before, after) else {
                assert!(before.is_empty() && after.is_empty());
                return "none";
            };
            let lines = layer.diff.as_ref().map_or(0, |diff| diff.lines().count());
            assert!(lines <= LINES_MAX);
            assert_eq!(layer.diff.is_none(), before == after);
            layer.state.as_str()
        });
}
