//! `schemas/openapi.json`: the orchestrator's API and the tool-gateway's, in one document.

use anyhow::bail;
use orchestrator::OrchestratorSettings;
use runtime::http::local_url;
use serde_json::{Map, Value, json};
use tool_gateway::ToolGatewaySettings;

pub(super) fn document() -> anyhow::Result<Value> {
    let (api, agent) = (OrchestratorSettings::default(), ToolGatewaySettings::default());
    let parts = [
        ("orchestrator", local_url(api.listen), orchestrator::openapi(None)),
        ("tool-gateway", local_url(agent.listen), tool_gateway::openapi()),
    ];
    let mut merged = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Signalbox",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "`/api/*` is the orchestrator's, `/agent/*` the tool-gateway's, each on its own address.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {},
        "components": {},
    });
    for (service, url, mut part) in parts {
        stand_alone(&mut part, &url);
        merge(&mut merged, service, &part)?;
    }
    Ok(merged)
}

/// Adds a service's paths and components. Two different components with one name are refused.
fn merge(into: &mut Value, service: &str, part: &Value) -> anyhow::Result<()> {
    if let Some(paths) = part["paths"].as_object() {
        add(object(&mut into["paths"]), paths, service)?;
    }
    for (kind, named) in part["components"].as_object().into_iter().flatten() {
        let Some(named) = named.as_object() else { continue };
        let all = object(&mut into["components"]);
        add(
            object(all.entry(kind.clone()).or_insert_with(|| json!({}))),
            named,
            service,
        )?;
    }
    for tag in part["tags"].as_array().into_iter().flatten() {
        match &mut into["tags"] {
            Value::Array(tags) if tags.contains(tag) => {}
            Value::Array(tags) => tags.push(tag.clone()),
            other => *other = json!([tag]),
        }
    }
    Ok(())
}

/// Adds default server and authentication to each path, since the services differ in both.
fn stand_alone(part: &mut Value, url: &str) {
    let security = part["security"].clone();
    for path in object(&mut part["paths"]).values_mut().filter_map(Value::as_object_mut) {
        let operations = path.values_mut().filter_map(Value::as_object_mut);
        for operation in operations.filter(|fields| fields.contains_key("responses") && !security.is_null()) {
            operation.entry("security").or_insert_with(|| security.clone());
        }
        path.insert("servers".to_owned(), json!([{"url": url}]));
    }
}

fn object(value: &mut Value) -> &mut Map<String, Value> {
    value
        .as_object_mut()
        .expect("an OpenAPI document is made of objects here")
}

fn add(all: &mut Map<String, Value>, more: &Map<String, Value>, service: &str) -> anyhow::Result<()> {
    for (name, value) in more {
        match all.get(name) {
            Some(known) if known != value => bail!("{name} of {service} differs between two services"),
            Some(_) => {}
            None => {
                all.insert(name.clone(), value.clone());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_services_share_what_is_the_same_and_nothing_else() {
        let mut all = json!({"paths": {}, "components": {}});
        let problem = json!({"type": "object"});
        let one =
            json!({"paths": {"/api/a": {}}, "components": {"schemas": {"Problem": problem}}, "tags": [{"name": "a"}]});
        let other = json!({"paths": {"/agent/b": {}}, "components": {"schemas": {"Problem": problem, "Tool": {}}}});
        merge(&mut all, "one", &one).unwrap();
        merge(&mut all, "other", &other).unwrap();
        assert_eq!(
            all,
            json!({"paths": {"/agent/b": {}, "/api/a": {}}, "tags": [{"name": "a"}],
                "components": {"schemas": {"Problem": problem, "Tool": {}}}})
        );
        let third = json!({"paths": {}, "components": {"schemas": {"Tool": {"type": "string"}}}});
        let refused = merge(&mut all, "third", &third).unwrap_err();
        assert_eq!(refused.to_string(), "Tool of third differs between two services");
    }
    #[test]
    fn a_path_says_where_it_is_served_and_how_to_come_in() {
        let mut part = json!({"paths": {"/a": {"get": {"responses": {}}, "put": {"responses": {}, "security": []}}},
            "security": [{"key": []}]});
        stand_alone(&mut part, "http://127.0.0.1:8080");
        let expected = json!({"get": {"responses": {}, "security": [{"key": []}]}, "put": {"responses": {}, "security": []},
            "servers": [{"url": "http://127.0.0.1:8080"}]});
        assert_eq!(part["paths"]["/a"], expected);
    }
}
