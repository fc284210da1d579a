//! The limits of one account: the rate of its requests, its concurrent requests, its concurrent use of the database,
//! and the bytes of its request and response bodies in memory. They keep one account from using up the service. The
//! service applies them to valid keys only: with any other key, a client could use up another account's limits. A
//! recently valid key counts before it is looked up again, so that a refused request costs no database lookup.
//!
//! A request is in progress until its client has taken the whole response. It releases its share of the database
//! earlier.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{body::Body, http::Extensions, response::Response};
use domain::{AccountId, ApiKey};
use opentelemetry::{
    global,
    metrics::{Gauge, Histogram},
};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    Problem,
    address::{self, Peer},
    answer,
    buckets::{Buckets, Rate},
    known::KnownKeys,
    share::{Held, Shared},
};
use crate::settings::HttpSettings;

/// The number of buckets; 24 bytes each.
const ACCOUNTS_MAX: usize = 65_536;

static HELD: LazyLock<Gauge<u64>> = LazyLock::new(|| {
    global::meter("runtime")
        .u64_gauge("signalbox.http.held")
        .with_unit("By")
        .with_description("Bytes of accounts' request bodies, and of responses that their clients have not taken yet")
        .build()
});

static WAIT: LazyLock<Histogram<f64>> = LazyLock::new(|| {
    global::meter("runtime")
        .f64_histogram("signalbox.http.connection_wait")
        .with_unit("s")
        .with_description("How long a request waited because its account used all its connections to Postgres")
        .with_boundaries(vec![0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0])
        .build()
});

/// Attached to every request that passes [`super::router`].
#[derive(Clone, Debug)]
pub struct AccountLimits(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    pace: Buckets,
    known: KnownKeys,
    unknown: address::Pace,
    requests: Arc<Shared<AccountId>>,
    /// Of request and response bodies.
    bytes: Arc<Shared<AccountId>>,
    /// Of the accounts with requests in progress.
    connections: Mutex<HashMap<AccountId, Weak<Connections>>>,
    connections_max: usize,
    wait: Duration,
}

/// An account's use of the database.
#[derive(Debug)]
struct Connections {
    free: Arc<Semaphore>,
    /// A line about a request that waited in vain has been logged.
    is_logged: AtomicBool,
}

/// A request of an account, until its response is gone.
#[derive(Debug)]
pub struct UnderWay {
    _place: Held<AccountId>,
    share: AccountShare,
}

/// The account's limits as one request uses them: connections to Postgres, and room for its body. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AccountShare {
    limits: AccountLimits,
    account: AccountId,
    connections: Arc<Connections>,
}

/// A refusal of an account that may try again at once, as soon as it has less under way.
fn too_much(why: &'static str, detail: &str) -> Problem {
    super::refused(why);
    Problem::too_many_requests(Duration::ZERO).detail(detail)
}

impl AccountLimits {
    pub(super) fn new(settings: &HttpSettings) -> AccountLimits {
        let rate = Rate {
            per_second: settings.account_requests_per_second.get(),
            burst: settings.account_requests_burst.get(),
        };
        AccountLimits(Arc::new(Parts {
            pace: Buckets::new(rate, ACCOUNTS_MAX, Instant::now()),
            known: KnownKeys::default(),
            unknown: address::Pace::of_unknown_keys(settings),
            requests: Shared::new(
                settings.requests_max.usize(),
                settings.account_requests_max.usize(),
                |_| (),
            ),
            bytes: Shared::new(
                settings.answer_bytes_max.usize(),
                settings.account_answer_bytes_max.usize(),
                |bytes| HELD.record(u64::try_from(bytes).unwrap_or(u64::MAX), &[]),
            ),
            connections: Mutex::default(),
            connections_max: settings.account_connections_max.usize(),
            wait: settings.account_wait_ms.duration(),
        }))
    }

    /// The limits of a request.
    ///
    /// # Panics
    /// For a request that did not come through [`super::router`], which is in front of every service.
    fn of(extensions: &Extensions) -> AccountLimits {
        let limits = extensions.get::<AccountLimits>();
        limits
            .cloned()
            .expect("the runtime's router puts limits on every request")
    }

    /// Authenticates the key and admits the request until the returned value is dropped. `None`: the key is not valid.
    /// A key that was valid at its last lookup is refused before `look_up` runs if its account is over its limits; any
    /// other key is refused if its address is over its limits.
    pub async fn admit<H, E: From<Problem>>(
        extensions: &Extensions,
        key: &ApiKey,
        look_up: impl Future<Output = Result<Option<H>, E>>,
    ) -> Result<Option<(H, UnderWay)>, E> {
        let limits = AccountLimits::of(extensions);
        let Parts { known, unknown, .. } = &*limits.0;
        let enter = || limits.enter(key.account(), Instant::now());
        let entered = if known.holds(key) {
            Some(enter()?)
        } else {
            if let Some(Peer(peer)) = extensions.get() {
                unknown.admit(*peer, Instant::now())?;
            }
            None
        };
        let Some(holder) = look_up.await? else {
            known.forget(key);
            return Ok(None);
        };
        known.note(key);
        let under_way = match entered {
            Some(under_way) => under_way,
            None => enter()?,
        };
        Ok(Some((holder, under_way)))
    }

    /// Admits a request that has another secret than a key, before the secret is looked up: at the rate of unknown keys.
    pub fn admit_guess(extensions: &Extensions) -> Result<(), Problem> {
        match extensions.get() {
            Some(Peer(peer)) => AccountLimits::of(extensions).0.unknown.admit(*peer, Instant::now()),
            None => Ok(()),
        }
    }

    fn enter(&self, account: &AccountId, now: Instant) -> Result<UnderWay, Problem> {
        self.0.pace.take(account, now).map_err(|wait| {
            super::refused("account");
            Problem::too_many_requests(wait).detail("too many requests of this account")
        })?;
        let place = self.0.requests.take(account, 1);
        let place =
            place.ok_or_else(|| too_much("account_at_one_time", "too many requests of this account at one time"))?;
        let share = AccountShare {
            limits: self.clone(),
            account: account.clone(),
            connections: self.connections(account),
        };
        Ok(UnderWay { _place: place, share })
    }

    fn connections(&self, account: &AccountId) -> Arc<Connections> {
        let mut accounts = self.0.connections.lock();
        if let Some(known) = accounts.get(account).and_then(Weak::upgrade) {
            return known;
        }
        // No more are left than requests are in progress.
        accounts.retain(|_, others| others.strong_count() > 0);
        let connections = Arc::new(Connections {
            free: Arc::new(Semaphore::new(self.0.connections_max)),
            is_logged: AtomicBool::new(false),
        });
        accounts.insert(account.clone(), Arc::downgrade(&connections));
        connections
    }
}

impl UnderWay {
    /// The limits that the request must acquire before it reads its body and uses the database.
    pub fn share(&self) -> AccountShare {
        self.share.clone()
    }

    /// Keeps the request in progress until its client has taken the response, or has left.
    pub fn hold(self, response: Response) -> Response {
        let AccountShare { limits, account, .. } = &self.share;
        let bytes = limits.0.bytes.take_anyway(account, answer::bytes_of(response.body()));
        answer::held(response, (self, bytes))
    }
}

impl AccountShare {
    /// Reserves room for the body: its declared size, or the maximum size if it declares none. Call it before the body
    /// is read, and hold the result while the body is used.
    pub fn room(&self, body: &Body) -> Result<Held<AccountId>, Problem> {
        self.room_for(answer::bytes_of(body))
    }

    /// Reserves room for so many bytes, such as those of a large response that is about to be read.
    pub fn room_for(&self, bytes: usize) -> Result<Held<AccountId>, Problem> {
        let room = self.limits.0.bytes.take(&self.account, bytes);
        room.ok_or_else(|| {
            let detail = "this account has as many bytes of requests and of answers under way as it may: send less at one \
                          time, and read what was answered";
            too_much("account_bodies", detail)
        })
    }

    /// Waits until the account uses fewer connections than its limit. Hold the result while the database is used.
    /// Refused while too many bytes of the account's responses are unread: the size of a response is known only once it
    /// is made. The requests admitted here make few responses at one time, and no large ones.
    pub async fn take(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = self.wait().await?;
        if self.limits.0.bytes.has_room(&self.account) {
            return Ok(permit);
        }
        let detail = "too many bytes of answers to this account wait to be read; read them first";
        Err(too_much("account_answers", detail))
    }

    async fn wait(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let free = &self.connections.free;
        if let Ok(permit) = Arc::clone(free).try_acquire_owned() {
            return Ok(permit);
        }
        let begun = Instant::now();
        // Dropping the wait loses only its place in the queue.
        let waited = timeout(self.limits.0.wait, Arc::clone(free).acquire_owned()).await;
        WAIT.record(begun.elapsed().as_secs_f64(), &[]);
        if let Ok(permit) = waited {
            return Ok(permit.expect("the semaphore is never closed"));
        }
        // Once while the account has requests in progress.
        if !self.connections.is_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                account_id = %self.account,
                connections_max = self.limits.0.connections_max,
                "request refused: its account uses all its database connections"
            );
        }
        let detail = "this account's requests use all the database connections that one account may; send fewer at \
                      one time, or ask for less";
        Err(too_much("account_connections", detail))
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};

    use super::*;
    use crate::settings::{Bytes, Count, Millis};

    fn limits(burst: u32, at_one_time: u32) -> AccountLimits {
        AccountLimits::new(&HttpSettings {
            account_requests_per_second: Count::new(1),
            account_requests_burst: Count::new(burst),
            account_requests_max: Count::new(at_one_time),
            ..HttpSettings::default()
        })
    }

    fn account(name: &str) -> AccountId {
        AccountId::parse(name).unwrap()
    }

    #[test]
    fn an_account_is_refused_for_a_while_and_others_are_not() {
        let (limits, now) = (limits(2, 10), Instant::now());
        let enter = |name: &str, seconds: u64| {
            limits
                .enter(&account(name), now + Duration::from_secs(seconds))
                .map(drop)
        };
        assert!(enter("acme", 0).is_ok() && enter("acme", 0).is_ok());
        let problem = enter("acme", 0).unwrap_err();
        assert_eq!((problem.status().as_u16(), problem.code()), (429, "too_many_requests"));
        assert!(enter("other", 0).is_ok());
        assert!(enter("acme", 1).is_ok() && enter("acme", 1).is_err());
    }

    #[test]
    fn an_account_has_so_many_requests_under_way_and_no_more() {
        let (limits, now) = (limits(100, 2), Instant::now());
        let enter = |name: &str| limits.enter(&account(name), now);
        let (first, second) = (enter("acme").unwrap(), enter("acme").unwrap());
        assert_eq!(enter("acme").unwrap_err().status().as_u16(), 429);
        assert!(enter("other").is_ok());
        drop(first);
        assert!(enter("acme").is_ok());
        drop(second);
        assert_eq!(limits.0.requests.all(), 0);
    }

    /// Two accounts that sent many slow bodies had taken every place, and the operator's requests were refused.
    #[test]
    fn a_few_accounts_leave_places_for_the_next() {
        let limits = AccountLimits::new(&HttpSettings {
            requests_max: Count::new(16),
            account_requests_max: Count::new(16),
            ..HttpSettings::default()
        });
        let mut held = Vec::new();
        let mut take_all = |name: &str| {
            let before = held.len();
            held.extend(std::iter::from_fn(|| limits.enter(&account(name), Instant::now()).ok()));
            held.len() - before
        };
        assert_eq!(["a", "b", "c", "d"].map(&mut take_all), [4, 3, 3, 2]);
        drop(held);
        assert_eq!(limits.0.requests.all(), 0);
    }

    #[tokio::test]
    async fn an_account_uses_so_many_connections_and_others_have_theirs() {
        let limits = AccountLimits::new(&HttpSettings {
            account_connections_max: Count::new(1),
            account_wait_ms: Millis::new(1),
            ..HttpSettings::default()
        });
        let enter = |name: &str| limits.enter(&account(name), Instant::now()).unwrap();
        let (first, second, other) = (enter("acme"), enter("acme"), enter("other"));
        let held = first.share().take().await.unwrap();
        let problem = second.share().take().await.unwrap_err();
        assert_eq!((problem.status().as_u16(), problem.code()), (429, "too_many_requests"));
        let of_other = other.share().take().await.unwrap();
        drop(held);
        assert!(second.share().take().await.is_ok());
        drop((first, second, other, of_other));
        assert_eq!(limits.0.requests.all(), 0);
        drop(enter("next"));
        assert_eq!(limits.0.connections.lock().len(), 1, "ended requests leave no entry");
    }

    /// Responses that no client reads.
    #[tokio::test]
    async fn an_accounts_answers_count_until_they_are_gone() {
        let limits = AccountLimits::new(&HttpSettings {
            answer_bytes_max: Bytes::new(4_000),
            account_answer_bytes_max: Bytes::new(1_000),
            ..HttpSettings::default()
        });
        let enter = |name: &str| limits.enter(&account(name), Instant::now());
        let answered = |name: &str| enter(name).unwrap().hold(Response::new(Body::from(vec![b'x'; 600])));
        let (first, second) = (answered("acme"), answered("acme"));
        let take = async |name: &str| enter(name).unwrap().share().take().await;
        let problem = take("acme").await.unwrap_err();
        assert_eq!((problem.status().as_u16(), problem.code()), (429, "too_many_requests"));
        let of_other = answered("other");
        assert_eq!(limits.0.bytes.all(), 1_800);
        assert_eq!(first.headers()["content-length"], "600");
        drop(first);
        assert!(take("acme").await.is_ok() && take("other").await.is_ok());
        // Bytes that were read are released too.
        let bytes = to_bytes(second.into_body(), 1_000).await.unwrap();
        assert_eq!((bytes.len(), limits.0.bytes.all()), (600, 600));
        drop(of_other);
        assert_eq!((limits.0.requests.all(), limits.0.bytes.all()), (0, 0));
    }

    /// Bodies that are announced and not sent.
    #[test]
    fn an_accounts_bodies_have_a_share_of_the_room() {
        let limits = AccountLimits::new(&HttpSettings {
            answer_bytes_max: Bytes::new(4_000),
            account_answer_bytes_max: Bytes::new(1_000),
            ..HttpSettings::default()
        });
        let enter = |name: &str| limits.enter(&account(name), Instant::now()).unwrap();
        let (acme, other) = (enter("acme"), enter("other"));
        let room = |of: &UnderWay, bytes: usize| of.share().room(&Body::from(vec![b'x'; bytes]));
        let first = room(&acme, 600).unwrap();
        let problem = room(&acme, 600).unwrap_err();
        assert_eq!((problem.status().as_u16(), problem.code()), (429, "too_many_requests"));
        let second = room(&acme, 400).unwrap();
        assert!(room(&other, 751).is_err(), "a quarter of what acme leaves is 750");
        let of_other = room(&other, 700).unwrap();
        assert_eq!(limits.0.bytes.all(), 1_700);
        let unknown = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
        assert!(other.share().room(&unknown).is_err(), "of no known size");
        drop(acme);
        assert_eq!(limits.0.bytes.all(), 1_700, "a body outlives its request's place");
        drop((first, second));
        assert!(room(&enter("acme"), 600).is_ok());
        drop((other, of_other));
        assert_eq!((limits.0.requests.all(), limits.0.bytes.all()), (0, 0));
    }

    /// The database is queried as often as `look_up` runs.
    #[tokio::test]
    async fn what_is_refused_costs_no_look_up() {
        let limits = AccountLimits::new(&HttpSettings {
            account_requests_per_second: Count::new(1),
            account_requests_burst: Count::new(3),
            address_requests_per_second: Count::new(10),
            address_requests_burst: Count::new(20),
            ..HttpSettings::default()
        });
        let asked = std::cell::Cell::new(0);
        let ask = async |name: &str, from: &str, is_held: bool| {
            let key = ApiKey::from_random(&account(name), [7; 40]);
            let mut extensions = Extensions::new();
            extensions.insert(Peer(from.parse().unwrap()));
            extensions.insert(limits.clone());
            let look_up = async {
                asked.set(asked.get() + 1);
                Ok::<_, Problem>(is_held.then_some(()))
            };
            let admitted = AccountLimits::admit(&extensions, &key, look_up).await;
            admitted
                .map(|admitted| admitted.is_some())
                .map_err(|problem| problem.status().as_u16())
        };
        let (ours, theirs) = ("203.0.113.9:1", "203.0.113.10:1");
        for _ in 0..3 {
            assert_eq!(ask("acme", ours, true).await, Ok(true));
        }
        for _ in 0..10 {
            assert_eq!(ask("acme", ours, true).await, Err(429));
        }
        assert_eq!(asked.get(), 3, "a key that held is refused before it is looked up");
        // One lookup finds that the key was revoked. From then on it is an unknown key and does not count against its
        // account.
        assert_eq!(ask("other", theirs, true).await, Ok(true));
        assert_eq!(ask("other", theirs, false).await, Ok(false));
        assert_eq!(ask("other", theirs, false).await, Ok(false));
        assert_eq!(
            ask("other", theirs, false).await,
            Err(429),
            "two keys that were not known"
        );
        assert_eq!(asked.get(), 6);
        assert_eq!(
            ask("other", "127.0.0.1:1", true).await,
            Ok(true),
            "from another address, at once"
        );
    }

    #[tokio::test]
    async fn a_large_answer_arrives_whole() {
        let limits = AccountLimits::new(&HttpSettings::default());
        let body: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let place = limits.enter(&account("acme"), Instant::now()).unwrap();
        let answer = place.hold(Response::new(Body::from(body.clone())));
        assert_eq!(to_bytes(answer.into_body(), 1 << 20).await.unwrap(), body);
    }
}
