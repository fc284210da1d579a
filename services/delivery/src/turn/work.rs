//! A claimed turn: all data that its provider call and the record of its outcome need, so that nothing is read again in
//! between.

use std::{sync::Arc, time::Duration};

use contracts::{Root, TraceContext, outgoing::Origin};
use domain::{
    AgentId, MessageId, NotificationId, SessionId, SessionPhase, TurnContext, TurnId, TurnRef, TurnState,
    progress::Wake,
};
use storage::{Setting, session::turns_resume::Resumed};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use super::{messages::origin, resume::Due, started::Heard};
use crate::{
    SOURCE,
    breaker::Pass,
    providers::{CallInput, Continuation, Effects, Slot, Thread, ToolDefinition},
    store::{SessionName, TurnName, journal::Journal, replays::ReplayStart},
};

#[derive(Clone, Debug)]
pub struct Work {
    pub turn: TurnRef,
    /// The phase of the session and the state of the turn after the claim.
    pub phase: SessionPhase,
    pub state: TurnState,
    /// Counts the turns of its generation, from 1.
    pub number: i64,
    pub agent_id: AgentId,
    /// What it runs again, if it is a replay's.
    pub replay: Option<Arc<ReplayStart>>,
    /// The session that spawned its branch: it gets the reply.
    pub parent: Option<SessionId>,
    /// Somebody may be asked about a tool call of the turn: such a question ends with the turn. An agent may also call over HTTP, at
    /// any time, so this holds for every turn of an account with policies.
    pub may_ask: bool,
    /// The arguments of the call that has ended the turn.
    pub ended_with: Option<String>,
    /// As it was when the turn was claimed.
    pub agent_name: String,
    pub provider: String,
    /// The state of its provider's breaker under which the due call is sent.
    pub pass: Pass,
    /// The epoch of that breaker in which its last call was sent, if that call failed by its provider's fault.
    pub failed_epoch: Option<i64>,
    /// The provider's slot, until the call has ended. None where no call is made.
    pub slot: Option<Arc<Slot>>,
    pub effects: Effects,
    pub profile_version: String,
    pub due: Due,
    /// Absent when they are in front of the input.
    pub instructions: Option<Arc<str>>,
    pub input: CallInput,
    pub thread: WorkThread,
    pub tools: Arc<[ToolDefinition]>,
    pub journal: Journal,
    pub attempt: i32,
    pub failures: i32,
    /// Attempts at its notifications so far.
    pub attempts: i32,
    /// What woke the agent. None: an older version began the turn.
    pub wake: Option<Wake>,
    pub notification_ids: Vec<String>,
    /// Those that the agent gets with the due call: without an answer to that call, they go back to their places.
    pub injected: Vec<String>,
    pub hops: i32,
    /// The turn's context: the parent of all spans that the turn causes.
    pub trace: TraceContext,
    /// Since when the call's outcome is unknown.
    pub lost_at: Option<OffsetDateTime>,
    /// Whether `turn.started` is published.
    pub heard: Heard,
    /// Its agent is told that an earlier turn was interrupted.
    pub told_interrupted: bool,
    /// A stopped turn that its agent is told of.
    pub told_of: Option<TurnId>,
    /// Cancelled when the turn is to end: its call is dropped.
    pub stop: CancellationToken,
    /// Since when the session has had its place among the turns in flight, at least.
    pub placed_at: OffsetDateTime,
}

/// The provider's thread of a turn.
#[derive(Clone, Debug)]
pub struct WorkThread {
    /// None: a version of Signalbox that knows no threads began the turn.
    pub context: Option<TurnContext>,
    pub name: String,
    /// The answer from which the due call goes on.
    pub after: Option<String>,
    pub keeps: Thread,
    pub found_by: Continuation,
    /// The messages of the task's thread that the prompt shows, newest first, and the one that it is about.
    pub shown: Vec<MessageId>,
    /// What the texts in the prompt are of that go along when they have changed.
    pub texts: Vec<String>,
    /// When the turn before began in it ([`Told::moment`]). None: there was none.
    pub used_at: Option<i64>,
    /// The turn's manifest, packed, if the due call is sent with another past than the turn began with. Else empty.
    pub manifest: Vec<u8>,
}

impl WorkThread {
    /// Answers of the turn in this thread so far.
    pub fn rounds(&self, journal: &Journal) -> usize {
        let lost_after = self.context.as_ref().and_then(|context| context.lost_after);
        let before = lost_after.map_or(0, |rounds| usize::try_from(rounds).unwrap_or(usize::MAX));
        journal.rounds.len().saturating_sub(before)
    }

    /// Whether the turn is its first, and later turns may go on in it.
    pub fn opens(&self) -> bool {
        let context = self.context.as_ref();
        context.is_some_and(|context| context.is_new() && context.used == domain::ContextMode::Continue)
    }
}

impl Work {
    /// The same turn as a replay's, whose beginning no listener is told. Without its record, nothing would answer its calls: it ends.
    pub(super) fn replaying(self, replay: Option<ReplayStart>) -> Work {
        Work {
            heard: Heard::new(true),
            due: match replay {
                Some(_) => self.due,
                None => Due::Abort,
            },
            replay: replay.map(Arc::new),
            ..self
        }
    }

    pub fn name(&self) -> SessionName {
        (self.turn.account.clone(), self.turn.session)
    }

    /// The session that gets its reply.
    pub fn parent_name(&self) -> Option<SessionName> {
        Some((self.turn.account.clone(), self.parent?))
    }

    pub fn turn_name(&self) -> TurnName {
        (self.turn.account.clone(), self.turn.id)
    }

    /// The row change for claiming a turn in progress.
    pub(super) fn resumed(&self) -> Resumed {
        Resumed {
            session: self.name(),
            turn: self.turn.id,
            phase: self.phase,
            state: self.state,
            manifest: self.thread.manifest.clone(),
        }
    }

    /// The turn's last call failed by its provider's fault, and the provider has served others since: a further failure is about this
    /// turn, and counts as an attempt at it. So a text that a provider refuses does not stop the calls of others again and again.
    pub fn fails_alone(&self) -> bool {
        !self.pass.probes && self.failed_epoch.is_some_and(|failed| failed < self.pass.epoch)
    }

    /// The notifications' ids, as events carry them.
    pub fn notifications(&self) -> Vec<NotificationId> {
        let ids = self.notification_ids.iter();
        ids.filter_map(|id| NotificationId::parse(id).ok()).collect()
    }

    /// How long the call's outcome has been unknown.
    pub fn lost_for(&self, now: OffsetDateTime) -> Duration {
        self.lost_at
            .map_or(Duration::ZERO, |at| (now - at).try_into().unwrap_or(Duration::ZERO))
    }

    /// The origin of every message that this turn causes.
    pub fn origin(&self) -> Origin {
        origin(self.turn.id, self.hops, self.trace.clone())
    }

    pub(super) fn setting<'a>(&self, root: &'a Root, now: OffsetDateTime) -> Setting<'a> {
        Setting {
            root,
            source: SOURCE,
            origin: self.origin(),
            now,
        }
    }
}
