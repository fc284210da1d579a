//! `submit_plan`: the task waits for the approval of the agent's plan. Delivery ends the turn with this call, and its reply is the
//! plan.

use serde_json::{Map, Value, json};
use storage::lifecycle::plan::{NewPlan, plan_submit};

use super::{Running, ToolOutcome, ask_question::asker, body, task_existing, task_named, task_status::not_moved};
use crate::call::{Effect, ToolAnswer};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let (plan, summary) = (body(&arguments, "plan")?, body(&arguments, "summary")?);
    let row = task_existing(running, task_named(running)).await?;
    if running.facts.is_chat(&row.id) {
        let answer = ToolAnswer::failed(
            "coordinator_chat",
            format!("Task {} is the coordinator's chat, which has no plan.", row.id),
            "Nothing was changed. Say in your reply what you plan.",
        );
        return Err(answer.into());
    }
    let by = running.facts.actor();
    let new = NewPlan {
        account: running.account,
        task: &row.id,
        asker: asker(running),
        by: &by,
        summary: summary.trim(),
        plan,
    };
    let submitted = plan_submit(running.questions.tx, &new, running.setting).await?;
    let (id, revision, messages) = submitted.map_err(|why| not_moved(running, &row.id, why))?;
    let note = "The plan waits for approval, and this turn ends here. You are told the decision by a notification.";
    Ok(Effect::new(
        json!({"question_id": id, "plan_revision": revision, "note": note}),
        messages,
    ))
}
