//! `/api/orgs/{account}/members`.

use api::members::{CreatedMember, Invite, Member, MemberChange, NewMember, SignInLink};
use axum::{Json, extract::State, response::NoContent};
use contracts::event::Change;
use domain::{AccountId, Handle, MemberRole, Owner, UserId};
use runtime::http::Problem;
use storage::{
    StorageError,
    accounts::account_lock,
    lifecycle::{mail_settle::mail_return, orchestrator_close},
};

use super::{
    changed,
    link::{invited_for, link_make, without_secret},
    store::{self, LinkFor, member_insert},
};
use crate::{
    app::{App, database_now},
    auth::Access,
    body::{JsonBody, Named, Query},
    error::{ApiError, invalid_field},
    idempotency::{Answer, Done, Post, Work},
    identities::{identity_make, identity_remove},
    paging::{List, ListQuery, Shown},
    personas,
    route::routes,
};

routes! {
    "members": "People of an account";
    /// Add a person. With `invite`, the answer has the link by which the person signs in. A removed member returns under the same
    /// id, if the e-mail address is the one that they had.
    POST "/api/orgs/{account}/members" Administer => create;
    /// The account's people, in the order of their ids. Admins see e-mail addresses.
    GET "/api/orgs/{account}/members" ReadMembers => list;
    /// Change a person's name, role or e-mail address. Another role holds from their next request.
    PATCH "/api/orgs/{account}/members/{user}" Administer => change or 409;
    /// Remove a person: in the same transaction their keys are revoked, their private personas removed, and the session of their
    /// orchestrator closes. What they did stays theirs.
    DELETE "/api/orgs/{account}/members/{user}" Administer => remove or 409;
    /// Another sign-in link, for a person who has not signed in; for everybody else, the operator makes one.
    POST "/api/orgs/{account}/members/{user}/sign-in-link" Administer => invite or 404;
}

async fn create(
    State(app): State<App>,
    access: Access,
    Post { body, once }: Post<NewMember>,
) -> Result<Answer<201, CreatedMember>, ApiError> {
    once.run(&app, access.party(), async |work| {
        // Before the rows of members; and no agent gets the handle as its slug meanwhile.
        account_lock(&work.tx, &access.account).await?;
        let member = member_make(work, &access.account, &body).await?;
        let user = UserId::parse(&member.user_id).map_err(|error| StorageError::unreadable("make member", error))?;
        let by = access.caller.author_id();
        if !access.account.is_reserved() {
            let owner = Owner::User(user.clone());
            let named = (&owner, &Handle::of_user(&user));
            identity_make(&work.tx, &access.account, named, work.now).await?;
        }
        tracing::info!(account = %access.account, %user, role = member.role, by, "added a member");
        let link = match body.invite {
            Some(true) if !member.signed_in => Some(
                link_make(
                    &app,
                    (&work.tx, work.now),
                    (&access.account, &user),
                    by,
                    (LinkFor::Hand, invited_for(&app)),
                )
                .await?,
            ),
            Some(_) | None => None,
        };
        let kept = CreatedMember {
            member: member.clone(),
            link: link.as_ref().map(without_secret),
        };
        let created = changed(&user, Change::Created, access.caller.actor());
        let created = app.event(&access.account, work.now, created);
        let done = Done::new(CreatedMember { member, link });
        Ok(done.kept_as(kept).with(vec![created]))
    })
    .await
}

/// Ids that are tried, of those that an e-mail address suggests.
const NUMBERS_MAX: usize = 20;

async fn member_make(work: &Work, account: &AccountId, new: &NewMember) -> Result<Member, ApiError> {
    let email = new.email.as_ref();
    let named = new.user_id.clone().map(UserId::from);
    let ids = match (named, email) {
        (Some(id), _) => vec![id],
        (None, Some(email)) => match store::member_removed(&work.tx, account, email).await? {
            Some(id) => vec![id],
            None => {
                let id = UserId::of_email(email).ok_or_else(|| {
                    invalid_field(
                        "user_id",
                        "the e-mail address does not begin with a valid id: choose one",
                    )
                })?;
                let numbered = (2..=NUMBERS_MAX).filter_map(|number| id.numbered(number));
                std::iter::once(id.clone()).chain(numbered).collect()
            }
        },
        (None, None) => return Err(invalid_field("user_id", "absent: send user_id or email").into()),
    };
    for user in &ids {
        let member = store::NewMember {
            user,
            name: &new.name,
            email,
            role: new.role,
        };
        if let Some(made) = member_insert(&work.tx, account, member, work.now)
            .await
            .map_err(email_taken)?
        {
            return Ok(made);
        }
    }
    let taken = "the id is another person's, present or removed: choose another; a removed person returns with the e-mail address that they had";
    Err(Problem::conflict("user_id_taken", taken).into())
}

/// A conflict of ids is no error of the statement, so only the address can violate a unique index.
fn email_taken(error: StorageError) -> ApiError {
    if error.is_unique_violation() {
        Problem::conflict("email_taken", "another member of the account has this e-mail address").into()
    } else {
        error.into()
    }
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Member>, ApiError> {
    let sees_addresses = access.caller.is_admin();
    let page = query.page(&app, List::of(&store::LIST, "members", &access.account, ""))?;
    let tx = app.begin_list(&access.accounts()).await?;
    let rows = page
        .read(&tx, &store::LIST, [sees_addresses.into()], "list members")
        .await?;
    tx.commit().await?;
    Ok(rows.show())
}

fn last_admin() -> Problem {
    let detail =
        "this is the account's last admin who has signed in: make another member an admin first, and have them sign in";
    Problem::conflict("last_admin", detail)
}

async fn change(
    State(app): State<App>,
    access: Access,
    Named(user): Named<UserId>,
    JsonBody(change): JsonBody<MemberChange>,
) -> Result<Json<Member>, ApiError> {
    let tx = access.begin(&app).await?;
    let another = match change.role {
        Some(MemberRole::Member) => store::has_other_admin(&tx, &access.account, &user).await?,
        Some(MemberRole::Admin) | None => true,
    };
    let before = store::member_lock(&tx, &access.account, &user)
        .await?
        .ok_or_else(Problem::not_found)?;
    if !another && before.role == MemberRole::Admin.as_str() {
        return Err(last_admin().into());
    }
    let member = store::member_change(&tx, &access.account, &user, change).await;
    let member = member.map_err(email_taken)?.ok_or_else(Problem::not_found)?;
    let changed = changed(&user, Change::Changed, access.caller.actor());
    let now = database_now(&tx).await?;
    app.commit(tx, vec![app.event(&access.account, now, changed)]).await?;
    if member.role != before.role {
        tracing::info!(account = %access.account, %user, role = member.role, by = access.caller.author_id(), "changed a member's role");
    }
    Ok(Json(member))
}

async fn remove(State(app): State<App>, access: Access, Named(user): Named<UserId>) -> Result<NoContent, ApiError> {
    // Also where admins do not see what is people's own: their orchestrator ends with them.
    let tx = app.begin_sweep(&access.account).await?;
    let another = store::has_other_admin(&tx, &access.account, &user).await?;
    let member = store::member_lock(&tx, &access.account, &user)
        .await?
        .ok_or_else(Problem::not_found)?;
    if !another && member.role == MemberRole::Admin.as_str() {
        return Err(last_admin().into());
    }
    let now = database_now(&tx).await?;
    store::member_remove(&tx, &access.account, &user, now).await?;
    let personas = personas::store::private_remove(&tx, &access.account, &user, now).await?;
    let setting = app.setting(None, now);
    let mut messages = mail_return(&tx, &access.account, &user, &setting).await?;
    messages.extend(orchestrator_close(&tx, &access.account, &user, &setting).await?);
    // After the session, as whoever wakes it.
    identity_remove(&tx, &access.account, &Owner::User(user.clone())).await?;
    let removed = personas
        .into_iter()
        .map(|persona| personas::http::changed(persona, Change::Removed, &access.caller));
    let removed = removed.chain([changed(&user, Change::Removed, access.caller.actor())]);
    messages.extend(removed.map(|event| app.event(&access.account, now, event)));
    app.commit(tx, messages).await?;
    tracing::info!(account = %access.account, %user, by = access.caller.author_id(), "removed a member with their private personas and revoked their keys");
    Ok(NoContent)
}

async fn invite(
    State(app): State<App>,
    access: Access,
    Named(user): Named<UserId>,
    Post { once, .. }: Post<Invite>,
) -> Result<Answer<201, SignInLink>, ApiError> {
    once.run(&app, access.party(), async |work| {
        let member = store::member_lock(&work.tx, &access.account, &user)
            .await?
            .ok_or_else(Problem::not_found)?;
        if member.signed_in {
            let detail = "the person has signed in before: the operator makes another link, or the person uses a key of their own";
            return Err(Problem::conflict("has_signed_in", detail).into());
        }
        let by = access.caller.author_id();
        let link = link_make(&app, (&work.tx, work.now), (&access.account, &user), by, (LinkFor::Hand, invited_for(&app))).await?;
        let kept = without_secret(&link);
        let invited = changed(&user, Change::Changed, access.caller.actor());
        let invited = app.event(&access.account, work.now, invited);
        Ok(Done::new(link).kept_as(kept).with(vec![invited]))
    })
    .await
}
