//! Memory that fades (O9): how relevant it still is, and when it is forgotten.

use time::{Duration, OffsetDateTime};

use crate::string_enum::string_enum;

string_enum! {
    /// What a memory is about.
    MemoryCategory {
        RepoAffinity = "repo_affinity", RoutingCorrection = "routing_correction", TaskPattern = "task_pattern",
        PersonaPreference = "persona_preference", SessionOutcome = "session_outcome", General = "general",
    }
}

impl MemoryCategory {
    /// What says where work goes and nothing of what was said: a turn that handles other people's messages reads no other.
    pub fn is_routing(self) -> bool {
        match self {
            Self::RepoAffinity | Self::PersonaPreference => true,
            Self::RoutingCorrection | Self::TaskPattern | Self::SessionOutcome | Self::General => false,
        }
    }
}

/// Memories of one owner, about one repository or none.
pub const MEMORIES_MAX: i64 = 200;
pub const CONTENT_BYTES_MAX: usize = 4 * 1024;
pub const KEY_CHARACTERS_MAX: usize = 128;
pub const QUERY_CHARACTERS_MAX: usize = 512;

/// What is left of relevance after a day.
const A_DAY: f64 = 0.99;
/// What is less relevant is forgotten.
const LEAST: f64 = 0.1;
/// What is read is remembered better.
const READ: f64 = 0.1;

/// The relevance of a memory, and the moment that it is of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Relevance {
    pub stored: f64,
    pub touched_at: OffsetDateTime,
}

impl Relevance {
    /// Of what is written.
    pub fn whole(now: OffsetDateTime) -> Relevance {
        Relevance {
            stored: 1.0,
            touched_at: now,
        }
    }

    /// A clock that went back makes nothing more relevant.
    pub fn now(self, now: OffsetDateTime) -> f64 {
        let days = (now - self.touched_at).max(Duration::ZERO) / Duration::DAY;
        self.stored * A_DAY.powf(days)
    }

    /// After it was read.
    #[must_use]
    pub fn read(self, now: OffsetDateTime) -> Relevance {
        Relevance {
            stored: (self.now(now) + READ).min(1.0),
            touched_at: now,
        }
    }

    /// When it is forgotten. Of two memories, the less relevant one is forgotten earlier.
    pub fn fades_at(self) -> OffsetDateTime {
        let days = (self.stored / LEAST).ln() / -A_DAY.ln();
        self.touched_at + Duration::DAY * days.max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const THEN: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

    fn after(days: f64) -> OffsetDateTime {
        THEN + Duration::DAY * days
    }

    #[test]
    fn a_memory_fades_by_a_hundredth_a_day() {
        for (stored, days, expected) in [
            (1.0, 0.0, 1.0),
            (1.0, 1.0, 0.99),
            (1.0, 0.5, 0.994_987),
            (1.0, 30.0, 0.739_700),
            (0.5, 100.0, 0.183_016),
            (1.0, 365.0, 0.025_518),
            (0.5, -3.0, 0.5),
        ] {
            let relevance = Relevance {
                stored,
                touched_at: THEN,
            };
            let found = relevance.now(after(days));
            assert!((found - expected).abs() < 1e-6, "{stored} {days}: {found}");
        }
    }

    #[test]
    fn what_is_read_is_remembered_better_and_never_more_than_whole() {
        let faded = Relevance {
            stored: 0.5,
            touched_at: THEN,
        };
        let read = faded.read(after(1.0));
        assert!((read.stored - 0.595).abs() < 1e-9 && read.touched_at == after(1.0));
        assert_eq!(Relevance::whole(THEN).read(after(5.0)).stored, 1.0);
    }

    #[test]
    fn a_whole_memory_is_forgotten_after_229_days() {
        let days = (Relevance::whole(THEN).fades_at() - THEN) / Duration::DAY;
        assert!((229.0..230.0).contains(&days), "{days}");
        let gone = Relevance {
            stored: 0.05,
            touched_at: THEN,
        };
        assert_eq!(gone.fades_at(), THEN);
    }

    #[test]
    fn two_categories_say_where_work_goes() {
        let routing = MemoryCategory::ALL.iter().filter(|category| category.is_routing());
        assert_eq!(
            routing.map(|category| category.as_str()).collect::<Vec<_>>(),
            ["repo_affinity", "persona_preference"]
        );
    }

    proptest! {
        /// So the order of the moments is the order of relevance at any time.
        #[test]
        fn the_less_relevant_is_forgotten_earlier(
            one in (0.1f64..=1.0, -300.0f64..0.0), other in (0.1f64..=1.0, -300.0f64..0.0)
        ) {
            let [one, other] = [one, other].map(|(stored, days)| Relevance { stored, touched_at: after(days) });
            let (less, more) = (one.now(THEN), other.now(THEN));
            prop_assume!((less - more).abs() > 1e-6);
            prop_assert_eq!(less < more, one.fades_at() < other.fades_at());
        }

        #[test]
        fn at_that_moment_a_tenth_is_left(stored in 0.1f64..=1.0) {
            let relevance = Relevance { stored, touched_at: THEN };
            prop_assert!((relevance.now(relevance.fades_at()) - LEAST).abs() < 1e-6);
        }
    }
}
