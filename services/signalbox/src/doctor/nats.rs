//! NATS: reachable, new enough, with JetStream, and with the streams and consumers in place.

use messaging::{Bus, BusOptions, Provision, ServerVersion, Topology, TopologyError};
use runtime::{Settings, context, settings};

use super::Finding;

const CONNECT_TIMEOUT_MS: u64 = 3_000;

pub(super) async fn examine(settings: &Settings) -> Vec<Finding> {
    let options = match context::bus_options("doctor", &settings.nats) {
        Ok(options) => options,
        Err(error) => {
            let mend = "set it, or use `signalbox up`, which starts a NATS server of its own";
            return vec![Finding::failed("nats", error, mend)];
        }
    };
    let options = BusOptions {
        connect_timeout_ms: CONNECT_TIMEOUT_MS,
        ..options
    };
    // The error says itself what to do about it; version and JetStream are among what connecting checks.
    let bus = match Bus::connect(options).await {
        Ok(bus) => bus,
        Err(error) => return vec![Finding::failed("nats", error, "is it running, and is nats.url right?")],
    };
    let topology = Topology {
        // The doctor only looks.
        provision: Provision::VerifyOnly,
        ..context::topology(&settings.nats)
    };
    vec![
        server(bus.server_version()),
        streams(&topology.ensure(&bus).await, settings.nats.provision),
    ]
}

fn server(version: ServerVersion) -> Finding {
    Finding::ok(
        "nats",
        format!("version {}.{}, JetStream is on", version.major, version.minor),
    )
}

fn streams(verified: &Result<(), TopologyError>, provision: settings::Provision) -> Finding {
    match (verified, provision) {
        (Ok(()), _) => Finding::ok("streams", "all streams and consumers are there and as they must be"),
        (Err(error @ (TopologyError::Missing { .. } | TopologyError::Drift { .. })), settings::Provision::Create) => {
            let what = match error {
                TopologyError::Missing { what } => format!("{what} is missing"),
                other => other.to_string(),
            };
            Finding::hint(
                "streams",
                what,
                "nats.provision is create: the next start of a service makes it",
            )
        }
        (Err(error), _) => Finding::problem(
            "streams",
            error.to_string(),
            "run `signalbox migrate` as a user that may change streams",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_a_problem_only_where_nobody_will_make_it() {
        let missing = || {
            Err(TopologyError::Missing {
                what: "stream SIGNALBOX_DEAD".to_owned(),
            })
        };
        assert!(!streams(&missing(), settings::Provision::Create).is_problem());
        assert!(streams(&missing(), settings::Provision::Verify).is_problem());
        assert!(!streams(&Ok(()), settings::Provision::Verify).is_problem());
    }

    #[tokio::test]
    async fn looks_at_a_server_and_changes_nothing() {
        let server = devstack::NatsServer::start_temporary().await.unwrap();
        let settings = Settings::load_from("", [("NATS_URL", server.url())]).unwrap();
        for _ in 0..2 {
            let findings = examine(&settings).await;
            let said = super::super::finding::render(&findings);
            assert!(said.contains("stream SIGNALBOX_DEAD is missing"), "{said}");
        }
        let bus = Bus::connect(context::bus_options("test", &settings.nats).unwrap())
            .await
            .unwrap();
        context::topology(&settings.nats).ensure(&bus).await.unwrap();
        let findings = examine(&settings).await;
        assert!(
            super::super::finding::render(&findings).ends_with("All is well.\n"),
            "{findings:?}"
        );
    }
}
