//! Secrets that a browser holds: 256 random bits, of which digests are stored.

use std::fmt;

use domain::{api_key::is_hex, sign_in::SECRET_BYTES};
use sha2::{Digest, Sha256};

use crate::error::ApiError;

/// In plain text. Not printed.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    pub fn random() -> Result<Secret, ApiError> {
        let mut random = [0; SECRET_BYTES];
        getrandom::fill(&mut random).map_err(ApiError::Random)?;
        Ok(Secret(hex::encode(random)))
    }

    pub fn parse(text: &str) -> Option<Secret> {
        is_hex(text, SECRET_BYTES).then(|| Secret(text.to_owned()))
    }

    /// The stored form.
    pub fn digest(&self) -> Vec<u8> {
        Sha256::digest(self.0.as_bytes()).to_vec()
    }

    /// Another secret that follows from this one and cannot be told from it: for `purpose`, beside `other`.
    pub fn derive(&self, purpose: &str, other: &Secret) -> String {
        hex::encode(Sha256::digest(format!("{purpose}:{}:{}", self.0, other.0)))
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_reads_back_and_is_not_printed() {
        let (one, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert_eq!(Secret::parse(one.expose()).unwrap().digest(), one.digest());
        assert_eq!(format!("{one:?}"), "Secret(…)");
        for bad in ["", "00", &one.expose().to_uppercase(), &format!("{}0", one.expose())] {
            assert!(bad == one.expose() || Secret::parse(bad).is_none(), "{bad}");
        }
        assert_eq!(one.derive("a", &other), one.derive("a", &other));
        assert_ne!(one.derive("a", &other), one.derive("b", &other));
        assert_ne!(one.derive("a", &other), other.derive("a", &one));
    }
}
