//! Every way to present an invalid call, and the one check that refuses it: without that check, the call is admitted.

use std::sync::Arc;

use contracts::{TraceContext, tools::Audience};
use domain::{
    AccountId, AgentId, CallId, CloseReason, Fence, Generation, ModelKind, ModelKinds, PolicyScope, SessionKind,
    ToolPolicyId, TurnId, TurnState,
};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::*;
use crate::call::RecordedCall;

const SESSION: SessionId = SessionId(Uuid::from_u128(1));
const TURN: TurnId = TurnId(Uuid::from_u128(2));
const AGENT: AgentId = AgentId(Uuid::from_u128(3));
const UNTIL: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

fn tool(name: &str) -> Option<ToolDefinition> {
    tools::all().iter().find(|tool| tool.name == name).cloned()
}

fn task(id: &str) -> TaskId {
    TaskId::parse(id).unwrap()
}

/// A call, the rows and the time.
#[derive(Clone, Debug)]
struct Case {
    asked: CallRequest,
    facts: CallFacts,
    tool: Option<ToolDefinition>,
    task: Option<TaskId>,
}

impl Case {
    /// A call of delivery, while the turn waits for it.
    fn genuine() -> Case {
        let call = RecordedCall {
            call_id: CallId("call_1".to_owned()),
            name: "task_message".to_owned(),
            arguments: r#"{"task_id": "PROJ-7", "body": "b"}"#.to_owned(),
        };
        let claims = Claims {
            turn: TURN,
            task: Some(task("PROJ-7")),
            session_key: "key".to_owned(),
            generation: Generation(2),
            fence: Fence(5),
            agent: AGENT,
        };
        let asked = CallRequest {
            account: AccountId::parse("acme").unwrap(),
            session: SESSION,
            id: Uuid::nil(),
            call_id: call.call_id.clone(),
            ordinal: 1,
            name: call.name.clone(),
            arguments: call.arguments.clone(),
            origin: Origin::Turn(claims),
            trace: TraceContext::default(),
        };
        let turn = CallTurn {
            id: TURN,
            session: SESSION,
            state: TurnState::AwaitingTools,
            first_item: None,
            fence: Fence(5),
            task: Some(task("proj-7")),
            hops: 0,
            tools: Some(vec!["task_message".to_owned(), "no_reply".to_owned()]),
            until: Some(UNTIL),
            call: Some(call),
            earlier: Vec::new(),
            earlier_tools: Vec::new(),
            over: Vec::new(),
        };
        let facts = CallFacts {
            session_key: "key".to_owned(),
            session_kind: SessionKind::Task,
            reachable: None,
            generation: Generation(2),
            fence: Fence(5),
            is_closed: false,
            close_reason: None,
            turn_stopped: false,
            needs_plan: false,
            agent: AGENT,
            agent_slug: "coder".to_owned(),
            agent_name: "Coder".to_owned(),
            session_task: Some(task("proj-7")),
            coordinator_task: Some(task("chat")),
            coordinates: true,
            turn: Some(turn),
            branch: None,
            branch_depth_max: 1,
            newest_hops: None,
            now: UNTIL - Duration::SECOND,
            tool_policies: 0,
            policies: Arc::default(),
            models: ModelKinds::default(),
            has_mail: false,
        };
        Case {
            asked,
            facts,
            tool: tool("task_message"),
            task: Some(task("Proj-7")),
        }
    }

    fn over_http() -> Case {
        let mut case = Case::genuine();
        case.asked.origin = Origin::Http;
        case
    }

    fn claims(&mut self) -> &mut Claims {
        match &mut self.asked.origin {
            Origin::Turn(claims) => claims,
            Origin::Http => panic!("a call over HTTP claims nothing"),
        }
    }

    fn turn(&mut self) -> &mut CallTurn {
        self.facts.turn.as_mut().unwrap()
    }

    /// Moves the call to the coordinator's chat, with the coordinator as caller.
    fn in_chat(mut self) -> Case {
        if let Origin::Turn(claims) = &mut self.asked.origin {
            claims.task = Some(task("chat"));
        }
        self.facts.session_task = Some(task("chat"));
        self.turn().task = Some(task("chat"));
        self
    }

    fn without_task(mut self) -> Case {
        if let Origin::Turn(claims) = &mut self.asked.origin {
            claims.task = None;
        }
        self.facts.session_task = None;
        self.turn().task = None;
        self
    }

    fn check_all(&self, checks: &[Check]) -> Result<(), Refusal> {
        let capability = Capability {
            session: SESSION,
            facts: &self.facts,
        };
        let presented = Presented {
            asked: &self.asked,
            tool: self.tool.as_ref(),
            task: self.task.as_ref(),
        };
        capability.check_all(&presented, checks.iter())
    }
}

/// A case with one change.
fn case(mut case: Case, change: impl FnOnce(&mut Case)) -> Case {
    change(&mut case);
    case
}

fn genuine(change: impl FnOnce(&mut Case)) -> Case {
    case(Case::genuine(), change)
}

/// The case is refused with this refusal, and by that check alone.
fn check(case: &Case, by: Check, expected: &Refusal) {
    assert_eq!(case.check_all(&CHECKS).as_ref(), Err(expected), "{case:?}");
    let place = CHECKS
        .iter()
        .position(|check| std::ptr::fn_addr_eq(*check, by))
        .unwrap();
    let rest: Vec<Check> = [&CHECKS[..place], &CHECKS[place + 1..]].concat();
    assert_eq!(case.check_all(&rest), Ok(()), "without the check: {case:?}");
}

#[test]
fn an_awaited_call_is_admitted() {
    let check = |case: &Case| assert_eq!(case.check_all(&CHECKS), Ok(()), "{case:?}");
    check(&Case::genuine());
    check(&genuine(|case| case.claims().session_key = "KEY".to_owned()));
    // A newer claim that has not moved the turn on, and requests the call again
    check(&genuine(|case| case.facts.fence = Fence(6)));
    check(&genuine(|case| {
        case.facts.fence = Fence(6);
        case.claims().fence = Fence(6);
    }));
    // A turn that an older version began
    check(&genuine(|case| {
        case.turn().tools = None;
        case.turn().until = None;
    }));
    // The coordinator, on a task that is not its own
    check(&case(Case::genuine().in_chat(), |case| {
        case.task = Some(task("proj-8"));
    }));
    // Over HTTP, with a turn and without
    check(&Case::over_http());
    check(&case(Case::over_http(), |case| case.facts.turn = None));
    check(&case(Case::over_http(), |case| case.facts.now = UNTIL + Duration::DAY));
}

#[test]
fn a_calls_claims_must_match_its_session() {
    for case in [
        genuine(|case| case.claims().generation = Generation(1)),
        genuine(|case| case.claims().session_key = "other".to_owned()),
        genuine(|case| case.claims().agent = AgentId(Uuid::nil())),
        genuine(|case| case.claims().task = None),
        genuine(|case| case.claims().task = Some(task("other"))),
    ] {
        check(&case, agrees, &Refusal::Disagrees);
    }
    for case in [
        genuine(|case| case.facts.turn = None),
        genuine(|case| case.turn().session = SessionId(Uuid::nil())),
        genuine(|case| case.claims().turn = TurnId(Uuid::nil())),
    ] {
        check(&case, of_turn, &Refusal::UnknownTurn);
    }
}

#[test]
fn a_call_is_the_one_that_its_turn_asked_for() {
    for case in [
        genuine(|case| case.asked.arguments = r#"{"task_id": "PROJ-7", "body": "c"}"#.to_owned()),
        genuine(|case| case.asked.call_id = CallId("call_2".to_owned())),
        genuine(|case| {
            case.asked.name = "no_reply".to_owned();
            case.tool = tool("no_reply");
        }),
        genuine(|case| case.turn().call = None),
    ] {
        check(&case, asked_for, &Refusal::NotAsked);
    }
}

#[test]
fn a_call_is_late_once_its_session_turn_fence_or_time_is_over() {
    for case in [Case::genuine(), Case::over_http()] {
        let case = self::case(case, |case| {
            case.facts.is_closed = true;
            case.facts.close_reason = Some("task_done".to_owned());
        });
        let reason = Some(CloseReason::TaskDone);
        check(&case, open, &Refusal::SessionClosed { reason });
    }
    for state in [
        TurnState::Finished,
        TurnState::Failed,
        TurnState::Aborted,
        TurnState::Unknown,
    ] {
        check(
            &genuine(|case| case.turn().state = state),
            turn_in_progress,
            &Refusal::TurnOver,
        );
    }
    // A newer claim wrote the turn; and a fence that no claim assigned.
    let taken = genuine(|case| {
        case.facts.fence = Fence(6);
        case.turn().fence = Fence(6);
    });
    let made_up = genuine(|case| case.claims().fence = Fence(6));
    for case in [taken, made_up] {
        check(&case, not_superseded, &Refusal::Superseded);
    }
    for now in [UNTIL, UNTIL + Duration::DAY] {
        check(&genuine(|case| case.facts.now = now), in_time, &Refusal::Expired);
    }
}

/// The agent of a stopped turn may still be running.
#[test]
fn after_a_stop_an_agent_reads_and_does_not_write() {
    let stopped = |name: &str| {
        case(Case::over_http(), |case| {
            case.facts.turn = None;
            case.facts.turn_stopped = true;
            case.tool = tool(name);
        })
    };
    for writes in ["task_message", "task_status", "response_request"] {
        check(&stopped(writes), not_stopped, &Refusal::TurnStopped);
    }
    let own = genuine(|case| case.facts.turn_stopped = true);
    check(&own, not_stopped, &Refusal::TurnStopped);
    for reads in ["task_history", "no_reply"] {
        assert_eq!(stopped(reads).check_all(&CHECKS), Ok(()), "{reads}");
    }
}

/// Once a newer claim wrote the turn, its journal has moved on as well. The call is late, not forged.
#[test]
fn a_call_of_an_earlier_round_is_late() {
    let case = genuine(|case| {
        case.facts.fence = Fence(6);
        case.turn().fence = Fence(6);
        case.turn().call = None;
    });
    assert_eq!(case.check_all(&CHECKS), Err(Refusal::Superseded));
}

#[test]
fn a_tool_must_be_in_the_turns_offer() {
    let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    let unknown = genuine(|case| case.tool = None);
    let refusal = Refusal::UnknownTool {
        allowed: names(&["task_message", "no_reply"]).unwrap(),
    };
    check(&unknown, known, &refusal);
    let idle = case(Case::over_http().without_task(), |case| {
        case.facts.turn = None;
        case.tool = None;
        case.task = None;
    });
    let refusal = Refusal::UnknownTool {
        allowed: names(&[
            "response_request",
            "check_later",
            "ask_question",
            "withdraw_question",
            "no_reply",
        ])
        .unwrap(),
    };
    check(&idle, known, &refusal);

    let refusal = Refusal::NotOffered { tool: "task_message" };
    for case in [Case::genuine(), Case::over_http()] {
        // The offer holds other tools than this one
        let other = self::case(case.clone(), |case| case.turn().tools = names(&["no_reply"]));
        check(&other, offered, &refusal);
        // The offer is outdated: its reason no longer holds
        let mut lost = case.without_task();
        lost.task = None;
        check(&lost, offered, &refusal);
    }
}

#[test]
fn a_task_is_the_callers_own() {
    let foreign = |own: &str| Refusal::NotThere {
        task: task("proj-8"),
        own: Some(task(own)),
    };
    for case in [Case::genuine(), Case::over_http()] {
        let other = self::case(case.clone(), |case| case.task = Some(task("proj-8")));
        check(&other, own_task, &foreign("proj-7"));
        // In the chat, with a tool that does not allow it
        let narrow = self::case(case.clone().in_chat(), |case| {
            case.tool.as_mut().unwrap().reach = Reach::OwnTask;
            case.task = Some(task("proj-8"));
        });
        check(&narrow, own_task, &foreign("chat"));
        // In the chat, by an agent that is not assigned to it
        let stranger = self::case(case.in_chat(), |case| {
            case.facts.coordinates = false;
            case.task = Some(task("proj-8"));
        });
        check(&stranger, own_task, &foreign("chat"));
    }
    let mut taskless = Case::genuine().without_task();
    taskless.asked.name = "response_request".to_owned();
    taskless.turn().call.as_mut().unwrap().name = "response_request".to_owned();
    taskless.turn().tools = Some(vec!["response_request".to_owned()]);
    taskless.tool = tool("response_request");
    let refusal = Refusal::NotThere {
        task: task("Proj-7"),
        own: None,
    };
    check(&taskless, own_task, &refusal);
}

fn policy(scope_kind: PolicyScope, scope_id: impl ToString, tool: &str) -> ToolPolicy {
    ToolPolicy {
        id: ToolPolicyId(Uuid::nil()),
        scope_kind,
        scope_id: scope_id.to_string(),
        tool: tool.to_owned(),
        visible: None,
        verdict: None,
        audience: None,
        schema_hash: None,
    }
}

#[test]
fn a_policy_denies_a_call_when_it_comes() {
    let with = |case: Case, verdict: PolicyVerdict, (scope, id): (PolicyScope, &str)| {
        self::case(case, |case| {
            let policy = ToolPolicy {
                verdict: Some(verdict),
                ..policy(scope, id, "task_m*")
            };
            case.facts.policies = [policy].into();
        })
    };
    let refusal = Refusal::Denied { tool: "task_message" };
    for case in [Case::genuine(), Case::over_http()] {
        for scope in [
            (PolicyScope::Account, "acme"),
            (PolicyScope::Agent, &*AGENT.to_string()),
            (PolicyScope::Task, "proj-7"),
            (PolicyScope::Session, &*SESSION.to_string()),
        ] {
            check(&with(case.clone(), PolicyVerdict::Deny, scope), not_denied, &refusal);
            for verdict in [PolicyVerdict::Allow, PolicyVerdict::Ask] {
                let admitted = with(case.clone(), verdict, scope).check_all(&CHECKS);
                assert_eq!(admitted, Ok(()), "{verdict} {scope:?}");
            }
        }
        let elsewhere = with(case, PolicyVerdict::Deny, (PolicyScope::Task, "proj-8"));
        assert_eq!(elsewhere.check_all(&CHECKS), Ok(()));
    }
}

/// In a turn, the offer of its beginning counts.
#[test]
fn without_a_turn_a_policy_hides_a_tool() {
    let hidden = |case: Case| {
        self::case(case, |case| {
            let policy = ToolPolicy {
                visible: Some(false),
                ..policy(PolicyScope::Account, "acme", "task_message")
            };
            case.facts.policies = [policy].into();
        })
    };
    let idle = hidden(case(Case::over_http(), |case| case.facts.turn = None));
    check(&idle, offered, &Refusal::NotOffered { tool: "task_message" });
    for case in [Case::genuine(), Case::over_http()] {
        assert_eq!(hidden(case).check_all(&CHECKS), Ok(()));
    }
}

#[test]
fn nothing_is_changed_before_the_plan_is_approved() {
    for case in [Case::genuine(), Case::over_http()] {
        let case = self::case(case, |case| {
            case.facts.needs_plan = true;
            case.tool = tool("task_status");
            case.asked.name = "task_status".to_owned();
            let turn = case.turn();
            turn.tools = Some(vec!["task_status".to_owned()]);
            turn.call.as_mut().unwrap().name = "task_status".to_owned();
        });
        check(&case, planned, &Refusal::PlanRequired);
        // An orchestrator's session has no plan.
        for tool in tools::all().iter().filter(|tool| {
            !matches!(
                tool.offered_to,
                Audience::Orchestrator | Audience::Own | Audience::Account
            )
        }) {
            let leads_there = matches!(tool.effect, ToolEffect::None | ToolEffect::Read) || tool.before_plan;
            let one = self::case(case.clone(), |case| {
                case.asked.name = tool.name.to_owned();
                case.facts.has_mail = true;
                case.turn().tools = Some(vec![tool.name.to_owned()]);
                case.turn().call.as_mut().unwrap().name = tool.name.to_owned();
                case.tool = Some(tool.clone());
            });
            let capability = Capability {
                session: SESSION,
                facts: &one.facts,
            };
            let presented = Presented {
                asked: &one.asked,
                tool: one.tool.as_ref(),
                task: one.task.as_ref(),
            };
            assert_eq!(capability.admit(&presented).is_ok(), leads_there, "{}", tool.name);
        }
    }
}

#[test]
fn a_call_waits_for_earlier_ones_while_it_may_run_itself() {
    let check = |case: &Case, waits: bool| {
        let capability = Capability {
            session: SESSION,
            facts: &case.facts,
        };
        let presented = Presented {
            asked: &case.asked,
            tool: case.tool.as_ref(),
            task: case.task.as_ref(),
        };
        let admitted = capability.admit(&presented);
        assert_eq!(
            capability.waits_for_earlier(&presented, &admitted),
            waits,
            "{admitted:?}"
        );
    };
    let after_another = |change: fn(&mut Case)| {
        genuine(|case| {
            case.turn().earlier = vec![1];
            case.turn().earlier_tools = vec!["task_history".to_owned()];
            change(case);
        })
    };
    check(&Case::genuine(), false);
    check(&after_another(|_| {}), true);
    // The answer says that the task does not exist, perhaps because the earlier call has not created it yet.
    check(&after_another(|case| case.task = Some(task("proj-8"))), true);
    check(&after_another(|case| case.facts.now = UNTIL), false);
    check(&after_another(|case| case.facts.is_closed = true), false);
    check(&after_another(|case| case.turn().state = TurnState::Finished), false);
    check(&after_another(|case| case.turn().call = None), false);
    // Over HTTP calls have no place.
    check(&after_another(|case| case.asked.origin = Origin::Http), false);
}

#[test]
fn the_listed_tools_are_the_callable_ones() {
    let names = |case: &Case| {
        let capability = Capability {
            session: SESSION,
            facts: &case.facts,
        };
        let tools = capability.tools()?;
        Ok::<Vec<&str>, Refusal>(tools.iter().map(|tool| tool.name).collect())
    };
    assert_eq!(names(&Case::over_http()).unwrap(), ["task_message", "no_reply"]);
    let idle = case(Case::over_http(), |case| {
        case.facts.turn = None;
        case.facts.models = ModelKind::ALL.iter().copied().collect();
    });
    // But those of turns that a question has woken, of orchestrators, and of accounts with members.
    let others = [
        Audience::Asked,
        Audience::Orchestrator,
        Audience::Own,
        Audience::Account,
        Audience::Mail,
        Audience::Board,
        Audience::OnBoard,
    ];
    let of_all = tools::all().iter().filter(|tool| !others.contains(&tool.offered_to));
    assert_eq!(
        names(&idle).unwrap(),
        of_all.map(|tool| tool.name).collect::<Vec<&str>>()
    );
    let denied = case(idle.clone(), |case| {
        let policy = ToolPolicy {
            verdict: Some(PolicyVerdict::Deny),
            ..policy(PolicyScope::Account, "acme", "task_*")
        };
        case.facts.policies = [policy].into();
    });
    let left = names(&denied).unwrap();
    assert!(
        left.contains(&"no_reply") && !left.iter().any(|name| name.starts_with("task_")),
        "{left:?}"
    );
    let stopped = case(idle, |case| case.facts.turn_stopped = true);
    let reading = ["task_history", "task_context_read", "subagent_list", "no_reply"];
    assert_eq!(names(&stopped).unwrap(), reading);
    let taskless = case(Case::over_http().without_task(), |case| case.turn().tools = None);
    let without_task = [
        "response_request",
        "check_later",
        "ask_question",
        "withdraw_question",
        "no_reply",
    ];
    assert_eq!(names(&taskless).unwrap(), without_task);
    let closed = case(Case::over_http(), |case| case.facts.is_closed = true);
    assert_eq!(names(&closed), Err(Refusal::SessionClosed { reason: None }));
}
