//! `/api/orgs/{account}/personas`.

use api::personas::{NewPersona, NewPersonaFiles, Persona, PersonaChange, PersonaVersion};
use axum::{Json, extract::State, response::NoContent};
use contracts::{
    event::{Change, Event, PersonaChanged},
    quote::inert,
};
use domain::{
    AccountId, AgentId, AgentRef, PersonaFiles, PersonaId, PersonaRef, PersonaVisibility, persona::BYTES_MAX,
};
use runtime::http::Problem;
use storage::{StorageError, Tx, accounts::account_lock, outbox::Owned};
use time::OffsetDateTime;

use super::store::{
    self, Counted, Locked, PERSONAS_MAX, PERSONAS_OF_ONE_MAX, PersonaRow, VersionRow, Viewer, persona_find,
    persona_lock,
};
use crate::{
    agents,
    app::{App, database_now},
    auth::{Access, Caller},
    body::{JsonBody, Named, Query, Within},
    error::{ApiError, invalid_field, unknown_agent, unknown_persona},
    idempotency::{Answer, Done, Post},
    paging::{List, ListQuery, Shown},
    route::routes,
};

routes! {
    "personas": "Files that say how an agent is to be";
    /// Make a persona. It is private, unless `visibility` says otherwise.
    POST "/api/orgs/{account}/personas" WritePersonas => create;
    /// What is shared, and one's own; admins see all. Without files.
    GET "/api/orgs/{account}/personas" Read => list;
    /// A persona, by id or slug, with the files of its newest version.
    GET "/api/orgs/{account}/personas/{persona}" Read => read;
    /// Change a persona: its maker, or an admin. Admins say which one is the default, which another one then no longer is.
    PUT "/api/orgs/{account}/personas/{persona}" WritePersonas => change or 409;
    /// Write the next version of the files. Equal files make none. Sessions keep the version with which their generation began.
    PUT "/api/orgs/{account}/personas/{persona}/files" WritePersonas => write or 409;
    /// Remove a persona. Its slug becomes free; sessions keep their version.
    DELETE "/api/orgs/{account}/personas/{persona}" WritePersonas => remove or 409;
    /// The versions, newest first, without files. The newest 50 are kept.
    GET "/api/orgs/{account}/personas/{persona}/versions" Read => versions;
    /// A version, with its files.
    GET "/api/orgs/{account}/personas/{persona}/versions/{number}" Read => version;
}

fn viewer(caller: &Caller) -> Viewer<'_> {
    Viewer {
        id: caller.author_id(),
        is_admin: caller.is_admin(),
    }
}

pub fn changed(persona: PersonaId, change: Change, caller: &Caller) -> Event {
    Event::PersonaChanged(PersonaChanged {
        persona_id: persona,
        change,
        by: caller.actor(),
    })
}

/// Ids are fresh, so only the slug can violate a unique index.
fn slug_taken(error: StorageError) -> ApiError {
    if error.is_unique_violation() {
        let detail = "another persona of the account has this slug, perhaps a private one: choose another";
        Problem::conflict("slug_taken", detail).into()
    } else {
        error.into()
    }
}

fn in_use() -> Problem {
    let detail =
        "this is the account's default persona: make another one the default, or none (`is_default: false`), first";
    Problem::conflict("persona_in_use", detail)
}

fn only_admins() -> Problem {
    Problem::forbidden("only an admin says which persona is the default")
}

async fn worker(tx: &Tx, account: &AccountId, agent: Option<&AgentRef>) -> Result<Option<AgentId>, ApiError> {
    let Some(agent) = agent else { return Ok(None) };
    let found = agents::store::agent_find(tx, account, agent).await?;
    let found = found.ok_or_else(|| unknown_agent(agent))?;
    Ok(Some(AgentId(found.id)))
}

/// A persona that the caller may use: one that is shared, or the caller's own. An admin sees more, and everybody would read it.
pub async fn usable(tx: &Tx, access: &Access, persona: &PersonaRef) -> Result<PersonaRow, ApiError> {
    let user = Viewer {
        is_admin: false,
        ..viewer(&access.caller)
    };
    let found = persona_find(tx, &access.account, user, persona).await?;
    found.ok_or_else(|| unknown_persona(persona).into())
}

/// Limits are for what prompts show.
fn fit(files: &PersonaFiles) -> Result<(), ApiError> {
    let bytes: usize = files.as_slice().iter().map(|file| inert(&file.content).len()).sum();
    if bytes > BYTES_MAX {
        let what = format!(
            "prompts write characters that cannot be seen as escapes, and so the files with {bytes} bytes; at most {BYTES_MAX}"
        );
        return Err(invalid_field("files", &what).into());
    }
    Ok(())
}

/// Whether the account, and this maker, may have another one.
async fn room(tx: &Tx, account: &AccountId, maker: &str) -> Result<(), ApiError> {
    let counted = store::personas_count(tx, account, maker).await?;
    let detail = match counted {
        Counted { of_account, .. } if of_account >= PERSONAS_MAX => {
            format!("the account has {PERSONAS_MAX} personas, some of them perhaps private: somebody has to remove one")
        }
        Counted { of_maker, .. } if of_maker >= PERSONAS_OF_ONE_MAX => {
            format!("you have made {PERSONAS_OF_ONE_MAX} personas: remove one first")
        }
        Counted { .. } => return Ok(()),
    };
    Err(Problem::conflict("persona_limit", detail).into())
}

async fn shown(tx: &Tx, access: &Access, persona: PersonaId) -> Result<Persona, ApiError> {
    let found = persona_find(tx, &access.account, viewer(&access.caller), &PersonaRef::Id(persona)).await?;
    Ok(found.ok_or_else(Problem::not_found)?.shown())
}

async fn create(
    State(app): State<App>,
    access: Access,
    Post { body, once }: Post<NewPersona>,
) -> Result<Answer<201, Persona>, ApiError> {
    let (account, caller) = (&access.account, &access.caller);
    let is_default = body.is_default == Some(true);
    if is_default && !caller.is_admin() {
        return Err(only_admins().into());
    }
    if is_default && body.visibility != Some(PersonaVisibility::Shared) {
        return Err(invalid_field("visibility", "a default persona is shared").into());
    }
    fit(&body.files)?;
    once.run(&app, access.party(), async |work| {
        account_lock(&work.tx, account).await?;
        store::removed_clear(&work.tx, account).await?;
        room(&work.tx, account, caller.author_id()).await?;
        let agent = worker(&work.tx, account, body.agent.as_ref()).await?;
        let mut messages = Vec::new();
        if is_default {
            messages.extend(default_move(&app, &work.tx, &access, None, work.now).await?);
        }
        let by = (agent, caller.author_id());
        let made = store::persona_insert(&work.tx, account, &body, by, work.now).await;
        let made = made.map_err(slug_taken)?;
        messages.push(app.event(account, work.now, changed(made, Change::Created, caller)));
        tracing::info!(%account, persona = %made, slug = %body.slug, by = caller.author_id(), "made a persona");
        Ok(Done::new(shown(&work.tx, &access, made).await?).with(messages))
    })
    .await
}

/// Another persona becomes the default: the one before no longer is, and listeners hear of it.
async fn default_move(
    app: &App,
    tx: &Tx,
    access: &Access,
    to: Option<PersonaId>,
    now: OffsetDateTime,
) -> Result<Option<Owned>, StorageError> {
    let before = store::default_clear(tx, &access.account, to, now).await?;
    let event = |before| app.event(&access.account, now, changed(before, Change::Changed, &access.caller));
    Ok(before.map(event))
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Persona>, ApiError> {
    let viewer = viewer(&access.caller);
    let page = query.page(&app, List::of(&store::LIST, "personas", &access.account, viewer.id))?;
    let tx = app.begin_list(&access.accounts()).await?;
    let values = [viewer.id.into(), viewer.is_admin.into()];
    let rows = page.read(&tx, &store::LIST, values, "list personas").await?;
    tx.commit().await?;
    Ok(rows.show_as(|row: PersonaRow| row.shown()))
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(persona): Named<PersonaRef>,
) -> Result<Json<Persona>, ApiError> {
    let tx = access.begin(&app).await?;
    let found = persona_find(&tx, &access.account, viewer(&access.caller), &persona).await?;
    tx.commit().await?;
    Ok(Json(found.ok_or_else(Problem::not_found)?.shown()))
}

/// The persona, locked, if the caller may change it. 404 for whoever does not see it.
async fn editable(tx: &Tx, access: &Access, persona: &PersonaRef) -> Result<Locked, ApiError> {
    let viewer = viewer(&access.caller);
    let found = persona_lock(tx, &access.account, viewer, persona).await?;
    let found = found.ok_or_else(Problem::not_found)?;
    if viewer.is_admin || found.created_by == viewer.id {
        Ok(found)
    } else {
        Err(Problem::forbidden("only its maker and admins change a persona").into())
    }
}

async fn change(
    State(app): State<App>,
    access: Access,
    Named(persona): Named<PersonaRef>,
    JsonBody(change): JsonBody<PersonaChange>,
) -> Result<Json<Persona>, ApiError> {
    let account = &access.account;
    if change.is_default.is_some() && !access.caller.is_admin() {
        return Err(only_admins().into());
    }
    let tx = access.begin(&app).await?;
    account_lock(&tx, account).await?;
    let found = editable(&tx, &access, &persona).await?;
    let is_default = change.is_default.unwrap_or(found.is_default);
    let visibility = change.visibility.unwrap_or(found.visibility);
    if is_default && visibility == PersonaVisibility::Private {
        return Err(match found.is_default {
            true => in_use().into(),
            false => invalid_field("visibility", "a default persona is shared").into(),
        });
    }
    let agent = worker(&tx, account, change.agent.as_ref().and_then(Option::as_ref)).await?;
    if change == PersonaChange::default() {
        let persona = shown(&tx, &access, found.id).await?;
        tx.commit().await?;
        return Ok(Json(persona));
    }
    let now = database_now(&tx).await?;
    let mut messages = Vec::new();
    if is_default && !found.is_default {
        messages.extend(default_move(&app, &tx, &access, Some(found.id), now).await?);
    }
    let done = store::persona_change(&tx, account, found.id, change, agent, now).await;
    done.map_err(slug_taken)?;
    messages.push(app.event(account, now, changed(found.id, Change::Changed, &access.caller)));
    let persona = shown(&tx, &access, found.id).await?;
    app.commit(tx, messages).await?;
    Ok(Json(persona))
}

async fn write(
    State(app): State<App>,
    access: Access,
    Named(persona): Named<PersonaRef>,
    JsonBody(new): JsonBody<NewPersonaFiles>,
) -> Result<Json<Persona>, ApiError> {
    let (account, by) = (&access.account, access.caller.author_id());
    fit(&new.files)?;
    let tx = access.begin(&app).await?;
    let found = editable(&tx, &access, &persona).await?;
    let newest = store::version_newest(&tx, account, &found).await?;
    if let Some(asked) = new.base_version.map(i32::from).filter(|asked| *asked != newest.number) {
        let what = format!(
            "the newest version is {} and not {asked}: read it, then write again",
            newest.number
        );
        return Err(Problem::conflict("version_conflict", what).into());
    }
    let mut messages = Vec::new();
    if newest.hash != new.files.hash() {
        let now = database_now(&tx).await?;
        store::files_write(&tx, account, (&found, newest.number), (&new.files, by), now).await?;
        messages.push(app.event(account, now, changed(found.id, Change::Changed, &access.caller)));
        tracing::info!(%account, persona = %found.id, slug = %found.slug, number = newest.number + 1, by, "wrote a persona's files");
    }
    let persona = shown(&tx, &access, found.id).await?;
    app.commit(tx, messages).await?;
    Ok(Json(persona))
}

async fn remove(
    State(app): State<App>,
    access: Access,
    Named(persona): Named<PersonaRef>,
) -> Result<NoContent, ApiError> {
    let (account, by) = (&access.account, access.caller.author_id());
    let tx = access.begin(&app).await?;
    let found = editable(&tx, &access, &persona).await?;
    if found.is_default {
        return Err(in_use().into());
    }
    let now = database_now(&tx).await?;
    store::persona_remove(&tx, account, found.id, now).await?;
    let removed = app.event(account, now, changed(found.id, Change::Removed, &access.caller));
    app.commit(tx, vec![removed]).await?;
    tracing::info!(%account, persona = %found.id, slug = %found.slug, by, "removed a persona");
    Ok(NoContent)
}

async fn versions(
    State(app): State<App>,
    access: Access,
    Named(persona): Named<PersonaRef>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<PersonaVersion>, ApiError> {
    let account = &access.account;
    let page = query.page(&app, List::of(&store::VERSIONS, "persona-versions", account, &persona))?;
    let tx = app.begin_list(&access.accounts()).await?;
    let found = persona_find(&tx, account, viewer(&access.caller), &persona).await?;
    let found = found.ok_or_else(Problem::not_found)?;
    let rows = page
        .read(&tx, &store::VERSIONS, [found.id.into()], "list a persona's versions")
        .await?;
    tx.commit().await?;
    Ok(rows.show_as(|row: VersionRow| row.shown()))
}

async fn version(
    State(app): State<App>,
    access: Access,
    Within(persona, number): Within<PersonaRef, i32>,
) -> Result<Json<PersonaVersion>, ApiError> {
    let account = &access.account;
    let tx = access.begin(&app).await?;
    let found = persona_find(&tx, account, viewer(&access.caller), &persona).await?;
    let found = found.ok_or_else(Problem::not_found)?;
    let version = store::version_find(&tx, account, found.id, number).await?;
    tx.commit().await?;
    Ok(Json(version.ok_or_else(Problem::not_found)?.shown()))
}
