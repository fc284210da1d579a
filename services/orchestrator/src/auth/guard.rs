//! The middleware in front of every route. The order of its checks is part of the wall between tenants: a key of one account learns
//! nothing about another account, not even which of its routes the key's role permits.

use axum::{
    extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State},
    http::{StatusCode, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use domain::{AccountId, ApiKey};
use runtime::http::{AccountLimits, Problem, UnderWay, bearer};
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use storage::{Accounts, accounts::account_exists, api_key::api_key_holder};
use subtle::ConstantTimeEq;

use super::{Access, Caller, OperatorAccess};
use crate::{
    app::App,
    error::ApiError,
    permission::{Need, may},
    route::{Permission, Permissions, Scope},
};

pub async fn guard(State((app, permissions)): State<(App, Permissions)>, request: Request, next: Next) -> Response {
    match admit(&app, &permissions, request).await {
        Ok((request, None)) => next.run(request).await,
        // The place of the account is released when the response body has been sent.
        Ok((request, Some(under_way))) => under_way.hold(next.run(request).await),
        Err(error) => error.into_response(),
    }
}

/// Authenticates and authorizes the request, and attaches the caller. A key's request counts against its account's limits.
async fn admit(
    app: &App,
    permissions: &Permissions,
    request: Request,
) -> Result<(Request, Option<UnderWay>), ApiError> {
    let (mut parts, body) = request.into_parts();
    let (caller, under_way) = caller(app, &parts).await?;
    if let Some(under_way) = &under_way {
        parts.extensions.insert(under_way.share());
    }
    let pattern = parts
        .extensions
        .get::<MatchedPath>()
        .map(|path| path.as_str().to_owned())
        .unwrap_or_default();
    let account = RawPathParams::from_request_parts(&mut parts, &())
        .await
        .ok()
        .and_then(|params| {
            params
                .iter()
                .find(|(name, _)| *name == "account")
                .map(|(_, value)| value.to_owned())
        });
    let account = match account {
        Some(name) => Some(account_of(app, &caller, &name).await?),
        None => None,
    };
    // If the path does not have the method, the router answers.
    if let Some(Permission { need, scope, .. }) = permissions.find(&parts.method, &pattern) {
        let reads = parts.method.is_safe();
        match (&caller, scope, account) {
            (Caller::Operator, Scope::Operator, _) => {
                parts.extensions.insert(OperatorAccess);
            }
            (Caller::Operator, Scope::Account, Some(account)) => {
                parts.extensions.insert(Access { account, caller, reads });
            }
            (Caller::Key(holder), Scope::Account, Some(account)) if may(holder, *need) => {
                parts.extensions.insert(Access { account, caller, reads });
            }
            (Caller::Key(holder), Scope::Current, _) if may(holder, *need) => {
                let account = holder.account.clone();
                parts.extensions.insert(Access { account, caller, reads });
            }
            (caller, Scope::Account | Scope::Current, _) if *need == Need::Person => {
                app.meters.refused("forbidden");
                tracing::warn!(
                    key = caller.principal(),
                    route = pattern,
                    "refused: the key is not a person's own"
                );
                let detail = "this is no person's key: sign in by a link, and use the key that it gives";
                return Err(Problem::new(StatusCode::FORBIDDEN, "not_a_person")
                    .detail(detail)
                    .into());
            }
            (Caller::Key(holder), _, _) => {
                app.meters.refused("forbidden");
                tracing::warn!(key = %holder.id, role = %holder.role, route = pattern, "refused: the role lacks the permission");
                return Err(Problem::forbidden(format!("a key of role {} may not do this", holder.role)).into());
            }
            (Caller::Operator, Scope::Account | Scope::Current, _) => {
                app.meters.refused("forbidden");
                return Err(Problem::forbidden("the operator has no account: use an account's key").into());
            }
        }
    }
    Ok((Request::from_parts(parts, body), under_way))
}

/// The bearer of the token, and its account's place for one request; the operator needs none.
async fn caller(app: &App, parts: &Parts) -> Result<(Caller, Option<UnderWay>), ApiError> {
    let refuse = |why: &'static str| {
        app.meters.refused("unauthorized");
        tracing::warn!(why, "refused: no valid key");
        ApiError::from(Problem::unauthorized())
    };
    let token = bearer(&parts.headers)?.ok_or_else(|| refuse("no bearer token"))?;
    if let Some(operator) = &app.settings.operator_token
        && same(token, operator.expose_secret())
    {
        return Ok((Caller::Operator, None));
    }
    let key = ApiKey::parse(token).map_err(|_| refuse("not a key"))?;
    let look_up = async {
        let tx = app.callers.begin(&Accounts::one(key.account())).await?;
        let holder = api_key_holder(&tx, &key).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(holder)
    };
    let admitted = AccountLimits::admit(&parts.extensions, &key, look_up);
    let (holder, under_way) = admitted.await?.ok_or_else(|| refuse("unknown or revoked key"))?;
    Ok((Caller::Key(holder), Some(under_way)))
}

/// Another account, a missing account and an impossible account name get the same answer.
async fn account_of(app: &App, caller: &Caller, name: &str) -> Result<AccountId, ApiError> {
    let account = AccountId::parse(name).map_err(|_| Problem::not_found())?;
    match caller {
        Caller::Operator => {
            let tx = app.callers.begin(&Accounts::one(&account)).await?;
            let exists = account_exists(&tx, &account).await?;
            tx.commit().await?;
            if exists {
                Ok(account)
            } else {
                Err(Problem::not_found().into())
            }
        }
        // The account exists: its key was found.
        Caller::Key(holder) if holder.account == account => Ok(account),
        Caller::Key(holder) => {
            app.meters.refused("other_account");
            tracing::warn!(key = %holder.id, account = %holder.account, "refused: the key belongs to another account");
            Err(Problem::not_found().into())
        }
    }
}

/// Compares digests, so that neither content nor length changes the time.
fn same(token: &str, secret: &str) -> bool {
    Sha256::digest(token.as_bytes())
        .ct_eq(&Sha256::digest(secret.as_bytes()))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_token_is_compared_as_a_whole() {
        assert!(same("secret", "secret"));
        assert!(!same("secre", "secret"));
        assert!(!same("secret2", "secret"));
        assert!(!same("", "secret"));
    }
}
