//! API keys: an account's, made by its admins, and a person's own. The form of a key and its digest are `domain::api_key`.

pub mod http;
pub mod store;

use api::keys::{CreatedKey, Key};
use axum::{
    http::{HeaderName, HeaderValue},
    response::{IntoResponse, NoContent, Response},
};
use contracts::event::{Change, Event, KeyChanged};
use domain::{AccountId, Actor, AgentId, ApiKey, KeyId, KeyRole, Timestamp, UserId};
use messaging::disconnect;
use runtime::http::openapi::Operation;
use storage::{Tx, outbox::Owned};
use time::OffsetDateTime;

use crate::{
    app::App,
    error::{ApiError, invalid_field},
    nats::connection_name,
    route::Described,
};

/// A key that is asked for.
#[derive(Debug)]
pub struct NewKey<'a> {
    pub name: &'a str,
    pub role: KeyRole,
    pub expires_at: Option<Timestamp>,
    /// Of a gateway's key.
    pub agent: Option<AgentId>,
    /// Of a person's own key.
    pub user: Option<&'a UserId>,
    /// Who makes it.
    pub by: Actor,
}

/// Makes a key, with the secret that only this answer holds, and its event.
pub async fn key_make(
    app: &App,
    tx: &Tx,
    account: &AccountId,
    new: NewKey<'_>,
    now: OffsetDateTime,
) -> Result<(CreatedKey, Owned), ApiError> {
    if new.expires_at.is_some_and(|expires_at| expires_at.0 <= now) {
        return Err(invalid_field("expires_at", "must be in the future").into());
    }
    let mut random = [0; 40];
    getrandom::fill(&mut random).map_err(ApiError::Random)?;
    let key = ApiKey::from_random(account, random);
    store::key_insert(tx, &key, &new, now).await?;
    tracing::info!(%account, key = %key.id(), role = %new.role, user = new.user.map(UserId::as_str), by = new.by.id, "created an API key");
    let created = changed(key.id(), new.user, Change::Created, new.by.clone());
    let created = app.event(account, now, created);
    let made = CreatedKey {
        public: Key {
            id: key.id().to_string(),
            name: new.name.to_owned(),
            role: new.role.to_string(),
            created_at: now.into(),
            expires_at: new.expires_at,
            agent_id: new.agent.map(AgentId::uuid),
            user_id: new.user.map(UserId::to_string),
        },
        key: Some(key.expose().to_owned()),
    };
    Ok((made, created))
}

/// The event of a key.
pub fn changed(key: &KeyId, user: Option<&UserId>, change: Change, by: Actor) -> Event {
    Event::KeyChanged(KeyChanged {
        key_id: key.clone(),
        user_id: user.cloned(),
        change,
        by,
    })
}

/// The answer of a revocation: whether the key's connections to NATS were closed. Where they could not be, they end within 15
/// minutes.
#[derive(Debug)]
pub struct Revoked {
    is_disconnected: bool,
}

const DISCONNECTED: HeaderName = HeaderName::from_static("signalbox-nats-disconnected");

/// Closes the connections of a key that was revoked.
pub async fn disconnect_key(app: &App, account: &AccountId, key: &KeyId) -> Revoked {
    let name = connection_name(account, key.as_str());
    let is_disconnected = match app.bus() {
        Ok(bus) => disconnect(bus, &name).await,
        Err(_) => false,
    };
    Revoked { is_disconnected }
}

impl IntoResponse for Revoked {
    fn into_response(self) -> Response {
        let value = HeaderValue::from_static(if self.is_disconnected { "true" } else { "false" });
        ([(DISCONNECTED, value)], NoContent).into_response()
    }
}

impl Described for Revoked {
    fn describe(operation: &mut Operation<'_>) {
        NoContent::describe(operation);
    }
}

/// The answer that is stored, without the secret.
pub fn without_secret(made: &CreatedKey) -> CreatedKey {
    CreatedKey {
        key: None,
        ..made.clone()
    }
}
