//! Parses a posted notification: the NATS payload plus `task`. It uses the reader of NATS notifications, so that every accepted
//! notification is readable there. Pure.

use axum::http::StatusCode;
use contracts::{
    Headers, Outgoing, Root, Timestamp,
    notification::{self, Notification, NotificationMessage, Recipients, Refusal, RefusalReason},
    outgoing::Origin,
    subject::TaskToken,
};
use domain::{AccountId, Actor, AgentRef, NotificationId, Owner, TaskId, mail};
use runtime::http::Problem;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use storage::outbox::Owned;
use uuid::Uuid;

use crate::{SOURCE, auth::Caller, error::invalid_field};

/// A readable notification with its id.
#[derive(Debug)]
pub struct Posted {
    pub id: NotificationId,
    pub task: Option<TaskId>,
    pub message: NotificationMessage,
}

/// Reads the fields of the body. `caller` is the sender; `generated` is the id of a notification without one.
pub fn read(mut fields: Map<String, Value>, caller: &Caller, generated: Uuid) -> Result<Posted, Problem> {
    let task = match fields.remove("task") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => TaskToken::parse(&text).map_err(|error| invalid_field("task", error))?.0,
        Some(_) => return Err(invalid_field("task", "not a text")),
    };
    let names_sender = fields.get("sender").is_some_and(|sender| !sender.is_null());
    let payload = serde_json::to_vec(&fields).expect("JSON that was read can be written");
    let read = notification::read(&Headers::default(), &payload).map_err(|unreadable| problem(&unreadable.refusal))?;
    let id = match &read.id {
        Some(id) => id.clone(),
        None => generated.into(),
    };
    mail::not_of_mail(id.as_str()).map_err(|detail| invalid_field("id", detail))?;
    if let Recipients::Session(address) = &read.recipients {
        let owner = match address.person() {
            Some(person) => Some(Owner::User(person.clone())),
            None => address.orchestrator(),
        };
        // What may not be written to is as unknown as what is not there.
        if owner.is_some_and(|owner| !caller.may_prompt(&owner)) {
            return Err(Problem::not_found());
        }
    }
    if let Recipients::Session(address) = &read.recipients
        && address.guest().is_some()
    {
        let detail = "a guest's session takes mail of its guest only: write to the orchestrator's handle";
        return Err(Problem::conflict("not_promptable", detail));
    }
    let sender = if names_sender {
        caller.speaks_as("sender", &read.sender)?
    } else {
        caller.actor()
    };
    let message = message(read, id.clone(), sender);
    Ok(Posted { id, task, message })
}

fn problem(refusal: &Refusal) -> Problem {
    let status = match refusal.reason {
        RefusalReason::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        _ => StatusCode::BAD_REQUEST,
    };
    Problem::new(status, refusal.reason.as_str()).detail(&refusal.detail)
}

fn message(read: Notification, id: NotificationId, sender: Actor) -> NotificationMessage {
    let texts = |agents: Vec<AgentRef>| agents.iter().map(AgentRef::to_string).collect();
    let (agent, agents, session) = match read.recipients {
        Recipients::One(agent) => (Some(agent.to_string()), Vec::new(), None),
        Recipients::Many(agents) => (None, texts(agents), None),
        Recipients::Assignees => (None, Vec::new(), None),
        Recipients::Session(address) => (None, Vec::new(), Some(address.to_string())),
    };
    NotificationMessage {
        id: Some(id),
        kind: Some(read.kind),
        agent,
        agents,
        session,
        title: read.title,
        body: read.body,
        message_id: read.message_id,
        sender: Some(sender),
        queue_mode: read.queue_mode,
        metadata: read.metadata,
    }
}

impl Posted {
    pub fn kind(&self) -> &str {
        self.message.kind.as_deref().unwrap_or(notification::KIND_DEFAULT)
    }

    /// Digest of the content, as far as one value has one spelling: a different digest is a different notification. The resolver
    /// compares recipients and metadata, since it knows that a slug and an id may name one agent. The service that names a sender
    /// is not content, as in the resolver.
    pub fn content_hash(&self) -> Vec<u8> {
        let task = self.task.as_ref().map(TaskId::key);
        let message = &self.message;
        let sender = message.sender.clone().map(|sender| Actor { via: None, ..sender });
        let title = message.title.as_deref().filter(|title| !title.is_empty());
        let content = (task, self.kind(), title, &message.body, message.message_id, &sender);
        let content = serde_json::to_vec(&content).expect("texts and ids have no failing serializer");
        Sha256::digest(content).to_vec()
    }

    /// For the outbox.
    pub fn outgoing(&self, root: &Root, account: &AccountId, origin: &Origin, at: Timestamp) -> Owned {
        let outgoing = Outgoing::new(
            root.subject::<NotificationMessage>(account, self.task.as_ref()),
            &notification::message_id(account, &self.id),
            SOURCE,
            (Some(account), self.task.as_ref()),
            origin,
            at,
            &self.message,
        );
        (Some(account.clone()), outgoing)
    }
}

#[cfg(test)]
mod tests {
    use domain::{KeyId, KeyRole};
    use storage::api_key::KeyHolder;
    use time::OffsetDateTime;

    use super::*;

    fn caller(role: KeyRole) -> Caller {
        Caller::Key(KeyHolder {
            sees_everybody: false,
            account: AccountId::parse("acme").unwrap(),
            id: KeyId::parse("0011223344556677").unwrap(),
            name: "Ann".to_owned(),
            role,
            person: None,
            agent: None,
        })
    }

    fn posted(json: &str) -> Result<Posted, Problem> {
        crate::body::fields(json.as_bytes()).and_then(|fields| read(fields, &caller(KeyRole::Service), Uuid::nil()))
    }

    #[test]
    fn what_is_published_reads_back_as_what_was_posted() {
        let posted = posted(
            r#"{"task": "PROJ-7", "id": "ci-1", "type": "ci_failed", "agents": ["coder"], "title": "CI", "body": "b",
                "sender": {"kind": "service", "id": "ci"}, "queue_mode": "interrupt", "metadata": {"run": 1}, "branch": "main"}"#,
        )
        .unwrap();
        let account = AccountId::parse("acme").unwrap();
        let at = OffsetDateTime::UNIX_EPOCH.into();
        let (_, outgoing) = posted.outgoing(&Root::default(), &account, &Origin::default(), at);
        assert_eq!(outgoing.subject, "signalbox.notification.acme.PROJ-7");
        assert_eq!(outgoing.id(), "acme:ci-1");
        let read = notification::read(&outgoing.headers, &outgoing.payload).unwrap();
        assert_eq!(read.id.unwrap().as_str(), "ci-1");
        assert_eq!((read.kind.as_str(), read.sender.name.as_str()), ("ci_failed", "ci"));
        assert!(matches!(&read.recipients, Recipients::Many(agents) if agents.len() == 1));
        assert_eq!(
            (&read.metadata["run"], &read.metadata["branch"]),
            (&1.into(), &"main".into())
        );
        assert!(!read.metadata.contains_key("task"));
    }

    #[test]
    fn what_is_left_out_is_filled_in() {
        let smallest = posted(r#"{"body": "b"}"#).unwrap();
        assert_eq!(smallest.id.as_str(), Uuid::nil().to_string());
        assert_eq!(smallest.message.sender, Some(caller(KeyRole::Service).actor()));
        assert_eq!(smallest.task, None);
        assert_eq!(posted(r#"{"body": "b", "task": "-"}"#).unwrap().task, None);
    }

    #[test]
    fn content_differs_where_it_matters() {
        let hash = |json: &str| posted(json).unwrap().content_hash();
        let one = hash(r#"{"id": "a", "body": "b", "task": "T"}"#);
        assert_eq!(one, hash(r#"{"task": "t", "body": "b", "id": "a"}"#));
        assert_eq!(
            one,
            hash(r#"{"id": "a", "body": "b", "task": "T", "title": "", "queue_mode": "followup"}"#)
        );
        assert_ne!(one, hash(r#"{"id": "a", "body": "c", "task": "T"}"#));
        assert_ne!(one, hash(r#"{"id": "a", "body": "b", "task": "U"}"#));
    }

    #[test]
    fn a_refusal_is_a_problem_of_the_same_name() {
        let check = |json: &str, status: u16, code: &str| {
            let problem = posted(json).unwrap_err();
            assert_eq!((problem.status().as_u16(), problem.code()), (status, code), "{json}");
        };
        check("[]", 400, "malformed");
        check("{}", 400, "invalid_field");
        check(r#"{"body": "b", "task": "a b"}"#, 400, "invalid_field");
        check(r#"{"body": "b", "task": 7}"#, 400, "invalid_field");
        check(r#"{"body": "b", "agent": "No Body"}"#, 400, "invalid_field");
        check(
            &format!(r#"{{"body": "{}"}}"#, "x".repeat(notification::BODY_BYTES_MAX + 1)),
            413,
            "too_large",
        );
    }
}
