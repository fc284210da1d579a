//! NATS: reachable, new enough, with JetStream, and with current streams and consumers.

use messaging::{Bus, BusOptions, ServerVersion, TopologyError, User};
use runtime::{Settings, context};

use super::{Check, Finding};

const CONNECT_TIMEOUT_MS: u64 = 3_000;

pub(super) async fn examine(settings: &Settings) -> Vec<Finding> {
    let bus = match connect(settings).await {
        Ok(bus) => bus,
        Err(finding) => return vec![finding],
    };
    let topology = context::topology(whose(bus.user()), &settings.nats);
    vec![
        server(bus.server_version()),
        access(bus.lets_anyone_in().await),
        streams(&topology.ensure(&bus).await),
    ]
}

/// A connection, or what stands in its way. The error names its fix. Connecting checks the version and JetStream, among
/// others.
pub(super) async fn connect(settings: &Settings) -> Result<Bus, Finding> {
    let options = context::bus_options("doctor", &settings.nats).map_err(|error| {
        let fix = "set it, or use `signalbox up`, which starts a NATS server of its own";
        Finding::failed(Check::Nats, error, fix)
    })?;
    let options = BusOptions {
        connect_timeout_ms: CONNECT_TIMEOUT_MS,
        ..options
    };
    let failed = |error| Finding::failed(Check::Nats, error, "is it running, and is nats.url right?");
    Bus::connect(options).await.map_err(failed)
}

fn server(version: ServerVersion) -> Finding {
    Finding::ok(
        Check::Nats,
        format!("version {}.{}, JetStream is on", version.major, version.minor),
    )
}

/// A service's user may read its own streams only.
pub(super) fn whose(user: Option<&str>) -> User {
    user.and_then(User::named).unwrap_or(User::Operator)
}

fn access(lets_anyone_in: bool) -> Finding {
    if lets_anyone_in {
        // On another machine, connecting has refused such a server already.
        return Finding::hint(
            Check::NatsUsers,
            "connections from this machine need no password",
            "give it users (schemas/nats-users.conf) and take no_auth_user out",
        );
    }
    Finding::ok(Check::NatsUsers, "every connection needs a password")
}

fn streams(verified: &Result<(), TopologyError>) -> Finding {
    match verified {
        Ok(()) => Finding::ok(
            Check::Streams,
            "the user's streams and consumers exist and are up to date",
        ),
        Err(error) => Finding::problem(
            Check::Streams,
            error.to_string(),
            "run `signalbox migrate` as a user that may change streams",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::migrate;

    #[test]
    fn a_services_user_is_asked_about_its_own_streams() {
        assert_eq!(whose(Some("delivery")), User::Delivery);
        assert_eq!(whose(Some("somebody")), User::Operator);
        assert_eq!(whose(None), User::Operator);
    }

    #[tokio::test]
    async fn what_differs_is_a_problem_that_a_start_would_have() {
        let server = devstack::NatsServer::start_temporary().await.unwrap();
        let settings = Settings::load_from("", [("NATS_URL", server.url())]).unwrap();
        let bus = Bus::connect(context::bus_options("test", &settings.nats).unwrap())
            .await
            .unwrap();
        migrate::topology(&settings).ensure(&bus).await.unwrap();
        let more = "[nats.limits]\nevent_bytes_max = 1073741824\n";
        let settings = Settings::load_from(more, [("NATS_URL", server.url())]).unwrap();
        let message = super::super::finding::render(&examine(&settings).await);
        assert!(
            message.contains("PROBLEM  streams") && message.contains("max_bytes (too small)"),
            "{message}"
        );
    }

    #[tokio::test]
    async fn looks_at_a_server_and_changes_nothing() {
        let server = devstack::NatsServer::start_temporary().await.unwrap();
        let settings = Settings::load_from("", [("NATS_URL", server.url())]).unwrap();
        for _ in 0..2 {
            let findings = examine(&settings).await;
            let message = super::super::finding::render(&findings);
            assert!(message.contains("stream SIGNALBOX_DEAD is missing"), "{message}");
        }
        let bus = Bus::connect(context::bus_options("test", &settings.nats).unwrap())
            .await
            .unwrap();
        migrate::topology(&settings).ensure(&bus).await.unwrap();
        let findings = examine(&settings).await;
        assert!(
            super::super::finding::render(&findings).ends_with("No problem found.\n"),
            "{findings:?}"
        );
    }
}
