//! The clients' requests and their times: notifications over both ways, thread messages, tasks closed and reopened, in several
//! accounts with the same names.

use super::OFFER_GAP_MS;
use crate::{
    dice::Dice,
    records::{Author, Offered, Via, Work, WorkKind},
};

use domain::{QueueMode, StopThen};

pub(crate) const ACCOUNTS: usize = 3;
/// Slugs, the same in every account.
pub(crate) const AGENTS: [&str; 3] = ["coder", "reviewer", "writer"];
/// The agent that the others call; no agent can call itself.
pub(crate) const ASKED: &str = AGENTS[2];
/// Created beforehand, the same in every account. The first two are assigned to two agents.
pub(crate) const TASKS: [&str; 6] = ["T-1", "T-2", "T-3", "T-4", "T-5", "T-6"];
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
    (WorkKind::History, 6),
    (WorkKind::Ask, 6),
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
/// One of so many offers begins a scene.
const SCENES: usize = 12;

pub(super) fn plan(seed: u64, end_ms: u64) -> Vec<PlannedOffer> {
    let mut dice = Dice::new(seed, "offers");
    let mut offers = Vec::new();
    // Ids are unique per account, so accounts use the same ones.
    let mut ids = [0; ACCOUNTS];
    let mut at_ms = 0;
    while at_ms < end_ms {
        if dice.below(SCENES) == 0 {
            scene(&mut dice, &mut ids, at_ms, &mut offers);
        }
        let account = dice.below(ACCOUNTS);
        let effect = format!("e{:06}", offers.len());
        let what = match dice.below(100) {
            0..=90 => {
                ids[account] += 1;
                notification(&mut dice, format!("n-{}", ids[account]), effect)
            }
            91..=95 => Offered::Message {
                task: TASKS[dice.below(ASSIGNED)].to_owned(),
                work: reply(effect),
            },
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

/// A turn that takes seconds, items that wait behind it, a brake, and perhaps what opens its gate: else the end of the campaign does.
fn scene(dice: &mut Dice, ids: &mut [usize; ACCOUNTS], mut at_ms: u64, offers: &mut Vec<PlannedOffer>) {
    let account = dice.below(ACCOUNTS);
    let (task, agent) = (*dice.pick(&TASKS), *dice.pick(&AGENTS));
    let send = |ids: &mut [usize; ACCOUNTS], kind, mode, author| {
        ids[account] += 1;
        let id = format!("n-{}", ids[account]);
        Offered::Notification {
            work: Work {
                kind,
                effect: format!("s{account}-{id}"),
            },
            id,
            task: Some(task.to_owned()),
            agents: vec![agent.to_owned()],
            mode,
            author,
        }
    };
    // What a service alone has sent waits for a person.
    let all = [Author::Ci, Author::Ann, Author::Bob];
    let authors = &all[..*dice.pick(&[1, all.len()])];
    let mut scene = vec![(Via::Nats, 0, send(ids, WorkKind::Slow, QueueMode::Followup, Author::Ci))];
    for _ in 0..dice.below(4) + 1 {
        let mode = *dice.pick(&[QueueMode::Followup, QueueMode::Collect, QueueMode::Collect]);
        let kind = *dice.pick(&[WorkKind::Message, WorkKind::Message, WorkKind::Slow]);
        let waits = send(ids, kind, mode, *dice.pick(authors));
        scene.push((Via::Nats, dice.between(100, 400), waits));
    }
    let then = *dice.pick(&[StopThen::Hold, StopThen::Hold, StopThen::Continue]);
    let brake = match dice.below(4) {
        0 => send(ids, WorkKind::Message, QueueMode::Steer, *dice.pick(authors)),
        _ => Offered::Stop {
            task: task.to_owned(),
            agent: agent.to_owned(),
            then,
            named: dice.below(4) > 0,
            after_ms: *dice.pick(&[0, 0, 0, 1_500, 4_000, 6_000]),
        },
    };
    scene.push((Via::Http, dice.between(100, 2_500), brake));
    let opens = match dice.below(5) {
        0 | 1 => Some(Offered::Resume {
            task: task.to_owned(),
            agent: agent.to_owned(),
        }),
        2 => Some(send(ids, WorkKind::Reply, QueueMode::Followup, Author::Ann)),
        _ => None,
    };
    scene.extend(opens.map(|opens| (Via::Http, dice.between(1_500, 4_000), opens)));
    for (via, after_ms, what) in scene {
        at_ms += after_ms;
        offers.push(PlannedOffer {
            at_ms,
            account,
            via,
            what,
        });
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

fn reply(effect: String) -> Work {
    Work {
        kind: WorkKind::Reply,
        effect,
    }
}
