//! `/api/orgs/{account}/tasks`.

use std::slice;

use api::{
    next::Next,
    questions::{PlanMode, StoredPlanGate},
    tasks::{
        Blocked, BlockedBy, Blockers, Cancel, CaughtBy, Handover, NewTask, Outcomes, StatusEffect, Task, TaskChange,
    },
};
use axum::{Json, extract::State, http::StatusCode, response::IntoResponse};
use contracts::event::{Event, TaskChanged, TaskPart};
use domain::{
    AccountId, Actor, ActorKind, AgentId, AgentRef, Audience, Conversation, Generation, SessionScope, TaskId,
    TaskStatus, UserId, next::task_next, question::NotAudience,
};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use storage::{
    Setting, StorageError, Tx,
    entity::task::Model,
    lifecycle::{
        self, BlockedOn, NotBlocked, NotHandedOver, TaskMove, TaskMoved, TaskNotMoved, activity_insert,
        dependencies::{
            NotPlaced, Waits, dependencies_set, graph_lock, parent_set, result_set, tasks_below, worker_set,
        },
        plan::tasks_lock_with,
        task_create, task_status_set,
    },
    outbox::Owned,
    session::sessions_close::task_sessions_lock,
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{next::tasks_now, store};
use crate::{
    agents,
    app::{App, database_now},
    auth::Access,
    body::{JsonBody, Named, Query},
    dry_run::alone,
    error::{ApiError, invalid_field, unknown_agent},
    idempotency::{Answer, Done, Post},
    paging::{Cursor, Limit, List, Page, Shown},
    personas::{http::usable, store::persona_slugs},
    questions::may_loosen,
    route::routes,
};

routes! {
    "tasks": "Units of work that people and agents share";
    /// Create a task.
    POST "/api/orgs/{account}/tasks" ChangeTasks => create or 409;
    /// Tasks, newest first.
    GET "/api/orgs/{account}/tasks" Read => list;
    /// A task, in any spelling of its id.
    GET "/api/orgs/{account}/tasks/{task}" Read => read;
    /// What moves a task next, from what is stored: words in replies and messages decide nothing.
    GET "/api/orgs/{account}/tasks/{task}/next" Read => next;
    /// Change a task. A terminal status closes its sessions and gives every waiting item its verdict, in the same
    /// transaction, and `cancelled` ends its turns in progress; reopening changes nothing until the next notification.
    PATCH "/api/orgs/{account}/tasks/{task}" ChangeTasks => change or 422;
    /// Cancel a task: its sessions close, all that waits is cancelled, a person's notifications too, and its turns in progress
    /// are ended.
    POST "/api/orgs/{account}/tasks/{task}/cancel" Control => cancel;
    /// Hand a task over: the second agent is assigned in place of the first. The first one's session closes, its turn in progress
    /// is ended, and what people, services and other agents sent waits for the second agent from now on, in its order.
    POST "/api/orgs/{account}/tasks/{task}/handover" Control => hand_over;
}

async fn create(
    State(app): State<App>,
    access: Access,
    Post { body, once }: Post<NewTask>,
) -> Result<Answer<201, Task>, ApiError> {
    let NewTask {
        id,
        title,
        description,
        assignees,
        task_context,
        persona,
        parent_task,
        blocked_by,
    } = body;
    let task = id.unwrap_or_else(|| TaskId::parse(&Uuid::now_v7().to_string()).expect("a UUID is a task id"));
    let (assignees, account) = (assignees.unwrap_or_default().0, &access.account);
    let status = if assignees.is_empty() {
        TaskStatus::Inbox
    } else {
        TaskStatus::Assigned
    };
    once.run(&app, access.party(), async |work| {
        if parent_task.is_some() || blocked_by.is_some() {
            graph_lock(&work.tx, account).await?;
        }
        let assignees = resolve(&work.tx, account, &assignees).await?;
        let by = access.caller.actor();
        let new = lifecycle::NewTask {
            account,
            task: &task,
            title: &title,
            description: description.as_deref().unwrap_or_default(),
            status,
            is_planned: false,
            by: &by,
        };
        let setting = app.setting(None, work.now);
        let Some(mut messages) = task_create(&work.tx, &new, &setting).await? else {
            let what = format!("task {task} already exists, in this or another spelling");
            return Err(Problem::conflict("task_exists", what).into());
        };
        store::assignees_replace(&work.tx, account, &task, &assignees).await?;
        if let Some(need) = task_context {
            store::context_need_set(&work.tx, account, &task, need).await?;
        }
        if let Some(persona) = &persona {
            let persona = usable(&work.tx, &access, persona).await?.id;
            store::persona_set(&work.tx, account, &task, (Some(persona), access.caller.author_id())).await?;
        }
        let placed = Placed {
            parent: parent_task.as_ref().map(Some),
            blockers: blocked_by.as_ref(),
        };
        messages.extend(place(&work.tx, (account, &task), placed, &by, &setting).await?);
        let task = task_find(&work.tx, account, &task).await?;
        Ok(Done::new(task).with(messages))
    })
    .await
}

/// Where a task is to stand among others.
struct Placed<'a> {
    parent: Option<Option<&'a TaskId>>,
    blockers: Option<&'a Blockers>,
}

/// The caller holds the account's graph, if anything is to change, and the locks of the tasks.
async fn place(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    placed: Placed<'_>,
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, ApiError> {
    let mut messages = Vec::new();
    if let Some(parent) = placed.parent {
        let parent = parent.map(|parent| (parent, None));
        let told = parent_set(tx, (account, task), parent, by, setting).await?;
        messages.extend(told.map_err(not_placed)?);
    }
    if let Some(Blockers(blockers)) = placed.blockers {
        let waits = Waits {
            account,
            task,
            blockers,
            board: None,
            by,
        };
        let written = dependencies_set(tx, &waits, setting).await?;
        messages.extend(written.map_err(not_placed)?.messages);
    }
    Ok(messages)
}

pub fn not_placed(why: NotPlaced) -> Problem {
    match &why {
        NotPlaced::NotThere(_) => Problem::new(StatusCode::BAD_REQUEST, why.code()).detail(why.message()),
        NotPlaced::TooMany => invalid_field("blocked_by", why.message()),
        NotPlaced::Cycle(_) | NotPlaced::Crowded(_) | NotPlaced::TooFar | NotPlaced::TooDeep | NotPlaced::Full => {
            Problem::conflict(why.code(), why.message())
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

async fn list(State(app): State<App>, access: Access, Query(query): Query<ListQuery>) -> Result<Shown<Task>, ApiError> {
    let list = List::of(
        &store::LIST,
        "tasks",
        &access.account,
        format_args!("{:?}", query.status),
    );
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&access.accounts()).await?;
    let rows = page
        .read(&tx, &store::LIST, [query.status.into()], "list tasks")
        .await?;
    let (rows, places) = rows.apart();
    let keys = rows.iter().map(|row: &Model| row.id.clone()).collect();
    let facts = tasks_now(&tx, &access.account, keys).await?;
    let mut items = with_assignees(&tx, &access.account, rows).await?;
    for item in &mut items {
        item.next = facts
            .get(&item.id.to_ascii_lowercase())
            .map(|facts| task_next(&facts.now).into());
    }
    tx.commit().await?;
    Ok(places.show(items))
}

async fn read(State(app): State<App>, access: Access, Named(task): Named<TaskId>) -> Result<Json<Task>, ApiError> {
    let tx = access.begin(&app).await?;
    let task = task_shown(&tx, &access.account, &task).await?;
    tx.commit().await?;
    Ok(Json(task))
}

async fn next(State(app): State<App>, access: Access, Named(task): Named<TaskId>) -> Result<Json<Next>, ApiError> {
    let tx = access.begin(&app).await?;
    let task = task_shown(&tx, &access.account, &task).await?;
    tx.commit().await?;
    Ok(Json(task.next.ok_or_else(Problem::not_found)?))
}

/// The task with what moves it next.
async fn task_shown(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Task, ApiError> {
    let key = String::from(task.key());
    let facts = tasks_now(tx, account, vec![key.clone()]).await?.remove(&key);
    let next = facts.map(|facts| task_next(&facts.now).into());
    Ok(Task {
        next,
        ..task_find(tx, account, task).await?
    })
}

async fn change(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    JsonBody(change): JsonBody<TaskChange>,
) -> Result<Json<Task>, ApiError> {
    let tx = access.begin(&app).await?;
    changed(&app, &access, tx, (&task, change), None).await
}

/// What a board's task is given besides.
pub struct Given<'a> {
    /// A task and an agent; none: it is taken back.
    pub worker: Option<Option<(&'a TaskId, AgentId)>>,
    pub result: Option<&'a str>,
}

/// Changes a task, and ends the transaction, in which no task is locked yet.
pub async fn changed(
    app: &App,
    access: &Access,
    tx: Tx,
    (task, change): (&TaskId, TaskChange),
    given: Option<Given<'_>>,
) -> Result<Json<Task>, ApiError> {
    let (account, by) = (&access.account, access.caller.actor());
    if change.overrides == Some(true) && !access.caller.is_admin() {
        return Err(Problem::forbidden("only an admin passes over review stages").into());
    }
    // Lock order: the account's graph, the task with those that wait for it, then sessions, then the rest. Of two concurrent changes,
    // one waits here.
    if change.parent_task.is_some() || change.blocked_by.is_some() {
        graph_lock(&tx, account).await?;
    }
    let blockers = change.blocked_by.as_ref().map(|blockers| &blockers.0[..]);
    tasks_lock_with(&tx, account, task, blockers.unwrap_or_default()).await?;
    let row = store::task_lock(&tx, account, task)
        .await?
        .ok_or_else(Problem::not_found)?;
    if change.dry_run == Some(true) {
        alone(&tx, account).await?;
    }
    // The display id, which subjects carry.
    let task = TaskId::parse(&row.display_id).map_err(|error| StorageError::unreadable("read task", error))?;
    let now = database_now(&tx).await?;
    let note = async |kind, detail| activity_insert(&tx, (account, &task), kind, &by, detail, now).await;
    let (mut messages, mut affected, mut caught) = (Vec::new(), None, None);
    // What is taken away there is no longer in the way of a move.
    let placed = Placed {
        parent: change.parent_task.as_ref().map(Option::as_ref),
        blockers: change.blocked_by.as_ref(),
    };
    let setting = app.setting(None, now);
    messages.extend(place(&tx, (account, &task), placed, &by, &setting).await?);
    if let Some(given) = given {
        if let Some(worker) = given.worker {
            messages.extend(worker_set(&tx, (account, &task), worker, &by, &setting).await?);
        }
        if let Some(result) = given.result {
            result_set(&tx, (account, &task), result, &setting).await?;
        }
    }
    if let Some(to) = change.status {
        let asked = TaskMove {
            account,
            task: &task,
            to,
            by: &by,
            reason: (change.overrides == Some(true)).then_some("override: review stages were passed over"),
            turn: None,
            passes_stages: change.overrides == Some(true),
        };
        let moved = task_status_set(&tx, &asked, &app.setting(None, now))
            .await?
            .map_err(not_moved)?;
        affected = Some(affected_by(&moved));
        caught = moved.caught;
        messages.extend(moved.messages);
        if to == TaskStatus::Blocked {
            let on = change
                .blocked_on
                .as_ref()
                .map(|on| (on.owner.to_string(), on.action.to_string()));
            messages.extend(blocked_by(app, (&tx, now), (account, &task), on, &by).await?);
        }
    } else if change.blocked_on.is_some() {
        let what = "blocked_on says who moves a blocked task on: send it with status blocked";
        return Err(Problem::unprocessable("invalid", what).into());
    }
    if let Some(assignees) = change.assignees {
        let agents = resolve(&tx, account, &assignees.0).await?;
        store::task_change(&tx, account, &task, (None, None), now).await?;
        store::assignees_replace(&tx, account, &task, &agents).await?;
        note("task.assigned", json!({"agents": agents})).await?;
    }
    let fields: Vec<&str> = [
        ("title", change.title.is_some()),
        ("description", change.description.is_some()),
        ("task_context", change.task_context.is_some()),
        ("persona", change.persona.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, given)| given.then_some(name))
    .collect();
    if !fields.is_empty() {
        note("task.updated", json!({"fields": fields})).await?;
        if let Some(need) = change.task_context {
            store::context_need_set(&tx, account, &task, need).await?;
        }
        if let Some(persona) = &change.persona {
            let persona = match persona {
                Some(persona) => Some(usable(&tx, access, persona).await?.id),
                None => None,
            };
            store::persona_set(&tx, account, &task, (persona, access.caller.author_id())).await?;
        }
        let fields = (change.title.map(String::from), change.description.map(String::from));
        store::task_change(&tx, account, &task, fields, now).await?;
    }
    if let Some(gate) = &change.plan_gate {
        let now_asked = store::plan_required_of(&tx, account, &task).await?;
        let asked = gate
            .as_ref()
            .and_then(|gate| Some((gate.mode, gate.audience.as_ref()?.0.clone())));
        if let Some(audience) = now_asked.filter(|now| asked.as_ref() != Some(&(PlanMode::Required, now.clone()))) {
            let audience: Vec<Audience> = audience.iter().filter_map(|one| one.parse().ok()).collect();
            may_loosen(&audience, &access.caller, "the plan of the task")?;
        }
        store::plan_gate_set(&tx, account, &task, gate.as_ref(), now).await?;
        let mode = gate.as_ref().map_or("as the account says", |gate| gate.mode.as_str());
        let id = note("task.plan_gate_changed", json!({"plan_gate": gate})).await?;
        let changed = Event::TaskChanged(TaskChanged {
            what: TaskPart::PlanGate,
            by: by.clone(),
            detail: format!("a plan is: {mode}"),
        });
        messages.push(
            app.setting(None, now)
                .event(account, Some(&task), &id.to_string(), changed),
        );
    }
    let mut task = task_find(&tx, account, &task).await?;
    task.caught = caught.map(|caught| CaughtBy {
        stage: caught.stage,
        question_id: caught.question,
    });
    if change.dry_run == Some(true) {
        task.affected = affected;
        tx.rollback().await?;
    } else {
        app.commit(tx, messages).await?;
    }
    Ok(Json(task))
}

/// Names who moves a blocked task on: who was asked for, or else the caller, unless something moves the task on by itself.
async fn blocked_by(
    app: &App,
    (tx, now): (&Tx, OffsetDateTime),
    (account, task): (&AccountId, &TaskId),
    named: Option<(String, String)>,
    by: &Actor,
) -> Result<Vec<Owned>, ApiError> {
    let (owner, action) = match named {
        Some((owner, action)) => (owner_find(tx, account, &owner).await?, action),
        None if lifecycle::block_covered(tx, account, task).await? => return Ok(Vec::new()),
        None => {
            let user = UserId::parse(&by.id).ok().filter(|_| by.kind == ActorKind::User);
            let owner = user.map_or(Audience::Members, Audience::User);
            (owner, "move the task on".to_owned())
        }
    };
    let on = BlockedOn {
        owner: &owner,
        action: &action,
    };
    let setting = app.setting(None, now);
    match lifecycle::task_block(tx, (account, task), on, by, &setting).await? {
        Ok(messages) => Ok(messages),
        Err(NotBlocked::NoAgent) => Err(Problem::not_found().into()),
    }
}

/// Who is named: as an audience is, and an agent by its slug too.
async fn owner_find(tx: &Tx, account: &AccountId, owner: &str) -> Result<Audience, ApiError> {
    if let Some(agent) = owner
        .strip_prefix("agent:")
        .and_then(|agent| AgentRef::parse(agent).ok())
    {
        let agents = resolve(tx, account, slice::from_ref(&agent)).await?;
        let agent = agents.first().ok_or_else(Problem::not_found)?;
        return Ok(Audience::Agent(*agent));
    }
    owner
        .parse()
        .map_err(|why: NotAudience| invalid_field("blocked_on.owner", why).into())
}

/// Counts what a change of the task would affect by making it, and takes the change back.
async fn dry_run(
    app: &App,
    access: &Access,
    task: &TaskId,
    act: impl AsyncFnOnce((&Tx, OffsetDateTime)) -> Result<(Task, Vec<Owned>), ApiError>,
) -> Result<Answer<200, Task>, ApiError> {
    let account = &access.account;
    let tx = access.begin(app).await?;
    task_find(&tx, account, task).await?;
    alone(&tx, account).await?;
    let now = database_now(&tx).await?;
    let (task, _) = act((&tx, now)).await?;
    tx.rollback().await?;
    Ok(Json(task).into_response().into())
}

async fn cancel(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    Post { body, once }: Post<Cancel>,
) -> Result<Answer<200, Task>, ApiError> {
    let account = &access.account;
    if body.dry_run == Some(true) {
        let act = async |at: (&Tx, OffsetDateTime)| cancelled(&app, &access, at, &task, &body).await;
        return dry_run(&app, &access, &task, act).await;
    }
    once.run(&app, access.party(), async |work| {
        let (task, messages) = cancelled(&app, &access, (&work.tx, work.now), &task, &body).await?;
        tracing::info!(%account, task = task.id, affected = ?task.affected, "cancelled a task");
        Ok(Done::new(task).with(messages))
    })
    .await
}

async fn hand_over(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    Post { body, once }: Post<Handover>,
) -> Result<Answer<200, Task>, ApiError> {
    let account = &access.account;
    if body.dry_run == Some(true) {
        let act = async |at: (&Tx, OffsetDateTime)| handed_over(&app, &access, at, &task, &body).await;
        return dry_run(&app, &access, &task, act).await;
    }
    once.run(&app, access.party(), async |work| {
        let (task, messages) = handed_over(&app, &access, (&work.tx, work.now), &task, &body).await?;
        tracing::info!(%account, task = task.id, affected = ?task.affected, "handed a task over");
        Ok(Done::new(task).with(messages))
    })
    .await
}

/// Hands the task over in the transaction. Gives the task with the effect, and the messages.
async fn handed_over(
    app: &App,
    access: &Access,
    (tx, now): (&Tx, OffsetDateTime),
    task: &TaskId,
    body: &Handover,
) -> Result<(Task, Vec<Owned>), ApiError> {
    let account = &access.account;
    task_find(tx, account, task).await?;
    let agent = async |named: &AgentRef| {
        let found = agents::store::agents_resolve(tx, account, slice::from_ref(named)).await?;
        found
            .get(named)
            .copied()
            .ok_or_else(|| ApiError::from(unknown_agent(named)))
    };
    let (from, to) = (agent(&body.from).await?, agent(&body.to).await?);
    if from == to {
        let what = format!("{} has the task already: name another agent", body.to);
        return Err(invalid_field("to", what).into());
    }
    let asked = lifecycle::Handover {
        account,
        task,
        from,
        to,
        by: &access.caller.actor(),
    };
    let handed = match lifecycle::handover(tx, &asked, &app.setting(None, now)).await? {
        Ok(handed) => handed,
        Err(NotHandedOver::NoTask) => return Err(Problem::not_found().into()),
        Err(NotHandedOver::NoAgent) => return Err(unknown_agent(&body.to).into()),
        Err(NotHandedOver::Ended(status)) => {
            let what = format!("task {task} is {status}: reopen it, then hand it over");
            return Err(Problem::conflict("task_ended", what).into());
        }
        Err(NotHandedOver::NotTheirs) => {
            let has = task_find(tx, account, task).await?.assignees;
            let has: Vec<&str> = has.iter().map(|agent| agent.slug.as_str()).collect();
            let has = if has.is_empty() {
                "no agent".to_owned()
            } else {
                has.join(", ")
            };
            let what = format!(
                "{} is not assigned to task {task} and has no open session on it; {has} is assigned",
                body.from
            );
            return Err(Problem::conflict("not_assigned", what).into());
        }
    };
    let affected = StatusEffect {
        turns: handed.stopping,
        items: Outcomes {
            cancelled: handed.cancelled,
            carried: handed.moved,
        },
        sessions: handed.closed,
    };
    let task = task_find(tx, account, task).await?;
    Ok((
        Task {
            affected: Some(affected),
            ..task
        },
        handed.messages,
    ))
}

/// Cancels in the transaction. Gives the task with the effect, and the messages.
async fn cancelled(
    app: &App,
    access: &Access,
    (tx, now): (&Tx, OffsetDateTime),
    task: &TaskId,
    body: &Cancel,
) -> Result<(Task, Vec<Owned>), ApiError> {
    let (account, by, setting) = (&access.account, access.caller.actor(), app.setting(None, now));
    let mut tasks = vec![task.clone()];
    if body.tree == Some(true) {
        graph_lock(tx, account).await?;
        let below = tasks_below(tx, account, task).await?;
        let below: Vec<TaskId> = below.into_iter().map(|row| row.task).collect();
        tasks_lock_with(tx, account, task, &below).await?;
        let open = tasks_below(tx, account, task).await?;
        let open = open
            .into_iter()
            .filter(|row| row.depth > 0 && !row.status.is_terminal());
        tasks.extend(open.map(|row| row.task));
        task_sessions_lock(tx, account, &tasks, None).await?;
    }
    let (mut affected, mut messages) = (StatusEffect::default(), Vec::new());
    // From the last of the tree to its top.
    for task in tasks.iter().rev() {
        let asked = TaskMove {
            account,
            task,
            to: TaskStatus::Cancelled,
            by: &by,
            reason: body.reason.as_deref(),
            turn: None,
            passes_stages: false,
        };
        let moved = task_status_set(tx, &asked, &setting).await?.map_err(not_moved)?;
        let of = affected_by(&moved);
        affected.turns += of.turns;
        affected.items.cancelled += of.items.cancelled;
        affected.items.carried += of.items.carried;
        affected.sessions += of.sessions;
        messages.extend(moved.messages);
    }
    let task = task_find(tx, account, task).await?;
    let affected = Some(affected);
    Ok((Task { affected, ..task }, messages))
}

fn not_moved(why: TaskNotMoved) -> Problem {
    match why {
        TaskNotMoved::NotThere => Problem::not_found(),
        TaskNotMoved::AwaitsAnswer(question) => {
            let what = format!(
                "the task's plan awaits approval since its agent submitted it: answer question {question}, or withdraw it, or end \
                 the task"
            );
            Problem::conflict("awaiting_answer", what)
        }
        TaskNotMoved::BlockedBy(blockers) => {
            let blockers: Vec<&str> = blockers.iter().map(TaskId::as_str).collect();
            let what = format!(
                "the task waits for {}: end these, or leave them out of its `blocked_by`; until then it is moved to `blocked`, \
                 `cancelled` and `archived` alone",
                blockers.join(", ")
            );
            Problem::conflict("blocked_by", what)
        }
    }
}

fn affected_by(moved: &TaskMoved) -> StatusEffect {
    StatusEffect {
        turns: moved.stopping,
        items: Outcomes {
            cancelled: moved.cancelled.len(),
            carried: moved.carried.len(),
        },
        sessions: moved.closed.len(),
    }
}

/// The named agents, each once; or the first name that is unknown.
async fn resolve(tx: &Tx, account: &AccountId, named: &[AgentRef]) -> Result<Vec<AgentId>, ApiError> {
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let found = agents::store::agents_resolve(tx, account, named).await?;
    let mut agents = named
        .iter()
        .map(|agent| found.get(agent).copied().ok_or_else(|| unknown_agent(agent)))
        .collect::<Result<Vec<AgentId>, Problem>>()?;
    agents.sort_unstable();
    agents.dedup();
    Ok(agents)
}

fn blocked((owner, action): (String, String)) -> Option<Blocked> {
    let (owner, action) = (owner.try_into().ok()?, action.try_into().ok()?);
    Some(Blocked { owner, action })
}

async fn task_find(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Task, ApiError> {
    let row = store::task_find(tx, account, task)
        .await?
        .ok_or_else(Problem::not_found)?;
    let task = with_assignees(tx, account, vec![row]).await?.pop();
    task.ok_or_else(|| Problem::not_found().into())
}

/// The tasks as they are shown.
pub async fn with_assignees(tx: &Tx, account: &AccountId, rows: Vec<Model>) -> Result<Vec<Task>, StorageError> {
    let keys = rows.iter().map(|row| row.id.clone()).collect();
    let mut assignees = store::assignees_of(tx, account, keys).await?;
    let keys = rows.iter().map(|row| row.id.clone()).collect();
    let mut places = store::places_of(tx, account, keys).await?;
    let named = |row: &Model| Some((row.persona_id?, row.persona_by.clone().unwrap_or_default()));
    let personas = rows.iter().filter_map(named).collect();
    let personas = persona_slugs(tx, account, personas).await?;
    let task = |row: Model| {
        let assignees = assignees.remove(&row.id).unwrap_or_default();
        let persona = named(&row).and_then(|named| personas.get(&named).cloned());
        let place = places.remove(&row.id);
        let worker = place
            .as_ref()
            .and_then(|place| place.worker_task.as_ref().zip(place.worker_agent));
        let worker = worker.map(|(task, agent)| Conversation::of(account, SessionScope::Task, Some(task), agent));
        let blocked_by: Option<Vec<BlockedBy>> = place
            .as_ref()
            .and_then(|place| serde_json::from_value(place.blocked_by.clone()).ok());
        Task {
            id: row.display_id,
            title: row.title,
            description: row.description,
            status: row.status,
            assignees,
            plan_gate: row.plan_gate.map(|mode| StoredPlanGate {
                mode,
                audience: row.plan_audience,
            }),
            task_context: row.task_context,
            board: row.board,
            parent_task: place.and_then(|place| place.parent_task),
            blocked_by: blocked_by.unwrap_or_default(),
            worker_session: worker.map(|worker| worker.key(Generation::FIRST).to_string()),
            result: row.result,
            persona,
            created_at: row.created_at.into(),
            updated_at: row.updated_at.into(),
            next: None,
            blocked: row.blocked_owner.zip(row.blocked_action).and_then(blocked),
            affected: None,
            caught: None,
        }
    };
    Ok(rows.into_iter().map(task).collect())
}
