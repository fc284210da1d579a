//! A turn in a replica's hands: everything that its provider call and the record of it need, so that nothing is read
//! again in between.

use std::{sync::Arc, time::Duration};

use contracts::{TraceContext, outgoing::Origin};
use domain::{AgentId, NotificationId, SessionPhase, TurnRef, TurnState};
use storage::session::turns_resume::Resumed;
use time::OffsetDateTime;

use super::resume::Due;
use crate::{
    providers::{CallInput, Effects, Slot, ToolDefinition},
    store::{SessionName, TurnName, journal::Journal},
};

#[derive(Clone, Debug)]
pub struct Work {
    pub turn: TurnRef,
    /// Of the session and of the turn, as the claim left them.
    pub phase: SessionPhase,
    pub state: TurnState,
    /// The first turn of its generation: where it ran is checked, if the provider can say.
    pub first: bool,
    pub number: i64,
    pub agent_id: AgentId,
    pub provider: String,
    /// Of the provider, until the call has ended. None where no call is made.
    pub slot: Option<Arc<Slot>>,
    pub effects: Effects,
    pub profile_version: String,
    pub due: Due,
    /// Absent when they stand in front of the input.
    pub instructions: Option<Arc<str>>,
    pub input: CallInput,
    pub tools: Arc<[ToolDefinition]>,
    pub journal: Journal,
    pub attempt: i32,
    pub failures: i32,
    /// Attempts that its notifications have behind them.
    pub attempts: i32,
    pub notification_ids: Vec<String>,
    pub hops: i32,
    /// Of the turn: the parent of everything that it causes.
    pub trace: TraceContext,
    /// Since when nobody knows what became of the call.
    pub lost_at: Option<OffsetDateTime>,
}

impl Work {
    pub fn name(&self) -> SessionName {
        (self.turn.account.clone(), self.turn.session)
    }

    pub fn turn_name(&self) -> TurnName {
        (self.turn.account.clone(), self.turn.id)
    }

    /// As the claim of a turn in progress is written.
    pub(super) fn resumed(&self) -> Resumed {
        Resumed {
            session: self.name(),
            turn: self.turn.id,
            phase: self.phase,
            state: self.state,
        }
    }

    /// Their ids, as events carry them.
    pub fn notifications(&self) -> Vec<NotificationId> {
        let ids = self.notification_ids.iter();
        ids.filter_map(|id| NotificationId::parse(id).ok()).collect()
    }

    /// How long nobody has known what became of the call.
    pub fn lost_for(&self, now: OffsetDateTime) -> Duration {
        self.lost_at
            .map_or(Duration::ZERO, |at| (now - at).try_into().unwrap_or(Duration::ZERO))
    }

    /// What stands on every message that this turn causes.
    pub fn origin(&self) -> Origin {
        Origin {
            cause: Some(self.turn.id.to_string()),
            hops: u16::try_from(self.hops).unwrap_or(u16::MAX),
            trace: self.trace.clone(),
        }
    }
}
