//! The message that a redrive sends. Pure, but for the trace of the request.
//!
//! The payload is sent unchanged on its original subject, under a new message id (the broker's readers would drop the old one as a
//! duplicate) and with `Signalbox-Redrive` naming the letter. Headers stay, so hops, cause and trace continue. The letter's mark
//! that its sender was vouched for (`Signalbox-Vouched`) stays. The notification's identity stays too: an id from a header moves to
//! `ce-id`, where readers of a redrive look for it.

use contracts::{Headers, Outgoing, Root, Timestamp, dead::DEAD_PAYLOAD_BYTES_MAX, header};
use domain::{AccountId, Actor, NotificationId};
use messaging::{UNAUTHENTICATED, User, users};
use runtime::http::Problem;
use storage::entity::dead_letter::Model;

use crate::SOURCE;

/// The message, or the reason why it cannot be redriven. `account`: the letter's account; none for the operator's.
pub fn redrive(root: &Root, account: Option<&AccountId>, letter: &Model) -> Result<Outgoing, Problem> {
    if letter.payload.len() >= DEAD_PAYLOAD_BYTES_MAX {
        let what = "the message was too long to be stored whole: publish it again at its source";
        return Err(Problem::conflict("payload_cut", what));
    }
    // A redrive is signed by the orchestrator, so an unsigned message would become a valid one.
    if letter.reason == UNAUTHENTICATED {
        let what = "no service of this installation signed it for its subject: the letter can be read but not redriven";
        return Err(Problem::conflict(UNAUTHENTICATED, what));
    }
    let subject = subject(root, account, &letter.subject)
        .filter(|subject| is_of(root, letter, subject))
        .ok_or_else(|| Problem::conflict("not_redrivable", "no service reads that subject"))?;
    // The headers of a foreign message stay, but for the broker's own instructions.
    let mut headers: Headers = serde_json::from_value(letter.headers.clone()).unwrap_or_default();
    let message_id = headers.0.remove(header::MESSAGE_ID);
    // The message id of the dead message; the new message gets its own.
    headers.0.remove(header::SIGNATURE);
    headers
        .0
        .retain(|name, _| !name.to_ascii_lowercase().starts_with("nats-"));
    if let Some(message_id) = message_id
        && headers.get(header::REDRIVE).is_none()
    {
        // The id that readers of the first delivery preferred.
        headers.set(header::CE_ID, message_id);
    }
    if headers.get(header::CE_ID).is_none() {
        // A message that never had an id gets the letter's id, so that two redrives are one notification.
        headers.set(header::CE_ID, letter.id.to_string());
    }
    headers.set(
        header::MESSAGE_ID,
        format!("redrive:{}:{}", letter.id, letter.redrives + 1),
    );
    headers.set(header::REDRIVE, letter.id.to_string());
    event_complete(&mut headers, &subject, letter);
    Ok(Outgoing {
        subject,
        headers,
        payload: letter.payload.clone().into_bytes(),
    })
}

/// A redrive carries the orchestrator's signature, which could say what the letter's service may not. So the subject must be one
/// that the letter's service reads or publishes, and that the orchestrator may publish.
fn is_of(root: &Root, letter: &Model, subject: &str) -> bool {
    let service = User::named(&letter.service);
    service.is_some_and(|service| users::buries(service, root, subject))
        && users::publishes(User::Orchestrator, root, subject)
}

/// The id of the redriven notification, as its reader will see it, and the sender that it names.
pub fn sender_named(outgoing: &Outgoing) -> Option<(NotificationId, Actor)> {
    let read = contracts::notification::read(&outgoing.headers, &outgoing.payload).ok()?;
    Some((read.id?, read.sender))
}

/// Whether the letter's service read the notification from its row. Then the row decides the sender.
pub fn is_of_a_row(letter: &Model) -> bool {
    User::named(&letter.service) == Some(User::Delivery)
}

/// A publisher needs no headers; a message of ours is a CloudEvent and has hops and a trace. The message's own headers stay.
fn event_complete(headers: &mut Headers, subject: &str, letter: &Model) {
    let address: Vec<&str> = subject.rsplit('.').take(2).collect();
    let about = match address[..] {
        [task, account] if task != "-" => format!("{account}/{task}"),
        [_, account] => account.to_owned(),
        _ => String::new(),
    };
    let trace = messaging::trace::current_trace();
    let defaults = [
        (header::CE_SPECVERSION, "1.0".to_owned()),
        (header::CE_TYPE, "signalbox.notification".to_owned()),
        (header::CE_SOURCE, SOURCE.to_owned()),
        (header::CE_SUBJECT, about),
        (header::CE_TIME, Timestamp::from(letter.created_at).to_string()),
        (header::HOPS, "0".to_owned()),
        (header::TRACEPARENT, trace.traceparent.unwrap_or_default()),
    ];
    for (name, value) in defaults {
        if headers.get(name).is_none() {
            headers.set(name, value);
        }
    }
}

/// The original subject. A letter's subject is not trusted: only subjects that a service reads are allowed, and never another
/// account's.
fn subject(root: &Root, account: Option<&AccountId>, subject: &str) -> Option<String> {
    let published = root.notification_published(subject);
    let mut tokens = published.split('.');
    if tokens.next() != Some(root.as_str()) {
        return None;
    }
    let tokens: Vec<&str> = tokens.collect();
    let named = match tokens[..] {
        ["notification", account, _task] => account,
        ["session" | "tool", _fact, account, _task] => account,
        ["event", account, _task, _noun, _fact] => account,
        _ => return None,
    };
    let ours = account.is_none_or(|account| account.as_str() == named);
    // These characters would make a wildcard or an empty token.
    let plain = tokens
        .iter()
        .all(|token| !token.is_empty() && !token.contains(['*', '>', ' ', '\r', '\n', '\t', '\0']));
    (ours && plain).then(|| published.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    fn letter(subject: &str, payload: &str, headers: serde_json::Value) -> Model {
        Model {
            account_id: "acme".to_owned(),
            id: Uuid::from_u128(7),
            service: "resolver".to_owned(),
            subject: subject.to_owned(),
            reason: "unknown_agent".to_owned(),
            detail: "d".to_owned(),
            payload: payload.to_owned(),
            headers,
            attempts: 1,
            created_at: OffsetDateTime::UNIX_EPOCH,
            redriven_at: None,
            redrives: 1,
        }
    }

    fn acme() -> AccountId {
        AccountId::parse("acme").unwrap()
    }

    #[test]
    fn the_message_goes_where_it_came_from_under_a_new_id() {
        let headers = json!({"Nats-Msg-Id": "ci-1", "Nats-Expected-Stream": "X", "Signalbox-Hops": "2", "Signalbox-Vouched": "1", "traceparent": "00-a", "Signalbox-Signature": "v1.a.00"});
        let letter = letter("signalbox.partition.3.acme.PROJ-7", r#"{"body": ""}"#, headers);
        let sent = redrive(&Root::default(), Some(&acme()), &letter).unwrap();
        assert_eq!(sent.subject, "signalbox.notification.acme.PROJ-7");
        assert_eq!(sent.payload, br#"{"body": ""}"#);
        assert_eq!(sent.id(), format!("redrive:{}:2", letter.id));
        assert_eq!(sent.headers.get(header::REDRIVE), Some(letter.id.to_string().as_str()));
        assert_eq!(sent.headers.hops(), 2);
        assert_eq!(sent.headers.get(header::TRACEPARENT), Some("00-a"));
        assert_eq!(sent.headers.get("Nats-Expected-Stream"), None);
        assert_eq!(sent.headers.get(header::SIGNATURE), None);
        assert_eq!(sent.headers.get(header::VOUCHED), Some("1"), "as the letter says");
        let read = contracts::notification::read(&sent.headers, &sent.payload).unwrap();
        assert_eq!(read.id.unwrap().as_str(), "ci-1", "it is the same notification");
    }

    #[test]
    fn what_is_sent_is_a_cloud_event_whatever_came() {
        let sent = |headers| {
            let letter = letter("signalbox.partition.3.acme.PROJ-7", "{}", headers);
            redrive(&Root::default(), Some(&acme()), &letter).unwrap().headers
        };
        let bare = sent(json!({}));
        for (name, value) in [
            (header::CE_SPECVERSION, "1.0"),
            (header::CE_TYPE, "signalbox.notification"),
            (header::CE_SOURCE, "/signalbox/orchestrator"),
            (header::CE_SUBJECT, "acme/PROJ-7"),
            (header::CE_TIME, "1970-01-01T00:00:00Z"),
            (header::HOPS, "0"),
        ] {
            assert_eq!(bare.get(name), Some(value), "{name}");
        }
        let theirs = sent(json!({"ce-type": "ci.failed", "ce-source": "/ci", "Signalbox-Hops": "3"}));
        assert_eq!(
            (
                theirs.get(header::CE_TYPE),
                theirs.get(header::CE_SOURCE),
                theirs.hops()
            ),
            (Some("ci.failed"), Some("/ci"), 3)
        );
    }

    #[test]
    fn a_redrive_that_died_again_is_still_the_same_notification() {
        let headers = json!({"Nats-Msg-Id": "redrive:x:1", "Signalbox-Redrive": "x", "ce-id": "ci-1"});
        let letter = letter("signalbox.notification.acme.-", r#"{"body": ""}"#, headers);
        let sent = redrive(&Root::default(), Some(&acme()), &letter).unwrap();
        let read = contracts::notification::read(&sent.headers, &sent.payload).unwrap();
        assert_eq!(read.id.unwrap().as_str(), "ci-1");
    }

    #[test]
    fn a_message_without_an_id_is_one_notification_however_often_it_is_redriven() {
        let read = |redrives: i32| {
            let mut letter = letter("signalbox.notification.acme.-", r#"{"body": ""}"#, json!({}));
            letter.redrives = redrives;
            let sent = redrive(&Root::default(), Some(&acme()), &letter).unwrap();
            contracts::notification::read(&sent.headers, &sent.payload).unwrap().id
        };
        assert!(read(0).is_some());
        assert_eq!(read(0), read(1));
    }

    #[test]
    fn what_was_cut_is_not_sent() {
        let letter = letter(
            "signalbox.notification.acme.-",
            &"x".repeat(DEAD_PAYLOAD_BYTES_MAX),
            json!({}),
        );
        assert_eq!(
            redrive(&Root::default(), Some(&acme()), &letter).unwrap_err().code(),
            "payload_cut"
        );
    }

    #[test]
    fn what_was_forged_is_not_sent() {
        let mut letter = letter("signalbox.session.resolved.acme.T", "{}", json!({}));
        assert!(redrive(&Root::default(), None, &letter).is_ok());
        letter.reason = UNAUTHENTICATED.to_owned();
        let refused = redrive(&Root::default(), None, &letter).unwrap_err();
        assert_eq!(refused.code(), "unauthenticated");
    }

    /// A compromised service writes letters, and the orchestrator signs their redrives.
    #[test]
    fn a_letter_is_sent_again_where_its_service_reads_or_publishes() {
        let check = |service: &str, subject: &str, good: bool| {
            let mut letter = letter(subject, "{}", json!({}));
            letter.service = service.to_owned();
            let sent = redrive(&Root::default(), Some(&acme()), &letter).map_err(|problem| problem.code());
            assert_eq!(sent.is_ok(), good, "{service} {subject}");
            assert!(good || sent == Err("not_redrivable"));
        };
        for (subject, services) in [
            (
                "signalbox.notification.acme.T",
                ["resolver", "delivery", "tool-gateway", "orchestrator"].as_slice(),
            ),
            (
                "signalbox.partition.3.acme.T",
                &["resolver", "delivery", "tool-gateway", "orchestrator"],
            ),
            (
                "signalbox.session.resolved.acme.T",
                &["resolver", "delivery", "tool-gateway", "orchestrator"],
            ),
            (
                "signalbox.session.closed.acme.T",
                &["delivery", "tool-gateway", "orchestrator"],
            ),
            (
                "signalbox.tool.requested.acme.T",
                &["delivery", "tool-gateway", "orchestrator"],
            ),
            (
                "signalbox.tool.finished.acme.T",
                &["delivery", "tool-gateway", "orchestrator"],
            ),
            ("signalbox.event.acme.T.turn.finished", &["delivery", "orchestrator"]),
            ("signalbox.event.acme.T.turn.started", &[]),
        ] {
            for service in [
                "resolver",
                "delivery",
                "tool-gateway",
                "orchestrator",
                "operator",
                "publisher",
                "",
            ] {
                check(service, subject, services.contains(&service));
            }
        }
    }

    #[test]
    fn nothing_is_sent_into_another_account_or_nowhere() {
        let check = |from: &str, account: Option<&AccountId>, good: bool| {
            assert_eq!(subject(&Root::default(), account, from).is_some(), good, "{from}");
        };
        let acme = acme();
        check("signalbox.notification.acme.T", Some(&acme), true);
        check("signalbox.tool.requested.acme.T", Some(&acme), true);
        check("signalbox.event.acme.T.turn.finished", Some(&acme), true);
        check("signalbox.notification.other.T", Some(&acme), false);
        check("signalbox.partition.0.other.T", Some(&acme), false);
        check("signalbox.notification.other.T", None, true);
        check("signalbox.notification.acme.*", Some(&acme), false);
        check("signalbox.notification.acme.", Some(&acme), false);
        check("signalbox.dead.acme.T", Some(&acme), false);
        check("elsewhere.notification.acme.T", Some(&acme), false);
        check("$JS.API.STREAM.DELETE.X", None, false);
    }
}
