//! Parses a request as leniently as a gateway may: fields that the script does not use are ignored.

use serde_json::{Value, json};

/// The fields of a request that the script uses.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) model: String,
    pub(super) instructions: Option<String>,
    pub(super) user: Option<String>,
    pub(super) items: Vec<Item>,
    pub(super) tools: Vec<Tool>,
    pub(super) is_streamed: bool,
}

/// An entry of `input`, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    User(String),
    Result {
        call_id: String,
        output: String,
    },
    /// What the agent itself said or called.
    Own,
}

/// An offered function, under its name in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tool {
    pub(super) name: String,
    /// `None` if the schema names no properties, so that any are accepted.
    pub(super) properties: Option<Vec<String>>,
    /// The response repeats it, with every field present.
    pub(super) definition: Value,
}

impl Request {
    /// The error is for the caller to read.
    pub(super) fn read(body: &[u8]) -> Result<Request, String> {
        let body: Value = serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))?;
        let text = |name: &str| body[name].as_str().map(str::to_owned);
        let items = match &body["input"] {
            Value::String(text) => vec![Item::User(text.clone())],
            Value::Array(items) => items.iter().filter_map(Item::read).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
        };
        if items.is_empty() {
            return Err("input: expected a text or a list with a message or a function_call_output".to_owned());
        }
        let offers_tools = body["tool_choice"] != "none";
        let tools = body["tools"].as_array().filter(|_| offers_tools).into_iter().flatten();
        Ok(Request {
            model: text("model").unwrap_or_else(|| "demo".to_owned()),
            instructions: text("instructions"),
            user: text("user").filter(|user| !user.is_empty()),
            items,
            tools: tools.filter_map(Tool::read).collect(),
            is_streamed: body["stream"] == true,
        })
    }
}

impl Item {
    fn read(item: &Value) -> Option<Item> {
        let text = |name: &str| item[name].as_str().map(str::to_owned);
        match item["type"].as_str().unwrap_or("message") {
            "message" => match item["role"].as_str()? {
                "user" => Some(Item::User(content_text(&item["content"]))),
                "assistant" => Some(Item::Own),
                _ => None, // system and developer messages are instructions
            },
            "function_call" => Some(Item::Own),
            "function_call_output" => Some(Item::Result {
                call_id: text("call_id")?,
                output: content_text(&item["output"]),
            }),
            _ => None,
        }
    }
}

/// A text, or a list of parts of which some have a text.
fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

impl Tool {
    fn read(tool: &Value) -> Option<Tool> {
        if tool["type"] != "function" {
            return None;
        }
        let properties = tool["parameters"]["properties"].as_object();
        let properties = properties.map(|properties| properties.keys().cloned().collect());
        let mut definition = json!({"type": "function", "description": null, "parameters": null, "strict": null});
        for (name, value) in tool.as_object()? {
            definition[name] = value.clone();
        }
        Some(Tool {
            name: tool["name"].as_str()?.to_owned(),
            properties,
            definition,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<Request, String> {
        Request::read(body.to_string().as_bytes())
    }

    #[test]
    fn reads_texts_and_items() {
        let request = read(&json!({"input": "hello"})).unwrap();
        assert_eq!(request.items, [Item::User("hello".to_owned())]);
        let request = read(&json!({"stream": true, "user": "k", "input": [
            {"type": "message", "role": "system", "content": "rules"},
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}, {"type": "input_image"}]},
            {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
            {"type": "reasoning", "summary": []},
        ]}))
        .unwrap();
        let [user, call, result] = request.items.try_into().unwrap();
        assert_eq!(user, Item::User("hello".to_owned()));
        assert_eq!(call, Item::Own);
        assert_eq!(
            result,
            Item::Result {
                call_id: "c".to_owned(),
                output: "42".to_owned()
            }
        );
        assert!(request.is_streamed);
        assert_eq!(request.user.as_deref(), Some("k"));
    }

    #[test]
    fn reads_the_functions_on_offer() {
        let tools = json!([
            {"type": "function", "name": "a", "parameters": {"type": "object", "properties": {"x": {}}}},
            {"type": "function", "name": "b"},
            {"type": "web_search"},
        ]);
        let request = read(&json!({"input": "x", "tools": tools})).unwrap();
        let seen: Vec<_> = request
            .tools
            .iter()
            .map(|tool| (tool.name.as_str(), tool.properties.clone()))
            .collect();
        assert_eq!(seen, [("a", Some(vec!["x".to_owned()])), ("b", None)]);
        let request = read(&json!({"input": "x", "tools": tools, "tool_choice": "none"})).unwrap();
        assert_eq!(request.tools, []);
    }

    #[test]
    fn refuses_a_blank_text() {
        for body in [
            json!({}),
            json!({"input": []}),
            json!({"input": 4}),
            json!({"input": [{"type": "reasoning"}]}),
        ] {
            assert!(read(&body).unwrap_err().starts_with("input:"), "{body}");
        }
        assert!(Request::read(b"{").unwrap_err().starts_with("the body is not JSON"));
    }
}
