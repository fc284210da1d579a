//! What tests of every crate stand on: a fresh database from a migrated template ([`database`]), accounts, agents and
//! tasks in it ([`fixture`]), rows of any kind and number ([`rows`]), an account with one of everything ([`tenant`]), how statements find their rows ([`plans`]), a provider that does what a script says and
//! logs what it saw ([`provider`]), like one of the servers that there are if asked to ([`server`]), a network that fails as it is told to ([`proxy`]), inputs that no one would think
//! of ([`fuzz`]), texts that want to be taken for something else ([`hostile`]), calls of every tool ([`tools`]), and waiting for a condition with a limit ([`wait`]). [`envelope`] is the key that its services sign
//! with. A [`world`] has all of it and runs services.
//! Dev-dependency only.

pub mod database;
pub mod envelope;
pub mod fixture;
pub mod fuzz;
pub mod hostile;
pub mod plans;
pub mod provider;
pub mod proxy;
pub mod rows;
pub mod server;
pub mod tenant;
pub mod tools;
pub mod wait;
pub mod world;

pub use database::TestDatabase;
pub use envelope::{ENVELOPE, keyring};
pub use fixture::{Fixture, twin_sql};
pub use provider::{Reply, Seen, StubProvider, outputs, repeating_codes};
pub use proxy::{Counts, NetworkFault, Proxy, Way};
pub use rows::{Rows, enqueued, rows};
pub use server::Server;
pub use tenant::Tenant;
pub use wait::eventually;
pub use world::{OPERATOR_TOKEN, Running, World, nats_users};

/// Every process of ours installs its TLS provider first; a test may be the first to make an HTTP client.
pub fn install_tls_provider() {
    // An error means that another test of this process was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
