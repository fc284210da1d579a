//! The clients' requests and their times: notifications over both ways, thread messages, tasks closed and reopened, in several
//! accounts with the same names.

use super::OFFER_GAP_MS;
use crate::{
    dice::Dice,
    records::{Offered, Via, Work, WorkKind},
};

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

pub(super) fn plan(seed: u64, end_ms: u64) -> Vec<PlannedOffer> {
    let mut dice = Dice::new(seed, "offers");
    let mut offers = Vec::new();
    // Ids are unique per account, so accounts use the same ones.
    let mut ids = [0; ACCOUNTS];
    let mut at_ms = 0;
    while at_ms < end_ms {
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
    offers
}

fn notification(dice: &mut Dice, id: String, effect: String) -> Offered {
    let task = match dice.below(20) {
        0 => None,
        // The notification creates it.
        1 => Some(format!("NEW-{}", dice.below(6))),
        _ => Some((*dice.pick(&TASKS)).to_owned()),
    };
    if dice.below(12) == 0 {
        return Offered::Notification {
            id,
            task,
            agents: AGENTS[..2].iter().map(|&agent| agent.to_owned()).collect(),
            work: reply(effect),
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
    }
}

fn reply(effect: String) -> Work {
    Work {
        kind: WorkKind::Reply,
        effect,
    }
}
