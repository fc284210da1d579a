//! `/api/orgs/{account}/directory`: whom one may write to, as pages and commands offer it.

use api::directory::Entry;
use axum::{Json, extract::State};
use domain::{AccountId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use storage::{StorageError, Tx};

use crate::{app::App, auth::Access, body::Query, error::ApiError, route::routes};

routes! {
    "directory": "Whom one may write to";
    /// People, orchestrators that answer, and agents, by name; the first 50 in which the words occur.
    GET "/api/orgs/{account}/directory" ReadMembers => list;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DirectoryQuery {
    /// What occurs in a name, a handle or an address. Upper and lower case are not told apart.
    #[schemars(length(max = 128))]
    q: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Directory {
    items: Vec<Entry>,
}

const LISTED_MAX: i64 = 50;

/// SQL: whether the person `$3` may write to the orchestrator `i`: it is their own, answers others, or is the account's.
macro_rules! reached {
    () => {
        "(i.user_id = $3 or i.user_id is not null and i.reachable <> 'off' or i.user_id is null and i.enabled)"
    };
}
pub(crate) use reached;

/// An account's people and agents are few, and each is looked at. Relies on the primary keys and agent_slug.
pub const LIST: &str = concat!(
    "
    select d.kind, d.address, d.name, d.handle, d.avatar from (
        select 1 as place, 'person' as kind, '@user:' || m.user_id as address, m.name, null as handle, null as avatar
        from member m where m.account_id = $1 and m.removed_at is null
        union all
        select 2, 'orchestrator', '@' || i.handle, i.name, i.handle, i.avatar
        from orchestrator_identity i
        where i.account_id = $1 and ",
    reached!(),
    "
        union all
        select 3, 'agent', g.slug, g.name, g.slug, null from agent g where g.account_id = $1 and g.removed_at is null) d
    where strpos(lower(concat_ws(' ', d.name, d.handle, d.address)), lower($2)) > 0
    order by d.place, lower(d.name), d.address limit $4"
);

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<DirectoryQuery>,
) -> Result<Json<Directory>, ApiError> {
    let words = query.q.unwrap_or_default().chars().take(128).collect();
    let tx = access.begin(&app).await?;
    let person = access.caller.person().map(|person| &person.id);
    let items = entries(&tx, &access.account, words, person).await?;
    tx.commit().await?;
    Ok(Json(Directory { items }))
}

async fn entries(
    tx: &Tx,
    account: &AccountId,
    words: String,
    person: Option<&UserId>,
) -> Result<Vec<Entry>, StorageError> {
    let values = [account.into(), words.into(), person.cloned().into(), LISTED_MAX.into()];
    tx.rows("list directory", LIST, values).await
}
