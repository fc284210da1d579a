//! The limits of one account: the rate of its requests, its concurrent requests, its concurrent use of the database,
//! and the bytes of its request and response bodies in memory. They keep one account from using up the service. The
//! service applies them to valid keys only: with any other key, a client could use up another account's limits. A
//! recently valid key counts before it is looked up again, so that a refused request costs no database lookup.
//!
//! A request is in progress until its client has taken the whole response. It releases its share of the database
//! earlier.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{body::Body, http::Extensions, response::Response};
use domain::{AccountId, ApiKey};
use opentelemetry::{
    global,
    metrics::{Gauge, Histogram},
};
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
    share::share,
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
    held: Mutex<Held>,
    /// For all accounts together.
    requests_max: usize,
    account_requests_max: usize,
    connections_max: usize,
    wait: Duration,
    /// For all accounts together.
    bytes_max: usize,
    account_bytes_max: usize,
}

/// No larger than the number of concurrent requests.
#[derive(Debug, Default)]
struct Held {
    accounts: HashMap<AccountId, OfAccount>,
    requests: usize,
    /// Of request and response bodies.
    bytes: usize,
}

#[derive(Debug)]
struct OfAccount {
    requests: usize,
    bytes: usize,
    connections: Arc<Semaphore>,
    /// A line about a request that waited in vain has been logged.
    is_logged: bool,
}

impl Parts {
    fn held(&self) -> MutexGuard<'_, Held> {
        // Counters are consistent at any time, also after a panic.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn take(&mut self, account: &AccountId, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(of_account) = self.accounts.get_mut(account) {
            of_account.bytes = of_account.bytes.saturating_add(bytes);
        }
        self.record();
    }

    fn give_back(&mut self, account: &AccountId, requests: usize, bytes: usize) {
        self.bytes -= bytes;
        self.requests -= requests;
        if let Some(of_account) = self.accounts.get_mut(account) {
            of_account.bytes -= bytes;
            of_account.requests -= requests;
            if of_account.requests == 0 && of_account.bytes == 0 {
                self.accounts.remove(account);
            }
        }
        if bytes > 0 {
            self.record();
        }
    }

    /// How many requests the account has in progress, and how many it may have.
    fn share_of(&self, account: &AccountId, limits: &Parts) -> (usize, usize) {
        let own = self.accounts.get(account).map_or(0, |of_account| of_account.bytes);
        (own, share(limits.bytes_max, self.bytes - own, limits.account_bytes_max))
    }

    fn record(&self) {
        HELD.record(u64::try_from(self.bytes).unwrap_or(u64::MAX), &[]);
    }
}

/// A request of an account, until its response is gone.
#[derive(Debug)]
pub struct UnderWay {
    limits: AccountLimits,
    account: AccountId,
    answer_bytes: usize,
}

/// The account's limits as one request uses them: connections to Postgres, and room for its body. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AccountShare {
    limits: AccountLimits,
    account: AccountId,
    connections: Arc<Semaphore>,
}

/// Room for a body while it is in memory.
#[derive(Debug)]
pub struct BodyRoom {
    share: AccountShare,
    bytes: usize,
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
            held: Mutex::default(),
            requests_max: settings.requests_max.usize(),
            account_requests_max: settings.account_requests_max.usize(),
            connections_max: settings.account_connections_max.usize(),
            wait: settings.account_wait_ms.duration(),
            bytes_max: settings.answer_bytes_max.usize(),
            account_bytes_max: settings.account_answer_bytes_max.usize(),
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

    fn enter(&self, account: &AccountId, now: Instant) -> Result<UnderWay, Problem> {
        self.0.pace.take(account, now).map_err(|wait| {
            super::refused("account");
            Problem::too_many_requests(wait).detail("too many requests of this account")
        })?;
        let mut held = self.0.held();
        let own = held.accounts.get(account).map_or(0, |of_account| of_account.requests);
        if own >= share(self.0.requests_max, held.requests - own, self.0.account_requests_max) {
            super::refused("account_at_one_time");
            let detail = "too many requests of this account at one time";
            return Err(Problem::too_many_requests(Duration::ZERO).detail(detail));
        }
        held.requests += 1;
        let of_account = held.accounts.entry(account.clone()).or_insert_with(|| OfAccount {
            requests: 0,
            bytes: 0,
            connections: Arc::new(Semaphore::new(self.0.connections_max)),
            is_logged: false,
        });
        of_account.requests += 1;
        drop(held);
        Ok(UnderWay {
            limits: self.clone(),
            account: account.clone(),
            answer_bytes: 0,
        })
    }
}

impl UnderWay {
    /// The limits that the request must acquire before it reads its body and uses the database.
    pub fn share(&self) -> AccountShare {
        let held = self.limits.0.held();
        let of_account = held.accounts.get(&self.account);
        let of_account = of_account.expect("an account is known as long as a request of it is under way");
        AccountShare {
            limits: self.limits.clone(),
            account: self.account.clone(),
            connections: Arc::clone(&of_account.connections),
        }
    }

    /// Keeps the request in progress until its client has taken the response, or has left.
    pub fn hold(mut self, response: Response) -> Response {
        self.answer_bytes = answer::bytes_of(response.body());
        self.limits.0.held().take(&self.account, self.answer_bytes);
        answer::held(response, self)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.limits.0.held().give_back(&self.account, 1, self.answer_bytes);
    }
}

impl Drop for BodyRoom {
    fn drop(&mut self) {
        let AccountShare { limits, account, .. } = &self.share;
        limits.0.held().give_back(account, 0, self.bytes);
    }
}

impl AccountShare {
    /// Reserves room for the body: its declared size, or the maximum size if it declares none. Call it before the body
    /// is read, and hold the result while the body is used.
    pub fn room(&self, body: &Body) -> Result<BodyRoom, Problem> {
        let bytes = answer::bytes_of(body);
        let mut held = self.limits.0.held();
        let (own, max) = held.share_of(&self.account, &self.limits.0);
        if bytes > max.saturating_sub(own) {
            super::refused("account_bodies");
            let detail = "this account has as many bytes of requests and of answers under way as it may: send less at one \
                          time, and read what was answered";
            return Err(Problem::too_many_requests(Duration::ZERO).detail(detail));
        }
        held.take(&self.account, bytes);
        drop(held);
        Ok(BodyRoom {
            share: self.clone(),
            bytes,
        })
    }

    /// Waits until the account uses fewer connections than its limit. Hold the result while the database is used.
    /// Refused while too many bytes of the account's responses are unread: the size of a response is known only once it
    /// is made. The requests admitted here make few responses at one time, and no large ones.
    pub async fn take(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = self.wait().await?;
        let (own, max) = self.limits.0.held().share_of(&self.account, &self.limits.0);
        if own == 0 || own < max {
            return Ok(permit);
        }
        super::refused("account_answers");
        let detail = "too many bytes of answers to this account wait to be read; read them first";
        Err(Problem::too_many_requests(Duration::ZERO).detail(detail))
    }

    async fn wait(&self) -> Result<OwnedSemaphorePermit, Problem> {
        if let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() {
            return Ok(permit);
        }
        let begun = Instant::now();
        // Dropping the wait loses only its place in the queue.
        let waited = timeout(self.limits.0.wait, Arc::clone(&self.connections).acquire_owned()).await;
        WAIT.record(begun.elapsed().as_secs_f64(), &[]);
        if let Ok(permit) = waited {
            return Ok(permit.expect("the semaphore is never closed"));
        }
        super::refused("account_connections");
        self.log_refusal();
        let detail = "this account's requests use all the database connections that one account may; send fewer at \
                      one time, or ask for less";
        Err(Problem::too_many_requests(Duration::ZERO).detail(detail))
    }

    /// Logs once while the account has requests in progress.
    fn log_refusal(&self) {
        let mut held = self.limits.0.held();
        let of_account = held.accounts.get_mut(&self.account);
        if of_account.is_some_and(|of_account| !std::mem::replace(&mut of_account.is_logged, true)) {
            drop(held);
            tracing::warn!(
                account_id = %self.account,
                connections_max = self.limits.0.connections_max,
                "request refused: its account uses all its database connections"
            );
        }
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
        assert!(limits.0.held().accounts.is_empty(), "ended requests leave no entry");
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
        assert!(limits.0.held().accounts.is_empty() && limits.0.held().requests == 0);
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
        assert!(limits.0.held().accounts.is_empty());
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
        assert_eq!(limits.0.held().bytes, 1_800);
        assert_eq!(first.headers()["content-length"], "600");
        drop(first);
        assert!(take("acme").await.is_ok() && take("other").await.is_ok());
        // Bytes that were read are released too.
        let bytes = to_bytes(second.into_body(), 1_000).await.unwrap();
        assert_eq!((bytes.len(), limits.0.held().bytes), (600, 600));
        drop(of_other);
        assert!(limits.0.held().accounts.is_empty() && limits.0.held().bytes == 0);
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
        assert_eq!(limits.0.held().bytes, 1_700);
        let unknown = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
        assert!(other.share().room(&unknown).is_err(), "of no known size");
        drop(acme);
        assert_eq!(limits.0.held().bytes, 1_700, "a body outlives its request's place");
        drop((first, second));
        assert!(room(&enter("acme"), 600).is_ok());
        drop((other, of_other));
        assert!(limits.0.held().accounts.is_empty() && limits.0.held().bytes == 0);
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
