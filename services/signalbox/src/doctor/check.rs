//! The doctor's checks, each with the runbook page that fixes it.

use serde::{Serialize, Serializer};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Check {
    Settings,
    Up,
    Postgres,
    Schema,
    Fitness,
    DatabaseRoles,
    Nats,
    NatsUsers,
    Streams,
    Providers,
    Email,
    Ports,
    Running,
    Outbox,
    Queue,
    Breakers,
    Questions,
    Timers,
    Consumers,
    Telemetry,
}

const SERVICE_DOWN: &str = "docs/runbooks/service-down.md";
const START_REFUSED: &str = "docs/runbooks/start-refused.md";

impl Check {
    /// The check's name as shown and in JSON, and the page that names this check and its fix, relative to the
    /// repository's root.
    fn name_and_runbook(self) -> (&'static str, &'static str) {
        match self {
            Check::Settings => ("settings", START_REFUSED),
            Check::Up => ("up", SERVICE_DOWN),
            Check::Postgres => ("postgres", "docs/runbooks/database-restart.md"),
            Check::Schema => ("schema", "docs/runbooks/upgrading.md"),
            Check::Fitness => ("fitness", START_REFUSED),
            Check::DatabaseRoles => ("database roles", START_REFUSED),
            Check::Nats => ("nats", "docs/runbooks/broker-lost.md"),
            Check::NatsUsers => ("nats users", START_REFUSED),
            Check::Streams => ("streams", START_REFUSED),
            Check::Providers => ("providers", "docs/runbooks/provider-trouble.md"),
            Check::Email => ("email", "docs/runbooks/mail-bounces.md"),
            Check::Ports => ("ports", START_REFUSED),
            Check::Running => ("running", SERVICE_DOWN),
            Check::Outbox => ("outbox", "docs/runbooks/outbox-waits.md"),
            Check::Queue => ("queue", "docs/runbooks/work-waits.md"),
            Check::Breakers => ("provider breakers", "docs/runbooks/provider-quota.md"),
            Check::Questions => ("questions", "docs/runbooks/stuck-approval.md"),
            Check::Timers => ("timers", "docs/runbooks/parked-work.md"),
            Check::Consumers => ("consumers", "docs/runbooks/consumer-lags.md"),
            Check::Telemetry => ("telemetry", "docs/runbooks/telemetry-missing.md"),
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.name_and_runbook().0
    }

    pub(super) fn runbook(self) -> &'static str {
        self.name_and_runbook().1
    }
}

impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    const ALL: [Check; 20] = [
        Check::Settings,
        Check::Up,
        Check::Postgres,
        Check::Schema,
        Check::Fitness,
        Check::DatabaseRoles,
        Check::Nats,
        Check::NatsUsers,
        Check::Streams,
        Check::Providers,
        Check::Email,
        Check::Ports,
        Check::Running,
        Check::Outbox,
        Check::Queue,
        Check::Breakers,
        Check::Questions,
        Check::Timers,
        Check::Consumers,
        Check::Telemetry,
    ];

    #[test]
    fn every_check_has_a_page_that_names_it() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        for check in ALL {
            let page = fs::read_to_string(root.join(check.runbook())).unwrap();
            let first = page.split("\n## ").next().unwrap();
            assert!(
                first.contains(&format!("`{}`", check.name())),
                "{} does not say at its beginning that it is about the doctor's `{}`",
                check.runbook(),
                check.name()
            );
        }
    }
}
