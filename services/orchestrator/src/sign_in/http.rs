//! `/api/sign-in-links`, for the operator.

use api::members::{NewSignInLink, SignInLink};
use axum::extract::State;
use contracts::event::Change;
use runtime::http::Problem;
use time::Duration;

use crate::{
    app::App,
    auth::{Caller, OperatorAccess, Party},
    error::{ApiError, invalid_field},
    idempotency::{Answer, Done, Post},
    members::{
        changed,
        link::{asked_for, link_make, without_secret},
        store::{LinkFor, member_lock},
    },
    route::routes,
};

routes! {
    "sign-in": "One-time links by which people sign in";
    /// Make a link for any member: the person opens it, and gets a key of their own. A link works once; a new one ends the one before.
    POST "/api/sign-in-links" Operate => create;
}

const LONGEST: Duration = Duration::days(7);

async fn create(
    State(app): State<App>,
    _operator: OperatorAccess,
    Post { body, once }: Post<NewSignInLink>,
) -> Result<Answer<201, SignInLink>, ApiError> {
    let account = &body.account;
    let good_for = body.minutes.map_or_else(
        || asked_for(&app),
        |minutes| Duration::minutes(i32::from(minutes).into()),
    );
    if good_for > LONGEST {
        let what = format!("at most {}, which is seven days", LONGEST.whole_minutes());
        return Err(invalid_field("minutes", what).into());
    }
    let purpose = match body.another_login {
        Some(true) => LinkFor::AnotherLogin,
        Some(false) | None => LinkFor::Hand,
    };
    once.run(&app, Party::operator(Some(account)), async |work| {
        let Some(_) = member_lock(&work.tx, account, &body.user_id).await? else {
            let status = axum::http::StatusCode::BAD_REQUEST;
            let detail = format!("account {account} has no member {}", body.user_id);
            return Err(Problem::new(status, "unknown_user").detail(detail).into());
        };
        let link = link_make(
            &app,
            (&work.tx, work.now),
            (account, &body.user_id),
            Caller::Operator.author_id(),
            (purpose, good_for),
        )
        .await?;
        let kept = without_secret(&link);
        let invited = changed(&body.user_id, Change::Changed, Caller::Operator.actor());
        let invited = app.event(account, work.now, invited);
        Ok(Done::new(link).kept_as(kept).with(vec![invited]))
    })
    .await
}
