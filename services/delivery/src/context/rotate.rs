//! The rules by which a generation is closed and the next one opened (S16). Asked only where a new turn would start. Pure.

use domain::{Rotation, RotationRule, SessionKind, context::Rotated};
use storage::session::sessions_lock::LockedSession;
use time::OffsetDateTime;

/// What decides besides the limits.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub kind: SessionKind,
    /// Turns of the generation so far.
    pub turns: i64,
    /// Tokens of its ended turns, and those in a row that failed by themselves.
    pub tokens: i64,
    pub failures: i32,
    pub opened_at: OffsetDateTime,
    /// Its instructions differ from those of its last turn; asked only where the limits ask for it.
    pub profile_changed: bool,
}

impl Facts {
    pub fn of(session: &LockedSession, profile_changed: bool) -> Facts {
        Facts {
            kind: session.kind,
            turns: session.turn_count,
            tokens: session.thread.tokens,
            failures: session.thread.failures,
            opened_at: session.opened_at,
            profile_changed,
        }
    }
}

/// The first rule that holds, in the order of [`RotationRule::ALL`]. Never before the first turn, and never in a branch or a replay,
/// which is one piece of work.
pub fn rotation(facts: &Facts, limits: &Rotation, now: OffsetDateTime) -> Option<Rotated> {
    let is_lasting = match facts.kind {
        SessionKind::Task | SessionKind::System | SessionKind::Orchestrator | SessionKind::Guest => true,
        SessionKind::Branch | SessionKind::Replay => false,
    };
    if !is_lasting || facts.turns == 0 {
        return None;
    }
    let because = |rule: &RotationRule| {
        let figures = figures(*rule, facts, limits, now)?;
        Some(Rotated {
            rule: *rule,
            because: format!("{rule}: {figures}"),
        })
    };
    RotationRule::ALL.iter().find_map(because)
}

/// None: the rule does not hold.
fn figures(rule: RotationRule, facts: &Facts, limits: &Rotation, now: OffsetDateTime) -> Option<String> {
    let reached = |count: i64, max: Option<u32>| max.filter(|max| count >= i64::from(*max));
    match rule {
        RotationRule::FailuresMax => {
            let max = reached(facts.failures.into(), limits.failures_max)?;
            Some(format!("{} turns in a row failed, the limit is {max}", facts.failures))
        }
        RotationRule::TokensMax => {
            let max = reached(facts.tokens, limits.tokens_max)?;
            Some(format!("{} tokens used, the limit is {max}", facts.tokens))
        }
        RotationRule::AgeHoursMax => {
            let hours = (now - facts.opened_at).whole_hours();
            let max = reached(hours, limits.age_hours_max)?;
            Some(format!("open for {hours} hours, the limit is {max}"))
        }
        RotationRule::ProfileChanged => {
            (limits.profile_changed && facts.profile_changed).then(|| "the instructions have changed".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use time::Duration;

    use super::*;

    const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;
    const FACTS: Facts = Facts {
        kind: SessionKind::Task,
        turns: 7,
        tokens: 0,
        failures: 0,
        opened_at: NOW,
        profile_changed: false,
    };
    const ALL: Rotation = Rotation {
        failures_max: Some(3),
        tokens_max: Some(1_000),
        age_hours_max: Some(24),
        profile_changed: true,
    };

    fn check(facts: Facts, limits: &Rotation, expected: Option<&str>) {
        let rotated = rotation(&facts, limits, NOW);
        let because = rotated.as_ref().map(|rotated| rotated.because.as_str());
        assert_eq!(because, expected, "{facts:?} {limits:?}");
        if let Some(rotated) = &rotated {
            assert!(rotated.because.starts_with(rotated.rule.as_str()), "{rotated:?}");
        }
    }

    #[test]
    fn every_rule_holds_at_its_limit_and_not_before() {
        let failed = |failures| Facts { failures, ..FACTS };
        let used = |tokens| Facts { tokens, ..FACTS };
        let opened = |ago| Facts {
            opened_at: NOW - ago,
            ..FACTS
        };
        let changed = Facts {
            profile_changed: true,
            ..FACTS
        };
        check(FACTS, &ALL, None);
        check(failed(2), &ALL, None);
        check(
            failed(3),
            &ALL,
            Some("failures_max: 3 turns in a row failed, the limit is 3"),
        );
        check(used(999), &ALL, None);
        check(
            used(1_000),
            &ALL,
            Some("tokens_max: 1000 tokens used, the limit is 1000"),
        );
        check(opened(Duration::hours(24) - Duration::SECOND), &ALL, None);
        check(
            opened(Duration::hours(25)),
            &ALL,
            Some("age_hours_max: open for 25 hours, the limit is 24"),
        );
        // The clock was set back.
        check(opened(Duration::hours(-30)), &ALL, None);
        check(changed, &ALL, Some("profile_changed: the instructions have changed"));
    }

    #[test]
    fn the_first_rule_that_holds_is_named() {
        let all = Facts {
            tokens: 5_000,
            failures: 4,
            opened_at: NOW - Duration::days(9),
            profile_changed: true,
            ..FACTS
        };
        let without = |limits: &Rotation| rotation(&all, limits, NOW).map(|rotated| rotated.rule);
        let mut limits = ALL;
        assert_eq!(without(&limits), Some(RotationRule::FailuresMax));
        limits.failures_max = None;
        assert_eq!(without(&limits), Some(RotationRule::TokensMax));
        limits.tokens_max = None;
        assert_eq!(without(&limits), Some(RotationRule::AgeHoursMax));
        limits.age_hours_max = None;
        assert_eq!(without(&limits), Some(RotationRule::ProfileChanged));
        limits.profile_changed = false;
        assert_eq!(without(&limits), None, "every rule can be switched off");
    }

    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let over = Facts {
            opened_at: NOW - Duration::days(900),
            profile_changed: true,
            ..FACTS
        };
        check(over, &Rotation::default(), None);
        let many = Facts {
            tokens: 1_000_000,
            ..over
        };
        check(
            many,
            &Rotation::default(),
            Some("tokens_max: 1000000 tokens used, the limit is 1000000"),
        );
    }

    #[test]
    fn nothing_rotates_before_its_first_turn_or_in_one_piece_of_work() {
        let worn = Facts {
            tokens: 5_000,
            failures: 4,
            ..FACTS
        };
        check(Facts { turns: 0, ..worn }, &ALL, None);
        for &kind in SessionKind::ALL {
            let is_one_piece = matches!(kind, SessionKind::Branch | SessionKind::Replay);
            assert_eq!(
                rotation(&Facts { kind, ..worn }, &ALL, NOW).is_none(),
                is_one_piece,
                "{kind}"
            );
        }
    }
}
