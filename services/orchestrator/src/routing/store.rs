//! The rows of a route, beside those of the notification and its mail; and the mail that the routing log lists.

use domain::{AccountId, NotificationId, QueueMode};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};

/// What the resolver and delivery wrote of a notification.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Placed {
    /// In its session's queue, from 1; none of a refused one.
    pub position: Option<i64>,
    /// Of the session. None: it is removed, or there is none.
    pub generation: Option<i32>,
    pub persona_slug: Option<String>,
    pub persona_number: Option<i64>,
    pub persona_why: Option<String>,
    /// Among those that wait, from 1; 0 of one that does not wait.
    pub place: Option<i64>,
    pub turn_number: Option<i64>,
    pub turn_state: Option<String>,
}

impl Placed {
    pub fn persona(&self) -> Option<(&str, i64)> {
        Some((self.persona_slug.as_deref()?, self.persona_number?))
    }

    pub fn turn(&self) -> Option<(i64, &str)> {
        Some((self.turn_number?, self.turn_state.as_deref()?))
    }

    /// Whether it was the first item of its generation.
    pub fn is_first(&self, mode: Option<QueueMode>) -> bool {
        let mode = mode.unwrap_or(QueueMode::Followup);
        self.position
            .map(|position| mode.position_as(QueueMode::Followup, position))
            == Some(1)
    }
}

/// Relies on the primary keys, and on notification_queue for its place.
pub const PLACED: &str = "
    select n.position, s.generation, v.slug as persona_slug, v.number::bigint as persona_number, s.persona_why,
           (select count(*) from notification q
            where q.account_id = n.account_id and q.session_id = n.session_id and q.state = 'queued' and q.position <= n.position
              and n.state = 'queued') as place,
           t.number as turn_number, t.state as turn_state
    from notification n
    left join lateral (select s.* from session s where s.account_id = n.account_id and s.id = n.session_id offset 0) s on true
    left join lateral (select v.* from persona_version v where v.account_id = s.account_id and v.id = s.persona_version_id offset 0) v on true
    left join lateral (select t.* from turn t where t.account_id = n.account_id and t.id = n.turn_id offset 0) t on true
    where n.account_id = $1 and n.id = $2";

pub async fn placed_find(tx: &Tx, account: &AccountId, id: &NotificationId) -> Result<Option<Placed>, StorageError> {
    tx.one("find a notification's route", PLACED, [account.into(), id.into()])
        .await
}
