//! Faults from outside: processes end, freeze and lose their database, the broker becomes unavailable or loses data, messages are
//! repeated, delayed or lost, and time jumps.

use domain::{Generation, TaskStatus, TurnId};

use super::{
    database::outbox::Message,
    deeds::Deed,
    settings::{LEASE, RENEW},
    world::World,
};

impl World {
    /// Injects a fault after a step, by chance.
    pub(crate) fn strike(&mut self) {
        let rates = self.rates;
        let now = self.database.now;
        let p = self.random.below(self.processes.len());
        if self.random.chance(rates.crash) {
            let down = self.random.between(0, 6_000);
            if self.random.chance(250) {
                self.end_leases(p);
            }
            self.crash(p, down);
        }
        if self.random.chance(rates.freeze) && self.processes[p].is_running(now) {
            let until = now + self.random.between(10, 3 * LEASE);
            self.note("frozen", [p as u64, 0], || format!("process {p} until {until}"));
            self.counts.faults += 1;
            self.stop_renewing(p);
            self.processes[p].frozen_until = until;
        }
        if self.random.chance(rates.cut_off) {
            let until = now + self.random.between(10, 3 * LEASE);
            self.note("cut off", [p as u64, 0], || {
                format!("process {p} from Postgres until {until}")
            });
            self.counts.faults += 1;
            self.stop_renewing(p);
            self.processes[p].cut_off_until = until;
        }
        if self.random.chance(rates.broker_down) {
            self.broker.down_until = now + self.random.between(10, 20_000);
            self.counts.faults += 1;
            self.note("broker down", [0, 0], String::new);
        }
        if self.random.chance(rates.broker_wiped) {
            self.wipe_broker();
        }
        if self.random.chance(rates.tail_lost) && self.broker.lose_tail(&mut self.random) {
            self.counts.faults += 1;
            self.note("tail lost", [0, 0], || "the stream's last messages are gone".to_owned());
            // Later messages get later times.
            self.advance(now + 1);
            self.offer_again();
        }
        self.trouble_messages();
        if self.random.chance(rates.time_jump) {
            let to = now + self.random.between(100, 60_000);
            self.note("time jumps", [0, 0], || format!("to {to}"));
            self.advance(to);
        }
        if self.random.chance(rates.close) {
            self.interfere();
        }
        if self.random.chance(rates.stop) {
            self.plan_stop();
        }
        if self.random.chance(rates.resume) {
            self.plan_resume();
        }
        if self.random.chance(rates.answer) {
            self.plan_answers();
        }
        if self.random.chance(rates.edit) {
            self.plan_edit();
        }
        if self.random.chance(rates.hold) {
            self.plan_hold();
        }
        if self.random.chance(rates.reset) {
            self.plan_reset();
        }
        if self.random.chance(rates.end_branch) {
            self.plan_end_of_branch();
        }
        if self.random.chance(rates.replay) {
            self.plan_replay();
        }
        if self.random.chance(rates.mail) {
            self.plan_mail();
        }
        if self.random.chance(rates.block) {
            self.plan_block();
        }
    }

    /// `replica_end`: an orderly stop, which releases everything at once.
    fn end_leases(&mut self, p: usize) {
        let now = self.database.now;
        if let Some(incarnation) = self.processes[p]
            .incarnation
            .filter(|_| self.processes[p].is_running(now))
            && self.processes[p].cut_off_until <= now
        {
            self.database.replicas.insert(incarnation.id, now);
        }
    }

    fn trouble_messages(&mut self) {
        let now = self.database.now;
        if self.random.chance(self.rates.duplicate) {
            let n = self.random.below(self.broker.queued.len());
            let queued = self.broker.queued.get(n).map(|queued| queued.message.clone());
            let message = match queued {
                Some(message) if self.random.chance(600) => Some(message),
                _ => self.broker.any_notification(&mut self.random),
            };
            if let Some(message) = message {
                self.counts.faults += 1;
                self.note("duplicated", [0, 0], || message.id());
                self.broker.duplicate(message, now);
            }
        }
        if self.random.chance(self.rates.lose) && !self.broker.queued.is_empty() {
            let n = self.random.below(self.broker.queued.len());
            let lost = self.broker.queued.remove(n);
            self.counts.faults += 1;
            self.note("lost", [n as u64, 0], || lost.message.id());
        }
        if self.random.chance(self.rates.stale) {
            self.send_stale();
        }
    }

    /// An old request, one that contradicts its session's rows, or one that no agent made.
    fn send_stale(&mut self) {
        let n = self.random.below(self.requests.len());
        let Some(mut request) = self.requests.get(n).cloned() else {
            return;
        };
        if self.random.chance(400) {
            request.turn_id = TurnId(self.database.fresh_id());
            request.generation = Generation(request.generation.0 + 1);
        } else if n.is_multiple_of(3) {
            request.name = "task_status".to_owned();
            request.arguments = "blocked".to_owned();
        }
        self.counts.faults += 1;
        let now = self.database.now;
        self.note("stale", [0, 0], || request.message_id());
        self.broker.duplicate(Message::ToolRequested(request), now);
    }

    fn interfere(&mut self) {
        let (account, _) = self.random.pick(&self.agents).clone();
        let tasks: Vec<_> = self
            .database
            .tasks
            .keys()
            .filter(|(owner, _)| *owner == account)
            .map(|(_, task)| task.clone())
            .collect();
        let task = self.random.pick(&tasks).clone();
        let status = *self.random.pick(&[
            TaskStatus::Done,
            TaskStatus::Done,
            TaskStatus::Archived,
            TaskStatus::InProgress,
            TaskStatus::AwaitingApproval,
            TaskStatus::Failed,
        ]);
        self.deeds.insert(0, Deed::Move(account, task, status));
        if !self.database.dead_letters.is_empty() && self.random.chance(500) {
            let letter = self.random.below(self.database.dead_letters.len());
            if self.database.dead_letters[letter].account.is_some() {
                self.deeds.insert(0, Deed::Redrive(letter));
            }
        }
    }

    fn wipe_broker(&mut self) {
        let now = self.database.now;
        let lost = self.broker.wipe(now);
        self.counts.faults += 1;
        self.note("broker wiped", [lost.len() as u64, 0], || {
            format!("{} messages", lost.len())
        });
        self.offer_again();
    }

    /// Publishers over the broker kept their offers (as the runbook for a lost broker requires). Notifications of the API are in
    /// the outbox until they are read.
    pub(crate) fn offer_again(&mut self) {
        for n in self.witness.unknown_offers(&self.database) {
            if !self.witness.offers[n].by_api {
                self.deeds.push(Deed::Publish(n));
            }
        }
    }

    /// Expires a lease that was not renewed for some time.
    fn stop_renewing(&mut self, p: usize) {
        if !self.processes[p].renews() {
            return;
        }
        self.processes[p].paused = true;
        let ago = self.random.between(0, RENEW);
        if let Some(incarnation) = &mut self.processes[p].incarnation {
            incarnation.ends -= ago;
            if let Some(until) = self.database.replicas.get_mut(&incarnation.id) {
                *until -= ago;
            }
        }
    }

    /// Ends all faults; every process runs again.
    pub(crate) fn calm_down(&mut self) {
        self.calm = true;
        self.rates = self.rates.calm();
        let now = self.database.now;
        self.broker.down_until = self.broker.down_until.min(now + 1_000);
        for process in &mut self.processes {
            process.frozen_until = process.frozen_until.min(now + 1_000);
            process.cut_off_until = process.cut_off_until.min(now + 1_000);
            process.down_until = process.down_until.min(now + 1_000);
        }
        self.note("calm", [0, 0], String::new);
    }
}
