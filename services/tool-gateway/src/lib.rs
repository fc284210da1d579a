//! Runs each tool call of the agents once.
//!
//! A call comes from delivery (`tool.requested`, [`handlers`]) or from an agent itself (`/agent/*`, [`http`]). Both
//! become a [`call`] for [`execute`]: record, checks, effect and result in one transaction. [`capability`] decides what
//! the call may do, [`refusal`] names the reasons against it, [`arguments`] parses its arguments, [`tools`] has the
//! handlers. What a tool asks of somebody outside is an [`external`] call; [`models`] are those who are asked. Every call reads its state from Postgres ([`store`]), so that any replica serves any session, right after
//! any restart.
//!
//! The definitions of the tools, and their texts for models, are in `contracts::tools`.

mod handlers;
mod http;

mod arguments;
mod call;
mod capability;
mod execute;
mod external;
mod models;
mod refusal;
mod tools;

#[cfg(test)]
mod fuzz;
mod metrics;
mod service;
mod settings;
mod store;

/// The `ce-source` of what this service publishes.
const SOURCE: &str = "/signalbox/tool-gateway";

/// The decisions of this service without its database, for the simulation, which runs them against a model.
pub mod decisions {
    pub use crate::{
        call::{CallBranch, CallFacts, CallRequest, CallTurn, Claims, Origin, Record, RecordedCall, ToolAnswer},
        capability::{Capability, Presented},
        handlers::{asked, order_delay},
        refusal::{Consequence, Refusal},
    };
}

/// The statements for many calls, for the test of their plans.
pub mod statements {
    pub use crate::store::{
        ACTIVITIES_NEWEST, AGENTS_SHARE, ARTIFACTS_FIND, ASSIGNEES, BASE_ACTIVITIES, BASE_MESSAGES, BASES_FIND,
        BOARD_LIST, BRANCH_OF_SESSION, BRANCHES_OF_SESSION, CALL_RUNNING, CALL_TAKE, CALLS_INSERT, CHILD_FIND,
        CHILD_QUEUE, CHILD_TURNS, CHILDREN_LIST, CHILDREN_ROOM, CONTEXT_OF_BRANCH, EXECUTES, FACTS, GUESTS_LIST,
        ITEM_SENDER, LATER, MAIL_READ, MEMBER_BY_ADDRESS, MESSAGES_NEWEST, PERSONA_FOR, PERSONAS_FOR,
        SESSIONS_LOCK_FREE, SESSIONS_OF_QUESTION, TASK_OF_CALL, TASKS_FIND, TURN_SURROUNDINGS, UNREAD, WORKER_TASKS,
    };
}

pub use http::openapi;
pub use service::start;
pub use settings::ToolGatewaySettings;
