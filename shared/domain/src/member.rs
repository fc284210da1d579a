//! Members: the people of an account.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{KeyId, KeyRole, UserId, is_reserved, string_enum::string_enum};

string_enum! {
    /// What a person may do in an account.
    MemberRole { Admin = "admin", Member = "member" }
}

impl MemberRole {
    /// What a key of this person may do: the lesser of the key's role and the person's.
    pub fn limits(self, key: KeyRole) -> KeyRole {
        match (self, key) {
            (Self::Member, KeyRole::Admin) => KeyRole::Member,
            (Self::Admin | Self::Member, key) => key,
        }
    }

    /// The role of a key that may do what the person may.
    pub fn key_role(self) -> KeyRole {
        self.limits(KeyRole::Admin)
    }
}

impl UserId {
    /// Not for a new member: it resembles a name of Signalbox's own, or has the form of a key's id, which is an author's id, too.
    pub fn is_reserved(&self) -> bool {
        is_reserved(self.as_str()) || KeyId::parse(self.as_str()).is_ok()
    }

    /// The id that an address suggests: what stands before the `@`, without a `+` and what follows. `None`: nothing of it may be an id.
    pub fn of_email(email: &Email) -> Option<UserId> {
        let local = email.0.split(['@', '+']).next().unwrap_or_default();
        let letters = |c: char| match c {
            'a'..='z' | '0'..='9' | '_' | '.' | '-' => c,
            _ => '-',
        };
        let id: String = local.chars().map(letters).collect();
        let id = UserId::parse(id.trim_start_matches(['_', '.', '-'])).ok()?;
        (!id.is_reserved()).then_some(id)
    }

    /// The same with a number behind it, for an id that is taken.
    pub fn numbered(&self, number: usize) -> Option<UserId> {
        UserId::parse(&format!("{self}-{number}")).ok()
    }
}

/// An e-mail address, in small letters: two spellings of one address are one person's.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Email(
    #[schemars(
        length(max = 254),
        regex(pattern = r"^[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9.-]+$")
    )]
    String,
);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an e-mail address: at most 254 ASCII characters, as in ann@example.com")]
pub struct NotAnEmail;

impl Email {
    pub fn parse(text: &str) -> Result<Email, NotAnEmail> {
        let (local, host) = text.split_once('@').ok_or(NotAnEmail)?;
        let is_local = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&b);
        let is_host = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
        let fits = text.len() <= 254
            && (1..=64).contains(&local.len())
            && local.bytes().all(is_local)
            && !host.is_empty()
            && host.bytes().all(is_host);
        if fits {
            Ok(Email(text.to_ascii_lowercase()))
        } else {
            Err(NotAnEmail)
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Email {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl FromStr for Email {
    type Err = NotAnEmail;
    fn from_str(text: &str) -> Result<Self, NotAnEmail> {
        Self::parse(text)
    }
}

/// An address is personal: it is not printed.
impl fmt::Debug for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Email(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_persons_key_may_do_no_more_than_the_person() {
        let check = |member: MemberRole, key: KeyRole, expected: KeyRole| {
            assert_eq!(member.limits(key), expected, "{member} {key}");
        };
        check(MemberRole::Admin, KeyRole::Admin, KeyRole::Admin);
        check(MemberRole::Admin, KeyRole::Member, KeyRole::Member);
        check(MemberRole::Member, KeyRole::Admin, KeyRole::Member);
        check(MemberRole::Member, KeyRole::Member, KeyRole::Member);
        check(MemberRole::Member, KeyRole::Publisher, KeyRole::Publisher);
        assert_eq!(MemberRole::Member.key_role(), KeyRole::Member);
    }

    #[test]
    fn an_address_is_ascii_and_compared_in_small_letters() {
        assert_eq!(
            Email::parse("Ann.B+x@Example.COM").unwrap().as_str(),
            "ann.b+x@example.com"
        );
        let long = format!("{}@b", "a".repeat(65));
        let longer = format!("a@{}", "b".repeat(253));
        for bad in [
            "", "ann", "@b", "a@", "a@b@c", "a b@c", "a@b c", "é@b", "a\r\n@b", "<a>@b", "a,b@c", &long, &longer,
        ] {
            assert!(Email::parse(bad).is_err(), "{bad}");
        }
        assert!(!format!("{:?}", Email::parse("ann@b").unwrap()).contains("ann"));
    }

    #[test]
    fn an_address_suggests_an_id() {
        let check = |email: &str, expected: Option<&str>| {
            let id = UserId::of_email(&Email::parse(email).unwrap());
            assert_eq!(id.as_ref().map(UserId::as_str), expected, "{email}");
        };
        check("Ann@example.com", Some("ann"));
        check("ann.b_c-d@b", Some("ann.b_c-d"));
        check("ann+work@b", Some("ann"));
        check("_ann'o@b", Some("ann-o"));
        check("operator@b", None);
        check("0011223344556677@b", None);
        check("+x@b", None);
        check("_@b", None);
    }
}
