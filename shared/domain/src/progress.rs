//! Turns without progress: an agent that agents, timers or recovery wake again and again for the same reason, and that changes
//! nothing, goes round. What comes from outside is news, however often it comes: a service may send as many notifications as it
//! likes. Pure.

use std::{fmt, str::FromStr, time::Duration};

use time::OffsetDateTime;

use crate::{Actor, ActorKind};

/// Types of notifications that the agent's own work causes.
const SELF_CAUSED: [&str; 2] = ["timer", "recovery"];
const HEARTBEAT: &str = "heartbeat";

/// What woke an agent: type and sender of the turn's first item. Written as `{type} {kind of sender} {id of sender}`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wake {
    kind: String,
    sender: ActorKind,
    sender_id: String,
}

impl Wake {
    pub fn new(kind: &str, sender: &Actor) -> Wake {
        Wake {
            kind: kind.to_owned(),
            sender: sender.kind,
            sender_id: sender.id.clone(),
        }
    }

    pub fn is_from_person(&self) -> bool {
        self.sender == ActorKind::User
    }

    pub fn is_heartbeat(&self) -> bool {
        self.kind == HEARTBEAT
    }

    /// Agents, timers or recovery cause it: nobody outside keeps it going.
    fn is_self_caused(&self) -> bool {
        self.sender == ActorKind::Agent || SELF_CAUSED.contains(&&*self.kind)
    }
}

impl fmt::Display for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.kind, self.sender, self.sender_id)
    }
}

impl FromStr for Wake {
    type Err = ();

    fn from_str(text: &str) -> Result<Wake, ()> {
        let mut words = text.splitn(3, ' ');
        let mut word = || words.next().ok_or(());
        Ok(Wake {
            kind: word()?.to_owned(),
            sender: word()?.parse().map_err(|_| ())?,
            sender_id: word()?.to_owned(),
        })
    }
}

/// Turns in a row without progress, for the same reason.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "columns", derive(sea_orm::FromQueryResult))]
pub struct Streak {
    pub turns: i32,
    pub key: Option<String>,
    pub since: Option<OffsetDateTime>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgressLimits {
    /// So many turns within the window.
    pub turns_max: i32,
    pub window: Duration,
    /// So many at any pace.
    pub self_turns_max: i32,
}

/// What a finished turn has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deeds {
    /// A tool changed something, or the agent asked a question.
    pub progressed: bool,
    /// The agent called `no_reply`.
    pub no_reply: bool,
}

impl Streak {
    /// After a finished turn.
    pub fn after(&self, wake: &Wake, deeds: Deeds, now: OffsetDateTime) -> Streak {
        if wake.is_from_person() || deeds.progressed {
            return Streak::default();
        }
        if wake.is_heartbeat() && deeds.no_reply {
            return self.clone();
        }
        if !wake.is_self_caused() {
            return Streak::default();
        }
        let key = wake.to_string();
        match self.key.as_ref() == Some(&key) {
            true => Streak {
                turns: self.turns.saturating_add(1),
                ..self.clone()
            },
            false => Streak {
                turns: 1,
                key: Some(key),
                since: Some(now),
            },
        }
    }

    /// Whether no further turn starts for the item that would be its first.
    pub fn keeps(&self, wake: &Wake, now: OffsetDateTime, limits: &ProgressLimits) -> bool {
        let goes_fast = |since: OffsetDateTime| self.turns >= limits.turns_max && now - since <= limits.window;
        !wake.is_from_person() && (self.turns >= limits.self_turns_max || self.since.is_some_and(goes_fast))
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-25 12:00 UTC);
    const LIMITS: ProgressLimits = ProgressLimits {
        turns_max: 3,
        window: Duration::from_secs(60),
        self_turns_max: 5,
    };
    const NOTHING: Deeds = Deeds {
        progressed: false,
        no_reply: false,
    };

    fn wake(kind: &str, sender: ActorKind, id: &str) -> Wake {
        let id = id.to_owned();
        let name = String::new();
        Wake::new(
            kind,
            &Actor {
                kind: sender,
                id,
                name,
                via: None,
            },
        )
    }

    /// The streak after turns at these seconds, and whether the next item of the same kind is kept then.
    fn check(turns: &[(i64, &Wake, Deeds)], count: i32, keeps: bool) {
        let at = |second| NOW + time::Duration::seconds(second);
        let streak = turns.iter().fold(Streak::default(), |streak, (second, wake, deeds)| {
            streak.after(wake, *deeds, at(*second))
        });
        assert_eq!(streak.turns, count, "{turns:?}");
        let (last, wake, _) = turns.last().unwrap();
        assert_eq!(streak.keeps(wake, at(*last), &LIMITS), keeps, "{turns:?}");
    }

    #[test]
    fn turns_round_and_round_are_counted() {
        let ci = wake("notification", ActorKind::Service, "ci");
        let peer = wake("notification", ActorKind::Agent, "peer");
        let other = wake("review", ActorKind::Agent, "peer");
        let timer = wake("timer", ActorKind::Service, "signalbox");
        let person = wake("notification", ActorKind::User, "ann");
        let beat = wake("heartbeat", ActorKind::Service, "ci");
        let did = Deeds {
            progressed: true,
            ..NOTHING
        };
        let quiet = Deeds {
            no_reply: true,
            ..NOTHING
        };
        check(&[(0, &peer, NOTHING), (1, &peer, NOTHING)], 2, false);
        check(
            &[(0, &peer, NOTHING), (1, &peer, NOTHING), (2, &peer, NOTHING)],
            3,
            true,
        );
        check(&[(0, &peer, quiet), (1, &peer, quiet), (2, &peer, quiet)], 3, true);
        check(&[(0, &peer, NOTHING), (1, &peer, did), (2, &peer, NOTHING)], 1, false);
        check(
            &[(0, &peer, NOTHING), (1, &timer, NOTHING), (2, &peer, NOTHING)],
            1,
            false,
        );
        check(&[(0, &peer, NOTHING), (1, &other, NOTHING)], 1, false);
        check(
            &[(0, &peer, NOTHING), (1, &peer, NOTHING), (2, &person, NOTHING)],
            0,
            false,
        );
        check(&[(0, &peer, NOTHING), (1, &peer, NOTHING), (2, &ci, NOTHING)], 0, false);
        check(&[(0, &peer, NOTHING), (1, &beat, quiet), (2, &peer, NOTHING)], 2, false);
        check(
            &[(0, &peer, NOTHING), (1, &beat, NOTHING), (2, &peer, NOTHING)],
            1,
            false,
        );
        // From outside: news, however much.
        check(&[0, 1, 2, 3, 4, 5].map(|second| (second, &ci, NOTHING)), 0, false);
        // At any pace, if nobody outside keeps it going.
        let slow = |wake| [0, 50, 100, 150, 200].map(|second| (second, wake, NOTHING));
        check(&slow(&peer)[..4], 4, false);
        check(&slow(&peer), 5, true);
        check(&slow(&timer), 5, true);
    }

    #[test]
    fn a_person_s_item_passes() {
        let peer = wake("notification", ActorKind::Agent, "peer");
        let ann = wake("notification", ActorKind::User, "ann");
        let ci = wake("notification", ActorKind::Service, "ci");
        let streak = Streak {
            turns: 3,
            key: Some(peer.to_string()),
            since: Some(NOW),
        };
        assert!(streak.keeps(&peer, NOW, &LIMITS) && streak.keeps(&ci, NOW, &LIMITS));
        assert!(!streak.keeps(&ann, NOW, &LIMITS));
        assert!(!Streak::default().keeps(&peer, NOW, &LIMITS));
    }

    #[test]
    fn a_reason_is_read_as_it_was_written() {
        for wake in [
            wake("notification", ActorKind::Service, "ci"),
            wake("timer", ActorKind::Agent, "with two words"),
        ] {
            assert_eq!(wake.to_string().parse(), Ok(wake));
        }
        for bad in ["", "one", "notification nobody x"] {
            assert_eq!(bad.parse::<Wake>(), Err(()), "{bad}");
        }
    }
}
