//! From a claimed row to an e-mail. What has been read, and whoever was removed, is left out; links are made for this attempt.

use contracts::event::Change;
use domain::{AccountId, Actor, UserId};
use storage::{Accounts, StorageError};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    smtp::Letter,
    store::{self, Claimed, SIGN_IN, accounts_of},
    text::{self, Text, Told},
};
use crate::{
    app::{App, database_now},
    error::ApiError,
    members::{self, link},
};

/// An e-mail, or why there is none.
pub enum Composed {
    Letter {
        letter: Letter,
        /// Deliveries that it brings.
        brought: Vec<Uuid>,
    },
    Nothing(&'static str),
}

pub async fn compose(app: &App, owner: &str, claimed: &Claimed) -> Result<Composed, ApiError> {
    match AccountId::parse(owner) {
        Ok(account) => Ok(mail(app, &account, claimed).await?),
        Err(_) if claimed.what == SIGN_IN => sign_in(app, claimed).await,
        Err(_) => Ok(Composed::Nothing(
            "nothing of the operator's is delivered but sign-in links",
        )),
    }
}

async fn mail(app: &App, account: &AccountId, claimed: &Claimed) -> Result<Composed, StorageError> {
    let tx = app.database.begin(&accounts_of(account.as_str())).await?;
    let items = store::items(&tx, account.as_str(), claimed.id).await;
    let items = tx.commit_or_rollback(items).await?;
    let told: Vec<Told<'_>> = items
        .iter()
        .map(|item| Told {
            mail: item.mail,
            kind: item.kind,
            from: &item.from_name,
            task: item.task.as_ref(),
            content: &item.content,
        })
        .collect();
    let base = app.base_url();
    let Text { subject, text } = match (&told[..], claimed.digest_id) {
        ([], _) => {
            return Ok(Composed::Nothing(
                "read or archived before, or its person was removed or has no address",
            ));
        }
        ([one], None) => text::one(&base, account, one),
        (several, _) => text::digest(&base, account, several),
    };
    let letter = Letter {
        id: claimed.id,
        to: items[0].email.clone(),
        subject,
        text,
    };
    Ok(Composed::Letter {
        letter,
        brought: items.iter().map(|item| item.delivery).collect(),
    })
}

/// A link for each account in which the address is a member's. A link is nowhere but in the e-mail: another attempt has others.
async fn sign_in(app: &App, claimed: &Claimed) -> Result<Composed, ApiError> {
    let tx = app.database.begin(&Accounts::none()).await?;
    let found = store::members_mailed(&tx, &claimed.destination_id).await;
    let found = tx.commit_or_rollback(found).await?;
    let (mut links, mut until) = (Vec::new(), OffsetDateTime::UNIX_EPOCH);
    for member in found {
        if let Some((made, expires_at)) = link_of(app, &member.account_id, &member.user_id).await? {
            links.push((member.account_id, made));
            until = expires_at;
        }
    }
    if links.is_empty() {
        return Ok(Composed::Nothing("no member has this address"));
    }
    let Text { subject, text } = text::sign_in(&links, until);
    let letter = Letter {
        id: claimed.id,
        to: claimed.destination_id.clone(),
        subject,
        text,
    };
    Ok(Composed::Letter {
        letter,
        brought: Vec::new(),
    })
}

/// None: the member was removed meanwhile.
async fn link_of(app: &App, account: &AccountId, user: &UserId) -> Result<Option<(String, OffsetDateTime)>, ApiError> {
    let tx = app.begin_sweep(account).await?;
    if members::store::member_lock(&tx, account, user).await?.is_none() {
        tx.rollback().await?;
        return Ok(None);
    }
    let now = database_now(&tx).await?;
    let system = Actor::system();
    let purpose = (members::store::LinkFor::Mail, link::asked_for(app));
    let made = link::link_make(app, (&tx, now), (account, user), &system.id, purpose).await?;
    let changed = members::changed(user, Change::Changed, system);
    app.commit_free(tx, vec![app.event(account, now, changed)]).await?;
    Ok(made.sign_in_link.map(|link| (link, made.expires_at.0)))
}
