//! The clients' requests and their times: notifications over both ways, thread messages, tasks closed and reopened, in several
//! accounts with the same names.

use super::OFFER_GAP_MS;
use crate::{
    dice::Dice,
    records::{Author, EditOp, Offered, Via, Work, WorkKind},
};

use domain::{HoldRunning, HoldScope, QueueMode, ResetInFlight, ResetQueue, StopThen};

pub(crate) const ACCOUNTS: usize = 3;
/// Slugs, the same in every account.
pub(crate) const AGENTS: [&str; 3] = ["coder", "reviewer", "writer"];
/// The agent that the others call; no agent can call itself.
pub(crate) const ASKED: &str = AGENTS[2];
/// Created beforehand, the same in every account. The first two are assigned to two agents.
pub(crate) const TASKS: [&str; 6] = ["T-1", "T-2", "T-3", "T-4", "T-5", "T-6"];
/// Created beforehand too, for scenes alone: [`APPROVED`], [`PLANNED`], [`REVIEWED`], and one that is handed over.
pub(crate) const JUDGED: [&str; 4] = [APPROVED, PLANNED, REVIEWED, "T-10"];
/// A person approves each `task_message`.
pub(crate) const APPROVED: &str = "T-7";
/// A person approves a plan before anything is written.
pub(crate) const PLANNED: &str = "T-8";
/// A person approves that it is done.
pub(crate) const REVIEWED: &str = "T-9";
/// The account that has persons; its `admin` key is the first one's own.
pub(crate) const OF_PERSONS: usize = 1;
/// The addresses of their orchestrators.
pub(crate) const ORCHESTRATORS: [&str; 2] = ["orchestrator:ann", "orchestrator:bob"];
/// Tasks with assignees, whom thread messages wake.
pub(crate) const ASSIGNED: usize = 2;

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PlannedOffer {
    pub(crate) at_ms: u64,
    /// Index of the account.
    pub(crate) account: usize,
    pub(crate) via: Via,
    pub(crate) what: Offered,
}

pub(crate) fn account_id(account: usize) -> String {
    format!("account-{account}")
}

/// A mark in every text of an account, too long to occur by accident.
pub(crate) fn canary(seed: u64, account: usize) -> String {
    format!("canary-{:016x}", Dice::new(seed, &format!("canary {account}")).next())
}

const WORK: &[(WorkKind, u64)] = &[
    (WorkKind::Reply, 30),
    (WorkKind::Message, 25),
    (WorkKind::TwoMessages, 8),
    (WorkKind::TwoAtOnce, 12),
    (WorkKind::History, 3),
    (WorkKind::Context, 3),
    (WorkKind::Ask, 6),
    (WorkKind::Later, 8),
    (WorkKind::Split, 4),
    (WorkKind::Done, 2),
    (WorkKind::Finish, 2),
    (WorkKind::Silent, 5),
];

const MODES: &[(QueueMode, u64)] = &[
    (QueueMode::Followup, 60),
    (QueueMode::Collect, 20),
    (QueueMode::Steer, 6),
    (QueueMode::Inject, 14),
];
/// One of so many offers begins a scene, of each kind.
const SCENES: usize = 12;

pub(super) fn plan(seed: u64, end_ms: u64) -> Vec<PlannedOffer> {
    let mut dice = Dice::new(seed, "offers");
    let mut offers = Vec::new();
    // Ids are unique per account, so accounts use the same ones.
    let mut ids = [0; ACCOUNTS];
    let mut at_ms = 0;
    while at_ms < end_ms {
        for scene in [brake, question, hold, judged, split, chain] {
            if dice.below(SCENES) == 0 {
                let mut stage = Stage::new(&mut dice, &mut ids);
                let (account, mut at_ms) = (stage.account, at_ms);
                for (via, after_ms, what) in scene(&mut stage) {
                    at_ms += after_ms;
                    offers.push(PlannedOffer {
                        at_ms,
                        account,
                        via,
                        what,
                    });
                }
            }
        }
        let mut of_persons = Vec::new();
        // Two at once, so that their transactions meet.
        if dice.below(SCENES) == 0 {
            of_persons.extend([Offered::Remember, Offered::Remember]);
        }
        if dice.below(SCENES * 2) == 0 {
            of_persons.push(Offered::Mail {
                to: (*dice.pick(&[ORCHESTRATORS[0], "@bob"])).to_owned(),
                work: reply(format!("m{:06}", offers.len())),
            });
        }
        offers.extend(of_persons.into_iter().map(|what| PlannedOffer {
            at_ms,
            account: OF_PERSONS,
            via: Via::Http,
            what,
        }));
        let account = dice.below(ACCOUNTS);
        let effect = format!("e{:06}", offers.len());
        let what = match dice.below(100) {
            0..=9 if account == OF_PERSONS => {
                ids[account] += 1;
                to_orchestrator(&mut dice, format!("n-{}", ids[account]), effect)
            }
            0..=90 => {
                ids[account] += 1;
                notification(&mut dice, format!("n-{}", ids[account]), effect)
            }
            91..=95 => Offered::Message {
                task: TASKS[dice.below(ASSIGNED)].to_owned(),
                work: reply(effect),
            },
            96 => Offered::Persona,
            _ => Offered::Status {
                task: (*dice.pick(&TASKS)).to_owned(),
                status: (*dice.pick(&["in_progress", "in_progress", "review", "done"])).to_owned(),
            },
        };
        let via = match what {
            Offered::Notification { .. } if dice.below(3) > 0 => Via::Nats,
            _ => Via::Http,
        };
        offers.push(PlannedOffer {
            at_ms,
            account,
            via,
            what,
        });
        at_ms += dice.between(OFFER_GAP_MS.0, OFFER_GAP_MS.1);
    }
    offers.sort_by_key(|offer| offer.at_ms);
    offers
}

/// Where a scene is.
struct Stage<'a> {
    dice: &'a mut Dice,
    ids: &'a mut [usize; ACCOUNTS],
    account: usize,
    task: &'static str,
    agent: &'static str,
}

/// Way, time after the one before, and what.
type Scene = Vec<(Via, u64, Offered)>;

impl<'a> Stage<'a> {
    fn new(dice: &'a mut Dice, ids: &'a mut [usize; ACCOUNTS]) -> Stage<'a> {
        let tasks = if dice.below(4) == 0 { &JUDGED[..] } else { &TASKS[..] };
        let (account, task, agent) = (dice.below(ACCOUNTS), *dice.pick(tasks), *dice.pick(&AGENTS));
        Stage {
            dice,
            ids,
            account,
            task,
            agent,
        }
    }

    fn send(&mut self, kind: WorkKind, mode: QueueMode, author: Author) -> Offered {
        self.ids[self.account] += 1;
        let id = format!("n-{}", self.ids[self.account]);
        Offered::Notification {
            work: Work {
                kind,
                effect: format!("s{}-{id}", self.account),
            },
            id,
            task: Some(self.task.to_owned()),
            agents: vec![self.agent.to_owned()],
            mode,
            author,
        }
    }
}

/// A question, perhaps a message of a person meanwhile, and two clients that end it at once.
fn question(stage: &mut Stage<'_>) -> Scene {
    let mut scene = vec![(
        Via::Nats,
        0,
        stage.send(WorkKind::Question, QueueMode::Followup, Author::Ann),
    )];
    if stage.dice.below(3) == 0 {
        let meanwhile = stage.send(WorkKind::Reply, QueueMode::Followup, Author::Bob);
        scene.push((Via::Http, stage.dice.between(0, 1_500), meanwhile));
    }
    scene.extend(two_answers(stage));
    scene
}

/// A turn splits its work; perhaps somebody ends a branch, or the task, meanwhile.
fn split(stage: &mut Stage<'_>) -> Scene {
    stage.task = *stage.dice.pick(&TASKS);
    let task = || stage.task.to_owned();
    let (end, done) = (
        Offered::EndBranch { task: task() },
        Offered::Status {
            task: task(),
            status: "done".to_owned(),
        },
    );
    let made = stage.send(WorkKind::Split, QueueMode::Followup, Author::Ann);
    let mut scene = vec![(Via::Nats, 0, made)];
    if stage.dice.below(2) == 0 {
        scene.push((Via::Http, stage.dice.between(300, 1_500), end));
    }
    let behind = stage.send(WorkKind::Message, QueueMode::Followup, Author::Bob);
    scene.push((Via::Nats, stage.dice.between(0, 2_000), behind));
    if stage.dice.below(2) == 0 {
        scene.push((Via::Http, stage.dice.between(0, 2_000), replay(stage)));
    }
    if stage.dice.below(4) == 0 {
        scene.push((Via::Http, stage.dice.between(0, 2_500), done));
    }
    scene
}

/// A task waits for another one, which is done then: its agent is told.
fn chain(stage: &mut Stage<'_>) -> Scene {
    stage.ids[stage.account] += 1;
    let number = stage.ids[stage.account];
    let (first, then) = (format!("FIRST-{number}"), format!("THEN-{number}"));
    let task = |id: &str, blocked_by: Option<&str>, agent: Option<&str>| Offered::Task {
        id: id.to_owned(),
        blocked_by: blocked_by.map(str::to_owned),
        agent: agent.map(str::to_owned),
        effect: format!("b{}-{}", stage.account, id.to_lowercase()),
    };
    let (before, after) = (task(&first, None, None), task(&then, Some(&first), Some(stage.agent)));
    let done = Offered::Status {
        task: first,
        status: "done".to_owned(),
    };
    vec![
        (Via::Http, 0, before),
        (Via::Http, 1_500, after),
        (Via::Http, stage.dice.between(1_500, 4_000), done),
    ]
}

fn two_answers(stage: &mut Stage<'_>) -> Scene {
    let answer = |withdraws| Offered::Answer { withdraws };
    vec![
        (Via::Http, stage.dice.between(1_500, 4_000), answer(false)),
        (Via::Http, 0, answer(stage.dice.below(5) == 0)),
    ]
}

/// A tool call, a plan or a task that is done waits for a person's verdict; or a task changes hands while its agent works.
fn judged(stage: &mut Stage<'_>) -> Scene {
    stage.task = *stage.dice.pick(&JUDGED);
    // Whom an agent asks is not itself.
    stage.agent = AGENTS[stage.dice.below(AGENTS.len() - 1)];
    let agent = stage.agent;
    let works: &[WorkKind] = match stage.task {
        APPROVED => &[WorkKind::Message, WorkKind::Slow],
        PLANNED => &[WorkKind::Finish, WorkKind::Plan, WorkKind::Ask],
        REVIEWED => &[WorkKind::Message, WorkKind::Done, WorkKind::Finish],
        _ => &[WorkKind::Slow, WorkKind::Message, WorkKind::Message],
    };
    let mut scene = Scene::new();
    for kind in works {
        let author = *stage.dice.pick(&[Author::Ann, Author::Bob, Author::Ci]);
        let sent = stage.send(*kind, QueueMode::Followup, author);
        scene.push((Via::Nats, stage.dice.between(0, 800), sent));
    }
    if matches!(stage.task, APPROVED | PLANNED | REVIEWED) {
        scene.extend(two_answers(stage));
        let late = stage.send(WorkKind::Finish, QueueMode::Followup, Author::Ann);
        scene.push((Via::Nats, stage.dice.between(0, 800), late));
        scene.extend(two_answers(stage));
    } else {
        let others: Vec<_> = AGENTS.into_iter().filter(|other| *other != agent).collect();
        let hand = Offered::Handover {
            task: stage.task.to_owned(),
            from: agent.to_owned(),
            to: (*stage.dice.pick(&others)).to_owned(),
        };
        scene.push((Via::Http, stage.dice.between(0, 2_500), hand));
        let late = stage.send(WorkKind::Message, QueueMode::Followup, Author::Ann);
        scene.push((Via::Nats, stage.dice.between(0, 300), late));
    }
    scene
}

/// A hold, items that wait for its end, and edits of them.
fn hold(stage: &mut Stage<'_>) -> Scene {
    let (task, agent) = (stage.task.to_owned(), stage.agent.to_owned());
    let scopes = [
        HoldScope::Session,
        HoldScope::Task,
        HoldScope::Agent,
        HoldScope::Account,
    ];
    let hold = Offered::Hold {
        scope: *stage.dice.pick(&scopes),
        task: task.clone(),
        agent: agent.clone(),
        running: *stage
            .dice
            .pick(&[HoldRunning::Finish, HoldRunning::Finish, HoldRunning::Stop]),
        for_ms: stage.dice.between(1_500, 5_000),
    };
    // A session to hold.
    let mut scene = vec![(
        Via::Nats,
        0,
        stage.send(WorkKind::Message, QueueMode::Followup, Author::Ann),
    )];
    scene.push((Via::Http, 400, hold));
    for _ in 0..stage.dice.below(3) + 2 {
        let author = *stage.dice.pick(&[Author::Ann, Author::Bob, Author::Ci]);
        let waits = stage.send(WorkKind::Message, QueueMode::Followup, author);
        scene.push((Via::Nats, stage.dice.between(50, 300), waits));
    }
    for _ in 0..=stage.dice.below(3) {
        let op = *stage
            .dice
            .pick(&[EditOp::Withdraw, EditOp::Withdraw, EditOp::Replace, EditOp::Promote]);
        let (task, agent) = (task.clone(), agent.clone());
        scene.push((
            Via::Http,
            stage.dice.between(50, 600),
            Offered::Edit { task, agent, op },
        ));
    }
    scene
}

/// A turn that takes seconds, items that wait behind it, a brake, and perhaps what opens its gate: else the end of the campaign does.
fn brake(stage: &mut Stage<'_>) -> Scene {
    let (task, agent) = (stage.task, stage.agent);
    // What a service alone has sent waits for a person.
    let all = [Author::Ci, Author::Ann, Author::Bob];
    let authors = &all[..*stage.dice.pick(&[1, all.len()])];
    let mut scene = vec![(
        Via::Nats,
        0,
        stage.send(WorkKind::Slow, QueueMode::Followup, Author::Ci),
    )];
    for _ in 0..stage.dice.below(4) + 1 {
        let mode = *stage
            .dice
            .pick(&[QueueMode::Followup, QueueMode::Collect, QueueMode::Collect]);
        let kind = *stage.dice.pick(&[WorkKind::Message, WorkKind::Message, WorkKind::Slow]);
        let author = *stage.dice.pick(authors);
        let waits = stage.send(kind, mode, author);
        scene.push((Via::Nats, stage.dice.between(100, 400), waits));
    }
    let then = *stage.dice.pick(&[StopThen::Hold, StopThen::Hold, StopThen::Continue]);
    let author = *stage.dice.pick(authors);
    let after_ms = *stage.dice.pick(&[0, 0, 0, 1_500, 4_000, 6_000]);
    let brake = match stage.dice.below(6) {
        0 => stage.send(WorkKind::Message, QueueMode::Steer, author),
        1 | 2 => Offered::Reset {
            task: task.to_owned(),
            agent: agent.to_owned(),
            queue: *stage
                .dice
                .pick(&[ResetQueue::Keep, ResetQueue::Keep, ResetQueue::Cancel]),
            in_flight: *stage.dice.pick(ResetInFlight::ALL),
            after_ms,
        },
        _ => Offered::Stop {
            task: task.to_owned(),
            agent: agent.to_owned(),
            then,
            named: stage.dice.below(4) > 0,
            after_ms,
        },
    };
    scene.push((Via::Http, stage.dice.between(100, 2_500), brake));
    let opens = match stage.dice.below(5) {
        0 | 1 => Some(Offered::Resume {
            task: task.to_owned(),
            agent: agent.to_owned(),
        }),
        2 => Some(stage.send(WorkKind::Reply, QueueMode::Followup, Author::Ann)),
        _ => None,
    };
    scene.extend(opens.map(|opens| (Via::Http, stage.dice.between(1_500, 4_000), opens)));
    if stage.dice.below(3) == 0 {
        scene.push((Via::Http, stage.dice.between(0, 2_000), replay(stage)));
    }
    scene
}

fn replay(stage: &Stage<'_>) -> Offered {
    Offered::Replay {
        task: stage.task.to_owned(),
        agent: stage.agent.to_owned(),
    }
}

fn notification(dice: &mut Dice, id: String, effect: String) -> Offered {
    let task = match dice.below(20) {
        0 => None,
        // The notification creates it.
        1 => Some(format!("NEW-{}", dice.below(6))),
        _ => Some((*dice.pick(&TASKS)).to_owned()),
    };
    let mode = dice.weighted(MODES, |(_, weight)| *weight).0;
    let author = *dice.pick(&[Author::Ann, Author::Ann, Author::Bob, Author::Ci]);
    if dice.below(12) == 0 {
        return Offered::Notification {
            id,
            task,
            agents: AGENTS[..2].iter().map(|&agent| agent.to_owned()).collect(),
            work: reply(effect),
            mode,
            author,
        };
    }
    let kind = dice.weighted(WORK, |(_, weight)| *weight).0;
    let able = if kind == WorkKind::Ask {
        &AGENTS[..2]
    } else {
        &AGENTS[..]
    };
    Offered::Notification {
        id,
        agents: vec![(*dice.pick(able)).to_owned()],
        // Tools with a task argument need a turn with a task.
        work: match (&task, kind) {
            (None, WorkKind::Silent) => Work { kind, effect },
            (None, _) => reply(effect),
            (Some(_), _) => Work { kind, effect },
        },
        task,
        mode,
        author,
    }
}

/// A person writes to their orchestrator, which answers or gives work away.
fn to_orchestrator(dice: &mut Dice, id: String, effect: String) -> Offered {
    let person = dice.below(ORCHESTRATORS.len());
    let kind = *dice.pick(&[WorkKind::Reply, WorkKind::Child, WorkKind::Mail, WorkKind::Silent]);
    Offered::Notification {
        id,
        task: None,
        agents: vec![ORCHESTRATORS[person].to_owned()],
        work: Work { kind, effect },
        // Nobody reaches into a turn of theirs over NATS.
        mode: *dice.pick(&[QueueMode::Followup, QueueMode::Followup, QueueMode::Collect]),
        author: [Author::Ann, Author::Bob][person],
    }
}

fn reply(effect: String) -> Work {
    Work {
        kind: WorkKind::Reply,
        effect,
    }
}
