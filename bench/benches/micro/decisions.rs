//! The pure decisions: parsing a notification, accepting it, resolving its session, admitting a woken session, and judging a
//! provider's answer.

use std::time::Duration;

use bytes::Bytes;
use contracts::{Headers, Root};
use delivery::{
    providers::{Effects, ProviderAnswer},
    queue::admit,
    settings::DeliverySettings,
    turn::settle::{self, CallOutcome, settle},
};
use divan::{Bencher, black_box};
use domain::{
    AccountId, AgentId, AgentRef, Conversation, Generation, QueueLimits, SessionId, SessionPhase, SessionScope, TaskId,
};
use messaging::Incoming;
use resolver::intake::{
    decide::{Decision, decide},
    facts::{BatchFacts, Fact},
    received::Received,
    resolve::{Found, resolve},
};
use storage::session::{sessions_lock::SessionFacts, sessions_open::Newest};
use time::OffsetDateTime;
use uuid::Uuid;

fn incoming() -> Incoming {
    let body = "please look into it, ".repeat(10);
    Incoming {
        subject: "signalbox.partition.3.acme.PROJ-7".to_owned(),
        headers: Headers::default(),
        payload: Bytes::from(format!(r#"{{"id": "n-1", "agent": "coder", "body": "{body}"}}"#)),
        stream_sequence: 7,
        deliveries: 1,
        published: OffsetDateTime::UNIX_EPOCH,
    }
}

fn received() -> Received {
    Received::read(&Root::default(), OffsetDateTime::UNIX_EPOCH, incoming(), true)
}

fn account() -> AccountId {
    AccountId::parse("acme").expect("an id")
}

fn task() -> TaskId {
    TaskId::parse("PROJ-7").expect("an id")
}

#[divan::bench]
fn read(bencher: Bencher) {
    bencher
        .with_inputs(incoming)
        .bench_values(|incoming| Received::read(&Root::default(), OffsetDateTime::UNIX_EPOCH, incoming, true));
}

#[divan::bench]
fn decide_to_accept(bencher: Bencher) {
    let (received, mut facts) = (received(), BatchFacts::default());
    let all_there_is = [
        Fact::Account {
            session_scope: SessionScope::Task,
            auto_create_tasks: false,
        },
        Fact::Agent(AgentRef::parse("coder").expect("a slug"), AgentId(Uuid::from_u128(1))),
        Fact::Task(task()),
    ];
    for fact in all_there_is {
        facts.add(&account(), fact);
    }
    let limits = QueueLimits {
        hops_max: 8,
        items_max: 10_000,
    };
    assert!(matches!(decide(&received, &facts, &limits), Decision::Accept(_)));
    bencher.bench(|| decide(black_box(&received), &facts, &limits));
}

#[divan::bench]
fn resolve_the_next_generation(bencher: Bencher) {
    let (account, task) = (account(), task());
    bencher.bench(|| {
        let conversation = Conversation::of(
            black_box(&account),
            SessionScope::Task,
            Some(&task),
            AgentId(Uuid::from_u128(1)),
        );
        let newest = Newest {
            generation: Some(Generation::FIRST),
            ended: false,
        };
        let found = black_box(Found::Closed(newest));
        let resolution = resolve(conversation.kind(), found, SessionId(Uuid::nil()));
        (conversation.key(Generation::FIRST), resolution)
    });
}

#[divan::bench]
fn admit_a_session() -> delivery::queue::Admission {
    let session = SessionFacts {
        phase: SessionPhase::Idle,
        closed: false,
        queued: 3,
        due: false,
        asked: 0,
        stopping: false,
        lease_dead: false,
    };
    admit(black_box(session), black_box(None))
}

#[divan::bench]
fn settle_an_answer(bencher: Bencher) {
    let outcome = CallOutcome::Answered(ProviderAnswer {
        response_id: Some("resp_1".to_owned()),
        text: "Noted. There is nothing else to do about this notification for the moment.".to_owned(),
        ..ProviderAnswer::default()
    });
    let facts = settle::AttemptFacts {
        effects: Effects::GatewayOnly,
        closed: false,
        failures: 0,
        rounds: 0,
        calls_before: 0,
        ordinal_before: 0,
        attempts: 1,
        lost_for: Duration::ZERO,
        stop: None,
        breaker: None,
        fragile: false,
        may_start_afresh: true,
    };
    let limits = DeliverySettings::default();
    bencher.bench(|| settle(black_box(&outcome), &facts, &limits));
}
