//! Age of waiting work: accepted notifications, committed messages and published messages, by the gauges of running services
//! ([`runtime::gauges`]). If Postgres or NATS cannot be read, other checks report it and this one reports nothing.

use std::time::Duration;

use domain::BreakerState;
use messaging::{Bus, ConsumerBacklog, User, consumer_backlogs};
use runtime::Settings;
use secrecy::ExposeSecret;
use storage::{
    Database, Role,
    breaker::{BreakerRow, breakers_read},
    directory::{OpenQuestions, Waiting, WaitingRound, question_waiting, timer_first},
    outbox::outbox_age,
};
use time::OffsetDateTime;

use super::{
    Check, Finding,
    nats::{self, whose},
    postgres::{self, SERVICES},
};
use crate::text::one_line;

/// Sessions with a queue that are read at most.
const SESSIONS_MAX: i32 = 10_000;

/// The limits of the alerts (deploy/telemetry/alerts.yml).
const OUTBOX_AGE_MAX: Duration = Duration::from_secs(60);
const UNREAD_AGE_MAX: Duration = Duration::from_secs(60);
const QUEUE_AGE_MAX: Duration = Duration::from_secs(15 * 60);
const PENDING_MAX: u64 = 10_000;
/// A question that is open for longer is mentioned.
const QUESTION_AGE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// A timer that should have fired longer ago is a problem.
const TIMER_AGE_MAX: Duration = Duration::from_secs(60);
/// Questions that are counted.
const QUESTIONS_MAX: i32 = 10_000;

/// The measurements; none where a server could not be read.
#[derive(Default)]
struct Seen {
    outboxes: Vec<(&'static str, Duration)>,
    queue: Option<Waiting>,
    breakers: Option<Vec<BreakerRow>>,
    /// Age of the oldest notification that no resolver has read.
    unread: Option<Option<OffsetDateTime>>,
    consumers: Vec<ConsumerBacklog>,
    questions: Option<OpenQuestions>,
    /// When the first timer is due.
    timer: Option<Option<OffsetDateTime>>,
}

pub(super) async fn examine(settings: &Settings) -> Vec<Finding> {
    judge(&look(settings).await, OffsetDateTime::now_utc())
}

async fn look(settings: &Settings) -> Seen {
    let mut seen = Seen::default();
    let Ok(url) = settings.database.url() else { return seen };
    let bus = nats::connect(settings).await.ok();
    if let Some(bus) = &bus {
        let user = whose(bus.user());
        seen.consumers = consumer_backlogs(bus, user).await.unwrap_or_default();
    }
    let options = postgres::options(settings);
    for role in SERVICES {
        let Ok(database) = Database::connect(url.expose_secret(), role, &options).await else {
            continue;
        };
        if let Ok(age) = outbox_age(&database).await {
            seen.outboxes.push((role.service(), age.unwrap_or_default()));
        }
        match role {
            Role::Delivery => {
                seen.queue = WaitingRound::default().look(&database, SESSIONS_MAX).await.ok();
                seen.breakers = breakers_read(&database).await.ok();
            }
            Role::Resolver => {
                if let Some(bus) = bus.as_ref().filter(|bus| may_see_notifications(bus)) {
                    seen.unread = resolver::sweeps::unread_since(&database, bus).await.ok();
                }
            }
            Role::Orchestrator => {
                seen.questions = question_waiting(&database, QUESTIONS_MAX).await.ok();
                seen.timer = timer_first(&database).await.ok();
            }
            Role::ToolGateway | Role::Owner => {}
        }
        database.close().await;
    }
    seen
}

fn may_see_notifications(bus: &Bus) -> bool {
    matches!(whose(bus.user()), User::Operator | User::Resolver)
}

fn judge(seen: &Seen, now: OffsetDateTime) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !seen.outboxes.is_empty() {
        findings.extend(outboxes(&seen.outboxes));
    }
    findings.extend(seen.queue.as_ref().map(|waiting| queue(waiting, now)));
    findings.extend(
        seen.breakers
            .as_ref()
            .map(|breakers| open_breakers(breakers))
            .unwrap_or_default(),
    );
    findings.extend(seen.questions.map(|open| questions(open, now)));
    findings.extend(seen.timer.map(|first| timers(first, now)));
    let consumers = consumers(seen, now);
    if consumers.is_empty() && !seen.consumers.is_empty() {
        findings.push(Finding::ok(Check::Consumers, "no consumer lags"));
    }
    findings.extend(consumers);
    findings
}

fn outboxes(outboxes: &[(&'static str, Duration)]) -> Vec<Finding> {
    let old = outboxes.iter().filter(|(_, age)| *age > OUTBOX_AGE_MAX);
    let old: Vec<Finding> = old
        .map(|(service, age)| {
            let message = format!("a message of {service} has waited {} for the broker", shown(*age));
            let fix = format!("is {service} up, and does the broker take what it publishes?");
            Finding::problem(Check::Outbox, message, fix)
        })
        .collect();
    if old.is_empty() {
        return vec![Finding::ok(Check::Outbox, "every committed message is published")];
    }
    old
}

/// A hint: a long turn may delay its own queue.
fn queue(waiting: &Waiting, now: OffsetDateTime) -> Finding {
    let Some(oldest) = waiting.oldest else {
        return Finding::ok(Check::Queue, "no item waits");
    };
    let age = since(oldest, now);
    let sessions = waiting.sessions;
    let have = if sessions == 1 { "session has" } else { "sessions have" };
    let mut message = format!("{sessions} {have} waiting items, the oldest for {}", shown(age));
    if !waiting.parked.is_empty() {
        let of = waiting
            .parked
            .iter()
            .map(|(gate, sessions)| format!("{gate} {sessions}"));
        message.push_str(&format!("; parked by gate: {}", of.collect::<Vec<_>>().join(", ")));
    }
    if age > QUEUE_AGE_MAX {
        return Finding::hint(Check::Queue, message, "see what its session does: `signalbox sessions`");
    }
    Finding::ok(Check::Queue, message)
}

fn open_breakers(breakers: &[BreakerRow]) -> Vec<Finding> {
    let open: Vec<Finding> = breakers
        .iter()
        .filter(|breaker| breaker.state != BreakerState::Closed)
        .map(|breaker| {
            let key = one_line(&breaker.key, 64);
            let message = format!("provider account {key} takes no calls (its breaker is {}): its work waits", breaker.state);
            let fix = "see why and until when: `signalbox providers`; once the cause is removed: `signalbox providers probe KEY`";
            Finding::problem(Check::Breakers, message, fix)
        })
        .collect();
    match open.is_empty() {
        true => vec![Finding::ok(Check::Breakers, "every provider account takes calls")],
        false => open,
    }
}

/// A hint: agents wait for people, who may be away.
fn questions(open: OpenQuestions, now: OffsetDateTime) -> Finding {
    let Some(oldest) = open.oldest else {
        return Finding::ok(Check::Questions, "no question is open");
    };
    let age = since(oldest, now);
    let message = format!("{} questions are open, the oldest for {}", open.questions, shown(age));
    if age > QUESTION_AGE_MAX {
        return Finding::hint(
            Check::Questions,
            message,
            "answer it or withdraw it: `signalbox questions`",
        );
    }
    Finding::ok(Check::Questions, message)
}

fn timers(first: Option<OffsetDateTime>, now: OffsetDateTime) -> Finding {
    let late = first.map(|due| since(due, now)).unwrap_or_default();
    if late > TIMER_AGE_MAX {
        let message = format!("a timer should have fired {} ago", shown(late));
        return Finding::problem(
            Check::Timers,
            message,
            "does an orchestrator run, and what does its sweep `timers` log?",
        );
    }
    Finding::ok(Check::Timers, "no timer is late")
}

fn consumers(seen: &Seen, now: OffsetDateTime) -> Vec<Finding> {
    let lagging = seen.consumers.iter().filter(|one| one.pending > PENDING_MAX);
    let mut findings: Vec<Finding> = lagging
        .map(|one| {
            let message = format!("{} messages wait before {}", one.pending, one.durable.name());
            Finding::hint(
                Check::Consumers,
                message,
                "does its service run, and is Postgres fast enough?",
            )
        })
        .collect();
    let unread = seen.unread.flatten().map(|oldest| since(oldest, now));
    if let Some(age) = unread.filter(|age| *age > UNREAD_AGE_MAX) {
        let message = format!("a notification has waited {} for a resolver to read it", shown(age));
        findings.push(Finding::problem(Check::Consumers, message, "does a resolver run?"));
    }
    findings
}

fn since(moment: OffsetDateTime, now: OffsetDateTime) -> Duration {
    (now - moment).try_into().unwrap_or_default()
}

fn shown(age: Duration) -> String {
    match age.as_secs() {
        seconds if seconds < 120 => format!("{seconds} s"),
        seconds if seconds < 7_200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use domain::Gate;
    use messaging::Durable;
    use storage::Role;

    use super::*;

    fn check(seen: Seen, says: &[(&str, &str)]) {
        let now = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(10_000);
        let findings: Vec<_> = judge(&seen, now)
            .iter()
            .map(|finding| {
                let finding = serde_json::to_value(finding).unwrap();
                let text = |name: &str| finding[name].as_str().unwrap().to_owned();
                (text("status"), text("message"))
            })
            .collect();
        let says: Vec<_> = says
            .iter()
            .map(|(status, message)| ((*status).to_owned(), (*message).to_owned()))
            .collect();
        assert_eq!(findings, says);
    }

    fn ago(seconds: u64) -> Option<OffsetDateTime> {
        Some(OffsetDateTime::UNIX_EPOCH + Duration::from_secs(10_000 - seconds))
    }

    fn breaker(key: &str, state: BreakerState) -> BreakerRow {
        BreakerRow {
            key: key.to_owned(),
            state,
            failures: 0,
            unsettled: false,
            due: false,
        }
    }

    fn before(pending: u64) -> Vec<ConsumerBacklog> {
        vec![ConsumerBacklog {
            durable: Durable::of(User::Delivery, "session.resolved"),
            pending,
            unsettled: 0,
        }]
    }

    #[test]
    fn what_waits_too_long_is_told() {
        check(Seen::default(), &[]);
        check(
            Seen {
                outboxes: vec![("delivery", Duration::ZERO), ("resolver", Duration::from_secs(60))],
                queue: Some(Waiting::default()),
                breakers: Some(vec![breaker("default", BreakerState::Closed)]),
                unread: Some(None),
                consumers: before(10_000),
                questions: Some(OpenQuestions {
                    questions: 2,
                    oldest: ago(9_000),
                }),
                timer: Some(ago(60)),
            },
            &[
                ("ok", "every committed message is published"),
                ("ok", "no item waits"),
                ("ok", "every provider account takes calls"),
                ("ok", "2 questions are open, the oldest for 2 h"),
                ("ok", "no timer is late"),
                ("ok", "no consumer lags"),
            ],
        );
        check(
            Seen {
                outboxes: vec![("delivery", Duration::from_secs(61)), ("resolver", Duration::ZERO)],
                queue: Some(Waiting {
                    sessions: 3,
                    parked: [(Gate::Pause, 2), (Gate::Stopped, 1)].into(),
                    oldest: ago(901),
                }),
                breakers: Some(vec![
                    breaker("default", BreakerState::Closed),
                    breaker("team", BreakerState::Open),
                ]),
                unread: Some(ago(7_200)),
                consumers: before(10_001),
                timer: Some(ago(61)),
                ..Seen::default()
            },
            &[
                ("problem", "a message of delivery has waited 61 s for the broker"),
                (
                    "hint",
                    "3 sessions have waiting items, the oldest for 15 min; parked by gate: pause 2, stopped 1",
                ),
                (
                    "problem",
                    "provider account team takes no calls (its breaker is open): its work waits",
                ),
                ("problem", "a timer should have fired 61 s ago"),
                ("hint", "10001 messages wait before delivery_session_resolved"),
                ("problem", "a notification has waited 2 h for a resolver to read it"),
            ],
        );
    }

    #[tokio::test]
    async fn looks_into_a_running_systems_rows() {
        let world = testkit::World::start().await;
        let settings = world.settings(Role::Owner);
        let insert = "insert into outbox (account_id, id, service, subject, headers, payload, created_at)
                      values ('-', gen_random_uuid(), 'orchestrator', 's', '{}', '', now() - interval '5 minutes')";
        sea_orm::ConnectionTrait::execute_unprepared(world.database.connect(Role::Owner).await.connection(), insert)
            .await
            .unwrap();
        let message = super::super::finding::render(&examine(&settings).await);
        assert!(
            message.contains("PROBLEM  outbox")
                && message.contains("a message of orchestrator has waited 5 min for the broker"),
            "{message}"
        );
        assert!(message.contains("docs/runbooks/outbox-waits.md"), "{message}");
        assert!(message.contains("no item waits"), "{message}");
    }
}
