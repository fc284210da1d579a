//! Parses a call's arguments: a JSON object that matches the tool's schema. Pure. An error tells the model what to
//! correct: the field, the expected value and the value found.

use std::collections::HashMap;

use contracts::storable::holds_nul;
use jsonschema::{
    ValidationError, Validator,
    error::{TypeKind, ValidationErrorKind},
};
use serde_json::{Map, Value};

use crate::call::{ToolAnswer, cut};

/// Maximum number of problems in one answer.
const PROBLEMS_MAX: usize = 5;
/// Maximum size of all problems together. Field names come from the caller, and the answer goes into its context.
const PROBLEMS_BYTES_MAX: usize = 2_048;
/// Maximum size of a found value in an error text.
const FOUND_BYTES_MAX: usize = 80;

/// A compiled schema of a tool.
pub(crate) struct Schema {
    validator: Validator,
    /// By name: whether the field is required.
    fields: HashMap<String, bool>,
    /// For example "task_id (text, required), note (text)".
    summary: String,
}

impl Schema {
    /// # Panics
    /// When the schema is invalid: schemas are constants, checked by a test of `contracts`.
    pub(crate) fn compile(parameters: &Value) -> Schema {
        let validator = jsonschema::validator_for(parameters).expect("the definitions' schemas compile");
        let required = parameters["required"].as_array();
        let (mut fields, mut summary) = (HashMap::new(), Vec::new());
        for (name, property) in parameters["properties"].as_object().into_iter().flatten() {
            let is_required = required.is_some_and(|names| names.iter().any(|one| one == name));
            let kind = property["type"].as_str().map_or("value", type_word);
            summary.push(format!(
                "{name} ({kind}{})",
                if is_required { ", required" } else { "" }
            ));
            fields.insert(name.clone(), is_required);
        }
        Schema {
            validator,
            fields,
            summary: summary.join(", "),
        }
    }

    /// Returns the parsed arguments, or the error for the agent.
    pub(crate) fn read(&self, text: &str, bytes_max: usize) -> Result<Map<String, Value>, ToolAnswer> {
        if text.len() > bytes_max {
            return Err(ToolAnswer::failed(
                "arguments_too_large",
                format!(
                    "The arguments have {} bytes; at most {bytes_max} are taken.",
                    text.len()
                ),
                "Call again with less: shorten the text or split it over several calls.",
            ));
        }
        // Some providers send nothing for "no arguments".
        let text = if text.trim().is_empty() { "{}" } else { text };
        let value = contracts::json::read(text.as_bytes())
            .map_err(|error| self.invalid(&[format!("the arguments are {error}")]))?;
        if !contracts::json::names_are_unique(text.as_bytes(), &value) {
            return Err(self.invalid(&["a field is given twice".to_owned()]));
        }
        let Value::Object(fields) = value else {
            let found = shown(&value);
            return Err(self.invalid(&[format!("the arguments must be one JSON object, found {found}")]));
        };
        let fields = Value::Object(self.tolerated(fields));
        if holds_nul(&fields) {
            return Err(self.invalid(&["a text holds the character U+0000".to_owned()]));
        }
        let problems: Vec<String> = self
            .validator
            .iter_errors(&fields)
            .take(PROBLEMS_MAX)
            .map(|error| problem(&error))
            .collect();
        match fields {
            Value::Object(fields) if problems.is_empty() => Ok(fields),
            _ => Err(self.invalid(&problems)),
        }
    }

    /// Corrects common spellings of models: camel case, and `null` for an absent field.
    fn tolerated(&self, fields: Map<String, Value>) -> Map<String, Value> {
        let (known, other): (Vec<_>, Vec<_>) = fields.into_iter().partition(|(name, _)| self.known(name).is_some());
        let mut tolerated: Map<String, Value> = known.into_iter().collect();
        for (name, value) in other {
            let snake = Some(snake_case(&name)).filter(|snake| self.known(snake).is_some());
            tolerated.entry(snake.unwrap_or(name)).or_insert(value);
        }
        tolerated.retain(|name, value| !(value.is_null() && self.known(name) == Some(false)));
        tolerated
    }

    /// The field's name, and whether it is required; none when the schema has no such field.
    fn known(&self, name: &str) -> Option<bool> {
        self.fields.get(name).copied()
    }

    fn invalid(&self, problems: &[String]) -> ToolAnswer {
        let expected = match self.summary.as_str() {
            "" => "This tool takes no arguments.".to_owned(),
            summary => format!("Expected: {summary}."),
        };
        ToolAnswer::failed(
            "invalid_arguments",
            format!(
                "The arguments were not understood: {}.",
                cut(&problems.join("; "), PROBLEMS_BYTES_MAX)
            ),
            format!("{expected} Nothing was changed; call again with corrected arguments."),
        )
    }
}

/// An error of one field that only the tool itself can check.
pub(crate) fn invalid_field(field: &str, what: &str) -> ToolAnswer {
    ToolAnswer::failed(
        "invalid_arguments",
        format!("The arguments were not understood: {field}: {what}."),
        "Nothing was changed; call again with corrected arguments.",
    )
}

fn problem(error: &ValidationError<'_>) -> String {
    let path = error.instance_path().to_string();
    // "/agents/0" as "agents.0"; the arguments themselves have no name.
    let place = match path.trim_start_matches('/').replace('/', ".") {
        place if place.is_empty() => String::new(),
        place => format!("{place}: "),
    };
    let found = shown(error.instance());
    let what = match error.kind() {
        ValidationErrorKind::Required { property } => {
            return format!("{}: missing", property.as_str().unwrap_or_default());
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            format!("there is no field {}", unexpected.join(", "))
        }
        ValidationErrorKind::Type {
            kind: TypeKind::Single(kind),
        } => format!("expected {}, found {found}", type_word(&kind.to_string())),
        ValidationErrorKind::Enum { options } => {
            let options = options.as_array().into_iter().flatten();
            let options: Vec<&str> = options.filter_map(Value::as_str).collect();
            format!("expected one of {}, found {found}", options.join(", "))
        }
        ValidationErrorKind::Minimum { limit } => format!("expected at least {limit}, found {found}"),
        ValidationErrorKind::Maximum { limit } => format!("expected at most {limit}, found {found}"),
        ValidationErrorKind::MinLength { limit: 1 } => "must not be empty".to_owned(),
        ValidationErrorKind::MinLength { limit } => format!("expected at least {limit} characters"),
        ValidationErrorKind::MaxLength { limit } => format!("longer than {limit} characters"),
        ValidationErrorKind::MinItems { limit } => format!("expected at least {limit} entries"),
        ValidationErrorKind::MaxItems { limit } => format!("more than {limit} entries"),
        // The definitions use no other keyword. For another one, the library's text is used.
        _ => error.to_string(),
    };
    format!("{place}{what}")
}

fn type_word(kind: &str) -> &str {
    match kind {
        "string" => "text",
        "integer" => "whole number",
        "array" => "list",
        other => other,
    }
}

/// A value in an error text, cut but still recognisable.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= FOUND_BYTES_MAX {
        text
    } else {
        format!("{}…", cut(&text, FOUND_BYTES_MAX))
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn schema(tool: &str) -> Schema {
        let tools = contracts::tools::all();
        let tool = tools.iter().find(|definition| definition.name == tool).unwrap();
        Schema::compile(&tool.parameters)
    }

    #[test]
    fn correct_and_misspelled_arguments_are_parsed() {
        let check = |tool: &str, text: &str, expected: Value| {
            let read = schema(tool)
                .read(text, 1024)
                .unwrap_or_else(|answer| panic!("{text}: {answer:?}"));
            assert_eq!(Value::Object(read), expected, "{text}");
        };
        check("task_history", r#"{"task_id": "T"}"#, json!({"task_id": "T"}));
        check(
            "task_history",
            r#"{"taskId": "T", "messageLimit": 5, "activityLimit": null}"#,
            json!({"task_id": "T", "message_limit": 5}),
        );
        check(
            "task_history",
            r#"{"task_id": "T", "taskId": "U"}"#,
            json!({"task_id": "T"}),
        );
        check(
            "task_history",
            r#"{"task_id": "T", "message_limit": 100000}"#,
            json!({"task_id": "T", "message_limit": 100_000}),
        );
        check("no_reply", "", json!({}));
        check("no_reply", " {} ", json!({}));
        check("no_reply", r#"{"reason": null}"#, json!({}));
        check(
            "response_request",
            r#"{"agents": ["a"], "body": "b"}"#,
            json!({"agents": ["a"], "body": "b"}),
        );
    }

    #[test]
    fn errors_name_the_correction() {
        let check = |tool: &str, text: &str, words: &[&str]| {
            let answer = schema(tool).read(text, 1024).expect_err(text);
            for word in words {
                assert!(answer.message.contains(word), "{text}: {}", answer.message);
            }
        };
        check("task_history", "{}", &["task_id: missing"]);
        check("task_history", "nonsense", &["not JSON"]);
        check("task_history", "[1]", &["one JSON object", "[1]"]);
        check(
            "task_history",
            r#"{"task_id": null}"#,
            &["task_id: expected text, found null"],
        );
        check("task_history", r#"{"task_id": ""}"#, &["task_id: must not be empty"]);
        check(
            "task_history",
            r#"{"task_id": "T", "message_limit": "5"}"#,
            &["message_limit: expected whole number, found \"5\""],
        );
        check(
            "task_history",
            r#"{"task_id": "T", "message_limit": -1}"#,
            &["message_limit: expected at least 0, found -1"],
        );
        check(
            "task_history",
            r#"{"task_id": "T", "limit": 5}"#,
            &["there is no field limit"],
        );
        check(
            "task_status",
            r#"{"task_id": "T", "status": "done", "blocked_on": {"owner": "a:\":", "owner": "b"}}"#,
            &["a field is given twice"],
        );
        check(
            "task_status",
            r#"{"task_id": "T", "status": "finished"}"#,
            &["status: expected one of assigned", "done", "found \"finished\""],
        );
        check(
            "task_status",
            r#"{"task_id": "T", "status": "archived"}"#,
            &["status: expected one of"],
        );
        check(
            "response_request",
            r#"{"agents": [], "body": "b"}"#,
            &["agents: expected at least 1"],
        );
        check(
            "response_request",
            r#"{"agents": ["a", 7], "body": "b"}"#,
            &["agents.1: expected text, found 7"],
        );
        check(
            "response_request",
            r#"{"agents": ["a","a","a","a","a","a","a","a","a","a","a"], "body": "b"}"#,
            &["agents: more than 10"],
        );
        check(
            "task_message",
            "{\"task_id\": \"T\", \"body\": \"a\\u0000b\"}",
            &["U+0000"],
        );
        check(
            "task_message",
            &format!(r#"{{"task_id": "T", "body": "{}"}}"#, "x".repeat(2000)),
            &["2028 bytes", "1024"],
        );
        check(
            "task_message",
            &format!("{}1{}", "[".repeat(400), "]".repeat(400)),
            &["nested deeper than 64"],
        );
        let long = format!(r#"{{"task_id": "T", "{}": 1}}"#, "x".repeat(900_000));
        let answer = schema("task_history").read(&long, 1 << 20).unwrap_err();
        assert!(answer.message.contains("there is no field xxx") && answer.message.len() < 3_000);
        let answer = schema("task_status").read("{}", 1024).unwrap_err();
        assert!(
            answer.message.contains("task_id: missing; status: missing"),
            "{}",
            answer.message
        );
        assert!(
            answer.hint.starts_with(
                "Expected: blocked_on (object), note (text), status (text, required), task_id (text, required)."
            ),
            "{}",
            answer.hint
        );
    }

    proptest! {
        #[test]
        fn never_panics(text in ".{0,200}") {
            let _ = schema("response_request").read(&text, 150);
        }
    }
}
