//! Replays: `orchestrator::replays` admits them, `storage::session::replay_begin` makes and ends them. What delivery does with the source
//! turn's record (`ReplayStart`) is modelled: it can be read from rows only.

use delivery::{
    context::plan::Plan,
    store::{SessionName, journal::NO_PLACE},
    turn::{recorder::Decided, settle::Settled},
};
use domain::{
    AccountId, BranchId, CloseReason, ContextMode, ContextReason, Conversation, Generation, ReplayId, ReplaySpec,
    SessionId, SessionKey, SessionOf, SessionPhase, TurnContext, TurnId,
    replay::{REPLAY, replay_item},
};
use orchestrator::{
    replays::{refused, store::Source, too_many},
    settings::OrchestratorSettings,
};
use prompt::NOT_RECORDED;
use serde_json::json;
use storage::session::{replay_begin::ReplayCount, sessions_lock::LockedSession};

use super::{Database, TurnRow, intake::OwnItem, outbox::Message, questions::own_message};
use crate::simulation::{
    bugs::Bug,
    settings::{GATEWAY_ONLY, OWN},
};

#[derive(Clone, Debug)]
pub(crate) struct ReplayRow {
    pub(crate) source: TurnId,
    pub(crate) session: SessionId,
    pub(crate) spec: ReplaySpec,
}

impl Database {
    /// `SOURCE`, `REPLAYS_COUNT` and `replay_begin`. None: it is refused.
    pub(crate) fn replay_begin(
        &mut self,
        account: &AccountId,
        turn: TurnId,
        spec: &ReplaySpec,
        bug: Option<Bug>,
    ) -> Option<OwnItem> {
        let row = self.turns[&(account.clone(), turn)].clone();
        let source = Source {
            task: row.task.clone(),
            agent_id: row.agent,
            provider: row.provider,
            is_replay: self.sessions[&(account.clone(), row.session)].replay.is_some(),
            is_over: row.state.is_over(),
            is_whole: true,
            has_agent: !self.agents[&(account.clone(), row.agent)].removed,
        };
        let providers = json!({GATEWAY_ONLY: {}, OWN: {"effects": "own"}});
        let providers = serde_json::from_value(providers).expect("providers of the settings");
        let goes_on = self.of_account(account).filter(|(_, row)| {
            let rests = row.phase == SessionPhase::Idle && row.queued == 0;
            row.replay.is_some() && row.closed.is_none() && !rests
        });
        let of_turn = self.replays.values().filter(|replay| replay.source == turn);
        let count = ReplayCount {
            in_flight: i64::try_from(goes_on.count()).expect("few"),
            of_turn: i64::try_from(of_turn.count()).expect("few"),
        };
        let settings = OrchestratorSettings::default();
        if refused(&source, spec, &providers).is_some() || too_many(count, &settings).is_some() {
            return None;
        }
        let (id, session) = (ReplayId(self.fresh_id()), SessionId(self.fresh_id()));
        let replay = ReplayRow {
            source: turn,
            session,
            spec: spec.clone(),
        };
        self.replays.insert((account.clone(), id), replay);
        // The session is of no conversation. The one here is of this replay alone, as that of a branch is.
        let conversation = Conversation::of_branch(account, BranchId(id.uuid()), row.agent);
        self.session_open(conversation.clone(), session, Generation::FIRST, 0);
        let opened = self.sessions.get_mut(&(account.clone(), session)).expect("opened");
        opened.replay = Some(id);
        opened.key = SessionKey {
            of: SessionOf::Replay(id),
            account: account.clone(),
            generation: Generation::FIRST,
        }
        .to_string();
        let mut message = own_message(REPLAY, []);
        message.id = Some(replay_item(id));
        self.version += 1;
        self.item_enter(&conversation, row.task.as_ref(), message, 0, bug)
    }

    /// `REPLAYS_LOAD`: of a replay's session, and the turn that it runs again.
    pub(super) fn replay_of(&self, session: &LockedSession) -> Option<(ReplayRow, TurnRow)> {
        let replay = self.replays[&(session.account.clone(), session.replay?)].clone();
        let source = self.turns[&(session.account.clone(), replay.source)].clone();
        Some((replay, source))
    }

    /// `ReplayStart::answer`: the calls of a round are answered with the round, and none is passed on. Gives how many. What the answers say
    /// has no effect here.
    pub(super) fn replay_answer(decided: &mut Decided<'_>) -> usize {
        let Settled::AwaitTools { round } = &mut decided.settled else {
            return 0;
        };
        if decided.session.replay.is_none() {
            return 0;
        }
        for call in &mut round.calls {
            call.ordinal = NO_PLACE;
            call.answered = Some(NOT_RECORDED.to_owned());
        }
        // As `change` writes a round whose calls are answered.
        decided.change.turn.round = Some(serde_json::to_value(&*round).expect("a round serialises"));
        decided.change.session.asked = None;
        decided.change.more = true;
        round.calls.len()
    }

    /// `end_replays`: the session closes with its turn.
    pub(super) fn replay_over(&mut self, decided: &Decided<'_>, bug: Option<Bug>) -> Option<Message> {
        let (session, change) = (decided.session, &decided.change);
        let rests = change.turn.over && change.session.phase == SessionPhase::Idle;
        let ends = session.replay.is_some() && rests && !session.facts.closed;
        ends.then(|| self.replay_end(&session.name(), bug))
    }

    /// `replays_end`. Nothing waits: its only item has gone with its turn, or is withdrawn.
    pub(super) fn replay_end(&mut self, name: &SessionName, bug: Option<Bug>) -> Message {
        let now = self.now;
        let row = self.sessions.get_mut(name).expect("locked");
        row.close(now, CloseReason::Replayed, bug);
        self.closed_message(&name.0, name.1, CloseReason::Replayed)
    }
}

/// `ReplayStart::plan`, where no provider finds a thread by a response.
pub(super) fn replay_plan(source: &TurnRow) -> Plan {
    let first = source.context.reason.filter(|reason| *reason == ContextReason::First);
    let context = TurnContext {
        used: first.map_or(ContextMode::Assembled, |_| ContextMode::Continue),
        reason: first,
        thread: 1,
        from: None,
        lost_after: None,
        unconfirmed: false,
        ..source.context.clone()
    };
    Plan {
        context,
        is_new: true,
        is_later: false,
    }
}
