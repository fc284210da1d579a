//! A message from the stream, read as far as that goes without asking the database. Pure; a message that cannot be read
//! keeps what could be told of it, so that its refusal can say so.

use bytes::Bytes;
use contracts::{
    Headers, Root, SubjectError, TaskToken, TraceContext,
    content::ContentHash,
    header,
    notification::{self, Notification, Refusal, RefusalReason},
    outgoing::Origin,
};
use domain::{AccountId, Actor, NotificationId, TaskId};
use messaging::Incoming;
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub struct Received {
    /// Where it was published.
    pub subject: String,
    pub headers: Headers,
    pub payload: Bytes,
    /// PartitionOffset in the stream.
    pub sequence: u64,
    pub published: OffsetDateTime,
    /// The account that the subject names. Whether it exists is another question.
    pub account: Option<AccountId>,
    pub task: Option<TaskId>,
    /// As its publisher gave it. Without one nobody can ask for it.
    pub given_id: Option<NotificationId>,
    /// The given id, or one that follows from the place in the stream: reading again gives the same.
    pub id: NotificationId,
    pub content: Result<Notification, Refusal>,
    pub hash: ContentHash,
    /// A person sent it again after it was refused or had failed: the orchestrator says so, and signed it.
    pub is_redrive: bool,
    /// Of what this message follows from, else of the message itself.
    pub cause: Option<String>,
    pub hops: u16,
    pub trace: TraceContext,
}

impl Received {
    /// `stream_created` tells this stream from an earlier one that counted the same sequences. `is_signed`: one of our
    /// services put the message on its subject.
    pub fn read(root: &Root, stream_created: OffsetDateTime, mut incoming: Incoming, is_signed: bool) -> Received {
        if !is_signed {
            // Anybody can write it; sending again what was refused is the orchestrator's.
            incoming.headers.0.remove(header::REDRIVE);
        }
        let address = Address::of(root, &incoming.subject);
        let (given_id, content) = match notification::read(&incoming.headers, &incoming.payload) {
            Ok(notification) => (notification.id.clone(), Ok(notification)),
            Err(unreadable) => (unreadable.id, Err(unreadable.refusal)),
        };
        let is_redrive = incoming
            .headers
            .get(header::REDRIVE)
            .is_some_and(|letter| Uuid::try_parse(letter).is_ok());
        // What is sent again was signed by who sent it again, and said by another: its letter knows how that stood.
        let is_vouched = is_signed && (!is_redrive || incoming.headers.get(header::VOUCHED).is_some());
        incoming.headers.0.remove(header::VOUCHED);
        if is_vouched {
            // For the dead letter that this may become.
            incoming.headers.set(header::VOUCHED, "1");
        }
        let content = content.and_then(|notification| match is_vouched {
            true => Ok(notification),
            false => said_by_a_publisher(notification),
        });
        // An address that is none says more than what is wrong with the payload.
        let content = match address.fault {
            Some(fault) => Err(Refusal::new(RefusalReason::InvalidSubject, fault.to_string())),
            None => content,
        };
        let hash = match &content {
            Ok(notification) => ContentHash::of(address.task.as_ref(), notification),
            Err(_) => ContentHash::of_unreadable(&incoming.payload),
        };
        let id = given_id
            .clone()
            .unwrap_or_else(|| id_of_place(stream_created, incoming.stream_sequence, incoming.published));
        let cause = [header::CAUSE, header::MESSAGE_ID, header::CE_ID]
            .iter()
            .find_map(|name| incoming.headers.get(name))
            .filter(|cause| is_printable(cause));
        Received {
            subject: root.notification_published(&incoming.subject),
            sequence: incoming.stream_sequence,
            published: incoming.published,
            account: address.account,
            task: address.task,
            given_id,
            id,
            content,
            hash,
            is_redrive,
            cause: cause.map(str::to_owned),
            // A redrive is a person's decision, made with the chain before their eyes: the count begins again.
            hops: if is_redrive { 0 } else { incoming.headers.hops() },
            trace: trace(&incoming.headers),
            headers: incoming.headers,
            payload: incoming.payload,
        }
    }

    /// What follows from it says so.
    pub fn origin(&self) -> Origin {
        Origin {
            cause: Some(self.id.to_string()),
            hops: self.hops,
            trace: self.trace.clone(),
        }
    }
}

/// A sender is a publisher's word where none of our services knew it.
fn said_by_a_publisher(notification: Notification) -> Result<Notification, Refusal> {
    let sender = Actor::publisher().speaks_as(&notification.sender).map_err(|error| {
        let detail = format!("sender: {error}");
        Refusal::new(RefusalReason::InvalidField, detail)
    })?;
    Ok(Notification { sender, ..notification })
}

/// What a subject says, token by token: a stranger's account can be right where the task is not.
struct Address {
    account: Option<AccountId>,
    task: Option<TaskId>,
    fault: Option<SubjectError>,
}

impl Address {
    fn of(root: &Root, subject: &str) -> Address {
        match root.read_notification(subject) {
            Ok((account, TaskToken(task))) => Address {
                account: Some(account),
                task,
                fault: None,
            },
            Err(fault) => Address {
                account: match fault {
                    SubjectError::Task => subject
                        .rsplit('.')
                        .nth(1)
                        .and_then(|token| AccountId::parse(token).ok()),
                    SubjectError::Account | SubjectError::Shape | SubjectError::Root => None,
                },
                task: None,
                fault: Some(fault),
            },
        }
    }
}

/// Namespace of ids that follow from a place in a stream.
const PLACES: Uuid = Uuid::from_u128(0x51b0_91ac_0000_4000_8000_0000_0000_0001);

/// The moment is part of the place: a stream that lost its tail writes other messages under the same numbers.
fn id_of_place(stream_created: OffsetDateTime, sequence: u64, published: OffsetDateTime) -> NotificationId {
    let name = format!(
        "{}\n{sequence}\n{}",
        stream_created.unix_timestamp_nanos(),
        published.unix_timestamp_nanos()
    );
    let id = Uuid::new_v5(&PLACES, name.as_bytes()).to_string();
    NotificationId::parse(&id).expect("a UUID is a notification id")
}

/// Headers end in texts of Postgres and in other messages' headers, and a stranger wrote them.
fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn trace(headers: &Headers) -> TraceContext {
    let TraceContext {
        traceparent,
        tracestate,
    } = headers.trace();
    TraceContext {
        traceparent: traceparent.filter(|text| is_printable(text)),
        tracestate: tracestate.filter(|text| is_printable(text)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn incoming(subject: &str, headers: &[(&str, &str)], payload: &str) -> Incoming {
        let mut map = Headers::default();
        for (name, value) in headers {
            map.set(name, *value);
        }
        Incoming {
            subject: subject.to_owned(),
            headers: map,
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            stream_sequence: 7,
            deliveries: 1,
            published: OffsetDateTime::UNIX_EPOCH,
        }
    }

    pub(crate) fn received(subject: &str, headers: &[(&str, &str)], payload: &str) -> Received {
        let incoming = incoming(subject, headers, payload);
        Received::read(&Root::default(), OffsetDateTime::UNIX_EPOCH, incoming, false)
    }

    /// Sent again by the orchestrator, who signs.
    pub(crate) fn redriven(subject: &str, headers: &[(&str, &str)], payload: &str) -> Received {
        let letter = (header::REDRIVE, "0190b5a8-0000-7000-8000-0000000000ff");
        let incoming = incoming(subject, &[headers, &[letter]].concat(), payload);
        Received::read(&Root::default(), OffsetDateTime::UNIX_EPOCH, incoming, true)
    }

    #[test]
    fn a_message_says_who_what_and_where() {
        let received = received(
            "signalbox.partition.3.acme.PROJ-7",
            &[
                (header::CAUSE, "turn-1"),
                (header::HOPS, "2"),
                (header::TRACEPARENT, "00-1-2-01"),
            ],
            r#"{"id": "ci-1", "agent": "coder", "body": "b"}"#,
        );
        assert_eq!(received.subject, "signalbox.notification.acme.PROJ-7");
        assert_eq!(received.account, Some(AccountId::parse("acme").unwrap()));
        assert_eq!(received.task, Some(TaskId::parse("PROJ-7").unwrap()));
        assert_eq!(received.id.as_str(), "ci-1");
        assert_eq!(received.given_id.as_ref(), Some(&received.id));
        assert!(received.content.is_ok());
        assert_eq!((received.cause.as_deref(), received.hops), (Some("turn-1"), 2));
        assert_eq!(received.origin().cause.as_deref(), Some("ci-1"));
        assert!(!received.is_redrive);
    }

    #[test]
    fn without_an_id_the_place_names_it() {
        let read = |created: i64, sequence: u64, published: i64| {
            let mut incoming = incoming("signalbox.partition.3.acme.-", &[], r#"{"body": "b"}"#);
            incoming.stream_sequence = sequence;
            incoming.published = OffsetDateTime::from_unix_timestamp(published).unwrap();
            let created = OffsetDateTime::from_unix_timestamp(created).unwrap();
            Received::read(&Root::default(), created, incoming, false)
        };
        let first = read(1, 7, 2);
        assert_eq!(first.given_id, None);
        assert_eq!(first.id, read(1, 7, 2).id);
        for other in [read(2, 7, 2), read(1, 8, 2), read(1, 7, 3)] {
            assert_ne!(first.id, other.id);
        }
    }

    #[test]
    fn a_broken_address_keeps_what_it_has() {
        let check = |subject: &str, account: Option<&str>| {
            let received = received(subject, &[], r#"{"body": "b"}"#);
            assert_eq!(received.account.as_ref().map(AccountId::as_str), account, "{subject}");
            assert_eq!(
                received.content.unwrap_err().reason,
                RefusalReason::InvalidSubject,
                "{subject}"
            );
        };
        check("signalbox.partition.3.ACME.t", None);
        check("signalbox.partition.3.acme._t", Some("acme"));
        check("signalbox.partition.3.acme.t.u", None);
    }

    #[test]
    fn headers_of_strangers_do_not_reach_the_database_as_they_are() {
        let received = received(
            "signalbox.partition.3.acme.t",
            &[
                (header::CAUSE, "a\0b"),
                (header::TRACEPARENT, "\u{1}"),
                (header::TRACESTATE, "é"),
                (header::HOPS, "-3"),
                (header::REDRIVE, "not a uuid"),
            ],
            r#"{"body": "b"}"#,
        );
        assert_eq!(received.cause, None);
        assert_eq!(received.trace, TraceContext::default());
        assert_eq!(received.hops, 0);
        assert!(!received.is_redrive);
    }

    /// Who sends, as it comes out; by way of a stranger, of a service, and of a service that sends a letter again.
    #[test]
    fn a_sender_is_taken_as_it_stands_from_our_services_only() {
        let check = |sender: &str, headers: &[(&str, &str)], is_signed: bool, expected: Result<Option<&str>, &str>| {
            let payload = format!(r#"{{"body": "b", "sender": {sender}}}"#);
            let incoming = incoming("signalbox.partition.3.acme.t", headers, &payload);
            let received = Received::read(&Root::default(), OffsetDateTime::UNIX_EPOCH, incoming, is_signed);
            let is_vouched = received.headers.get(header::VOUCHED).is_some();
            let found = received.content.map(|content| content.sender.via);
            let found = found
                .as_ref()
                .map(Option::as_deref)
                .map_err(|refusal| refusal.detail.as_str());
            match (found, expected) {
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{sender}: {found}"),
                (found, expected) => assert_eq!(found, expected, "{sender} {headers:?}"),
            }
            assert_eq!(is_vouched, is_signed && (headers.len() != 1), "{headers:?}");
        };
        let redriven = [(header::REDRIVE, "0190b5a8-0000-7000-8000-000000000001")];
        let vouched = [redriven[0], (header::VOUCHED, "1")];
        let user = r#"{"kind": "user", "id": "u-1", "via": "CI"}"#;
        check(user, &[], false, Ok(Some("publisher")));
        check(user, &[], true, Ok(Some("CI")));
        check(user, &redriven, true, Ok(Some("publisher")));
        check(user, &vouched, true, Ok(Some("CI")));
        check(user, &vouched, false, Ok(Some("publisher")));
        check(r#"{"kind": "service", "id": "ci"}"#, &[], false, Ok(Some("publisher")));
        check(r#"{"kind": "service", "id": "publisher"}"#, &[], false, Ok(None));
        check("null", &[], false, Ok(None));
        let agent = r#"{"kind": "agent", "id": "a-1"}"#;
        check(agent, &[], true, Ok(None));
        check(agent, &vouched, true, Ok(None));
        for headers in [&[][..], &redriven, &vouched] {
            check(agent, headers, false, Err("sender: kind is user or service"));
        }
        check(agent, &redriven, true, Err("sender: kind is user or service"));
        let operator = r#"{"kind": "user", "id": "operator", "name": "Operator"}"#;
        check(operator, &[], true, Ok(None));
        check(operator, &[], false, Err("Signalbox's own"));
    }

    #[test]
    fn a_redrive_begins_to_count_again_and_is_signed() {
        let subject = "signalbox.partition.3.acme.t";
        let headers = [
            (header::HOPS, "99"),
            (header::MESSAGE_ID, "redrive:x:1"),
            (header::CE_ID, "ci-1"),
        ];
        let again = redriven(subject, &headers, r#"{"body": "b"}"#);
        assert!(again.is_redrive);
        assert_eq!((again.hops, again.id.as_str()), (0, "ci-1"));
        let letter = (header::REDRIVE, "0190b5a8-0000-7000-8000-0000000000ff");
        let forged = received(subject, &[&headers[..], &[letter]].concat(), r#"{"body": "b"}"#);
        assert!(!forged.is_redrive);
        assert_eq!((forged.hops, forged.id.as_str()), (99, "redrive:x:1"));
        assert_eq!(forged.headers.get(header::REDRIVE), None);
    }
}
