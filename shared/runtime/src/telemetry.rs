//! Logs, traces and metrics of a process, set up once.
//!
//! Logs go to standard error, or to a file. Traces are always made, so that a trace goes on through messages and
//! provider calls, but they are kept and sent only when a collector is named. Metrics can always be read on `/metrics`;
//! a collector gets them as well. Several services in one process share all of it: the first [`init`] decides.

use std::{
    fs::{File, OpenOptions},
    io::IsTerminal,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use opentelemetry::{KeyValue, global, trace::TracerProvider};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    metrics::{PeriodicReader, SdkMeterProvider},
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracerProvider, SpanExporter as SpanExport},
};
use prometheus::{Registry, TextEncoder};
use tracing::{level_filters::LevelFilter, warn};
use tracing_subscriber::{
    EnvFilter, Layer, Registry as Subscriber, filter::Targets, fmt::MakeWriter, layer::SubscriberExt,
};
use uuid::Uuid;

use crate::settings::{LogFormat, TelemetrySettings};

/// Libraries whose lines say little at `info`, or would say what a statement or a request held.
const QUIET: &str = "info,sqlx=warn,sea_orm=warn,sea_orm_migration=warn,async_nats=warn,hyper=warn,hyper_util=warn,\
    h2=warn,reqwest=warn,rustls=warn,tower=warn,opentelemetry=warn,opentelemetry_sdk=warn,opentelemetry_otlp=warn,\
    opentelemetry_http=warn";

/// Spans of these are never traced: the exporter itself uses them, and would trace its own sending.
const UNTRACED: [&str; 12] = [
    "sqlx",
    "sea_orm",
    "async_nats",
    "hyper",
    "hyper_util",
    "h2",
    "reqwest",
    "rustls",
    "tower",
    "opentelemetry",
    "opentelemetry_sdk",
    "opentelemetry_otlp",
];

/// A telemetry setting that cannot be used, or a subscriber that somebody else has set.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("setting telemetry.log is not a filter such as info,delivery=debug")]
    Filter {
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("the log file {path} cannot be opened")]
    LogFile { path: String, source: std::io::Error },
    #[error("setting telemetry.otlp_endpoint cannot be used")]
    Exporter {
        source: opentelemetry_otlp::ExporterBuildError,
    },
    #[error("the metrics registry cannot be set up")]
    Metrics {
        source: opentelemetry_sdk::error::OTelSdkError,
    },
    #[error("another log subscriber is installed in this process")]
    Subscriber {
        source: tracing::subscriber::SetGlobalDefaultError,
    },
}

/// Held by whoever ends the process: [`TelemetryGuard::flush`] sends what is left.
#[derive(Clone, Debug)]
pub struct TelemetryGuard {
    tracer: SdkTracerProvider,
    meter: SdkMeterProvider,
    registry: Registry,
    flush_timeout: Duration,
}

static INSTALLED: OnceLock<TelemetryGuard> = OnceLock::new();
/// Held while installing, so that two services that start at once do not both do it.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Chooses the TLS implementation for the whole process. First thing in `main`: clients panic without it.
pub fn install_tls_provider() {
    // Refused only when one is installed already, which is what was asked for.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Sets up logs, traces and metrics; once a process, later calls give what the first has made.
pub fn init(service: &str, settings: &TelemetrySettings) -> Result<TelemetryGuard, TelemetryError> {
    let mut tracer = SdkTracerProvider::builder();
    let sampler = match &settings.otlp_endpoint {
        Some(endpoint) => {
            let exporter = SpanExporter::builder()
                .with_http()
                .with_endpoint(signal_url(endpoint, "traces"))
                .build()
                .map_err(|source| TelemetryError::Exporter { source })?;
            tracer = tracer.with_batch_exporter(exporter);
            Sampler::TraceIdRatioBased(settings.trace_ratio)
        }
        // Ids are still made and passed on; a caller that records its trace finds our part of the way in it.
        None => Sampler::AlwaysOff,
    };
    install(
        service,
        settings,
        tracer.with_sampler(Sampler::ParentBased(Box::new(sampler))),
    )
}

/// The same with every span given to `exporter` as it ends: for tests that look at traces.
pub fn init_with_exporter(
    service: &str,
    settings: &TelemetrySettings,
    exporter: impl SpanExport + 'static,
) -> Result<TelemetryGuard, TelemetryError> {
    let tracer = SdkTracerProvider::builder()
        .with_simple_exporter(exporter)
        .with_sampler(Sampler::AlwaysOn);
    install(service, settings, tracer)
}

fn install(
    service: &str,
    settings: &TelemetrySettings,
    tracer: opentelemetry_sdk::trace::TracerProviderBuilder,
) -> Result<TelemetryGuard, TelemetryError> {
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(guard) = INSTALLED.get() {
        return Ok(guard.clone());
    }
    let resource = Resource::builder()
        .with_service_name(service.to_owned())
        .with_attributes([
            KeyValue::new("service.namespace", settings.service_namespace.clone()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", Uuid::now_v7().to_string()),
        ])
        .build();
    let registry = Registry::new();
    let guard = TelemetryGuard {
        tracer: tracer.with_resource(resource.clone()).build(),
        meter: meter_provider(settings, &registry, resource)?,
        registry,
        flush_timeout: settings.flush_timeout_ms.duration(),
    };

    let traced = UNTRACED
        .iter()
        .fold(Targets::new().with_default(LevelFilter::INFO), |targets, target| {
            targets.with_target(*target, LevelFilter::OFF)
        });
    let subscriber = Subscriber::default().with(log_layer(settings)?).with(
        tracing_opentelemetry::layer()
            .with_tracer(guard.tracer.tracer("signalbox"))
            .with_filter(traced),
    );
    tracing::subscriber::set_global_default(subscriber).map_err(|source| TelemetryError::Subscriber { source })?;
    global::set_text_map_propagator(TraceContextPropagator::new());
    global::set_tracer_provider(guard.tracer.clone());
    global::set_meter_provider(guard.meter.clone());
    log_panics();
    Ok(INSTALLED.get_or_init(|| guard).clone())
}

fn log_layer(settings: &TelemetrySettings) -> Result<Box<dyn Layer<Subscriber> + Send + Sync>, TelemetryError> {
    let filter = match &settings.log {
        Some(log) => format!("{QUIET},{log}"),
        None => QUIET.to_owned(),
    };
    let filter = EnvFilter::builder()
        .parse(filter)
        .map_err(|source| TelemetryError::Filter { source })?;
    Ok(match &settings.log_file {
        Some(path) => lines(settings.log_format, false, Mutex::new(log_open(path)?)),
        None => {
            let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            lines(settings.log_format, colours, std::io::stderr)
        }
    }
    .with_filter(filter)
    .boxed())
}

fn lines<W>(format: LogFormat, colours: bool, writer: W) -> Box<dyn Layer<Subscriber> + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colours);
    match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

/// Ids and addresses stand in it, so it is its owner's to read.
fn log_open(path: &Path) -> Result<File, TelemetryError> {
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    opened.map_err(|source| TelemetryError::LogFile {
        path: path.display().to_string(),
        source,
    })
}

fn meter_provider(
    settings: &TelemetrySettings,
    registry: &Registry,
    resource: Resource,
) -> Result<SdkMeterProvider, TelemetryError> {
    let reader = opentelemetry_prometheus::exporter()
        .with_registry(registry.clone())
        // Every metric's name says whose it is; the label would only repeat it.
        .scope_info_enabled(false)
        .build()
        .map_err(|source| TelemetryError::Metrics { source })?;
    let mut provider = SdkMeterProvider::builder().with_reader(reader).with_resource(resource);
    if let Some(endpoint) = &settings.otlp_endpoint {
        let exporter = MetricExporter::builder()
            .with_http()
            .with_endpoint(signal_url(endpoint, "metrics"))
            .build()
            .map_err(|source| TelemetryError::Exporter { source })?;
        let reader = PeriodicReader::builder(exporter)
            .with_interval(settings.metrics_interval_ms.duration())
            .build();
        provider = provider.with_reader(reader);
    }
    Ok(provider.build())
}

/// The path of a signal is ours to add when an address is given in code.
fn signal_url(endpoint: &str, signal: &str) -> String {
    format!("{}/v1/{signal}", endpoint.trim_end_matches('/'))
}

/// A panic is one log line like any other, in the same format and place.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panicked: {message}");
    }));
}

/// What `/metrics` answers: all metrics of the process in Prometheus' text format. Empty before [`init`].
pub fn metrics_text() -> String {
    let Some(guard) = INSTALLED.get() else {
        return String::new();
    };
    let families = guard.registry.gather();
    TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
        warn!(%error, "metrics cannot be written as text");
        String::new()
    })
}

impl TelemetryGuard {
    /// Sends what has not been sent. Bounded: a collector that is down does not hold the process up.
    pub async fn flush(&self) {
        let guard = self.clone();
        // The exporters block; and nothing is logged about a failure here, since its line would go nowhere.
        let flush = tokio::task::spawn_blocking(move || {
            let _ = guard.tracer.force_flush();
            let _ = guard.meter.force_flush();
        });
        let _ = tokio::time::timeout(self.flush_timeout, flush).await;
    }
}
