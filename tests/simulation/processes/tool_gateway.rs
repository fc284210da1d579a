//! The tool-gateway: requests in transactions of one or several, then each result, then each acknowledgement.

use contracts::tool::{ToolFinished, ToolRequested};
use domain::{StopKind, StopThen};
use tool_gateway::decisions::order_delay;

use crate::simulation::{
    broker::Queued,
    bugs::Bug,
    database::{
        Millis,
        calls::{Executed, runs_alone},
        lifecycle::CANCELLED_BY,
        outbox::Message,
    },
    world::{Fate, World},
};

/// As `postpone_delay_ms`.
const POSTPONED: Millis = 500;
const BATCH_MAX: usize = 4;

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Calling {
    token: u64,
    deliveries: u32,
    request: ToolRequested,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Read,
    Publishing(ToolFinished),
    Acknowledging,
}

impl World {
    pub(super) fn call_begins(&mut self, p: usize, queued: Queued) {
        let Message::ToolRequested(request) = queued.message else {
            unreachable!("the tool-gateway reads requests");
        };
        self.processes[p].callings.push(Calling {
            token: queued.token,
            deliveries: queued.deliveries,
            request,
            stage: Stage::Read,
        });
    }

    pub(super) fn call(&mut self, p: usize, n: usize) {
        let calling = self.processes[p].callings.remove(n);
        match &calling.stage {
            Stage::Read => self.execute_all(p, calling),
            Stage::Publishing(finished) => {
                if self.publish(Message::ToolFinished(finished.clone())) {
                    let stage = Stage::Acknowledging;
                    self.processes[p].callings.push(Calling { stage, ..calling });
                } else {
                    self.postpone(calling.token, POSTPONED);
                }
            }
            Stage::Acknowledging => self.acknowledge(calling.token),
        }
    }

    /// One transaction, which the call may share with calls of other turns.
    fn execute_all(&mut self, p: usize, first: Calling) {
        let mut batch = vec![first];
        let may_share = |calling: &Calling| matches!(calling.stage, Stage::Read) && !runs_alone(&calling.request.name);
        if may_share(&batch[0]) {
            let callings = &mut self.processes[p].callings;
            while batch.len() < BATCH_MAX
                && let Some(n) = callings.iter().position(|calling| {
                    let turn = calling.request.turn_id;
                    may_share(calling) && batch.iter().all(|other| other.request.turn_id != turn)
                })
                && self.random.chance(500)
            {
                batch.push(callings.remove(n));
            }
        }
        let fate = self.fate(p);
        if fate == Fate::Failed {
            if self.bug == Some(Bug::BatchHalfCommitted) && batch.len() > 1 {
                self.execute(p, &batch[0], fate);
                self.database.forget_call(&batch[0].request);
            }
            for calling in batch {
                self.postpone(calling.token, POSTPONED);
            }
            return;
        }
        for calling in batch {
            if let Some(stage) = self.execute(p, &calling, fate) {
                self.processes[p].callings.push(Calling { stage, ..calling });
            }
        }
    }

    fn execute(&mut self, p: usize, calling: &Calling, fate: Fate) -> Option<Stage> {
        let request = &calling.request;
        let executed = self.database.execute(request, calling.deliveries, self.bug);
        self.note("executed", [p as u64, request.ordinal.unsigned_abs().into()], || {
            format!(
                "process {p}: {} {} of turn {}: {executed:?}; {fate:?}",
                request.name, request.ordinal, request.turn_id
            )
        });
        if let Executed::Over {
            effect: Some(effect), ..
        } = &executed
        {
            self.witness.acted(effect);
            for turn in &effect.cut {
                let asked = (StopKind::Cancelled, CANCELLED_BY, StopThen::Continue);
                self.witness.stop_asked(&self.database, &request.account, *turn, asked);
            }
        }
        if fate != Fate::Committed {
            self.postpone(calling.token, POSTPONED);
            return None;
        }
        match executed {
            Executed::Over { state, outbox, .. } => {
                self.processes[p].relay.extend(outbox);
                Some(Stage::Publishing(ToolFinished {
                    account: request.account.clone(),
                    task: request.task.clone(),
                    session_id: request.session_id,
                    generation: request.generation,
                    fence: request.fence,
                    turn_id: request.turn_id,
                    call_id: request.call_id.clone(),
                    ordinal: request.ordinal,
                    name: request.name.clone(),
                    state,
                    result: None,
                }))
            }
            Executed::OutOfTurn => {
                let delay = order_delay(calling.deliveries);
                self.postpone(calling.token, Millis::try_from(delay.as_millis()).expect("short"));
                None
            }
            // A dead letter, which ends the request.
            Executed::Unowned => Some(Stage::Acknowledging),
        }
    }

    pub(super) fn postpone(&mut self, token: u64, delay: Millis) {
        let until = self.database.now + delay;
        self.broker.put_back(token, until);
    }
}
