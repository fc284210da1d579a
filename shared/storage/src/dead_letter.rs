//! Dead letters: rows that record why a message could not be processed. Any service writes one in the transaction that
//! settles the message, together with the message on `{root}.dead.…`.

use contracts::{
    Headers, Outgoing, Root, Timestamp,
    dead::{DEAD_PAYLOAD_BYTES_MAX, DeadLetter},
    header,
    outgoing::Origin,
};
use domain::{AccountId, SessionAddress, SessionId, TaskId, UserId};
use sea_orm::FromQueryResult;
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{StorageError, Tx, accounts::OPERATOR, outbox::Owned};

/// The data of an undeliverable message.
#[derive(Clone, Debug)]
pub struct Given<'a> {
    /// `None`: the message has no existing account.
    pub account: Option<&'a AccountId>,
    pub task: Option<&'a TaskId>,
    pub subject: &'a str,
    pub headers: &'a Headers,
    pub payload: &'a [u8],
    pub reason: &'a str,
    pub detail: &'a str,
    pub attempts: i32,
    pub origin: Origin,
    pub at: OffsetDateTime,
}

/// Writes the row; returns its id and the message for the outbox. The same input gives the same id, so writing a letter
/// twice is idempotent.
pub async fn dead_letter_insert(tx: &Tx, root: &Root, given: &Given<'_>) -> Result<(Uuid, Owned), StorageError> {
    let account = given.account.map_or(OPERATOR, AccountId::as_str);
    let id = dead_letter_id(tx.role().service(), account, given);
    let cut = given.payload.get(..DEAD_PAYLOAD_BYTES_MAX).unwrap_or(given.payload);
    // Postgres cannot store a NUL in a text.
    let payload = String::from_utf8_lossy(cut).replace('\0', "\u{fffd}");
    let mut letter = DeadLetter {
        id,
        account: given.account.cloned(),
        subject: given.subject.to_owned(),
        reason: given.reason.to_owned(),
        detail: given.detail.to_owned(),
        payload,
        attempts: given.attempts,
        created_at: Timestamp::from(given.at),
    };
    let (user, session) = given
        .account
        .map_or((None, None), |account| for_user(account, given.payload));
    let headers = serde_json::to_string(given.headers)
        .expect("headers are texts")
        .replace("\\u0000", "\u{fffd}");
    let values = [
        account.into(),
        id.into(),
        tx.role().service().into(),
        letter.subject.replace('\0', "\u{fffd}").into(),
        letter.reason.clone().into(),
        letter.detail.replace('\0', "\u{fffd}").into(),
        letter.payload.clone().into(),
        headers.into(),
        letter.attempts.into(),
        given.at.into(),
        user.into(),
        session.into(),
    ];
    let written: Option<Written> = tx.one("write dead letter", DEAD_LETTER_INSERT, values).await?;
    if written.is_some_and(|letter| letter.for_user.is_some()) {
        // Everybody in the account may listen.
        letter.payload.clear();
    }
    let message = Outgoing::new(
        root.dead(given.account, given.task),
        &format!("dead:{id}"),
        &format!("/signalbox/{}", tx.role().service()),
        (given.account, given.task),
        &given.origin,
        letter.created_at,
        &letter,
    );
    Ok((id, (given.account.cloned(), message)))
}

const DEAD_LETTER_INSERT: &str = "
    insert into dead_letter (account_id, id, service, subject, reason, detail, payload, headers, attempts, created_at, for_user)
    values ($1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, $10,
            coalesce($11, (select s.user_id from session s where s.account_id = $1 and s.id = $12)))
    on conflict do nothing
    returning for_user";

#[derive(FromQueryResult)]
struct Written {
    for_user: Option<UserId>,
}

/// Whose orchestrator the message is for, as it says itself: by the session that it is addressed to or that it is of; or else the id of its
/// session.
fn for_user(account: &AccountId, payload: &[u8]) -> (Option<UserId>, Option<SessionId>) {
    let message: serde_json::Map<String, Value> = serde_json::from_slice(payload).unwrap_or_default();
    // Events have theirs in `data`.
    let data = message.get("data").and_then(Value::as_object);
    let text = |field: &str| message.get(field).or_else(|| data?.get(field)).and_then(Value::as_str);
    let address = ["session", "session_key"].into_iter().find_map(text);
    let address = address.and_then(|address| SessionAddress::parse(address).ok());
    let of = address.and_then(|address| address.within(account));
    let user = of.and_then(|of| of.person().cloned());
    (user, text("session_id").and_then(|id| SessionId::parse(id).ok()))
}

/// Namespace of ids that are derived from their content.
const DEAD_LETTERS: Uuid = Uuid::from_u128(0x51b0_dead_0000_4000_8000_0000_0000_0001);

fn dead_letter_id(service: &str, account: &str, given: &Given<'_>) -> Uuid {
    let mut name = format!(
        "{service}\n{account}\n{}\n{}\n{}\n",
        given.subject,
        given.reason,
        given.headers.get(header::MESSAGE_ID).unwrap_or_default()
    )
    .into_bytes();
    name.extend_from_slice(given.payload);
    // A failed turn is the cause of its letter: the same notification may fail again in another turn.
    name.extend_from_slice(given.origin.cause.as_deref().unwrap_or_default().as_bytes());
    // A redriven message that fails again is a new letter.
    name.extend_from_slice(given.headers.get(header::REDRIVE).unwrap_or_default().as_bytes());
    Uuid::new_v5(&DEAD_LETTERS, &name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_to_a_person_s_orchestrator_is_theirs() {
        let account = AccountId::parse("acme").unwrap();
        for (payload, expected) in [
            (r#"{"session": "orchestrator:ann"}"#, Some("ann")),
            (r#"{"session_key": "orchestrator:acme:ann:v3"}"#, Some("ann")),
            (
                r#"{"type": "turn.finished", "data": {"session_key": "orchestrator:acme:ann:v3"}}"#,
                Some("ann"),
            ),
            (r#"{"session": "orchestrator:other:ann:v3"}"#, None),
            (r#"{"session": "orchestrator:org:acme"}"#, None),
            (r#"{"body": "orchestrator:ann"}"#, None),
            ("no object", None),
        ] {
            let (user, _) = for_user(&account, payload.as_bytes());
            assert_eq!(user.map(|user| user.to_string()).as_deref(), expected, "{payload}");
        }
    }
}
