//! Streams and consumers on a real server: created, kept, changed, refused.

use async_nats::jetstream::{consumer::PullConsumer, stream};
use domain::{Bytes, Count, Hours, Millis};
use messaging::{Durable, Stream, Topology, TopologyError, TopologyLimits, User, topology};
use tokio_util::sync::CancellationToken;

use crate::support::{bare_broker, broker, raw, stream_info, until, updating, verifying};

#[tokio::test]
async fn everything_is_made_once_and_then_left_alone() {
    let broker = bare_broker().await;
    let topology = updating(TopologyLimits::default());
    topology.ensure(&broker.bus).await.unwrap();
    let mut before = Vec::new();
    for stream in Stream::ALL {
        before.push(stream_info(&broker.bus, stream).await);
    }
    topology.ensure(&broker.bus).await.unwrap();
    for (stream, before) in Stream::ALL.into_iter().zip(before) {
        let after = stream_info(&broker.bus, stream).await;
        assert_eq!(
            (after.config, after.created),
            (before.config, before.created),
            "{stream:?}"
        );
    }
    for durable in Durable::all() {
        let stream = durable.stream.name(broker.bus.root());
        let consumer: PullConsumer = raw(&broker.bus)
            .get_consumer_from_stream(durable.name(), stream)
            .await
            .unwrap();
        assert_eq!(
            consumer.cached_info().config.filter_subject,
            durable.filter(broker.bus.root())
        );
    }
    verifying(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
}

/// The table must not set a field that the server stores differently, or every start would change the stream.
#[tokio::test]
async fn what_the_server_stores_is_what_the_table_says() {
    let broker = broker().await;
    for stream in Stream::ALL {
        let wanted = topology::stream_config(
            stream,
            broker.bus.root(),
            &TopologyLimits::default(),
            broker.bus.server_version(),
        );
        let found = stream_info(&broker.bus, stream).await.config;
        assert_eq!(found.subject_transform, wanted.subject_transform);
        assert_eq!(found.duplicate_window, wanted.duplicate_window);
        assert_eq!(found.sources, wanted.sources);
    }
}

#[tokio::test]
async fn processes_that_start_together_do_not_disturb_each_other() {
    let broker = bare_broker().await;
    let topology = updating(TopologyLimits::default());
    let starts = (0..8).map(|_| topology.ensure(&broker.bus));
    for result in futures::future::join_all(starts).await {
        result.unwrap();
    }
    verifying(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
}

#[tokio::test]
async fn without_the_right_to_create_a_missing_stream_stops_the_start() {
    let broker = bare_broker().await;
    let error = verifying(TopologyLimits::default())
        .ensure(&broker.bus)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, TopologyError::Missing { what } if what == "stream SIGNALBOX_DEAD"),
        "{error:?}"
    );
    assert!(error.to_string().contains("signalbox migrate"), "{error}");
}

#[tokio::test]
async fn without_the_right_to_create_a_missing_consumer_stops_the_start() {
    let broker = broker().await;
    raw(&broker.bus)
        .delete_consumer_from_stream("delivery_tool_finished", "SIGNALBOX_TOOL")
        .await
        .unwrap();
    let error = verifying(TopologyLimits::default())
        .ensure(&broker.bus)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "consumer delivery_tool_finished of stream SIGNALBOX_TOOL is missing on the NATS server: run `signalbox migrate` \
         as a user that may create it"
    );
}

#[tokio::test]
async fn limits_follow_the_settings() {
    let broker = broker().await;
    let limits = TopologyLimits {
        event_bytes_max: Bytes::new(64 * 1024 * 1024),
        event_age_max_hours: Hours::new(1),
        ack_wait_ms: Millis::new(1_000),
        ..TopologyLimits::default()
    };
    // Larger sizes than the settings' are the operator's choice: a process without change rights works with them.
    let error = verifying(limits.clone()).ensure(&broker.bus).await.err();
    assert!(error.is_none(), "{error:?}");
    assert_eq!(
        stream_info(&broker.bus, Stream::Event).await.config.max_bytes,
        512 * 1024 * 1024
    );

    let before = stream_info(&broker.bus, Stream::Event).await;
    updating(limits).ensure(&broker.bus).await.unwrap();
    let after = stream_info(&broker.bus, Stream::Event).await;
    assert_eq!(after.config.max_bytes, 64 * 1024 * 1024);
    assert_eq!(after.config.max_age.as_secs(), 3600);
    assert_eq!(after.created, before.created);
    let consumer: PullConsumer = raw(&broker.bus)
        .get_consumer_from_stream("orchestrator_turn_finished", "SIGNALBOX_EVENT")
        .await
        .unwrap();
    assert_eq!(consumer.cached_info().config.ack_wait.as_secs(), 1);
}

/// Each of these alone would lose or refuse messages that the services rely on.
#[tokio::test]
async fn less_than_the_settings_want_stops_the_start() {
    let broker = broker().await;
    let check = async |settings: &dyn Fn(&mut TopologyLimits), says: &str| {
        let mut limits = TopologyLimits::default();
        settings(&mut limits);
        let error = verifying(limits).ensure(&broker.bus).await.unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("signalbox migrate"), "{error}");
    };
    let usual = TopologyLimits::default();
    check(
        &|limits| limits.dead_bytes_max = Bytes::new(2 * usual.dead_bytes_max.get()),
        "stream SIGNALBOX_DEAD on the NATS server",
    )
    .await;
    check(
        &|limits| limits.notification_bytes_max = Bytes::new(2 * usual.notification_bytes_max.get()),
        "in max_bytes (too small)",
    )
    .await;
    check(
        &|limits| limits.session_age_max_hours = Hours::new(2 * usual.session_age_max_hours.get()),
        "in max_age (too small)",
    )
    .await;
    check(
        &|limits| limits.message_bytes_max = Bytes::new(2 * usual.message_bytes_max.get()),
        "in max_message_size (too small)",
    )
    .await;
    check(&|limits| limits.replicas = Count::new(3), "in num_replicas (too small)").await;
    check(
        &|limits| limits.ack_wait_ms = Millis::new(2 * usual.ack_wait_ms.get()),
        "in ack_wait (too small)",
    )
    .await;
}

#[tokio::test]
async fn a_stream_that_drops_what_was_not_read_stops_the_start() {
    let broker = broker().await;
    let mut config = stream_info(&broker.bus, Stream::Notification).await.config;
    config.discard = stream::DiscardPolicy::Old;
    raw(&broker.bus).update_stream(config).await.unwrap();
    let error = verifying(TopologyLimits::default())
        .ensure(&broker.bus)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, TopologyError::Drift { what, fields } if what == "stream SIGNALBOX_NOTIFICATION" && fields == "discard"),
        "{error:?}"
    );
}

/// A stream from before direct reads must be migrated before a resolver reads from it.
#[tokio::test]
async fn a_stream_of_an_earlier_version_is_changed_with_the_right_to() {
    let broker = broker().await;
    let mut config = stream_info(&broker.bus, Stream::Notification).await.config;
    (config.allow_direct, config.republish) = (false, None);
    raw(&broker.bus).update_stream(config).await.unwrap();
    let error = verifying(TopologyLimits::default())
        .ensure(&broker.bus)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, TopologyError::Drift { fields, .. } if fields == "allow_direct, republish"),
        "{error:?}"
    );
    updating(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
    verifying(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
}

#[tokio::test]
async fn a_service_requires_its_own_streams_and_no_others() {
    let broker = broker().await;
    let missing = async |scope| {
        let topology = Topology {
            scope,
            ..verifying(TopologyLimits::default())
        };
        topology
            .find_missing(&broker.bus)
            .await
            .err()
            .map(|error| error.to_string())
    };
    raw(&broker.bus).delete_stream("SIGNALBOX_TOOL").await.unwrap();
    raw(&broker.bus)
        .delete_consumer_from_stream("delivery_session_closed", "SIGNALBOX_SESSION")
        .await
        .unwrap();
    assert_eq!(missing(User::Resolver).await, None);
    assert_eq!(missing(User::Orchestrator).await, None);
    let says = |what: &str| {
        Some(format!(
            "{what} is missing on the NATS server: run `signalbox migrate` as a user that may create it"
        ))
    };
    assert_eq!(missing(User::ToolGateway).await, says("stream SIGNALBOX_TOOL"));
    updating(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
    assert_eq!(missing(User::ToolGateway).await, None);
}

#[tokio::test]
async fn the_operators_process_recreates_streams_after_a_wiped_store() {
    let mut broker = broker().await;
    let (bus, stop) = (broker.bus.clone(), CancellationToken::new());
    let keeping = tokio::spawn({
        let stop = stop.clone();
        async move { updating(TopologyLimits::default()).keep(&bus, stop).await }
    });
    broker.server.wipe_store().await.unwrap();
    broker.server.restart().await.unwrap();
    until("everything is there again", async || {
        verifying(TopologyLimits::default()).ensure(&broker.bus).await.ok()
    })
    .await;
    stop.cancel();
    keeping.await.unwrap();
}

#[tokio::test]
async fn a_stream_of_the_wrong_kind_is_reported_with_its_fields() {
    let broker = bare_broker().await;
    raw(&broker.bus)
        .create_stream(stream::Config {
            name: "SIGNALBOX_EVENT".to_owned(),
            subjects: vec!["signalbox.event.>".to_owned()],
            retention: stream::RetentionPolicy::WorkQueue,
            ..stream::Config::default()
        })
        .await
        .unwrap();
    let error = updating(TopologyLimits::default())
        .ensure(&broker.bus)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, TopologyError::Unchangeable { what, fields, .. }
            if what == "stream SIGNALBOX_EVENT" && fields.contains("retention")),
        "{error:?}"
    );
}

#[tokio::test]
async fn wrong_subjects_are_repaired_with_the_right_to_and_stop_a_start_without() {
    let broker = broker().await;
    let mut config = stream_info(&broker.bus, Stream::Tool).await.config;
    config.subjects = vec!["signalbox.tool.requested.>".to_owned()];
    raw(&broker.bus).update_stream(config).await.unwrap();
    let error = verifying(TopologyLimits::default())
        .ensure(&broker.bus)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, TopologyError::Drift { what, fields } if what == "stream SIGNALBOX_TOOL" && fields == "subjects"),
        "{error:?}"
    );
    updating(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
    verifying(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
}

#[tokio::test]
async fn a_stream_that_acknowledges_before_it_stores_is_refused() {
    let broker = bare_broker().await;
    raw(&broker.bus)
        .create_stream(stream::Config {
            name: "SIGNALBOX_SESSION".to_owned(),
            subjects: vec!["signalbox.session.>".to_owned()],
            persist_mode: Some(stream::PersistenceMode::Async),
            ..stream::Config::default()
        })
        .await
        .unwrap();
    let error = updating(TopologyLimits::default())
        .ensure(&broker.bus)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, TopologyError::AsyncPersist { what } if what == "stream SIGNALBOX_SESSION"),
        "{error:?}"
    );
}
