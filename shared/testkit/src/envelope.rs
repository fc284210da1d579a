//! The signing key of a test's services, and the keyring of a test that publishes as one of them.

use messaging::Keyring;

const KEY: [u8; 32] = *b"\x01the key of every test, no secre";

/// The setting, as a variable: for [`runtime::Settings::load_from`], and for processes that a test starts.
pub const ENVELOPE: (&str, &str) = (
    "SIGNALBOX__ENVELOPE__KEYS__TEST",
    "01746865206b6579206f6620657665727920746573742c206e6f207365637265",
);

/// The keyring of a test's services.
pub fn keyring() -> Keyring {
    Keyring::new([("test", KEY)], "test").expect("the key that signs is in the ring")
}

#[cfg(test)]
mod tests {
    use contracts::{Headers, header::SIGNATURE};

    use super::*;

    #[test]
    fn the_variable_and_the_ring_hold_the_same_key() {
        let settings = runtime::Settings::load_from("", [ENVELOPE]).expect("settings");
        let mut headers = Headers::default();
        headers.set(SIGNATURE, keyring().sign("a", &headers, b"p").expect("a key"));
        let services = settings.envelope.keyring().expect("a key");
        assert_eq!(services.verify("a", &headers, b"p"), Ok(()));
    }
}
