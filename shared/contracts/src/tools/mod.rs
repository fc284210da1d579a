//! The tools that agents may call: name, text for the model, arguments, and to whom each is offered. One file a tool.
//!
//! Definitions only. Delivery offers them to the provider, the tool-gateway checks arguments against the same schemas
//! and runs the tools; its handlers have the same file names. The texts are read by models, and pinned by golden files.
//! They name no other tool: a gateway may offer tools under other names than ours.

mod no_reply;
mod response_request;
mod task_history;
mod task_message;
mod task_status;

pub use response_request::AGENTS_MAX;
pub use task_history::{
    ACTIVITY_LIMIT_DEFAULT, ACTIVITY_LIMIT_MAX, MESSAGE_LIMIT_DEFAULT, MESSAGE_LIMIT_MAX, RESULT_BYTES,
};
pub use task_status::AGENT_STATUSES;

use serde_json::{Value, json};

/// Bodies that an agent writes (a message, a request) are at most this long.
pub const BODY_BYTES_MAX: usize = 16 * 1024;

/// A tool, as a model is told of it.
#[derive(Clone, PartialEq, Debug)]
pub struct ToolDefinition {
    pub name: &'static str,
    /// Older names under which a call is taken, and which are not offered.
    pub aliases: &'static [&'static str],
    pub description: &'static str,
    /// JSON Schema (2020-12) of the arguments; always an object.
    pub parameters: Value,
    pub offered_to: Audience,
    /// In the coordinator's chat a call may name any task of the account. Everywhere else, and without this, it may name
    /// the task that its turn is about and no other.
    pub account_wide: bool,
}

/// The argument of every tool that names a task: what a call may name is held against its session before the tool runs.
pub const TASK_ARGUMENT: &str = "task_id";

/// Which turns a tool is offered in, and in which a call to it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience {
    Everyone,
    /// Turns that are about a task.
    WithTask,
    /// Turns on the account's coordinator task.
    Coordinator,
}

/// What decides which tools a turn is offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfferContext {
    /// The turn is about a task.
    pub has_task: bool,
    /// That task is the account's coordinator task.
    pub is_coordinator: bool,
}

impl Audience {
    pub fn includes(self, context: OfferContext) -> bool {
        match self {
            Self::Everyone => true,
            Self::WithTask => context.has_task,
            Self::Coordinator => context.is_coordinator,
        }
    }
}

/// Every tool there is, in the order in which models see them.
pub fn all() -> Vec<ToolDefinition> {
    vec![
        task_history::definition(),
        task_status::definition(),
        task_message::definition(),
        response_request::definition(),
        no_reply::definition(),
    ]
}

/// The tools to offer; the same context gives the same list, byte for byte.
pub fn offered(context: OfferContext) -> Vec<ToolDefinition> {
    all()
        .into_iter()
        .filter(|tool| tool.offered_to.includes(context))
        .collect()
}

/// The tool of this name or alias.
pub fn find(name: &str) -> Option<ToolDefinition> {
    all()
        .into_iter()
        .find(|tool| tool.name == name || tool.aliases.contains(&name))
}

/// The argument that names a task.
fn task_id() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 64,
        "description": "The id of the task, as given in the notification, for example PROJ-7.",
    })
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn what_models_read_is_pinned() {
        let texts: Vec<Value> = all()
            .into_iter()
            .map(|tool| {
                json!({
                    "name": tool.name,
                    "aliases": tool.aliases,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "offered_to": format!("{:?}", tool.offered_to),
                    "account_wide": tool.account_wide,
                })
            })
            .collect();
        insta::assert_json_snapshot!("tools", texts);
    }

    #[test]
    fn each_turn_is_offered_what_it_can_use() {
        let check = |has_task, is_coordinator, expected: &[&str]| {
            let context = OfferContext {
                has_task,
                is_coordinator,
            };
            let names: Vec<&str> = offered(context).iter().map(|tool| tool.name).collect();
            assert_eq!(names, expected, "{context:?}");
        };
        let with_task = [
            "task_history",
            "task_status",
            "task_message",
            "response_request",
            "no_reply",
        ];
        check(true, false, &with_task);
        check(true, true, &with_task);
        check(false, false, &["response_request", "no_reply"]);
    }

    #[test]
    fn a_tool_is_found_by_its_name_and_its_older_names() {
        assert_eq!(find("task_load").unwrap().name, "task_history");
        for tool in all() {
            assert_eq!(find(tool.name).unwrap(), tool);
        }
        assert_eq!(find("exec"), None);
        assert_eq!(find(""), None);
    }

    /// An id that is read from arguments is resolved within the caller's account, and a task held against its session.
    /// An argument that names something else has to be put under the same checks first, and then into this list.
    #[test]
    fn arguments_name_tasks_and_agents_and_nothing_else() {
        let plain = ["message_limit", "activity_limit", "status", "note", "body", "reason"];
        for tool in all() {
            for name in tool.parameters["properties"].as_object().unwrap().keys() {
                let name = name.as_str();
                assert!(
                    plain.contains(&name) || [TASK_ARGUMENT, "agents"].contains(&name),
                    "{}.{name}",
                    tool.name
                );
            }
            let names_task = tool.parameters["properties"][TASK_ARGUMENT].is_object();
            assert_eq!(tool.account_wide, names_task, "{}", tool.name);
        }
    }

    #[test]
    fn schemas_compile_and_say_no_to_what_they_do_not_know() {
        let names = all()
            .iter()
            .flat_map(|tool| tool.aliases.iter().copied().chain([tool.name]))
            .map(str::to_owned)
            .collect::<Vec<_>>();
        for (at, name) in names.iter().enumerate() {
            assert!(!names[at + 1..].contains(name), "{name} twice");
            // The narrowest form that providers ask of a function's name.
            assert!(
                name.len() <= 64 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{name}"
            );
        }
        for tool in all() {
            let schema =
                jsonschema::validator_for(&tool.parameters).unwrap_or_else(|error| panic!("{}: {error}", tool.name));
            assert!(!schema.is_valid(&json!({"surprise": 1})), "{}", tool.name);
            assert!(!schema.is_valid(&json!([])), "{}", tool.name);
            assert_eq!(tool.parameters["additionalProperties"], json!(false), "{}", tool.name);
            for (name, property) in tool.parameters["properties"].as_object().unwrap() {
                assert!(property["description"].is_string(), "{}.{name}", tool.name);
            }
            for other in all() {
                assert!(
                    !tool.description.contains(other.name),
                    "{} speaks of {}",
                    tool.name,
                    other.name
                );
            }
        }
    }
}
