//! NATS' auth callout: the server asks who a client is that none of its users is, and gets a signed answer. This module
//! reads the question and writes the answer; it knows no API key and no database.
//!
//! Question and answer are JWTs with NATS' own signature (`ed25519-nkey`), encrypted between the server's key and ours.
//! Only the server can ask: it denies the subject to the users of the account in which it asks.
//!
//! In this mode the server ignores the limits of a user's JWT. They are the account's (`users::accounts`), and the
//! stream's for a message's size.

use std::time::Duration;

use async_nats::{Client, Message, Subject, Subscriber};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use nkeys::{KeyPair, XKey};
use serde::{Deserialize, Serialize};

use crate::{Bus, error::Cause, users::CALLOUT, users::Permissions};

/// An answered client is out after this long, and asks again: a revoked key is out by then.
pub const ADMITTED_FOR: Duration = Duration::from_secs(15 * 60);
/// A question of the server, encrypted and encoded; the largest that it sends is some kilobytes, mostly the client's
/// credentials.
const QUESTION_BYTES_MAX: usize = 64 * 1024;
const SERVER_KEY_HEADER: &str = "Nats-Server-Xkey";
/// One replica gets each question.
const QUEUE_GROUP: &str = "callout";

#[derive(Debug, thiserror::Error)]
pub enum CalloutError {
    #[error("the {what} is not a seed of NATS' ({form}): `signalbox nats-keys` makes one")]
    Seed {
        what: &'static str,
        form: &'static str,
        #[source]
        source: Cause,
    },
    #[error(
        "the question of the NATS server has no reply subject or no `{SERVER_KEY_HEADER}`: does its configuration name our xkey?"
    )]
    Unsealed,
    #[error("the question of the NATS server could not be decrypted: is its xkey ours?")]
    Sealed(#[source] Cause),
    #[error("the question of the NATS server could not be read")]
    Malformed(#[source] Cause),
    #[error("could not subscribe to the questions of the NATS server")]
    Subscribe(#[source] Cause),
}

/// The secrets of an installation's callout.
pub struct Issuer {
    account: KeyPair,
    exchange: XKey,
}

/// A client that wants in.
#[derive(Debug)]
pub struct Question {
    /// In the user's place of its credentials.
    pub user: String,
    /// In the password's place. Absent: no credentials.
    pub password: Option<Password>,
    pub host: String,
    /// A key of the connection, made by the server.
    user_key: String,
    server_id: String,
    server_key: XKey,
    reply: Subject,
}

/// Never printed.
#[derive(Deserialize)]
#[serde(transparent)]
pub struct Password(pub String);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A client that is let in.
#[derive(Debug)]
pub struct Admitted<'a> {
    /// As monitoring and the server's log show it.
    pub name: &'a str,
    /// The NATS account.
    pub account: &'a str,
    pub permissions: &'a Permissions,
    /// Seconds since 1970.
    pub until: i64,
}

impl Issuer {
    /// Seeds in NATS' own form: `SA…` of an account, `SX…` of a curve key.
    pub fn from_seeds(account: &str, exchange: &str) -> Result<Issuer, CalloutError> {
        let bad = |what, form| {
            move |source: nkeys::error::Error| CalloutError::Seed {
                what,
                form,
                source: source.into(),
            }
        };
        Ok(Issuer {
            account: KeyPair::from_seed(account).map_err(bad("seed of the issuer", "SA…"))?,
            exchange: XKey::from_seed(exchange).map_err(bad("xkey's seed", "SX…"))?,
        })
    }

    /// Two new seeds, of the issuer and of the xkey.
    pub fn generate() -> (String, String) {
        let seeds = (KeyPair::new_account().seed(), XKey::new().seed());
        (
            seeds.0.expect("a new key has a seed"),
            seeds.1.expect("a new key has a seed"),
        )
    }

    /// The public keys of the issuer and of the xkey, for the server's configuration.
    pub fn public_keys(&self) -> (String, String) {
        (self.account.public_key(), self.exchange.public_key())
    }

    pub async fn questions(bus: &Bus) -> Result<Subscriber, CalloutError> {
        let subscribed = bus.client().queue_subscribe(CALLOUT, QUEUE_GROUP.to_owned()).await;
        subscribed.map_err(|error| CalloutError::Subscribe(error.into()))
    }

    pub fn open(&self, message: &Message) -> Result<Question, CalloutError> {
        let headers = message.headers.as_ref();
        let key = headers.and_then(|headers| headers.get(SERVER_KEY_HEADER));
        let (Some(key), Some(reply)) = (key, &message.reply) else {
            return Err(CalloutError::Unsealed);
        };
        if message.payload.len() > QUESTION_BYTES_MAX {
            return Err(CalloutError::Malformed("it is too large".into()));
        }
        let server_key = XKey::from_public_key(key.as_str()).map_err(|error| CalloutError::Sealed(error.into()))?;
        let opened = self.exchange.open(&message.payload, &server_key);
        let token = opened.map_err(|error| CalloutError::Sealed(error.into()))?;
        let asked: Asked = read(&token).map_err(CalloutError::Malformed)?;
        Ok(Question {
            user: asked.nats.connect_opts.user,
            password: asked.nats.connect_opts.pass,
            host: asked.nats.client_info.host,
            user_key: asked.nats.user_nkey,
            server_id: asked.nats.server_id.id,
            server_key,
            reply: reply.clone(),
        })
    }

    /// Lets the client in, or refuses it without a reason.
    pub async fn answer(
        &self,
        client: &Client,
        question: &Question,
        admitted: Option<&Admitted<'_>>,
        now: i64,
    ) -> Result<(), Cause> {
        let user = admitted
            .map(|admitted| self.user(question, admitted, now))
            .transpose()?;
        let answer = self.signed(&Claims {
            iat: now,
            exp: None,
            iss: self.account.public_key(),
            sub: &question.user_key,
            name: None,
            aud: &question.server_id,
            nats: Answer {
                error: user.is_none().then_some("refused"),
                jwt: user,
                kind: "authorization_response",
                version: 2,
            },
        })?;
        let sealed = self.exchange.seal(answer.as_bytes(), &question.server_key)?;
        Ok(client.publish(question.reply.clone(), sealed.into()).await?)
    }

    fn user(&self, question: &Question, admitted: &Admitted<'_>, now: i64) -> Result<String, Cause> {
        let permissions = admitted.permissions;
        self.signed(&Claims {
            iat: now,
            exp: Some(admitted.until),
            iss: self.account.public_key(),
            sub: &question.user_key,
            name: Some(admitted.name),
            aud: admitted.account,
            nats: UserClaims {
                publish: Allowed {
                    allow: &permissions.publish,
                    deny: &[],
                },
                subscribe: Allowed {
                    allow: &permissions.subscribe,
                    deny: &permissions.unheard,
                },
                subs: -1,
                data: -1,
                payload: -1,
                kind: "user",
                version: 2,
            },
        })
    }

    fn signed<T: Serialize>(&self, claims: &Claims<'_, T>) -> Result<String, Cause> {
        let encoded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let head = encoded(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
        let text = format!("{head}.{}", encoded(&serde_json::to_vec(claims)?));
        let signature = self.account.sign(text.as_bytes())?;
        Ok(format!("{text}.{}", encoded(&signature)))
    }
}

/// The claims of a token. Its signature is not checked: it names its own key.
fn read(token: &[u8]) -> Result<Asked, Cause> {
    let mut parts = token.split(|byte| *byte == b'.');
    let claims = parts.nth(1).ok_or("not a token")?;
    Ok(serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims)?)?)
}

#[derive(Serialize)]
struct Claims<'a, T> {
    iat: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<i64>,
    iss: String,
    sub: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    aud: &'a str,
    nats: T,
}

#[derive(Serialize)]
struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    #[serde(rename = "type")]
    kind: &'static str,
    version: u8,
}

#[derive(Serialize)]
struct UserClaims<'a> {
    #[serde(rename = "pub")]
    publish: Allowed<'a>,
    #[serde(rename = "sub")]
    subscribe: Allowed<'a>,
    subs: i64,
    data: i64,
    payload: i64,
    #[serde(rename = "type")]
    kind: &'static str,
    version: u8,
}

#[derive(Serialize)]
struct Allowed<'a> {
    allow: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    deny: &'a [String],
}

#[derive(Deserialize)]
struct Asked {
    nats: Request,
}

#[derive(Deserialize)]
struct Request {
    server_id: Server,
    user_nkey: String,
    client_info: ClientInfo,
    connect_opts: Credentials,
}

#[derive(Deserialize)]
struct Server {
    id: String,
}

#[derive(Deserialize)]
struct ClientInfo {
    #[serde(default)]
    host: String,
}

#[derive(Deserialize)]
struct Credentials {
    #[serde(default)]
    user: String,
    pass: Option<Password>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds of bytes 1 and 2.
    const ISSUER: &str = "SAAACAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAKM5I";
    const XKEY: &str = "SXAAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAT5QQ";

    fn issuer() -> Issuer {
        Issuer::from_seeds(ISSUER, XKEY).unwrap()
    }

    fn permissions() -> Permissions {
        Permissions {
            publish: vec!["sb.notification.a.*".to_owned()],
            subscribe: vec!["_I.a.key1.>".to_owned(), "sb.live.a.*".to_owned()],
            unheard: vec!["sb.live.a.-".to_owned()],
        }
    }

    /// What nats-server 2.15.1 sends, encrypted for our xkey by one of bytes 3.
    fn question() -> Message {
        let server = XKey::new_from_raw([3; 32]);
        let claims = serde_json::json!({
            "aud": "nats-authorization-request", "iss": "NSERVER", "sub": issuer().public_keys().0,
            "nats": {
                "server_id": {"name": "n1", "host": "127.0.0.1", "id": "NSERVER", "version": "2.15.1", "xkey": server.public_key()},
                "user_nkey": "UCONNECTION",
                "client_info": {"host": "192.0.2.7", "id": 18, "user": "a", "name": "cli", "kind": "Client", "type": "nats"},
                "connect_opts": {"user": "a", "pass": "secret", "name": "cli", "lang": "py", "version": "1", "protocol": 1},
                "type": "authorization_request", "version": 2,
            },
        });
        let token = format!("head.{}.signature", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let ours = XKey::from_public_key(&issuer().public_keys().1).unwrap();
        let mut headers = async_nats::HeaderMap::new();
        headers.insert(SERVER_KEY_HEADER, server.public_key());
        Message {
            subject: CALLOUT.into(),
            reply: Some("$SYS._INBOX.a.b".into()),
            payload: server.seal(token.as_bytes(), &ours).unwrap().into(),
            headers: Some(headers),
            status: None,
            description: None,
            length: 0,
        }
    }

    #[test]
    fn the_public_keys_are_those_of_nats_own_tools() {
        let (issuer, xkey) = issuer().public_keys();
        assert_eq!(issuer, "ACFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYYOU");
        assert_eq!(xkey, "XDHI2OWRZS3DH3D3ODAXQFFFY5XM2AUWQUCQ2NCHIW5ALBYOLB6VSWAL");
        let (seed, exchange) = Issuer::generate();
        assert!(Issuer::from_seeds(&seed, &exchange).is_ok() && Issuer::from_seeds(&exchange, &seed).is_err());
    }

    #[test]
    fn a_question_is_read_with_our_key_alone() {
        let read = issuer().open(&question()).unwrap();
        assert_eq!((read.user.as_str(), read.host.as_str()), ("a", "192.0.2.7"));
        assert_eq!(read.password.as_ref().unwrap().0, "secret");
        assert!(!format!("{read:?}").contains("secret"));
        let other = Issuer::from_seeds(ISSUER, &XKey::new_from_raw([4; 32]).seed().unwrap()).unwrap();
        assert!(matches!(other.open(&question()), Err(CalloutError::Sealed(_))));
        let plain = Message {
            headers: None,
            ..question()
        };
        assert!(matches!(issuer().open(&plain), Err(CalloutError::Unsealed)));
    }

    /// nats-server 2.15.1 lets clients in with claims of this form.
    #[test]
    fn a_user_s_token_is_what_the_server_takes() {
        let question = issuer().open(&question()).unwrap();
        let admitted = Admitted {
            name: "a/key1",
            account: "OUT",
            permissions: &permissions(),
            until: 1_800_000_900,
        };
        let token = issuer().user(&question, &admitted, 1_800_000_000).unwrap();
        let (text, signature) = token.rsplit_once('.').unwrap();
        let claims = URL_SAFE_NO_PAD.decode(text.split_once('.').unwrap().1).unwrap();
        assert_eq!(
            String::from_utf8(claims).unwrap(),
            concat!(
                r#"{"iat":1800000000,"exp":1800000900,"iss":"ACFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYYOU","#,
                r#""sub":"UCONNECTION","name":"a/key1","aud":"OUT","nats":{"pub":{"allow":["sb.notification.a.*"]},"#,
                r#""sub":{"allow":["_I.a.key1.>","sb.live.a.*"],"deny":["sb.live.a.-"]},"subs":-1,"data":-1,"payload":-1,"#,
                r#""type":"user","version":2}}"#
            )
        );
        assert_eq!(signature, GOLDEN_SIGNATURE);
    }

    /// Made by another implementation (libsodium) of the same claims.
    const GOLDEN_SIGNATURE: &str =
        "oz5KEFinYARvLQ4esgtAH1Zm44_0AQMH0GFV2m_7b-UozjVv7BF_bAWuZOpwuujAbVXCir98cm-irQ_0DUH6Dg";
}
