//! Events on the bus, used as hints to read the API. A hint may be lost, repeated or forged; only the API's answer counts.

use anyhow::Context;
use async_nats::{Client, Message, Subscriber};
use contracts::{
    Root,
    dead::DeadLetter,
    event::{Event, EventMessage},
};
use domain::{AccountId, NotificationId};
use futures::{StreamExt, stream::SelectAll};

#[derive(Debug)]
pub(super) enum Hint {
    /// A turn began with these notifications.
    Started(AccountId, Vec<NotificationId>),
    /// These notifications have an outcome, or will be retried.
    Ended(AccountId, Vec<NotificationId>),
    /// A message became a dead letter.
    Dead(DeadLetter),
}

/// A core NATS subscription without storage: polling finds missed events.
pub(super) struct Hints {
    messages: SelectAll<Subscriber>,
}

impl Hints {
    pub(super) async fn listen(client: &Client, root: &Root) -> anyhow::Result<Hints> {
        let mut messages = SelectAll::new();
        for subject in [format!("{root}.event.>"), format!("{root}.dead.>")] {
            let subscribed = client.subscribe(subject).await;
            messages.push(subscribed.context("cannot listen to events on NATS")?);
        }
        // From here on every event is received.
        client.flush().await.context("cannot listen to events on NATS")?;
        Ok(Hints { messages })
    }

    /// `None` when the connection is closed for good.
    pub(super) async fn next(&mut self) -> Option<Hint> {
        loop {
            let message = self.messages.next().await?;
            if let Some(hint) = read(&message) {
                return Some(hint);
            }
        }
    }
}

/// `None`: not about notifications, or unreadable.
fn read(message: &Message) -> Option<Hint> {
    if let Ok(EventMessage { account, event, .. }) = serde_json::from_slice(&message.payload) {
        let account = account?;
        return match event {
            Event::TurnStarted(turn) => Some(Hint::Started(account, turn.notifications)),
            Event::TurnFinished(turn) => Some(Hint::Ended(account, turn.notifications)),
            Event::NotificationRefused(ended)
            | Event::NotificationCancelled(ended)
            | Event::NotificationFailed(ended) => Some(Hint::Ended(account, vec![ended.id?])),
            Event::TaskCreated(_)
            | Event::TaskStatusChanged(_)
            | Event::TaskChanged(_)
            | Event::TaskUnblocked(_)
            | Event::TaskContextWritten(_)
            | Event::TaskStalled(_)
            | Event::TaskNeedsPerson(_)
            | Event::QuestionOpened(_)
            | Event::QuestionAnswered(_)
            | Event::QuestionWithdrawn(_)
            | Event::QuestionLapsed(_)
            | Event::QuestionCancelled(_)
            | Event::TimerChanged(_)
            | Event::RecoveryChanged(_)
            | Event::ToolPolicyChanged(_)
            | Event::ProviderOpened(_)
            | Event::ProviderProbing(_)
            | Event::ProviderClosed(_)
            | Event::MessagePosted(_)
            | Event::ArtifactCreated(_)
            | Event::ArtifactRemoved(_)
            | Event::SessionOpened(_)
            | Event::SessionEnded(_)
            | Event::SessionReset(_)
            | Event::BranchSpawned(_)
            | Event::BranchEnded(_)
            | Event::TurnReplayed(_)
            | Event::SessionParked(_)
            | Event::SessionReleased(_)
            | Event::HoldChanged(_)
            | Event::SessionLeaseReleased(_)
            | Event::QueueChanged(_)
            | Event::AgentRemoved(_)
            | Event::AgentChanged(_)
            | Event::AccountChanged(_)
            | Event::KeyChanged(_)
            | Event::MemberChanged(_)
            | Event::PersonaChanged(_)
            | Event::IdentityChanged(_)
            | Event::MailChanged(_)
            | Event::MemoryChanged(_)
            | Event::PreferenceChanged(_)
            | Event::ProviderSessionMismatched(_)
            | Event::ProviderThreadLost(_)
            | Event::ProviderThreadUnconfirmed(_)
            | Event::MessageDied(_) => None,
        };
    }
    serde_json::from_slice(&message.payload).ok().map(Hint::Dead)
}
