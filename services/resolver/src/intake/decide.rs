//! Decides what happens to a notification: accepted for these agents, a duplicate, or refused. Pure.
//!
//! The checks run in this order, since the earlier answer is the more useful one: the account exists; the notification
//! is not a duplicate; the hop limit holds; task and message agree (S9); the task exists, or may be created; the
//! recipients are known; and they may receive it, if it is for the coordinator's chat (S6). Nothing is accepted in
//! part: one unknown agent of three refuses all three.
//!
//! A notification that fans out is not stored itself. One part is stored per agent, under its own id. The parts' ids
//! identify a duplicate, and an agent assigned since then gets its part.

use contracts::{
    header,
    notification::{Notification, Recipients, Refusal, RefusalReason},
};
use domain::{
    AgentId, AgentRef, NotificationId, NotificationState, Owner, QueueLimits, SessionAddress, SessionOf, TaskId,
    session::admission,
};

use super::{
    facts::{AccountFacts, BatchFacts, Known},
    received::Received,
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    Accept(Accepted),
    /// All of it was accepted or refused before.
    Duplicate,
    Refuse(Refused),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    pub task: AcceptedTask,
    /// At least one.
    pub entries: Vec<Entry>,
    /// Number of parts that were accepted before.
    pub duplicates: u64,
    /// The row of a refused whole. The parts replace it.
    pub replaces: Option<NotificationId>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AcceptedTask {
    None,
    /// An existing task, with the id as its first client spelled it.
    Known(TaskId),
    /// A task to create.
    New(TaskId),
}

impl AcceptedTask {
    pub fn id(&self) -> Option<&TaskId> {
        match self {
            Self::None => None,
            Self::Known(task) | Self::New(task) => Some(task),
        }
    }
}

/// One queue row to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub id: NotificationId,
    pub agent: AgentId,
    /// Queue an existing refused or failed row again instead of inserting a new one.
    pub requeue: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    pub refusal: Refusal,
    /// The single recipient, if it is known.
    pub agent: Option<AgentId>,
    /// Whether the account exists. A dead letter without an account is stored under the operator's account.
    pub account_exists: bool,
    /// The task, if it exists.
    pub task: Option<TaskId>,
    /// Whether to store a row that answers queries for the id. False when the id is taken, and when the publisher gave
    /// none.
    pub keep_row: bool,
}

/// Decides one message. The facts must contain the batch's earlier decisions.
pub fn decide(received: &Received, facts: &BatchFacts, limits: &QueueLimits) -> Decision {
    let Some(account) = &received.account else {
        let refusal = match &received.content {
            Err(refusal) => refusal.clone(),
            Ok(_) => Refusal::new(RefusalReason::InvalidSubject, "the subject names no account"),
        };
        return Decision::Refuse(Refused::outside(refusal));
    };
    let Some(known) = facts.account(account) else {
        let detail = format!("there is no account {account}: create it, then redrive");
        return Decision::Refuse(Refused::outside(Refusal::new(RefusalReason::UnknownAccount, detail)));
    };
    let verdict = match &received.content {
        Ok(notification) => judge(received, notification, known, limits),
        Err(refusal) => match known.notification(&received.id) {
            Some(before) if before.says(received.hash) && !received.is_redrive => Ok(Verdict::Duplicate),
            Some(_) | None => Err(refusal.clone()),
        },
    };
    match verdict {
        Ok(Verdict::Accept(accepted)) => Decision::Accept(accepted),
        Ok(Verdict::Duplicate) => Decision::Duplicate,
        Err(refusal) => Decision::Refuse(Refused {
            agent: sole_agent(received, known),
            account_exists: true,
            task: received.task.as_ref().and_then(|task| known.task(task)).cloned(),
            keep_row: received.given_id.is_some()
                && known.notification(&received.id).is_none()
                // Where a part's id was taken, a row of the whole would describe the parts' earlier state.
                && refusal.reason != RefusalReason::IdConflict,
            refusal,
        }),
    }
}

impl Refused {
    fn outside(refusal: Refusal) -> Refused {
        Refused {
            refusal,
            agent: None,
            account_exists: false,
            task: None,
            keep_row: false,
        }
    }
}

/// Ids under which the parts of a fanned-out notification are stored. Empty when it does not fan out, or when a
/// recipient is unknown.
pub fn part_ids(received: &Received, facts: &BatchFacts) -> Vec<NotificationId> {
    let Some((account, notification)) = received
        .account
        .as_ref()
        .and_then(|account| facts.account(account))
        .zip(received.content.as_ref().ok())
    else {
        return Vec::new();
    };
    match agents(received, notification, account) {
        Ok(Agents::Many(agents)) => agents
            .into_iter()
            .filter_map(|agent| part_id(&received.id, agent).ok())
            .collect(),
        Ok(Agents::One(_)) | Err(_) => Vec::new(),
    }
}

enum Verdict {
    Accept(Accepted),
    Duplicate,
}

fn judge(
    received: &Received,
    notification: &Notification,
    account: &AccountFacts,
    limits: &QueueLimits,
) -> Result<Verdict, Refusal> {
    let agents = agents(received, notification, account);
    let before = match account.notification(&received.id) {
        Some(known) => Some(before(received, known, &agents, &notification.recipients)?),
        None => None,
    };
    if before == Some(Before::Same) {
        return Ok(Verdict::Duplicate);
    }
    // The queue length is checked later, when the session is locked.
    let admitted = admission(received.hops, &notification.sender, 0, limits);
    admitted.map_err(|why| Refusal::inadmissible(why, received.cause.as_deref()))?;
    message_check(received, notification, account)?;
    let task = task(received, account)?;
    let agents = agents?;
    coordinator_check(task.id(), &agents, account)?;
    let accepted = match agents {
        Agents::One(agent) => Accepted {
            task,
            entries: vec![Entry {
                id: received.id.clone(),
                agent,
                requeue: before == Some(Before::Again),
            }],
            duplicates: 0,
            replaces: None,
        },
        Agents::Many(agents) => {
            let (entries, duplicates) = parts(received, &agents, account)?;
            if entries.is_empty() {
                return Ok(Verdict::Duplicate);
            }
            Accepted {
                task,
                entries,
                duplicates,
                replaces: before.map(|_| received.id.clone()),
            }
        }
    };
    Ok(Verdict::Accept(accepted))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Same,
    /// Redriven: queue it again.
    Again,
}

/// Compares a stored notification with a new one of the same id.
fn before(
    received: &Received,
    known: &Known,
    agents: &Result<Agents, Refusal>,
    recipients: &Recipients,
) -> Result<Before, Refusal> {
    let was_refused = known.state == NotificationState::Refused;
    // A refused notification reached no agent. Agents that were removed since are not compared.
    let agrees = was_refused
        || match (known.agent, agents, recipients) {
            (Some(then), Ok(Agents::One(now)), _) => then == *now,
            (Some(_), _, Recipients::Many(_) | Recipients::Assignees) => false,
            // The hash tells orchestrators apart.
            (Some(_), _, Recipients::One(_) | Recipients::Session(_)) | (None, _, _) => true,
        };
    if !known.says(received.hash) || !agrees {
        return Err(Refusal::id_conflict(&received.id));
    }
    let may_go_again = was_refused || known.state == NotificationState::Failed;
    Ok(if received.is_redrive && may_go_again {
        Before::Again
    } else {
        Before::Same
    })
}

/// S9: a message belongs to the thread of the notification's own task.
fn message_check(received: &Received, notification: &Notification, account: &AccountFacts) -> Result<(), Refusal> {
    let Some(message) = notification.message_id else {
        return Ok(());
    };
    let task = received.task.as_ref().map(TaskId::key);
    let mismatch = |detail: String| Err(Refusal::new(RefusalReason::MessageMismatch, detail));
    match (account.message_task(message), task) {
        (Some(home), Some(task)) if *home == task => Ok(()),
        // The error does not name the thread: the publisher may have no right to know it.
        (Some(_) | None, Some(task)) => mismatch(format!("message {message} is not in the thread of task {task}")),
        (Some(_) | None, None) => mismatch(format!(
            "message {message} cannot go with a notification that names no task"
        )),
    }
}

/// S6: notifications of the coordinator's chat reach the coordinator only.
fn coordinator_check(task: Option<&TaskId>, agents: &Agents, account: &AccountFacts) -> Result<(), Refusal> {
    let Some(task) = task else { return Ok(()) };
    let all = match agents {
        Agents::One(agent) => std::slice::from_ref(agent),
        Agents::Many(agents) => agents.as_slice(),
    };
    match all.iter().find(|agent| !account.may_reach(task, **agent)) {
        None => Ok(()),
        Some(stranger) => Err(Refusal::new(
            RefusalReason::NotCoordinator,
            format!(
                "task {task} is the coordinator's chat and not assigned to agent {stranger}: name the task that it is about, or \
                 assign the chat to the agent"
            ),
        )),
    }
}

fn task(received: &Received, account: &AccountFacts) -> Result<AcceptedTask, Refusal> {
    let Some(task) = &received.task else {
        return Ok(AcceptedTask::None);
    };
    match account.task(task) {
        Some(task) => Ok(AcceptedTask::Known(task.clone())),
        None if account.auto_create_tasks => Ok(AcceptedTask::New(task.clone())),
        None => Err(Refusal::new(
            RefusalReason::UnknownTask,
            format!("there is no task {task}, and this account does not create tasks by itself (auto_create_tasks)"),
        )),
    }
}

enum Agents {
    One(AgentId),
    /// Fans out: at least one agent, each once.
    Many(Vec<AgentId>),
}

fn agents(received: &Received, notification: &Notification, account: &AccountFacts) -> Result<Agents, Refusal> {
    let find = |agent: &AgentRef| {
        account.agent(agent).ok_or_else(|| {
            Refusal::new(
                RefusalReason::UnknownAgent,
                format!("there is no agent {agent} in this account, or it was removed"),
            )
        })
    };
    match &notification.recipients {
        Recipients::One(agent) => find(agent).map(Agents::One),
        Recipients::Many(agents) => {
            let mut found = agents.iter().map(find).collect::<Result<Vec<_>, _>>()?;
            // One agent may be named by id and by slug.
            found.sort_unstable();
            found.dedup();
            Ok(Agents::Many(found))
        }
        Recipients::Assignees => {
            let Some(task) = &received.task else {
                return Err(no_agent("neither an agent nor a task is named".to_owned()));
            };
            let found = account.assignees(task);
            if !found.is_empty() {
                return Ok(Agents::Many(found));
            }
            Err(no_agent(format!("no agent is named, and task {task} has no assignee")))
        }
        Recipients::Session(address) => addressed(received, address, account).map(Agents::One),
    }
}

/// The agent of an addressed session. The session is that of its conversation, whichever generation is open.
fn addressed(received: &Received, address: &SessionAddress, account: &AccountFacts) -> Result<AgentId, Refusal> {
    let refuse = |reason, detail: String| Refusal::new(reason, format!("session {address}: {detail}"));
    let mismatch = |detail: &str| refuse(RefusalReason::SessionMismatch, detail.to_owned());
    let of = received.account.as_ref().and_then(|account| address.within(account));
    let task = received.task.as_ref().map(TaskId::key);
    let (agent, of_task) = match of.ok_or_else(|| mismatch("it is of another account"))? {
        SessionOf::Task { agent, task } => (agent, Some(task.key())),
        SessionOf::Agent(agent) => (agent, None),
        SessionOf::Orchestrator(owner) => {
            let none = || match &owner {
                Owner::User(user) => {
                    let detail = format!("the account has no member {user}, or they were removed");
                    refuse(RefusalReason::UnknownUser, detail)
                }
                Owner::Account => {
                    let detail = "the account's orchestrator is off: an admin enables it";
                    refuse(RefusalReason::OrchestratorOff, detail.to_owned())
                }
            };
            return match task {
                None => account.orchestrator(&owner).ok_or_else(none),
                Some(_) => Err(mismatch("it has no task: publish with - instead of a task")),
            };
        }
        // Whom it answers is in its name: only Signalbox writes there, in that person's name.
        SessionOf::Guest { .. } if received.headers.get(header::VOUCHED).is_none() => {
            return Err(mismatch(
                "a guest's session takes mail only: write to the orchestrator's handle",
            ));
        }
        SessionOf::Guest { owner, guest } => {
            let none = || {
                let detail = format!("nobody asks the orchestrator of {owner}, or {owner} or {guest} was removed");
                refuse(RefusalReason::UnknownUser, detail)
            };
            return match task {
                None => account.guest(&(owner.clone(), guest.clone())).ok_or_else(none),
                Some(_) => Err(mismatch("it has no task: publish with - instead of a task")),
            };
        }
        SessionOf::Branch { .. } | SessionOf::Replay(_) => {
            return Err(mismatch(
                "a branch or a replay takes no notifications: address the session that began it",
            ));
        }
    };
    match (of_task == task, of_task) {
        (true, _) => account
            .agent(&AgentRef::Id(agent))
            .ok_or_else(|| refuse(RefusalReason::UnknownAgent, "its agent was removed".to_owned())),
        (false, Some(task)) => Err(mismatch(&format!("it is of task {task}: publish for that task"))),
        (false, None) => Err(mismatch("it has no task: publish with - instead of a task")),
    }
}

fn no_agent(detail: String) -> Refusal {
    Refusal::new(RefusalReason::NoAgent, detail)
}

fn part_id(whole: &NotificationId, agent: AgentId) -> Result<NotificationId, Refusal> {
    NotificationId::parse(&format!("{whole}:{agent}")).map_err(|_| {
        Refusal::new(
            RefusalReason::InvalidField,
            "id: too long for a notification that goes to several agents: 91 characters at most, the agent's id is added",
        )
    })
}

/// The parts to queue, and the number of parts that are queued already.
fn parts(received: &Received, agents: &[AgentId], account: &AccountFacts) -> Result<(Vec<Entry>, u64), Refusal> {
    let (mut entries, mut duplicates) = (Vec::new(), 0);
    for &agent in agents {
        let id = part_id(&received.id, agent)?;
        let requeue = match account.notification(&id) {
            None => false,
            Some(known) if !known.says(received.hash) || known.agent.is_some_and(|then| then != agent) => {
                return Err(Refusal::id_conflict(&id));
            }
            Some(known) => {
                let may_go_again = matches!(known.state, NotificationState::Refused | NotificationState::Failed);
                if !(received.is_redrive && may_go_again) {
                    duplicates += 1;
                    continue;
                }
                true
            }
        };
        entries.push(Entry { id, agent, requeue });
    }
    Ok((entries, duplicates))
}

/// The agent for the row of a refusal.
fn sole_agent(received: &Received, account: &AccountFacts) -> Option<AgentId> {
    match &received.content.as_ref().ok()?.recipients {
        Recipients::One(agent) => account.agent(agent),
        Recipients::Session(address) => addressed(received, address, account).ok(),
        Recipients::Many(_) | Recipients::Assignees => None,
    }
}

#[cfg(test)]
mod tests;
