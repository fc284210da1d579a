//! `/api/orgs/{account}/audit/isolation`.

use api::audit::Audit;
use axum::{Json, extract::State};
use domain::{AccountId, SessionId, TaskId, Timestamp, TurnId};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::Tx;

use super::{
    judge::{Rendered, judge},
    store::{AuditedTurn, Scope, Sources, Span, TURNS_MAX, sources_of},
    verdict::count,
};
use crate::{
    app::App,
    auth::Access,
    body::Query,
    error::ApiError,
    paging::{Cursor, Limit, List, Page},
    route::routes,
    sessions::store::session_find,
    tasks::store::task_find,
    turns::store::turn_exists,
};

routes! {
    "audit": "Whether prompts hold what they may hold";
    /// Audit the isolation of turns: hold every part of their prompts against the rows that it is of. A page has up to 50 turns, in
    /// the order in which they began; at most one of `task`, `session` and `turn` narrows them. Turns that begin while pages are
    /// read may be on later pages.
    GET "/api/orgs/{account}/audit/isolation" Read => isolation or 404 or 422;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct IsolationQuery {
    /// Only turns about this task.
    task: Option<TaskId>,
    /// Only turns of this generation of a session.
    session: Option<SessionId>,
    /// Only this turn.
    turn: Option<TurnId>,
    /// Only turns that began at this time or later.
    from: Option<Timestamp>,
    /// Only turns that began before this time.
    until: Option<Timestamp>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

impl IsolationQuery {
    fn scope(&self) -> Result<(Scope, Span), Problem> {
        let span = Span {
            from: self.from,
            until: self.until,
        };
        if let (Some(from), Some(until)) = (span.from, span.until)
            && from >= until
        {
            return Err(Problem::unprocessable("invalid", "from has to be before until"));
        }
        let scope = match (&self.task, self.session, self.turn) {
            (None, None, None) => Scope::Account,
            (Some(task), None, None) => Scope::Task(task.clone()),
            (None, Some(session), None) => Scope::Session(session),
            (None, None, Some(turn)) => Scope::Turn(turn),
            (_, _, _) => {
                let what = "give one of task, session and turn, or none for the whole account";
                return Err(Problem::unprocessable("invalid", what));
            }
        };
        Ok((scope, span))
    }
}

async fn isolation(
    State(app): State<App>,
    access: Access,
    Query(query): Query<IsolationQuery>,
) -> Result<Json<Audit>, ApiError> {
    let (scope, span) = query.scope()?;
    let account = &access.account;
    let list = List::of(scope.listing(), "audit", account, format_args!("{scope:?} {span:?}"));
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?.at_most(TURNS_MAX);
    let tx = app.begin_list(&access.accounts()).await?;
    let rows = page
        .read(&tx, scope.listing(), scope.values(span), "read turns to audit")
        .await?;
    let (mut turns, places): (Vec<AuditedTurn>, _) = rows.apart();
    if turns.is_empty() {
        exists(&tx, account, &scope).await?;
    }
    let sources = sources_of(&tx, account, &mut turns).await?;
    tx.commit().await?;
    let next_cursor = places.cursor_after(turns.len()).map(str::to_owned);
    let mut audit = judged(turns, sources).await?;
    audit.next_cursor = next_cursor;
    Ok(Json(audit))
}

/// Judges a page. That takes the processor for some time: no other request waits for it.
async fn judged(turns: Vec<AuditedTurn>, sources: Sources) -> Result<Audit, Problem> {
    let judging = tokio::task::spawn_blocking(move || {
        let mut audit = Audit::default();
        let mut rendered = Rendered::default();
        for turn in &turns {
            count(&mut audit, turn.id.uuid(), judge(turn, &sources, &mut rendered));
        }
        audit
    });
    judging.await.map_err(|_| Problem::internal())
}

/// What has no turns on a page has to be there all the same.
async fn exists(tx: &Tx, account: &AccountId, scope: &Scope) -> Result<(), ApiError> {
    let (is_there, what) = match scope {
        Scope::Account => return Ok(()),
        Scope::Task(task) => (task_find(tx, account, task).await?.is_some(), format!("task {task}")),
        Scope::Session(session) => {
            let is_there = session_find(tx, account, *session).await?.is_some();
            (is_there, format!("session {session}"))
        }
        Scope::Turn(turn) => (turn_exists(tx, account, *turn).await?, format!("turn {turn}")),
    };
    match is_there {
        true => Ok(()),
        false => Err(Problem::not_found().detail(format!("there is no {what} here")).into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::{super::judge_tests::turn, *};

    /// The one thread for long work is busy: a page waits for it, and nobody waits for the page.
    #[test]
    fn a_page_is_judged_beside_the_threads_of_requests() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let (free, is_free) = mpsc::channel::<()>();
        let audit = runtime.block_on(async move {
            let busy = tokio::task::spawn_blocking(move || is_free.recv());
            let page = tokio::spawn(judged(vec![turn(), turn()], Sources::default()));
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert!(!page.is_finished());
            drop(free);
            assert!(busy.await.unwrap().is_err());
            page.await.unwrap().unwrap()
        });
        assert_eq!((audit.turns, audit.next_cursor), (2, None));
    }
}
