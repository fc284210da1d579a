//! Gives waiting items with mode `inject` to turns that go on after their tools, within the caller's transaction. Their text is
//! stored before it is sent. Without such an item there is no statement.

use std::collections::HashMap;

use domain::{TaskId, TurnState, UserId, queue::OWN_KINDS};
use prompt::{Marks, note};
use storage::{
    StorageError, Tx,
    session::{
        items_alike::{Joining, items_alike},
        items_join::{Join, Note, items_join},
        sessions_lock::LockedSession,
    },
};

use super::starter::Starter;
use crate::store::{
    SessionName,
    claim::OpenTurn,
    runs::{Injectable, injects_load},
};

/// Whether waiting items may be given to the turn with its next call. A call that is sent again carries what it carried.
pub fn takes(session: &LockedSession, turn: &OpenTurn) -> bool {
    let goes_on = turn.ended_with().is_none() && !session.facts.closed && !session.facts.stopping;
    turn.injectable > 0 && turn.state == TurnState::AwaitingTools && goes_on
}

impl Starter {
    /// Adds the items to the turns, and to their rows; gives the number of turns that got some. The caller holds the sessions'
    /// locks.
    pub(super) async fn inject(
        &self,
        tx: &Tx,
        resume: &mut [(LockedSession, OpenTurn)],
    ) -> Result<usize, StorageError> {
        let turns: Vec<(SessionName, Option<TaskId>)> = resume
            .iter()
            .filter(|(session, turn)| takes(session, turn))
            .map(|(session, turn)| (session.name(), turn.task.clone()))
            .collect();
        let bytes_max = i64::try_from(self.config.inject_bytes_max.get()).unwrap_or(i64::MAX);
        let items_max = self.config.inject_items_max.get().into();
        let mut items: HashMap<SessionName, Vec<Injectable>> = HashMap::new();
        let mut injectable = injects_load(tx, &turns, &OWN_KINDS, items_max, bytes_max).await?;
        unlike_leave(tx, resume, &mut injectable).await?;
        for item in injectable {
            items
                .entry((item.account.clone(), item.session_id))
                .or_default()
                .push(item);
        }
        let mut joins = Vec::with_capacity(items.len());
        for (session, turn) in resume {
            if let Some(items) = items.remove(&session.name()) {
                let marks = self.marks.marks_of_note(&session.account, turn.id, turn.notes.0.len());
                joins.push(join(session, turn, &items, marks));
                tracing::info!(
                    turn_id = %turn.id, session_id = %session.id, account = %session.account, items = items.len(),
                    "gave waiting items to the turn in progress"
                );
            }
        }
        items_join(tx, &joins).await?;
        Ok(joins.len())
    }
}

/// In a session that is a person's own, items of another kind than the turn's wait for a turn of their own.
async fn unlike_leave(
    tx: &Tx,
    resume: &[(LockedSession, OpenTurn)],
    items: &mut Vec<Injectable>,
) -> Result<(), StorageError> {
    let own: HashMap<SessionName, (&UserId, &str)> = resume
        .iter()
        .filter_map(|(session, turn)| {
            let first = turn.notification_ids.first()?;
            Some((session.name(), (session.owner.as_ref()?, first.as_str())))
        })
        .collect();
    let of = |item: &Injectable| own.get(&(item.account.clone(), item.session_id)).copied();
    let joining: Vec<Joining<'_>> = items
        .iter()
        .filter_map(|item| {
            let (owner, first) = of(item)?;
            Some(Joining {
                account: &item.account,
                owner,
                first,
                id: item.item.notification.as_str(),
            })
        })
        .collect();
    let alike = items_alike(tx, &joining).await?;
    items.retain(|item| of(item).is_none() || alike.contains(&(item.account.clone(), item.item.notification.clone())));
    Ok(())
}

/// Adds the items to the turn; what is to be written of it. Pure.
pub fn join(session: &LockedSession, turn: &mut OpenTurn, items: &[Injectable], marks: Marks) -> Join {
    let given = items.iter().map(|item| &item.item);
    let note = Note {
        round: turn.journal.rounds.len(),
        text: note(given.clone(), marks),
        notification_ids: given.map(|item| item.notification.to_string()).collect(),
    };
    turn.notification_ids.extend(note.notification_ids.iter().cloned());
    turn.notes.0.push(note.clone());
    for item in items {
        turn.hops = turn.hops.max(item.hops);
    }
    Join {
        session: session.name(),
        turn: turn.id,
        note,
        hops: turn.hops,
    }
}
