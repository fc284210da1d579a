//! `/api/orgs/{account}/providers`, and the operator's `/api/providers`.

use api::{
    Items,
    providers::{Probe, Provider, ProviderAccount},
};
use axum::{Json, extract::State};
use runtime::http::Problem;
use storage::Accounts;

use super::store;
use crate::{
    app::App,
    auth::{Access, OperatorAccess, Party},
    body::Named,
    error::ApiError,
    idempotency::{Answer, Done, Post},
    route::routes,
};

routes! {
    "providers": "What runs the agents, and whether it takes calls";
    /// The providers that the account's agents name, and whether calls of them are made. While one is not `closed`, its work waits and
    /// goes on by itself: no notification fails, and no attempt is used.
    GET "/api/orgs/{account}/providers" Read => list;
    /// The provider accounts whose calls have failed: state, cause and what waits, over all tenants.
    GET "/api/providers" Operate => operator_list;
    /// Try a provider account at once, once its cause is removed: the next turn that looks is the probe. Nothing changes unless its
    /// state is `open`.
    POST "/api/providers/{key}/probe" Operate => probe;
}

async fn list(State(app): State<App>, access: Access) -> Result<Json<Items<Provider>>, ApiError> {
    let tx = app.begin_list(&access.accounts()).await?;
    let items = store::providers_of(&tx, &access.account).await?;
    tx.commit().await?;
    Ok(Json(all(items)))
}

async fn operator_list(
    State(app): State<App>,
    _operator: OperatorAccess,
) -> Result<Json<Items<ProviderAccount>>, ApiError> {
    let tx = app.begin_list(&Accounts::none()).await?;
    let mut items = store::accounts(&tx).await?;
    tx.commit().await?;
    for account in &mut items {
        account.parked = store::parked(&app.database, &account.key).await?;
    }
    Ok(Json(all(items)))
}

async fn probe(
    State(app): State<App>,
    _operator: OperatorAccess,
    Named(key): Named<String>,
    Post { once, .. }: Post<Probe>,
) -> Result<Answer<200, ProviderAccount>, ApiError> {
    once.run(&app, Party::operator(None), async |work| {
        let account = store::probe(&work.tx, &key).await?;
        let mut account = account.ok_or_else(Problem::not_found)?;
        account.parked = store::parked(&app.database, &key).await?;
        tracing::info!(
            key,
            state = account.state,
            "brought the probe of a provider account forward"
        );
        Ok(Done::new(account))
    })
    .await
}

/// A list in one page: there are few.
fn all<T>(items: Vec<T>) -> Items<T> {
    Items {
        items,
        next_cursor: None,
    }
}
