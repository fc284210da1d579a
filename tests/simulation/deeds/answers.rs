//! Answers of people to questions: of several at once, during the turn that asks, and too late.

use domain::{AccountId, QuestionId, QuestionKind, Verdict};
use storage::question::{Answer, Ending};

use super::{Deed, person};
use crate::simulation::world::{Fate, World};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Answer(Option<Verdict>),
    Withdraw,
}

impl World {
    /// One or two persons look at a question, mostly an open one.
    pub(crate) fn plan_answers(&mut self) {
        let is_open = self.random.chance(930);
        let questions: Vec<(AccountId, QuestionId, QuestionKind)> = self
            .database
            .questions
            .iter()
            .filter(|(_, row)| row.state.is_open() == is_open)
            .map(|((account, id), row)| (account.clone(), *id, row.kind))
            .collect();
        if questions.is_empty() {
            return;
        }
        let (account, id, kind) = self.random.pick(&questions).clone();
        for _ in 0..1 + self.random.below(2) {
            let reply = if self.random.chance(150) {
                Reply::Withdraw
            } else {
                self.some_answer(kind)
            };
            self.deeds.insert(0, Deed::Reply(account.clone(), id, reply, false));
        }
    }

    fn some_answer(&mut self, kind: QuestionKind) -> Reply {
        let verdicts = kind.verdicts();
        if verdicts.contains(&Verdict::Approved) && self.random.chance(600) {
            return Reply::Answer(Some(Verdict::Approved));
        }
        Reply::Answer((!verdicts.is_empty()).then(|| *self.random.pick(verdicts)))
    }

    /// `POST …/answer` and `…/withdraw`, two steps of one transaction: it finds the question open ([`Self::do_deed`]), and it ends
    /// the question. A client without an answer asks again, and finds that the question has ended.
    pub(super) fn reply(&mut self, account: &AccountId, question: QuestionId, reply: Reply, seen: bool) -> bool {
        if !seen {
            self.counts.too_late += 1;
            return true;
        }
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let by = person();
        let ending = match reply {
            Reply::Answer(verdict) => Ending::Answered {
                by: &by,
                verdict,
                answer: Answer::default(),
            },
            Reply::Withdraw => Ending::Withdrawn {
                by: &by,
                reason: None,
                is_asker: false,
            },
        };
        let ended = self.database.question_end((account, question), &ending, self.bug);
        self.note("replied", [u64::from(ended.is_some()), 0], || {
            format!("{question}: {reply:?}: {ended:?}; {fate:?}")
        });
        let Some(ended) = ended else {
            self.counts.too_late += 1;
            return true;
        };
        self.counts.answered += 1;
        if reply == Reply::Answer(Some(Verdict::Approved)) {
            let call = self.database.questions[&(account.clone(), question)].call;
            self.witness.approved.insert((account.clone(), call));
        }
        self.witness.own_items(&self.database, ended.item.as_slice());
        self.commit_rows(p, fate, ended.messages)
    }
}
