//! The queue of a session: what waits in it and why, and edits. The rules of an edit are `domain::queue`'s, its statements
//! those of `storage::session::queue_edit`; here an edit is read, and its refusal told.

pub mod http;
pub mod store;

use domain::{NotificationId, TurnId, next::began};
use runtime::http::Problem;
use storage::session::queue_edit::Refused;

/// Why an edit changed nothing, for its client. Who or what is in the way, since when, and what to do.
pub fn problem(refused: Refused, item: Option<&NotificationId>) -> Problem {
    let item = item.map_or_else(|| "the notification".to_owned(), |id| format!("notification {id}"));
    match refused {
        Refused::Unknown => Problem::not_found(),
        Refused::NotAuthor { author } => {
            let what = format!("{item} is by {}: its author may change it, or an admin", author.name);
            Problem::new(axum::http::StatusCode::FORBIDDEN, "not_author").detail(what)
        }
        Refused::Immutable { kind } => {
            let hint = match kind.as_str() {
                domain::branch::REQUEST => "cancel the subagent with POST …/branches/{branch}/cancel",
                domain::replay::REPLAY => "withdraw it, which ends the replay",
                _ => "move it, or have an admin withdraw it",
            };
            let what = format!("{item} has type {kind}, so it is Signalbox's own: {hint}");
            Problem::conflict("immutable_item", what)
        }
        Refused::Started { turn } => {
            let holder = turn.map_or_else(|| "a turn".to_owned(), in_progress);
            let what = format!("{holder} has {item}: stop the turn, or send another notification");
            of_turn(Problem::conflict("already_started", what), turn)
        }
        Refused::Ended { state, reason } => {
            let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
            let what = format!("{item} is {state}{reason}: send a new one");
            Problem::conflict("already_ended", what).with("state", state.as_str())
        }
        Refused::ItemChanged(revision) => {
            let what =
                format!("{item} was changed and has revision {revision} now: read it, then change that revision");
            Problem::conflict("item_changed", what).with("revision", revision)
        }
        Refused::QueueChanged(revision) => {
            let what = format!(
                "the queue has revision {revision} now: read it again; an order names all that wait, each once"
            );
            Problem::conflict("queue_changed", what).with("revision", revision)
        }
        Refused::StaleTurn(active) => {
            let now = active.map_or_else(
                || "no turn is: name none".to_owned(),
                |turn| format!("{} is: name that one, or none", in_progress(turn)),
            );
            let what = format!("the named turn is not in progress; {now}");
            of_turn(Problem::conflict("stale_turn", what), active)
        }
        Refused::NoTurn { stopping } => {
            let now = stopping.map_or_else(
                || "no turn is in progress".to_owned(),
                |turn| format!("{} is stopping", in_progress(turn)),
            );
            let what =
                format!("{now}: {item} keeps its place, and gets a turn of its own; promote it to have that turn next");
            of_turn(Problem::conflict("no_turn", what), stopping)
        }
    }
}

fn in_progress(turn: TurnId) -> String {
    match began(turn) {
        Some(at) => format!("turn {turn} (in progress since {at})"),
        None => format!("turn {turn}"),
    }
}

fn of_turn(problem: Problem, turn: Option<TurnId>) -> Problem {
    let Some(turn) = turn else { return problem };
    let problem = problem.with("turn_id", turn.to_string());
    match began(turn) {
        Some(at) => problem.with("since", at.to_string()),
        None => problem,
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use domain::{Actor, NotificationState};
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn each_refusal_says_what_is_in_the_way() {
        const TURN: TurnId = TurnId(Uuid::from_u128(0x0190_b5a8_0000_7000_8000_0000_0000_0001));
        let refusals = [
            Refused::Unknown,
            Refused::NotAuthor {
                author: Actor::publisher(),
            },
            Refused::Immutable {
                kind: "answer".to_owned(),
            },
            Refused::Started { turn: Some(TURN) },
            Refused::Ended {
                state: NotificationState::Cancelled,
                reason: Some("task closed".to_owned()),
            },
            Refused::ItemChanged(3),
            Refused::QueueChanged("7.2.1".to_owned()),
            Refused::StaleTurn(Some(TURN)),
            Refused::StaleTurn(None),
            Refused::NoTurn { stopping: None },
            Refused::NoTurn { stopping: Some(TURN) },
        ];
        let item = NotificationId::parse("n-1").unwrap();
        let mut told = Vec::new();
        for refused in refusals {
            let response = problem(refused, Some(&item)).into_response();
            let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
            let mut body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            for field in ["type", "title"] {
                body.as_object_mut().unwrap().remove(field);
            }
            told.push(body.to_string());
        }
        insta::assert_snapshot!(told.join("\n"));
    }
}
