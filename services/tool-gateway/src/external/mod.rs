//! External calls: a tool asks somebody outside of Signalbox. It cannot share a transaction with its effect, so it has three steps
//! (ADR 74):
//!
//! ```text
//! start   the checks of any call, then the record as `running`, with its runner; the request is acknowledged after the commit
//! run     a worker of its own, no transaction open: the call, within its time
//! finish  the result, what was brought along, and the message of it, where the record is still this runner's
//! ```
//! The record is the state. A runner is a replica of this service; when it is gone, a sweep finds its calls: what may be asked
//! again is asked again, of the rest nobody knows whether it was done, and the agent is told so after a grace. A process that lost
//! its registration and has another one keeps its calls. A repeated request finds the record, and asks nobody.
//!
//! [`outcome`] is the rule of what is asked again, [`run`] the worker, [`sweep`] what runners left.

pub(crate) mod outcome;
pub(crate) mod run;
pub(crate) mod sweep;

use std::{collections::HashSet, sync::Arc};

use domain::{AccountId, Bytes};
use parking_lot::Mutex;
use runtime::{
    Context, EndsWith, Peers, Replica, StartError,
    http::{Held, Shared},
};
use uuid::Uuid;

use crate::{
    call::ToolAnswer,
    metrics::Metrics,
    models::{Answer, ModelCalls},
    settings::ToolGatewaySettings,
    tools::Toolbox,
};

/// What running external calls needs. One a process.
pub(crate) struct External {
    pub models: ModelCalls,
    toolbox: Arc<Toolbox>,
    metrics: Arc<Metrics>,
    artifact_account_bytes_max: Bytes,
    /// Branches may have branches down to this depth.
    branch_depth_max: i32,
    /// Calls in progress.
    calls: Arc<Shared<AccountId>>,
    /// Those of this process, by their records.
    own: Arc<Mutex<HashSet<Uuid>>>,
    /// The names under which this process runs or ran calls. There is one more after each loss of the registration.
    names: Mutex<HashSet<Uuid>>,
    context: Context,
    /// None without models.
    replica: Option<Replica>,
}

/// The right to run one call: a place among those of its account, and the runner's name. Given back when it is dropped.
pub(crate) struct Place {
    pub runner: Uuid,
    call: Uuid,
    own: Arc<Mutex<HashSet<Uuid>>>,
    _held: Held<AccountId>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.own.lock().remove(&self.call);
    }
}

/// The end of a call.
pub(crate) type Answered = Result<Answer, ToolAnswer>;

impl External {
    /// Registers the process as a runner, if there are models.
    pub(crate) async fn start(
        context: &Context,
        config: &ToolGatewaySettings,
        models: ModelCalls,
        (toolbox, metrics): (Arc<Toolbox>, Arc<Metrics>),
    ) -> Result<External, StartError> {
        let replica = match models.settings.iter().next() {
            Some(_) => Some(context.start_replica(EndsWith::Lease).await?),
            None => None,
        };
        Ok(External {
            models,
            toolbox,
            metrics,
            artifact_account_bytes_max: config.artifact_account_bytes_max,
            branch_depth_max: config.branch_depth_max.i32(),
            calls: Shared::new(
                config.external_calls_max.usize(),
                config.external_calls_account_max.usize(),
                |_| (),
            ),
            own: Arc::default(),
            names: Mutex::default(),
            context: context.clone(),
            replica,
        })
    }

    /// Whether this process runs no calls for now, since its registration has expired. Without models it has none and needs none.
    pub(crate) fn is_unregistered(&self) -> bool {
        self.replica.is_some() && self.runner().is_none()
    }

    /// The other runners. None without models: nothing runs, and what ran before is left to whoever has them.
    pub(crate) fn others(&self) -> Option<Peers> {
        self.replica.as_ref().map(Replica::others)
    }

    /// The name of this process as a runner, while it holds.
    pub(super) fn runner(&self) -> Option<Uuid> {
        let id = self.replica.as_ref()?.current()?.id;
        // Before a record has the name: who reads the name there finds it here.
        self.names.lock().insert(id);
        Some(id)
    }

    /// Whether this process has, or had, the name.
    pub(super) fn is_own(&self, runner: Uuid) -> bool {
        self.names.lock().contains(&runner)
    }

    pub(super) fn names(&self) -> Vec<Uuid> {
        self.names.lock().iter().copied().collect()
    }

    /// Takes a place for a call; none: the account has as many calls in progress as it may, or this process is no runner.
    pub(crate) fn place(&self, account: &AccountId, call: Uuid) -> Option<Place> {
        let runner = self.runner()?;
        let held = self.calls.take(account, 1)?;
        self.own.lock().insert(call).then(|| Place {
            runner,
            call,
            own: Arc::clone(&self.own),
            _held: held,
        })
    }

    /// Whether a worker of this process has the call.
    pub(super) fn has(&self, call: Uuid) -> bool {
        self.own.lock().contains(&call)
    }
}
