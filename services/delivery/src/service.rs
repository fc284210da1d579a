//! The wiring of the service's workers.
//!
//! ```text
//!  handlers, sweep ─ wake ─► conductor ─ batch ─► claimer ─ work ─► one worker a turn ─ report ─► recorder
//!                               ▲                    │                      ▲                       │  │
//!                               │                    │                      └────── next work ──────┘  │
//!                               └────── free ────────┴──────────────────── free ───────────────────────┘
//! ```
//! Claimer and recorder each have one transaction in progress. Sessions woken and turns ended meanwhile form the next
//! batch, so the batch size follows the load. The recorder starts a session's next turn itself where no one waits for the
//! session's place.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use axum::Router;
use contracts::session::SessionStopRequested;
use domain::branch::DEPTH_MAX_DEFAULT;
use messaging::hear;
use prompt::{MARKS_LABEL, MarkSecret};
use runtime::{Context, EndsWith};
use tokio::sync::mpsc;
use tracing::warn;

use crate::{
    breaker::{Breakers, sweep::BreakerSweep},
    handlers,
    metrics::Metrics,
    providers::{Driver, ProviderSettings},
    queue::{alarm, conductor::conduct},
    settings::DeliverySettings,
    sweeps::{self, overdue::Overdue},
    turn::{
        claim::Claimer,
        claiming::claim,
        recorder::Recorder,
        recording::record,
        started::Started,
        starter::Starter,
        stop::{self, Calls},
        workers::Workers,
    },
};

/// Pieces of live text that wait for the broker; further pieces are dropped.
const LIVE_WAITING_MAX: usize = 4_096;
const SIGNALS_WAITING_MAX: usize = 4_096;
const ALARMS_WAITING_MAX: usize = 4_096;

/// Starts the service's workers. Returns the address of its health pages.
pub async fn start(context: Context) -> anyhow::Result<SocketAddr> {
    let config: Arc<DeliverySettings> = Arc::new(context.settings.section("delivery")?);
    let providers: HashMap<String, ProviderSettings> = context.settings.section("providers")?;
    let depth_max = context.settings.value("tool_gateway.branch_depth_max")?;
    let branch_depth_max = depth_max.unwrap_or(DEPTH_MAX_DEFAULT);
    let drivers = Arc::new(drivers(&providers)?);
    let breakers = Arc::new(Breakers::new(context.root().clone(), &providers, &config));
    let replica = context.start_replica(EndsWith::Lease).await?;
    let metrics = Metrics::default();
    let keys = context.settings.envelope.keyring()?;
    let secret = keys
        .derived(MARKS_LABEL)
        .expect("a keyring from the settings has a signing key");

    let (signals, signalled) = mpsc::channel(SIGNALS_WAITING_MAX);
    let (batches, batched) = mpsc::channel(1);
    let (reports, reported) = mpsc::channel(config.turns_in_flight_max.usize());
    let (live, mut pieces) = mpsc::channel(LIVE_WAITING_MAX);

    let starter = Starter {
        config: Arc::clone(&config),
        drivers: Arc::clone(&drivers),
        breakers: Arc::clone(&breakers),
        profiles: Arc::default(),
        personas: Arc::default(),
        kept: Arc::default(),
        marks: MarkSecret::new(secret),
        branch_depth_max: branch_depth_max.i32(),
        models: Arc::new(context.settings.section("models")?),
    };
    let claimer = Claimer {
        database: context.database.clone(),
        root: context.root().clone(),
        starter: starter.clone(),
        shutdown: context.shutdown.clone(),
    };
    let recorder = Recorder {
        database: context.database.clone(),
        root: context.root().clone(),
        starter,
        metrics: metrics.clone(),
        outbox: context.outbox.clone(),
        recorded: Arc::default(),
        passes_locked: false,
        shutdown: context.shutdown.clone(),
    };
    let others = replica.others();
    let calls = Calls::default();
    let (hints, hinted) = stop::hints(&calls);
    let (alarms, alarmed) = mpsc::channel(ALARMS_WAITING_MAX);
    context.shutdown.spawn(
        "delivery alarms",
        alarm::alarms(alarmed, signals.clone(), context.shutdown.token()),
    );
    context.shutdown.spawn(
        "delivery stop requests",
        stop::look(
            context.database.clone(),
            calls.clone(),
            hinted,
            context.shutdown.token(),
        ),
    );
    let give = hints.clone();
    context.shutdown.spawn(
        "delivery stop hints",
        hear(
            context.bus.clone(),
            move |asked: SessionStopRequested| give.give((asked.account, asked.session_id)),
            context.shutdown.token(),
        ),
    );
    context.shutdown.spawn(
        "delivery stop sweep",
        stop::sweep(
            context.database.clone(),
            replica.clone(),
            config.sweep_interval_ms.duration(),
            config.sweep_sessions_max.i32(),
            hints,
            context.shutdown.token(),
        ),
    );
    let workers = Workers {
        context: context.clone(),
        replica,
        drivers,
        live,
        started: Started::start(&context),
        calls,
        alarms,
        signals: signals.clone(),
        config: Arc::clone(&config),
        metrics: metrics.clone(),
    };

    context.shutdown.spawn_support("delivery live text", {
        let (bus, stop) = (context.bus.clone(), context.shutdown.support_token());
        async move {
            let publishing = async {
                while let Some(piece) = pieces.recv().await {
                    bus.publish_live(piece).await;
                }
            };
            // Live text may be lost at any time, and is lost at the stop. Its senders have ended before that.
            let _ = stop.run_until_cancelled(publishing).await;
            stop.cancelled().await;
        }
    });
    context.shutdown.spawn(
        "delivery conductor",
        conduct(
            Arc::clone(&config),
            Arc::clone(&workers.drivers),
            signalled,
            batches,
            context.clone(),
            metrics.clone(),
        ),
    );
    let recording = record(recorder, reported, reports.downgrade(), workers.clone());
    context.shutdown.spawn("delivery recorder", recording);
    context
        .shutdown
        .spawn("delivery claimer", claim(claimer, batched, workers, reports));
    handlers::start(&context, &signals);
    let breaker_sweep = BreakerSweep {
        database: context.database.clone(),
        breakers,
        outbox: context.outbox.clone(),
        metrics: metrics.clone(),
        signals: signals.clone(),
        after: HashMap::new(),
    };
    context.shutdown.spawn(
        "delivery breakers",
        breaker_sweep.run(config.sweep_interval_ms.duration(), context.shutdown.token()),
    );
    let sweep = sweeps::neglected(
        context.database.clone(),
        config.sweep_interval_ms.duration(),
        config.sweep_sessions_max.i32(),
        others,
        signals,
        context.shutdown.token(),
    );
    context.shutdown.spawn("delivery sweep", sweep);
    let overdue = Overdue {
        database: context.database.clone(),
        root: context.root().clone(),
        outbox: context.outbox.clone(),
        config: Arc::clone(&config),
    };
    context
        .shutdown
        .spawn("delivery overdue", overdue.run(context.shutdown.token()));
    let waiting = sweeps::waiting(
        context.database.clone(),
        context.settings.telemetry.metrics_interval_ms.duration(),
        metrics,
        context.shutdown.token(),
    );
    context.shutdown.spawn("delivery queue age", waiting);
    let address = context.serve(config.listen, Router::new(), context.health()).await?;
    Ok(address)
}

/// Builds a driver for each `[providers.{name}]`.
fn drivers(providers: &HashMap<String, ProviderSettings>) -> anyhow::Result<HashMap<String, Arc<Driver>>> {
    if providers.is_empty() {
        warn!("no provider is configured; every session waits until [providers.default] is set");
    }
    providers
        .iter()
        .map(|(name, settings)| {
            let driver = Driver::new(settings).with_context(|| format!("building the driver of provider `{name}`"))?;
            Ok((name.clone(), Arc::new(driver)))
        })
        .collect()
}
