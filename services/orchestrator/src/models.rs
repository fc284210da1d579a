//! `/api/orgs/{account}/models`: the external models that the operator has named for agents of the account, without addresses and keys.

use api::models::{Model, Models};
use axum::{Json, extract::State};

use crate::{app::App, auth::Access, error::ApiError, route::routes};

routes! {
    "models": "External models that agents may ask";
    /// The models that agents of the account may ask by tool, by name. They are in the operator's settings; of a kind, the first is the default.
    GET "/api/orgs/{account}/models" Read => list;
}

async fn list(State(app): State<App>, access: Access) -> Result<Json<Models>, ApiError> {
    let account = &access.account;
    let models = app.models.of(account).map(|(name, model)| Model {
        name: name.to_owned(),
        kind: model.kind.to_string(),
        accepts: model.accepts.iter().map(ToString::to_string).collect(),
        sizes: model.sizes.clone(),
        is_default: app
            .models
            .find(account, model.kind, None)
            .is_some_and(|(first, _)| first == name),
    });
    let items = models.collect();
    Ok(Json(Models { items }))
}
