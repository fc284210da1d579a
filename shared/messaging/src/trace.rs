//! The W3C trace context between headers and spans. Uses its own propagator, independent of the process's global one.

use contracts::{
    Headers, TraceContext,
    header::{TRACEPARENT, TRACESTATE},
};
use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator},
    trace::TraceContextExt,
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The target of spans that exist for traces only, on the path of every notification. The log filters them out, so that
/// they cost nothing without tracing.
pub const TARGET: &str = "signalbox_trace";

/// The current span's trace context, to be stored with a row or sent with a message; empty outside any trace. If this
/// process records no traces, the context is the one that was attached for the incoming work.
pub fn current_trace() -> TraceContext {
    let own = Span::current().context();
    if own.span().span_context().is_valid() {
        written(&own)
    } else {
        written(&Context::current())
    }
}

/// The current span's trace context, or else the received one: a process that samples or collects nothing must not
/// break the trace of others.
pub fn current_or(received: &TraceContext) -> TraceContext {
    own_or(current_trace(), received)
}

/// The context of a span that is never entered, or else the received one. The span is not entered, since an entered
/// span is reported to end when it was last left.
pub fn of_span(span: &Span, received: &TraceContext) -> TraceContext {
    own_or(written(&span.context()), received)
}

fn own_or(own: TraceContext, received: &TraceContext) -> TraceContext {
    if own.traceparent.is_some() {
        own
    } else {
        received.clone()
    }
}

fn written(context: &Context) -> TraceContext {
    let mut headers = Headers::default();
    TraceContextPropagator::new().inject_context(context, &mut HeaderWriter(&mut headers));
    headers.trace()
}

/// Makes a span the child of the one that sent a message. `set_parent` fails only when traces are off; then there is no
/// trace to continue.
pub fn child_of(span: &Span, trace: &TraceContext) {
    let _ = span.set_parent(context_of(trace));
}

/// The parent of a span for a message. Invalid headers give an empty context: publishers may write anything.
pub fn context_of(trace: &TraceContext) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &TraceReader(trace))
}

struct HeaderWriter<'a>(&'a mut Headers);

impl Injector for HeaderWriter<'_> {
    fn set(&mut self, key: &str, value: String) {
        self.0.set(key, value);
    }
}

struct TraceReader<'a>(&'a TraceContext);

impl Extractor for TraceReader<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            TRACEPARENT => self.0.traceparent.as_deref(),
            TRACESTATE => self.0.tracestate.as_deref(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT, TRACESTATE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_trace_context_survives_the_way_through_headers() {
        let trace = TraceContext {
            traceparent: Some(PARENT.to_owned()),
            tracestate: Some("vendor=1".to_owned()),
        };
        assert_eq!(written(&context_of(&trace)), trace);
    }

    #[test]
    fn nonsense_gives_an_empty_context() {
        let check = |traceparent: &str| {
            let trace = TraceContext {
                traceparent: Some(traceparent.to_owned()),
                tracestate: None,
            };
            assert!(!context_of(&trace).span().span_context().is_valid(), "{traceparent}");
        };
        check("");
        check("00-zz-00f067aa0ba902b7-01");
        check("00-00000000000000000000000000000000-0000000000000000-01");
        check(&PARENT.repeat(20));
    }

    #[test]
    fn where_nothing_is_traced_the_context_that_came_goes_on() {
        let trace = TraceContext {
            traceparent: Some(PARENT.to_owned()),
            tracestate: None,
        };
        let attached = context_of(&trace).attach();
        assert_eq!(current_trace(), trace);
        drop(attached);
        assert_eq!(current_trace(), TraceContext::default());
    }

    #[test]
    fn outside_any_span_there_is_nothing_to_inject() {
        assert_eq!(current_trace(), TraceContext::default());
    }
}
