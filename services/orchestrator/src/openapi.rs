//! The OpenAPI 3.1 document. Each route describes itself where it is; what holds for all of them is added here, so that
//! it can neither be forgotten nor differ: path parameters, `Idempotency-Key`, problems, who may call.

use utoipa::{
    OpenApi, ToSchema,
    openapi::{
        Content, HttpMethod, Ref, RefOr, Required, Response, ResponseBuilder,
        path::{Operation, ParameterBuilder, ParameterIn},
        schema::{ObjectBuilder, Type},
        security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
    },
};

use crate::auth::permission::{Need, permits};

/// RFC 9457. Programs read `code`.
#[derive(Debug, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemShape {
    /// `urn:signalbox:problem:{code}`
    pub r#type: String,
    pub title: String,
    pub status: u16,
    pub code: String,
    pub detail: Option<String>,
    /// `urn:signalbox:request:{id}`: the same id stands in the log.
    pub instance: Option<String>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Signalbox",
        description = "Accounts, agents, tasks, threads, and what happened. JSON throughout; errors are problems (RFC \
                       9457); lists take `limit` and `cursor`. What is not yours and what is not there are the same 404. \
                       Unknown fields, in bodies and queries alike, are refused."
    ),
    components(schemas(ProblemShape)),
    tags(
        (name = "accounts", description = "Tenants and their choices"),
        (name = "keys", description = "Who may come in"),
        (name = "agents", description = "Named workers of an account"),
        (name = "tasks", description = "Units of work that people and agents share"),
        (name = "messages", description = "A task's thread"),
        (name = "activities", description = "What happened to a task"),
        (name = "notifications", description = "Reasons for an agent to act, and what became of them"),
        (name = "sessions", description = "One agent's continuous work, in generations"),
        (name = "turns", description = "One run of an agent"),
        (name = "dead letters", description = "What could not be processed, and sending it again"),
    )
)]
pub struct Document;

const BEARER: &str = "bearer";

/// Adds what every route has.
pub fn complete(mut document: utoipa::openapi::OpenApi) -> utoipa::openapi::OpenApi {
    let components = document.components.get_or_insert_with(Default::default);
    let scheme = Http::builder()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("An API key of the account (`sbx_…`), or the operator's token"))
        .build();
    components.add_security_scheme(BEARER, SecurityScheme::Http(scheme));
    document.security = Some(vec![SecurityRequirement::new(BEARER, [] as [&str; 0])]);
    for (path, item) in &mut document.paths.paths {
        let operations = [
            (HttpMethod::Get, &mut item.get),
            (HttpMethod::Post, &mut item.post),
            (HttpMethod::Patch, &mut item.patch),
            (HttpMethod::Delete, &mut item.delete),
        ];
        for (method, operation) in operations {
            if let Some(operation) = operation {
                operation_complete(&method, path, operation);
            }
        }
    }
    document
}

fn operation_complete(method: &HttpMethod, path: &str, operation: &mut Operation) {
    let text = || ObjectBuilder::new().schema_type(Type::String).build();
    let parameters = operation.parameters.get_or_insert_with(Vec::new);
    for name in path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some(describe(name)))
            .schema(Some(text()));
        parameters.push(RefOr::T(parameter.build()));
    }
    if *method == HttpMethod::Post {
        let parameter = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(
                "1-255 printable characters. The same key and request give the stored answer again, with \
                 `Idempotency-Replayed: true`; the key with another request is a 422, one in flight a 409.",
            ))
            .schema(Some(text()));
        parameters.push(RefOr::T(parameter.build()));
    }
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            described(status).clone_into(&mut response.description);
        }
    }
    operation
        .responses
        .responses
        .insert("default".to_owned(), RefOr::T(problem()));
    // Handlers are named within their noun; the document needs one name for each.
    let noun = operation.tags.iter().flatten().next().map(|tag| tag.replace(' ', "_"));
    operation.operation_id = noun
        .zip(operation.operation_id.take())
        .map(|(noun, verb)| format!("{noun}_{verb}"));
    if let Some(needed) = crate::auth::permission::need_of(name_of(method), path) {
        let who = format!("For: {}.", callers(needed).join(", "));
        let told = operation
            .description
            .take()
            .map_or_else(|| who.clone(), |told| format!("{told}\n\n{who}"));
        operation.description = Some(told);
    }
}

fn described(status: &str) -> &'static str {
    match status {
        "200" => "Here it is",
        "201" => "Made",
        "202" => "Accepted: it will be done",
        "204" => "Done",
        _ => "",
    }
}

fn problem() -> Response {
    ResponseBuilder::new()
        .description("A problem: its `code` says which, its `detail` what to do")
        .content(
            "application/problem+json",
            Content::new(Some(RefOr::Ref(Ref::from_schema_name("Problem")))),
        )
        .build()
}

/// Who may call, from the permission table itself.
fn callers(need: Need) -> Vec<String> {
    let roles = domain::KeyRole::ALL
        .iter()
        .filter(|role| permits(**role, need))
        .map(|role| format!("`{role}` keys"));
    std::iter::once("the operator".to_owned()).chain(roles).collect()
}

fn name_of(method: &HttpMethod) -> &'static str {
    match method {
        HttpMethod::Get => "GET",
        HttpMethod::Post => "POST",
        HttpMethod::Put => "PUT",
        HttpMethod::Delete => "DELETE",
        HttpMethod::Options => "OPTIONS",
        HttpMethod::Head => "HEAD",
        HttpMethod::Patch => "PATCH",
        HttpMethod::Trace => "TRACE",
    }
}

fn describe(parameter: &str) -> &'static str {
    match parameter {
        "account" => "The account's id",
        "agent" => "The agent's id or slug",
        "task" => "The task's id, in any spelling of case",
        "key" => "The key's id, not the key",
        "notification" => "The notification's id, percent-encoded",
        "session" | "turn" | "letter" => "A UUID",
        _ => "",
    }
}
