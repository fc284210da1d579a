//! `schemas/messages/*.json`, written from the types. Checked in, and checked to be current.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;

/// File name (without folder) and schema of every message, sorted by name.
pub fn messages() -> Vec<(&'static str, Value)> {
    vec![
        ("dead.json", schema::<crate::dead::DeadLetter>()),
        ("event.json", schema::<crate::event::EventMessage>()),
        ("live.json", schema::<crate::live::LiveText>()),
        (
            "notification.json",
            schema::<crate::notification::NotificationMessage>(),
        ),
        ("session.closed.json", schema::<crate::session::SessionClosed>()),
        ("session.resolved.json", schema::<crate::session::SessionResolved>()),
        ("tool.finished.json", schema::<crate::tool::ToolFinished>()),
        ("tool.requested.json", schema::<crate::tool::ToolRequested>()),
    ]
}

fn schema<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_message_has_a_schema_that_compiles() {
        for (name, schema) in super::messages() {
            jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
