//! Questions, as `storage::lifecycle::question` opens and ends them. Each is a part of a transaction that holds the asker's
//! session. Kinds `plan` and `review` are left out: they move tasks, and no item or call depends on them here.

use contracts::{notification::NotificationMessage, tool::ToolApproved};
use domain::{
    AccountId, Conversation, QuestionId, QuestionKind, QuestionState, SessionId, TaskId, TimerKind, TurnId, Verdict,
};
use storage::question::{ANSWER, Ending, Scope};
use uuid::Uuid;

use super::{Database, Millis, intake::OwnItem, outbox::Message, timers::TimerRow};
use crate::simulation::bugs::Bug;

/// As `OF_SESSION_MAX` of `ask_question`: fewer, so that it is reached.
const OF_SESSION_MAX: usize = 3;

#[derive(Clone, Debug)]
pub(crate) struct QuestionRow {
    pub(crate) kind: QuestionKind,
    pub(crate) state: QuestionState,
    pub(crate) conversation: Conversation,
    /// Its key.
    pub(crate) task: Option<TaskId>,
    pub(crate) session: SessionId,
    pub(crate) turn: TurnId,
    /// The record of the tool call that asks.
    pub(crate) call: Uuid,
    pub(crate) verdict: Option<Verdict>,
}

/// What the end of a question did.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) item: Option<OwnItem>,
    pub(crate) messages: Vec<Message>,
}

impl Database {
    /// `UNREAD`, and `QUESTIONS_COUNT`.
    pub(super) fn may_ask(&self, account: &AccountId, session: SessionId, turn: TurnId) -> bool {
        let started = self.turns[&(account.clone(), turn)].started_at;
        let is_unread = self
            .queue(account, session)
            .iter()
            .any(|(_, _, item)| item.is_from_person() && item.created_at > started);
        !is_unread && self.may_open(account, session)
    }

    /// `QUESTIONS_COUNT`.
    pub(super) fn may_open(&self, account: &AccountId, session: SessionId) -> bool {
        let open = self
            .questions
            .iter()
            .filter(|((owner, _), row)| owner == account && row.session == session && row.state.is_open());
        open.count() < OF_SESSION_MAX
    }

    /// `QUESTION_OPEN`, and `TIMER_SET` of the time when it lapses.
    pub(super) fn question_open(&mut self, account: &AccountId, row: QuestionRow, lapse_at: Option<Millis>) {
        let id = QuestionId(self.fresh_id());
        if let Some(due_at) = lapse_at {
            let timer = TimerRow::new(TimerKind::QuestionLapse, id.to_string(), due_at, &row);
            self.timer_set(account, timer);
        }
        self.questions.insert((account.clone(), id), row);
    }

    /// `QUESTION_END`, `CLEAR_OF_KEYS` and the item for the asker. None: it has ended before.
    pub(crate) fn question_end(
        &mut self,
        (account, id): (&AccountId, QuestionId),
        ending: &Ending<'_>,
        bug: Option<Bug>,
    ) -> Option<Ended> {
        let row = self.questions.get_mut(&(account.clone(), id))?;
        if !row.state.is_open() && bug != Some(Bug::AnsweredTwice) {
            return None;
        }
        row.state = ending.state();
        row.verdict = ending.verdict();
        let row = row.clone();
        self.version += 1;
        self.lapse_clear(account, id, ending);
        let mut ended = Ended {
            messages: row.decided(account).into_iter().collect(),
            ..Ended::default()
        };
        if ending.is_told(row.kind) {
            let metadata = [("reopen", false.into()), ("question_id", id.to_string().into())];
            let message = own_message(ANSWER, metadata);
            let mut item = self.item_enter(&row.conversation, row.task.as_ref(), message, 0, bug);
            ended
                .messages
                .extend(item.iter_mut().flat_map(|item| item.messages.drain(..)));
            ended.item = item;
        }
        Some(ended)
    }

    /// `QUESTIONS_END_OF_TASK`, `…_OF_AGENT` and `…_OF_TURN`.
    pub(super) fn questions_end_of(
        &mut self,
        account: &AccountId,
        scope: Scope<'_>,
        ending: &Ending<'_>,
    ) -> Vec<Message> {
        let is_of = |row: &QuestionRow| match scope {
            Scope::Task(task) => row.task.as_ref() == Some(&task.key()),
            Scope::Agent(agent) => row.conversation.agent == agent,
            Scope::Turn(session, turn) => row.session == session && row.turn == turn && row.kind == QuestionKind::Tool,
            Scope::Session(session) => row.session == session,
            Scope::Orchestrator(owner) => row.conversation.orchestrator() == Some(owner),
            Scope::AgentOn(agent, task) => row.conversation.agent == agent && row.task.as_ref() == Some(&task.key()),
        };
        let ended: Vec<(QuestionId, Option<Message>)> = self
            .questions
            .iter_mut()
            .filter(|((owner, _), row)| owner == account && row.state.is_open() && is_of(row))
            .map(|((_, id), row)| {
                row.state = ending.state();
                (*id, row.decided(account))
            })
            .collect();
        for (id, _) in &ended {
            self.lapse_clear(account, *id, ending);
        }
        ended.into_iter().filter_map(|(_, message)| message).collect()
    }

    /// The timer that ends a question is marked by its firing.
    fn lapse_clear(&mut self, account: &AccountId, id: QuestionId, ending: &Ending<'_>) {
        if !matches!(ending, Ending::Lapsed) {
            let key = id.to_string();
            self.timers_clear(account, |timer| {
                timer.kind == TimerKind::QuestionLapse && timer.key == key
            });
        }
    }
}

impl QuestionRow {
    /// Wakes the call that waits for the answer.
    fn decided(&self, account: &AccountId) -> Option<Message> {
        (self.kind == QuestionKind::Tool).then(|| {
            Message::ToolApproved(ToolApproved {
                account: account.clone(),
                task: self.task.clone(),
                session_id: self.session,
                call: self.call,
            })
        })
    }
}

/// An item of Signalbox's own.
pub(super) fn own_message<const N: usize>(kind: &str, metadata: [(&str, serde_json::Value); N]) -> NotificationMessage {
    NotificationMessage {
        id: None,
        kind: Some(kind.to_owned()),
        agent: None,
        agents: Vec::new(),
        session: None,
        title: None,
        body: kind.to_owned(),
        message_id: None,
        sender: None,
        queue_mode: None,
        metadata: metadata
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    }
}
