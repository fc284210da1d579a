//! Wiring: the API's server, the consumer of ended turns, the sweeps of expired rows, of holds, of mail, of timers and of stalled tasks, the
//! sender of e-mail, the limits of the outbox, and the watch for deletions in the broker.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use messaging::{Consumer, ConsumerOptions, Durable, User, watch_deletions};
use runtime::Context;

use crate::{
    app::App,
    forget::forget,
    handlers::turn_finished::TurnFinishedHandler,
    holds, mail, metrics, nats,
    outbound::{self, smtp::Mailer},
    recovery,
    routes::served,
    settings::{OrchestratorSettings, OutboundSettings},
    sign_in::cookie::Cookies,
    timers,
};

/// Starts the workers and gives the address of the API; port 0 in the settings picks a free port. The workers end with the
/// context's shutdown.
pub async fn start(context: Context) -> anyhow::Result<SocketAddr> {
    let settings: OrchestratorSettings = context.settings.section("orchestrator")?;
    if settings.operator_token.is_none() {
        tracing::warn!("orchestrator.operator_token is not set: accounts cannot be created");
    }
    let models = context.settings.section("models")?;
    let providers = context.settings.section("providers")?;
    let sign_in = context.settings.section("sign_in")?;
    let limits: OutboundSettings = context.settings.section("outbound")?;
    let mailer = Mailer::of(&context.settings.section("email")?, &limits)?;
    let listen = settings.listen;
    let outbox = context.outbox.clone();
    let publish_soon = Arc::new(move |rows| outbox.publish_soon(rows));
    let shutdown = &context.shutdown;
    let databases = (context.database.clone(), context.connect_callers().await?);
    let app = App::new(
        databases,
        context.root().clone(),
        (settings, models, providers, sign_in),
        publish_soon,
        shutdown.clone(),
    );
    app.connects_to(context.bus.clone());
    match nats::issuer(&app.settings)? {
        Some(issuer) => {
            let answers = nats::answer(app.clone(), context.bus.clone(), issuer, shutdown.token());
            shutdown.spawn("nats callout", answers);
        }
        None => tracing::info!("orchestrator.callout_issuer_seed is not set: API keys do not open NATS"),
    }
    shutdown.spawn("turn finished", consumer(&context, &app).run(shutdown.token()));
    let shares = app.shares.clone();
    shares.limit(context.topology.limits.notification_bytes_max);
    let watch = shares.watch(app.database.clone(), shutdown.token());
    shutdown.spawn("shares of the outbox", watch);
    shutdown.spawn("forget", forget(app.clone(), shutdown.token()));
    shutdown.spawn("holds", holds::sweep::sweep(app.clone(), shutdown.token()));
    shutdown.spawn("liveness", recovery::sweep::sweep(app.clone(), shutdown.token()));
    shutdown.spawn("mail", mail::sweep::sweep(app.clone(), shutdown.token()));
    shutdown.spawn("timers", timers::sweep::sweep(app.clone(), shutdown.token()));
    let interval = context.settings.telemetry.metrics_interval_ms.duration();
    let waiting = metrics::waiting(context.database.clone(), interval, shutdown.token());
    shutdown.spawn("what waits", waiting);
    shutdown.spawn("deletions", watch_deletions(context.bus.clone(), shutdown.token()));
    let address = context.serve(listen, served(app.clone()), context.health()).await?;
    app.listens_at(address);
    // Links in e-mail begin with the address.
    match mailer {
        Some(mailer) => {
            outbound::sends_email(&app, Some(i64::from(limits.pending_account_max.get()))).await?;
            let sending = outbound::sender::run(app.clone(), mailer, limits, shutdown.token());
            shutdown.spawn("outbound", sending);
        }
        None => {
            outbound::sends_email(&app, None).await?;
            tracing::info!(
                "email.smtp_url is not set: people hear of mail in their inbox, and no sign-in link is mailed"
            );
        }
    }
    if Cookies::of(&app.base_url()).is_none() {
        tracing::warn!(
            public_url = app.base_url(),
            "browsers cannot sign in: orchestrator.public_url is neither https nor of this machine"
        );
    }
    Ok(address)
}

/// How long a batch of events is collected. A reply in a thread is less urgent than the turn itself.
const GATHER: Duration = Duration::from_millis(15);

fn consumer(context: &Context, app: &App) -> Consumer<TurnFinishedHandler> {
    let retry_delay: Duration = app.settings.replies_retry_ms.duration();
    Consumer {
        bus: context.bus.clone(),
        topology: context.topology.clone(),
        durable: Durable::of(User::Orchestrator, "turn.finished"),
        options: ConsumerOptions {
            batch_messages_max: app.settings.replies_batch_max.non_zero(),
            attempts_max: i64::from(app.settings.replies_attempts_max.get()),
            retry_delay,
            gather: GATHER,
            ..ConsumerOptions::default()
        },
        handler: TurnFinishedHandler::new(app.clone()),
        dead_letters: Box::new(context.dead_letters()),
    }
}
