//! The reasons to refuse a call: one table of the reasons, the error for the agent and its hint. Pure. Errors of a tool
//! itself (a wrong field, an unknown agent) are in the tool.

use contracts::tools::task_context_write;
use domain::{CloseReason, MediaType, QuestionState, TaskId};
use storage::lifecycle::ContextOfTask;

use crate::{
    call::{CallFacts, ToolAnswer},
    store::CallQuestion,
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The request's claims do not match the session.
    Disagrees,
    /// The turn is not one of the session's.
    UnknownTurn,
    /// The turn did not request this call, or requested it with another name or arguments.
    NotAsked,
    /// The generation is closed; the reason, if this version knows it.
    SessionClosed {
        reason: Option<CloseReason>,
    },
    TurnOver,
    /// The session's last turn was stopped: until the next one begins, its agent may read and not write.
    TurnStopped,
    /// A newer claim has written the turn.
    Superseded,
    /// The turn's waiting time is over: the turn continues without the call.
    Expired,
    /// The tool does not exist; `allowed` names the tools of the turn.
    UnknownTool {
        allowed: Vec<String>,
    },
    /// The turn was not offered the tool.
    NotOffered {
        tool: &'static str,
    },
    /// A policy denies calls of the tool.
    Denied {
        tool: &'static str,
    },
    /// The task does not exist, or is not the caller's. The answer is the same, so that the caller cannot learn which
    /// tasks exist.
    NotThere {
        task: TaskId,
        own: Option<TaskId>,
    },
    /// The task awaits approval, and the agent is not its approver.
    AwaitsApproval {
        task: TaskId,
    },
    /// The task requires a plan, and none is approved.
    PlanRequired,
    /// The call hands the task's work on, and the task has no context, which it requires.
    ContextMissing {
        task: TaskId,
    },
}

/// What happens to a refused call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consequence {
    /// The rows do not confirm the call. It becomes a dead letter for the operator. It is not recorded, since its
    /// record would take the id of the turn's genuine call.
    Buried,
    /// The call came after its turn or session ended: recorded as late, answered, without effect (B1).
    Late,
    /// The agent lacks the right: recorded and answered, so that it can do something else.
    Answered,
}

impl Refusal {
    pub fn consequence(&self) -> Consequence {
        match self {
            Self::Disagrees | Self::UnknownTurn | Self::NotAsked => Consequence::Buried,
            Self::SessionClosed { .. } | Self::TurnOver | Self::TurnStopped | Self::Superseded | Self::Expired => {
                Consequence::Late
            }
            Self::UnknownTool { .. }
            | Self::NotOffered { .. }
            | Self::Denied { .. }
            | Self::NotThere { .. }
            | Self::AwaitsApproval { .. }
            | Self::PlanRequired
            | Self::ContextMissing { .. } => Consequence::Answered,
        }
    }

    /// Why a call that hands the task's work on is refused before anything is done, if the task lacks its context.
    pub fn of_context(of: &ContextOfTask) -> Option<Refusal> {
        let task = of.is_missing().then(|| of.task.clone())?;
        Some(Self::ContextMissing { task })
    }

    /// The answer for a task that is not the caller's or does not exist.
    pub fn not_there(task: &TaskId, facts: &CallFacts) -> Refusal {
        Self::NotThere {
            task: task.clone(),
            own: facts.task().cloned(),
        }
    }

    pub fn told(&self) -> ToolAnswer {
        let finish = "Nothing was changed. Make no more tool calls; finish your turn with what you have.";
        let answer = match self {
            Self::Disagrees => ToolAnswer::refused(
                "session_mismatch",
                "The call does not agree with the session it was made in.",
                finish,
            ),
            Self::UnknownTurn => {
                ToolAnswer::refused("unknown_turn", "The call belongs to no turn of this session.", finish)
            }
            Self::NotAsked => ToolAnswer::refused("not_asked", "The turn has not asked for this call.", finish),
            Self::SessionClosed { reason } => ToolAnswer::refused(
                "session_closed",
                format!("This session is closed: {}.", closed_by(*reason)),
                finish,
            ),
            Self::TurnOver => ToolAnswer::refused("turn_over", "The turn that made this call is over.", finish),
            Self::TurnStopped => ToolAnswer::refused("turn_stopped", "Your turn was stopped.", finish),
            Self::Superseded => ToolAnswer::refused(
                "superseded",
                "The turn went on without this call; it came too late.",
                finish,
            ),
            Self::Expired => ToolAnswer::refused(
                "call_expired",
                "The call was not run in time, and it will not be.",
                "Nothing was changed. Call again if it is still wanted.",
            ),
            Self::UnknownTool { allowed } => ToolAnswer::refused(
                "unknown_tool",
                "There is no tool of this name.",
                format!("Use one of: {}.", allowed.join(", ")),
            ),
            Self::NotOffered { tool } => ToolAnswer::refused(
                "not_offered",
                format!("{tool} cannot be used here: this turn was not offered it."),
                "Answer without it, or use one of the tools that you were offered.",
            ),
            Self::Denied { tool } => ToolAnswer::refused(
                "denied",
                format!("{tool} is denied here by a rule of this account."),
                "Nothing was changed. Do not call it again in this turn; go on without it, or say in your reply what you needed it for.",
            ),
            Self::NotThere { task, own } => ToolAnswer::refused(
                "task_not_found",
                format!("There is no task {task} that you can use here."),
                match own {
                    Some(own) => format!("The task of this session is {own}; use that id."),
                    None => "This session has no task; leave the task out.".to_owned(),
                },
            ),
            Self::AwaitsApproval { task } => ToolAnswer::refused(
                "awaiting_approval",
                format!("Task {task} waits for approval and can only be moved by whoever approves it."),
                "Nothing was changed. Say in your reply what you need approved, and finish your turn.",
            ),
            Self::PlanRequired => ToolAnswer::refused(
                "plan_required",
                "This task needs an approved plan, and none is approved.",
                "Nothing was changed. Submit your plan with submit_plan, unless it awaits approval already; after it is approved, call this tool again.",
            ),
            Self::ContextMissing { task } => ToolAnswer::refused(
                "task_context_missing",
                format!(
                    "CONTEXT.md not found: task {task} has no task context. Before using external-model tools or spawning subagents, write one."
                ),
                format!(
                    "Nothing was changed. Write it with {}: what is being built, the key terms, and the details that matter. Then call \
                     this tool again.",
                    task_context_write::NAME
                ),
            ),
        };
        ToolAnswer {
            late: self.consequence() == Consequence::Late,
            ..answer
        }
    }
}

/// The answer to a call for which there is no room.
pub(crate) fn rate_limited(what: &str) -> ToolAnswer {
    ToolAnswer::failed(
        "rate_limited",
        format!("{what}, and no place was free in time."),
        "Nothing was sent. Try again later in this turn, or go on without it.",
    )
}

/// The answer to a call that shows a model what it does not take.
pub(crate) fn takes_no(model: &str, media_type: MediaType) -> ToolAnswer {
    ToolAnswer::failed(
        "unsupported_media_type",
        format!("The model {model} takes no {media_type}."),
        "Nothing was sent. Name another model, or go on without it.",
    )
}

/// The answer to a call that nobody approved.
pub(crate) fn not_approved(tool: &str, question: Option<&CallQuestion>) -> ToolAnswer {
    let by = question.and_then(|question| question.ended_by_name.as_deref());
    let why = match question.map(|question| question.state) {
        Some(QuestionState::Answered) => format!("{} did not approve the call of {tool}.", by.unwrap_or("Somebody")),
        Some(QuestionState::Withdrawn | QuestionState::Cancelled) => {
            format!("The approval that the call of {tool} waited for was withdrawn.")
        }
        Some(QuestionState::Lapsed | QuestionState::Open) | None => {
            format!("Nobody approved the call of {tool} in time.")
        }
    };
    let said = question.and_then(|question| question.answer.as_ref()?.text.as_deref());
    let said = said.map(str::trim).filter(|said| !said.is_empty());
    let message = said.map_or_else(|| why.clone(), |said| format!("{why} Answer: {said}"));
    ToolAnswer::refused(
        "denied",
        message,
        "Nothing was changed. Do not call it again in this turn; go on without it, or say in your reply what you needed it for.",
    )
}

fn closed_by(reason: Option<CloseReason>) -> &'static str {
    use CloseReason::{
        AgentRemoved, Cancelled, Expired, Folded, HandedOver, MemberRemoved, Replayed, Reset, Rotated, TaskArchived,
        TaskCancelled, TaskDone, Unreachable,
    };
    match reason {
        Some(TaskDone) => "the task was moved to done",
        Some(TaskCancelled) => "the task was cancelled",
        Some(TaskArchived) => "the task was archived",
        Some(AgentRemoved) => "the agent was removed",
        Some(MemberRemoved) => "the person was removed",
        Some(Unreachable) => "its owner lets nobody ask it any more",
        Some(Reset) => "the session was reset",
        Some(Rotated) => "the session was rotated",
        Some(HandedOver) => "the task was handed over to another agent",
        Some(Folded) => "the subagent has given its result",
        Some(Cancelled) => "the subagent was cancelled",
        Some(Expired) => "the subagent's time is over",
        Some(Replayed) => "the replay has ended",
        None => "it was closed",
    }
}

#[cfg(test)]
mod tests {
    use domain::{Actor, ContextNeed, KeptContext};
    use storage::lifecycle::TaskContext;
    use time::OffsetDateTime;

    use super::*;

    /// Before anything is done: only a task that requires its context and has none lacks it.
    #[test]
    fn a_task_that_lacks_its_context_is_named() {
        let check = |need: ContextNeed, body: Option<&str>, expected: bool| {
            let newest = body.map(|body| TaskContext {
                version: 1,
                body: body.to_owned(),
                size: KeptContext::of(body).unwrap().size,
                author: Actor::system(),
                turn_id: None,
                created_at: OffsetDateTime::UNIX_EPOCH,
            });
            let task = TaskId::parse("PROJ-7").unwrap();
            let of = ContextOfTask {
                task: task.clone(),
                need,
                newest,
            };
            let missing = Refusal::ContextMissing { task };
            assert_eq!(Refusal::of_context(&of), expected.then_some(missing), "{need} {body:?}");
        };
        check(ContextNeed::Required, None, true);
        check(ContextNeed::Required, Some("What is built."), false);
        check(ContextNeed::Optional, None, false);
        check(ContextNeed::Optional, Some("What is built."), false);
    }

    /// Every refusal: its code, its consequence, and the text for the agent.
    #[test]
    fn the_table_is_pinned() {
        let task = |id: &str| TaskId::parse(id).unwrap();
        let refusals = [
            Refusal::Disagrees,
            Refusal::UnknownTurn,
            Refusal::NotAsked,
            Refusal::SessionClosed {
                reason: Some(CloseReason::TaskDone),
            },
            Refusal::SessionClosed { reason: None },
            Refusal::TurnOver,
            Refusal::TurnStopped,
            Refusal::Superseded,
            Refusal::Expired,
            Refusal::UnknownTool {
                allowed: vec!["task_message".to_owned(), "no_reply".to_owned()],
            },
            Refusal::NotOffered { tool: "task_status" },
            Refusal::Denied { tool: "task_status" },
            Refusal::NotThere {
                task: task("PROJ-8"),
                own: Some(task("PROJ-7")),
            },
            Refusal::NotThere {
                task: task("PROJ-8"),
                own: None,
            },
            Refusal::AwaitsApproval { task: task("PROJ-7") },
            Refusal::PlanRequired,
            Refusal::ContextMissing { task: task("PROJ-7") },
        ];
        let table: Vec<String> = refusals
            .iter()
            .map(|refusal| {
                let answer = refusal.told();
                assert_eq!(answer.late, refusal.consequence() == Consequence::Late);
                format!(
                    "{:?} {}: {} {}",
                    refusal.consequence(),
                    answer.code,
                    answer.message,
                    answer.hint
                )
            })
            .collect();
        insta::assert_snapshot!("refusals", table.join("\n"));
    }
}
