//! `/api/me/memories`, and what the account's orchestrator remembers: what agents write down is shown to whom it is about
//! (`storage::lifecycle::memory`). That a person looks changes nothing.

use api::memories::{Memories, Memory, MemoryQuery, NewMemory, Repository, WrittenMemory};
use axum::{Json, extract::State, http::StatusCode, response::NoContent};
use contracts::event::Change;
use domain::{AccountId, MemoryCategory, MemoryId, Owner};
use runtime::http::Problem;
use storage::lifecycle::memory::{
    MemoryOf, NewMemory as Written, Wanted, changed, memories_find, memory_remove, memory_write,
};
use uuid::Uuid;

use crate::{
    app::{App, database_now},
    auth::{Access, PersonAccess},
    body::{Named, Query},
    error::{ApiError, invalid_field},
    idempotency::{Answer, Done, Post},
    route::routes,
};

routes! {
    "memories": "What orchestrators remember";
    /// What one's own orchestrator remembers, the most relevant first.
    GET "/api/me/memories" Person => list;
    /// Have it remember something.
    POST "/api/me/memories" Person => remember;
    /// What sessions of one's own with a repository remember.
    GET "/api/me/memories/session" Person => list_of_sessions;
    /// Have them remember something.
    POST "/api/me/memories/session" Person => remember_of_sessions;
    /// Have it forgotten.
    DELETE "/api/me/memories/{memory}" Person => forget;
    /// What the account's orchestrator remembers.
    GET "/api/orgs/{account}/orchestrator/memories" Administer => list_of_account;
}

async fn list(
    State(app): State<App>,
    person: PersonAccess,
    Query(query): Query<MemoryQuery>,
) -> Result<Json<Memories>, ApiError> {
    no_repository(query.repo.as_ref())?;
    found(&app, &person.access, &Owner::User(person.user), (&query, None)).await
}

async fn list_of_sessions(
    State(app): State<App>,
    person: PersonAccess,
    Query(query): Query<MemoryQuery>,
) -> Result<Json<Memories>, ApiError> {
    let repository = repository(query.repo.as_ref())?;
    let owner = Owner::User(person.user);
    found(&app, &person.access, &owner, (&query, Some(&repository))).await
}

async fn list_of_account(
    State(app): State<App>,
    access: Access,
    Query(query): Query<MemoryQuery>,
) -> Result<Json<Memories>, ApiError> {
    no_repository(query.repo.as_ref())?;
    found(&app, &access, &Owner::Account, (&query, None)).await
}

async fn found(
    app: &App,
    access: &Access,
    owner: &Owner,
    (query, repository): (&MemoryQuery, Option<&str>),
) -> Result<Json<Memories>, ApiError> {
    let of = of(&access.account, owner, repository);
    let tx = access.begin(app).await?;
    let now = database_now(&tx).await?;
    let category = query.category.as_ref().map(std::slice::from_ref);
    let wanted = Wanted {
        categories: category.unwrap_or(MemoryCategory::ALL),
        query: query.query.as_deref(),
        memories_max: usize::MAX,
        bytes_max: usize::MAX,
        now,
    };
    let found = memories_find(&tx, of, &wanted).await?;
    tx.commit().await?;
    let items = found.rows.into_iter().map(|row| Memory {
        relevance: row.relevance_now(now),
        key: row.key().map(str::to_owned),
        id: row.id,
        category: row.category,
        content: row.content,
        access_count: row.access_count,
        touched_at: row.touched_at.into(),
        session_id: row.session_id,
        created_at: row.created_at.into(),
    });
    Ok(Json(Memories {
        items: items.collect(),
        matched: found.matched,
    }))
}

async fn remember(
    State(app): State<App>,
    person: PersonAccess,
    post: Post<NewMemory>,
) -> Result<Answer<201, WrittenMemory>, ApiError> {
    no_repository(post.body.repo.as_ref())?;
    written(&app, &person, post, None).await
}

async fn remember_of_sessions(
    State(app): State<App>,
    person: PersonAccess,
    post: Post<NewMemory>,
) -> Result<Answer<201, WrittenMemory>, ApiError> {
    let repository = repository(post.body.repo.as_ref())?;
    written(&app, &person, post, Some(&repository)).await
}

async fn written(
    app: &App,
    person: &PersonAccess,
    Post { body, once }: Post<NewMemory>,
    repository: Option<&str>,
) -> Result<Answer<201, WrittenMemory>, ApiError> {
    let (account, owner) = (&person.access.account, Owner::User(person.user.clone()));
    once.run(app, person.access.party(), async |work| {
        let new = Written {
            id: MemoryId(Uuid::now_v7()),
            category: body.category.unwrap_or(MemoryCategory::General),
            content: &body.content,
            key: body.key.as_deref(),
            session: None,
            now: work.now,
        };
        let written = memory_write(&work.tx, of(account, &owner, repository), &new).await?;
        let event = app.event(account, work.now, changed(&owner, written.id, written.change()));
        let answer = WrittenMemory {
            id: written.id,
            replaced: written.replaced,
            pruned: written.pruned,
        };
        Ok(Done::new(answer).with(vec![event]))
    })
    .await
}

async fn forget(
    State(app): State<App>,
    person: PersonAccess,
    Named(memory): Named<MemoryId>,
) -> Result<NoContent, ApiError> {
    let (account, owner) = (&person.access.account, Owner::User(person.user.clone()));
    let tx = person.access.begin(&app).await?;
    if !memory_remove(&tx, account, &owner, memory).await? {
        return Err(Problem::not_found().into());
    }
    let now = database_now(&tx).await?;
    let event = app.event(account, now, changed(&owner, memory, Change::Removed));
    app.commit(tx, vec![event]).await?;
    Ok(NoContent)
}

fn of<'a>(account: &'a AccountId, owner: &'a Owner, repository: Option<&'a str>) -> MemoryOf<'a> {
    MemoryOf {
        account,
        owner,
        repository,
    }
}

/// Two spellings of a repository are one.
fn repository(repo: Option<&Repository>) -> Result<String, Problem> {
    let repo = repo.ok_or_else(|| {
        Problem::new(StatusCode::BAD_REQUEST, "no_repository")
            .detail("sessions remember by repository: name one in `repo`, as in acme/billing")
    })?;
    Ok(repo.trim().to_lowercase())
}

fn no_repository(repo: Option<&Repository>) -> Result<(), Problem> {
    match repo {
        None => Ok(()),
        Some(_) => Err(invalid_field(
            "repo",
            "an orchestrator's memory is of no repository: leave it out, or ask /api/me/memories/session",
        )),
    }
}
