//! The secrets of one installation, generated anew for each, so that two installations cannot be confused.

use uuid::Uuid;

#[derive(Clone)]
pub(crate) struct Secrets {
    /// One password for all logins and users: their names distinguish them, and the installation is removed after the test.
    pub(crate) password: String,
    pub(crate) operator_token: String,
    /// 64 hexadecimal characters.
    pub(crate) envelope_key: String,
}

impl Secrets {
    pub(crate) fn random() -> Secrets {
        Secrets {
            // Begins with a letter: NATS's server parses a password of digits as a number.
            password: format!("p{}", Uuid::new_v4().simple()),
            operator_token: format!("operator-{}", Uuid::new_v4().simple()),
            envelope_key: format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()),
        }
    }
}
