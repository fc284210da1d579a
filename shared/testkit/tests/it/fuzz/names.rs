//! Ids, keys, subjects and times.

use contracts::{Root, Stream, TaskToken, Timestamp, message::awaited, notification::NotificationMessage};
use domain::{
    AccountId, AgentRef, AgentSlug, ApiKey, KeyId, MailTo, NotificationId, SessionAddress, SessionKey, SessionRef,
    TaskId, UserId,
};

use super::{UUID, fuzz, round_trip, text};

#[test]
fn session_key() {
    let seeds = [
        format!("task:proj-7:agent:{UUID}:acme:v2"),
        format!("system:agent:{UUID}:acme:v1"),
        "orchestrator:acme:ann:v3".to_owned(),
        "orchestrator:org:acme:v12".to_owned(),
        "orchestrator:acme:ann:guest:ben:v1".to_owned(),
        format!("agent:main:task:proj-7:agent:{UUID}:acme:v2"),
    ];
    fuzz("session_key")
        .seeds(seeds)
        .words(&[
            "task:",
            "agent:",
            "system:",
            ":v1",
            ":v0",
            ":v4294967296",
            "user:",
            "orchestrator:",
            ":guest:",
            UUID,
        ])
        .must_meet(&["read", "refused"])
        .run(|input| match text(input).map(SessionKey::parse) {
            Some(Ok(key)) => {
                assert_eq!(SessionKey::parse(&key.to_string()), Ok(key.clone()));
                assert!(key.to_string().len() <= domain::session_key::SESSION_KEY_BYTES_MAX);
                // One key, one text: two that differ in case only would share a provider's memory.
                assert_eq!(key.to_string(), key.to_string().to_ascii_lowercase());
                "read"
            }
            Some(Err(_)) | None => "refused",
        });
}

/// Of people and sessions in their short forms as well.
#[test]
fn session_address() {
    let seeds = [
        "orchestrator:ann",
        "orchestrator:org:acme",
        "orchestrator:org:acme:v2",
        "orchestrator:acme:ann:v3",
        "orchestrator:acme:ann:guest:ben:v1",
        "orchestrator:acme:guest:guest:guest:v1",
    ];
    fuzz("session_address")
        .seeds(seeds)
        .words(&["orchestrator:", "org:", ":guest:", ":acme:", ":ann", ":v1", ":v0", ":"])
        .must_meet(&["guest", "key", "person", "refused"])
        .run(|input| match text(input).map(SessionAddress::parse) {
            Some(Ok(address)) => {
                let named = address.to_string();
                assert_eq!(SessionAddress::parse(&named), Ok(address.clone()), "{named}");
                match (address.guest(), address.person()) {
                    // Whom it answers is not whose it is: a guest's session is no orchestrator's own.
                    (Some((owner, _)), person) => {
                        assert_eq!((person, address.orchestrator()), (Some(owner), None));
                        "guest"
                    }
                    (None, Some(_)) if matches!(address, SessionAddress::User(_)) => "person",
                    (None, _) => "key",
                }
            }
            Some(Err(_)) | None => "refused",
        });
}

#[test]
fn mail_address() {
    let guest = "orchestrator:acme:ann:guest:ben:v1";
    fuzz("mail_address")
        .seeds([
            "@jarvis",
            "@user:ann",
            "orchestrator:ann",
            guest,
            "Ann Nobody",
            "ann",
            UUID,
            " @Jarvis ",
        ])
        .words(&[
            "@",
            "@user:",
            "orchestrator:",
            ":guest:",
            ":v1",
            "\u{202e}",
            "\u{3000}",
            "ß",
            "İ",
        ])
        .must_meet(&["handle", "user", "session", "name", "refused"])
        .run(|input| match text(input).map(MailTo::parse) {
            Some(Ok(to)) => {
                let (class, named) = match &to {
                    MailTo::Handle(handle) => ("handle", format!("@{}", handle.as_str())),
                    MailTo::User(user) => ("user", format!("@user:{user}")),
                    MailTo::Session(SessionRef::Id(id)) => ("session", id.to_string()),
                    MailTo::Session(SessionRef::Address(address)) => ("session", address.to_string()),
                    MailTo::Name(name) => ("name", name.clone()),
                };
                assert_eq!(MailTo::parse(&named), Ok(to), "{named}");
                // What looks like an address of one kind is a name of nobody.
                assert_eq!(named.starts_with('@'), matches!(class, "handle" | "user"));
                class
            }
            Some(Err(_)) | None => "refused",
        });
}

#[test]
fn id() {
    fuzz("id")
        .seeds([
            "acme",
            "PROJ-7",
            "coder-1",
            "u.1_a",
            "ci 4711/ü",
            UUID,
            &UUID.to_uppercase(),
            "実行-7",
            "-",
        ])
        .words(&["\u{202e}", "\u{200b}", "\u{feff}", "é", "*", ">", "."])
        .must_meet(&["account", "task", "notification", "user", "agent", "none"])
        .run(|input| {
            let Some(text) = text(input) else { return "none" };
            let mut class = "none";
            if let Ok(id) = NotificationId::parse(text) {
                assert_eq!(NotificationId::parse(id.as_str()), Ok(id));
                class = "notification";
            }
            if let Ok(id) = TaskId::parse(text) {
                assert_eq!(TaskId::parse(id.key().as_str()).map(|key| key.key()), Ok(id.key()));
                class = "task";
            }
            if let Ok(agent) = AgentRef::parse(text) {
                assert_eq!(AgentRef::parse(&agent.to_string()), Ok(agent));
                class = "agent";
            }
            if let Ok(id) = UserId::parse(text) {
                assert_eq!(UserId::parse(id.as_str()), Ok(id));
                class = if text.contains('.') { "user" } else { class };
            }
            if let Ok(id) = AccountId::parse(text) {
                // An account id is the prefix of every key and a token of subjects and session keys, so it contains
                // none of their separators.
                assert!(!id.as_str().contains(['.', ':', '_', '*', '>', ' ', '/']));
                assert!(AgentSlug::parse(text).is_ok());
                class = "account";
            }
            assert_eq!(
                KeyId::parse(text).is_ok(),
                text.len() == 16 && text.bytes().all(|b| b"0123456789abcdef".contains(&b))
            );
            class
        });
}

#[test]
fn subject() {
    let root = Root::default();
    fuzz("subject")
        .seeds([
            "signalbox.notification.acme.PROJ-7",
            "signalbox.partition.3.acme.PROJ-7",
            "signalbox.notification.acme.-",
            "signalbox.event.acme.t.turn.finished",
            "signalbox.dead.-.-",
        ])
        .words(&[
            "signalbox.",
            "notification.",
            "partition.",
            "acme.",
            "*",
            ">",
            "-",
            "..",
            "event",
            "turn.finished",
        ])
        .must_meet(&["read", "refused"])
        .run(|input| {
            let Some(subject) = text(input) else { return "refused" };
            let published = root.notification_published(subject);
            let _ = awaited(subject);
            let Ok((account, TaskToken(task))) = root.read_notification(subject) else {
                return "refused";
            };
            assert_eq!(root.subject::<NotificationMessage>(&account, task.as_ref()), published);
            assert_eq!(root.read_notification(&published), Ok((account, TaskToken(task))));
            assert_eq!(awaited(&published), Some(Stream::Notification));
            "read"
        });
}

#[test]
fn api_key() {
    let account = AccountId::parse("acme-1").unwrap();
    let keys: Vec<String> = (0..4)
        .map(|n| ApiKey::from_random(&account, [n; 40]).expose().to_owned())
        .collect();
    fuzz("api_key")
        .seeds(&keys)
        .words(&["sbx_", "_", "acme"])
        .must_meet(&["read", "refused"])
        .run(|input| match text(input).map(ApiKey::parse) {
            Some(Ok(key)) => {
                assert_eq!(key.expose().as_bytes(), input, "a key has one text");
                assert!(keys.iter().any(|known| known == key.expose()), "a checksum was guessed");
                "read"
            }
            Some(Err(_)) | None => "refused",
        });
}

#[test]
fn moment() {
    fuzz("moment")
        .seeds([
            "\"2026-11-20T09:53:23Z\"",
            "\"2026-11-20T09:53:23.123456+05:30\"",
            "\"0000-01-01T00:00:00Z\"",
        ])
        .words(&["Z", "+23:59", "-23:59", "T", "9999", "60", "24", "-00:00", ".999999999"])
        .must_meet(&["read", "refused"])
        .run(|input| {
            if round_trip::<Timestamp>(input) {
                "read"
            } else {
                "refused"
            }
        });
}
