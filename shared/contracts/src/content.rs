//! A notification's content hash: a hash over all that its publisher wrote, independent of its encoding. Id and
//! recipients are excluded, except orchestrators: contents of the same id are compared, and recipients are compared by agent, since a
//! redrive names an agent by id where its publisher used a slug.

use domain::{QueueMode, TaskId};
use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

use crate::notification::{Notification, Recipients};

/// SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The hash of a parsed notification.
    pub fn of(task: Option<&TaskId>, notification: &Notification) -> ContentHash {
        let mut hasher = Hasher(Sha256::new());
        hasher.text("notification");
        hasher.optional(task.map(TaskId::key).as_ref().map(TaskId::as_str));
        hasher.text(&notification.kind);
        // An empty title is stored as none.
        hasher.optional(notification.title.as_deref().filter(|title| !title.is_empty()));
        hasher.text(&notification.body);
        hasher.optional(notification.message_id.map(|id| id.to_string()).as_deref());
        // `Actor::by` is not content: the same notification may arrive over NATS and over HTTP.
        let sender = &notification.sender;
        hasher.text(sender.kind.as_str());
        hasher.text(&sender.id);
        hasher.text(&sender.name);
        hasher.text(notification.queue_mode.unwrap_or(QueueMode::Followup).as_str());
        hasher.object(&notification.metadata);
        // All orchestrators of an account have one agent, also where they answer guests.
        if let Recipients::Session(address) = &notification.recipients
            && let Some(owner) = address.orchestrator()
        {
            hasher.text(&owner.to_string());
        }
        if let Recipients::Session(address) = &notification.recipients
            && let Some((owner, guest)) = address.guest()
        {
            hasher.text(&format!("user:{owner}:guest:{guest}"));
        }
        hasher.finish()
    }

    /// The hash of an unreadable message: of its bytes.
    pub fn of_unreadable(payload: &[u8]) -> ContentHash {
        let mut hasher = Hasher(Sha256::new());
        hasher.text("unreadable");
        hasher.bytes(payload);
        hasher.finish()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<ContentHash> {
        bytes.try_into().ok().map(ContentHash)
    }

    pub fn bytes(self) -> [u8; 32] {
        self.0
    }
}

/// Every part is preceded by its length or its kind, so that different contents never give the same bytes.
struct Hasher(Sha256);

impl Hasher {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn optional(&mut self, text: Option<&str>) {
        match text {
            Some(text) => {
                self.0.update([1]);
                self.text(text);
            }
            None => self.0.update([0]),
        }
    }

    /// The reader bounds JSON nesting, and so this recursion.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.0.update(b"n"),
            Value::Bool(true) => self.0.update(b"t"),
            Value::Bool(false) => self.0.update(b"f"),
            Value::Number(number) => {
                self.0.update(b"#");
                self.text(&canonical(number));
            }
            Value::String(text) => {
                self.0.update(b"\"");
                self.text(text);
            }
            Value::Array(items) => {
                self.0.update(b"[");
                self.0.update((items.len() as u64).to_be_bytes());
                items.iter().for_each(|item| self.value(item));
            }
            Value::Object(fields) => self.object(fields),
        }
    }

    /// In the order of the names, whatever the map's order.
    fn object(&mut self, fields: &serde_json::Map<String, Value>) {
        let mut names: Vec<&String> = fields.keys().collect();
        names.sort_unstable();
        self.0.update(b"{");
        self.0.update((names.len() as u64).to_be_bytes());
        for name in names {
            self.text(name);
            self.value(&fields[name]);
        }
    }

    fn finish(self) -> ContentHash {
        ContentHash(self.0.finalize().into())
    }
}

/// One spelling a number. Postgres returns `1e5` as `100000`, and its output may be published again.
fn canonical(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(0.0) => "0".to_owned(), // and `-0.0`, which is equal to it
        // The fewest digits that parse to the same number, and no exponent.
        Some(float) => float.to_string(),
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Headers, notification};

    fn hash(task: &str, json: &str) -> ContentHash {
        let task = TaskId::parse(task).ok();
        ContentHash::of(
            task.as_ref(),
            &notification::read(&Headers::default(), json.as_bytes()).unwrap(),
        )
    }

    #[test]
    fn the_same_content_in_another_encoding_has_the_same_hash() {
        let check = |one: &str, other: &str| assert_eq!(hash("t", one), hash("t", other), "{one} {other}");
        check(
            r#"{"body": "b", "metadata": {"a": 1, "b": 2}}"#,
            r#"{"metadata": {"b": 2, "a": 1}, "body": "b"}"#,
        );
        check(r#"{"body": "b", "a": 1}"#, r#"{"body": "b", "metadata": {"a": 1}}"#);
        check(
            r#"{"body": "b"}"#,
            r#"{"body": "b", "title": null, "queue_mode": "followup"}"#,
        );
        check(
            r#"{"body": "b", "queue_mode": "steer"}"#,
            r#"{"body": "b", "queue_mode": "interrupt"}"#,
        );
        check(
            r#"{"body": "b", "id": "1", "agent": "x"}"#,
            r#"{"body": "b", "id": "2", "agents": ["y", "z"]}"#,
        );
        check(
            r#"{"body": "b", "sender": {"kind": "service", "id": "publisher"}}"#,
            r#"{"body": "b"}"#,
        );
        assert_eq!(hash("PROJ-7", r#"{"body": "b"}"#), hash("proj-7", r#"{"body": "b"}"#));
    }

    #[test]
    fn different_content_has_another_hash() {
        let contents = [
            r#"{"body": "b"}"#,
            r#"{"body": "c"}"#,
            r#"{"body": "", "title": "b"}"#,
            r#"{"body": "b", "title": "t"}"#,
            r#"{"body": "b", "type": "t"}"#,
            r#"{"body": "b", "queue_mode": "steer"}"#,
            r#"{"body": "b", "sender": {"kind": "user", "id": "publisher"}}"#,
            r#"{"body": "b", "message_id": "0190b5a8-0000-7000-8000-000000000001"}"#,
            r#"{"body": "b", "metadata": {"a": null}}"#,
            r#"{"body": "b", "metadata": {"a": [1]}}"#,
            r#"{"body": "b", "metadata": {"a": [[1]]}}"#,
            r#"{"body": "b", "metadata": {"a": "1"}}"#,
            r#"{"body": "b", "metadata": {"a": 1}}"#,
            r#"{"body": "b", "metadata": {"a": 9007199254740993}}"#,
            r#"{"body": "b", "metadata": {"a": 9007199254740992}}"#,
        ];
        let mut hashes: Vec<ContentHash> = contents.iter().map(|json| hash("t", json)).collect();
        hashes.push(hash("u", contents[0]));
        hashes.push(hash("-", contents[0]));
        hashes.push(ContentHash::of_unreadable(contents[0].as_bytes()));
        let distinct: std::collections::HashSet<_> = hashes.iter().collect();
        assert_eq!(distinct.len(), hashes.len());
    }

    #[test]
    fn numbers_are_what_postgres_makes_of_them() {
        let check = |sent: &str, stored: &str| {
            let read = |text: &str| canonical(&serde_json::from_str::<Number>(text).unwrap());
            assert_eq!(read(sent), read(stored), "{sent} {stored}");
        };
        check("1e5", "100000");
        check("1.50", "1.5");
        check("-0.0", "0.0");
        check("1e16", "10000000000000000");
        check("1.2345678901234568e18", "1234567890123456800");
        check("1e300", &format!("1{}", "0".repeat(300)));
        check("1e-7", "0.0000001");
    }

    proptest! {
        #[test]
        fn a_body_never_runs_into_its_title(title in ".{0,12}", body in ".{0,12}", cut in 0usize..12) {
            let notification = |title: &str, body: &str| {
                let json = serde_json::json!({"title": title, "body": body}).to_string();
                notification::read(&Headers::default(), json.as_bytes()).ok()
            };
            let whole = format!("{title}{body}");
            let cut = whole.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(whole.len());
            let pair = (notification(&title, &body), notification(&whole[..cut], &whole[cut..]));
            if let (Some(one), Some(other)) = pair {
                let same = ContentHash::of(None, &one) == ContentHash::of(None, &other);
                prop_assert_eq!(same, title == whole[..cut]);
            }
        }
    }
}
