//! A whole Signalbox in containers, for the integration tests of other projects: Postgres, NATS with a user for each service, the
//! migration, the four services with restricted logins, and the scripted demo agent. It runs the deployed image with the settings
//! of `docker-compose.yml`.
//!
//! ```no_run
//! # async fn example() -> Result<(), signalbox_testcontainers::Error> {
//! use serde_json::json;
//! use signalbox_testcontainers::Signalbox;
//!
//! let signalbox = Signalbox::start().await?;
//! let client = signalbox.client();
//! client.account("acme").await?;
//! client.agent("acme", "coder").await?;
//! client.notify("acme", &json!({"id": "ci-1", "task": "T-1", "agent": "coder", "body": "Tests fail"})).await?;
//! let delivered = client.until("acme", "ci-1", "delivered").await?;
//! assert_eq!(delivered["session_key"].as_str().unwrap().split(':').next(), Some("task"));
//! # Ok(())
//! # }
//! ```
//!
//! It needs a Docker engine and the images of `make images`. Everything is removed when the value is dropped; a test that is
//! killed with SIGKILL leaves its containers, which carry the label `org.testcontainers.managed-by=testcontainers`.
//!
//! Deliberately absent: any crate of the workspace. Users compile only a Docker client and an HTTP client.

mod client;
mod error;
mod requests;
mod secrets;
mod service;
mod system;

pub use client::Client;
pub use error::Error;
pub use service::Service;
pub use system::{Builder, Signalbox};
