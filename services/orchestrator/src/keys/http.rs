//! `/api/orgs/{account}/keys`.

use api::keys::{CreatedKey, Key, NewKey};
use axum::extract::State;
use contracts::event::Change;
use domain::{AccountId, AgentId, AgentRef, KeyId, KeyRole};
use runtime::http::Problem;
use storage::Tx;

use super::{Revoked, changed, disconnect_key, key_make, store, without_secret};
use crate::{
    agents,
    app::{App, database_now},
    auth::Access,
    body::{Named, Query},
    error::{ApiError, invalid_field, unknown_agent},
    idempotency::{Answer, Done, Post},
    keys,
    paging::{List, ListQuery, Shown},
    route::routes,
};

routes! {
    "keys": "API keys of an account";
    /// Create a key. Only this answer holds it: the database keeps its digest.
    POST "/api/orgs/{account}/keys" Administer => create;
    /// Keys that are not revoked, oldest first; without their secrets.
    GET "/api/orgs/{account}/keys" Administer => list;
    /// Revoke a key. The next request with it is refused; `Signalbox-Nats-Disconnected` says whether its connections to NATS are
    /// closed. If not, they end within 15 minutes.
    DELETE "/api/orgs/{account}/keys/{key}" Administer => revoke;
}

async fn create(
    State(app): State<App>,
    access: Access,
    Post { body, once }: Post<NewKey>,
) -> Result<Answer<201, CreatedKey>, ApiError> {
    once.run(&app, access.party(), async |work| {
        let agent = match &body.agent {
            Some(agent) => Some(agent_find(&work.tx, &access.account, body.role, agent).await?),
            None => None,
        };
        let new = keys::NewKey {
            name: &body.name,
            role: body.role,
            expires_at: body.expires_at,
            agent,
            user: None,
            by: access.caller.actor(),
        };
        let (made, created) = key_make(&app, &work.tx, &access.account, new, work.now).await?;
        let kept = without_secret(&made);
        Ok(Done::new(made).kept_as(kept).with(vec![created]))
    })
    .await
}

async fn agent_find(tx: &Tx, account: &AccountId, role: KeyRole, agent: &AgentRef) -> Result<AgentId, ApiError> {
    if role != KeyRole::Gateway {
        return Err(invalid_field("agent", "a key with the role gateway may be for one agent").into());
    }
    let found = agents::store::agent_find(tx, account, agent).await?;
    Ok(AgentId(found.ok_or_else(|| unknown_agent(agent))?.id))
}

async fn list(State(app): State<App>, access: Access, Query(query): Query<ListQuery>) -> Result<Shown<Key>, ApiError> {
    let page = query.page(&app, List::of(&store::LIST, "keys", &access.account, ""))?;
    let tx = app.begin_list(&access.accounts()).await?;
    let rows = page.read(&tx, &store::LIST, [], "list keys").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn revoke(State(app): State<App>, access: Access, Named(key): Named<KeyId>) -> Result<Revoked, ApiError> {
    let tx = access.begin(&app).await?;
    let now = database_now(&tx).await?;
    let revoked = store::key_revoke(&tx, &access.account, &key, None, now).await?;
    let of = revoked.ok_or_else(Problem::not_found)?.user_id;
    let revoked = changed(&key, of.as_ref(), Change::Removed, access.caller.actor());
    app.commit(tx, vec![app.event(&access.account, now, revoked)]).await?;
    tracing::info!(account = %access.account, %key, by = access.caller.author_id(), "revoked an API key");
    Ok(disconnect_key(&app, &access.account, &key).await)
}
