//! The messages of a turn: built here from a decision, written to the outbox in the transaction of that decision. The
//! same turn and call give the same message on every replica and every attempt.

use std::collections::HashSet;

use contracts::{
    Outgoing, Root, Timestamp, TraceContext,
    event::{EVENT_REPLY_BYTES_MAX, Event, NotificationEnded, ProviderSessionMismatched, TurnFinished, TurnStarted},
    outgoing::Origin,
    tool::ToolRequested,
};
use domain::{AgentId, CallId, NotificationId, TurnId, TurnRef, TurnState};
use storage::{Setting, outbox::Owned};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    call::Report,
    change::ended_because,
    settle::{Ended, Settled},
    work::Work,
};
use crate::{SOURCE, store::journal::Call};
use storage::session::{TurnName, sessions_lock::LockedSession, turns_record::Changed};

/// The origin of every message that a turn causes.
pub(super) fn origin(turn: TurnId, hops: i32, trace: TraceContext) -> Origin {
    Origin {
        cause: Some(turn.to_string()),
        hops: u16::try_from(hops).unwrap_or(u16::MAX),
        trace,
    }
}

pub(super) fn turn_started(root: &Root, work: &Work, now: OffsetDateTime) -> Owned {
    let turn = &work.turn;
    let started = TurnStarted {
        turn_id: turn.id,
        session_id: turn.session,
        session_key: turn.key.clone(),
        generation: turn.generation,
        fence: turn.fence,
        number: work.number,
        agent_id: work.agent_id,
        notifications: work.notifications(),
        profile_version: work.profile_version.clone(),
    };
    let mut origin = work.origin();
    origin.cause = work.notification_ids.first().cloned();
    let setting = Setting {
        root,
        source: SOURCE,
        origin,
        now,
    };
    setting.event(
        &turn.account,
        turn.task.as_ref(),
        &turn.id.to_string(),
        Event::TurnStarted(started),
    )
}

/// A tool call for the tool-gateway. The same call gives the same message on every replica and every attempt.
pub fn tool_requested(
    root: &Root,
    turn: TurnRef,
    agent: AgentId,
    call: &Call,
    origin: &Origin,
    now: OffsetDateTime,
) -> Owned {
    let message = ToolRequested {
        account: turn.account,
        task: turn.task,
        session_id: turn.session,
        session_key: turn.key,
        generation: turn.generation,
        fence: turn.fence,
        turn_id: turn.id,
        agent_id: agent,
        call_id: CallId(call.call_id.clone()),
        ordinal: call.ordinal,
        name: call.name.clone(),
        arguments: call.arguments.clone(),
    };
    let (id, at) = (message.message_id(), Timestamp::from(now));
    let outgoing = Outgoing::of(root, &id, SOURCE, origin, at, &message);
    (Some(message.account), outgoing)
}

/// The messages of a recorded outcome. `ended` are the notifications that ended with it.
pub(super) fn outcome_messages(
    root: &Root,
    report: &Report,
    session: &LockedSession,
    (settled, state): (&Settled, TurnState),
    changed: &Changed,
    ended: &HashSet<(TurnName, String)>,
    now: OffsetDateTime,
) -> Vec<Owned> {
    let work = &report.work;
    let turn = &work.turn;
    let setting = Setting {
        root,
        source: SOURCE,
        origin: work.origin(),
        now,
    };
    let mut messages = Vec::new();
    if let Some(detail) = &report.mismatch {
        let event = Event::ProviderSessionMismatched(ProviderSessionMismatched {
            turn_id: turn.id,
            session_id: turn.session,
            session_key: turn.key.clone(),
            generation: turn.generation,
            fence: turn.fence,
            detail: detail.clone(),
        });
        messages.push(setting.event(&turn.account, turn.task.as_ref(), &turn.id.to_string(), event));
    }
    if let Settled::AwaitTools { round } = settled
        && let Some(call) = round.first()
    {
        let turn = session.turn(turn.id, turn.task.clone());
        messages.push(tool_requested(root, turn, work.agent_id, call, &setting.origin, now));
    }
    if let Some(end) = settled.ended(ended_because(session)) {
        let event = Event::TurnFinished(turn_finished(work, state, end, changed));
        messages.push(setting.event(&turn.account, turn.task.as_ref(), &turn.id.to_string(), event));
    }
    if let Settled::Aborted = settled {
        let ours = |id: &&String| ended.contains(&(work.turn_name(), (*id).clone()));
        messages.extend(work.notification_ids.iter().filter(ours).map(|id| {
            let ended = NotificationEnded {
                id: NotificationId::parse(id).ok(),
                agent: Some(work.agent_id.to_string()),
                reason: "cancelled".to_owned(),
                detail: ended_because(session).to_owned(),
                dead_letter_id: None,
            };
            setting.event(
                &turn.account,
                turn.task.as_ref(),
                id,
                Event::NotificationCancelled(ended),
            )
        }));
    }
    messages
}

fn turn_finished(work: &Work, state: TurnState, ended: Ended<'_>, changed: &Changed) -> TurnFinished {
    let turn = &work.turn;
    TurnFinished {
        turn_id: turn.id,
        session_id: turn.session,
        session_key: turn.key.clone(),
        generation: turn.generation,
        fence: turn.fence,
        number: work.number,
        agent_id: work.agent_id,
        notifications: work.notifications(),
        state,
        reply: ended.reply.map(|reply| cut(reply.to_owned(), EVENT_REPLY_BYTES_MAX)),
        reply_cut: ended.reply.is_some_and(|reply| reply.len() > EVENT_REPLY_BYTES_MAX),
        no_reply: changed.no_reply,
        late: ended.late,
        attempts: work.attempts + 1,
        error: ended.error.map(str::to_owned),
    }
}

fn cut(mut text: String, bytes_max: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes_max));
    text
}

/// The event of a notification that failed with its turn. A redriven notification may fail again: the dead letter's id
/// distinguishes the two events.
pub(super) fn notification_failed(
    root: &Root,
    work: &Work,
    (id, letter): (&str, Uuid),
    (class, error): (&str, &str),
    now: OffsetDateTime,
) -> Owned {
    let turn = &work.turn;
    let ended = NotificationEnded {
        id: NotificationId::parse(id).ok(),
        agent: Some(work.agent_id.to_string()),
        reason: class.to_owned(),
        detail: error.to_owned(),
        dead_letter_id: Some(letter),
    };
    let setting = Setting {
        root,
        source: SOURCE,
        origin: work.origin(),
        now,
    };
    setting.event(
        &turn.account,
        turn.task.as_ref(),
        &letter.to_string(),
        Event::NotificationFailed(ended),
    )
}
