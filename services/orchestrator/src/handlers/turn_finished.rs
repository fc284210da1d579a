//! Posts the reply of a turn that a delivery of the previous version ended into its task's thread. The next version has no
//! such consumer.
//!
//! Consumes `turn.finished` events. One without a receipt is of this version's delivery, which has posted the reply.
//! Decides which replies are posted: the reply of a finished turn on a task, unless it was late or `no_reply`, or is empty.
//! Writes one message a turn, whose id follows from the turn; and the receipts that delete the events' outbox
//! rows.
//! Publishes `message.posted`.
//!
//! The event only names the turn. Reply and state are read from the turn's row, so that neither a truncated nor a forged event
//! enters a thread. Messages of agents wake no agent.

use std::{collections::HashMap, time::Duration};

use contracts::{
    Headers, Root, TraceContext, addressed,
    event::{Event, EventMessage},
    header,
    outgoing::Origin,
};
use domain::{AccountId, Actor, ActorKind, TaskId, TurnId, TurnState, error_chain};
use messaging::{BatchHandler, Durable, Incoming, User, Verdict, trace};
use storage::{
    Accounts, Database, Parts, Setting, StorageError,
    lifecycle::{Reply, replies_post},
    outbox::{
        Owned,
        unread::{Receipt, outbox_receive},
    },
    session::TurnName,
};
use time::OffsetDateTime;
use tracing::{Span, info_span};

use super::ended_turns::{EndedTurn, ended_turns};
use crate::{SOURCE, app::App};

#[derive(Debug)]
pub struct TurnFinishedHandler {
    app: App,
    database: Database,
    retry_after: Duration,
}

impl TurnFinishedHandler {
    pub fn new(app: App) -> TurnFinishedHandler {
        let retry_after = app.settings.replies_retry_ms.duration();
        TurnFinishedHandler {
            database: app.database.for_batches(),
            app,
            retry_after,
        }
    }
}

impl BatchHandler for TurnFinishedHandler {
    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        let read: Vec<Result<TurnName, Verdict>> = batch
            .iter()
            .map(|incoming| match is_of_previous(&incoming.headers) {
                true => read(&self.app.root, incoming),
                false => Err(Verdict::Done(Vec::new())),
            })
            .collect();
        let named = || {
            let pairs = batch.iter().zip(&read);
            pairs.filter_map(|(incoming, place)| Some((incoming, place.as_ref().ok()?)))
        };
        let mut places: Vec<TurnName> = named().map(|(_, place)| place.clone()).collect();
        // The spans last until the replies are posted or skipped.
        let _spans: Vec<Span> = named().map(|(incoming, place)| span(incoming, place)).collect();
        // An event may be delivered twice in one batch.
        places.sort_unstable();
        places.dedup();
        let receipts: Vec<(TurnName, Receipt)> = named()
            .flat_map(|(incoming, place)| {
                let receipts = Receipt::of(Some(&place.0), &incoming.headers);
                receipts.into_iter().map(|receipt| (place.clone(), receipt))
            })
            .collect();
        let mut verdicts = self.post_in_parts(&places, &receipts).await;
        read.into_iter()
            .map(|place| match place {
                Ok(place) => match verdicts.get_mut(&place) {
                    // Of an event that is twice in the batch, the first takes the messages.
                    Some(Verdict::Done(messages)) => Verdict::Done(std::mem::take(messages)),
                    Some(later) => later.clone(),
                    None => unreachable!("every place has a verdict"),
                },
                Err(verdict) => verdict,
            })
            .collect()
    }
}

/// Whether the event's sender leaves the reply to this consumer. A redriven event has lost its receipt.
fn is_of_previous(headers: &Headers) -> bool {
    [header::RECEIPT, header::REDRIVE]
        .iter()
        .any(|name| headers.get(name).is_some())
}

/// The turn that a message names, or the verdict on a message that names none.
fn read(root: &Root, incoming: &Incoming) -> Result<TurnName, Verdict> {
    match addressed::read::<EventMessage>(root, &incoming.subject, &incoming.payload) {
        Ok(EventMessage {
            account: Some(account),
            event: Event::TurnFinished(finished),
            ..
        }) => Ok((account, finished.turn_id)),
        // Another event on this subject.
        Ok(_) => Err(Verdict::Dead {
            reason: "malformed".to_owned(),
            detail: "the event is not a turn.finished".to_owned(),
        }),
        Err(error) => Err(Verdict::Dead {
            reason: error.reason().to_owned(),
            detail: error.to_string(),
        }),
    }
}

/// The orchestrator's span of a turn's trace.
fn span(incoming: &Incoming, (account, turn): &TurnName) -> Span {
    let span = info_span!(
        target: trace::TARGET,
        "reply",
        otel.name = "process turn.finished",
        otel.kind = "consumer",
        messaging.system = "nats",
        messaging.operation.name = "process",
        "messaging.operation.type" = "process",
        messaging.destination.name = "event.turn.finished",
        messaging.consumer.group.name = Durable::of(User::Orchestrator, "turn.finished").name(),
        messaging.message.id = incoming.id(),
        %account,
        turn_id = %turn,
    );
    trace::child_of(&span, &incoming.headers.trace());
    span
}

impl TurnFinishedHandler {
    /// Posts the replies in one transaction, or in halves if the batch fails. Gives a verdict for each turn.
    async fn post_in_parts(&self, places: &[TurnName], receipts: &[(TurnName, Receipt)]) -> HashMap<TurnName, Verdict> {
        let mut verdicts = HashMap::new();
        let mut parts = Parts::of(places);
        while let Some(part) = parts.next() {
            let of_part = receipts.iter().filter(|(place, _)| part.binary_search(place).is_ok());
            let of_part = of_part.map(|(_, receipt)| receipt.clone()).collect();
            let hurried = parts.hurries(part).then(|| self.database.hurried());
            match self
                .post(hurried.as_ref().unwrap_or(&self.database), part, of_part)
                .await
            {
                Ok(mut events) => verdicts.extend(part.iter().map(|place| {
                    let event = events.remove(place);
                    (place.clone(), Verdict::Done(event.into_iter().collect()))
                })),
                Err(error) if error.blames_batch() && parts.halve(part) => {
                    let error = error_chain(&error);
                    tracing::warn!(
                        turns = part.len(),
                        error,
                        "could not post a batch of replies; retrying in halves"
                    );
                }
                Err(error) => {
                    // A turn that is too large for a statement of its own stays too large.
                    let waits = error.is_retryable() && !error.is_too_much();
                    let why = error_chain(&error);
                    verdicts.extend(part.iter().map(|place| (place.clone(), self.later(waits, why.clone()))));
                }
            }
        }
        verdicts
    }

    /// Posts the replies of these turns in one transaction; gives the event of each.
    async fn post(
        &self,
        database: &Database,
        places: &[TurnName],
        receipts: Vec<Receipt>,
    ) -> Result<HashMap<TurnName, contracts::Outgoing>, StorageError> {
        // Receipts of redriven messages may lie under the operator.
        let accounts = Accounts::many(places.iter().map(|(account, _)| account)).with_operator();
        let accounts = accounts.with_everybody();
        let tx = database.begin(&accounts).await?;
        let turns = ended_turns(&tx, places).await?;
        let drafts: Vec<ReplyDraft> = turns.iter().filter_map(|turn| saying(turn, &self.app)).collect();
        let replies: Vec<Reply<'_>> = drafts.iter().map(ReplyDraft::reply).collect();
        let events = replies_post(&tx, &replies).await?;
        outbox_receive(&tx, receipts).await?;
        tx.commit().await?;
        let meters = &self.app.meters;
        meters.replies("posted", drafts.len());
        meters.replies("silent", turns.len() - drafts.len());
        meters.replies("unknown_turn", places.len() - turns.len());
        let places = drafts.iter().map(|draft| (draft.account.clone(), draft.turn));
        Ok(places
            .zip(events)
            .map(|(place, (_, outgoing)): (TurnName, Owned)| (place, outgoing))
            .collect())
    }

    /// A retryable failure does not count as an attempt.
    fn later(&self, waits: bool, why: String) -> Verdict {
        let after = self.retry_after;
        if waits {
            Verdict::Postpone { after, why }
        } else {
            Verdict::Retry { after, why }
        }
    }
}

/// A reply that will be posted.
struct ReplyDraft<'a> {
    account: AccountId,
    task: TaskId,
    turn: TurnId,
    author: Actor,
    body: &'a str,
    setting: Setting<'a>,
}

/// `None`: there is nothing to post. The moment is the turn's end, so that the event is the same every time.
fn saying<'a>(turn: &'a EndedTurn, app: &'a App) -> Option<ReplyDraft<'a>> {
    let counts = turn.state == TurnState::Finished && !turn.late && !turn.no_reply;
    let body = turn
        .reply
        .as_deref()
        .filter(|reply| counts && !reply.trim().is_empty())?;
    let now: OffsetDateTime = turn.finished_at?;
    Some(ReplyDraft {
        account: turn.account.clone(),
        task: turn.task.clone()?,
        turn: turn.id,
        author: Actor {
            kind: ActorKind::Agent,
            id: turn.agent.to_string(),
            name: turn.agent_name.clone(),
            via: None,
        },
        body,
        setting: Setting {
            root: &app.root,
            source: SOURCE,
            origin: Origin {
                cause: Some(turn.id.to_string()),
                hops: u16::try_from(turn.hops).unwrap_or(u16::MAX),
                trace: TraceContext {
                    traceparent: turn.traceparent.clone(),
                    tracestate: turn.tracestate.clone(),
                },
            },
            now,
        },
    })
}

impl ReplyDraft<'_> {
    fn reply(&self) -> Reply<'_> {
        Reply {
            account: &self.account,
            task: &self.task,
            turn: self.turn,
            author: &self.author,
            body: self.body,
            setting: self.setting.clone(),
        }
    }
}
