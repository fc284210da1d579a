//! `/api/orgs/{account}/notifications/{notification}/route` and `/api/orgs/{account}/routing-log`.

use api::{mail::Routed, notifications::RouteStep};
use axum::{Json, extract::State};
use domain::{NotificationId, Owner, SessionKey, Timestamp, UserId, mail::of_item, notification::RouteSource};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Mailed, steps, store::placed_find};
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    mail::store::{MailRow, ROUTED, mail_find},
    notifications::store::notification_find,
    paging::{Cursor, Limit, List, Page, Shown},
    route::routes,
};

routes! {
    "routing": "Why something went where it went";
    /// The steps of a notification's way: the mail that it is of, the persona and the mode; then why it was refused, or the session, the place
    /// in its queue, and the turn.
    GET "/api/orgs/{account}/notifications/{notification}/route" Read => route;
    /// What came in and where it went, newest first: mail that one has written or got, and mail of the sessions that one may see.
    GET "/api/orgs/{account}/routing-log" ReadMembers => log;
}

async fn route(
    State(app): State<App>,
    access: Access,
    Named(id): Named<NotificationId>,
) -> Result<Json<Vec<RouteStep>>, ApiError> {
    let account = &access.account;
    let tx = access.begin(&app).await?;
    let item = notification_find(&tx, account, &id)
        .await?
        .ok_or_else(Problem::not_found)?;
    let placed = placed_find(&tx, account, &id).await?;
    let mail = match of_item(id.as_str()) {
        Some(mail) => Some(mail_find(&tx, account, mail).await?),
        None => None,
    };
    tx.commit().await?;
    // Its item is in no session yet, or is gone with it: the mail says whose it is.
    if mail.iter().flatten().any(|mail| !is_seen(&access, mail)) {
        return Err(Problem::not_found().into());
    }
    let mail = mail.map(|mail| mail.map(MailRow::shown));
    let mail = match &mail {
        None => Mailed::No,
        Some(None) => Mailed::Removed,
        Some(Some(mail)) => Mailed::Is(mail),
    };
    Ok(Json(steps(&item, mail, placed.as_ref())))
}

/// Whether the caller may know of mail to an agent: they wrote it, or see the session that it is for.
fn is_seen(access: &Access, mail: &MailRow) -> bool {
    let (caller, key) = (
        &access.caller,
        mail.to_session().and_then(|key| SessionKey::parse(key).ok()),
    );
    let sees = match key.as_ref().and_then(|key| key.of.orchestrator()) {
        Some(Owner::User(user)) => access.sees(user),
        Some(Owner::Account) => caller.is_admin(),
        None => true,
    };
    sees || mail.is_of(caller.person().map(|person| &person.id), caller.author_id())
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogQuery {
    /// Only what came this way; default all.
    source: Option<RouteSource>,
    /// Only what this person, or their orchestrator, wrote or got.
    user: Option<UserId>,
    /// Only what came at this time or later.
    since: Option<Timestamp>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn log(State(app): State<App>, access: Access, Query(query): Query<LogQuery>) -> Result<Shown<Routed>, ApiError> {
    let (account, caller) = (&access.account, &access.caller);
    let person = caller.person().map(|person| person.id.to_string());
    // What a page shows depends on the caller, where it begins does not.
    let filters = format!("{:?} {:?} {:?}", query.source, query.user, query.since);
    let page = Page::new(
        List::of(&ROUTED, "routing log", account, filters),
        &app.settings,
        query.limit,
        query.cursor.as_ref(),
    )?;
    let values = [
        query.since.into(),
        query.user.map(|user| user.to_string()).into(),
        person.clone().into(),
        caller.author_id().into(),
        access.sees_all().into(),
        caller.is_admin().into(),
    ];
    let tx = app.begin_list(&access.accounts()).await?;
    let rows = page.read(&tx, &ROUTED, values, "list the routing log").await?;
    tx.commit().await?;
    Ok(rows.show_as(|row: MailRow| row.routed(person.as_deref())))
}
