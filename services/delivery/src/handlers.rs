//! Consumes `session.resolved`, `session.closed`, `session.stop_requested` and `tool.finished`. All are wake-ups: the work is in Postgres, so the
//! handler passes the session's name on, and a lost or repeated message only costs time.
//!
//! Decides nothing: the claim reads the session under lock.
//! Writes nothing.
//! Publishes nothing.

use std::num::NonZeroUsize;

use contracts::{
    Root, User, addressed,
    message::Addressed,
    session::{SessionClosed, SessionResolved, SessionStopRequested},
    tool::ToolFinished,
};
use messaging::{BatchHandler, Consumer, ConsumerOptions, Durable, Incoming, Verdict};
use runtime::Context;
use tokio::sync::mpsc;

use crate::{
    queue::signal::{Signal, tell},
    store::SessionName,
};

/// Passes on the session that a message names.
struct WakeHandler<M> {
    root: Root,
    signals: mpsc::Sender<Signal>,
    signal: fn(Vec<SessionName>) -> Signal,
    session: fn(M) -> SessionName,
}

/// Starts a consumer for each wake-up.
pub fn start(context: &Context, signals: &mpsc::Sender<Signal>) {
    consume(context, signals, Signal::Wake, |message: SessionResolved| {
        (message.account, message.session_id)
    });
    // Also wakes a turn that waits for its next attempt, so that it is ended.
    consume(context, signals, Signal::Ending, |message: SessionClosed| {
        (message.account, message.session_id)
    });
    // A turn that waits is ended; the call of a running one is dropped where it runs, which each replica hears (`turn/stop.rs`).
    consume(context, signals, Signal::Ending, |message: SessionStopRequested| {
        (message.account, message.session_id)
    });
    // Once the last missing result is recorded, the turn resumes on the same session key (S8).
    consume(context, signals, Signal::Wake, |message: ToolFinished| {
        (message.account, message.session_id)
    });
}

fn consume<M: Addressed + 'static>(
    context: &Context,
    signals: &mpsc::Sender<Signal>,
    signal: fn(Vec<SessionName>) -> Signal,
    session: fn(M) -> SessionName,
) {
    let consumer = Consumer {
        bus: context.bus.clone(),
        topology: context.topology.clone(),
        durable: Durable::of(User::Delivery, M::KIND),
        options: ConsumerOptions {
            loops: NonZeroUsize::MIN,
            ..ConsumerOptions::default()
        },
        handler: WakeHandler {
            root: context.root().clone(),
            signals: signals.clone(),
            signal,
            session,
        },
        dead_letters: Box::new(context.dead_letters()),
    };
    context
        .shutdown
        .spawn("delivery consumer", consumer.run(context.shutdown.token()));
}

impl<M: Addressed + 'static> BatchHandler for WakeHandler<M> {
    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        let mut names = Vec::with_capacity(batch.len());
        let mut read =
            |incoming: &Incoming| match addressed::read::<M>(&self.root, &incoming.subject, &incoming.payload) {
                Ok(message) => {
                    names.push((self.session)(message));
                    Verdict::Done(Vec::new())
                }
                Err(error) => Verdict::Dead {
                    reason: error.reason().to_owned(),
                    detail: error.to_string(),
                },
            };
        let verdicts = batch.iter().map(&mut read).collect();
        tell(&self.signals, (self.signal)(names)).await;
        verdicts
    }
}
