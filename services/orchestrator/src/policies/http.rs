//! `/api/orgs/{account}/tool-policies`.

use api::{
    policies::{NewToolPolicy, PolicyScopeName, ToolPolicy, ToolPolicyChange},
    questions::Audience,
    text::Text,
};
use axum::{Json, extract::State, response::NoContent};
use domain::{AccountId, AgentRef, PolicyScope, PolicyVerdict, SessionId, TaskId, ToolPolicyId};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::{
    Tx,
    tool_policy::{self, PolicyTerms, policy_change, policy_remove, policy_set},
};

use super::{problem, store};
use crate::{
    agents,
    app::{App, database_now},
    auth::Access,
    body::{JsonBody, Named, Query},
    error::ApiError,
    holds::store::is_task,
    idempotency::{Answer, Done, Post},
    paging::{Cursor, Limit, List, Page, Shown},
    route::routes,
    sessions::store::session_find,
};

routes! {
    "tool-policies": "Which tools agents see and may call";
    /// Rules about tools, newest first.
    GET "/api/orgs/{account}/tool-policies" Read => list;
    /// Make a rule about tools. It holds for every call from now on; what agents are offered changes with their next turn.
    POST "/api/orgs/{account}/tool-policies" Administer => create or 422;
    /// Change what a rule says. 409 when it is not the revision that was read.
    PUT "/api/orgs/{account}/tool-policies/{tool_policy}" Administer => change or 409 or 422;
    /// Remove a rule.
    DELETE "/api/orgs/{account}/tool-policies/{tool_policy}" Administer => remove;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    /// Only those of this kind of scope.
    scope: Option<PolicyScope>,
    /// Only those of this scope, by its id as the rule shows it.
    scope_id: Option<Text<1, 256>>,
    /// Only those with exactly this name.
    tool: Option<Text<1, 128>>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<ListQuery>,
) -> Result<Shown<ToolPolicy>, ApiError> {
    let list = List::of(
        &store::LIST,
        "tool-policies",
        &access.account,
        format_args!("{:?} {:?} {:?}", query.scope, query.scope_id, query.tool),
    );
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&access.accounts()).await?;
    let values = [
        query.scope.into(),
        query.scope_id.map(String::from).into(),
        query.tool.map(String::from).into(),
    ];
    let rows = page.read(&tx, &store::LIST, values, "list tool policies").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn create(
    State(app): State<App>,
    access: Access,
    Post { body, once }: Post<NewToolPolicy>,
) -> Result<Answer<201, ToolPolicy>, ApiError> {
    let terms = terms(body.visible, body.verdict, body.audience.as_ref())?;
    let account = &access.account;
    once.run(&app, access.party(), async |work| {
        let scope_id = scope_id(&work.tx, account, &body.scope).await?;
        let new = tool_policy::NewToolPolicy {
            account,
            scope: body.scope.kind,
            scope_id: &scope_id,
            tool: body.tool.as_str(),
            terms: terms.clone(),
            by: &access.caller.actor(),
        };
        let set = policy_set(&work.tx, &new, &app.setting(None, work.now)).await?;
        let (id, messages) = set.map_err(problem)?;
        tracing::info!(%account, policy = %id, scope = %new.scope, scope_id, tool = new.tool, "made a tool policy");
        let made = store::policy_find(&work.tx, account, id).await?;
        Ok(Done::new(made.ok_or_else(Problem::not_found)?).with(messages))
    })
    .await
}

async fn change(
    State(app): State<App>,
    access: Access,
    Named(policy): Named<ToolPolicyId>,
    JsonBody(change): JsonBody<ToolPolicyChange>,
) -> Result<Json<ToolPolicy>, ApiError> {
    let terms = terms(change.visible, change.verdict, change.audience.as_ref())?;
    let account = &access.account;
    let tx = access.begin(&app).await?;
    let setting = app.setting(None, database_now(&tx).await?);
    let (named, by) = ((policy, Some(change.revision.into())), access.caller.actor());
    let messages = policy_change(&tx, account, named, &terms, &by, &setting).await?;
    let messages = messages.map_err(problem)?;
    let changed = store::policy_find(&tx, account, policy).await?;
    let changed = changed.ok_or_else(Problem::not_found)?;
    app.commit(tx, messages).await?;
    tracing::info!(%account, %policy, "changed a tool policy");
    Ok(Json(changed))
}

async fn remove(
    State(app): State<App>,
    access: Access,
    Named(policy): Named<ToolPolicyId>,
) -> Result<NoContent, ApiError> {
    let account = &access.account;
    let tx = access.begin(&app).await?;
    let setting = app.setting(None, database_now(&tx).await?);
    let (was_there, messages) = policy_remove(&tx, account, policy, &access.caller.actor(), &setting).await?;
    if !was_there {
        return Err(Problem::not_found().into());
    }
    app.commit(tx, messages).await?;
    tracing::info!(%account, %policy, "removed a tool policy");
    Ok(NoContent)
}

fn terms(
    visible: Option<bool>,
    verdict: Option<PolicyVerdict>,
    audience: Option<&Audience>,
) -> Result<PolicyTerms, Problem> {
    let invalid = |what| Err(Problem::unprocessable("invalid", what));
    if visible.is_none() && verdict.is_none() {
        return invalid("the rule says nothing: give visible, verdict or both");
    }
    let audience = audience.map(|audience| audience.0.clone());
    if audience.is_some() && verdict != Some(PolicyVerdict::Ask) {
        return invalid("audience: nobody is asked: leave it out, or give the verdict ask");
    }
    // What an agent decided of a call of another one would be no approval by a person.
    let is_person = |one: &String| one.starts_with("user:") || one.starts_with("role:");
    if !audience.iter().flatten().all(is_person) {
        return invalid("audience: calls are approved by people: user:{id}, role:member or role:admin");
    }
    Ok(PolicyTerms {
        visible,
        verdict,
        audience,
        ..PolicyTerms::default()
    })
}

/// The id of a scope as it is compared.
async fn scope_id(tx: &Tx, account: &AccountId, scope: &PolicyScopeName) -> Result<String, ApiError> {
    let found = match scope.kind {
        PolicyScope::Account => Some(account.to_string()).filter(|id| **id == *scope.id),
        PolicyScope::Agent => match AgentRef::parse(&scope.id) {
            Ok(agent) => {
                let found = agents::store::agent_find(tx, account, &agent).await?;
                found.map(|agent| agent.id.to_string())
            }
            Err(_) => None,
        },
        PolicyScope::Task => match TaskId::parse(&scope.id) {
            Ok(task) if is_task(tx, account, &task).await? => Some(task.key().to_string()),
            Ok(_) | Err(_) => None,
        },
        PolicyScope::Session => match SessionId::parse(&scope.id) {
            Ok(session) if session_find(tx, account, session).await?.is_some() => Some(session.to_string()),
            Ok(_) | Err(_) => None,
        },
        PolicyScope::TaskAgent => {
            let what =
                "scope: task_agent is made by an approval that is remembered: choose account, agent, task or session";
            return Err(Problem::unprocessable("unknown_scope", what).into());
        }
    };
    let unknown = || {
        let what = format!("scope: the account has no {} {}", scope.kind, scope.id);
        Problem::unprocessable("unknown_scope", what)
    };
    Ok(found.ok_or_else(unknown)?)
}
