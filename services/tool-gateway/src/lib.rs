//! Runs the tools that agents call, once.
//!
//! A call comes from delivery (`tool.requested`, [`handlers`]) or from an agent itself (`/agent/*`, [`http`]). Either
//! way it becomes a [`call`] and goes to [`execute`]: record, checks, effect and result in one transaction. [`capability`]
//! says what it may do, [`refusal`] why not, [`arguments`] what a tool was asked, [`tools`] what each of them does. Everything is looked up
//! in Postgres at every call ([`store`]), so that any replica serves any session, right after any restart.
//!
//! What tools there are, and what models read about them, is in `contracts::tools`.

mod handlers;
mod http;

mod arguments;
mod call;
mod capability;
mod execute;
mod refusal;
mod tools;

mod error;
#[cfg(test)]
mod fuzz;
mod metrics;
mod service;
mod settings;
mod store;

/// As in `ce-source`.
const SOURCE: &str = "/signalbox/tool-gateway";

/// What this service decides, without its database: for the simulation, which runs the same decisions against a model.
pub mod decisions {
    pub use crate::{
        call::{CallRequest, Claims, Closed, Facts, Origin, Record, RecordedCall, ToolAnswer, Turn},
        capability::{Capability, Presented},
        handlers::{asked, order_delay},
        refusal::{Consequence, Refusal},
    };
}

pub use http::openapi;
pub use service::start;
pub use settings::ToolGatewaySettings;
