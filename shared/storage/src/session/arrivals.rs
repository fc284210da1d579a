//! What new items do to their sessions besides waiting: a steer asks the turn in progress to stop, and an item may open the
//! gate of a parked session, also if the gate would only close with the end of the turn. Reads nothing: the caller has the sessions' rows under their locks. Without such an item there
//! is no statement.

use contracts::{
    event::{Event, SessionGated},
    session::SessionStopRequested,
};
use domain::{Actor, ActorKind, Arrival, Conversation, Gate, QueueMode, StopKind, StopThen, TaskId};

use super::{
    SessionName,
    sessions_lock::ActiveSession,
    sessions_park::{sessions_look, sessions_unpark},
    turn_stop::{StopRequest, stops_continue, turn_stop},
};
use crate::{Setting, StorageError, Tx, outbox::Owned};

/// An item that was appended.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    pub conversation: &'a Conversation,
    /// As it was before the item.
    pub session: ActiveSession,
    pub mode: QueueMode,
    pub sender: &'a Actor,
    pub task: Option<&'a TaskId>,
}

/// What the items did.
#[derive(Debug, Default)]
pub struct Effects {
    pub stops: Vec<SessionStopRequested>,
    /// Sessions whose gate was opened, or is to be asked again: delivery must be woken.
    pub released: Vec<SessionName>,
}

impl Arrived<'_> {
    fn name(&self) -> SessionName {
        (self.conversation.account.clone(), self.session.id)
    }

    fn would_open(&self, gate: Gate) -> bool {
        gate.is_opened_by(Arrival {
            mode: self.mode,
            from_person: self.sender.kind == ActorKind::User,
            alone: self.session.queued == 0 && self.session.active_turn.is_none(),
        })
    }

    pub fn opens(&self) -> bool {
        self.session.gate.is_some_and(|gate| self.would_open(gate))
    }

    /// It goes first: what keeps the session may be about another item.
    pub fn goes_first(&self) -> bool {
        self.session.gate == Some(Gate::Pause) && self.mode == QueueMode::Steer
    }

    /// The gate is not closed yet: its turn is still to end.
    pub fn keeps_open(&self) -> bool {
        self.session.will_hold && self.would_open(Gate::Stopped)
    }

    /// Whether an item may do anything besides waiting.
    pub fn may_matter(mode: QueueMode, session: &ActiveSession) -> bool {
        mode == QueueMode::Steer || session.gate.is_some() || session.will_hold
    }

    pub fn stops(&self) -> bool {
        self.mode == QueueMode::Steer && self.session.active_turn.is_some()
    }

    /// The event of a gate that this item opened.
    pub fn released(&self, setting: &Setting<'_>) -> Option<Owned> {
        let (conversation, session) = (self.conversation, &self.session);
        let gate = session.gate.filter(|gate| gate.is_announced() && self.opens())?;
        let released = SessionGated {
            session_id: session.id,
            session_key: conversation.key(session.generation).to_string(),
            generation: session.generation,
            agent_id: Some(conversation.agent),
            gate,
            queued: session.queued.unsigned_abs() + 1,
        };
        let id = format!("{}:{}", session.id, session.queue_tail);
        Some(setting.event(&conversation.account, self.task, &id, Event::SessionReleased(released)))
    }
}

/// Applies the effects of items that were appended in this transaction, in their order.
pub async fn arrivals_apply(tx: &Tx, arrived: &[Arrived<'_>]) -> Result<Effects, StorageError> {
    let mut asked: Vec<StopRequest<'_>> = Vec::new();
    let names: Vec<String> = arrived.iter().map(|item| item.sender.called()).collect();
    for (at, item) in arrived.iter().enumerate().filter(|(_, item)| item.stops()) {
        let request = StopRequest {
            session: item.name(),
            turn: item.session.active_turn,
            kind: StopKind::Steered,
            by: &names[at],
            then: StopThen::Continue,
            task: item.task,
        };
        // The first steer of a task ends the turn; a later one of another task may be the one that it has.
        asked.push(request);
    }
    let mut released: Vec<SessionName> = arrived.iter().filter(|item| item.opens()).map(Arrived::name).collect();
    released.sort_unstable();
    released.dedup();
    sessions_unpark(tx, &released).await?;
    let mut first: Vec<SessionName> = arrived
        .iter()
        .filter(|item| item.goes_first())
        .map(Arrived::name)
        .collect();
    first.sort_unstable();
    first.dedup();
    sessions_look(tx, &first).await?;
    released.extend(first);
    let stops = turn_stop(tx, &asked).await?;
    let mut going_on: Vec<SessionName> = arrived
        .iter()
        .filter(|item| item.keeps_open())
        .map(Arrived::name)
        .collect();
    going_on.sort_unstable();
    going_on.dedup();
    stops_continue(tx, &going_on).await?;
    Ok(Effects { stops, released })
}
