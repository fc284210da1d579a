//! `/api/sessions/{session}/tasks`: an orchestrator's board, and the tasks of a session (O10). Whoever sees the session sees them.

use api::tasks::{BoardTaskChange, NewBoardTask, Task, TaskChange};
use axum::{Json, extract::State};
use domain::{AccountId, AgentId, MailTo, Owner, Party, SessionOf, SessionRef, TaskId, TaskStatus};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::{
    StorageError, Tx,
    entity::task::Model,
    lifecycle::{NewOnBoard, board_add, dependencies::graph_lock, mail_send::addressees, plan::tasks_lock_with},
};
use uuid::Uuid;

use crate::{
    app::App,
    auth::Access,
    body::{JsonBody, Named, Query, Within},
    error::{ApiError, invalid_field},
    idempotency::{Answer, Done, Post},
    paging::{Cursor, Limit, List, Listing, Page, Shown},
    route::routes,
    sessions::prompt::named,
    tasks::{
        http::{Given, changed, not_placed, with_assignees},
        store::{self, task_find},
    },
};

routes! {
    "boards": "Tasks of orchestrators' boards, and of the sessions that work on them";
    /// The tasks of an orchestrator's board; of another session its own and those that it was given. Newest first.
    GET "/api/sessions/{session}/tasks" Read => list;
    /// Put a task on an orchestrator's board. It begins as `pending`, or as `blocked` if it waits for others.
    POST "/api/sessions/{session}/tasks" ChangeTasks => add or 404 or 409;
    /// Change a task of the session's: its status, what came of it, what it waits for, who works on it.
    PUT "/api/sessions/{session}/tasks/{task}" ChangeTasks => change or 404 or 409;
    /// The task of a session, and those that it was given. Newest first.
    GET "/api/sessions/{session}/my-tasks" Read => mine;
}

/// Whose tasks a session shows.
enum Shows {
    Board(Owner),
    /// Of a conversation: its task, and its agent.
    Worker(TaskId, AgentId),
}

/// Of a session that the caller sees. What it does not see and what is not there have one answer.
async fn shows(tx: &Tx, access: &Access, session: &SessionRef) -> Result<Shows, ApiError> {
    let of = named(tx, &access.account, session)
        .await?
        .ok_or_else(Problem::not_found)?;
    match of {
        SessionOf::Orchestrator(owner) => {
            let is_seen = owner.user().is_none_or(|user| access.sees(user));
            is_seen
                .then_some(Shows::Board(owner))
                .ok_or_else(|| Problem::not_found().into())
        }
        SessionOf::Task { task, agent } => Ok(Shows::Worker(task, agent)),
        SessionOf::Guest { .. } | SessionOf::Agent(_) | SessionOf::Branch { .. } | SessionOf::Replay(_) => {
            Err(Problem::not_found().into())
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    status: Option<TaskStatus>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionRef>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Task>, ApiError> {
    let tx = app.begin_list(&access.accounts()).await?;
    let shows = shows(&tx, &access, &session).await?;
    page(&app, &access.account, tx, (&shows, &query)).await
}

async fn mine(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionRef>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Task>, ApiError> {
    let tx = app.begin_list(&access.accounts()).await?;
    let shows = shows(&tx, &access, &session).await?;
    if let Shows::Board(_) = shows {
        return Err(Problem::conflict("no_worker", "an orchestrator works on no task: ask for its `tasks`").into());
    }
    page(&app, &access.account, tx, (&shows, &query)).await
}

async fn page(
    app: &App,
    account: &AccountId,
    tx: Tx,
    (shows, query): (&Shows, &ListQuery),
) -> Result<Shown<Task>, ApiError> {
    let status = query.status;
    let (listing, of, values): (&Listing, String, Vec<sea_orm::Value>) = match shows {
        Shows::Board(owner) => {
            let board = owner.to_string();
            (&store::ON_BOARD, board.clone(), vec![board.into(), status.into()])
        }
        Shows::Worker(task, agent) => {
            let values = vec![task.key().into(), (*agent).into(), status.into()];
            (&store::OF_SESSION, format!("{} {agent}", task.key()), values)
        }
    };
    let list = List::of(listing, "tasks of a session", account, format_args!("{of} {status:?}"));
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let (rows, places) = page
        .read(&tx, listing, values, "list tasks of a session")
        .await?
        .apart();
    let rows: Vec<Model> = rows;
    let items = with_assignees(&tx, account, rows).await?;
    tx.commit().await?;
    Ok(places.show(items))
}

/// A session that may work on tasks of a board: one of the board's, by its task and its agent.
async fn worker(tx: &Tx, account: &AccountId, session: &str, board: &Owner) -> Result<(TaskId, AgentId), ApiError> {
    let found = match session.trim().parse() {
        Ok(session) => addressees(tx, account, (None, &MailTo::Session(session))).await?.pop(),
        Err(_) => None,
    };
    let found = found.and_then(|found| match found.party {
        Party::Session { task, board: Some(of) } if of == *board => Some((task, found.conversation?.agent)),
        _ => None,
    });
    let what = "name a session whose task is on this board, by its id or its key";
    found.ok_or_else(|| invalid_field("session_id", what).into())
}

async fn add(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionRef>,
    Post { body, once }: Post<NewBoardTask>,
) -> Result<Answer<201, Task>, ApiError> {
    let account = &access.account;
    app.has_room(account)?;
    once.run(&app, access.party(), async |work| {
        let (tx, by) = (&work.tx, access.caller.actor());
        let Shows::Board(board) = shows(tx, &access, &session).await? else {
            let what = "tasks are put on the board of an orchestrator: name its session";
            return Err(Problem::conflict("no_board", what).into());
        };
        graph_lock(tx, account).await?;
        let blockers = body.blocked_by.clone().unwrap_or_default().0;
        if let Some(first) = blockers.first() {
            tasks_lock_with(tx, account, first, &blockers).await?;
        }
        let worker = match &body.session_id {
            Some(session) => Some(worker(tx, account, session, &board).await?),
            None => None,
        };
        let task = TaskId::parse(&Uuid::now_v7().to_string());
        let task = task.map_err(|error| StorageError::unreadable("name a task", error))?;
        let new = NewOnBoard {
            account,
            board: &board,
            task: &task,
            title: &body.title,
            description: body.description.as_deref().unwrap_or_default(),
            parent: body.parent_task_id.as_ref(),
            blockers: &blockers,
            worker: worker.as_ref().map(|(task, agent)| (task, *agent)),
            is_planned: body.plan_gate.is_some(),
            by: &by,
        };
        let messages = board_add(tx, &new, &app.setting(None, work.now)).await?;
        let messages = messages.map_err(not_placed)?;
        let row = task_find(tx, account, &task).await?.ok_or_else(Problem::not_found)?;
        let task = with_assignees(tx, account, vec![row]).await?.pop();
        Ok(Done::new(task.ok_or_else(Problem::not_found)?).with(messages))
    })
    .await
}

async fn change(
    State(app): State<App>,
    access: Access,
    Within(session, task): Within<SessionRef, TaskId>,
    JsonBody(change): JsonBody<BoardTaskChange>,
) -> Result<Json<Task>, ApiError> {
    let account = &access.account;
    let tx = access.begin(&app).await?;
    let shows = shows(&tx, &access, &session).await?;
    let row = task_find(&tx, account, &task).await?;
    let board = row.as_ref().and_then(|row| row.board.as_ref()?.parse::<Owner>().ok());
    let is_theirs = match (&shows, &row) {
        (_, None) => false,
        (Shows::Board(owner), Some(_)) => board.as_ref() == Some(owner),
        (Shows::Worker(own, agent), Some(row)) => {
            let mut places = store::places_of(&tx, account, vec![row.id.clone()]).await?;
            let place = places.remove(&row.id);
            own.key().as_str() == row.id
                || place.is_some_and(|place| {
                    place.worker_task.is_some_and(|task| task.key() == own.key()) && place.worker_agent == Some(*agent)
                })
        }
    };
    if !is_theirs {
        return Err(Problem::not_found().into());
    }
    let worker = match (&change.session_id, &board) {
        (None, _) => None,
        (Some(None), _) => Some(None),
        (Some(Some(session)), Some(board)) => Some(Some(worker(&tx, account, session, board).await?)),
        (Some(Some(_)), None) => {
            return Err(invalid_field("session_id", "the task is on no board: leave the session out").into());
        }
    };
    let given = Given {
        worker: worker
            .as_ref()
            .map(|worker| worker.as_ref().map(|(task, agent)| (task, *agent))),
        result: change.result.as_deref(),
    };
    let change = TaskChange {
        status: change.status,
        blocked_on: change.blocked_on,
        blocked_by: change.blocked_by,
        ..TaskChange::default()
    };
    changed(&app, &access, tx, (&task, change), Some(given)).await
}
