//! The decisions, as a table: facts, message, expected decision.

use contracts::header;
use domain::{AccountId, MessageId, SessionScope};
use uuid::Uuid;

use super::*;
use crate::intake::{
    facts::Fact,
    received::tests::{incoming, received, redriven},
};

const CODER: &str = "0190b5a8-0000-7000-8000-000000000001";
const REVIEWER: &str = "0190b5a8-0000-7000-8000-000000000002";
const MESSAGE: &str = "0190b5a8-0000-7000-8000-00000000000a";
const ELSEWHERE: &str = "0190b5a8-0000-7000-8000-00000000000b";
const TASK: &str = "signalbox.partition.3.acme.PROJ-7";

fn agent(id: &str) -> AgentId {
    AgentId::parse(id).unwrap()
}

fn task_id(id: &str) -> TaskId {
    TaskId::parse(id).unwrap()
}

/// Account `acme` with agents `coder` and `reviewer`, both on task PROJ-7, whose thread has a message; task EMPTY has
/// no assignee.
fn facts(auto_create_tasks: bool) -> BatchFacts {
    let account = AccountId::parse("acme").unwrap();
    let slug = |slug: &str| AgentRef::parse(slug).unwrap();
    let mut facts = BatchFacts::default();
    for fact in [
        Fact::Account {
            session_scope: SessionScope::Task,
            auto_create_tasks,
        },
        Fact::Agent(slug("coder"), agent(CODER)),
        Fact::Agent(AgentRef::Id(agent(CODER)), agent(CODER)),
        Fact::Agent(slug("reviewer"), agent(REVIEWER)),
        Fact::Agent(AgentRef::Id(agent(REVIEWER)), agent(REVIEWER)),
        Fact::Task(task_id("Proj-7")),
        Fact::Task(task_id("EMPTY")),
        Fact::Assignee(task_id("proj-7"), agent(REVIEWER)),
        Fact::Assignee(task_id("proj-7"), agent(CODER)),
        Fact::Message(MessageId::parse(MESSAGE).unwrap(), task_id("proj-7")),
        Fact::Message(MessageId::parse(ELSEWHERE).unwrap(), task_id("empty")),
    ] {
        facts.add(&account, fact);
    }
    facts
}

/// Adds an earlier message and its state to the facts.
fn with_before(
    mut facts: BatchFacts,
    id: &str,
    before: &Received,
    agent: Option<&str>,
    state: NotificationState,
) -> BatchFacts {
    let known = Known {
        hash: before.hash,
        edited: None,
        agent: agent.map(self::agent),
        state,
    };
    let id = NotificationId::parse(id).unwrap();
    facts.add(before.account.as_ref().unwrap(), Fact::Notification(id, known));
    facts
}

/// A short text of a decision.
fn summary(decision: &Decision) -> String {
    match decision {
        Decision::Duplicate => "duplicate".to_owned(),
        Decision::Refuse(refused) => {
            let row = if refused.keep_row { " +row" } else { "" };
            format!("{}{row}", refused.refusal.reason.as_str())
        }
        Decision::Accept(accepted) => {
            let task = match &accepted.task {
                AcceptedTask::None => "-".to_owned(),
                AcceptedTask::Known(task) => task.to_string(),
                AcceptedTask::New(task) => format!("new {task}"),
            };
            let entries: Vec<String> = accepted
                .entries
                .iter()
                .map(|entry| {
                    let who = if entry.agent == agent(CODER) {
                        "coder"
                    } else {
                        "reviewer"
                    };
                    format!("{who}{}", if entry.requeue { " again" } else { "" })
                })
                .collect();
            let rest = match (&accepted.replaces, accepted.duplicates) {
                (None, 0) => String::new(),
                (None, duplicates) => format!(", {duplicates} known"),
                (Some(_), _) => ", instead of the whole".to_owned(),
            };
            format!("{task}: {}{rest}", entries.join(" + "))
        }
    }
}

fn check(facts: &BatchFacts, message: &Received, expected: &str) {
    let limits = QueueLimits {
        hops_max: 3,
        items_max: 10,
    };
    let decision = decide(message, facts, &limits);
    assert_eq!(summary(&decision), expected, "{}: {decision:?}", message.subject);
}

fn message(subject: &str, json: &str) -> Received {
    received(subject, &[], json)
}

#[test]
fn who_is_to_act() {
    let facts = facts(true);
    let check = |subject: &str, json: &str, expected: &str| check(&facts, &message(subject, json), expected);
    check(TASK, r#"{"body": "", "agent": "coder"}"#, "Proj-7: coder");
    check(TASK, &format!(r#"{{"body": "", "agent": "{CODER}"}}"#), "Proj-7: coder");
    check(
        TASK,
        r#"{"body": "", "agents": ["reviewer", "coder"]}"#,
        "Proj-7: coder + reviewer",
    );
    check(
        TASK,
        &format!(r#"{{"body": "", "agents": ["coder", "{CODER}"]}}"#),
        "Proj-7: coder",
    );
    check(TASK, r#"{"body": ""}"#, "Proj-7: coder + reviewer");
    check(
        "signalbox.partition.3.acme.-",
        r#"{"body": "", "agent": "coder"}"#,
        "-: coder",
    );
    check(
        "signalbox.partition.3.acme.New-1",
        r#"{"body": "", "agent": "coder"}"#,
        "new New-1: coder",
    );

    check(
        "signalbox.partition.3.acme.-",
        r#"{"body": "", "id": "n"}"#,
        "no_agent +row",
    );
    check("signalbox.partition.3.acme.empty", r#"{"body": ""}"#, "no_agent");
    check(
        "signalbox.partition.3.acme.New-1",
        r#"{"body": "", "id": "n"}"#,
        "no_agent +row",
    );
    check(
        TASK,
        r#"{"body": "", "agent": "ghost", "id": "n"}"#,
        "unknown_agent +row",
    );
    check(
        TASK,
        r#"{"body": "", "agents": ["coder", "ghost"], "id": "n"}"#,
        "unknown_agent +row",
    );
    let long = "x".repeat(92);
    check(
        TASK,
        &format!(r#"{{"body": "", "id": "{long}"}}"#),
        "invalid_field +row",
    );
    check(
        TASK,
        &format!(r#"{{"body": "", "id": "{}"}}"#, &long[1..]),
        "Proj-7: coder + reviewer",
    );
}

#[test]
fn whose_it_is() {
    let facts = facts(true);
    let check = |subject: &str, json: &str, expected: &str| check(&facts, &message(subject, json), expected);
    check(
        "signalbox.partition.3.other.t",
        r#"{"body": "", "agent": "coder", "id": "n"}"#,
        "unknown_account",
    );
    check("signalbox.partition.3.other.t", "nonsense", "unknown_account");
    check(
        "signalbox.partition.3.ACME.t",
        r#"{"body": "", "id": "n"}"#,
        "invalid_subject",
    );
    check(
        "signalbox.partition.3.acme._t",
        r#"{"body": "", "id": "n"}"#,
        "invalid_subject +row",
    );
    check(TASK, "nonsense", "malformed");
    check(TASK, r#"{"id": "n"}"#, "invalid_field +row");
}

#[test]
fn tasks_are_created_where_the_account_wants_it() {
    let subject = "signalbox.partition.3.acme.New-1";
    let named = message(subject, r#"{"body": "", "agent": "coder", "id": "n"}"#);
    check(&facts(true), &named, "new New-1: coder");
    check(&facts(false), &named, "unknown_task +row");
    check(
        &facts(false),
        &message(subject, r#"{"body": "", "id": "n"}"#),
        "unknown_task +row",
    );
}

#[test]
fn a_message_must_belong_to_the_notifications_task() {
    let facts = facts(true);
    let unknown = Uuid::nil();
    let check = |subject: &str, id: &str, expected: &str| {
        let json = format!(r#"{{"body": "", "agent": "coder", "message_id": "{id}"}}"#);
        check(&facts, &message(subject, &json), expected);
    };
    check(TASK, MESSAGE, "Proj-7: coder");
    check(TASK, ELSEWHERE, "message_mismatch");
    check(TASK, &unknown.to_string(), "message_mismatch");
    check("signalbox.partition.3.acme.-", MESSAGE, "message_mismatch");
    check("signalbox.partition.3.acme.New-1", MESSAGE, "message_mismatch");
}

#[test]
fn the_coordinator_s_chat_reaches_the_coordinator_alone() {
    let account = AccountId::parse("acme").unwrap();
    let mut facts = facts(true);
    let chat = |agents: &str| {
        message(
            "signalbox.partition.3.acme.EMPTY",
            &format!(r#"{{"id": "n", {agents}, "body": "b"}}"#),
        )
    };
    // A chat without an assignee reaches the named agent.
    check(&facts, &chat(r#""agent": "coder""#), "EMPTY: coder");
    facts.add(&account, Fact::Coordinator(task_id("empty"), agent(REVIEWER)));
    check(&facts, &chat(r#""agent": "reviewer""#), "EMPTY: reviewer");
    check(&facts, &chat(r#""agent": "coder""#), "not_coordinator +row");
    check(
        &facts,
        &chat(r#""agents": ["reviewer", "coder"]"#),
        "not_coordinator +row",
    );
    // Other tasks reach their own assignees only.
    check(
        &facts,
        &message(TASK, r#"{"id": "n", "agent": "coder", "body": "b"}"#),
        "Proj-7: coder",
    );
}

#[test]
fn a_chain_of_agents_has_an_end() {
    let facts = facts(true);
    let json = r#"{"body": "", "agent": "coder"}"#;
    check(&facts, &received(TASK, &[(header::HOPS, "3")], json), "Proj-7: coder");
    check(&facts, &received(TASK, &[(header::HOPS, "4")], json), "hop_limit");
    check(&facts, &redriven(TASK, &[(header::HOPS, "4")], json), "Proj-7: coder");
}

#[test]
fn the_same_again_is_a_duplicate_and_something_else_a_conflict() {
    use NotificationState::{Cancelled, Delivered, Failed, Queued, Refused, Running};
    let first = message(TASK, r#"{"body": "b", "agent": "coder", "id": "n"}"#);
    for state in [Queued, Running, Delivered, Failed, Refused, Cancelled] {
        let facts = with_before(facts(true), "n", &first, Some(CODER), state);
        check(&facts, &first, "duplicate");
        let by_id = format!(r#"{{"body": "b", "agent": "{CODER}", "id": "n"}}"#);
        check(&facts, &message(TASK, &by_id), "duplicate");
        check(
            &facts,
            &message("signalbox.partition.3.acme.proj-7", &by_id),
            "duplicate",
        );
        // A removed agent does not make the content different.
        check(
            &facts,
            &message(TASK, r#"{"body": "b", "agent": "ghost", "id": "n"}"#),
            "duplicate",
        );

        check(
            &facts,
            &message(TASK, r#"{"body": "c", "agent": "coder", "id": "n"}"#),
            "id_conflict",
        );
        check(
            &facts,
            &message("signalbox.partition.3.acme.empty", &by_id),
            "id_conflict",
        );
        check(&facts, &message("signalbox.partition.3.acme.-", &by_id), "id_conflict");
        let other_agent = message(TASK, r#"{"body": "b", "agent": "reviewer", "id": "n"}"#);
        // A refused notification reached no agent.
        check(
            &facts,
            &other_agent,
            if state == Refused { "duplicate" } else { "id_conflict" },
        );
        let everybody = message(TASK, r#"{"body": "b", "id": "n"}"#);
        check(
            &facts,
            &everybody,
            if state == Refused { "duplicate" } else { "id_conflict" },
        );
    }
}

#[test]
fn a_redrive_queues_refused_and_failed_notifications_again() {
    use NotificationState::{Cancelled, Delivered, Failed, Queued, Refused, Running};
    let json = r#"{"body": "b", "agent": "coder", "id": "n"}"#;
    let again = redriven(TASK, &[], json);
    let other = redriven(TASK, &[], r#"{"body": "c", "agent": "coder", "id": "n"}"#);
    for (state, expected) in [
        (Failed, "Proj-7: coder again"),
        (Refused, "Proj-7: coder again"),
        (Queued, "duplicate"),
        (Running, "duplicate"),
        (Delivered, "duplicate"),
        (Cancelled, "duplicate"),
    ] {
        let facts = with_before(facts(true), "n", &message(TASK, json), Some(CODER), state);
        check(&facts, &again, expected);
        check(&facts, &other, "id_conflict");
    }
    // No row was stored, so it is new.
    check(&facts(true), &again, "Proj-7: coder");
    // An error that remains is refused again.
    let ghost = r#"{"body": "b", "agent": "ghost", "id": "n"}"#;
    let facts = with_before(facts(true), "n", &message(TASK, ghost), None, Refused);
    check(&facts, &redriven(TASK, &[], ghost), "unknown_agent");
    check(&facts, &message(TASK, ghost), "duplicate");
}

#[test]
fn an_unreadable_message_is_refused_once() {
    let json = r#"{"id": "n", "body": 7}"#;
    let first = message(TASK, json);
    let facts = with_before(facts(true), "n", &first, None, NotificationState::Refused);
    check(&facts, &first, "duplicate");
    check(&facts, &redriven(TASK, &[], json), "invalid_field");
    check(&facts, &message(TASK, r#"{"id": "n", "body": 8}"#), "invalid_field");
    check(
        &facts,
        &message(TASK, r#"{"id": "n", "body": "mended", "agent": "coder"}"#),
        "id_conflict",
    );
}

#[test]
fn parts_answer_for_the_whole() {
    use NotificationState::{Failed, Queued, Refused};
    let json = r#"{"body": "b", "id": "n"}"#;
    let whole = message(TASK, json);
    let part = |agent: &str| format!("n:{agent}");
    let one = with_before(facts(true), &part(CODER), &whole, Some(CODER), Queued);
    check(&one, &whole, "Proj-7: reviewer, 1 known");
    let both = with_before(one.clone(), &part(REVIEWER), &whole, Some(REVIEWER), Failed);
    check(&both, &whole, "duplicate");
    check(&both, &message(TASK, r#"{"body": "c", "id": "n"}"#), "id_conflict");
    check(&both, &redriven(TASK, &[], json), "Proj-7: reviewer again, 1 known");
    // Delivery redrives a part by its own id and agent.
    let alone = format!(r#"{{"body": "b", "id": "{}", "agent": "{REVIEWER}"}}"#, part(REVIEWER));
    check(&both, &redriven(TASK, &[], &alone), "Proj-7: reviewer again");
    check(&both, &message(TASK, &alone), "duplicate");

    // A refused whole is one row until a redrive creates its parts.
    let refused = with_before(facts(true), "n", &whole, None, Refused);
    check(&refused, &whole, "duplicate");
    check(
        &refused,
        &redriven(TASK, &[], json),
        "Proj-7: coder + reviewer, instead of the whole",
    );
    assert_eq!(part_ids(&whole, &refused).len(), 2);
    assert_eq!(
        part_ids(&message(TASK, r#"{"body": "b", "agent": "coder"}"#), &refused),
        []
    );
}

#[test]
fn without_a_given_id_reading_again_is_a_duplicate() {
    let json = r#"{"body": "b", "agent": "coder"}"#;
    let first = message(TASK, json);
    let facts = with_before(
        facts(true),
        first.id.as_str(),
        &first,
        Some(CODER),
        NotificationState::Queued,
    );
    check(&facts, &message(TASK, json), "duplicate");
    let mut later = incoming(TASK, &[], json);
    later.stream_sequence += 1;
    let later = Received::read(
        &contracts::Root::default(),
        time::OffsetDateTime::UNIX_EPOCH,
        later,
        false,
    );
    check(&facts, &later, "Proj-7: coder");
}

/// Its name says who is the guest: only signed messages enter, and only where both are there and the owner lets others ask.
#[test]
fn a_guests_session_takes_what_is_signed() {
    let payload = r#"{"id": "mail-1", "type": "mail", "body": "b", "session": "orchestrator:acme:ann:guest:ben:v1"}"#;
    let read = |task: &str, is_signed: bool| {
        let incoming = incoming(&format!("signalbox.partition.3.acme.{task}"), &[], payload);
        Received::read(
            &contracts::Root::default(),
            time::OffsetDateTime::UNIX_EPOCH,
            incoming,
            is_signed,
        )
    };
    let user = |id: &str| domain::UserId::parse(id).unwrap();
    let mut reachable = facts(false);
    let answered = Fact::Guest((user("ann"), user("ben")), agent(CODER));
    reachable.add(&AccountId::parse("acme").unwrap(), answered);
    let limits = QueueLimits {
        hops_max: 3,
        items_max: 100,
    };
    let check = |facts: &BatchFacts, received: &Received, expected: Option<RefusalReason>| {
        let found = match decide(received, facts, &limits) {
            Decision::Refuse(refused) => Some(refused.refusal.reason),
            Decision::Accept(accepted) => {
                assert_eq!(accepted.entries[0].agent, agent(CODER));
                None
            }
            Decision::Duplicate => panic!("it is new"),
        };
        assert_eq!(found, expected);
    };
    check(&reachable, &read("-", true), None);
    check(&reachable, &read("-", false), Some(RefusalReason::SessionMismatch));
    check(&reachable, &read("PROJ-7", true), Some(RefusalReason::SessionMismatch));
    check(&facts(false), &read("-", true), Some(RefusalReason::UnknownUser));
}
