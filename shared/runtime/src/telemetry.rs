//! Logs, traces and metrics of a process, set up once.
//!
//! Logs go to standard error, or to a file; metrics are served on `/metrics`. A configured collector gets both, and
//! traces. Without a collector no span is made for one, and the context of a request or a message is passed on
//! unchanged: the caller's trace stays connected at no cost. Several services in one process share the telemetry: the
//! first [`init`] decides. What is sent, and under which names: `docs/telemetry.md`.

use std::{
    fs::{File, OpenOptions},
    io::IsTerminal,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use opentelemetry::{KeyValue, global, trace::TracerProvider};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, MetricExporter, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    logs::SdkLoggerProvider,
    metrics::{PeriodicReader, SdkMeterProvider},
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracerProvider, SpanExporter as SpanExport, TracerProviderBuilder},
};
use parking_lot::Mutex;
use prometheus::{Registry, TextEncoder};
use tracing::{level_filters::LevelFilter, warn};
use tracing_subscriber::{
    EnvFilter, Layer, Registry as Subscriber, filter::Targets, fmt::MakeWriter, layer::SubscriberExt,
};
use uuid::Uuid;

use crate::settings::{LogFormat, Signal, TelemetrySettings};

/// Libraries whose lines are noise at `info`, or would contain statements or requests. Their targets begin with these
/// names. Their spans and lines are never sent: the exporter itself uses them, and would report its own sending for ever.
const LIBRARIES: [&str; 9] = [
    "sqlx",
    "sea_orm",
    "async_nats",
    "hyper",
    "h2",
    "reqwest",
    "rustls",
    "tower",
    "opentelemetry",
];

/// A telemetry setting is unusable, or another subscriber is installed.
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

/// Held by the code that ends the process: [`TelemetryGuard::flush`] sends the rest.
#[derive(Clone, Debug)]
pub struct TelemetryGuard {
    tracer: Option<SdkTracerProvider>,
    logger: Option<SdkLoggerProvider>,
    meter: SdkMeterProvider,
    registry: Registry,
    flush_timeout: Duration,
}

/// Held while installing, so that only one of two services that start at once does it.
static INSTALLED: Mutex<Option<TelemetryGuard>> = Mutex::new(None);

/// Chooses the TLS implementation for the whole process. Call it first in `main`: clients panic without it.
pub fn install_tls_provider() {
    // Fails only when a provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Sets up logs, traces and metrics, once a process. Later calls return the first result.
pub fn init(service: &str, settings: &TelemetrySettings) -> Result<TelemetryGuard, TelemetryError> {
    let tracer = match settings.address(Signal::Traces) {
        Some(address) => {
            let exporter = SpanExporter::builder().with_http().with_endpoint(address).build();
            let exporter = exporter.map_err(|source| TelemetryError::Exporter { source })?;
            let sampler = Sampler::TraceIdRatioBased(settings.trace_ratio);
            let tracer = SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_sampler(Sampler::ParentBased(Box::new(sampler)));
            Some(tracer)
        }
        None => None,
    };
    install(service, settings, tracer)
}

/// The same, with an exporter that receives every span as it ends: for tests of traces.
pub fn init_with_exporter(
    service: &str,
    settings: &TelemetrySettings,
    exporter: impl SpanExport + 'static,
) -> Result<TelemetryGuard, TelemetryError> {
    let tracer = SdkTracerProvider::builder()
        .with_simple_exporter(exporter)
        .with_sampler(Sampler::AlwaysOn);
    install(service, settings, Some(tracer))
}

fn install(
    service: &str,
    settings: &TelemetrySettings,
    tracer: Option<TracerProviderBuilder>,
) -> Result<TelemetryGuard, TelemetryError> {
    let mut installed = INSTALLED.lock();
    if let Some(guard) = &*installed {
        return Ok(guard.clone());
    }
    let resource = resource(service, settings);
    let registry = Registry::new();
    let guard = TelemetryGuard {
        tracer: tracer.map(|tracer| tracer.with_resource(resource.clone()).build()),
        logger: logger_provider(settings, resource.clone())?,
        meter: meter_provider(settings, &registry, resource)?,
        registry,
        flush_timeout: settings.flush_timeout_ms.duration(),
    };
    // A list of boxes, not of options: beside a layer that is `None`, disabled spans and lines would be evaluated each
    // time.
    let mut layers = vec![log_layer(settings)?];
    if let Some(tracer) = &guard.tracer {
        // Before the log exporter: an exported line takes the ids of the span that this layer has opened.
        layers.push(span_layer(tracer));
    }
    if let Some(logger) = &guard.logger {
        let lines = OpenTelemetryTracingBridge::new(logger).with_filter(filter(settings, true)?);
        layers.push(lines.boxed());
    }
    let subscriber = Subscriber::default().with(layers);
    tracing::subscriber::set_global_default(subscriber).map_err(|source| TelemetryError::Subscriber { source })?;
    global::set_text_map_propagator(TraceContextPropagator::new());
    if let Some(tracer) = &guard.tracer {
        global::set_tracer_provider(tracer.clone());
    }
    global::set_meter_provider(guard.meter.clone());
    log_panics();
    Ok(installed.insert(guard).clone())
}

fn span_layer(tracer: &SdkTracerProvider) -> Box<dyn Layer<Subscriber> + Send + Sync> {
    let traced = LIBRARIES
        .iter()
        // A consumer's loop lasts as long as the process and belongs to no trace.
        .chain(&["messaging::consumer"])
        .fold(Targets::new().with_default(LevelFilter::INFO), |targets, target| {
            targets.with_target(*target, LevelFilter::OFF)
        });
    tracing_opentelemetry::layer()
        .with_tracer(tracer.tracer("signalbox"))
        // The library would add it to every span; the names of spans say where they are made.
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(traced)
        .boxed()
}

/// The resource of this process. `OTEL_RESOURCE_ATTRIBUTES` adds to it; `OTEL_SERVICE_NAME` replaces its name.
fn resource(service: &str, settings: &TelemetrySettings) -> Resource {
    let mut resource = Resource::builder();
    if std::env::var_os("OTEL_SERVICE_NAME").is_none_or(|name| name.is_empty()) {
        resource = resource.with_service_name(service.to_owned());
    }
    resource
        .with_attributes([
            KeyValue::new("service.namespace", settings.service_namespace.clone()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", Uuid::now_v7().to_string()),
        ])
        .build()
}

/// The filter of the lines that are written, or sent.
fn filter(settings: &TelemetrySettings, is_sent: bool) -> Result<EnvFilter, TelemetryError> {
    let libraries = |level: &str| LIBRARIES.map(|library| format!("{library}={level}")).join(",");
    let mut filter = format!("info,signalbox_trace=off,{}", libraries("warn"));
    if let Some(log) = &settings.log {
        filter = format!("{filter},{log}");
    }
    if is_sent {
        filter = format!("{filter},{}", libraries("off"));
    }
    let filter = EnvFilter::builder().parse(filter);
    filter.map_err(|source| TelemetryError::Filter { source })
}

fn log_layer(settings: &TelemetrySettings) -> Result<Box<dyn Layer<Subscriber> + Send + Sync>, TelemetryError> {
    let filter = filter(settings, false)?;
    Ok(match &settings.log_file {
        Some(path) => lines(settings.log_format, false, std::sync::Mutex::new(log_open(path)?)),
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

/// The log contains ids and addresses, so only its owner may read it.
fn log_open(path: &Path) -> Result<File, TelemetryError> {
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    opened.map_err(|source| TelemetryError::LogFile {
        path: path.display().to_string(),
        source,
    })
}

fn logger_provider(
    settings: &TelemetrySettings,
    resource: Resource,
) -> Result<Option<SdkLoggerProvider>, TelemetryError> {
    let Some(address) = settings.address(Signal::Logs) else {
        return Ok(None);
    };
    let exporter = LogExporter::builder().with_http().with_endpoint(address).build();
    let exporter = exporter.map_err(|source| TelemetryError::Exporter { source })?;
    let provider = SdkLoggerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource);
    Ok(Some(provider.build()))
}

fn meter_provider(
    settings: &TelemetrySettings,
    registry: &Registry,
    resource: Resource,
) -> Result<SdkMeterProvider, TelemetryError> {
    let reader = opentelemetry_prometheus::exporter()
        .with_registry(registry.clone())
        // Every metric's name says where it belongs; the label would only repeat it.
        .scope_info_enabled(false)
        .build()
        .map_err(|source| TelemetryError::Metrics { source })?;
    let mut provider = SdkMeterProvider::builder().with_reader(reader).with_resource(resource);
    if let Some(address) = settings.address(Signal::Metrics) {
        let exporter = MetricExporter::builder().with_http().with_endpoint(address).build();
        let exporter = exporter.map_err(|source| TelemetryError::Exporter { source })?;
        let reader = PeriodicReader::builder(exporter)
            .with_interval(settings.metrics_interval_ms.duration())
            .build();
        provider = provider.with_reader(reader);
    }
    Ok(provider.build())
}

/// Logs a panic as one line, in the same format and place as every other line.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panicked: {message}");
    }));
}

/// The body of `/metrics`: all metrics of the process in Prometheus' text format. Empty before [`init`].
pub fn metrics_text() -> String {
    let installed = INSTALLED.lock().clone();
    let Some(guard) = installed else {
        return String::new();
    };
    let families = guard.registry.gather();
    TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
        warn!(%error, "could not encode metrics as text");
        String::new()
    })
}

impl TelemetryGuard {
    /// Sends all unsent signals, concurrently. Bounded: a collector that is down, or does not answer, does not delay
    /// the process further.
    pub async fn flush(&self) {
        let (tracer, logger, meter) = (self.tracer.clone(), self.logger.clone(), self.meter.clone());
        // A failure is not logged here, since the line could not be sent.
        let flushes: [Box<dyn FnOnce() + Send>; 3] = [
            Box::new(move || drop(tracer.map(|tracer| tracer.force_flush()))),
            Box::new(move || drop(logger.map(|logger| logger.force_flush()))),
            Box::new(move || drop(meter.force_flush())),
        ];
        let flushed = flushes.map(|flush| {
            let (tx, rx) = tokio::sync::oneshot::channel::<()>();
            // The exporters block. They get a thread of their own: the executor's shutdown waits for its blocking
            // threads.
            std::thread::spawn(move || {
                flush();
                let _ = tx.send(());
            });
            rx
        });
        let _ = tokio::time::timeout(self.flush_timeout, futures::future::join_all(flushed)).await;
    }
}
