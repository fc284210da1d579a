//! Whose something is that many agents work with, as an orchestrator: a person's, or the account's.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{IdError, UserId, columns::column};

/// Written `account` or `user:{user id}`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Owner {
    Account,
    User(UserId),
}

impl Owner {
    pub fn user(&self) -> Option<&UserId> {
        match self {
            Self::Account => None,
            Self::User(user) => Some(user),
        }
    }
}

/// No user: the account's.
impl From<Option<UserId>> for Owner {
    fn from(user: Option<UserId>) -> Owner {
        user.map_or(Owner::Account, Owner::User)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account => f.write_str("account"),
            Self::User(user) => write!(f, "user:{user}"),
        }
    }
}

impl FromStr for Owner {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.strip_prefix("user:") {
            Some(user) => UserId::parse(user).map(Self::User),
            None if text == "account" => Ok(Self::Account),
            None => Err(IdError::User),
        }
    }
}

impl Serialize for Owner {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Owner {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

column!(Owner: text);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_person_or_the_account() {
        for text in ["account", "user:ann"] {
            assert_eq!(text.parse::<Owner>().unwrap().to_string(), text);
        }
        for bad in ["", "Account", "user:", "user:A B", "ann"] {
            assert!(bad.parse::<Owner>().is_err(), "{bad}");
        }
    }
}
