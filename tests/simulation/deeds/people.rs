//! People who write and read mail, and who say what tasks wait for.

use delivery::store::SessionName;
use domain::{AccountId, MailId, MailTo, QueueMode, TaskId, TaskStatus, UserId};

use super::{Deed, person};
use crate::simulation::{
    provider::address,
    world::{Fate, PERSONS, World},
};

impl World {
    /// Somebody writes to a person, an orchestrator or a session, or reads what waits for one.
    pub(crate) fn plan_mail(&mut self) {
        let sessions = self.database.sessions.iter().filter(|(_, row)| row.queued > 0);
        let sessions: Vec<SessionName> = sessions.map(|(name, _)| name.clone()).collect();
        if !sessions.is_empty() && self.random.chance(250) {
            let session = self.random.pick(&sessions).clone();
            self.deeds.insert(0, Deed::ReadMail(session));
            return;
        }
        let (account, _) = self.random.pick(&self.agents).clone();
        let user = UserId::parse(self.random.pick::<&str>(&PERSONS)).expect("a person");
        let to = *self.random.pick(&[
            "@user:ann",
            "@ann",
            "@ann",
            "@bob",
            "orchestrator:ann",
            "{task}",
            "{task}",
            "{task}",
        ]);
        let to = address(&mut self.random, to, &self.agents);
        let mode = *self.random.pick(&[
            QueueMode::Followup,
            QueueMode::Followup,
            QueueMode::Inject,
            QueueMode::Steer,
        ]);
        let id = MailId(self.database.fresh_id());
        self.deeds.insert(0, Deed::Write(account, user, to, mode, id));
    }

    /// `POST /api/messages`. Under the key of a request that was answered, nothing is written again.
    pub(super) fn write_mail(
        &mut self,
        (account, person): (&AccountId, &UserId),
        (to, mode): (&str, QueueMode),
        id: MailId,
    ) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let to = MailTo::parse(to).expect("an address");
        let written = self.database.person_writes((account, person), (&to, mode), id);
        self.note("mail written", [u64::from(written.is_some()), 0], || {
            format!("{account}: {person} to {to}, {mode}: {id}: {written:?}; {fate:?}")
        });
        if written.is_some() {
            self.witness.mail_accepted(&self.database, (account, id));
        }
        self.commit_rows(p, fate, written.flatten().into_iter().collect())
    }

    /// `POST …/messages/read`. A repetition finds none.
    pub(super) fn read_mail(&mut self, session: &SessionName) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let read = self.database.person_reads(session, &person());
        self.note("mail read", [read.len() as u64, 0], || {
            format!("session {}: {read:?}; {fate:?}", session.1)
        });
        self.counts.read += read.len() as u64;
        self.witness.mail_read(&session.0, &read);
        self.commit_rows(p, fate, Vec::new())
    }

    /// Somebody lets a task wait for others, for none, or moves one.
    pub(crate) fn plan_block(&mut self) {
        let (account, _) = self.random.pick(&self.agents).clone();
        let tasks = self.database.tasks.keys().filter(|(owner, _)| *owner == account);
        let tasks: Vec<TaskId> = tasks.map(|(_, task)| task.clone()).collect();
        let task = self.random.pick(&tasks).clone();
        let deed = if self.random.chance(500) {
            let status = *self.random.pick(&[
                TaskStatus::Done,
                TaskStatus::Done,
                TaskStatus::Pending,
                TaskStatus::InProgress,
            ]);
            Deed::Move(account, task, status)
        } else {
            let count = self.random.below(3);
            let blockers = (0..count).map(|_| self.random.pick(&tasks).clone()).collect();
            Deed::Block(account, task, blockers)
        };
        self.deeds.insert(0, deed);
    }

    /// `PATCH …/tasks/{task}` with `blocked_by`. A repetition changes nothing.
    pub(super) fn block(&mut self, account: &AccountId, task: &TaskId, blockers: &[TaskId]) -> bool {
        let Some(p) = self.orchestrator() else { return false };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return false;
        }
        let written = self.database.dependencies_set(account, (task, blockers), self.bug);
        self.note("blocked", [u64::from(written.is_some()), 0], || {
            format!("{account}/{task} by {blockers:?}: {written:?}; {fate:?}")
        });
        self.counts.rings += u64::from(written.is_none());
        self.commit_rows(p, fate, written.unwrap_or_default())
    }
}
