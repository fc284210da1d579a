//! Who may do what: pure. First whether the call still counts ([`standing`]), then whether the agent may use the tool
//! ([`permission`]) and on that task ([`task_permission`]).
//!
//! `Ask` (an approval bound to the hash of the arguments, O26) becomes a third decision beside allow and deny; its call
//! then stays `requested` until somebody answered.

use contracts::tools::ToolDefinition;
use domain::{SessionId, TaskId};

use crate::call::{Claims, Closed, Facts, Origin, Told};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    Allow,
    Deny(Denial),
}

/// Why not. What is said to the agent is [`Denial::told`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Denial {
    /// What the request says of its session is not what the session is.
    Disagrees,
    UnknownTurn,
    /// This generation is closed; `closed_by` says how.
    SessionClosed {
        closed_by: &'static str,
    },
    TurnOver,
    /// The turn was taken up again by a newer claim and went on.
    Superseded,
    UnknownTool {
        known: String,
    },
    NotOffered {
        tool: &'static str,
    },
    /// Not there, somebody else's task, another account's: the same answer, so that nobody can ask which.
    NotThere {
        task: TaskId,
        own: Option<TaskId>,
    },
    /// It stands before a gate, and the agent is not the one who opens it.
    AwaitsApproval {
        task: TaskId,
    },
}

/// Whether the call may still have an effect. What a turn asked for counts as long as the turn waits for it: its fence
/// lies between the turn's (nobody newer has taken the turn further) and the session's (nobody made it up). A newer
/// claim that has not touched the turn will ask for the same calls again, and they are the same calls.
pub fn standing(origin: &Origin, session: SessionId, facts: &Facts) -> Decision {
    if let Origin::Turn(claims) = origin {
        if !agrees(claims, facts) {
            return Decision::Deny(Denial::Disagrees);
        }
        if !has_turn(claims, session, facts) {
            return Decision::Deny(Denial::UnknownTurn);
        }
    }
    if let Some(Closed(reason)) = facts.closed {
        use domain::CloseReason::{AgentRemoved, Reset, Rotated, TaskArchived, TaskCancelled, TaskDone};
        let closed_by = match reason {
            Some(TaskDone) => "the task was moved to done",
            Some(TaskCancelled) => "the task was cancelled",
            Some(TaskArchived) => "the task was archived",
            Some(AgentRemoved) => "the agent was removed",
            Some(Reset) => "the session was reset",
            Some(Rotated) => "the session was rotated",
            None => "it was closed",
        };
        return Decision::Deny(Denial::SessionClosed { closed_by });
    }
    if let (Origin::Turn(claims), Some(turn)) = (origin, &facts.turn) {
        if turn.state.is_over() {
            return Decision::Deny(Denial::TurnOver);
        }
        if claims.fence < turn.fence || claims.fence > facts.fence {
            return Decision::Deny(Denial::Superseded);
        }
    }
    Decision::Allow
}

fn agrees(claims: &Claims, facts: &Facts) -> bool {
    let keys = |task: Option<&TaskId>| task.map(TaskId::key);
    claims.generation == facts.generation
        && claims.session_key.eq_ignore_ascii_case(&facts.session_key)
        && claims.agent == facts.agent
        && keys(claims.task.as_ref()) == keys(facts.task())
}

fn has_turn(claims: &Claims, session: SessionId, facts: &Facts) -> bool {
    facts
        .turn
        .as_ref()
        .is_some_and(|turn| turn.id == claims.turn && turn.session == session)
}

/// Whether the tool is there for this caller. Calling what was not offered is not a way around the offer.
pub fn permission(tool: Option<&ToolDefinition>, facts: &Facts, known: impl FnOnce() -> String) -> Decision {
    match tool {
        None => Decision::Deny(Denial::UnknownTool { known: known() }),
        Some(tool) if tool.offered_to.includes(facts.offer()) => Decision::Allow,
        Some(tool) => Decision::Deny(Denial::NotOffered { tool: tool.name }),
    }
}

/// Whether the caller may touch the task: its own, or, in the coordinator's chat, any of the account's. Whether there
/// is such a task is the handler's to find out, and it answers in the same words.
pub fn task_permission(task: &TaskId, facts: &Facts) -> Decision {
    if facts.is_coordinator() || facts.task().is_some_and(|own| own.key() == task.key()) {
        Decision::Allow
    } else {
        Decision::Deny(not_there(task, facts))
    }
}

pub(crate) fn not_there(task: &TaskId, facts: &Facts) -> Denial {
    Denial::NotThere {
        task: task.clone(),
        own: facts.task().cloned(),
    }
}

impl Denial {
    /// Whether the call came after the end of what it belonged to.
    pub fn is_late(&self) -> bool {
        match self {
            Self::SessionClosed { .. } | Self::TurnOver | Self::Superseded => true,
            Self::Disagrees
            | Self::UnknownTurn
            | Self::UnknownTool { .. }
            | Self::NotOffered { .. }
            | Self::NotThere { .. }
            | Self::AwaitsApproval { .. } => false,
        }
    }

    pub fn told(&self) -> Told {
        let finish = "Nothing was changed. Make no more tool calls; finish your turn with what you have.";
        let told = match self {
            Self::Disagrees => Told::refused(
                "session_mismatch",
                "The call does not agree with the session it was made in.",
                finish,
            ),
            Self::UnknownTurn => Told::refused("unknown_turn", "The call belongs to no turn of this session.", finish),
            Self::SessionClosed { closed_by } => Told::refused(
                "session_closed",
                format!("This session is closed: {closed_by}."),
                finish,
            ),
            Self::TurnOver => Told::refused("turn_over", "The turn that made this call is over.", finish),
            Self::Superseded => Told::refused(
                "superseded",
                "The turn went on without this call; it came too late.",
                finish,
            ),
            Self::UnknownTool { known } => Told::refused(
                "unknown_tool",
                "There is no tool of this name.",
                format!("Use one of: {known}."),
            ),
            Self::NotOffered { tool } => Told::refused(
                "not_offered",
                format!("{tool} cannot be used in this session: it has no task."),
                "Answer without it, or use one of the tools that you were offered.",
            ),
            Self::NotThere { task, own } => Told::refused(
                "task_not_found",
                format!("There is no task {task} that you can use here."),
                match own {
                    Some(own) => format!("The task of this session is {own}; use that id."),
                    None => "This session has no task; leave the task out.".to_owned(),
                },
            ),
            Self::AwaitsApproval { task } => Told::refused(
                "awaiting_approval",
                format!("Task {task} waits for approval and can only be moved by whoever approves it."),
                "Nothing was changed. Say in your reply what you need approved, and finish your turn.",
            ),
        };
        Told {
            late: self.is_late(),
            ..told
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::{AgentId, CloseReason, Fence, Generation, TurnId, TurnState};
    use uuid::Uuid;

    use super::*;
    use crate::call::Turn;

    const SESSION: SessionId = SessionId(Uuid::from_u128(1));
    const TURN: TurnId = TurnId(Uuid::from_u128(2));
    const AGENT: AgentId = AgentId(Uuid::from_u128(3));

    fn task(id: &str) -> TaskId {
        TaskId::parse(id).unwrap()
    }

    fn claims() -> Claims {
        Claims {
            turn: TURN,
            task: Some(task("PROJ-7")),
            session_key: "key".to_owned(),
            generation: Generation(2),
            fence: Fence(5),
            agent: AGENT,
        }
    }

    fn facts() -> Facts {
        Facts {
            session_key: "key".to_owned(),
            generation: Generation(2),
            fence: Fence(5),
            closed: None,
            agent: AGENT,
            agent_slug: "coder".to_owned(),
            agent_name: "Coder".to_owned(),
            session_task: Some(task("proj-7")),
            coordinator_task: Some(task("chat")),
            coordinates: true,
            turn: Some(Turn {
                id: TURN,
                session: SESSION,
                state: TurnState::AwaitingTools,
                fence: Fence(5),
                task: Some(task("proj-7")),
                hops: 0,
            }),
            newest_hops: 0,
        }
    }

    #[test]
    fn a_call_counts_while_its_turn_waits_for_it() {
        let check = |claim: &dyn Fn(&mut Claims), fact: &dyn Fn(&mut Facts), expected: Decision| {
            let (mut claims, mut facts) = (claims(), facts());
            claim(&mut claims);
            fact(&mut facts);
            let decision = standing(&Origin::Turn(claims.clone()), SESSION, &facts);
            assert_eq!(decision, expected, "{claims:?} {facts:?}");
        };
        let deny = Decision::Deny;
        let same = |_: &mut Claims| {};
        let turn = |change: fn(&mut Turn)| move |facts: &mut Facts| change(facts.turn.as_mut().unwrap());
        check(&same, &|_| {}, Decision::Allow);
        check(
            &|claims| claims.session_key = "KEY".to_owned(),
            &|_| {},
            Decision::Allow,
        );
        // What does not agree
        check(
            &|claims| claims.generation = Generation(1),
            &|_| {},
            deny(Denial::Disagrees),
        );
        check(
            &|claims| claims.session_key = "other".to_owned(),
            &|_| {},
            deny(Denial::Disagrees),
        );
        check(
            &|claims| claims.agent = AgentId(Uuid::nil()),
            &|_| {},
            deny(Denial::Disagrees),
        );
        check(&|claims| claims.task = None, &|_| {}, deny(Denial::Disagrees));
        check(
            &|claims| claims.task = Some(task("other")),
            &|_| {},
            deny(Denial::Disagrees),
        );
        // Whose turn is not there, or elsewhere
        check(&same, &|facts| facts.turn = None, deny(Denial::UnknownTurn));
        check(
            &same,
            &turn(|turn| turn.session = SessionId(Uuid::nil())),
            deny(Denial::UnknownTurn),
        );
        // Late ones
        let closed = Denial::SessionClosed {
            closed_by: "the task was moved to done",
        };
        check(
            &same,
            &|facts| facts.closed = Some(Closed(Some(CloseReason::TaskDone))),
            deny(closed),
        );
        check(
            &same,
            &turn(|turn| turn.state = TurnState::Aborted),
            deny(Denial::TurnOver),
        );
        check(&same, &turn(|turn| turn.fence = Fence(6)), deny(Denial::Superseded));
        // A newer claim that has not moved the turn on
        check(&same, &|facts| facts.fence = Fence(6), Decision::Allow);
        check(
            &|claims| claims.fence = Fence(6),
            &|facts| facts.fence = Fence(6),
            Decision::Allow,
        );
        // A fence that nobody has given out
        check(&|claims| claims.fence = Fence(6), &|_| {}, deny(Denial::Superseded));
    }

    #[test]
    fn over_http_only_the_session_has_to_be_open() {
        assert_eq!(standing(&Origin::Http, SESSION, &facts()), Decision::Allow);
        let idle = Facts { turn: None, ..facts() };
        assert_eq!(standing(&Origin::Http, SESSION, &idle), Decision::Allow);
        let closed = Facts {
            closed: Some(Closed(Some(CloseReason::Reset))),
            ..facts()
        };
        assert!(matches!(
            standing(&Origin::Http, SESSION, &closed),
            Decision::Deny(Denial::SessionClosed { .. })
        ));
    }

    #[test]
    fn an_agent_has_its_own_task_and_the_coordinator_all() {
        let check = |own: Option<&str>, target: &str, allowed: bool| {
            let mut facts = facts();
            facts.session_task = own.map(task);
            facts.turn.as_mut().unwrap().task = own.map(task);
            let decision = task_permission(&task(target), &facts);
            assert_eq!(decision == Decision::Allow, allowed, "{own:?} {target}");
        };
        check(Some("proj-7"), "PROJ-7", true);
        check(Some("proj-7"), "proj-8", false);
        check(Some("proj-7"), "chat", false);
        check(Some("CHAT"), "proj-8", true);
        check(None, "proj-7", false);
    }

    #[test]
    fn whoever_is_not_the_coordinator_has_the_chat_only() {
        let mut facts = facts();
        facts.turn.as_mut().unwrap().task = Some(task("chat"));
        assert_eq!(task_permission(&task("proj-8"), &facts), Decision::Allow);
        facts.coordinates = false;
        assert!(matches!(task_permission(&task("proj-8"), &facts), Decision::Deny(_)));
        assert_eq!(task_permission(&task("chat"), &facts), Decision::Allow);
    }

    #[test]
    fn a_tool_that_was_not_offered_cannot_be_called() {
        let history = contracts::tools::find("task_history").unwrap();
        let known = || "a, b".to_owned();
        assert_eq!(permission(Some(&history), &facts(), known), Decision::Allow);
        let taskless = Facts {
            session_task: None,
            turn: None,
            ..facts()
        };
        assert_eq!(
            permission(Some(&history), &taskless, known),
            Decision::Deny(Denial::NotOffered { tool: "task_history" })
        );
        assert_eq!(
            permission(None, &facts(), known),
            Decision::Deny(Denial::UnknownTool { known: known() })
        );
    }

    #[test]
    fn a_task_that_is_not_there_and_one_that_is_foreign_are_told_alike() {
        let foreign = match task_permission(&task("other"), &facts()) {
            Decision::Deny(denial) => denial.told(),
            Decision::Allow => panic!("foreign"),
        };
        assert_eq!(foreign, not_there(&task("other"), &facts()).told());
        assert!(!foreign.late);
    }
}
