//! Links by which a person signs in, once: `{account}_{secret}`. The account is part of it, so that it is looked up inside its own
//! account, under row-level security. Only its digest is stored: the secret has 256 random bits.

use std::{fmt, str::FromStr};

use sha2::{Digest, Sha256};

use crate::{AccountId, api_key::is_hex};

/// Of links, and of the cookies of browsers.
pub const SECRET_BYTES: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the token of a sign-in link")]
pub struct NotASignInToken;

/// The last part of a link's path, in plain text. Not printed.
#[derive(Clone)]
pub struct SignInToken {
    account: AccountId,
    text: String,
}

impl SignInToken {
    pub fn from_random(account: &AccountId, random: [u8; SECRET_BYTES]) -> SignInToken {
        SignInToken {
            account: account.clone(),
            text: format!("{account}_{}", hex::encode(random)),
        }
    }

    pub fn account(&self) -> &AccountId {
        &self.account
    }

    /// The stored form.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.text.as_bytes()).into()
    }

    /// The whole token.
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl FromStr for SignInToken {
    type Err = NotASignInToken;
    fn from_str(text: &str) -> Result<Self, NotASignInToken> {
        let (account, secret) = text.split_once('_').ok_or(NotASignInToken)?;
        let account = AccountId::parse(account).map_err(|_| NotASignInToken)?;
        if !is_hex(secret, SECRET_BYTES) {
            return Err(NotASignInToken);
        }
        Ok(SignInToken {
            account,
            text: text.to_owned(),
        })
    }
}

impl fmt::Debug for SignInToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignInToken({}_…)", self.account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_is_not_printed() {
        let token = SignInToken::from_random(&AccountId::parse("acme-1").unwrap(), [7; 32]);
        let read: SignInToken = token.expose().parse().unwrap();
        assert_eq!((read.account().as_str(), read.digest()), ("acme-1", token.digest()));
        assert_eq!(format!("{token:?}"), "SignInToken(acme-1_…)");
        let upper = token.expose().to_uppercase();
        for bad in [
            "",
            "acme",
            "acme_",
            "_00",
            &upper,
            &token.expose()[1..token.expose().len() - 1],
            "acme_07_07",
        ] {
            assert!(bad.parse::<SignInToken>().is_err(), "{bad}");
        }
    }
}
