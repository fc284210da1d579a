//! Notifications over HTTP: publishing, by the same rules as over NATS, and their states.
//!
//! An accepted notification is published for the resolver, which decides. Until the resolver has written its row, the row in
//! `accepted_notification` answers "queued" for it, so that a client that got 202 finds it at once.

pub mod http;
pub mod incoming;
pub mod store;

use api::notifications::{Notification, Part};
use domain::NotificationState;
use storage::{entity, outbox::WaitsFor};

/// Accepted, and not yet written by the resolver. The reason follows from the outbox.
pub fn accepted(row: entity::accepted_notification::Model, waits_for: Option<WaitsFor>) -> Notification {
    let reason = waits_for.map(|waits_for| match waits_for {
        WaitsFor::Broker => "waits_for_broker",
        WaitsFor::Reader => "waits_for_resolver",
    });
    Notification {
        id: row.id,
        task: row.task,
        agent: row.agent,
        agent_id: None,
        r#type: row.kind,
        state: NotificationState::Queued.to_string(),
        session_id: None,
        session_key: None,
        turn_id: None,
        attempts: 0,
        reason: reason.map(str::to_owned),
        title: None,
        sender: None,
        message_id: None,
        cause: None,
        hops: 0,
        queue_mode: None,
        revision: 1,
        why: None,
        body: None,
        metadata: None,
        parts: Vec::new(),
        created_at: row.created_at.into(),
    }
}

/// The state of a notification for its publisher: without its text and its sender.
pub fn outcome_of(notification: Notification) -> Notification {
    Notification {
        title: None,
        sender: None,
        message_id: None,
        cause: None,
        session_key: None,
        body: None,
        metadata: None,
        ..notification
    }
}

/// The summary of a notification for several agents, by its parts. `None` when it has no parts.
pub fn of_parts(id: &str, parts: Vec<Notification>) -> Option<Notification> {
    let states: Vec<NotificationState> = parts
        .iter()
        .filter_map(|part| NotificationState::parse(&part.state))
        .collect();
    let state = state_of_parts(&states)?;
    let part = |part: &Notification| Part {
        id: part.id.clone(),
        agent: part.agent.clone(),
        state: part.state.clone(),
    };
    let list = parts.iter().map(part).collect();
    let attempts = parts.iter().map(|part| part.attempts).max().unwrap_or_default();
    let first = parts.into_iter().next()?;
    Some(Notification {
        id: id.to_owned(),
        agent: None,
        agent_id: None,
        state: state.to_string(),
        session_id: None,
        session_key: None,
        turn_id: None,
        attempts,
        reason: None,
        why: None,
        parts: list,
        ..first
    })
}

/// In progress while one part is in progress; then the worst state of any part, since that one needs attention.
fn state_of_parts(states: &[NotificationState]) -> Option<NotificationState> {
    use NotificationState::*;
    [Running, Queued, Failed, Refused, Delivered, Cancelled]
        .into_iter()
        .find(|state| states.contains(state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_agents_share_one_state() {
        use NotificationState::*;
        let check = |states: &[NotificationState], expected| assert_eq!(state_of_parts(states), expected, "{states:?}");
        check(&[], None);
        check(&[Delivered, Delivered], Some(Delivered));
        check(&[Delivered, Cancelled], Some(Delivered));
        check(&[Delivered, Failed], Some(Failed));
        check(&[Failed, Queued], Some(Queued));
        check(&[Queued, Running], Some(Running));
    }
}
