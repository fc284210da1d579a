//! The tool-gateway: requests in transactions of one or several, then each result, then each acknowledgement.

use contracts::{
    TraceContext,
    tool::{ToolApproved, ToolFinished, ToolRequested},
};
use domain::{StopKind, StopThen};
use tool_gateway::decisions::{CallRequest, Origin, asked, order_delay};

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

/// A request in progress, or the hint that somebody has decided about one.
#[derive(Debug)]
pub(crate) struct Calling {
    token: u64,
    deliveries: u32,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Read(ToolRequested),
    Decided(ToolApproved),
    Publishing(ToolFinished),
    Acknowledging,
}

impl World {
    pub(super) fn call_begins(&mut self, p: usize, queued: Queued) {
        let stage = match queued.message {
            Message::ToolRequested(request) => Stage::Read(request),
            Message::ToolApproved(approved) => Stage::Decided(approved),
            other => unreachable!("the tool-gateway does not read {}", other.id()),
        };
        self.processes[p].callings.push(Calling {
            token: queued.token,
            deliveries: queued.deliveries,
            stage,
        });
    }

    pub(super) fn call(&mut self, p: usize, n: usize) {
        let calling = self.processes[p].callings.remove(n);
        match &calling.stage {
            Stage::Read(_) => self.execute_all(p, calling),
            Stage::Decided(approved) => {
                let fate = self.fate(p);
                if fate == Fate::Failed {
                    self.postpone(calling.token, POSTPONED);
                    return;
                }
                match self.database.decided(&approved.account, approved.call, self.bug) {
                    (Some(asked), executed) => self.executed(p, calling, (&asked, executed), fate),
                    (None, _) => self.acknowledge(calling.token),
                }
            }
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
        let shared = |calling: &Calling| match &calling.stage {
            Stage::Read(request) => Some(request.turn_id).filter(|_| !runs_alone(&request.name)),
            Stage::Decided(_) | Stage::Publishing(_) | Stage::Acknowledging => None,
        };
        if shared(&batch[0]).is_some() {
            let callings = &mut self.processes[p].callings;
            while batch.len() < BATCH_MAX
                && let Some(n) = callings.iter().position(|calling| {
                    let turn = shared(calling);
                    turn.is_some() && batch.iter().all(|other| shared(other) != turn)
                })
                && self.random.chance(500)
            {
                batch.push(callings.remove(n));
            }
        }
        let fate = self.fate(p);
        let half = fate == Fate::Failed && self.bug == Some(Bug::BatchHalfCommitted) && batch.len() > 1;
        for (n, calling) in batch.into_iter().enumerate() {
            let (token, deliveries) = (calling.token, calling.deliveries);
            let Stage::Read(request) = &calling.stage else { continue };
            let request = request.clone();
            if fate != Fate::Failed || half && n == 0 {
                let executed = self.database.execute(&request, deliveries, self.bug);
                self.executed(p, calling, (&asked(&request, TraceContext::default()), executed), fate);
            } else {
                self.postpone(token, POSTPONED);
            }
            if half && n == 0 {
                self.database.forget_call(&request);
            }
        }
    }

    fn executed(&mut self, p: usize, calling: Calling, (asked, executed): (&CallRequest, Executed), fate: Fate) {
        let Origin::Turn(claims) = &asked.origin else {
            unreachable!("a call here is of a turn");
        };
        self.note("executed", [p as u64, asked.ordinal.unsigned_abs().into()], || {
            format!(
                "process {p}: {} {} of turn {}: {executed:?}; {fate:?}",
                asked.name, asked.ordinal, claims.turn
            )
        });
        if let Executed::Over {
            effect: Some(effect), ..
        } = &executed
        {
            self.counts.approved += u64::from(effect.needs_approval);
            self.witness.acted(effect);
            self.witness.own_items(&self.database, &effect.items);
            self.counts.spawned += effect.items.len() as u64;
            self.branches_ended(&effect.ended);
            self.counts.pulled += effect.pulled.len() as u64;
            self.counts.children += u64::from(asked.name == "create_session");
            self.witness.acted_for_people(&self.database, effect);
            for turn in &effect.cut {
                let asked_for = (StopKind::Cancelled, CANCELLED_BY, StopThen::Continue);
                self.witness
                    .stop_asked(&self.database, &asked.account, *turn, asked_for);
            }
        }
        if fate != Fate::Committed {
            self.postpone(calling.token, POSTPONED);
            return;
        }
        let stage = match executed {
            Executed::Over { state, outbox, .. } => {
                self.processes[p].relay.extend(outbox);
                Stage::Publishing(ToolFinished {
                    account: asked.account.clone(),
                    task: claims.task.clone(),
                    session_id: asked.session,
                    generation: claims.generation,
                    fence: claims.fence,
                    turn_id: claims.turn,
                    call_id: asked.call_id.clone(),
                    ordinal: asked.ordinal,
                    name: asked.name.clone(),
                    state,
                    result: None,
                })
            }
            Executed::OutOfTurn => {
                let delay = order_delay(calling.deliveries);
                self.postpone(calling.token, Millis::try_from(delay.as_millis()).expect("short"));
                return;
            }
            // A dead letter, which ends the request; or the answer will run the call.
            Executed::Unowned | Executed::Asked => Stage::Acknowledging,
        };
        self.processes[p].callings.push(Calling { stage, ..calling });
    }

    pub(super) fn postpone(&mut self, token: u64, delay: Millis) {
        let until = self.database.now + delay;
        self.broker.put_back(token, until);
    }
}
