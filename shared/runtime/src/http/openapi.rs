//! The OpenAPI 3.1 document of a service, generated from its routes. Each route's [`Operation`] declares its
//! parameters, bodies and refusals; the schemas are those by which bodies are read and written.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::Route;

/// The schemas that requests and responses share.
const DEFINITIONS: &str = "#/components/schemas";

/// The description of a refusal by its status. The problem's `code` is more specific.
const REFUSALS: [(u16, &str); 15] = [
    (400, "The request is invalid; `detail` names the field"),
    (401, "It has no valid key"),
    (403, "The key may not do this, or not on behalf of this actor"),
    (404, "Not there, or not yours"),
    (408, "Its body came too slowly"),
    (409, "It conflicts with the current state; `code` says why"),
    (410, "Its session is over"),
    (
        412,
        "It was made for another version than the newest; `detail` names it",
    ),
    (413, "It is too large"),
    (415, "Its body is of no type that is taken"),
    (422, "The request is valid and cannot be carried out"),
    (424, "Somebody outside, whom it asks, gave no good answer in time"),
    (429, "Too many requests; `Retry-After` says when to retry"),
    (500, "A server error; the log has its cause under the id of `instance`"),
    (503, "Unavailable; `Retry-After` says when to retry"),
];

/// The schemas for reading and for writing: optional fields differ.
struct Schemas {
    read: SchemaGenerator,
    written: SchemaGenerator,
}

/// A route under description.
pub struct Operation<'a> {
    schemas: &'a mut Schemas,
    path: &'static str,
    parameters: Vec<Value>,
    body: Option<Value>,
    answers: Map<String, Value>,
    refusals: BTreeSet<u16>,
}

impl Operation<'_> {
    /// The type of the path's last parameter.
    pub fn names<T: JsonSchema>(&mut self) {
        let name = parameters_of(self.path).last().expect("the path names something");
        self.path_parameter::<T>(name);
    }

    /// The type of the path's last parameter but one.
    pub fn names_outer<T: JsonSchema>(&mut self) {
        let names: Vec<&str> = parameters_of(self.path).collect();
        let [.., outer, _] = names[..] else {
            panic!("{} names one thing within another", self.path);
        };
        self.path_parameter::<T>(outer);
    }

    /// Describes a parameter of the path, if the path has it.
    pub fn path_parameter<T: JsonSchema>(&mut self, name: &str) {
        if parameters_of(self.path).any(|parameter| parameter == name) {
            let schema = self.schemas.read.subschema_for::<T>();
            self.parameters
                .push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
        }
    }

    /// Each field of `T` is a parameter of the query. A parameter without a value counts as absent.
    pub fn query<T: JsonSchema>(&mut self) {
        let fields = T::json_schema(&mut self.schemas.read);
        let required = fields
            .get("required")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        for (name, schema) in fields
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let schema = without_null(schema);
            let is_required = required.contains(&json!(name));
            self.parameters.push(
                json!({"name": name, "in": "query", "required": is_required, "allowEmptyValue": !is_required, "schema": schema}),
            );
        }
    }

    pub fn header(&mut self, name: &str, about: &str, schema: &Value) {
        self.parameters
            .push(json!({"name": name, "in": "header", "required": false, "description": about, "schema": schema}));
    }

    /// A JSON body. `may_be_empty`: a body without required fields may be omitted.
    pub fn body<T: JsonSchema>(&mut self, may_be_empty: bool) {
        let schema = self.schemas.read.subschema_for::<T>();
        let has_required = T::json_schema(&mut self.schemas.read).get("required").is_some();
        self.body_of(schema.to_value(), has_required || !may_be_empty);
    }

    pub fn body_of(&mut self, schema: Value, is_required: bool) {
        let content = json!({"application/json": {"schema": schema}});
        self.body = Some(json!({"required": is_required, "content": content}));
    }

    /// A body of any bytes.
    pub fn body_of_bytes(&mut self) {
        self.body = Some(json!({"required": true, "content": {"application/octet-stream": {}}}));
    }

    /// A response of any bytes, of these types.
    pub fn answers_bytes(&mut self, types: impl IntoIterator<Item = impl Into<String>>, about: &str) {
        let content: Map<String, Value> = types.into_iter().map(|one| (one.into(), json!({}))).collect();
        self.answers
            .insert("200".to_owned(), json!({"description": about, "content": content}));
    }

    /// The response of a successful request.
    pub fn answers<T: JsonSchema>(&mut self, status: StatusCode, about: &str) {
        let schema = self.schemas.written.subschema_for::<T>();
        let content = json!({"application/json": {"schema": schema}});
        self.answers.insert(
            status.as_str().to_owned(),
            json!({"description": about, "content": content}),
        );
    }

    /// A response that is also given as text, to those who ask for it.
    pub fn answers_text(&mut self, status: StatusCode) {
        let answer = self
            .answers
            .entry(status.as_str())
            .or_insert_with(|| json!({"description": "OK"}));
        answer["content"]["text/plain"] = json!({"schema": {"type": "string"}});
    }

    pub fn answers_nothing(&mut self) {
        self.answers.insert("204".to_owned(), json!({"description": "Done"}));
    }

    /// The statuses of problems that the route may return.
    ///
    /// # Panics
    /// If a status is missing in [`REFUSALS`].
    pub fn refuses(&mut self, statuses: &[u16]) {
        for status in statuses {
            assert!(REFUSALS.iter().any(|(known, _)| known == status), "{status}");
            self.refusals.insert(*status);
        }
    }
}

fn parameters_of(path: &str) -> impl Iterator<Item = &str> {
    path.split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// The schema of an `Option` as that of its value.
fn without_null(schema: &Value) -> Map<String, Value> {
    let mut fields = schema.as_object().cloned().unwrap_or_default();
    if let Some(Value::Array(kinds)) = fields.get("type") {
        let kind = kinds.iter().find(|kind| **kind != "null").cloned();
        fields.insert("type".to_owned(), kind.unwrap_or_default());
    }
    if let Some(Value::Array(mut choices)) = fields.remove("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
        match &choices[..] {
            [Value::Object(one)] => fields.extend(one.clone()),
            _ => drop(fields.insert("anyOf".to_owned(), choices.into())),
        }
    }
    fields
}

/// The whole document. `head` has the parts that belong to no route (`info`, `tags`, `servers`, `security`, security
/// schemes). `always`: the statuses with which every route may refuse.
///
/// # Panics
/// If one name stands for two schemas: the document would be wrong about one of them.
pub fn document<'r, S: 'r>(mut head: Value, always: &[u16], routes: impl IntoIterator<Item = &'r Route<S>>) -> Value {
    let settings = || {
        SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = DEFINITIONS.trim_start_matches('#').into();
        })
    };
    let mut schemas = Schemas {
        read: settings().for_deserialize().into_generator(),
        written: settings().for_serialize().into_generator(),
    };
    let problem = schemas.written.subschema_for::<api::Problem>();
    let (mut paths, mut refusals) = (Map::new(), BTreeSet::new());
    for route in routes {
        let mut operation = Operation {
            schemas: &mut schemas,
            path: route.path,
            parameters: Vec::new(),
            body: None,
            answers: Map::new(),
            refusals: always.iter().copied().collect(),
        };
        (route.describe)(&mut operation);
        refusals.extend(operation.refusals.iter().copied());
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_ascii_lowercase()] = written(route, operation);
    }
    head["openapi"] = json!("3.1.0");
    head["paths"] = paths.into();
    for (status, about) in REFUSALS.iter().filter(|(status, _)| refusals.contains(status)) {
        let content = json!({"application/problem+json": {"schema": problem}});
        head["components"]["responses"][status.to_string()] = json!({"description": about, "content": content});
    }
    let mut all = schemas.read.take_definitions(true);
    for (name, schema) in schemas.written.take_definitions(true) {
        let known = all.entry(&name).or_insert_with(|| schema.clone());
        assert_eq!(*known, schema, "{name} is read and written differently");
    }
    head["components"]["schemas"] = all.into();
    head
}

fn written<S>(route: &Route<S>, operation: Operation<'_>) -> Value {
    let (noun, verb) = route.name;
    let about = route.about.trim();
    let mut ends = about.match_indices('.').map(|(at, _)| at + 1);
    let end = ends.find(|end| about[*end..].starts_with([' ', '\n']));
    let (summary, description) = about.split_at(end.unwrap_or(about.len()));
    let description = description.trim();
    let mut responses = operation.answers;
    for status in operation.refusals {
        let reference = format!("#/components/responses/{status}");
        responses.insert(status.to_string(), json!({"$ref": reference}));
    }
    let mut operation = json!({
        "operationId": format!("{}_{verb}", noun.replace(' ', "_")),
        "tags": [noun],
        "summary": summary,
        "parameters": operation.parameters,
        "requestBody": operation.body,
        "responses": responses,
    });
    if !description.is_empty() {
        operation["description"] = description.into();
    }
    if operation["requestBody"].is_null() {
        operation.as_object_mut().expect("made above").remove("requestBody");
    }
    operation
}
