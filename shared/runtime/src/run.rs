//! The `main` of a process with one service: TLS, settings, telemetry, start, wait, stop.

use std::{process::ExitCode, sync::Arc};

use storage::Role;
use tracing::{error, info, warn};

use crate::{
    Context, Settings, SettingsError, Shutdown,
    context::StartError,
    shutdown::wait_for_signal,
    telemetry::{self, TelemetryGuard},
};

/// The settings were refused: another attempt with the same settings fails too.
const EXIT_SETTINGS: u8 = 2;

/// Runs a service until SIGINT or SIGTERM, or until one of its workers fails. `start` spawns the workers and returns.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     runtime::run(storage::Role::Resolver, |_context| async { Ok(()) })
/// }
/// ```
pub fn run(role: Role, start: impl AsyncFnOnce(Context) -> anyhow::Result<()>) -> ExitCode {
    telemetry::install_tls_provider();
    let executor = match executor() {
        Ok(executor) => executor,
        Err(error) => {
            print_error(role, &error.into());
            return ExitCode::FAILURE;
        }
    };
    executor.block_on(async {
        match set_up(role) {
            Ok((settings, telemetry)) => {
                let code = run_service(role, settings, start).await;
                telemetry.flush().await;
                code
            }
            Err(error) => {
                let error = error.into();
                print_error(role, &error);
                exit_code(&error)
            }
        }
    })
}

/// A service mostly waits for Postgres, NATS and providers, and shares its machine with them and with other services. With
/// few threads, work stays on one core, and wakes no thread that steals it. With two, one long poll stops no lease's renewal.
fn executor() -> std::io::Result<tokio::runtime::Runtime> {
    /// Tokio's own variable.
    const THREADS: &str = "TOKIO_WORKER_THREADS";
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if std::env::var_os(THREADS).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        builder.worker_threads((cores / 4).max(2));
    }
    builder.enable_all().build()
}

fn set_up(role: Role) -> Result<(Arc<Settings>, TelemetryGuard), StartError> {
    let settings = Settings::load()?;
    let telemetry = telemetry::init(role.service(), &settings.telemetry)?;
    Ok((Arc::new(settings), telemetry))
}

async fn run_service(
    role: Role,
    settings: Arc<Settings>,
    start: impl AsyncFnOnce(Context) -> anyhow::Result<()>,
) -> ExitCode {
    let shutdown = Shutdown::new();
    let starting = async {
        let context = Context::connect(role, Arc::clone(&settings), shutdown.clone()).await?;
        let bus = context.bus.clone();
        start(context).await?;
        anyhow::Ok(bus)
    };
    let bus = tokio::select! {
        started = starting => match started {
            Ok(bus) => Some(bus),
            Err(error) => {
                error!("{} could not start: {error:#}", role.service());
                shutdown.stop(settings.process.stop_grace_ms.duration()).await;
                return exit_code(&error);
            }
        },
        // Workers that were already started are stopped below.
        _ = wait_for_signal() => None,
    };
    if let Some(bus) = &bus {
        info!("{} is up", role.service());
        until_stopped(&shutdown).await;
        stop(&shutdown, &settings).await;
        // Acknowledgements of the last batch are still in the client's buffer.
        if let Err(error) = bus.flush(settings.nats.request_timeout_ms.duration()).await {
            warn!(%error, "could not flush acknowledgements to the broker before the stop");
        }
    } else {
        stop(&shutdown, &settings).await;
    }
    match shutdown.failure() {
        Some(failure) => {
            error!("{} has stopped: {failure}", role.service());
            ExitCode::FAILURE
        }
        None => {
            info!("{} has stopped", role.service());
            ExitCode::SUCCESS
        }
    }
}

/// Waits for a signal, or for a worker's failure.
pub async fn until_stopped(shutdown: &Shutdown) {
    tokio::select! {
        signal = wait_for_signal() => {
            if let Err(error) = signal {
                shutdown.fail(format!("cannot listen for signals: {error}"));
            }
        }
        () = shutdown.cancelled() => {}
    }
}

/// Stops within the grace period. A second signal aborts all workers at once.
pub async fn stop(shutdown: &Shutdown, settings: &Settings) {
    tokio::select! {
        _ = shutdown.stop(settings.process.stop_grace_ms.duration()) => {}
        _ = wait_for_signal() => {
            warn!("second signal: aborting all workers");
            shutdown.abort();
        }
    }
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    // A service reads its own section itself, so its refusal is not wrapped in a `StartError`.
    let refused = error.is::<SettingsError>()
        || error
            .downcast_ref::<StartError>()
            .is_some_and(StartError::is_refused_setting);
    if refused {
        ExitCode::from(EXIT_SETTINGS)
    } else {
        ExitCode::FAILURE
    }
}

/// Reports errors before the log exists.
#[expect(clippy::print_stderr, reason = "there is no log yet")]
fn print_error(role: Role, error: &anyhow::Error) {
    eprintln!("signalbox {}: {error:#}", role.service());
}
