//! `/api/orgs/{account}/event-consumers`.

use api::event_consumers::{EventConsumer, NewEventConsumer};
use axum::{Json, extract::State, response::NoContent};
use contracts::{Stream, event::Change};
use domain::{AccountId, EventConsumerName, error_chain};
use messaging::event_consumer::{event_consumer_make, event_consumer_remove, filter, stored_name};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Serialize;

use super::store;
use crate::{
    accounts::http::changed,
    app::{App, database_now},
    auth::Access,
    body::Named,
    error::ApiError,
    idempotency::{Answer, Done, Post},
    route::routes,
};

routes! {
    "event consumers": "Durable consumers of an account's events on NATS";
    /// Make an event consumer, or make it again where the broker has removed it: one that nothing read from for 7 days.
    POST "/api/orgs/{account}/event-consumers" Administer => create;
    /// All event consumers of the account: at most 8.
    GET "/api/orgs/{account}/event-consumers" Read => list;
    /// Remove an event consumer. Keys that are connected lose it at once.
    DELETE "/api/orgs/{account}/event-consumers/{consumer}" Administer => remove;
}

/// As the column's constraint says.
const COUNT_MAX: i32 = 8;

#[derive(Debug, Serialize, JsonSchema)]
struct EventConsumers {
    items: Vec<EventConsumer>,
}

fn shown(app: &App, account: &AccountId, name: EventConsumerName) -> EventConsumer {
    EventConsumer {
        stream: Stream::Event.name(&app.root),
        consumer: stored_name(account, name.as_str()),
        filter: filter(&app.root, account),
        name,
    }
}

/// The consumer is made before its name is written, and outside of the transaction. A name that finds no room leaves a
/// consumer that no key may read from; the broker removes it after 7 days.
async fn create(
    State(app): State<App>,
    access: Access,
    Post { body, once }: Post<NewEventConsumer>,
) -> Result<Answer<201, EventConsumer>, ApiError> {
    let (account, name) = (&access.account, body.name.clone());
    let has_room = async {
        let tx = access.begin(&app).await?;
        let names = store::event_consumers(&tx, account).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(names.len() < COUNT_MAX as usize || names.iter().any(|known| known == name.as_str()))
    };
    if !has_room.await? {
        return Err(full().into());
    }
    if let Err(error) = event_consumer_make(app.bus()?, account, name.as_str()).await {
        tracing::warn!(%account, consumer = name.as_str(), error = error_chain(&error), "could not make an event consumer");
        return Err(Problem::unavailable().into());
    }
    once.run(&app, access.party(), async |work| {
        let is_new = store::event_consumer_add(&work.tx, account, &name, COUNT_MAX).await?;
        let names = store::event_consumers(&work.tx, account).await?;
        if !names.iter().any(|known| known == name.as_str()) {
            return Err(full().into());
        }
        let event = app.event(account, work.now, changed(Change::Changed, access.caller.actor()));
        let messages = if is_new { vec![event] } else { Vec::new() };
        Ok(Done::new(shown(&app, account, name.clone())).with(messages))
    })
    .await
}

fn full() -> Problem {
    let detail = format!("the account has {COUNT_MAX} event consumers: remove one first");
    Problem::conflict("event_consumer_limit", detail)
}

async fn list(State(app): State<App>, access: Access) -> Result<Json<EventConsumers>, ApiError> {
    let tx = access.begin(&app).await?;
    let names = store::event_consumers(&tx, &access.account).await?;
    tx.commit().await?;
    let names = names.iter().filter_map(|name| EventConsumerName::parse(name).ok());
    let items = names.map(|name| shown(&app, &access.account, name)).collect();
    Ok(Json(EventConsumers { items }))
}

async fn remove(
    State(app): State<App>,
    access: Access,
    Named(name): Named<EventConsumerName>,
) -> Result<NoContent, ApiError> {
    let account = &access.account;
    let tx = access.begin(&app).await?;
    if !store::event_consumer_remove(&tx, account, &name).await? {
        return Err(Problem::not_found().into());
    }
    let event = app.event(
        account,
        database_now(&tx).await?,
        changed(Change::Changed, access.caller.actor()),
    );
    app.commit(tx, vec![event]).await?;
    // Without an answer it stays until the broker removes it; no key that connects from now on may read from it.
    if let Ok(bus) = app.bus()
        && let Err(error) = event_consumer_remove(bus, account, name.as_str()).await
    {
        tracing::warn!(%account, consumer = name.as_str(), error = error_chain(&error), "could not remove an event consumer from the broker");
    }
    Ok(NoContent)
}
