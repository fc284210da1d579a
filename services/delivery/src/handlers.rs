//! Consumes `session.resolved`, `session.closed` and `tool.finished`. All are wake-ups: the work is in Postgres, so the
//! handler passes the session's name on, and a lost or repeated message only costs time.
//!
//! Decides nothing: the claim reads the session under lock.
//! Writes nothing.
//! Publishes nothing.

use std::{marker::PhantomData, num::NonZeroUsize};

use contracts::{
    Root, User, addressed,
    message::Addressed,
    session::{SessionClosed, SessionResolved},
    tool::ToolFinished,
};
use messaging::{BatchHandler, Consumer, ConsumerOptions, Durable, Incoming, Verdict};
use runtime::Context;
use tokio::sync::mpsc;

use crate::{
    queue::signal::{Signal, tell},
    store::SessionName,
};

/// A message that wakes a session.
pub trait Wake: Addressed + Send + Sync + 'static {
    const SIGNAL: fn(Vec<SessionName>) -> Signal;
    fn session(self) -> SessionName;
}

impl Wake for SessionResolved {
    const SIGNAL: fn(Vec<SessionName>) -> Signal = Signal::Wake;
    fn session(self) -> SessionName {
        (self.account, self.session_id)
    }
}

/// Also wakes a turn that waits for its next attempt, so that it is ended.
impl Wake for SessionClosed {
    const SIGNAL: fn(Vec<SessionName>) -> Signal = Signal::Closed;
    fn session(self) -> SessionName {
        (self.account, self.session_id)
    }
}

/// Once the last missing result is recorded, the turn resumes on the same session key (S8).
impl Wake for ToolFinished {
    const SIGNAL: fn(Vec<SessionName>) -> Signal = Signal::Wake;
    fn session(self) -> SessionName {
        (self.account, self.session_id)
    }
}

struct WakeHandler<M> {
    root: Root,
    signals: mpsc::Sender<Signal>,
    message: PhantomData<fn() -> M>,
}

/// Starts a consumer for each wake-up.
pub fn start(context: &Context, signals: &mpsc::Sender<Signal>) {
    consume::<SessionResolved>(context, signals);
    consume::<SessionClosed>(context, signals);
    consume::<ToolFinished>(context, signals);
}

fn consume<M: Wake>(context: &Context, signals: &mpsc::Sender<Signal>) {
    let consumer = Consumer {
        bus: context.bus.clone(),
        topology: context.topology.clone(),
        durable: Durable::of(User::Delivery, M::KIND),
        options: ConsumerOptions {
            loops: NonZeroUsize::MIN,
            ..ConsumerOptions::default()
        },
        handler: WakeHandler::<M> {
            root: context.root().clone(),
            signals: signals.clone(),
            message: PhantomData,
        },
        dead_letters: Box::new(context.dead_letters()),
    };
    context
        .shutdown
        .spawn("delivery consumer", consumer.run(context.shutdown.token()));
}

impl<M: Wake> BatchHandler for WakeHandler<M> {
    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        let mut names = Vec::with_capacity(batch.len());
        let mut read =
            |incoming: &Incoming| match addressed::read::<M>(&self.root, &incoming.subject, &incoming.payload) {
                Ok(message) => {
                    names.push(message.session());
                    Verdict::Done(Vec::new())
                }
                Err(error) => Verdict::Dead {
                    reason: error.reason().to_owned(),
                    detail: error.to_string(),
                },
            };
        let verdicts = batch.iter().map(&mut read).collect();
        tell(&self.signals, M::SIGNAL(names)).await;
        verdicts
    }
}
