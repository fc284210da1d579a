//! `/api/me/notification-preferences`: where a person hears of mail, by its type (O13).

use api::preferences::{Preference, PreferenceChange};
use axum::{Json, extract::State};
use contracts::event::{Event, PreferenceChanged};
use domain::{AccountId, Digest, MessageType, UserId};
use schemars::JsonSchema;
use serde::Serialize;
use storage::{StorageError, Tx};

use crate::{
    app::{App, database_now},
    auth::PersonAccess,
    body::JsonBody,
    error::{ApiError, invalid_field},
    route::routes,
};

routes! {
    "notification preferences": "Where a person hears of mail";
    /// One's own, of every type.
    GET "/api/me/notification-preferences" Person => list;
    /// Change that of a type.
    PUT "/api/me/notification-preferences" Person => change;
}

#[derive(Debug, Serialize, JsonSchema)]
struct Preferences {
    items: Vec<Preference>,
}

/// Until the person says otherwise.
fn default_of(kind: MessageType) -> Preference {
    let (slack, email) = match kind {
        MessageType::Message => (false, false),
        MessageType::Notification | MessageType::Question => (true, false),
        MessageType::Escalation => (true, true),
    };
    Preference {
        message_type: kind.to_string(),
        deliver_web: true,
        deliver_slack: slack,
        deliver_email: email,
        digest: Digest::None.to_string(),
        digest_hour: None,
    }
}

const DIGEST_HOUR: i16 = 8;

/// Relies on the primary key.
pub const LIST: &str = "
    select message_type, true as deliver_web, slack as deliver_slack, email as deliver_email, digest, digest_hour
    from notification_preference where account_id = $1 and user_id = $2";

async fn stored(tx: &Tx, account: &AccountId, user: &UserId) -> Result<Vec<Preference>, StorageError> {
    tx.rows("read preferences", LIST, [account.into(), user.into()]).await
}

/// Of this type: what is stored, else the default.
fn of(stored: &[Preference], kind: MessageType) -> Preference {
    let found = stored.iter().find(|one| one.message_type == kind.as_str());
    found.cloned().unwrap_or_else(|| default_of(kind))
}

async fn list(State(app): State<App>, person: PersonAccess) -> Result<Json<Preferences>, ApiError> {
    let tx = person.access.begin(&app).await?;
    let stored = stored(&tx, &person.access.account, &person.user).await?;
    tx.commit().await?;
    let items = MessageType::ALL.iter().map(|kind| of(&stored, *kind)).collect();
    Ok(Json(Preferences { items }))
}

const SET: &str = "
    insert into notification_preference (account_id, user_id, message_type, slack, email, digest, digest_hour)
    values ($1, $2, $3, $4, $5, $6, $7)
    on conflict (account_id, user_id, message_type) do update
        set slack = excluded.slack, email = excluded.email, digest = excluded.digest, digest_hour = excluded.digest_hour";

async fn change(
    State(app): State<App>,
    person: PersonAccess,
    JsonBody(change): JsonBody<PreferenceChange>,
) -> Result<Json<Preference>, ApiError> {
    if change.deliver_web == Some(false) {
        return Err(invalid_field("deliver_web", "the inbox always has it").into());
    }
    let (account, kind) = (&person.access.account, change.message_type);
    let tx = person.access.begin(&app).await?;
    let before = of(&stored(&tx, account, &person.user).await?, kind);
    let set = changed(before, &change)?;
    let values = [
        account.into(),
        (&person.user).into(),
        set.message_type.clone().into(),
        set.deliver_slack.into(),
        set.deliver_email.into(),
        set.digest.clone().into(),
        set.digest_hour.into(),
    ];
    tx.execute("set preference", SET, values).await?;
    let event = Event::PreferenceChanged(PreferenceChanged {
        user_id: person.user.clone(),
        message_type: kind,
    });
    let event = app.event(account, database_now(&tx).await?, event);
    app.commit(tx, vec![event]).await?;
    Ok(Json(set))
}

fn changed(before: Preference, change: &PreferenceChange) -> Result<Preference, ApiError> {
    let digest = change.digest.map_or(before.digest, |digest| digest.to_string());
    let may_wait = match change.message_type {
        MessageType::Message | MessageType::Notification => true,
        MessageType::Question | MessageType::Escalation => false,
    };
    if digest != Digest::None.as_str() && !may_wait {
        let what = "only messages and notifications wait for a digest: a question or an escalation is told at once";
        return Err(invalid_field("digest", what).into());
    }
    let hour = change.digest_hour.map(i32::from).map(i16::try_from);
    let hour = match hour {
        Some(Ok(hour @ 0..=23)) => Some(hour),
        Some(_) => return Err(invalid_field("digest_hour", "from 0 to 23").into()),
        None => before.digest_hour,
    };
    let hour = (digest == Digest::Daily.as_str()).then(|| hour.unwrap_or(DIGEST_HOUR));
    Ok(Preference {
        message_type: before.message_type,
        deliver_web: true,
        deliver_slack: change.deliver_slack.unwrap_or(before.deliver_slack),
        deliver_email: change.deliver_email.unwrap_or(before.deliver_email),
        digest,
        digest_hour: hour,
    })
}
