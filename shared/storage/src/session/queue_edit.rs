//! Edits the waiting items of a session on request of a person: other text, another mode, another order, or none at all. Who
//! may do what, and the order that follows, is in `domain::queue`, pure. Locks the session, then the item: a claim has taken
//! the item before, or finds it edited.

use contracts::{
    event::{Event, NotificationEnded, QueueChanged, SessionGated},
    session::{SessionResolved, SessionStopRequested},
};
use domain::{
    AccountId, Actor, Gate, NotificationId, NotificationState, QueueMode, QueueOp, SessionEvent, SessionPhase,
    StopKind, StopThen, TaskId, TurnId,
    queue::{Editable, Editor, Move, NotEditable, Placed, ordered, permitted, promoted, steered},
};
use sea_orm::FromQueryResult;
use serde_json::json;

use super::{
    SessionName,
    item_content::ItemContent,
    replay_begin::replays_end,
    sessions_lock::{LockedSession, SESSIONS_LOCK, queue_revision, sessions_lock},
    sessions_park::{sessions_look, sessions_unpark},
    turn_stop::{StopRequest, stops_continue, turn_stop},
};
use crate::{Setting, StorageError, Tx, activity::activity_insert, outbox::Owned, statement::column};

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub enum Edit<'a> {
    /// Absent fields stay. `revision`: the item's, as the editor knows it.
    Replace {
        revision: i32,
        title: Option<&'a str>,
        body: Option<&'a str>,
        mode: Option<QueueMode>,
    },
    Withdraw {
        revision: Option<i32>,
    },
    /// `revision`: the queue's, as the editor knows it.
    Promote {
        revision: &'a str,
    },
    Order {
        revision: &'a str,
        items: &'a [NotificationId],
    },
    /// `turn`: only if this turn is in progress.
    Steer {
        turn: Option<TurnId>,
    },
    Inject {
        turn: Option<TurnId>,
    },
}

impl Edit<'_> {
    pub fn op(&self) -> QueueOp {
        match self {
            Edit::Replace { .. } => QueueOp::Replace,
            Edit::Withdraw { .. } => QueueOp::Withdraw,
            Edit::Promote { .. } => QueueOp::Promote,
            Edit::Order { .. } => QueueOp::Order,
            Edit::Steer { .. } => QueueOp::Steer,
            Edit::Inject { .. } => QueueOp::Inject,
        }
    }
}

/// Why nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There is no such session or item, or the item is another session's.
    Unknown,
    NotAuthor {
        author: Actor,
    },
    Immutable {
        kind: String,
    },
    Started {
        turn: Option<TurnId>,
    },
    Ended {
        state: NotificationState,
        reason: Option<String>,
    },
    /// With the revision of now.
    ItemChanged(i32),
    QueueChanged(String),
    /// With the turn in progress.
    StaleTurn(Option<TurnId>),
    NoTurn {
        stopping: Option<TurnId>,
    },
}

#[derive(Clone, Debug, FromQueryResult)]
struct Item {
    #[sea_orm(nested)]
    content: ItemContent,
    state: NotificationState,
    turn_id: Option<TurnId>,
    position: Option<i64>,
    joins: bool,
    reason: Option<String>,
    revision: i32,
}

/// Relies on the primary keys.
pub const ITEM_LOCK: &str = "
    select n.id, k.display_id as task, n.agent_id, n.kind, n.title, n.body, n.message_id, n.sender_kind, n.sender_id, n.sender_name,
           n.sender_via, n.queue_mode, n.metadata, n.state, n.turn_id, n.position, n.joins, n.reason, n.revision,
           (select case when o.kind in ('orchestrator', 'guest') then o.key end from session o
            where o.account_id = n.account_id and o.id = n.session_id offset 0) as orchestrator
    from notification n left join task k on k.account_id = any (array[n.account_id]) and k.id = n.task_id
    where n.account_id = $1 and n.id = $2 and n.session_id = $3
    for no key update of n";

#[derive(FromQueryResult)]
struct PlacedRow {
    id: NotificationId,
    position: i64,
    queue_mode: QueueMode,
}

/// As many as a queue may have (`resolver.queue_items_max`), without texts. Relies on index notification_queue.
pub const QUEUE_PLACES: &str = "
    select n.id, n.position, n.queue_mode from notification n
    where n.account_id = $1 and n.session_id = $2 and n.state = 'queued' and n.position <= $3
    order by n.position";

/// Relies on the primary key.
pub const ITEMS_MOVE: &str = "
    update notification n set position = m.position
    from (select $1::text as account_id, m.* from unnest($2::text[], $3::bigint[]) as m (id, position) offset 0) m
    where n.account_id = any (array[m.account_id]) and n.id = m.id";

/// The publisher's hash stays, so that its repetition is one. Relies on the primary key.
pub const ITEM_REWRITE: &str = "
    update notification n set title = nullif($3, ''), body = $4, queue_mode = $5, joins = $6, metadata = $7, position = $8,
        edited_hash = $9, revision = n.revision + 1
    where n.account_id = $1 and n.id = $2";

/// Relies on the primary key.
pub const ITEM_WITHDRAW: &str = "
    update notification n set state = 'cancelled', reason = $3 where n.account_id = $1 and n.id = $2";

/// With the phase of a queue that is empty now, if it is. Relies on the primary keys.
pub const QUEUE_EDITED: &str = "
    update session s set queue_edits = s.queue_edits + 1, queued = s.queued - $3, phase = coalesce($4, s.phase),
        wake_at = case when $4 is null then s.wake_at end, gate = case when $4 is null then s.gate end,
        gate_ref = case when $4 is null then s.gate_ref end, gated_since = case when $4 is null then s.gated_since end, gate_looks = case when $4 is null then s.gate_looks else 0 end
    where s.account_id = $1 and s.id = $2
    returning s.queue_edits,
        (select k.display_id from task k where k.account_id = s.account_id and k.id = s.task_id) as task";

#[derive(FromQueryResult)]
struct EditedRow {
    queue_edits: i64,
    task: Option<TaskId>,
}

/// What an edit writes, and what follows.
#[derive(Default)]
struct Change {
    moves: Vec<Move>,
    rewritten: Option<Item>,
    withdrawn: bool,
    /// The item becomes a steer.
    steers: bool,
}

/// Edits an item, or the order (`item`: none). Returns messages for the outbox.
pub async fn queue_edit(
    tx: &Tx,
    (session, item): (&SessionName, Option<&NotificationId>),
    edit: Edit<'_>,
    editor: &Editor<'_>,
    setting: &Setting<'_>,
) -> Result<Result<Vec<Owned>, Refused>, StorageError> {
    let Some(session) = sessions_lock(tx, SESSIONS_LOCK, std::slice::from_ref(session))
        .await?
        .pop()
    else {
        return Ok(Err(Refused::Unknown));
    };
    let item = match item {
        None => None,
        Some(id) => match item_lock(tx, &session, id).await? {
            None => return Ok(Err(Refused::Unknown)),
            Some(item) => Some(item),
        },
    };
    if let Err(refused) = allowed(&session, item.as_ref(), &edit, editor) {
        return Ok(Err(refused));
    }
    let queue = match edit {
        Edit::Replace { mode, .. } if mode != Some(QueueMode::Steer) => Vec::new(),
        Edit::Withdraw { .. } | Edit::Inject { .. } => Vec::new(),
        Edit::Replace { .. } | Edit::Promote { .. } | Edit::Order { .. } | Edit::Steer { .. } => {
            queue_places(tx, &session, item.as_ref().and_then(|item| item.position)).await?
        }
    };
    let Some(change) = changed(&session, item.as_ref(), &edit, editor.actor, &queue) else {
        return Ok(Err(Refused::QueueChanged(session.revision())));
    };
    let editing = Editing {
        tx,
        session: &session,
        item: item.as_ref(),
        op: edit.op(),
        by: editor.actor,
        setting,
    };
    let ends = session.replay.is_some() && change.withdrawn;
    let mut messages = editing.write(change).await?;
    if ends {
        messages.extend(replays_end(tx, &session.account, vec![session.id], setting).await?);
    }
    Ok(Ok(messages))
}

async fn item_lock(tx: &Tx, session: &LockedSession, id: &NotificationId) -> Result<Option<Item>, StorageError> {
    let values = [(&session.account).into(), id.into(), session.id.into()];
    tx.one("lock item", ITEM_LOCK, values).await
}

/// The waiting items, up to a position.
async fn queue_places(tx: &Tx, session: &LockedSession, up_to: Option<i64>) -> Result<Vec<Placed>, StorageError> {
    let values = [
        (&session.account).into(),
        session.id.into(),
        up_to.unwrap_or(i64::MAX).into(),
    ];
    let rows: Vec<PlacedRow> = tx.rows("read the places of a queue", QUEUE_PLACES, values).await?;
    let placed = |row: PlacedRow| Placed {
        id: row.id,
        position: row.position,
        mode: row.queue_mode,
    };
    Ok(rows.into_iter().map(placed).collect())
}

/// Whether the edit may be made now. Pure.
fn allowed(session: &LockedSession, item: Option<&Item>, edit: &Edit<'_>, editor: &Editor<'_>) -> Result<(), Refused> {
    let of_item = match edit {
        Edit::Replace { revision, .. } => Some(*revision),
        Edit::Withdraw { revision } => *revision,
        Edit::Promote { .. } | Edit::Order { .. } | Edit::Steer { .. } | Edit::Inject { .. } => None,
    };
    // What a branch or a replay is to do is not its queue's to change. A replay ends with its item.
    let is_kept = session.branch.is_some() || session.replay.is_some() && edit.op() != QueueOp::Withdraw;
    if let Some(item) = item.filter(|_| is_kept) {
        let kind = item.content.kind.clone();
        return Err(Refused::Immutable { kind });
    }
    if let Some(item) = item {
        permitted(edit.op(), &item.editable(), editor, of_item).map_err(|refused| match refused {
            NotEditable::NotAuthor => Refused::NotAuthor {
                author: item.content.sender.clone(),
            },
            NotEditable::Immutable => Refused::Immutable {
                kind: item.content.kind.clone(),
            },
            NotEditable::Started => Refused::Started { turn: item.turn_id },
            NotEditable::Ended(state) => Refused::Ended {
                state,
                reason: item.reason.clone(),
            },
            NotEditable::Changed => Refused::ItemChanged(item.revision),
        })?;
    }
    match *edit {
        Edit::Promote { revision } | Edit::Order { revision, .. } if revision != session.revision() => {
            Err(Refused::QueueChanged(session.revision()))
        }
        Edit::Steer { turn: Some(turn) } | Edit::Inject { turn: Some(turn) } if session.active_turn != Some(turn) => {
            Err(Refused::StaleTurn(session.active_turn))
        }
        Edit::Inject { .. } if session.active_turn.is_none() || session.facts.stopping => Err(Refused::NoTurn {
            stopping: session.active_turn,
        }),
        Edit::Replace { .. }
        | Edit::Withdraw { .. }
        | Edit::Promote { .. }
        | Edit::Order { .. }
        | Edit::Steer { .. }
        | Edit::Inject { .. } => Ok(()),
    }
}

/// What the edit changes; none: an order of other items. Pure.
fn changed(
    session: &LockedSession,
    item: Option<&Item>,
    edit: &Edit<'_>,
    by: &Actor,
    queue: &[Placed],
) -> Option<Change> {
    let nothing = Change::default();
    let Some(item) = item else {
        return match edit {
            Edit::Order { items, .. } => ordered(queue, items).map(|moves| Change { moves, ..nothing }),
            _ => Some(nothing),
        };
    };
    Some(match *edit {
        Edit::Replace { title, body, mode, .. } => {
            let mut rewritten = item.clone();
            rewritten.content.title = title.map(str::to_owned).or(rewritten.content.title);
            rewritten.content.body = body.map(str::to_owned).unwrap_or(rewritten.content.body);
            match mode.filter(|mode| *mode != item.content.queue_mode) {
                Some(mode) => rewritten.get_mode(mode, session, queue),
                None => Change {
                    rewritten: Some(rewritten),
                    ..nothing
                },
            }
        }
        Edit::Withdraw { .. } => Change {
            withdrawn: true,
            ..nothing
        },
        Edit::Promote { .. } => Change {
            moves: promoted(queue, &item.content.id),
            ..nothing
        },
        Edit::Steer { .. } => item.clone().by(by).get_mode(QueueMode::Steer, session, queue),
        Edit::Inject { .. } => item.clone().by(by).get_mode(QueueMode::Inject, session, queue),
        Edit::Order { .. } => nothing,
    })
}

impl Item {
    fn editable(&self) -> Editable<'_> {
        Editable {
            state: self.state,
            kind: &self.content.kind,
            author: &self.content.sender,
            revision: self.revision,
        }
    }

    /// Notes who gave the item its mode, unless the notification would become too large.
    fn by(mut self, by: &Actor) -> Item {
        let before = self.content.metadata.clone();
        if let Some(metadata) = self.content.metadata.as_object_mut() {
            metadata.insert("by".to_owned(), by.name.as_str().into());
        }
        if self.content.hash().is_none() {
            self.content.metadata = before;
        }
        self
    }

    /// The item with this mode, in the place that the mode has.
    fn get_mode(mut self, mode: QueueMode, session: &LockedSession, queue: &[Placed]) -> Change {
        let before = self.content.queue_mode;
        let steers = mode == QueueMode::Steer;
        let mut moves = Vec::new();
        if steers {
            moves = steered(queue, &self.content.id);
        } else if before == QueueMode::Steer {
            self.position = self.position.map(|position| before.position_as(mode, position));
        }
        if let Some(own) = moves.iter().position(|(id, _)| *id == self.content.id) {
            self.position = Some(moves.swap_remove(own).1);
        }
        self.content.queue_mode = mode;
        self.joins = mode == QueueMode::Collect && (self.joins || session.facts.phase != SessionPhase::Idle);
        Change {
            moves,
            rewritten: Some(self),
            withdrawn: false,
            steers,
        }
    }
}

/// A permitted edit.
struct Editing<'a> {
    tx: &'a Tx,
    session: &'a LockedSession,
    item: Option<&'a Item>,
    op: QueueOp,
    by: &'a Actor,
    setting: &'a Setting<'a>,
}

impl Editing<'_> {
    fn account(&self) -> &AccountId {
        &self.session.account
    }

    async fn write(&self, change: Change) -> Result<Vec<Owned>, StorageError> {
        let (tx, session) = (self.tx, self.session);
        // A session without items rests, so that no sweep looks at it again; a turn in progress ends by itself.
        let is_empty = change.withdrawn && session.facts.queued <= 1 && session.active_turn.is_none();
        let rests = session
            .facts
            .state()
            .on(SessionEvent::Emptied)
            .ok()
            .filter(|_| is_empty);
        let op = if change.steers { QueueOp::Steer } else { self.op };
        let opened = session
            .gate
            .filter(|gate| gate.is_opened_by_edit(op) && rests.is_none());
        if opened.is_some() {
            sessions_unpark(tx, &[session.name()]).await?;
        }
        // Another item may be first now, which the hold does not cover.
        let looks = session.gate == Some(Gate::Pause) && rests.is_none() && self.op != QueueOp::Inject;
        if looks {
            sessions_look(tx, &[session.name()]).await?;
        }
        let will_hold = session.stop().is_some_and(|stop| stop.then == StopThen::Hold);
        if will_hold && Gate::Stopped.is_opened_by_edit(op) {
            stops_continue(tx, &[session.name()]).await?;
        }
        self.items_write(&change).await?;

        let values = [
            self.account().into(),
            session.id.into(),
            i32::from(change.withdrawn).into(),
            rests.map(|state| state.phase).into(),
        ];
        let edited: Option<EditedRow> = tx.one("count an edit", QUEUE_EDITED, values).await?;
        let edited = edited.ok_or_else(|| StorageError::unreadable("count an edit", "the session is gone"))?;
        let task = edited.task.as_ref();
        let revision = queue_revision(session.queue_tail, session.turn_count, edited.queue_edits);
        if let Some(task) = task {
            let detail = json!({"op": self.op, "item": self.item_id(), "revision": revision, "session_id": session.id});
            activity_insert(
                tx,
                (self.account(), task),
                "queue.changed",
                self.by,
                detail,
                self.setting.now,
            )
            .await?;
        }

        let edit = format!("{}:edit:{}", session.id, edited.queue_edits);
        let mut messages = vec![self.event(task, &edit, Event::QueueChanged(self.changed(revision)))];
        messages.extend(self.cancelled(&change));
        let gate = opened.or(session.gate.filter(|_| rests.is_some()));
        if let Some(gate) = gate.filter(|gate| gate.is_announced()) {
            let queued = session.facts.queued.unsigned_abs() - u32::from(change.withdrawn);
            messages.push(self.event(task, &edit, Event::SessionReleased(self.released(gate, queued))));
        }
        if opened.is_some() || looks {
            // The broker knows the ids of the wake-ups that announced the items.
            let wake_up = self.wake_up(task);
            messages.push(self.setting.message(
                &format!("{}:edit:{}", wake_up.message_id(), edited.queue_edits),
                &wake_up,
            ));
        }
        if change.steers && session.active_turn.is_some() {
            messages.extend(self.stop(task).await?);
        }
        Ok(messages)
    }

    async fn items_write(&self, change: &Change) -> Result<(), StorageError> {
        let account = self.account();
        if let Some(item) = &change.rewritten {
            let content = &item.content;
            let values = [
                account.into(),
                (&content.id).into(),
                content.title.as_deref().unwrap_or_default().into(),
                content.body.as_str().into(),
                content.queue_mode.into(),
                item.joins.into(),
                content.metadata.clone().into(),
                item.position.into(),
                content.hash().map(|hash| hash.bytes().to_vec()).into(),
            ];
            self.tx.execute("rewrite item", ITEM_REWRITE, values).await?;
        }
        if !change.moves.is_empty() {
            let values = [
                account.into(),
                column(&change.moves, |(id, _)| id.clone()),
                column(&change.moves, |(_, position)| *position),
            ];
            self.tx.execute("move items", ITEMS_MOVE, values).await?;
        }
        if let Some(item) = self.item.filter(|_| change.withdrawn) {
            let values = [account.into(), (&item.content.id).into(), self.withdrawn().into()];
            self.tx.execute("withdraw item", ITEM_WITHDRAW, values).await?;
        }
        Ok(())
    }

    /// Asks the turn in progress to end, if it is about the item's task; returns the hints.
    async fn stop(&self, task: Option<&TaskId>) -> Result<Vec<Owned>, StorageError> {
        let request = StopRequest {
            session: self.session.name(),
            turn: self.session.active_turn,
            kind: StopKind::Steered,
            by: &self.by.name,
            then: StopThen::Continue,
            task: self.item.and_then(|item| item.content.task.as_ref()),
        };
        let asked = turn_stop(self.tx, &[request]).await?;
        let hint = |asked: SessionStopRequested| {
            let asked = SessionStopRequested {
                task: task.cloned(),
                ..asked
            };
            self.setting.message(&asked.message_id(), &asked)
        };
        Ok(asked.into_iter().map(hint).collect())
    }

    fn item_id(&self) -> Option<&NotificationId> {
        self.item.map(|item| &item.content.id)
    }

    fn withdrawn(&self) -> String {
        format!("withdrawn: by {}", self.by.name)
    }

    fn event(&self, task: Option<&TaskId>, id: &str, event: Event) -> Owned {
        self.setting.event(self.account(), task, id, event)
    }

    fn changed(&self, revision: String) -> QueueChanged {
        QueueChanged {
            session_id: self.session.id,
            session_key: self.session.key.clone(),
            generation: self.session.generation,
            agent_id: self.session.agent_id,
            op: self.op,
            item: self.item_id().cloned(),
            revision,
            by: self.by.clone(),
        }
    }

    fn cancelled(&self, change: &Change) -> Option<Owned> {
        let content = &self.item.filter(|_| change.withdrawn)?.content;
        let ended = NotificationEnded {
            id: Some(content.id.clone()),
            agent: content.agent_id.map(|agent| agent.to_string()),
            reason: "cancelled".to_owned(),
            detail: self.withdrawn(),
            dead_letter_id: None,
        };
        let id = content.id.as_str();
        Some(self.event(content.task.as_ref(), id, Event::NotificationCancelled(ended)))
    }

    fn released(&self, gate: Gate, queued: u32) -> SessionGated {
        SessionGated {
            session_id: self.session.id,
            session_key: self.session.key.clone(),
            generation: self.session.generation,
            agent_id: self.session.agent_id,
            gate,
            queued,
        }
    }

    fn wake_up(&self, task: Option<&TaskId>) -> SessionResolved {
        SessionResolved {
            account: self.account().clone(),
            task: task.cloned(),
            session_id: self.session.id,
            session_key: self.session.key.clone(),
            generation: self.session.generation,
            agent_id: self.session.agent_id,
            position: self.session.queue_tail,
        }
    }
}
