//! `/api/me/orchestrator` and `/api/orgs/{account}/orchestrator`.

use std::time::Duration;

use api::orchestrators::{ChatItem, Identity, IdentityChange, Orchestrator, Wake};
use axum::{Json, extract::State};
use contracts::event::{Change, Event, IdentityChanged};
use domain::{AccountId, Actor, Conversation, Handle, Owner, Reachable, UserId};
use runtime::http::Problem;
use storage::{
    StorageError, Tx, accounts::account_lock, lifecycle::guests_close, session::session_ensure::session_ensure,
};

use super::store::{self, orchestrator_now};
use crate::{
    app::{App, database_now},
    auth::{Access, PersonAccess},
    body::{JsonBody, Named, Query},
    error::{ApiError, invalid_field},
    idempotency::{Answer, Done, Post},
    identities::{identity_change, identity_ensure, identity_find, identity_make},
    members::store::member_lock,
    paging::{List, ListQuery, Shown},
    route::routes,
};

routes! {
    "orchestrators": "One of each person's own, and one of the account's, under one name for ever";
    /// One's own orchestrator, as it is now.
    GET "/api/me/orchestrator" Person => read_mine or 404;
    /// What was said to it, what it did and what it answered, newest first. A page has whole turns.
    GET "/api/me/orchestrator/chat" Person => chat;
    /// Open its session if it has none. No turn runs: that is what a prompt is for.
    POST "/api/me/orchestrator/wake" Person => wake or 404;
    /// The identity of one's own orchestrator.
    GET "/api/me/orchestrator/identity" Person => read_own or 404;
    /// Change it. Name, handle, style and instructions are in its next turn's prompt.
    PUT "/api/me/orchestrator/identity" Person => change_own or 404 or 409;
    /// A person's orchestrator: their own, or for the operator and admins, if the account lets them see it.
    GET "/api/orgs/{account}/members/{user}/orchestrator" ReadMembers => read_theirs;
    /// What the person and it said to each other, newest first.
    GET "/api/orgs/{account}/members/{user}/orchestrator/chat" ReadMembers => chat_theirs;
    /// The identity of the account's orchestrator. It is off until an admin enables it.
    GET "/api/orgs/{account}/orchestrator/identity" ReadMembers => read;
    /// Change it.
    PUT "/api/orgs/{account}/orchestrator/identity" Administer => change or 409;
}

/// The handle of the account's orchestrator until an admin chooses one.
const HANDLE: &str = "orchestrator";

async fn shown(app: &App, tx: &Tx, account: &AccountId, owner: &Owner) -> Result<Orchestrator, ApiError> {
    let identity = identity_find(tx, account, owner)
        .await?
        .ok_or_else(Problem::not_found)?;
    let now = orchestrator_now(tx, account, owner).await?;
    let idle = Duration::from_secs(60 * u64::from(app.settings.orchestrator_idle_min.get()));
    Ok(Orchestrator {
        session_id: now.as_ref().map(|now| now.id.uuid()),
        session_key: now
            .as_ref()
            .map_or_else(|| short_form(account, owner), |now| now.key.clone()),
        state: now.as_ref().map_or("absent", |now| now.state(idle)).to_owned(),
        queued: now.map_or(0, |now| now.queued),
        identity,
    })
}

/// Which every caller may use instead of a key.
fn short_form(account: &AccountId, owner: &Owner) -> String {
    match owner {
        Owner::User(user) => format!("orchestrator:{user}"),
        Owner::Account => format!("orchestrator:org:{account}"),
    }
}

async fn read_mine(State(app): State<App>, person: PersonAccess) -> Result<Json<Orchestrator>, ApiError> {
    read_of(&app, &person.access, person.user).await
}

async fn read_theirs(
    State(app): State<App>,
    access: Access,
    Named(user): Named<UserId>,
) -> Result<Json<Orchestrator>, ApiError> {
    seen(&access, &user)?;
    read_of(&app, &access, user).await
}

async fn read_of(app: &App, access: &Access, user: UserId) -> Result<Json<Orchestrator>, ApiError> {
    let tx = access.begin(app).await?;
    let orchestrator = shown(app, &tx, &access.account, &Owner::User(user)).await?;
    tx.commit().await?;
    Ok(Json(orchestrator))
}

/// What is hidden is as absent as what is not there. An admin's look at what is another person's is on record.
fn seen(access: &Access, user: &UserId) -> Result<(), Problem> {
    if !access.sees(user) {
        return Err(Problem::not_found());
    }
    if access.caller.person().is_none_or(|person| person.id != *user) {
        tracing::info!(account = %access.account, %user, by = access.caller.author_id(), "looked at a person's orchestrator");
    }
    Ok(())
}

async fn wake(
    State(app): State<App>,
    person: PersonAccess,
    Post { once, .. }: Post<Wake>,
) -> Result<Answer<200, Orchestrator>, ApiError> {
    let (account, owner) = (&person.access.account, Owner::User(person.user.clone()));
    once.run(&app, person.access.party(), async |work| {
        not_reserved(account)?;
        identity_ensure(&work.tx, account, &person.user, work.now).await?;
        let agent = store::hidden_agent(&work.tx, account)
            .await?
            .ok_or_else(Problem::not_found)?;
        let conversation = Conversation::of_orchestrator(account, owner.clone(), agent);
        let ensured = session_ensure(&work.tx, &conversation, None, &app.setting(None, work.now)).await?;
        let (_, opened) = ensured.ok_or_else(Problem::not_found)?;
        store::woken_note(&work.tx, account, &owner, work.now).await?;
        let orchestrator = shown(&app, &work.tx, account, &owner).await?;
        Ok(Done::new(orchestrator).with(opened.into_iter().collect()))
    })
    .await
}

async fn chat(
    State(app): State<App>,
    person: PersonAccess,
    Query(query): Query<ListQuery>,
) -> Result<Shown<ChatItem>, ApiError> {
    chat_of(&app, &person.access, &person.user, &query).await
}

async fn chat_theirs(
    State(app): State<App>,
    access: Access,
    Named(user): Named<UserId>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<ChatItem>, ApiError> {
    seen(&access, &user)?;
    let tx = access.begin(&app).await?;
    let found = identity_find(&tx, &access.account, &Owner::User(user.clone())).await?;
    tx.commit().await?;
    found.ok_or_else(Problem::not_found)?;
    chat_of(&app, &access, &user, &query).await
}

async fn chat_of(app: &App, access: &Access, user: &UserId, query: &ListQuery) -> Result<Shown<ChatItem>, ApiError> {
    let list = List::of(&super::chat::LIST, "chat", &access.account, user);
    let page = query.page(app, list)?.at_most(app.settings.list_turns_max.usize());
    let tx = app.begin_list(&access.accounts()).await?;
    let shown = super::chat::chat(&tx, &access.account, user, &page).await?;
    tx.commit().await?;
    Ok(shown)
}

async fn read_own(State(app): State<App>, person: PersonAccess) -> Result<Json<Identity>, ApiError> {
    let account = &person.access.account;
    let tx = person.access.begin(&app).await?;
    let found = identity_find(&tx, account, &Owner::User(person.user)).await?;
    tx.commit().await?;
    Ok(Json(found.ok_or_else(Problem::not_found)?))
}

async fn change_own(
    State(app): State<App>,
    person: PersonAccess,
    JsonBody(change): JsonBody<IdentityChange>,
) -> Result<Json<Identity>, ApiError> {
    if change.enabled.is_some() {
        let what = "only the account's orchestrator is enabled: a person's always is";
        return Err(invalid_field("enabled", what).into());
    }
    let owner = Owner::User(person.user.clone());
    change_of(&app, &person.access, &owner, change).await
}

async fn read(State(app): State<App>, access: Access) -> Result<Json<Identity>, ApiError> {
    let tx = access.begin(&app).await?;
    let found = identity_find(&tx, &access.account, &Owner::Account).await?;
    tx.commit().await?;
    Ok(Json(found.unwrap_or_else(|| Identity {
        user_id: None,
        name: domain::identity::NAME.to_owned(),
        handle: HANDLE.to_owned(),
        avatar: None,
        style: domain::Style::Professional.to_string(),
        custom_instructions: String::new(),
        reachable: domain::Reachable::Off.to_string(),
        enabled: false,
        revision: 0,
    })))
}

async fn change(
    State(app): State<App>,
    access: Access,
    JsonBody(change): JsonBody<IdentityChange>,
) -> Result<Json<Identity>, ApiError> {
    if change.reachable.is_some() {
        let what = "the account's orchestrator is for everybody in it: enable it, or do not";
        return Err(invalid_field("reachable", what).into());
    }
    change_of(&app, &access, &Owner::Account, change).await
}

async fn change_of(
    app: &App,
    access: &Access,
    owner: &Owner,
    change: IdentityChange,
) -> Result<Json<Identity>, ApiError> {
    let (account, caller) = (&access.account, &access.caller);
    not_reserved(account)?;
    let tx = access.begin(app).await?;
    // No agent gets the handle as its slug meanwhile.
    account_lock(&tx, account).await?;
    let now = database_now(&tx).await?;
    if *owner == Owner::Account && identity_find(&tx, account, owner).await?.is_none() {
        let handle = Handle::parse(HANDLE).map_err(|error| StorageError::unreadable("make identity", error))?;
        identity_make(&tx, account, (owner, &handle), now).await?;
    }
    if let Owner::User(user) = owner {
        identity_ensure(&tx, account, user, now).await?;
        // No session opens for a guest meanwhile.
        member_lock(&tx, account, user).await?.ok_or_else(Problem::not_found)?;
    }
    let ends_reach = change.reachable == Some(Reachable::Off);
    let handle = change.handle.clone();
    if let Some(handle) = &handle
        && agent_has(&tx, account, handle).await?
    {
        return Err(handle_taken().into());
    }
    let changed = identity_change(&tx, account, owner, change).await;
    let changed = changed.map_err(|error| match error.is_unique_violation() {
        true => handle_taken().into(),
        false => ApiError::from(error),
    })?;
    let changed = changed.ok_or_else(Problem::not_found)?;
    let event = changed_event(owner, Change::Changed, caller.actor());
    let mut messages = vec![app.event(account, now, event)];
    if let (Owner::User(user), true) = (owner, ends_reach) {
        messages.extend(guests_close(&tx, account, user, &app.setting(None, now)).await?);
    }
    app.commit(tx, messages).await?;
    tracing::info!(%account, %owner, handle = changed.handle, enabled = changed.enabled, by = caller.author_id(), "changed the identity of an orchestrator");
    Ok(Json(changed))
}

/// Keys of its orchestrators would have two readings.
fn not_reserved(account: &AccountId) -> Result<(), Problem> {
    if account.is_reserved() {
        let detail = "an account with the id org has no orchestrators: make another account";
        return Err(Problem::conflict("reserved_account", detail));
    }
    Ok(())
}

async fn agent_has(tx: &Tx, account: &AccountId, handle: &Handle) -> Result<bool, StorageError> {
    let Ok(slug) = domain::AgentRef::parse(handle.as_str()) else {
        return Ok(false);
    };
    Ok(crate::agents::store::agent_find(tx, account, &slug).await?.is_some())
}

fn handle_taken() -> Problem {
    let detail = "another orchestrator or an agent of the account is called so: choose another handle";
    Problem::conflict("handle_taken", detail)
}

fn changed_event(owner: &Owner, change: Change, by: Actor) -> Event {
    Event::IdentityChanged(IdentityChanged {
        user_id: owner.user().cloned(),
        change,
        by,
    })
}
