//! How an orchestrator is called, how it speaks, and who may ask it.

use crate::{Handle, Owner, UserId, string_enum::string_enum};

string_enum! {
    /// How it speaks. `custom`: as its instructions say.
    Style { Professional = "professional", Casual = "casual", Terse = "terse", Custom = "custom" }
}

string_enum! {
    /// What colleagues may ask of a person's orchestrator: nothing, answers, or work that the person pays for.
    Reachable { Off = "off", Answer = "answer", Delegate = "delegate" }
}

/// Whom an orchestrator answers instead of its person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GuestText {
    pub user: UserId,
    pub reachable: Reachable,
}

/// What an orchestrator's prompts say of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdentityText {
    pub owner: Owner,
    /// The name of its person.
    pub person: Option<String>,
    pub name: String,
    pub handle: Handle,
    pub style: Style,
    pub instructions: String,
    /// The session answers somebody else.
    pub guest: Option<GuestText>,
    /// Another one for every change of these.
    pub revision: i32,
}

/// The name of an orchestrator until its person chooses one.
pub const NAME: &str = "Agent";

impl Handle {
    /// The first handle of a person's orchestrator, without a number.
    pub fn of_user(user: &UserId) -> Handle {
        let letters = user.as_str().bytes().map(|byte| match byte {
            b'_' | b'.' => '-',
            byte => char::from(byte),
        });
        let text: String = letters.take(Handle::CHARS_MAX).collect();
        Handle::parse(&text).expect("an id begins with a letter or digit, and has no others than these")
    }

    /// The same with a number behind it, for a handle that is taken.
    #[must_use]
    pub fn numbered(&self, number: usize) -> Handle {
        let end = format!("-{number}");
        let most = Handle::CHARS_MAX - end.len();
        let text: String = self.as_str().chars().take(most).collect();
        Handle::parse(&format!("{text}{end}")).expect("letters of a handle, and a number")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_made_of_an_id() {
        let check = |user: &str, expected: &str| {
            assert_eq!(Handle::of_user(&UserId::parse(user).unwrap()).as_str(), expected);
        };
        check("ann", "ann");
        check("ann.b_c-d", "ann-b-c-d");
        check(&"a".repeat(128), &"a".repeat(63));
        let handle = Handle::parse(&"a".repeat(63)).unwrap();
        assert_eq!(handle.numbered(12).as_str(), format!("{}-12", "a".repeat(60)));
    }
}
