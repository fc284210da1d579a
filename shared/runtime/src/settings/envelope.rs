//! `[envelope]`: the keys with which services sign what they send each other. What a signature covers is the business of
//! `messaging::envelope`.

use std::collections::BTreeMap;

use messaging::{
    Keyring,
    envelope::{KEY_BYTES, KEY_ID_CHARS_MAX, is_key_id},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::SettingsError;

/// Enough for a rotation; a longer list is one that nobody clears.
const KEYS_MAX: usize = 4;

/// `[envelope]`. All services of an installation have the same.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(default)]
pub struct EnvelopeSettings {
    /// By id: 64 hexadecimal characters each. Every one of them is good for reading.
    keys: BTreeMap<String, SecretString>,
    /// Id of the key that signs. Not needed where there is one key.
    sign_with: Option<String>,
}

impl EnvelopeSettings {
    /// For a process that signs and reads. One that does neither needs no key.
    pub fn keyring(&self) -> Result<Keyring, SettingsError> {
        let keys = self.keys.iter();
        let keys = keys.map(|(id, key)| Ok((id.as_str(), bytes(id, key)?)));
        let keys = keys.collect::<Result<Vec<_>, SettingsError>>()?;
        let signs = match (&self.sign_with, &keys[..]) {
            (_, []) => return Err(missing()),
            (Some(id), _) => id,
            (None, [(id, _)]) => *id,
            (None, _) => return Err(SettingsError::missing("envelope.sign_with")),
        };
        Keyring::new(keys, signs).map_err(|error| SettingsError::invalid("envelope.sign_with", error.to_string()))
    }

    /// What can be said of keys before they are needed.
    pub(super) fn check(&self) -> Result<(), SettingsError> {
        if self.keys.len() > KEYS_MAX {
            let problem = format!("at most {KEYS_MAX} keys: take out those that nothing is signed with any more");
            return Err(SettingsError::invalid("envelope.keys", problem));
        }
        for (id, key) in &self.keys {
            if !is_key_id(id) {
                let problem = format!("the id of a key is 1-{KEY_ID_CHARS_MAX} characters of a-z, 0-9, - and _");
                return Err(SettingsError::invalid("envelope.keys", problem));
            }
            let key = bytes(id, key)?;
            if key.iter().all(|byte| *byte == key[0]) {
                let problem = "this is no random key; `openssl rand -hex 32` makes one".to_owned();
                return Err(SettingsError::invalid(&format!("envelope.keys.{id}"), problem));
            }
        }
        match &self.sign_with {
            Some(_) if !self.keys.is_empty() => self.keyring().map(drop),
            Some(_) | None => Ok(()),
        }
    }
}

fn bytes(id: &str, key: &SecretString) -> Result<[u8; KEY_BYTES], SettingsError> {
    let mut bytes = [0; KEY_BYTES];
    match hex::decode_to_slice(key.expose_secret(), &mut bytes) {
        Ok(()) => Ok(bytes),
        // What it is instead could be most of a key.
        Err(_) => Err(SettingsError::invalid(
            &format!("envelope.keys.{id}"),
            format!(
                "a key is {} hexadecimal characters; `openssl rand -hex 32` makes one",
                2 * KEY_BYTES
            ),
        )),
    }
}

fn missing() -> SettingsError {
    SettingsError::Missing {
        setting: "envelope.keys".to_owned(),
        variable: "SIGNALBOX__ENVELOPE__KEYS__K1 (64 hexadecimal characters, the same for every service; `openssl rand -hex 32` makes one)".to_owned(),
    }
}
