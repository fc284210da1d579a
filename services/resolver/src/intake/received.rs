//! Parses a message of the stream, without the database. Pure. A message that cannot be parsed keeps its readable parts
//! for the refusal.

use bytes::Bytes;
use contracts::{
    Headers, Root, SubjectError, TaskToken, TraceContext,
    content::ContentHash,
    header,
    notification::{self, Notification, Refusal, RefusalReason},
    outgoing::Origin,
};
use domain::{AccountId, Actor, NotificationId, QueueMode, TaskId, mail};
use messaging::Incoming;
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub struct Received {
    /// Where it was published.
    pub subject: String,
    pub headers: Headers,
    pub payload: Bytes,
    /// Sequence in the stream.
    pub sequence: u64,
    pub published: OffsetDateTime,
    /// The account in the subject. It may not exist.
    pub account: Option<AccountId>,
    pub task: Option<TaskId>,
    /// The id that the publisher gave. Without one the notification cannot be queried.
    pub given_id: Option<NotificationId>,
    /// The given id, or an id derived from the stream offset: reading the message again gives the same id.
    pub id: NotificationId,
    pub content: Result<Notification, Refusal>,
    pub hash: ContentHash,
    /// A person resent it after it was refused or failed. Set only by a signed message of the orchestrator.
    pub is_redrive: bool,
    /// The id of the message that caused this one, else of the message itself.
    pub cause: Option<String>,
    pub hops: u16,
    pub trace: TraceContext,
}

impl Received {
    /// `stream_created` distinguishes this stream from an earlier one with the same sequences. `is_signed`: one of our
    /// services published the message.
    pub fn read(root: &Root, stream_created: OffsetDateTime, mut incoming: Incoming, is_signed: bool) -> Received {
        if !is_signed {
            // Any publisher can write this header; only the orchestrator may redrive.
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
        // A redriven message carries the orchestrator's signature. Whether the original was signed is in its dead
        // letter's header.
        let is_vouched = is_signed && (!is_redrive || incoming.headers.get(header::VOUCHED).is_some());
        incoming.headers.0.remove(header::VOUCHED);
        if is_vouched {
            // Stored with the dead letter that this message may become.
            incoming.headers.set(header::VOUCHED, "1");
        }
        let content = content.and_then(|notification| match is_vouched {
            true => Ok(notification),
            false => publisher_check(notification),
        });
        // A wrong address is reported before a wrong payload.
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
            .unwrap_or_else(|| id_from_offset(stream_created, incoming.stream_sequence, incoming.published));
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
            // A redrive is a person's decision, made with the chain in view: the count restarts.
            hops: if is_redrive { 0 } else { incoming.headers.hops() },
            trace: trace(&incoming.headers),
            headers: incoming.headers,
            payload: incoming.payload,
        }
    }

    /// The origin of every message that this one causes.
    pub fn origin(&self) -> Origin {
        Origin {
            cause: Some(self.id.to_string()),
            hops: self.hops,
            trace: self.trace.clone(),
        }
    }
}

/// Marks the sender as claimed by a publisher. Refuses a sender that no publisher may claim, the id of an item of mail, and to reach into a
/// turn of a person's orchestrator, which is for those who may stop it.
fn publisher_check(notification: Notification) -> Result<Notification, Refusal> {
    let invalid = |detail: &str| Err(Refusal::new(RefusalReason::InvalidField, detail.to_owned()));
    if let Some(Err(detail)) = notification.id.as_ref().map(|id| mail::not_of_mail(id.as_str())) {
        return invalid(&format!("id: {detail}"));
    }
    if notification.recipients.user().is_some() && matches!(notification.mode(), QueueMode::Steer | QueueMode::Inject) {
        return invalid(
            "queue_mode: a turn of a person's orchestrator is reached over HTTP only: publish with followup or collect",
        );
    }
    let sender = Actor::publisher().speaks_as(&notification.sender).map_err(|error| {
        let detail = format!("sender: {error}");
        Refusal::new(RefusalReason::InvalidField, detail)
    })?;
    Ok(Notification { sender, ..notification })
}

/// The parts of a subject, parsed separately: the account can be valid where the task is not.
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

/// Namespace of ids that are derived from stream offsets.
const OFFSET_NAMESPACE: Uuid = Uuid::from_u128(0x51b0_91ac_0000_4000_8000_0000_0000_0001);

/// The publish time is part of the id: a stream that lost its tail reuses sequence numbers for other messages.
fn id_from_offset(stream_created: OffsetDateTime, sequence: u64, published: OffsetDateTime) -> NotificationId {
    let name = format!(
        "{}\n{sequence}\n{}",
        stream_created.unix_timestamp_nanos(),
        published.unix_timestamp_nanos()
    );
    let id = Uuid::new_v5(&OFFSET_NAMESPACE, name.as_bytes()).to_string();
    NotificationId::parse(&id).expect("a UUID is a notification id")
}

/// Checks headers from outside before they are stored in Postgres or copied to other messages' headers.
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

    /// Redriven by the orchestrator, which signs.
    pub(crate) fn redriven(subject: &str, headers: &[(&str, &str)], payload: &str) -> Received {
        let letter = (header::REDRIVE, "0190b5a8-0000-7000-8000-0000000000ff");
        let incoming = incoming(subject, &[headers, &[letter]].concat(), payload);
        Received::read(&Root::default(), OffsetDateTime::UNIX_EPOCH, incoming, true)
    }

    #[test]
    fn parses_account_task_content_and_offset() {
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
    fn without_an_id_the_offset_gives_one() {
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
    fn an_invalid_subject_keeps_its_valid_account() {
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

    /// The sender as parsed: from a publisher, from a service, and from a service that redrives a dead letter.
    #[test]
    fn only_our_services_may_name_any_sender() {
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
    fn a_redrive_restarts_the_hop_count_and_is_signed() {
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
