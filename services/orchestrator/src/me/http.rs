//! `/api/me` and `/api/me/keys`.

use api::{
    Items,
    keys::{CreatedKey, Key},
    members::{AddIdentity, Invite, Me, MeChange, Member, MyAccount, NewOwnKey, SignIn},
};
use axum::{Json, extract::State, response::NoContent};
use contracts::event::Change;
use domain::{KeyId, MemberRole, Timestamp};
use runtime::http::Problem;
use storage::{StorageError, Tx};
use uuid::Uuid;

use crate::{
    app::{App, database_now},
    auth::PersonAccess,
    body::{JsonBody, Named, Query},
    error::{ApiError, invalid_field},
    idempotency::{Answer, Done, Post},
    keys::{self, key_make, without_secret},
    members,
    paging::{List, ListQuery, Shown},
    permission::Need,
    route::routes,
    sign_in::store::{accounts_of, login_of, sessions_end, sessions_list},
};

routes! {
    "me": "What is a person's own";
    /// The caller, and what the key may do.
    GET "/api/me" Person => read or 404;
    /// Change one's name or time zone.
    PATCH "/api/me" Person => change or 404;
    /// One's own keys that are not revoked, oldest first; without their secrets.
    GET "/api/me/keys" Person => keys;
    /// Create a key of one's own, which may do no more and lasts no longer than the key that asks. Only this answer holds it: the
    /// database keeps its digest.
    POST "/api/me/keys" Person => key_create or 404;
    /// Revoke a key of one's own. The next request with it is refused.
    DELETE "/api/me/keys/{key}" Person => key_revoke;
    /// The browsers in which one is signed in, the last used first; at most 50.
    GET "/api/me/sign-ins" Person => sign_ins;
    /// Sign a browser out. Its next request is refused.
    DELETE "/api/me/sign-ins/{sign_in}" Person => sign_in_end;
    /// The address at which a browser that is signed in adds an identity of this provider to what one signs in with.
    POST "/api/me/identities/oidc/{name}" Person => identity_add;
}

async fn shown(tx: &Tx, person: &PersonAccess, member: Member) -> Result<Me, StorageError> {
    let may = Need::ALL.iter().filter(|need| person.access.caller.may(**need));
    let accounts = match login_of(tx, &person.access.account, &person.user).await? {
        Some(login) => accounts_of(tx, login).await?,
        None => Vec::new(),
    };
    let accounts = accounts.into_iter().map(|one| MyAccount {
        account: one.account_id.to_string(),
        user_id: one.user_id.to_string(),
    });
    Ok(Me {
        account: person.access.account.to_string(),
        member,
        may: may.map(|need| need.as_str().to_owned()).collect(),
        accounts: accounts.collect(),
    })
}

async fn read(State(app): State<App>, person: PersonAccess) -> Result<Json<Me>, ApiError> {
    let account = &person.access.account;
    let tx = person.access.begin(&app).await?;
    // Removed since the guard found the key.
    let member = members::store::member_find(&tx, account, &person.user)
        .await?
        .ok_or_else(Problem::not_found)?;
    let me = shown(&tx, &person, member).await?;
    tx.commit().await?;
    Ok(Json(me))
}

async fn change(
    State(app): State<App>,
    person: PersonAccess,
    JsonBody(change): JsonBody<MeChange>,
) -> Result<Json<Me>, ApiError> {
    let account = &person.access.account;
    let tx = person.access.begin(&app).await?;
    if let Some(zone) = &change.time_zone
        && !members::store::time_zone_exists(&tx, zone).await?
    {
        let what = "not a time zone: send a name of the IANA database, as in Europe/Berlin";
        return Err(invalid_field("time_zone", what).into());
    }
    let member = members::store::member_change_own(&tx, account, &person.user, change).await?;
    let member = member.ok_or_else(Problem::not_found)?;
    let changed = members::changed(&person.user, Change::Changed, person.access.caller.actor());
    let now = database_now(&tx).await?;
    let me = shown(&tx, &person, member).await?;
    app.commit(tx, vec![app.event(account, now, changed)]).await?;
    Ok(Json(me))
}

async fn keys(
    State(app): State<App>,
    person: PersonAccess,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Key>, ApiError> {
    let account = &person.access.account;
    let list = List::of(&keys::store::OWN, "own keys", account, &person.user);
    let page = query.page(&app, list)?;
    let tx = app.begin_list(&person.access.accounts()).await?;
    let values = [(&person.user).into()];
    let rows = page.read(&tx, &keys::store::OWN, values, "list own keys").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn key_create(
    State(app): State<App>,
    person: PersonAccess,
    Post { body, once }: Post<NewOwnKey>,
) -> Result<Answer<201, CreatedKey>, ApiError> {
    let account = &person.access.account;
    once.run(&app, person.access.party(), async |work| {
        members::store::member_lock(&work.tx, account, &person.user)
            .await?
            .ok_or_else(Problem::not_found)?;
        if !keys::store::has_room(&work.tx, account, &person.user).await? {
            let detail = format!("you have {} keys: revoke one first", keys::store::OWN_KEYS_MAX);
            return Err(Problem::conflict("key_limit", detail).into());
        }
        let own = if person.access.caller.is_admin() {
            MemberRole::Admin
        } else {
            MemberRole::Member
        };
        let role = body.role.unwrap_or(own);
        // Revoked since the guard found it.
        let asking = keys::store::key_hold(&work.tx, account, person.access.caller.principal()).await?;
        let until = asking.ok_or_else(Problem::unauthorized)?.expires_at;
        let is_longer = |until: Timestamp| body.expires_at.is_some_and(|expires_at| expires_at.0 > until.0);
        if (role, own) == (MemberRole::Admin, MemberRole::Member) || until.is_some_and(is_longer) {
            let detail = "a key creates none that may do more, or lasts longer, than itself: sign in for another one";
            return Err(Problem::forbidden(detail).into());
        }
        let new = keys::NewKey {
            name: &body.name,
            role: role.key_role(),
            expires_at: body.expires_at.or(until),
            agent: None,
            user: Some(&person.user),
            by: person.access.caller.actor(),
        };
        let (made, created) = key_make(&app, &work.tx, account, new, work.now).await?;
        let kept = without_secret(&made);
        Ok(Done::new(made).kept_as(kept).with(vec![created]))
    })
    .await
}

async fn key_revoke(
    State(app): State<App>,
    person: PersonAccess,
    Named(key): Named<KeyId>,
) -> Result<keys::Revoked, ApiError> {
    let account = &person.access.account;
    let tx = person.access.begin(&app).await?;
    let now = database_now(&tx).await?;
    let asking = keys::store::key_hold(&tx, account, person.access.caller.principal()).await?;
    let asking = asking.ok_or_else(Problem::unauthorized)?;
    let revoked = keys::store::key_revoke(&tx, account, &key, Some(&person.user), now).await?;
    let revoked = revoked.ok_or_else(Problem::not_found)?;
    let is_more = |role: &str| role == MemberRole::Admin.as_str();
    if is_more(&revoked.role) && !is_more(&asking.role) {
        // What a tool was given does not lock its person out.
        return Err(Problem::forbidden("a member's key revokes no admin's key: use a key that may do as much").into());
    }
    let revoked = keys::changed(&key, Some(&person.user), Change::Removed, person.access.caller.actor());
    app.commit(tx, vec![app.event(account, now, revoked)]).await?;
    tracing::info!(%account, %key, user = %person.user, "revoked a key of one's own");
    Ok(keys::disconnect_key(&app, account, &key).await)
}

async fn sign_ins(State(app): State<App>, person: PersonAccess) -> Result<Json<Items<SignIn>>, ApiError> {
    let tx = person.access.begin(&app).await?;
    let items = match login_of(&tx, &person.access.account, &person.user).await? {
        Some(login) => sessions_list(&tx, login).await?,
        None => Vec::new(),
    };
    tx.commit().await?;
    Ok(Json(Items {
        items,
        next_cursor: None,
    }))
}

async fn sign_in_end(
    State(app): State<App>,
    person: PersonAccess,
    Named(session): Named<Uuid>,
) -> Result<NoContent, ApiError> {
    let account = &person.access.account;
    let tx = person.access.begin(&app).await?;
    let ended = match login_of(&tx, account, &person.user).await? {
        Some(login) => sessions_end(&tx, login, Some(session)).await?,
        None => 0,
    };
    tx.commit().await?;
    if ended == 0 {
        return Err(Problem::not_found().into());
    }
    tracing::info!(%account, user = %person.user, %session, "signed a browser out");
    Ok(NoContent)
}

async fn identity_add(
    State(app): State<App>,
    person: PersonAccess,
    Named(provider): Named<String>,
    Post { once, .. }: Post<Invite>,
) -> Result<Answer<201, AddIdentity>, ApiError> {
    let provider = app.oidc.iter().find(|known| known.name() == provider);
    let provider = provider.ok_or_else(Problem::not_found)?;
    let url = format!("{}/sign-in/oidc/{}?add=true", app.base_url(), provider.name());
    once.run(&app, person.access.party(), async |_| {
        Ok(Done::new(AddIdentity { url: url.clone() }))
    })
    .await
}
