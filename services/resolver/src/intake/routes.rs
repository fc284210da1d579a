//! Remembers where notifications went, by what they name, so that the next ones need no look-up. A route is never believed:
//! the statement that follows it compares it with the rows ([`items_append_known`]), and what does not hold is looked up
//! as if there were no route. Pure, but for the cache.
//!
//! [`items_append_known`]: mod@storage::session::items_append_known

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use contracts::notification::Recipients;
use domain::{
    AccountId, Actor, AgentRef, Conversation, Gate, QueueLimits, QueueMode, SessionId, SessionScope, TaskId,
    session::admission,
};
use quick_cache::{Weighter, sync::Cache};
use storage::session::{
    items_append_known::{Believed, Getting, Going, Known},
    sessions_lock::ActiveSession,
};

use super::{
    batch::{Decided, Work, account_of, row},
    facts::BatchFacts,
    received::Received,
    resolve::Finding,
};
use contracts::notification::Notification;
use storage::session::items_append::NewItem;

/// What a notification for one agent names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    account: AccountId,
    /// The task's key.
    task: Option<TaskId>,
    agent: AgentRef,
}

/// Where the last notification of an address went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    pub conversation: Conversation,
    pub scope: SessionScope,
    /// As its first client spelled it.
    pub task: Option<TaskId>,
    pub session: SessionId,
}

impl Address {
    /// None: the notification may go to several agents, or it needs a look-up of its own.
    fn of(received: &Received) -> Option<(Address, &Notification)> {
        let notification = received.content.as_ref().ok()?;
        let Recipients::One(agent) = &notification.recipients else {
            return None;
        };
        let is_steer = notification.mode() == QueueMode::Steer;
        if received.is_redrive || notification.message_id.is_some() || is_steer {
            return None;
        }
        let address = Address {
            account: received.account.clone()?,
            task: received.task.as_ref().map(TaskId::key),
            agent: agent.clone(),
        };
        Some((address, notification))
    }
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Address, Arc<Route>> for Bytes {
    fn weight(&self, address: &Address, route: &Arc<Route>) -> u64 {
        const FIXED: usize = 384;
        let task = |task: Option<&TaskId>| task.map_or(0, |task| task.as_str().len());
        let texts = 2 * address.account.as_str().len() + 2 * task(address.task.as_ref()) + task(route.task.as_ref());
        (FIXED + texts) as u64
    }
}

/// The routes of this process.
pub struct Routes(Cache<Address, Arc<Route>, Bytes>);

impl Default for Routes {
    fn default() -> Routes {
        /// The cache grows beyond this number.
        const EXPECTED: usize = 1_024;
        /// About 20,000 routes.
        const BYTES_MAX: u64 = 8 * 1024 * 1024;
        Routes(Cache::with_weighter(EXPECTED, BYTES_MAX, Bytes))
    }
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes").field("len", &self.0.len()).finish()
    }
}

impl Routes {
    pub fn learn(&self, learned: impl IntoIterator<Item = (Address, Route)>) {
        for (address, route) in learned {
            self.0.insert(address, Arc::new(route));
        }
    }

    /// Forgets the routes of a batch that could not follow them.
    pub fn forget(&self, batch: &[Received]) {
        for (address, _) in batch.iter().filter_map(Address::of) {
            self.0.remove(&address);
        }
    }

    /// The batch by its routes. None: a notification has no route, or may not enter by its own content. All go one way,
    /// since the order of a queue is the order of the stream.
    pub fn of<'a>(&self, batch: &'a [Received], limits: &QueueLimits) -> Option<Routed<'a>> {
        let mut ways: HashMap<Address, Arc<Route>> = HashMap::new();
        let mut places = Vec::with_capacity(batch.len());
        for received in batch {
            let (address, notification) = Address::of(received)?;
            admission(received.hops, &notification.sender, 0, limits).ok()?;
            let route = match ways.get(&address) {
                Some(route) => Arc::clone(route),
                None => self.0.get(&address)?,
            };
            ways.entry(address).or_insert_with(|| Arc::clone(&route));
            places.push((received, route));
        }
        let most = limits.items_max_for(&Actor::publisher()).map_or(i64::MAX, i64::from);
        Some(Routed { places, ways, most })
    }
}

/// A batch whose notifications all have routes.
#[derive(Debug)]
pub struct Routed<'a> {
    /// In stream order.
    places: Vec<(&'a Received, Arc<Route>)>,
    ways: HashMap<Address, Arc<Route>>,
    /// How long a queue may be. A person's may be longer: then the limits are applied one by one, without routes.
    pub most: i64,
}

/// The parameters of the statement that enters a batch.
#[derive(Debug)]
pub struct Entering<'a> {
    pub items: Vec<Going<'a>>,
    pub sessions: Vec<Getting>,
    pub believed: Vec<Believed<'a>>,
}

impl Routed<'_> {
    pub fn entering(&self) -> Entering<'_> {
        let mut numbers: BTreeMap<(&AccountId, SessionId), usize> = BTreeMap::new();
        let mut sessions: Vec<Getting> = Vec::new();
        let items = self.places.iter().map(|(received, route)| {
            let account = account_of(received);
            let n = *numbers.entry((account, route.session)).or_insert_with(|| {
                sessions.push(((account.clone(), route.session), 0));
                sessions.len() - 1
            });
            sessions[n].1 += 1;
            let item = NewItem {
                task: route.task.as_ref(),
                agent: Some(route.conversation.agent),
                queued: Some((route.session, i64::from(sessions[n].1))),
                ..row(received, account)
            };
            (item, i32::try_from(n + 1).expect("a batch is limited"))
        });
        let items = items.collect();
        let believed = self.ways.iter().map(|(address, route)| Believed {
            account: &address.account,
            agent: route.conversation.agent,
            slug: match &address.agent {
                AgentRef::Slug(slug) => Some(slug),
                AgentRef::Id(_) => None,
            },
            scope: route.scope,
            task: address.task.as_ref(),
        });
        Entering {
            items,
            sessions,
            believed: believed.collect(),
        }
    }

    /// The work of the sessions, in the order of [`Entering::sessions`], as they were found.
    pub fn work<'b>(&'b self, sessions: &[Getting], known: &[Known]) -> Vec<Work<'b>> {
        let newest: HashMap<SessionId, &(&Received, Arc<Route>)> =
            self.places.iter().map(|place| (place.1.session, place)).collect();
        let work = sessions.iter().zip(known).map(|(((_, id), items), known)| {
            let (received, route) = newest[id];
            Work {
                conversation: &route.conversation,
                session: ActiveSession {
                    id: *id,
                    generation: known.generation,
                    queue_tail: known.queue_tail,
                    queued: 0,
                    rests: known.rests,
                    gate: None,
                    active_turn: None,
                    will_hold: false,
                },
                released: false,
                finding: Finding::Reused,
                items: u64::from(items.unsigned_abs()),
                position: known.queue_tail + i64::from(*items),
                newest: received,
                task: route.task.as_ref(),
            }
        });
        work.collect()
    }
}

/// The routes of a batch that was looked up.
pub fn learned(decided: &Decided<'_>, work: &[Work<'_>], facts: &BatchFacts) -> Vec<(Address, Route)> {
    // Where an item may open a gate, the statement of known routes writes nothing.
    let goes = |work: &&Work<'_>| !work.session.will_hold && work.session.gate.is_none_or(|gate| gate == Gate::Collect);
    let sessions: HashMap<&Conversation, SessionId> = work
        .iter()
        .filter(goes)
        .map(|work| (work.conversation, work.session.id))
        .collect();
    let routes = decided.accepted.iter().filter_map(|(received, accepted)| {
        let (address, _) = Address::of(received)?;
        let scope = facts.account(&address.account)?.session_scope;
        let [entry] = &accepted.entries[..] else { return None };
        let conversation = Conversation::of(&address.account, scope, accepted.task.id(), entry.agent);
        let session = *sessions.get(&conversation)?;
        let task = accepted.task.id().cloned();
        Some((
            address,
            Route {
                conversation,
                scope,
                task,
                session,
            },
        ))
    });
    routes.collect()
}
