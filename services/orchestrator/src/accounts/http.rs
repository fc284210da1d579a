//! `/api/accounts` for the operator, `/api/orgs/{account}` for the account's admins.

use api::accounts::{Account, AccountChange, AccountEntry, NewAccount};
use axum::{Json, extract::State};
use contracts::event::{AccountChanged, Change, Event};
use domain::{Actor, AgentId};
use runtime::http::Problem;
use storage::directory::account_directory;

use super::store;
use crate::{
    agents,
    app::{App, database_now},
    auth::{Access, Caller, OperatorAccess, Party},
    body::{JsonBody, Query},
    error::{ApiError, invalid_field, unknown_agent, unknown_task},
    idempotency::{Answer, Done, Post},
    orchestrators::store::provider_change,
    paging::{Column, List, ListQuery, Shown},
    route::routes,
    tasks,
};

routes! {
    "accounts": "Tenants and their settings";
    /// Create an account.
    POST "/api/accounts" Operate => create;
    /// All accounts, by id.
    GET "/api/accounts" Operate => list;
    /// The account and its settings.
    GET "/api/orgs/{account}" Administer => read;
    /// Change the account's settings. A running turn keeps the settings that it began with.
    PATCH "/api/orgs/{account}" Administer => change;
}

async fn create(
    State(app): State<App>,
    _operator: OperatorAccess,
    Post { body, once }: Post<NewAccount>,
) -> Result<Answer<201, Account>, ApiError> {
    let account = &body.id;
    if account.is_reserved() {
        return Err(invalid_field("id", format!("`{account}` is reserved: choose another")).into());
    }
    once.run(&app, Party::operator(Some(account)), async |work| {
        if !store::account_insert(&work.tx, account, &body.name, work.now).await? {
            return Err(Problem::conflict("account_exists", format!("account {account} already exists")).into());
        }
        let made = changed(Change::Created, Caller::Operator.actor());
        let made = app.event(account, work.now, made);
        Ok(Done::new(store::account_find(&work.tx, account).await?).with(vec![made]))
    })
    .await
}

/// The event of an account.
pub fn changed(change: Change, by: Actor) -> Event {
    Event::AccountChanged(AccountChanged { change, by })
}

async fn list(
    State(app): State<App>,
    _operator: OperatorAccess,
    Query(query): Query<ListQuery>,
) -> Result<Shown<AccountEntry>, ApiError> {
    let list = List {
        name: "accounts",
        account: "",
        filters: String::new(),
        order: &[("id", Column::Text)],
    };
    let page = query.page(&app, list)?;
    let rows = i32::try_from(page.rows()).unwrap_or(i32::MAX);
    let entries = account_directory(&app.database, page.after.as_deref(), rows).await?;
    Ok(page.cut(entries, |entry: &AccountEntry| entry.id.clone()).show())
}

async fn read(State(app): State<App>, access: Access) -> Result<Json<Account>, ApiError> {
    let tx = access.begin(&app).await?;
    let account = store::account_find(&tx, &access.account).await?;
    tx.commit().await?;
    Ok(Json(account))
}

async fn change(
    State(app): State<App>,
    access: Access,
    JsonBody(change): JsonBody<AccountChange>,
) -> Result<Json<Account>, ApiError> {
    let tx = access.begin(&app).await?;
    if let Some(Some(task)) = &change.coordinator_task
        && tasks::store::task_find(&tx, &access.account, task).await?.is_none()
    {
        return Err(unknown_task(task).into());
    }
    let agent = match change.default_agent.as_ref().and_then(Option::as_ref) {
        Some(agent) => {
            let found = agents::store::agent_find(&tx, &access.account, agent).await?;
            Some(AgentId(found.ok_or_else(|| unknown_agent(agent))?.id))
        }
        None => None,
    };
    if let Some(provider) = &change.orchestrator_provider {
        provider_change(&tx, &access.account, provider.clone().map(String::from)).await?;
    }
    let account = store::account_change(&tx, &access.account, change, agent).await?;
    let changed = changed(Change::Changed, access.caller.actor());
    let changed = app.event(&access.account, database_now(&tx).await?, changed);
    app.commit(tx, vec![changed]).await?;
    Ok(Json(account))
}
