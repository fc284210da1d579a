//! The resolver's span of a notification: a child of the publisher's trace. The row, and every message that follows,
//! carries this span's context.

use messaging::trace;
use tracing::{Span, info_span};

use crate::intake::received::Received;

/// Starts the span; it ends when dropped. Without a tracer, the publisher's own context is passed on.
pub fn begin(mut received: Received) -> (Received, Span) {
    let span = info_span!(
        target: trace::TARGET,
        "resolve",
        otel.name = "process notification",
        otel.kind = "consumer",
        messaging.system = "nats",
        messaging.operation.name = "process",
        "messaging.operation.type" = "process",
        messaging.destination.name = "notification",
        messaging.message.id = %received.id,
        account = received.account.as_ref().map(tracing::field::display),
        task = received.task.as_ref().map(tracing::field::display),
        notification_id = %received.id,
    );
    trace::child_of(&span, &received.trace);
    received.trace = trace::of_span(&span, &received.trace);
    (received, span)
}
