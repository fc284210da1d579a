//! `subagent_spawn`: makes branches of the turn's work. All checks come before anything is written; then all are made, or none.

use contracts::tools::{BODY_BYTES_MAX, subagent_spawn::DEADLINE_S_MAX};
use domain::{AgentId, BranchContext, JoinMode, TaskId, TurnId};
use serde_json::{Map, Value, json};
use storage::{
    lifecycle::task_context_find,
    session::branch_spawn::{BRANCHES_OF_TURN_MAX, NewBranch, NewGroup, Parent, branch_spawn, branches_count},
};
use time::Duration;

use super::{Running, ToolError, ToolOutcome, response_request::agents_found, task_open};
use crate::{
    arguments::invalid_field,
    call::{Effect, ToolAnswer},
    refusal::Refusal,
    settings::BranchLimits,
    store::{self, AgentRow},
};

const NOTHING: &str = "No subagent was made.";

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let (facts, limits, tx) = (running.facts, running.branches, running.questions.tx);
    let asked = asked(&arguments)?;
    let Some(task) = facts.task() else {
        let why = "This turn has no task, and a subagent works on its parent's task.";
        return Err(refused("no_task", why, "Do the work yourself, or ask on a task.").into());
    };
    let Some(turn) = &facts.turn else {
        let why = "No turn of this conversation is in progress, and subagents are made during a turn.";
        return Err(refused("no_turn", why, "Make them in the next turn, while you work on it.").into());
    };
    if facts.depth() >= limits.depth_max {
        let why = format!(
            "You are a subagent yourself, at depth {} of {}.",
            facts.depth(),
            limits.depth_max
        );
        return Err(refused("branch_depth", why, "Do the work yourself.").into());
    }
    let context = task_context_find(tx, running.account, task).await?;
    let context = context.ok_or_else(|| Refusal::not_there(task, facts).told())?;
    if let Some(missing) = Refusal::of_context(&context) {
        return Err(missing.told().into());
    }
    task_open(running).await?;
    let agents = agents(running, &asked).await?;
    room(running, (task, turn.id), asked.len()).await?;
    if facts.hops().saturating_add(2) > limits.hops_max {
        let why = format!(
            "Agents have woken each other {} times in a row to get here, and a result would be the {}th of at most {}.",
            facts.hops(),
            facts.hops().saturating_add(2),
            limits.hops_max
        );
        return Err(refused(
            "hop_limit",
            why,
            "Do the work yourself, or say in your reply what is left.",
        )
        .into());
    }
    let branches: Vec<NewBranch> = asked
        .iter()
        .zip(&agents)
        .map(|(one, agent)| NewBranch {
            agent: agent.id,
            label: one.label.clone(),
            request: one.request.to_owned(),
            context: one.context,
        })
        .collect();
    let by = facts.actor();
    let word = |field: &str| arguments.get(field).and_then(Value::as_str);
    let new = NewGroup {
        parent: Parent {
            account: running.account,
            task,
            session: running.session,
            depth: facts.depth(),
            turn: turn.id,
            by: &by,
        },
        call: running.call,
        join: word("join").and_then(JoinMode::parse).unwrap_or(JoinMode::All),
        deadline_at: facts.now + deadline(&arguments, limits),
        branches: &branches,
    };
    let spawned = branch_spawn(tx, &new, running.setting).await?;
    let (spawned, messages) = spawned.ok_or_else(|| Refusal::TurnOver.told())?;
    let subagents: Vec<Value> = spawned
        .iter()
        .zip(&branches)
        .zip(&agents)
        .map(|((ids, one), agent)| {
            json!({
                "branch_id": ids.branch,
                "session_id": ids.session,
                "agent": agent.slug,
                "label": one.label,
                "context": one.context,
            })
        })
        .collect();
    let note = "Their results are not this result: they come as a notification. Finish your turn, or go on with what does not \
                depend on them.";
    Ok(Effect::new(
        json!({"group": running.call, "subagents": subagents, "note": note}),
        messages,
    ))
}

fn refused(code: &'static str, why: impl Into<String>, instead: &str) -> ToolAnswer {
    ToolAnswer::refused(code, why, format!("{NOTHING} {instead}"))
}

/// A subagent, as asked for.
struct Asked<'a> {
    request: &'a str,
    agent: Option<&'a str>,
    label: Option<String>,
    context: BranchContext,
}

fn asked(arguments: &Map<String, Value>) -> Result<Vec<Asked<'_>>, ToolError> {
    let all = arguments["subagents"].as_array().into_iter().flatten();
    let one = |one: &'_ Value| {
        let text = |field: &str| one[field].as_str();
        let request = one["request"].as_str().unwrap_or_default();
        if request.trim().is_empty() {
            return Err(ToolError::from(invalid_field(
                "subagents",
                "a request must not be blank",
            )));
        }
        if request.len() > BODY_BYTES_MAX {
            let what = format!(
                "a request has {} bytes; at most {BODY_BYTES_MAX} are taken, so shorten it",
                request.len()
            );
            return Err(invalid_field("subagents", &what).into());
        }
        let label = text("label").map(str::trim).filter(|label| !label.is_empty());
        Ok((label.map(str::to_owned), text("context").and_then(BranchContext::parse)))
    };
    all.map(|value| {
        let (label, context) = one(value)?;
        Ok(Asked {
            request: value["request"].as_str().unwrap_or_default(),
            agent: value["agent"].as_str(),
            label,
            context: context.unwrap_or(BranchContext::Snapshot),
        })
    })
    .collect()
}

/// The agent of each, locked: it is not removed before its session is there.
async fn agents(running: Running<'_>, asked: &[Asked<'_>]) -> Result<Vec<AgentRow>, ToolError> {
    let own = running.facts.agent.to_string();
    let names: Vec<&str> = asked.iter().map(|one| one.agent.unwrap_or(&own)).collect();
    let found = agents_found(running, &names, NOTHING).await?;
    let mut ids: Vec<AgentId> = found.iter().map(|agent| agent.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let there = store::agents_share(running.questions.tx, running.account, ids).await?;
    match found.iter().all(|agent| there.contains(&agent.id)) {
        true => Ok(found),
        false => Err(refused(
            "unknown_agent",
            "One of the agents was removed just now.",
            "Call again with another one.",
        )
        .into()),
    }
}

/// Whether so many more may be live, and this turn may make so many more.
async fn room(running: Running<'_>, (task, turn): (&TaskId, TurnId), more: usize) -> Result<(), ToolError> {
    let limits = running.branches;
    let live = branches_count(running.questions.tx, running.account, (running.session, turn)).await?;
    let more = i64::try_from(more).unwrap_or(i64::MAX);
    if live.of_turn + more > BRANCHES_OF_TURN_MAX {
        let made = live.of_turn;
        let why =
            format!("This turn has made {made} subagents, at most {BRANCHES_OF_TURN_MAX} may be made in one turn.");
        let instead = "Finish your turn: the results of those that work come as a notification.";
        return Err(refused("too_many_branches", why, instead).into());
    }
    let (count, of, max) = match live {
        live if live.of_session + more > limits.live_session_max => {
            (live.of_session, "this conversation", limits.live_session_max)
        }
        live if live.of_account + more > limits.live_account_max => {
            (live.of_account, "this account", limits.live_account_max)
        }
        _ => return Ok(()),
    };
    let why = format!("{count} subagents of {of} are at work, at most {max} may be, and {more} more were asked for.");
    tracing::info!(account = %running.account, session_id = %running.session, task = %task, count, max, "refused to spawn branches");
    Err(refused(
        "too_many_branches",
        why,
        "Ask for fewer, cancel one that is no longer wanted, or wait for their results.",
    )
    .into())
}

fn deadline(arguments: &Map<String, Value>, limits: &BranchLimits) -> Duration {
    let asked = arguments.get("deadline_s").and_then(Value::as_i64);
    Duration::seconds(asked.unwrap_or(limits.deadline_s).min(DEADLINE_S_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subagent_is_read_with_its_defaults() {
        let check = |subagents: Value, expected: Result<&[&str], &str>| {
            let arguments = json!({"subagents": subagents});
            let found = asked(arguments.as_object().unwrap());
            match (found, expected) {
                (Ok(found), Ok(expected)) => {
                    let line = |one: &Asked<'_>| {
                        let label = one.label.as_deref().unwrap_or("-");
                        format!("{} {} {label} {}", one.request, one.agent.unwrap_or("-"), one.context)
                    };
                    assert_eq!(found.iter().map(line).collect::<Vec<_>>(), expected);
                }
                (Err(ToolError::ToolAnswer(answer)), Err(words)) => {
                    assert!(answer.message.contains(words), "{}", answer.message);
                }
                (_, expected) => panic!("expected {expected:?}"),
            }
        };
        check(json!([{"request": "a"}]), Ok(&["a - - snapshot"]));
        check(
            json!([{"request": "a", "agent": "coder", "label": " one ", "context": "fork"}, {"request": "b", "label": " "}]),
            Ok(&["a coder one fork", "b - - snapshot"]),
        );
        check(json!([{"request": "a"}, {"request": " "}]), Err("must not be blank"));
        check(json!([{"request": "é".repeat(9_000)}]), Err("18000 bytes"));
    }
}
