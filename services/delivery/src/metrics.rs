//! Delivery's metrics. Labels are few and bounded: states and classes, never accounts or ids.

use std::{sync::LazyLock, time::Duration};

use domain::{BreakerState, Gate, ImpossibleStep, StopKind, TurnContext};
use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge, Histogram},
};
use storage::directory::Waiting;
use time::OffsetDateTime;

use crate::providers::{Driver, FailureClass, Usage};

/// Name, unit, labels and boundaries by OpenTelemetry's conventions for generative AI.
static CALL: LazyLock<Histogram<f64>> = LazyLock::new(|| {
    global::meter("delivery")
        .f64_histogram("gen_ai.client.operation.duration")
        .with_unit("s")
        .with_description("From sending a provider call to the end of its answer")
        .with_boundaries(vec![
            0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
        ])
        .build()
});

static IMPOSSIBLE_STEPS: LazyLock<Counter<u64>> = LazyLock::new(|| {
    global::meter("delivery")
        .u64_counter("signalbox.impossible_steps")
        .with_description(
            "Steps of sessions and turns that were not written because the stored state does not allow them",
        )
        .build()
});

pub fn impossible_step(step: &ImpossibleStep) {
    let labels = [
        KeyValue::new("noun", step.noun),
        KeyValue::new("state", step.state),
        KeyValue::new("step", step.step),
    ];
    IMPOSSIBLE_STEPS.add(1, &labels);
}

/// Records the duration of a provider call, under the operator's name for the provider.
pub fn called(provider: &str, driver: &Driver, failed: Option<FailureClass>, took: Duration) {
    let mut labels = vec![
        KeyValue::new("gen_ai.operation.name", "chat"),
        KeyValue::new("gen_ai.provider.name", driver.kind.as_str()),
        KeyValue::new("gen_ai.request.model", driver.model.clone()),
        KeyValue::new("provider", provider.to_owned()),
    ];
    labels.extend(failed.map(|class| KeyValue::new("error.type", class.as_str())));
    CALL.record(took.as_secs_f64(), &labels);
}

#[derive(Clone, Debug)]
pub struct Metrics {
    settled: Counter<u64>,
    failures: Counter<u64>,
    stale: Counter<u64>,
    tokens: Counter<u64>,
    history: Counter<u64>,
    replies: Counter<u64>,
    in_flight: Gauge<u64>,
    waiting: Gauge<u64>,
    taken_over: Counter<u64>,
    stopped: Counter<u64>,
    contexts: Counter<u64>,
    threads_lost: Counter<u64>,
    parked: Counter<u64>,
    breaker: Gauge<u64>,
    queue_age: Gauge<f64>,
    queue_sessions: Gauge<u64>,
    sessions_parked: Gauge<u64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let meter = global::meter("delivery");
        let counter = |name, description| meter.u64_counter(name).with_description(description).build();
        let gauge = |name, description| meter.u64_gauge(name).with_description(description).build();
        let queue_age = meter.f64_gauge("signalbox.queue.age").with_unit("s");
        Metrics {
            settled: counter("signalbox.delivery.calls", "Provider calls by outcome"),
            failures: counter("signalbox.delivery.failures", "Failed provider calls by class"),
            stale: counter(
                "signalbox.delivery.stale",
                "Outcomes discarded because the session has a newer fence",
            ),
            tokens: counter("signalbox.delivery.tokens", "Tokens as the providers count them"),
            history: counter(
                "signalbox.delivery.turns_finished",
                "Finished turns, by whether task_history was called",
            ),
            replies: counter("signalbox.replies", "Ended turns, by what was done with their reply"),
            in_flight: gauge(
                "signalbox.delivery.sessions_in_flight",
                "Sessions that this process works on; at most delivery.turns_in_flight_max",
            ),
            waiting: gauge(
                "signalbox.delivery.sessions_waiting",
                "Sessions in this process's dispatch queue; several replicas may queue the same one",
            ),
            taken_over: counter(
                "signalbox.delivery.taken_over",
                "Turns taken over from a holder whose lease had expired",
            ),
            contexts: counter(
                "signalbox.context.turns",
                "Ended turns by the source of their context, and why",
            ),
            threads_lost: counter("signalbox.threads.lost", "Threads that providers have lost"),
            stopped: counter(
                "signalbox.delivery.stopped",
                "Turns that were stopped on request, by kind and by whether the end of the call was confirmed",
            ),
            parked: counter(
                "signalbox.delivery.parked",
                "Times that a gate kept a session with queued items from starting, by gate",
            ),
            breaker: gauge(
                "signalbox.provider.breaker",
                "Breaker of a provider account, by key: 0 closed, 1 probing, 2 open; the same at every replica",
            ),
            queue_age: queue_age
                .with_description("How long the oldest accepted notification has been queued, over all accounts")
                .build(),
            queue_sessions: gauge(
                "signalbox.queue.sessions",
                "Sessions with queued notifications, over all accounts and replicas",
            ),
            sessions_parked: gauge(
                "signalbox.queue.parked",
                "Sessions with queued notifications that a gate keeps from starting, by gate, over all accounts",
            ),
        }
    }
}

impl Metrics {
    /// Records the load of this process; autoscaling uses it.
    pub fn load(&self, in_flight: usize, waiting: usize) {
        self.in_flight.record(in_flight as u64, &[]);
        self.waiting.record(waiting as u64, &[]);
    }

    pub fn taken_over(&self, turns: usize) {
        if turns > 0 {
            self.taken_over.add(turns as u64, &[]);
        }
    }

    pub fn stopped(&self, kind: StopKind, confirmed: bool) {
        let labels = [
            KeyValue::new("kind", kind.as_str()),
            KeyValue::new("confirmed", confirmed),
        ];
        self.stopped.add(1, &labels);
    }

    pub fn context(&self, context: &TurnContext) {
        let reason = context
            .reason
            .map_or_else(|| "none".to_owned(), |reason| reason.to_string());
        let labels = [
            KeyValue::new("used", context.used.as_str()),
            KeyValue::new("reason", reason),
        ];
        self.contexts.add(1, &labels);
    }

    pub fn thread_lost(&self, provider: &str) {
        self.threads_lost
            .add(1, &[KeyValue::new("provider", provider.to_owned())]);
    }

    pub fn parked(&self, gate: Gate) {
        self.parked.add(1, &[KeyValue::new("gate", gate.as_str())]);
    }

    pub fn breaker(&self, key: &str, state: BreakerState) {
        let value = match state {
            BreakerState::Closed => 0,
            BreakerState::Probing => 1,
            BreakerState::Open => 2,
        };
        self.breaker.record(value, &[KeyValue::new("key", key.to_owned())]);
    }

    /// Records the age and size of the queues.
    pub fn queue(&self, waiting: &Waiting, now: OffsetDateTime) {
        let age = waiting
            .oldest
            .map_or(0.0, |oldest| (now - oldest).as_seconds_f64().max(0.0));
        self.queue_age.record(age, &[]);
        self.queue_sessions.record(waiting.sessions as u64, &[]);
        for gate in Gate::ALL {
            let parked = waiting.parked.get(gate).copied().unwrap_or_default();
            let label = KeyValue::new("gate", gate.as_str());
            self.sessions_parked.record(parked as u64, &[label]);
        }
    }

    pub fn stale(&self) {
        self.stale.add(1, &[]);
    }

    /// Records a finished turn and its token counts.
    pub fn finished(&self, task_history_called: bool, profile_version: &str, usage: Option<Usage>) {
        let labels = [
            KeyValue::new("task_history_called", task_history_called),
            KeyValue::new("profile_version", profile_version.to_owned()),
        ];
        self.history.add(1, &labels);
        if let Some(usage) = usage {
            self.tokens
                .add(usage.input_tokens, &[KeyValue::new("direction", "input")]);
            self.tokens
                .add(usage.output_tokens, &[KeyValue::new("direction", "output")]);
        }
    }

    /// Records an ended turn. A reply is not posted if there is none, or if it is late, blank, or without a task.
    pub fn ended(&self, is_posted: bool) {
        let outcome = if is_posted { "posted" } else { "silent" };
        self.replies.add(1, &[KeyValue::new("outcome", outcome)]);
    }

    pub fn failed(&self, class: &'static str) {
        self.failures.add(1, &[KeyValue::new("class", class)]);
    }

    pub fn settled(&self, outcome: &'static str) {
        self.settled.add(1, &[KeyValue::new("outcome", outcome)]);
    }
}
