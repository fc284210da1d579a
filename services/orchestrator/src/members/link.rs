//! One-time sign-in links: an admin or the operator makes them, or the person asks for one by e-mail.

use api::members::SignInLink;
use domain::{AccountId, SignInToken, UserId};
use storage::Tx;
use time::{Duration, OffsetDateTime};

use super::store::{self, LinkFor};
use crate::{app::App, error::ApiError};

/// How long an invitation is good.
pub fn invited_for(app: &App) -> Duration {
    Duration::try_from(app.sign_in.invite_days.duration()).unwrap_or(Duration::MAX)
}

/// How long a link is good that somebody asks for.
pub fn asked_for(app: &App) -> Duration {
    Duration::minutes(i64::from(app.sign_in.link_min.get()))
}

/// Makes the member's link, which ends the one before. The caller knows that there is such a member.
pub async fn link_make(
    app: &App,
    (tx, now): (&Tx, OffsetDateTime),
    (account, user): (&AccountId, &UserId),
    by: &str,
    (purpose, good_for): (LinkFor, Duration),
) -> Result<SignInLink, ApiError> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(ApiError::Random)?;
    let token = SignInToken::from_random(account, random);
    let expires_at: OffsetDateTime = now + good_for;
    store::link_set(tx, user, &token, (expires_at, purpose)).await?;
    tracing::info!(%account, %user, by, "made a sign-in link");
    let base = app.base_url();
    Ok(SignInLink {
        sign_in_link: Some(format!("{base}/sign-in/{}", token.expose())),
        expires_at: expires_at.into(),
    })
}

/// The answer that is stored.
pub fn without_secret(link: &SignInLink) -> SignInLink {
    SignInLink {
        sign_in_link: None,
        expires_at: link.expires_at,
    }
}
