//! Collects the records of a running campaign; at the end they are the [`Records`]. Entries are added and never changed, except
//! that an offer gets its attempts.

use std::sync::{Mutex, MutexGuard, PoisonError};

use time::OffsetDateTime;

use crate::records::{Aim, Answer, ApiAnswer, Fired, Offer, Offered, Sample, Try};

/// Bytes kept of each API answer: enough to find another account's texts.
const ANSWERS_MAX: usize = 20_000;

#[derive(Default)]
pub(crate) struct Book {
    offers: Mutex<Vec<Offer>>,
    aims: Mutex<Vec<Aim>>,
    fired: Mutex<Vec<Fired>>,
    answers: Mutex<Vec<ApiAnswer>>,
    samples: Mutex<Vec<Sample>>,
}

impl Book {
    /// Gives its number.
    pub(crate) fn offer(&self, account: String, what: Offered) -> usize {
        let mut offers = lock(&self.offers);
        let number = offers.len();
        offers.push(Offer {
            number,
            account,
            what,
            tries: Vec::new(),
        });
        number
    }

    pub(crate) fn tried(&self, number: usize, tried: Try) {
        lock(&self.offers)[number].tries.push(tried);
    }

    pub(crate) fn aimed(&self, aim: Aim) {
        lock(&self.aims).push(aim);
    }

    pub(crate) fn aims(&self) -> Vec<Aim> {
        lock(&self.aims).clone()
    }

    pub(crate) fn fired(&self, kind: &str, target: impl Into<String>, from: OffsetDateTime) {
        lock(&self.fired).push(Fired {
            kind: kind.to_owned(),
            target: target.into(),
            from,
            until: OffsetDateTime::now_utc(),
        });
    }

    pub(crate) fn answered(&self, answer: ApiAnswer) {
        let mut answers = lock(&self.answers);
        if answers.len() < ANSWERS_MAX {
            answers.push(answer);
        }
    }

    pub(crate) fn sampled(&self, samples: impl IntoIterator<Item = Sample>) {
        lock(&self.samples).extend(samples);
    }

    pub(crate) fn samples(&self) -> Vec<Sample> {
        lock(&self.samples).clone()
    }

    pub(crate) fn offers(&self) -> Vec<Offer> {
        lock(&self.offers).clone()
    }

    /// Matching offers among the newest `among`.
    pub(crate) fn recent(&self, among: usize, fits: impl Fn(&Offer) -> bool) -> Vec<Offer> {
        let offers = lock(&self.offers);
        let from = offers.len().saturating_sub(among);
        offers[from..].iter().filter(|offer| fits(offer)).cloned().collect()
    }

    pub(crate) fn find(&self, number: usize) -> Offer {
        lock(&self.offers)[number].clone()
    }

    pub(crate) fn faults(&self) -> Vec<Fired> {
        lock(&self.fired).clone()
    }

    pub(crate) fn answers(&self) -> Vec<ApiAnswer> {
        lock(&self.answers).clone()
    }
}

/// No code panics while it holds this lock, and the guarded data is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Offer {
    pub(crate) fn is_accepted(&self) -> bool {
        self.tries.iter().any(|tried| tried.answer == Answer::Accepted)
    }

    /// Accepted or refused.
    pub(crate) fn is_answered(&self) -> bool {
        self.tries
            .iter()
            .any(|tried| !matches!(tried.answer, Answer::Unknown { .. }))
    }
}
