//! Calls of every tool, generated from its definition, so that tests of all tools include a new one.

use contracts::tools::{self, IdOf, ToolDefinition, submit_plan};
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// Every tool; those that may end the session come last, and then the plan, since later calls are refused.
pub fn in_order() -> Vec<ToolDefinition> {
    let mut tools = tools::all().to_vec();
    tools.sort_by_key(|tool| (tool.moves_task, tool.name == submit_plan::NAME));
    tools
}

/// Of arguments of which one is needed, one.
const CHOSEN: [&str; 2] = ["after_minutes", "result"];

/// Valid arguments of the tool: the required ones, and `also` these. `id` is used for ids; `word` is used if it is one
/// of the allowed words.
pub fn arguments(
    tool: &ToolDefinition,
    also: impl Fn(&str) -> bool,
    id: impl Fn(&str, IdOf) -> String,
    word: &str,
) -> Value {
    let schema = &tool.parameters;
    let is_required = |argument: &str| {
        let mut required = schema["required"].as_array().into_iter().flatten();
        required.any(|name| name == argument)
    };
    let properties = schema["properties"]
        .as_object()
        .expect("arguments are an object's fields");
    let arguments: Map<String, Value> = properties
        .iter()
        .filter(|(argument, _)| is_required(argument) || CHOSEN.contains(&argument.as_str()) || also(argument))
        .map(|(argument, schema)| {
            let named = |field: &str| tool.id_of(field).map(|of| id(field, of));
            (argument.clone(), value(schema, argument, &named, word))
        })
        .collect();
    Value::Object(arguments)
}

/// An id to name: this task, this agent, the person `ann`; of everything else, one that nothing has.
pub fn named(of: IdOf, task: &str, agent: &str) -> String {
    match of {
        IdOf::Task | IdOf::OnBoard => task.to_owned(),
        IdOf::Agent => agent.to_owned(),
        IdOf::Recipient => "@user:ann".to_owned(),
        IdOf::Question | IdOf::Branch | IdOf::Artifact | IdOf::Session | IdOf::Persona | IdOf::Mail => {
            Uuid::nil().to_string()
        }
    }
}

fn value(schema: &Value, of: &str, named: &impl Fn(&str) -> Option<String>, word: &str) -> Value {
    if let Some(words) = schema["enum"].as_array() {
        let said = words.iter().find(|one| *one == word);
        return said.unwrap_or(&words[0]).clone();
    }
    match schema["type"].as_str() {
        Some("array") => {
            let items = schema["minItems"].as_u64().unwrap_or(1).max(1);
            (0..items).map(|_| value(&schema["items"], of, named, word)).collect()
        }
        Some("integer") => json!(schema["minimum"].as_i64().unwrap_or(1).max(1)),
        Some("boolean") => json!(true),
        Some("object") => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            fields
                .map(|(field, schema)| (field.clone(), value(schema, &format!("{of}.{field}"), named, word)))
                .collect()
        }
        _ => json!(named(of).unwrap_or_else(|| "b".to_owned())),
    }
}
