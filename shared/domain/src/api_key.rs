//! API keys: `sbx_{account}_{id}_{secret}_{crc}`. The prefix lets scanners find a leaked key and the checksum lets them
//! verify it offline. The key contains the account so that it is looked up inside its own account, under row-level
//! security. Only the digest is stored: the secret has 256 random bits, so no slow hash is needed.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{AccountId, KeyId};

const PREFIX: &str = "sbx";
pub(crate) const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;
/// `sbx_`, an account of 63, and three parts in hex. Longer headers are not parsed.
pub const API_KEY_BYTES_MAX: usize = 4 + 63 + 1 + 2 * ID_BYTES + 1 + 2 * SECRET_BYTES + 1 + 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an API key")]
pub struct ApiKeyError;

/// A key in plain text. Neither printed nor logged: [`ApiKey::expose`] is for the one response that returns it.
#[derive(Clone)]
pub struct ApiKey {
    account: AccountId,
    id: KeyId,
    text: String,
}

impl ApiKey {
    /// Makes a key from the given randomness: 8 bytes are its id, 32 are the secret.
    pub fn from_random(account: &AccountId, random: [u8; ID_BYTES + SECRET_BYTES]) -> ApiKey {
        let (id, secret) = random.split_at(ID_BYTES);
        let id = hex::encode(id);
        let body = format!("{PREFIX}_{account}_{id}_{}", hex::encode(secret));
        ApiKey {
            account: account.clone(),
            text: format!("{body}_{}", checksum(&body)),
            id: KeyId::parse(&id).expect("eight bytes in hex"),
        }
    }

    /// Parses a key and checks its checksum; only the database knows whether it was issued and is still valid.
    pub fn parse(text: &str) -> Result<ApiKey, ApiKeyError> {
        if text.len() > API_KEY_BYTES_MAX {
            return Err(ApiKeyError);
        }
        let (body, crc) = text.rsplit_once('_').ok_or(ApiKeyError)?;
        let parts: Vec<&str> = body.split('_').collect();
        let [PREFIX, account, id, secret] = parts[..] else {
            return Err(ApiKeyError);
        };
        let account = AccountId::parse(account).map_err(|_| ApiKeyError)?;
        if !is_hex(secret, SECRET_BYTES) || crc != checksum(body) {
            return Err(ApiKeyError);
        }
        Ok(ApiKey {
            account,
            id: KeyId::parse(id).map_err(|_| ApiKeyError)?,
            text: text.to_owned(),
        })
    }

    pub fn account(&self) -> &AccountId {
        &self.account
    }

    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// The stored form: SHA-256 of the whole key.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.text.as_bytes()).into()
    }

    /// Compares in constant time.
    pub fn matches(&self, digest: &[u8]) -> bool {
        self.digest().ct_eq(digest).into()
    }

    /// The whole key, secret included.
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({PREFIX}_{}_{}_…)", self.account, self.id)
    }
}

fn checksum(body: &str) -> String {
    format!("{:08x}", crc32fast::hash(body.as_bytes()))
}

/// Whether the text is so many bytes in small hexadecimal digits.
pub fn is_hex(text: &str, bytes: usize) -> bool {
    text.len() == 2 * bytes && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> ApiKey {
        let random = std::array::from_fn(|i| u8::try_from(i).unwrap());
        ApiKey::from_random(&AccountId::parse("acme-1").unwrap(), random)
    }

    #[test]
    fn a_key_has_the_published_form_and_reads_back() {
        let key = key();
        assert!(key.expose().starts_with("sbx_acme-1_0001020304050607_08090a"));
        let read = ApiKey::parse(key.expose()).unwrap();
        assert_eq!(
            (read.account().as_str(), read.id().as_str()),
            ("acme-1", "0001020304050607")
        );
        assert!(read.matches(&key.digest()));
    }

    #[test]
    fn another_secret_does_not_match() {
        let other = ApiKey::from_random(key().account(), [7; 40]);
        assert!(!other.matches(&key().digest()));
        assert!(!other.matches(b"short"));
    }

    #[test]
    fn the_longest_account_fits() {
        let account = AccountId::parse(&"a".repeat(63)).unwrap();
        let key = ApiKey::from_random(&account, [0; 40]);
        assert_eq!(key.expose().len(), API_KEY_BYTES_MAX);
        assert!(ApiKey::parse(key.expose()).is_ok());
    }

    #[test]
    fn the_secret_is_not_in_what_is_logged() {
        let key = key();
        let secret = key.expose().split('_').nth(3).unwrap().to_owned();
        assert!(!format!("{key:?}").contains(&secret[..8]));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let good = key().expose().to_owned();
        let upper = good.to_ascii_uppercase();
        let flipped = good.replacen("0001020304050607", "0001020304050608", 1);
        let other_account = good.replacen("acme-1", "acme-2", 1);
        for bad in [
            "",
            "sbx",
            "sbx____",
            &upper,
            &flipped,
            &other_account,
            &good[1..],
            &format!("{good}0"),
        ] {
            assert!(ApiKey::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "(sbx)?[_a-f0-9]{0,200}|.{0,40}") {
            let _ = ApiKey::parse(&text);
        }
    }
}
