//! The envelope's signature: proves that a holder of the installation's key published the message on its subject.
//!
//! A subject does not prove who published on it. Several NATS users may publish on one, and on a server without
//! permissions every client may publish on all. So each message of a service carries, in `Signalbox-Signature`, an
//! HMAC-SHA256 over all that a handler can see of it: subject, headers, payload. A genuine message on another subject
//! counts as forged.
//!
//! It does not prove which service signed (they share the key), nor that the message is new. The same message on its
//! own subject again is a redelivery, and counts once.
//!
//! The header is `v1.{key id}.{hex}`. Several keys may be valid during a rotation; one of them signs.

use std::{collections::BTreeMap, fmt, sync::Arc};

use contracts::{Headers, header::SIGNATURE};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The version of the signature's form. It is signed too, so that the bytes of one form are never valid in another.
const VERSION: &str = "v1";
/// A key has as many bytes as the hash: 256 random bits.
pub const KEY_BYTES: usize = 32;
pub const KEY_ID_CHARS_MAX: usize = 32;

type HmacSha256 = Hmac<Sha256>;

/// Keys by their ids. Cheap to clone; never printed.
#[derive(Clone)]
pub struct Keyring(Arc<Ring>);

#[derive(Default)]
struct Ring {
    /// Keyed states: hashing a key into its two blocks is done once.
    keys: BTreeMap<String, HmacSha256>,
    signs: Option<String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    #[error("the id of a key is 1-{KEY_ID_CHARS_MAX} characters of a-z, 0-9, - and _")]
    Id,
    #[error("the key that signs is not among the keys")]
    Signing,
}

/// Why a message is rejected. One word for metrics, one sentence for people; neither quotes the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Forgery {
    #[error("The message carries no signature.")]
    Unsigned,
    #[error("The signature does not have the form v1.{{key id}}.{{64 hexadecimal characters}}.")]
    Malformed,
    #[error("The signature names a key that is not among [envelope.keys].")]
    UnknownKey,
    #[error("The signature does not match this message on this subject.")]
    Mismatch,
}

impl Forgery {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Forgery::Unsigned => "unsigned",
            Forgery::Malformed => "malformed",
            Forgery::UnknownKey => "unknown_key",
            Forgery::Mismatch => "mismatch",
        }
    }
}

impl Keyring {
    /// Signs nothing and verifies nothing: for clients that publish without a key.
    pub fn empty() -> Keyring {
        Keyring(Arc::default())
    }

    pub fn new<'a>(
        keys: impl IntoIterator<Item = (&'a str, [u8; KEY_BYTES])>,
        signs: &str,
    ) -> Result<Keyring, KeyringError> {
        let keyed = |(id, key): (&str, [u8; KEY_BYTES])| {
            let mac = HmacSha256::new_from_slice(&key).expect("HMAC takes a key of any length");
            is_key_id(id).then(|| (id.to_owned(), mac)).ok_or(KeyringError::Id)
        };
        let keys = keys.into_iter().map(keyed).collect::<Result<BTreeMap<_, _>, _>>()?;
        if !keys.contains_key(signs) {
            return Err(KeyringError::Signing);
        }
        Ok(Keyring(Arc::new(Ring {
            keys,
            signs: Some(signs.to_owned()),
        })))
    }

    /// The header's value. `None`: there is no signing key.
    pub fn sign(&self, subject: &str, headers: &Headers, payload: &[u8]) -> Option<String> {
        let (id, mac) = self.signing()?;
        let tag = over(mac, subject, headers, payload).finalize().into_bytes();
        Some(format!("{VERSION}.{id}.{}", hex::encode(tag)))
    }

    /// A secret of the installation for another purpose, named by the label. It is derived from the signing key, so it
    /// changes in a rotation: values that depend on it must be stored if they are needed later. `None`: there is no
    /// key.
    pub fn derived(&self, label: &str) -> Option<[u8; KEY_BYTES]> {
        let (_, mut mac) = self.signing()?;
        // No signed message begins like this: the signed bytes begin with a length.
        mac.update(b"signalbox derived secret\0");
        mac.update(label.as_bytes());
        Some(mac.finalize().into_bytes().into())
    }

    fn signing(&self) -> Option<(&str, HmacSha256)> {
        let id = self.0.signs.as_deref()?;
        let mac = self.0.keys.get(id).expect("checked when the ring was made");
        Some((id, mac.clone()))
    }

    /// Whether a message was signed for this subject with one of the keys. Takes the same time for every wrong tag.
    pub fn verify(&self, subject: &str, headers: &Headers, payload: &[u8]) -> Result<(), Forgery> {
        let signature = headers.get(SIGNATURE).ok_or(Forgery::Unsigned)?;
        let mut parts = signature.split('.');
        let (Some(VERSION), Some(id), Some(tag), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Forgery::Malformed);
        };
        let mut bytes = [0; 32];
        hex::decode_to_slice(tag, &mut bytes).map_err(|_| Forgery::Malformed)?;
        let mac = self.0.keys.get(id).ok_or(Forgery::UnknownKey)?.clone();
        over(mac, subject, headers, payload)
            .verify_slice(&bytes)
            .map_err(|_| Forgery::Mismatch)
    }
}

/// Feeds the signed bytes: each field after its length, so that no byte can move from one field into another.
fn over(mut mac: HmacSha256, subject: &str, headers: &Headers, payload: &[u8]) -> HmacSha256 {
    let mut field = |bytes: &[u8]| {
        mac.update(&(bytes.len() as u64).to_be_bytes());
        mac.update(bytes);
    };
    field(VERSION.as_bytes());
    field(subject.as_bytes());
    for (name, value) in &headers.0 {
        // Clients and server trim values, and an empty value counts as absent.
        let value = value.trim();
        if is_signed(name) && !value.is_empty() {
            field(name.as_bytes());
            field(value.as_bytes());
        }
    }
    field(payload);
    mac
}

/// All headers but the signature itself, and those that the broker adds or consumes.
fn is_signed(name: &str) -> bool {
    let is_brokers = name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
    name != SIGNATURE && (!is_brokers || name == contracts::header::MESSAGE_ID)
}

/// Lower case, since settings from the environment are.
pub fn is_key_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    !text.is_empty() && text.len() <= KEY_ID_CHARS_MAX && text.bytes().all(fits)
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring")
            .field("signs", &self.0.signs)
            .field("keys", &self.0.keys.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use contracts::header;
    use proptest::prelude::*;

    use super::*;

    const SUBJECT: &str = "signalbox.session.resolved.acme.t-1";

    fn ring(keys: &[(&str, u8)], signs: &str) -> Keyring {
        Keyring::new(keys.iter().map(|(id, byte)| (*id, [*byte; KEY_BYTES])), signs).unwrap()
    }

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::default();
        for (name, value) in pairs {
            headers.set(name, *value);
        }
        headers
    }

    fn signed(ring: &Keyring, payload: &[u8]) -> Headers {
        let mut headers = headers(&[
            (header::MESSAGE_ID, "id-1"),
            (header::HOPS, "3"),
            (header::CE_ID, "id-1"),
        ]);
        let signature = ring.sign(SUBJECT, &headers, payload).unwrap();
        headers.set(SIGNATURE, signature);
        headers
    }

    #[test]
    fn any_key_of_the_ring_is_good_and_one_signs() {
        let check = |signer: &Keyring, reader: &Keyring, expected: Result<(), Forgery>| {
            let headers = signed(signer, b"payload");
            assert_eq!(reader.verify(SUBJECT, &headers, b"payload"), expected);
        };
        let (old, both_old, both_new, new) = (
            ring(&[("a", 1)], "a"),
            ring(&[("a", 1), ("b", 2)], "a"),
            ring(&[("a", 1), ("b", 2)], "b"),
            ring(&[("b", 2)], "b"),
        );
        // Each step of a rotation can verify the step before and the step after it.
        for (one, other) in [(&old, &both_old), (&both_old, &both_new), (&both_new, &new)] {
            check(one, other, Ok(()));
            check(other, one, Ok(()));
        }
        check(&old, &new, Err(Forgery::UnknownKey));
        // The id alone proves nothing.
        check(&ring(&[("a", 9)], "a"), &old, Err(Forgery::Mismatch));
        check(&old, &Keyring::empty(), Err(Forgery::UnknownKey));
    }

    #[test]
    fn nothing_a_handler_sees_can_be_altered() {
        let ring = ring(&[("a", 1)], "a");
        let genuine = signed(&ring, b"payload");
        let check = |subject: &str, headers: &Headers, payload: &[u8], expected: Result<(), Forgery>| {
            assert_eq!(
                ring.verify(subject, headers, payload),
                expected,
                "{subject} {headers:?}"
            );
        };
        let forged = Err(Forgery::Mismatch);
        check(SUBJECT, &genuine, b"payload", Ok(()));
        check(SUBJECT, &genuine, b"payloae", forged);
        check(SUBJECT, &genuine, b"", forged);
        check("signalbox.session.resolved.other.t-1", &genuine, b"payload", forged);
        check("signalbox.session.closed.acme.t-1", &genuine, b"payload", forged);
        let altered = |change: &dyn Fn(&mut Headers)| {
            let mut headers = genuine.clone();
            change(&mut headers);
            headers
        };
        for name in [header::MESSAGE_ID, header::HOPS, header::CE_ID] {
            check(SUBJECT, &altered(&|h| h.set(name, "other")), b"payload", forged);
            check(SUBJECT, &altered(&|h| drop(h.0.remove(name))), b"payload", forged);
        }
        for name in [
            header::CAUSE,
            header::TRACEPARENT,
            header::CE_TYPE,
            header::REDRIVE,
            "X-New",
        ] {
            check(SUBJECT, &altered(&|h| h.set(name, "1")), b"payload", forged);
        }
        // A value cannot become part of the next name, nor a header part of the payload.
        check(SUBJECT, &altered(&|h| h.set(header::HOPS, "3Nats")), b"payload", forged);
        // The broker's own headers, which handlers do not read.
        check(SUBJECT, &altered(&|h| h.set("Nats-Stream", "S")), b"payload", Ok(()));
    }

    #[test]
    fn a_signature_has_one_form() {
        let ring = ring(&[("a", 1)], "a");
        let genuine = signed(&ring, b"payload").get(SIGNATURE).unwrap().to_owned();
        let check = |signature: &str, expected: Forgery| {
            let headers = headers(&[(SIGNATURE, signature)]);
            assert_eq!(ring.verify(SUBJECT, &headers, b"payload"), Err(expected), "{signature}");
        };
        check("", Forgery::Unsigned);
        check("nonsense", Forgery::Malformed);
        check("v1.a.", Forgery::Malformed);
        check("v1.a.00", Forgery::Malformed);
        check(&genuine.replacen("v1", "v2", 1), Forgery::Malformed);
        check(&format!("{genuine}00"), Forgery::Malformed);
        check(&format!("{genuine}.x"), Forgery::Malformed);
        check(&genuine.replacen("v1.a", "v1.b", 1), Forgery::UnknownKey);
        check(&"v".repeat(2000), Forgery::Unsigned); // longer than any header that is read
    }

    #[test]
    fn a_ring_is_checked_when_it_is_made_and_shows_no_key() {
        let made = |id: &str, signs: &str| Keyring::new([(id, [7; KEY_BYTES])], signs).map(drop);
        assert_eq!(made("2026-11", "2026-11"), Ok(()));
        assert_eq!(made("2026-11", "2026-12"), Err(KeyringError::Signing));
        for id in ["", "A", "a.b", "a b", &"a".repeat(33)] {
            assert_eq!(made(id, id), Err(KeyringError::Id), "{id:?}");
        }
        let shown = format!("{:?}", ring(&[("a", 7)], "a"));
        assert_eq!(shown, r#"Keyring { signs: Some("a"), keys: ["a"] }"#);
        assert_eq!(Keyring::empty().sign(SUBJECT, &Headers::default(), b""), None);
    }

    /// The known answer pins the format: two versions of services must agree on it during an upgrade.
    #[test]
    fn the_bytes_that_are_signed_are_fixed() {
        let headers = headers(&[
            (header::MESSAGE_ID, "id-1"),
            ("Nats-Stream", "S"),
            (header::HOPS, " 3 "),
        ]);
        let signature = ring(&[("a", 1)], "a").sign(SUBJECT, &headers, b"payload").unwrap();
        insta::assert_snapshot!(signature, @"v1.a.5a7f804e3cae268929a633827833e7522a54f32e198890f233bdaf931f3efa6c");
    }

    #[test]
    fn a_derived_secret_follows_from_the_key_that_signs_and_from_what_it_is_for() {
        let one = ring(&[("a", 1), ("b", 2)], "a");
        let secret = one.derived("x").unwrap();
        assert_eq!(ring(&[("c", 1)], "c").derived("x"), Some(secret), "ids do not matter");
        for (other, label) in [(&one, "y"), (&ring(&[("a", 1), ("b", 2)], "b"), "x")] {
            assert_ne!(other.derived(label), Some(secret));
        }
        assert_ne!(secret, [1; KEY_BYTES]);
        assert_eq!(Keyring::empty().derived("x"), None);
    }

    proptest! {
        #[test]
        fn strangers_headers_never_pass_and_never_panic(signature in ".{0,100}", value in ".{0,40}") {
            let ring = ring(&[("a", 1)], "a");
            let headers = headers(&[(SIGNATURE, &signature), ("x", &value)]);
            prop_assert!(ring.verify(SUBJECT, &headers, b"payload").is_err());
        }
    }
}
