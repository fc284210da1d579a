//! The events of a run: always a hash over all of them, and the last ones in words when a failed seed is run again. Words are slow,
//! so a successful run does not write them.

use std::collections::VecDeque;

const LINES_MAX: usize = 400;

#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    events: u64,
    lines: Option<VecDeque<String>>,
}

impl Trace {
    pub(crate) fn new(in_words: bool) -> Trace {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
            lines: in_words.then(VecDeque::new),
        }
    }

    /// `what` and the numbers are hashed; the text explains them.
    pub(crate) fn note(&mut self, at: i64, what: &'static str, numbers: [u64; 2], text: impl FnOnce() -> String) {
        self.events += 1;
        self.mix(at.unsigned_abs());
        for chunk in what.as_bytes().chunks(8) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(bytes));
        }
        numbers.into_iter().for_each(|number| self.mix(number));
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(format!("{:>5} {:>8} ms  {what:<20} {}", self.events, at, text()));
        }
    }

    fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.iter().flatten().cloned().collect()
    }
}
