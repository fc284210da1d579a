//! The decisions, as tables of cases.

use std::sync::LazyLock;

use runtime::settings::{Count, Millis};

use super::*;
use crate::providers::{FailureClass, FunctionCall};

static LIMITS: LazyLock<DeliverySettings> = LazyLock::new(|| DeliverySettings {
    attempts_max: Count::new(3),
    rounds_max: Count::new(2),
    calls_max: Count::new(4),
    retry_delay_ms: Millis::new(1_000),
    retry_delay_ms_max: Millis::new(60_000),
    pause_delay_ms: Millis::new(90_000),
    look_up_delay_ms: Millis::new(2_000),
    look_up_ms_max: Millis::new(60_000),
    ..DeliverySettings::default()
});
const FACTS: AttemptFacts = AttemptFacts {
    effects: Effects::GatewayOnly,
    closed: false,
    failures: 0,
    rounds: 0,
    calls_before: 0,
    ordinal_before: 0,
    attempts: 0,
    lost_for: Duration::ZERO,
    stop: None,
    breaker: None,
    fragile: false,
    may_start_afresh: true,
};

fn error(class: FailureClass, sent: Sent, retry_after: Option<u64>) -> CallOutcome {
    CallOutcome::Failed(ProviderError {
        class,
        sent,
        retry_after: retry_after.map(Duration::from_secs),
        response_id: None,
        detail: "x".to_owned(),
    })
}

fn calls(count: usize, arguments: &str) -> CallOutcome {
    let call = |n: usize| FunctionCall {
        call_id: format!("c{n}"),
        name: "task_history".to_owned(),
        arguments: arguments.to_owned(),
    };
    CallOutcome::Answered(ProviderAnswer {
        calls: (0..count).map(call).collect(),
        ..ProviderAnswer::default()
    })
}

fn reply() -> CallOutcome {
    CallOutcome::Answered(ProviderAnswer {
        text: "done\0".to_owned(),
        ..ProviderAnswer::default()
    })
}

#[test]
fn failures_are_retried_by_class_up_to_the_limit() {
    let check = |outcome, facts: AttemptFacts, expected: &dyn Fn(&Settled) -> bool| {
        let settled = settle(&outcome, &facts, &LIMITS);
        assert!(expected(&settled), "{settled:?}");
    };
    let again = |seconds: u64| move |settled: &Settled| matches!(settled, Settled::Again { after, .. } if *after == Duration::from_secs(seconds));
    let gave_up = |class: &'static str| move |settled: &Settled| matches!(settled, Settled::GaveUp { class: found, .. } if *found == class);
    check(error(FailureClass::Refused, Sent::No, None), FACTS, &again(1));
    check(
        error(FailureClass::Refused, Sent::No, None),
        AttemptFacts { failures: 1, ..FACTS },
        &again(2),
    );
    check(
        error(FailureClass::Refused, Sent::No, None),
        AttemptFacts { failures: 2, ..FACTS },
        &gave_up("refused"),
    );
    check(error(FailureClass::RateLimited, Sent::No, Some(30)), FACTS, &again(30));
    check(error(FailureClass::Unauthorized, Sent::No, None), FACTS, &again(90));
    check(
        error(FailureClass::TooLarge, Sent::Yes, None),
        FACTS,
        &gave_up("too_large"),
    );
    check(error(FailureClass::Timeout, Sent::Maybe, None), FACTS, &again(1));
    let own = AttemptFacts {
        effects: Effects::Own,
        ..FACTS
    };
    check(
        error(FailureClass::Timeout, Sent::Maybe, None),
        own.clone(),
        &|settled| matches!(settled, Settled::LookAgain { .. }),
    );
    check(
        error(FailureClass::ServerError, Sent::Yes, None),
        own.clone(),
        &|settled| {
            matches!(
                settled,
                Settled::Interrupted {
                    step: TurnStep::GiveUp,
                    ..
                }
            )
        },
    );
    check(CallOutcome::NotKnownYet, own.clone(), &|settled| {
        matches!(settled, Settled::LookAgain { .. })
    });
    let long_lost = AttemptFacts {
        lost_for: Duration::from_secs(61),
        ..own.clone()
    };
    check(CallOutcome::NotKnownYet, long_lost, &|settled| {
        matches!(settled, Settled::Interrupted { .. })
    });
    let lost = || CallOutcome::Lost { why: "gone".to_owned() };
    check(lost(), own.clone(), &|settled| {
        matches!(
            settled,
            Settled::Interrupted {
                step: TurnStep::Lose,
                ..
            }
        )
    });
    check(
        lost(),
        AttemptFacts {
            attempts: 2,
            ..own.clone()
        },
        &|settled| {
            matches!(
                settled,
                Settled::GaveUp {
                    class: "outcome_unknown",
                    interrupted: true,
                    ..
                }
            )
        },
    );
    check(lost(), AttemptFacts { closed: true, ..own }, &|settled| {
        *settled == Settled::Aborted
    });
    check(
        error(FailureClass::Refused, Sent::No, None),
        AttemptFacts { closed: true, ..FACTS },
        &|settled| *settled == Settled::Aborted,
    );
}

#[test]
fn a_call_that_never_began_is_sent_again_with_an_end() {
    let settled = |failures| settle(&CallOutcome::DidNotRun, &AttemptFacts { failures, ..FACTS }, &LIMITS);
    let again = |seconds: u64| Settled::Again {
        after: Duration::from_secs(seconds),
        repeats: true,
        counts: true,
        error: "the provider never began the call".to_owned(),
        class: "not_run",
    };
    assert_eq!(settled(0), again(0));
    assert_eq!(settled(1), again(1));
    assert!(matches!(settled(2), Settled::GaveUp { class: "not_run", .. }));
}

#[test]
fn a_reply_after_the_close_is_recorded_as_late() {
    for closed in [false, true] {
        let Settled::Finished { reply, late, .. } = settle(&reply(), &AttemptFacts { closed, ..FACTS }, &LIMITS) else {
            panic!("a reply")
        };
        assert_eq!((reply.as_str(), late), ("done\u{fffd}", closed));
    }
}

#[test]
fn calls_are_numbered_through_the_turn_and_limited() {
    let Settled::AwaitTools { round } = settle(
        &calls(2, "{}"),
        &AttemptFacts {
            rounds: 1,
            calls_before: 2,
            ordinal_before: 2,
            ..FACTS
        },
        &LIMITS,
    ) else {
        panic!("calls")
    };
    assert_eq!(round.calls.iter().map(|call| call.ordinal).collect::<Vec<_>>(), [3, 4]);
    for facts in [
        AttemptFacts { rounds: 2, ..FACTS },
        AttemptFacts {
            calls_before: 3,
            ..FACTS
        },
    ] {
        assert!(matches!(
            settle(&calls(2, "{}"), &facts, &LIMITS),
            Settled::GaveUp { class: "tool_loop", .. }
        ));
    }
}

#[test]
fn arguments_that_are_too_large_are_answered_without_a_tool() {
    let Settled::AwaitTools { round } = settle(&calls(1, &"x".repeat(ARGUMENTS_BYTES_MAX + 1)), &FACTS, &LIMITS) else {
        panic!("calls")
    };
    assert!(
        round.calls[0]
            .answered
            .as_deref()
            .is_some_and(|text| text.contains("arguments_too_large"))
    );
    assert_eq!(round.calls[0].arguments, "");
}

#[test]
fn calls_that_are_passed_on_have_places_without_a_gap() {
    let CallOutcome::Answered(mut answer) = calls(4, "{}") else {
        panic!("calls")
    };
    answer.calls[0].arguments = "x".repeat(ARGUMENTS_BYTES_MAX + 1);
    answer.calls[2].arguments = "x".repeat(ARGUMENTS_BYTES_MAX + 1);
    let limits = DeliverySettings {
        calls_max: Count::new(20),
        ..LIMITS.clone()
    };
    let facts = AttemptFacts {
        calls_before: 6,
        ordinal_before: 5,
        ..FACTS
    };
    let Settled::AwaitTools { round } = settle(&CallOutcome::Answered(answer), &facts, &limits) else {
        panic!("calls")
    };
    let places: Vec<i32> = round.calls.iter().map(|call| call.ordinal).collect();
    assert_eq!(places, [NO_PLACE, 6, NO_PLACE, 7]);
}

/// Every outcome of a call whose turn is to end.
#[test]
fn a_stop_ends_the_turn_unless_its_reply_came_first() {
    let settled = |outcome: CallOutcome, stop: bool, closed: bool| {
        let stop = stop.then(|| Stop {
            kind: StopKind::Steered,
            by: "Ann".to_owned(),
            then: domain::StopThen::Continue,
        });
        let facts = AttemptFacts { stop, closed, ..FACTS };
        settle(&outcome, &facts, &LIMITS)
    };
    let check = |outcome: CallOutcome, expected: Option<bool>| {
        let told = format!("{outcome:?}");
        match settled(outcome, true, false) {
            Settled::Finished { reply, .. } => assert_eq!((expected, reply.as_str()), (None, "done\u{fffd}"), "{told}"),
            Settled::Stopped {
                kind,
                because,
                confirmed,
                ..
            } => {
                assert_eq!(Some(confirmed), expected, "{told}");
                assert_eq!(
                    (kind, because.as_str()),
                    (StopKind::Steered, "steered: by Ann"),
                    "{told}"
                );
            }
            other => panic!("{told}: {other:?}"),
        }
    };
    check(reply(), None);
    check(calls(2, "{}"), Some(true));
    check(error(FailureClass::Refused, Sent::No, None), Some(true));
    check(CallOutcome::DidNotRun, Some(true));
    check(CallOutcome::Aborted, Some(true));
    check(CallOutcome::NotSent, Some(true));
    check(CallOutcome::Stopped { confirmed: true }, Some(true));
    check(CallOutcome::Stopped { confirmed: false }, Some(false));
    check(CallOutcome::NotKnownYet, Some(false));
    let lost = || CallOutcome::Lost { why: "x".to_owned() };
    check(lost(), Some(false));
    // Nobody asks any more.
    let dropped = || CallOutcome::Stopped { confirmed: true };
    assert!(matches!(
        settled(dropped(), false, false),
        Settled::Again { repeats: true, .. }
    ));
    assert_eq!(settled(dropped(), false, true), Settled::Aborted);
}

#[test]
fn a_turn_that_meets_the_breaker_waits_and_uses_no_attempt() {
    let facts = AttemptFacts {
        breaker: Some(Duration::from_secs(33)),
        failures: 2,
        attempts: 2,
        ..FACTS
    };
    let check = |outcome: CallOutcome, effects, same_call: bool| {
        let facts = AttemptFacts {
            effects,
            ..facts.clone()
        };
        let settled = settle(&outcome, &facts, &LIMITS);
        let Settled::Again {
            after, repeats, counts, ..
        } = &settled
        else {
            panic!("{outcome:?} {settled:?}")
        };
        assert_eq!(
            (after.as_secs(), *repeats, *counts),
            (33, same_call, false),
            "{outcome:?}"
        );
    };
    use Effects::{GatewayOnly, Own};
    check(error(FailureClass::Quota, Sent::Yes, None), Own, false);
    check(error(FailureClass::Unauthorized, Sent::No, None), GatewayOnly, false);
    check(
        error(FailureClass::RateLimited, Sent::No, Some(3_600)),
        GatewayOnly,
        false,
    );
    check(error(FailureClass::ServerError, Sent::Maybe, None), GatewayOnly, true);
    check(CallOutcome::DidNotRun, Own, true);
    let spoke = settle(
        &error(FailureClass::RateLimited, Sent::Yes, None),
        &AttemptFacts {
            effects: Own,
            ..facts.clone()
        },
        &LIMITS,
    );
    assert!(matches!(spoke, Settled::Interrupted { counts: false, .. }), "{spoke:?}");
    let closed = settle(
        &error(FailureClass::Quota, Sent::No, None),
        &AttemptFacts { closed: true, ..facts },
        &LIMITS,
    );
    assert_eq!(closed, Settled::Aborted);
}

#[test]
fn a_long_wait_for_a_single_call_is_cut() {
    let settled = settle(&error(FailureClass::Truncated, Sent::No, Some(80_000)), &FACTS, &LIMITS);
    assert!(
        matches!(settled, Settled::Again { after, .. } if after == WAIT_MAX),
        "{settled:?}"
    );
}

/// A thread that is gone is no failure of the turn: once, the turn begins again in a new one.
#[test]
fn a_lost_thread_is_a_fresh_start_once() {
    use FailureClass as C;
    let is_fresh = |outcome: &CallOutcome, facts: &AttemptFacts| {
        let settled = settle(outcome, facts, &LIMITS);
        assert!(!settled.counts() || !matches!(settled, Settled::FreshStart { .. }));
        matches!(settled, Settled::FreshStart { after, .. } if after == facts.breaker.unwrap_or_default())
    };
    let lost = error(C::ThreadLost, Sent::No, None);
    let tired = AttemptFacts {
        failures: 100,
        attempts: 100,
        ..FACTS
    };
    let broken = AttemptFacts {
        breaker: Some(Duration::from_secs(7)),
        ..FACTS
    };
    for facts in [&FACTS, &tired, &broken] {
        assert!(is_fresh(&lost, facts), "{facts:?}");
    }
    let again = AttemptFacts {
        may_start_afresh: false,
        ..FACTS
    };
    let given_up = |outcome: &CallOutcome, facts: &AttemptFacts| match settle(outcome, facts, &LIMITS) {
        Settled::GaveUp { class, interrupted, .. } => class == "thread_lost" && !interrupted,
        _ => false,
    };
    assert!(given_up(&lost, &again));
    let closed = AttemptFacts { closed: true, ..FACTS };
    assert_eq!(settle(&lost, &closed, &LIMITS), Settled::Aborted);

    // A provider that keeps a thread as long as its process runs, and has answered in it.
    let fragile = AttemptFacts { fragile: true, ..FACTS };
    let fragile_again = AttemptFacts { fragile: true, ..again };
    for class in [C::Refused, C::Truncated, C::ServerError, C::Timeout] {
        for sent in [Sent::No, Sent::Maybe] {
            let failed = error(class, sent, None);
            assert!(!is_fresh(&failed, &FACTS), "{class}");
            assert!(is_fresh(&failed, &fragile), "{class}");
            assert!(given_up(&failed, &fragile_again), "{class}");
        }
        // What such an agent has done is looked up first.
        let own = AttemptFacts {
            effects: Effects::Own,
            ..fragile.clone()
        };
        assert!(!is_fresh(&error(class, Sent::Maybe, None), &own), "{class}");
    }
    for class in [
        C::RateLimited,
        C::Quota,
        C::Malformed,
        C::BadRequest,
        C::Failed,
        C::Unauthorized,
    ] {
        assert!(!is_fresh(&error(class, Sent::No, None), &fragile), "{class}");
    }
}
