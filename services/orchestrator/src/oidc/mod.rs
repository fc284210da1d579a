//! Providers of OpenID Connect: their settings ([`settings`]) and their protocol ([`provider`]). Knows nothing of logins and members.

pub mod provider;
pub mod settings;
