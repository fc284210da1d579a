//! The file of `--sample`: notifications to publish, one JSON object a line. The whole file is parsed before anything starts.
//! Whether a notification is valid is decided by the resolver, and a sample may show a refusal.

use std::{fs, path::Path};

use anyhow::{Context, bail};
use contracts::{Headers, Outgoing, Root, TaskToken, notification::NotificationMessage};
use domain::{AccountId, NotificationId};
use serde_json::{Map, Value};
use uuid::Uuid;

/// A notification of the file.
#[derive(Clone, Debug)]
pub(super) struct SampleLine {
    pub(super) account: AccountId,
    pub(super) task: TaskToken,
    pub(super) id: NotificationId,
    pub(super) payload: Vec<u8>,
}

/// Namespace for ids of lines without one. The id follows from the content, so that a second run repeats nothing.
const LINES: Uuid = Uuid::from_u128(0x51b0_5a3b_0000_4000_8000_0000_0000_0001);

pub(super) fn read(path: &Path) -> anyhow::Result<Vec<SampleLine>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the sample {}", path.display()))?;
    parse(&text).with_context(|| format!("sample {}", path.display()))
}

/// Empty lines are skipped.
pub(super) fn parse(text: &str) -> anyhow::Result<Vec<SampleLine>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| parse_line(index, line).with_context(|| format!("line {}", index + 1)))
        .collect()
}

fn parse_line(index: usize, line: &str) -> anyhow::Result<SampleLine> {
    let mut fields: Map<String, Value> = serde_json::from_str(line).context("not a JSON object")?;
    let account = match fields.remove("account") {
        Some(Value::String(account)) => AccountId::parse(&account)?,
        Some(_) | None => bail!("the text `account` is missing"),
    };
    let task = match fields.remove("task") {
        Some(Value::String(task)) => TaskToken::parse(&task)?,
        Some(Value::Null) | None => TaskToken(None),
        Some(_) => bail!("`task` is not a text"),
    };
    let id = match fields.get("id") {
        Some(Value::String(id)) => NotificationId::parse(id)?,
        Some(Value::Null) | None => {
            // The line number is part of the id: two equal lines are two notifications.
            let name = format!("{index}\n{account}\n{task}\n{line}");
            let id = format!("sample-{}", Uuid::new_v5(&LINES, name.as_bytes()));
            fields.insert("id".to_owned(), id.as_str().into());
            NotificationId::parse(&id).expect("a UUID behind a word is printable")
        }
        Some(_) => bail!("`id` is not a text"),
    };
    Ok(SampleLine {
        account,
        task,
        id,
        payload: serde_json::to_vec(&fields).expect("JSON values can be written"),
    })
}

impl SampleLine {
    /// Publishes like any other program: subject and body, no headers.
    pub(super) fn message(&self, root: &Root) -> Outgoing {
        Outgoing {
            subject: root.subject::<NotificationMessage>(&self.account, self.task.0.as_ref()),
            headers: Headers::default(),
            payload: self.payload.clone(),
        }
    }

    /// Whether both lines are about the same task, in any spelling, or both about none.
    pub(super) fn is_of_same_task(&self, other: &SampleLine) -> bool {
        let key = |line: &SampleLine| line.task.0.as_ref().map(|task| task.key());
        self.account == other.account && key(self) == key(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"account":"demo","task":"DEMO-1","id":"n-1","agent":"coder","body":"Hello","extra":1}"#;

    fn refused(line: &str) -> String {
        let error = parse(&format!("{GOOD}\n\n{line}\n")).unwrap_err();
        crate::text::error_line(&error)
    }

    #[test]
    fn a_line_becomes_what_anyone_would_publish() {
        let lines = parse(GOOD).unwrap();
        let message = lines[0].message(&Root::default());
        assert_eq!(message.subject, "signalbox.notification.demo.DEMO-1");
        assert!(message.headers.0.is_empty());
        let payload: Value = serde_json::from_slice(&message.payload).unwrap();
        let expected = serde_json::json!({"id": "n-1", "agent": "coder", "body": "Hello", "extra": 1});
        assert_eq!(payload, expected);
    }

    #[test]
    fn a_line_without_a_task_or_an_id_has_both_all_the_same() {
        let text = "{\"account\":\"demo\",\"agent\":\"coder\",\"body\":\"a\"}\n".repeat(2);
        let (first, again) = (parse(&text).unwrap(), parse(&text).unwrap());
        assert_eq!(
            first[0].message(&Root::default()).subject,
            "signalbox.notification.demo.-"
        );
        assert_ne!(first[0].id, first[1].id);
        assert_eq!(first[0].id, again[0].id);
    }

    #[test]
    fn says_which_line_is_wrong_and_why() {
        assert!(refused("nonsense").starts_with("line 3: not a JSON object: "));
        assert_eq!(refused(r#"{"body":"x"}"#), "line 3: the text `account` is missing");
        assert!(refused(r#"{"account":"DEMO","body":"x"}"#).starts_with("line 3: an account id is "));
        assert!(refused(r#"{"account":"demo","task":"a.b","body":"x"}"#).starts_with("line 3: the task "));
        assert_eq!(
            refused(r#"{"account":"demo","task":7,"body":"x"}"#),
            "line 3: `task` is not a text"
        );
        assert_eq!(
            refused(r#"{"account":"demo","id":7,"body":"x"}"#),
            "line 3: `id` is not a text"
        );
    }

    #[test]
    fn what_the_resolver_refuses_may_stand_in_a_sample() {
        let without_body = r#"{"account":"demo","task":"T","id":"n","agent":"coder"}"#;
        let payload = &parse(without_body).unwrap()[0].payload;
        assert!(contracts::notification::read(&Headers::default(), payload).is_err());
    }

    #[test]
    fn tasks_are_the_same_in_any_spelling() {
        let line = |task: &str| parse(&GOOD.replace("DEMO-1", task)).unwrap().remove(0);
        assert!(line("DEMO-1").is_of_same_task(&line("demo-1")));
        assert!(line("-").is_of_same_task(&line("-")));
        assert!(!line("DEMO-1").is_of_same_task(&line("-")));
    }

    #[test]
    fn the_sample_that_is_shipped_can_be_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/notifications.ndjson");
        let lines = read(&path).unwrap();
        assert_eq!(lines.len(), 16);
        let read = |line: &SampleLine| contracts::notification::read(&Headers::default(), &line.payload);
        assert!(lines.iter().all(|line| read(line).is_ok()));
    }
}
