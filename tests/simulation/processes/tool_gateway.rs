//! The tool-gateway: one request after the other, each in one transaction, then its result, then the acknowledgement.

use contracts::tool::{ToolFinished, ToolRequested};
use tool_gateway::decisions::order_delay;

use crate::simulation::{
    broker::Queued,
    database::{Millis, calls::Executed, outbox::Message},
    world::{Fate, World},
};

/// As `postpone_delay_ms`.
const POSTPONED: Millis = 500;

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
        let stage = match calling.stage {
            Stage::Read => self.execute(p, &calling),
            Stage::Publishing(finished) => {
                if self.publish(Message::ToolFinished(finished)) {
                    Some(Stage::Acknowledging)
                } else {
                    self.postpone(calling.token, POSTPONED);
                    None
                }
            }
            Stage::Acknowledging => {
                self.acknowledge(calling.token);
                None
            }
        };
        if let Some(stage) = stage {
            self.processes[p].callings.push(Calling { stage, ..calling });
        }
    }

    fn execute(&mut self, p: usize, calling: &Calling) -> Option<Stage> {
        let fate = self.fate(p);
        if fate == Fate::Failed {
            self.postpone(calling.token, POSTPONED);
            return None;
        }
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
        }
        if fate == Fate::Unanswered {
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
