//! Decides what a session's call may do now. Pure.
//!
//! A capability is not a token: it is read from the rows of the session and its turn, under their locks, in the
//! transaction that runs the call. The claims of a message are compared with the rows and grant nothing.
//!
//! | bound to | read from | ends when |
//! |---|---|---|
//! | account | the transaction, which sees no other account | |
//! | session, generation, agent | `session` | the session is closed: its task is done, its agent removed, … |
//! | turn | `turn` | the turn ends |
//! | writing | `session.stop_turn_id`, `stopped_turn_id` | its turn is to stop; over HTTP, until the next one begins |
//! | fence | `turn.fence` ≤ the call's ≤ `session.fence` | a newer claim writes the turn |
//! | the requested calls | the last round of `turn.journal` | the next round begins |
//! | time | `turn.waiting_since`, `turn.tools_wait_ms` | the turn continues without the results |
//! | tools | `turn.tools`, and the tool's own offer rule | |
//! | policies | `tool_policy`, when the call runs | a policy denies the tool |
//! | tasks | the turn's task; the account's tasks, for the coordinator and tools with that reach | |
//!
//! An agent that calls over HTTP presents its session's key and a gateway key of the account instead of a turn's call.
//! Its capability is bound to the session, and to the tools and tasks of the running turn, if there is one. It is not
//! bound to a single provider call of that turn (ADR 32). After a turn was stopped, it may read and not write until the
//! next turn begins: an agent with tools of its own may still be running.
//!
//! A branch's session reads the task as it was when the branch began, and writes nothing of it: its row says so, whatever key is
//! presented.
//!
//! Where the task requires a plan and none is approved, tools that write are refused, but those that lead to one.
//!
//! A call that is admitted may still be one that a policy asks about (O26): see `execute/asking.rs`.

use contracts::tools::{self, OfferContext, Reach, ToolDefinition, ToolEffect};
use domain::{
    CloseReason, PolicyVerdict, SessionId, TaskId,
    tool_policy::{ToolPolicy, ToolUse, verdict, visible},
};

use crate::{
    call::{CallFacts, CallRequest, CallTurn, Claims, Origin},
    refusal::{Consequence, Refusal},
};

#[derive(Clone, Copy, Debug)]
pub struct Capability<'a> {
    pub session: SessionId,
    pub facts: &'a CallFacts,
}

/// A call to check against a capability.
#[derive(Clone, Copy, Debug)]
pub struct Presented<'a> {
    pub asked: &'a CallRequest,
    /// The tool of that name, if it exists.
    pub tool: Option<&'a ToolDefinition>,
    /// The task in the arguments, if there is one.
    pub task: Option<&'a TaskId>,
}

type Check = fn(&Capability<'_>, &Presented<'_>) -> Option<Refusal>;

/// The order matters: the session's task depends on the turn, and a late call is reported as late although the turn's
/// journal has moved on.
const CHECKS: [Check; 13] = [
    of_turn,
    agrees,
    open,
    turn_in_progress,
    not_superseded,
    asked_for,
    in_time,
    not_stopped,
    known,
    offered,
    own_task,
    not_denied,
    planned,
];

impl Capability<'_> {
    /// Checks whether the call may have its effect.
    pub fn admit(&self, call: &Presented<'_>) -> Result<(), Refusal> {
        self.check_all(call, CHECKS.iter())
    }

    /// Whether a checked call must wait for an earlier one: an agent that posts and then ends its task expects that
    /// order. An external call neither waits nor is waited for, but by a call that may end the task. An earlier unfinished call of the same answer can run as long as this one can: the turn waits for both
    /// until the same time, and requests both again until then. After that time [`Consequence::Late`] refuses both. So
    /// this wait needs no limit of its own.
    pub fn waits_for_earlier(&self, call: &Presented<'_>, admitted: &Result<(), Refusal>) -> bool {
        let counts = match admitted.as_ref().err().map(Refusal::consequence) {
            None | Some(Consequence::Answered) => true,
            Some(Consequence::Late | Consequence::Buried) => false,
        };
        let waits = |earlier: &str| call.tool.is_none_or(|tool| tools::waits_for(tool.name, earlier));
        let is_missing = |turn: &CallTurn| {
            let earlier = turn.earlier.iter().zip(&turn.earlier_tools);
            earlier
                .clone()
                .any(|(place, tool)| !turn.over.contains(place) && waits(tool))
        };
        counts && claimed(self, call).is_some_and(|(_, turn)| is_missing(turn))
    }

    fn check_all<'c>(&self, call: &Presented<'_>, mut checks: impl Iterator<Item = &'c Check>) -> Result<(), Refusal> {
        checks.find_map(|check| check(self, call)).map_or(Ok(()), Err)
    }

    /// The tools that may be called over HTTP.
    pub fn tools(&self) -> Result<Vec<&'static ToolDefinition>, Refusal> {
        match closed(self.facts) {
            Some(refusal) => Err(refusal),
            None => {
                let callable = |tool: &ToolDefinition| {
                    tool.is_offered(self.facts.offer())
                        && self.allows(tool)
                        && !self.is_stopped(tool)
                        && self.ruled(tool).0 != PolicyVerdict::Deny
                };
                Ok(tools::all().iter().filter(|tool| callable(tool)).collect())
            }
        }
    }

    /// The task to which the agent may add a file now; none: it works on no task. As a tool that writes: a branch may not.
    pub fn adds_to(&self) -> Result<Option<&TaskId>, Refusal> {
        let facts = self.facts;
        let of_branch = || {
            facts.branch.map(|_| Refusal::NotOffered {
                tool: "artifact_upload",
            })
        };
        let refusal = closed(facts)
            .or_else(of_branch)
            .or_else(|| facts.turn_stopped.then_some(Refusal::TurnStopped))
            .or_else(|| facts.needs_plan.then_some(Refusal::PlanRequired));
        refusal.map_or_else(|| Ok(facts.task()), Err)
    }

    /// A tool must be in the turn's offer, and the agent must still be one that the tool is offered to. Without a turn, policies say
    /// what is visible; with one, they said it when it began.
    fn allows(&self, tool: &ToolDefinition) -> bool {
        let offer = self.facts.turn.as_ref().and_then(|turn| turn.tools.as_ref());
        // The tool says why there can be no branch.
        let context = OfferContext {
            may_branch: true,
            ..self.facts.offer()
        };
        let is_in_offer = match offer {
            Some(offer) => offer.iter().any(|name| name == tool.name),
            None => visible(&self.facts.policies, self.used(tool), true),
        };
        tool.is_offered(context) && is_in_offer
    }

    /// What the policies say of a call to the tool.
    pub fn ruled(&self, tool: &ToolDefinition) -> (PolicyVerdict, Option<&ToolPolicy>) {
        verdict(&self.facts.policies, self.used(tool), PolicyVerdict::Allow)
    }

    fn used<'u>(&'u self, tool: &'u ToolDefinition) -> ToolUse<'u> {
        ToolUse {
            session: self.session,
            agent: self.facts.agent,
            task: self.facts.task(),
            tool: tool.name,
            schema_hash: tools::schema_hash(tool.name),
        }
    }

    /// The tool writes, and the session's turn was stopped or is to stop.
    fn is_stopped(&self, tool: &ToolDefinition) -> bool {
        let writes = match tool.effect {
            ToolEffect::None | ToolEffect::Read => false,
            ToolEffect::Write | ToolEffect::External => true,
        };
        writes && self.facts.turn_stopped
    }
}

/// The claims of the message must match the session's row.
fn agrees(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    let facts = capability.facts;
    let same = |claims: &Claims| {
        claims.generation == facts.generation
            && claims.session_key.eq_ignore_ascii_case(&facts.session_key)
            && claims.agent == facts.agent
            && claims.task.as_ref().map(TaskId::key) == facts.task().map(TaskId::key)
    };
    claims(call)
        .is_some_and(|claims| !same(claims))
        .then_some(Refusal::Disagrees)
}

fn of_turn(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    let is_its_turn = |claims: &Claims| {
        let turn = capability.facts.turn.as_ref();
        turn.is_some_and(|turn| turn.id == claims.turn && turn.session == capability.session)
    };
    claims(call)
        .is_some_and(|claims| !is_its_turn(claims))
        .then_some(Refusal::UnknownTurn)
}

fn open(capability: &Capability<'_>, _: &Presented<'_>) -> Option<Refusal> {
    closed(capability.facts)
}

fn closed(facts: &CallFacts) -> Option<Refusal> {
    facts.is_closed.then(|| Refusal::SessionClosed {
        reason: facts.close_reason.as_deref().and_then(CloseReason::parse),
    })
}

fn turn_in_progress(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    let (_, turn) = claimed(capability, call)?;
    turn.state.is_over().then_some(Refusal::TurnOver)
}

/// No newer claim has written the turn, and the fence was assigned by a claim. A newer claim that has not written the
/// turn requests the same calls again.
fn not_superseded(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    let (claims, turn) = claimed(capability, call)?;
    let counts = turn.fence <= claims.fence && claims.fence <= capability.facts.fence;
    (!counts).then_some(Refusal::Superseded)
}

/// The requested call must be the call in the turn's journal.
fn asked_for(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    let (_, turn) = claimed(capability, call)?;
    let asked = call.asked;
    let same = turn.call.as_ref().is_some_and(|recorded| {
        recorded.call_id == asked.call_id && recorded.name == asked.name && recorded.arguments == asked.arguments
    });
    (!same).then_some(Refusal::NotAsked)
}

fn in_time(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    let (_, turn) = claimed(capability, call)?;
    let is_over = turn.until.is_some_and(|until| until <= capability.facts.now);
    is_over.then_some(Refusal::Expired)
}

/// Also between the request to stop a turn and its end, which takes as long as delivery is away: nothing that an approval or an earlier
/// call of the answer has kept waiting is done after the stop.
fn not_stopped(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    capability.is_stopped(call.tool?).then_some(Refusal::TurnStopped)
}

fn known(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    if call.tool.is_some() {
        return None;
    }
    let turn = capability.facts.turn.as_ref();
    let allowed = match turn.and_then(|turn| turn.tools.clone()) {
        Some(offer) => offer,
        None => tools::offered(capability.facts.offer())
            .iter()
            .map(|tool| tool.name.to_owned())
            .collect(),
    };
    Some(Refusal::UnknownTool { allowed })
}

fn offered(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    let tool = call.tool?;
    (!capability.allows(tool)).then_some(Refusal::NotOffered { tool: tool.name })
}

/// The call's task is its own; or any task of the account, for the coordinator in its chat and for an orchestrator, with a tool that
/// allows this. The tool checks whether the task exists, and answers with the same text if not.
fn own_task(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    let (tool, task, facts) = (call.tool?, call.task?, capability.facts);
    let is_in_reach = match tool.reach {
        Reach::Account => facts.is_coordinator() || facts.is_orchestrator(),
        // The tool looks, and answers with the same text.
        Reach::Board => true,
        Reach::OwnTask | Reach::Outside => false,
    };
    let may = is_in_reach || facts.task().is_some_and(|own| own.key() == task.key());
    (!may).then(|| Refusal::not_there(task, facts))
}

/// Read at the call: a policy that was made after the turn began holds too.
fn not_denied(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    let tool = call.tool?;
    match capability.ruled(tool) {
        (PolicyVerdict::Deny, _) => Some(Refusal::Denied { tool: tool.name }),
        (PolicyVerdict::Allow | PolicyVerdict::Ask, _) => None,
    }
}

/// Where a plan is required, nothing is changed before one is approved.
fn planned(capability: &Capability<'_>, call: &Presented<'_>) -> Option<Refusal> {
    let (tool, facts) = (call.tool?, capability.facts);
    let changes = match tool.effect {
        ToolEffect::None | ToolEffect::Read => false,
        ToolEffect::Write | ToolEffect::External => true,
    };
    (facts.needs_plan && changes && !tool.before_plan).then_some(Refusal::PlanRequired)
}

fn claims<'a>(call: &Presented<'a>) -> Option<&'a Claims> {
    match &call.asked.origin {
        Origin::Turn(claims) => Some(claims),
        Origin::Http => None,
    }
}

/// The claims of a turn's call, and its turn.
fn claimed<'a>(capability: &Capability<'a>, call: &Presented<'a>) -> Option<(&'a Claims, &'a CallTurn)> {
    claims(call).zip(capability.facts.turn.as_ref())
}

#[cfg(test)]
mod tests;
