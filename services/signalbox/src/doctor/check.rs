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
    Ports,
    Running,
    Outbox,
    Queue,
    Consumers,
    Telemetry,
}

impl Check {
    #[cfg(test)]
    const ALL: [Check; 16] = [
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
        Check::Ports,
        Check::Running,
        Check::Outbox,
        Check::Queue,
        Check::Consumers,
        Check::Telemetry,
    ];

    /// The check's name as shown and in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Check::Settings => "settings",
            Check::Up => "up",
            Check::Postgres => "postgres",
            Check::Schema => "schema",
            Check::Fitness => "fitness",
            Check::DatabaseRoles => "database roles",
            Check::Nats => "nats",
            Check::NatsUsers => "nats users",
            Check::Streams => "streams",
            Check::Providers => "providers",
            Check::Ports => "ports",
            Check::Running => "running",
            Check::Outbox => "outbox",
            Check::Queue => "queue",
            Check::Consumers => "consumers",
            Check::Telemetry => "telemetry",
        }
    }

    /// The page that names this check and its fix, relative to the repository's root.
    pub(super) fn runbook(self) -> &'static str {
        match self {
            Check::Postgres => "docs/runbooks/database-restart.md",
            Check::Schema => "docs/runbooks/upgrading.md",
            Check::Nats => "docs/runbooks/broker-lost.md",
            Check::Providers => "docs/runbooks/provider-trouble.md",
            Check::Outbox => "docs/runbooks/outbox-waits.md",
            Check::Queue => "docs/runbooks/work-waits.md",
            Check::Consumers => "docs/runbooks/consumer-lags.md",
            Check::Telemetry => "docs/runbooks/telemetry-missing.md",
            Check::Up | Check::Running => "docs/runbooks/service-down.md",
            Check::Settings
            | Check::Fitness
            | Check::DatabaseRoles
            | Check::NatsUsers
            | Check::Streams
            | Check::Ports => "docs/runbooks/start-refused.md",
        }
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

    #[test]
    fn every_check_has_a_page_that_names_it() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        for check in Check::ALL {
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
