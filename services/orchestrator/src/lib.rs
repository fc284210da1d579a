//! The HTTP API: accounts, agents, tasks, threads, notifications, sessions, turns, dead letters.
//!
//! In reading order: [`settings`] (limits), [`app`] (the state of every route), [`route`] (how a route is declared), [`auth`]
//! (authentication and authorization), [`body`], [`idempotency`] and [`paging`] (shared by all routes), [`again`] (retries
//! rolled-back requests), then each noun, whose wire types are in the crate `api`: a file, or a folder with its rule in `mod.rs`,
//! its queries in `store.rs` and its routes in `http.rs`: [`accounts`], [`keys`], [`event_consumers`], [`members`],
//! [`me`], [`memories`], [`sign_in`] with [`oidc`], [`agents`], [`tasks`], [`stages`], [`contexts`],
//! [`messages`], [`artifacts`], [`activities`], [`notifications`], [`routing`], [`sessions`], [`branches`], [`queue`], [`questions`], [`holds`],
//! [`providers`], [`models`], [`timers`], [`recovery`], [`policies`], [`turns`], [`replays`], [`log`], [`diff`], [`audit`], [`dead_letters`].
//! [`outbound`] sends e-mail, [`handlers`] consumes messages, [`nats`] answers who connects to NATS with an API key, [`openapi`] is the document,
//! [`service`] the wiring.

pub mod accounts;
pub mod activities;
pub mod again;
pub mod agents;
pub mod app;
pub mod artifacts;
pub mod audit;
pub mod auth;
pub mod board;
pub mod body;
pub mod branches;
pub mod contexts;
pub mod dead_letters;
pub mod diff;
pub mod directory;
pub mod dry_run;
pub mod email;
pub mod error;
pub mod event_consumers;
pub mod forget;
#[cfg(test)]
mod fuzz;
pub mod handlers;
pub mod holds;
pub mod idempotency;
pub mod identities;
pub mod inbox;
pub mod keys;
pub mod log;
pub mod mail;
pub mod me;
pub mod members;
pub mod memories;
pub mod messages;
pub mod metrics;
pub mod models;
pub mod nats;
pub mod new_session;
pub mod notifications;
pub mod objects;
pub mod oidc;
pub mod openapi;
pub mod orchestrators;
pub mod outbound;
pub mod paging;
pub mod permission;
pub mod personas;
pub mod policies;
pub mod preferences;
pub mod providers;
pub mod questions;
pub mod queue;
pub mod recovery;
pub mod replays;
pub mod route;
pub mod routes;
pub mod routing;
pub mod service;
pub mod sessions;
pub mod settings;
pub mod sign_in;
pub mod stages;
pub mod tasks;
pub mod timers;
pub mod turns;

pub use app::App;
pub use openapi::openapi;
pub use routes::{router, routes, served};
pub use service::start;
pub use settings::OrchestratorSettings;

/// Every noun of the API, in the order of its document.
pub fn nouns() -> Vec<route::Noun> {
    vec![
        accounts::http::noun(),
        keys::http::noun(),
        members::http::noun(),
        me::http::noun(),
        sign_in::http::noun(),
        personas::http::noun(),
        orchestrators::http::noun(),
        event_consumers::http::noun(),
        agents::http::noun(),
        tasks::http::noun(),
        board::noun(),
        stages::noun(),
        contexts::noun(),
        messages::http::noun(),
        artifacts::http::noun(),
        activities::noun(),
        notifications::http::noun(),
        routing::http::noun(),
        sessions::http::noun(),
        directory::noun(),
        mail::http::noun(),
        preferences::noun(),
        inbox::http::noun(),
        memories::noun(),
        new_session::noun(),
        sessions::prompt::noun(),
        branches::http::noun(),
        holds::http::noun(),
        policies::http::noun(),
        queue::http::noun(),
        recovery::http::noun(),
        timers::http::noun(),
        questions::http::noun(),
        providers::http::noun(),
        models::noun(),
        turns::http::noun(),
        replays::http::noun(),
        log::http::noun(),
        diff::http::noun(),
        audit::http::noun(),
        dead_letters::http::noun(),
    ]
}

/// `ce-source` of what this service publishes.
pub const SOURCE: &str = "/signalbox/orchestrator";
