//! Deletes expired rows: stored answers of POSTs, accepted notifications, dead letters, holds, questions, timers and
//! recoveries that have ended, mail that is over, memories that have faded, deliveries that have ended, and browser sessions and
//! sign-in tokens that are over. Idempotent, and safe in several replicas at once.

use std::time::Duration;

use api::accounts::AccountEntry;
use domain::AccountId;
use runtime::sweep::{Parts, Pieces, Sweep, Ticks};
use storage::{Accounts, Role, StorageError, directory::account_directory};
use tokio_util::sync::CancellationToken;

use crate::app::App;

/// Accounts read in one query.
const ACCOUNTS_MAX: i32 = 500;

pub async fn forget(app: App, stop: CancellationToken) {
    let sweep = Sweep::new(Role::Orchestrator.service(), "kept_for_a_time");
    let mut ticks = Ticks::every(app.settings.forget_interval_ms.duration(), stop.clone());
    while ticks.next().await {
        sweep.once(forget_once(&app, &stop)).await;
    }
}

/// Walks all accounts and the operator; gives the number of deleted rows. A failing account does not stop the others.
pub async fn forget_once(app: &App, stop: &CancellationToken) -> Result<u64, StorageError> {
    let mut parts = Parts::default();
    let operator = storage::accounts::OPERATOR;
    forget_of(app, &mut parts, &Accounts::operator(), operator, stop).await;
    let of_logins = [(SESSIONS, OF_LOGINS_KEPT, 1), (TOKENS, OF_LOGINS_KEPT, 1)];
    forget_all(app, &mut parts, (&Accounts::none(), operator), &of_logins, stop).await;
    let mut after: Option<String> = None;
    loop {
        let entries: Vec<AccountEntry> = account_directory(&app.database, after.as_deref(), ACCOUNTS_MAX).await?;
        for entry in &entries {
            if stop.is_cancelled() {
                return parts.end();
            }
            if let Ok(account) = AccountId::parse(&entry.id) {
                forget_of(
                    app,
                    &mut parts,
                    &Accounts::one(&account).with_everybody(),
                    account.as_str(),
                    stop,
                )
                .await;
            }
        }
        match entries.last() {
            Some(last) if entries.len() == usize::try_from(ACCOUNTS_MAX).unwrap_or(usize::MAX) => {
                after = Some(last.id.clone());
            }
            Some(_) | None => return parts.end(),
        }
    }
}

/// Each deletes the oldest rows first, up to a limit, and skips rows that another replica has locked. The locked rows are found by
/// ctid. Each statement relies on its index by age.
pub const ANSWERS: &str = "
    delete from idempotency where ctid = any (array(
        select ctid from idempotency where account_id = $1 and created_at < now() - $2 * interval '1 second'
        order by created_at limit $3 for update skip locked))";
pub const ACCEPTED: &str = "
    delete from accepted_notification where ctid = any (array(
        select ctid from accepted_notification where account_id = $1 and created_at < now() - $2 * interval '1 second'
        order by created_at limit $3 for update skip locked))";
pub const LETTERS: &str = "
    delete from dead_letter where ctid = any (array(
        select ctid from dead_letter where account_id = $1 and created_at < now() - $2 * interval '1 second'
        order by created_at, id limit $3 for update skip locked))";
pub const HOLDS: &str = "
    delete from hold where ctid = any (array(
        select ctid from hold where account_id = $1 and released_at < now() - $2 * interval '1 second'
        order by released_at limit $3 for update skip locked))";
pub const RECOVERIES: &str = "
    delete from recovery where ctid = any (array(
        select ctid from recovery where account_id = $1 and ended_at < now() - $2 * interval '1 second'
        order by ended_at limit $3 for update skip locked))";
pub const TIMERS: &str = "
    delete from timer where ctid = any (array(
        select ctid from timer where account_id = $1 and ended_at < now() - $2 * interval '1 second'
        order by ended_at limit $3 for update skip locked))";
pub const QUESTIONS: &str = "
    delete from question where ctid = any (array(
        select ctid from question where account_id = $1 and ended_at < now() - $2 * interval '1 second'
        order by ended_at limit $3 for update skip locked))";
pub const MEMORIES: &str = "
    delete from memory where ctid = any (array(
        select ctid from memory where account_id = $1 and fades_at < now() - $2 * interval '1 second'
        order by fades_at limit $3 for update skip locked))";
/// Mail to a session is over with its outcome, mail to a person when it is archived.
pub const MAIL: &str = "
    delete from mail where ctid = any (array(
        select ctid from mail
        where account_id = $1 and case when to_session is null then archived_at else settled_at end < now() - $2 * interval '1 second'
        order by case when to_session is null then archived_at else settled_at end limit $3 for update skip locked))";
pub const DELIVERIES: &str = "
    delete from outbound_delivery where ctid = any (array(
        select ctid from outbound_delivery where account_id = $1 and kept_until < now() - $2 * interval '1 second'
        order by kept_until limit $3 for update skip locked))";
/// What nobody has sent, long after it was due: e-mail was taken out of the configuration. Whatever a digest brings ends with it.
pub const UNSENT: &str = "
    with late as (
        select ctid, id from outbound_delivery where account_id = $1 and next_at < now() - $2 * interval '1 second'
        order by next_at limit $3 for update skip locked
    ), ended as (
        select ctid from late
        union all
        select i.ctid from late l
        cross join lateral (
            select i.ctid from outbound_delivery i
            where i.account_id = $1 and i.digest_id = l.id and i.id <> l.id and i.ended_at is null for update) i
    )
    update outbound_delivery d set state = 'dead', reason = 'nothing sent it: Signalbox sends no e-mail', next_at = null, lease_owner = null,
        ended_at = now(), kept_until = now() + case type when 'sign_in' then 1 else 90 end * interval '1 day'
    from ended e where d.ctid = e.ctid";
/// How long a delivery waits for `[email]` to come back.
const UNSENT_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Tables of logins have no account: `$1` is not used.
pub const SESSIONS: &str = "
    delete from login_session where ctid = any (array(
        select ctid from login_session where $1::text is not null and ends_at < now() - $2 * interval '1 second'
        order by ends_at limit $3 for update skip locked))";
pub const TOKENS: &str = "
    delete from sign_in_token where ctid = any (array(
        select ctid from sign_in_token where $1::text is not null and expires_at < now() - $2 * interval '1 second'
        order by expires_at limit $3 for update skip locked))";
/// Retention of browser sessions and tokens, after their end.
const OF_LOGINS_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Dead letters and mail are large, so fewer are deleted at a time.
const LARGE_PART: u32 = 5;

/// One transaction a piece, until no expired row is left.
async fn forget_of(
    app: &App,
    parts: &mut Parts<StorageError>,
    accounts: &Accounts,
    owner: &str,
    stop: &CancellationToken,
) {
    let settings = &app.settings;
    let of_account = [
        (ANSWERS, settings.answers_kept_hours.duration(), 1),
        (ACCEPTED, settings.accepted_kept_hours.duration(), 1),
        (LETTERS, settings.dead_letters_kept_days.duration(), LARGE_PART),
        (HOLDS, settings.control_kept_days.duration(), 1),
        (RECOVERIES, settings.control_kept_days.duration(), 1),
        (TIMERS, settings.control_kept_days.duration(), 1),
        (QUESTIONS, settings.control_kept_days.duration(), 1),
        (MAIL, settings.mail_kept_days.duration(), LARGE_PART),
        (MEMORIES, Duration::ZERO, 1),
        (UNSENT, UNSENT_KEPT, LARGE_PART),
        (DELIVERIES, Duration::ZERO, 1),
    ];
    forget_all(app, parts, (accounts, owner), &of_account, stop).await;
}

/// Statements with how long they leave rows, and the share of a piece that they delete at a time.
async fn forget_all(
    app: &App,
    parts: &mut Parts<StorageError>,
    (accounts, owner): (&Accounts, &str),
    statements: &[(&'static str, Duration, u32)],
    stop: &CancellationToken,
) {
    for &(sql, kept, part) in statements {
        let mut pieces = Pieces::of(&[()]);
        while let Some(piece) = pieces.next().filter(|_| !stop.is_cancelled()) {
            let rows_max = (parts.rows_max() / part).max(1);
            let forgotten = forget_piece(app, accounts, owner, (sql, kept, rows_max)).await;
            if parts.note_piece(owner, &mut pieces, piece, forgotten) {
                pieces.again(piece);
            }
        }
    }
}

async fn forget_piece(
    app: &App,
    accounts: &Accounts,
    owner: &str,
    (sql, kept, rows_max): (&'static str, Duration, u32),
) -> Result<u64, StorageError> {
    let tx = app.database.begin(accounts).await?;
    let values = [owner.into(), kept.as_secs_f64().into(), i64::from(rows_max).into()];
    let rows = tx.execute("delete expired rows", sql, values).await;
    tx.commit_or_rollback(rows).await
}
