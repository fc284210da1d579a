//! The messages of a turn: built here from a decision, written to the outbox in the transaction of that decision. The
//! same turn and call give the same message on every replica and every attempt.

use std::collections::HashSet;

use contracts::{
    Root, TraceContext,
    event::{
        EVENT_REPLY_BYTES_MAX, Event, NotificationEnded, ProviderSessionMismatched, ProviderThread, ReplyTo,
        SessionGated, TurnFinished, TurnReplayed, TurnStarted,
    },
    outgoing::Origin,
    tool::ToolRequested,
};
use domain::{
    Actor, ActorKind, AgentId, CallId, NotificationId, SessionKey, SessionOf, TurnId, TurnRef, TurnState, next::began,
};
use storage::{
    Setting,
    lifecycle::{self, reply_message_id},
    outbox::Owned,
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    change::ended_because,
    recorder::Decided,
    settle::{Ended, Settled},
    work::Work,
};
use crate::store::{journal::Call, replays::ReplayStart};
use storage::session::{TurnName, turns_record::Changed};

/// Of what a provider said.
const DETAIL_BYTES_MAX: usize = 1_024;

/// The origin of every message that a turn causes.
pub(super) fn origin(turn: TurnId, hops: i32, trace: TraceContext) -> Origin {
    Origin {
        cause: Some(turn.to_string()),
        hops: u16::try_from(hops).unwrap_or(u16::MAX),
        trace,
    }
}

/// The same at every attempt: its time is that of the turn's id.
pub(super) fn turn_started(root: &Root, work: &Work) -> Owned {
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
    let mut setting = work.setting(root, begun_at(turn.id));
    setting.origin.cause = work.notification_ids.first().cloned();
    event(&setting, turn, &turn.id.to_string(), Event::TurnStarted(started))
}

/// The time of the turn's id.
pub(super) fn begun_at(turn: TurnId) -> OffsetDateTime {
    began(turn).map_or(OffsetDateTime::UNIX_EPOCH, |at| at.0)
}

/// `id`: see [`Setting::event`].
fn event(setting: &Setting<'_>, turn: &TurnRef, id: &str, event: Event) -> Owned {
    setting.event(&turn.account, turn.task.as_ref(), id, event)
}

/// A tool call for the tool-gateway. The same call gives the same message on every replica and every attempt.
pub fn tool_requested(setting: &Setting<'_>, turn: TurnRef, agent: AgentId, call: &Call) -> Owned {
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
    setting.message(&message.message_id(), &message)
}

/// The messages of a recorded outcome. `ended` are the notifications that ended with it.
pub(super) fn outcome_messages(
    root: &Root,
    decided: &Decided<'_>,
    changed: &Changed,
    ended: &HashSet<(TurnName, String)>,
    now: OffsetDateTime,
) -> Vec<Owned> {
    let Decided {
        report,
        session,
        settled,
        change,
        ..
    } = decided;
    let work = &report.work;
    let turn = &work.turn;
    let setting = work.setting(root, now);
    let mut messages = Vec::new();
    if !work.heard.is_heard() {
        messages.push(turn_started(root, work));
    }
    if let Some(detail) = &report.mismatch {
        let mismatched = Event::ProviderSessionMismatched(ProviderSessionMismatched {
            turn_id: turn.id,
            session_id: turn.session,
            session_key: turn.key.clone(),
            generation: turn.generation,
            fence: turn.fence,
            detail: detail.clone(),
        });
        messages.push(event(&setting, turn, &turn.id.to_string(), mismatched));
    }
    messages.extend(thread_events(decided, &setting));
    if let Settled::AwaitTools { round } = settled {
        let turn = || session.turn(turn.id, turn.task.clone());
        let due = round.due(|_| false);
        messages.extend(
            due.into_iter()
                .map(|call| tool_requested(&setting, turn(), work.agent_id, call)),
        );
    }
    if let Some(end) = settled.ended(ended_because(session)) {
        let state = change.turn.state;
        let ended = match (&work.replay, session.replay) {
            (Some(replay), _) => Some(Event::TurnReplayed(turn_replayed(work, replay, state, end))),
            // Its record is gone.
            (None, Some(_)) => None,
            (None, None) => Some(Event::TurnFinished(turn_finished(work, state, end, changed))),
        };
        messages.extend(ended.map(|ended| event(&setting, turn, &turn.id.to_string(), ended)));
    }
    let cancelled = match settled {
        Settled::Aborted => Some(ended_because(session)),
        Settled::Stopped { because, .. } => Some(because.as_str()),
        _ => None,
    };
    if let Some(because) = cancelled.filter(|_| session.replay.is_none()) {
        let ours = |id: &&String| ended.contains(&(work.turn_name(), (*id).clone()));
        messages.extend(change.ended().filter(ours).map(|id| {
            let ended = notification_ended(work, id, ("cancelled", because), None);
            event(&setting, turn, id, Event::NotificationCancelled(ended))
        }));
    }
    if let Some(gate) = change.session.gate {
        let parked = Event::SessionParked(SessionGated {
            session_id: turn.session,
            session_key: turn.key.clone(),
            generation: turn.generation,
            agent_id: Some(work.agent_id),
            gate,
            queued: session.facts.queued.unsigned_abs(),
        });
        messages.push(event(&setting, turn, &turn.id.to_string(), parked));
    }
    messages
}

/// What an outcome says of the provider's thread.
fn thread_events(decided: &Decided<'_>, setting: &Setting<'_>) -> Vec<Owned> {
    let (report, number) = (decided.report, decided.session.thread.number);
    let (work, turn) = (&report.work, &report.work.turn);
    let denied = report.unconfirmed.as_deref();
    let failed = decided.settled.error().map(|(error, _)| error);
    let lost = (decided.change.session.thread.lost > decided.session.thread.lost).then(|| {
        denied
            .or(failed)
            .unwrap_or("the answer has no id from which the next turn could go on")
    });
    let thread = |detail: &str| ProviderThread {
        turn_id: turn.id,
        session_id: turn.session,
        session_key: turn.key.clone(),
        generation: turn.generation,
        fence: turn.fence,
        agent_id: work.agent_id,
        provider: work.provider.clone(),
        thread: number,
        detail: cut(detail, DETAIL_BYTES_MAX),
    };
    let unconfirmed = denied.map(|detail| Event::ProviderThreadUnconfirmed(thread(detail)));
    let lost = lost.map(|detail| Event::ProviderThreadLost(thread(detail)));
    // A turn may lose each of its threads once.
    let id = format!("{}:{number}", turn.id);
    let events = unconfirmed.into_iter().chain(lost);
    events.map(|of| event(setting, turn, &id, of)).collect()
}

fn turn_finished(work: &Work, state: TurnState, ended: Ended<'_>, changed: &Changed) -> TurnFinished {
    let turn = &work.turn;
    // What an orchestrator says is for its person alone, and everybody in the account may listen.
    let reply = ended.reply.filter(|_| !is_orchestrator(&turn.key));
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
        reply: reply.map(|reply| cut(reply, EVENT_REPLY_BYTES_MAX)),
        reply_cut: reply.is_some_and(|reply| reply.len() > EVENT_REPLY_BYTES_MAX),
        no_reply: changed.no_reply,
        reply_to: match work.parent {
            Some(_) => ReplyTo::Parent,
            None => ReplyTo::Thread,
        },
        late: ended.late,
        attempts: work.attempts + 1,
        error: ended.error.map(str::to_owned),
    }
}

fn is_orchestrator(key: &str) -> bool {
    SessionKey::parse(key).is_ok_and(|key| matches!(key.of, SessionOf::Orchestrator(_) | SessionOf::Guest { .. }))
}

fn turn_replayed(work: &Work, replay: &ReplayStart, state: TurnState, ended: Ended<'_>) -> TurnReplayed {
    let turn = &work.turn;
    TurnReplayed {
        replay_id: replay.id,
        source_turn_id: replay.source_turn_id,
        turn_id: turn.id,
        session_id: turn.session,
        session_key: turn.key.clone(),
        generation: turn.generation,
        fence: turn.fence,
        agent_id: work.agent_id,
        state,
        error: ended.error.map(str::to_owned),
    }
}

/// The event of a turn's reply in its thread.
pub(super) fn message_posted(root: &Root, work: &Work, author: &str, now: OffsetDateTime) -> Owned {
    let id = reply_message_id(work.turn.id);
    let author = Actor {
        kind: ActorKind::Agent,
        id: work.agent_id.to_string(),
        name: author.to_owned(),
        via: None,
    };
    let (setting, turn) = (work.setting(root, now), &work.turn);
    lifecycle::message_posted(
        &setting,
        (&turn.account, turn.task.as_ref()),
        id,
        &author,
        Some(turn.id),
    )
}

fn cut(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}

/// The event of a notification that failed with its turn. A redriven notification may fail again: the dead letter's id
/// distinguishes the two events. One of a branch has none: its parent is told.
pub(super) fn notification_failed(
    root: &Root,
    work: &Work,
    (id, letter): (&str, Option<Uuid>),
    (class, error): (&str, &str),
    now: OffsetDateTime,
) -> Owned {
    let failed = Event::NotificationFailed(notification_ended(work, id, (class, error), letter));
    let of = letter.map_or_else(|| id.to_owned(), |letter| letter.to_string());
    event(&work.setting(root, now), &work.turn, &of, failed)
}

fn notification_ended(
    work: &Work,
    id: &str,
    (reason, detail): (&str, &str),
    dead_letter_id: Option<Uuid>,
) -> NotificationEnded {
    NotificationEnded {
        id: NotificationId::parse(id).ok(),
        agent: Some(work.agent_id.to_string()),
        reason: reason.to_owned(),
        detail: detail.to_owned(),
        dead_letter_id,
    }
}
