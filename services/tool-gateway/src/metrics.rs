//! The metrics of tool calls: number, outcome, duration.

use std::time::Duration;

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Histogram},
};

use crate::call::Record;

pub(crate) struct Metrics {
    calls: Counter<u64>,
    seconds: Histogram<f64>,
    model_calls: Counter<u64>,
    model_seconds: Histogram<f64>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let meter = global::meter("signalbox.tool_gateway");
        Metrics {
            calls: meter
                .u64_counter("signalbox.tool.calls")
                .with_description("Tool calls by tool, state, whether late and whether replayed")
                .build(),
            seconds: meter
                .f64_histogram("signalbox.tool.duration")
                .with_unit("s")
                .with_description("From receiving a call to its commit")
                .with_boundaries(vec![0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0])
                .build(),
            model_calls: meter
                .u64_counter("signalbox.model.calls")
                .with_description("Calls of external models by model and outcome")
                .build(),
            model_seconds: meter
                .f64_histogram("signalbox.model.duration")
                .with_unit("s")
                .with_description("From the start of a call of an external model to its answer")
                .with_boundaries(vec![0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0])
                .build(),
        }
    }

    /// `outcome`: `answered`, or the code that the agent is told.
    pub(crate) fn model_call(&self, model: &str, outcome: &'static str, took: Duration) {
        let model = KeyValue::new("model", model.to_owned());
        self.model_seconds
            .record(took.as_secs_f64(), std::slice::from_ref(&model));
        self.model_calls.add(1, &[model, KeyValue::new("outcome", outcome)]);
    }

    /// `tool`: the definition's name. Names that models invent share one series.
    pub(crate) fn call(&self, tool: Option<&'static str>, record: &Record, is_replay: bool, took: Duration) {
        let tool = KeyValue::new("tool", tool.unwrap_or("unknown"));
        self.seconds.record(took.as_secs_f64(), std::slice::from_ref(&tool));
        let labels = [
            tool,
            KeyValue::new("state", record.state.as_str()),
            KeyValue::new("late", record.late),
            KeyValue::new("replay", is_replay),
        ];
        self.calls.add(1, &labels);
    }
}
