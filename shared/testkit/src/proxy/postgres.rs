//! The part of Postgres' protocol that finds the answer to a commit, and counts requests. Every message has a type and
//! a length, except before the start-up message: a client may ask whether the server speaks TLS, and the answer is one
//! byte. Only the position in the message and the beginning of a short one are kept.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
/// Length and code.
const REQUEST_BYTES: usize = 8;
/// Type and length.
const HEADER_BYTES: usize = 5;
const COMMAND_COMPLETE: u8 = b'C';
const COMMIT_TAG: &[u8] = b"COMMIT\0";
/// Transaction commands that commit nothing.
const ROLLBACK_TAG: &[u8] = b"ROLLBAC";
const READY: u8 = b'Z';
/// The status in [`READY`]: no transaction is open.
const IDLE: &[u8] = b"I";

/// The messages of a client before it starts.
#[derive(Default)]
pub(super) struct Greeting {
    head: Vec<u8>,
    over: bool,
}

impl Greeting {
    /// How many requests with an answer of one byte end in this piece.
    pub(super) fn requests_in(&mut self, piece: &[u8]) -> u64 {
        let mut found = 0;
        for byte in piece {
            if self.over {
                break;
            }
            self.head.push(*byte);
            if self.head.len() == REQUEST_BYTES {
                let code = u32::from_be_bytes([self.head[4], self.head[5], self.head[6], self.head[7]]);
                self.over = code != SSL_REQUEST && code != GSS_REQUEST;
                found += u64::from(!self.over);
                self.head.clear();
            }
        }
        found
    }
}

/// The messages of a server.
#[derive(Default)]
pub(super) struct Answers {
    header: Vec<u8>,
    /// The beginning of a body that may report a commit.
    tag: Vec<u8>,
    /// The remaining length of the body.
    left: usize,
    /// A statement was completed since the server was last ready.
    completed: bool,
    /// Since they were last taken.
    counted: Counts,
}

/// The work of a server: counts that depend on the code and not on the machine.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// How often the server reported that it is ready.
    pub round_trips: u64,
    /// Committed transactions, those of a single statement included.
    pub commits: u64,
}

impl Answers {
    /// The ranges of commits' answers in this piece: from the first byte of an answer to its end. An answer whose
    /// beginning was forwarded with an earlier piece is invalid without its end.
    pub(super) fn commits_in(&mut self, piece: &[u8], bare_answers: &AtomicU64) -> Vec<Range<usize>> {
        let mut commits = Vec::new();
        let mut start = 0;
        for (place, byte) in piece.iter().enumerate() {
            if self.left == 0 && self.header.is_empty() {
                if take_one(bare_answers) {
                    continue;
                }
                start = place;
            }
            if self.header.len() < HEADER_BYTES {
                self.header.push(*byte);
                if self.header.len() == HEADER_BYTES {
                    let length = u32::from_be_bytes([self.header[1], self.header[2], self.header[3], self.header[4]]);
                    self.left = usize::try_from(length).expect("32 bits fit").saturating_sub(4);
                }
            } else {
                self.left -= 1;
                if self.tag.len() < COMMIT_TAG.len() {
                    self.tag.push(*byte);
                }
            }
            if self.header.len() == HEADER_BYTES && self.left == 0 {
                if self.header[0] == COMMAND_COMPLETE && self.tag == COMMIT_TAG {
                    commits.push(start..place + 1);
                }
                self.count();
                self.header.clear();
                self.tag.clear();
            }
        }
        commits
    }

    /// Counts a completely read message.
    fn count(&mut self) {
        match self.header[0] {
            COMMAND_COMPLETE => self.completed |= self.tag != ROLLBACK_TAG,
            READY => {
                self.counted.round_trips += 1;
                self.counted.commits += u64::from(self.completed && self.tag == IDLE);
                self.completed = false;
            }
            _ => {}
        }
    }

    pub(super) fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counted)
    }
}

fn take_one(count: &AtomicU64) -> bool {
    count
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[kind][..], &length, body].concat()
    }

    #[test]
    fn finds_the_answer_of_a_commit_however_it_is_cut_up() {
        let before = [
            message(b'S', b"a\0b\0"),
            message(b'C', b"COMMIT PREPARED\0"),
            message(b'n', b""),
        ]
        .concat();
        let all = [before.clone(), message(b'C', b"COMMIT\0"), message(b'Z', b"I")].concat();
        let bare = AtomicU64::new(0);
        let commit = before.len()..before.len() + 12;
        assert_eq!(Answers::default().commits_in(&all, &bare), vec![commit.clone()]);
        let mut answers = Answers::default();
        let ends: Vec<usize> = (0..all.len())
            .filter(|place| !answers.commits_in(&all[*place..=*place], &bare).is_empty())
            .collect();
        assert_eq!(ends, [commit.end - 1]);
    }

    #[test]
    fn a_rollback_is_no_commit() {
        let bare = AtomicU64::new(0);
        assert!(
            Answers::default()
                .commits_in(&message(b'C', b"ROLLBACK\0"), &bare)
                .is_empty()
        );
    }

    #[test]
    fn counts_what_was_asked_and_what_stays() {
        let flight = |tags: &[&str], status: &[u8]| {
            let done = tags.iter().flat_map(|tag| message(b'C', format!("{tag}\0").as_bytes()));
            done.chain(message(b'Z', status)).collect::<Vec<u8>>()
        };
        let check = |flights: &[Vec<u8>], round_trips, commits| {
            let mut answers = Answers::default();
            for byte in flights.concat() {
                answers.commits_in(&[byte], &AtomicU64::new(0));
            }
            let expected = Counts { round_trips, commits };
            assert_eq!(answers.take_counts(), expected, "{flights:?}");
            assert_eq!(answers.take_counts(), Counts::default(), "taken is taken");
        };
        let begin = flight(&["BEGIN", "SELECT 1"], b"T");
        check(&[begin.clone(), flight(&["COMMIT"], b"I")], 2, 1);
        check(&[begin.clone(), flight(&["ROLLBACK"], b"I")], 2, 0);
        check(&[begin, flight(&[], b"E"), flight(&["ROLLBACK"], b"I")], 3, 0);
        check(&[flight(&["DELETE 3"], b"I")], 1, 1);
        check(&[flight(&[], b"I")], 1, 0);
    }

    #[test]
    fn messages_before_the_start_have_no_type() {
        let ssl = [8_u32.to_be_bytes(), SSL_REQUEST.to_be_bytes()].concat();
        let start = [9_u32.to_be_bytes(), 196_608_u32.to_be_bytes()].concat();
        let mut greeting = Greeting::default();
        assert_eq!(greeting.requests_in(&[ssl, start.clone(), start].concat()), 1);
        let answers = [b"N".to_vec(), message(b'C', b"COMMIT\0")].concat();
        let commits = Answers::default().commits_in(&answers, &AtomicU64::new(1));
        assert_eq!((commits.len(), &commits[0]), (1, &(1..13)));
    }
}
