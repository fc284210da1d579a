//! `[envelope]`: the keys with which services sign their messages. `messaging::envelope` defines what a signature
//! covers.

use std::collections::BTreeMap;

use messaging::{
    Keyring,
    envelope::{KEY_BYTES, KEY_ID_CHARS_MAX, is_key_id},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::{SettingsError, safety::Unsafe};

/// Enough for a rotation. A longer list would mean that old keys are not removed.
const KEYS_MAX: usize = 4;

/// `[envelope]`. The same for all services of an installation.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(default)]
pub struct EnvelopeSettings {
    /// By id: 64 hexadecimal characters each. Every key verifies signatures.
    keys: BTreeMap<String, SecretString>,
    /// Id of the key that signs. Not needed if there is one key.
    sign_with: Option<String>,
}

impl EnvelopeSettings {
    /// For a process that signs and verifies. A process that does neither needs no key.
    pub fn keyring(&self) -> Result<Keyring, SettingsError> {
        let signs = match (&self.sign_with, self.keys.first_key_value()) {
            (_, None) => return Err(missing()),
            (Some(id), _) => id,
            (None, Some((id, _))) if self.keys.len() == 1 => id,
            (None, _) => return Err(SettingsError::missing("envelope.sign_with")),
        };
        let bytes = |key| bytes(key).expect("the keys are checked when they are read");
        let keys = self.keys.iter().map(|(id, key)| (id.as_str(), bytes(key)));
        Ok(Keyring::new(keys, signs).expect("ids and the key that signs are checked when they are read"))
    }

    /// Checks the keys at load time.
    pub(super) fn check(&self) -> Result<(), Unsafe> {
        if self.keys.len() > KEYS_MAX {
            let problem = format!("at most {KEYS_MAX} keys: remove those that sign no messages any more");
            return Err(Unsafe::new("envelope.keys", problem));
        }
        for (id, key) in &self.keys {
            if !is_key_id(id) {
                let problem = format!("the id of a key is 1-{KEY_ID_CHARS_MAX} characters of a-z, 0-9, - and _");
                return Err(Unsafe::new("envelope.keys", problem));
            }
            let problem = match bytes(key) {
                Some(key) if key.iter().any(|byte| *byte != key[0]) => continue,
                Some(_) => "this key is not random; `openssl rand -hex 32` makes one".to_owned(),
                // The text is not shown: it could be most of a key.
                None => format!(
                    "a key is {} hexadecimal characters; `openssl rand -hex 32` makes one",
                    2 * KEY_BYTES
                ),
            };
            return Err(Unsafe::new(format!("envelope.keys.{id}"), problem));
        }
        match &self.sign_with {
            Some(id) if !self.keys.is_empty() && !self.keys.contains_key(id) => {
                let problem = "the key that signs is not among the keys".to_owned();
                Err(Unsafe::new("envelope.sign_with", problem))
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn bytes(key: &SecretString) -> Option<[u8; KEY_BYTES]> {
    let mut bytes = [0; KEY_BYTES];
    hex::decode_to_slice(key.expose_secret(), &mut bytes).ok()?;
    Some(bytes)
}

fn missing() -> SettingsError {
    SettingsError::Missing {
        setting: "envelope.keys".to_owned(),
        variable: "SIGNALBOX__ENVELOPE__KEYS__K1 (64 hexadecimal characters, the same for every service; `openssl rand -hex 32` makes one)".to_owned(),
    }
}
