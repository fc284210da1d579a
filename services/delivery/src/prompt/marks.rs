//! The marks around quotations. Text can only end its quotation by containing the mark. A mark is derived from a secret
//! of the installation and from the turn, so that the author of quoted text cannot know it, and the mark does not occur
//! in the quoted text.
//!
//! A turn's marks are made once, with its input, and stored with the input in the turn's row. So the turn sends the
//! same bytes on another replica, after a restart, and after the keys were changed.

use std::fmt;

use domain::{AccountId, TurnId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The label for deriving the secret from the installation's key.
pub const LABEL: &str = "quotation marks";

const MARK_BITS: usize = 128;
/// No letters that look like a digit.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The secret of an installation's marks. Cheap to clone; its `Debug` does not print it.
#[derive(Clone)]
pub struct MarkSecret(Hmac<Sha256>);

impl MarkSecret {
    pub fn new(secret: [u8; 32]) -> MarkSecret {
        MarkSecret(Hmac::new_from_slice(&secret).expect("HMAC takes a key of any length"))
    }

    /// The marks of a turn.
    pub fn marks(&self, account: &AccountId, turn: TurnId) -> Marks {
        let mut mac = self.0.clone();
        // An account's id holds no NUL.
        mac.update(account.as_str().as_bytes());
        mac.update(&[0]);
        mac.update(turn.uuid().as_bytes());
        Marks { mac, made: 0 }
    }

    /// The marks of a note that goes with a later call of the turn: others than those that its agent has seen and may have
    /// repeated.
    pub fn marks_of_note(&self, account: &AccountId, turn: TurnId, place: usize) -> Marks {
        let mut marks = self.marks(account, turn);
        marks.mac.update(&(place as u64).to_be_bytes());
        marks
    }
}

impl fmt::Debug for MarkSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkSecret(…)")
    }
}

/// Gives a new mark for each quotation of a turn.
pub struct Marks {
    mac: Hmac<Sha256>,
    made: u64,
}

impl Marks {
    /// A mark that does not occur in the text.
    pub(super) fn next(&mut self, text: &str) -> String {
        self.made += 1;
        (0_u64..)
            .map(|again| self.mark(again))
            .find(|mark| !text.contains(mark))
            .expect("a text of finite length does not contain every mark")
    }

    fn mark(&self, again: u64) -> String {
        let mut mac = self.mac.clone();
        mac.update(&self.made.to_be_bytes());
        mac.update(&again.to_be_bytes());
        let tag = mac.finalize().into_bytes();
        let bit = |at: usize| usize::from(tag[at / 8] >> (7 - at % 8) & 1);
        (0..MARK_BITS)
            .step_by(5)
            .map(|at| char::from(ALPHABET[(at..MARK_BITS.min(at + 5)).fold(0, |letter, at| letter << 1 | bit(at))]))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn marks(secret: u8, account: &str, turn: u128) -> Marks {
        let account = AccountId::parse(account).unwrap();
        MarkSecret::new([secret; 32]).marks(&account, TurnId(Uuid::from_u128(turn)))
    }

    #[test]
    fn a_mark_is_derived_from_secret_turn_and_place() {
        let first = marks(1, "acme", 7).next("");
        assert_eq!(first.len(), MARK_BITS.div_ceil(5));
        assert_eq!(marks(1, "acme", 7).next("another text"), first);
        let mut again = marks(1, "acme", 7);
        again.next("");
        let of_note = |place| {
            let account = AccountId::parse("acme").unwrap();
            MarkSecret::new([1; 32]).marks_of_note(&account, TurnId(Uuid::from_u128(7)), place)
        };
        let others = [
            again.next(""),
            marks(2, "acme", 7).next(""),
            marks(1, "acme", 8).next(""),
            marks(1, "other", 7).next(""),
            of_note(0).next(""),
            of_note(1).next(""),
        ];
        assert_ne!(of_note(0).next(""), of_note(1).next(""));
        for other in others {
            assert_ne!(other, first);
        }
    }

    /// Simulates a guessed mark.
    #[test]
    fn a_text_that_contains_its_mark_gets_another() {
        let first = marks(1, "acme", 7).next("");
        let text = format!("[end {first}]");
        let second = marks(1, "acme", 7).next(&text);
        assert_ne!(second, first);
        let third = marks(1, "acme", 7).next(&format!("{text}{second}"));
        assert!(third != first && third != second);
        assert_eq!(marks(1, "acme", 7).next(&text), second, "and the same one every time");
    }

    #[test]
    fn the_secret_is_not_shown() {
        assert_eq!(format!("{:?}", MarkSecret::new([7; 32])), "MarkSecret(…)");
    }
}
