//! Every subject of the contracts has its stream and its reader, and the printed table names them.

use contracts::{
    live::LiveText,
    message::is_match,
    notification::NotificationMessage,
    session::{SessionClosed, SessionResolved},
    tool::{ToolFinished, ToolRequested},
};
use domain::{AccountId, TaskId};

use super::*;

const NEWEST: ServerVersion = ServerVersion { major: 2, minor: 15 };

fn subjects(root: &Root) -> Vec<(String, Stream, Option<&'static Durable>)> {
    let account = AccountId::parse("acme").unwrap();
    let task = TaskId::parse("PROJ-7").unwrap();
    let mut subjects = Vec::new();
    for task in [Some(&task), None] {
        subjects.extend([
            (
                root.subject::<NotificationMessage>(&account, task),
                Stream::Notification,
                None,
            ),
            (
                root.subject::<SessionResolved>(&account, task),
                Stream::Session,
                Some(Durable::of(User::Delivery, "session.resolved")),
            ),
            (
                root.subject::<SessionClosed>(&account, task),
                Stream::Session,
                Some(Durable::of(User::Delivery, "session.closed")),
            ),
            (
                root.subject::<ToolRequested>(&account, task),
                Stream::Tool,
                Some(Durable::of(User::ToolGateway, "tool.requested")),
            ),
            (
                root.subject::<ToolFinished>(&account, task),
                Stream::Tool,
                Some(Durable::of(User::Delivery, "tool.finished")),
            ),
            (
                root.event(Some(&account), task, "turn.finished"),
                Stream::Event,
                Some(Durable::of(User::Orchestrator, "turn.finished")),
            ),
            (root.event(Some(&account), task, "turn.started"), Stream::Event, None),
            (root.dead(Some(&account), task), Stream::Dead, None),
            (root.dead(None, None), Stream::Dead, None),
        ]);
    }
    subjects
}

#[test]
fn every_subject_of_the_contracts_has_one_stream_and_its_consumer() {
    let root = Root::parse("box").unwrap();
    for (subject, stream, durable) in subjects(&root) {
        let taking: Vec<Stream> = Stream::ALL
            .into_iter()
            .filter(|one| {
                let config = stream_config(*one, &root, &TopologyLimits::default(), NEWEST);
                config.subjects.iter().any(|filter| is_match(filter, &subject))
            })
            .collect();
        assert_eq!(taking, [stream], "{subject}");
        let consuming: Vec<&Durable> = Durable::all()
            .iter()
            .filter(|one| is_match(&one.filter(&root), &subject))
            .collect();
        assert_eq!(consuming, Vec::from_iter(durable), "{subject}");
        assert!(durable.is_none_or(|durable| durable.stream == stream), "{subject}");
    }
}

#[test]
fn live_text_is_stored_nowhere() {
    let root = Root::default();
    let subject = root.subject::<LiveText>(&AccountId::parse("acme").unwrap(), None);
    for stream in Stream::ALL {
        let config = stream_config(stream, &root, &TopologyLimits::default(), NEWEST);
        assert!(
            !config.subjects.iter().any(|filter| is_match(filter, &subject)),
            "{stream:?}"
        );
    }
}

#[test]
fn nothing_can_be_published_to_what_the_notifications_take_from_the_dead() {
    let root = Root::default();
    let limits = TopologyLimits::default();
    let notifications = stream_config(Stream::Notification, &root, &limits, NEWEST);
    let filter = notifications.sources.unwrap()[0].filter_subject.clone().unwrap();
    let dead = stream_config(Stream::Dead, &root, &limits, NEWEST);
    assert!(!dead.subjects.iter().any(|subject| is_match(subject, &filter)));
}

#[test]
fn an_older_server_gets_the_smallest_window_and_no_source() {
    let older = ServerVersion { major: 2, minor: 12 };
    let config = stream_config(
        Stream::Notification,
        &Root::default(),
        &TopologyLimits::default(),
        older,
    );
    assert_eq!((config.duplicate_window.as_millis(), config.sources), (100, None));
}

#[test]
fn the_table_for_people_names_everything() {
    let root = Root::default();
    let table = markdown(&root);
    for stream in Stream::ALL {
        assert!(table.contains(&format!("| `{}` |", stream.name(&root))), "{stream:?}");
    }
    for durable in Durable::all() {
        assert!(table.contains(&format!("| `{}` |", durable.name())), "{durable:?}");
    }
    assert!(table.contains("| `SIGNALBOX_NOTIFICATION` | `signalbox.notification.*.*` |"));
}
