//! One account: how fast its keys may ask, and how many of their requests may be under way at one time, so that one
//! tenant cannot take all there is. Asked by the service once it knows whose key it is: before that, anybody could use
//! up what is another's.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use axum::http::Extensions;
use domain::AccountId;

use super::{
    Problem,
    buckets::{Buckets, Rate},
};
use crate::settings::HttpSettings;

/// Buckets that are kept; 24 bytes each.
const ACCOUNTS_MAX: usize = 65_536;

/// On every request that comes through [`super::router`].
#[derive(Clone, Debug)]
pub struct AccountLimits(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    pace: Buckets,
    /// No larger than the number of requests at one time.
    under_way: Mutex<HashMap<AccountId, usize>>,
    each_max: usize,
}

/// A request of an account, for as long as it is worked on.
#[derive(Debug)]
pub struct UnderWay {
    limits: AccountLimits,
    account: AccountId,
}

impl AccountLimits {
    pub(super) fn new(settings: &HttpSettings) -> AccountLimits {
        let rate = Rate {
            per_second: settings.account_requests_per_second.get(),
            burst: settings.account_requests_burst.get(),
        };
        AccountLimits(Arc::new(Parts {
            pace: Buckets::new(rate, ACCOUNTS_MAX, Instant::now()),
            under_way: Mutex::default(),
            each_max: settings.account_requests_max.usize(),
        }))
    }

    /// Those of the request at hand.
    ///
    /// # Panics
    /// For a request that did not come through [`super::router`], which is in front of every service.
    pub fn of(extensions: &Extensions) -> AccountLimits {
        let limits = extensions.get::<AccountLimits>();
        limits
            .cloned()
            .expect("the runtime's router puts limits on every request")
    }

    /// Lets a request of the account in, until what is given back is dropped. The caller's key must be the account's.
    pub fn enter(&self, account: &AccountId, now: Instant) -> Result<UnderWay, Problem> {
        self.0.pace.take(account, now).map_err(|wait| {
            super::refused("account");
            Problem::too_many_requests(wait).detail("too many requests of this account")
        })?;
        let mut under_way = self.0.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let count = under_way.entry(account.clone()).or_default();
        if *count >= self.0.each_max {
            super::refused("account_at_one_time");
            let detail = "too many requests of this account at one time";
            return Err(Problem::too_many_requests(std::time::Duration::ZERO).detail(detail));
        }
        *count += 1;
        drop(under_way);
        Ok(UnderWay {
            limits: self.clone(),
            account: account.clone(),
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut under_way = self.limits.0.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = under_way.get_mut(&self.account) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::Count;

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
        assert!(
            limits.0.under_way.lock().unwrap().is_empty(),
            "nothing is kept of those that are done"
        );
    }
}
