//! Faults with messages: repeated, late, malformed, too large, and requests whose client disconnects.

use std::{collections::BTreeSet, time::Duration};

use async_nats::jetstream::{self, message::StreamMessage};
use bytes::Bytes;
use contracts::{Headers, header};
use domain::QueueMode;
use futures::future::join_all;
use reqwest::Method;
use sqlx::Row;
use time::OffsetDateTime;

use crate::{
    campaign::Campaign,
    clients::publisher,
    dice::Dice,
    plan::{AGENTS, Oversized, TASKS, account_id},
    records::{Answer, Author, Offer, Offered, Try, Via, Work, WorkKind},
};

/// Repetitions choose among the newest offers, since those are in progress.
const RECENT: usize = 150;
/// Requests are cut anywhere.
const LEAVE_AFTER_MS: (u64, u64) = (0, 40);
/// An unavailable stream does not acknowledge.
const SAY_LIMIT: Duration = Duration::from_millis(1_500);
/// Messages read to find those of closed sessions.
const LOOKS_MAX: usize = 200;
/// Time limit of a burst.
const BURST_LIMIT: Duration = Duration::from_secs(6);
const PAUSE: Duration = Duration::from_millis(1_200);

/// Sends the same notifications again, over either way.
pub(super) async fn repeat(campaign: &Campaign, count: usize, choice: u64) -> usize {
    let mut dice = Dice::new(choice, "repeat");
    let recent = campaign.book.recent(RECENT, |offer| {
        matches!(offer.what, Offered::Notification { .. }) && !offer.tries.is_empty()
    });
    if recent.is_empty() {
        return 0;
    }
    let repeating = (0..count).map(|_| {
        let offer = dice.pick(&recent);
        // A repetition over HTTP names the same sender, so its content is the same.
        let via = *dice.pick(&[Via::Nats, Via::Nats, Via::Http]);
        (account_of(campaign, offer), via, Offered::Repeat { of: offer.number })
    });
    let repeating: Vec<_> = repeating.collect();
    join_all(
        repeating
            .into_iter()
            .map(|(account, via, what)| campaign.offer(account, via, what)),
    )
    .await
    .len()
}

/// Sends a stored notification's id with another body.
pub(super) async fn conflict(campaign: &Campaign, choice: u64) -> anyhow::Result<usize> {
    let mut dice = Dice::new(choice, "conflict");
    let recent = campaign.book.recent(
        RECENT,
        |offer| matches!(&offer.what, Offered::Notification { agents, .. } if agents.len() == 1 && offer.is_accepted()),
    );
    for _ in 0..recent.len().min(10) {
        let offer = dice.pick(&recent);
        let Offered::Notification { id, .. } = &offer.what else {
            continue;
        };
        const WRITTEN: &str = "select 1 from notification where account_id = $1 and id = $2";
        let look = sqlx::query(WRITTEN).bind(&offer.account).bind(id);
        let Ok(Some(_)) = look.fetch_optional(&campaign.system.observer).await else {
            continue;
        };
        let what = Offered::Conflict {
            of: offer.number,
            id: id.clone(),
        };
        campaign.offer(account_of(campaign, offer), Via::Nats, what).await;
        return Ok(1);
    }
    Ok(0)
}

/// Republishes messages between services under other ids: newest first, and long after their time if the task was closed meanwhile.
pub(super) async fn replay(campaign: &Campaign, count: usize, choice: u64) -> anyhow::Result<usize> {
    let mut dice = Dice::new(choice, "replay");
    let stream = *dice.pick(&["SIGNALBOX_SESSION", "SIGNALBOX_TOOL", "SIGNALBOX_EVENT"]);
    let Ok(client) = publisher(&campaign.system.nats_url).await else {
        return Ok(0);
    };
    let jetstream = jetstream::new(client);
    let Ok(mut stream) = jetstream.get_stream(stream).await else {
        return Ok(0);
    };
    let Ok(info) = stream.info().await else { return Ok(0) };
    let last = info.state.last_sequence;
    let mut hits = 0;
    for nth in 0..count as u64 {
        let Some(sequence) = last.checked_sub(nth).filter(|sequence| *sequence > 0) else {
            break;
        };
        let Ok(message) = stream.get_raw_message(sequence).await else {
            continue;
        };
        hits += say_again(&jetstream, &message, &format!("replay-{choice}-{nth}")).await;
    }
    Ok(hits)
}

/// Publishes the message under another id. 1 when the stream has it.
async fn say_again(jetstream: &jetstream::Context, message: &StreamMessage, id: &str) -> usize {
    // Signed as by a service: unsigned messages are not processed.
    let mut signed = Headers::default();
    for (name, values) in message.headers.iter() {
        signed.set(name.as_ref(), values[0].as_str());
    }
    signed.set(header::MESSAGE_ID, id.to_owned());
    let signature = testkit::keyring().sign(&message.subject, &signed, &message.payload);
    let mut headers = message.headers.clone();
    headers.insert(header::MESSAGE_ID, id);
    headers.insert(header::SIGNATURE, signature.expect("a test's ring signs"));
    let publishing = async {
        let published = jetstream.publish_with_headers(message.subject.clone(), headers, message.payload.clone());
        Ok::<_, async_nats::jetstream::context::PublishError>(published.await?.await.is_ok())
    };
    match tokio::time::timeout(SAY_LIMIT, publishing).await {
        Ok(Ok(true)) => 1,
        Ok(_) | Err(_) => 0,
    }
}

/// Republishes wake-ups and tool calls of a closed generation whose conversation continues in a newer one.
pub(super) async fn old_generation(campaign: &Campaign, count: usize, choice: u64) -> anyhow::Result<usize> {
    const CLOSED: &str = "select s.id::text from session s where s.closed_at is not null and s.task_id is not null and exists (
            select 1 from session n where n.account_id = s.account_id and n.task_id = s.task_id and n.agent_id = s.agent_id
            and n.generation > s.generation and n.closed_at is null)";
    let mut dice = Dice::new(choice, "old generation");
    let Ok(rows) = sqlx::query(CLOSED).fetch_all(&campaign.system.observer).await else {
        return Ok(0);
    };
    let closed: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    if closed.is_empty() {
        return Ok(0);
    }
    let Ok(client) = publisher(&campaign.system.nats_url).await else {
        return Ok(0);
    };
    let jetstream = jetstream::new(client);
    let stream = *dice.pick(&["SIGNALBOX_SESSION", "SIGNALBOX_TOOL", "SIGNALBOX_TOOL"]);
    let Ok(mut stream) = jetstream.get_stream(stream).await else {
        return Ok(0);
    };
    let Ok(info) = stream.info().await else { return Ok(0) };
    let last = usize::try_from(info.state.last_sequence).unwrap_or_default();
    let mut hits = 0;
    for nth in 0..LOOKS_MAX {
        if hits >= count || last == 0 {
            break;
        }
        let sequence = dice.below(last) as u64 + 1;
        let Ok(message) = stream.get_raw_message(sequence).await else {
            continue;
        };
        let said: serde_json::Value = serde_json::from_slice(&message.payload).unwrap_or_default();
        if said["session_id"].as_str().is_some_and(|id| closed.contains(id)) {
            hits += say_again(&jetstream, &message, &format!("old-{choice}-{nth}")).await;
        }
    }
    Ok(hits)
}

/// Many notifications for one session, published as fast as the broker acknowledges: they queue and run in order.
pub(super) async fn burst(campaign: &Campaign, fault: usize, count: usize, choice: u64) -> usize {
    let mut dice = Dice::new(choice, "burst");
    let account = dice.below(crate::plan::ACCOUNTS);
    let (task, agent) = (*dice.pick(&TASKS), *dice.pick(&AGENTS));
    let mode = *dice.pick(&[QueueMode::Followup, QueueMode::Followup, QueueMode::Collect]);
    let deadline = tokio::time::Instant::now() + BURST_LIMIT;
    let mut accepted = 0;
    for nth in 0..count {
        let what = Offered::Notification {
            id: format!("burst-{fault}-{nth}"),
            task: Some(task.to_owned()),
            agents: vec![agent.to_owned()],
            work: Work {
                kind: WorkKind::Reply,
                effect: format!("b{fault:06}-{nth}"),
            },
            mode,
            author: Author::Ann,
        };
        let number = campaign.book.offer(account_id(account), what);
        if tokio::time::Instant::now() < deadline {
            campaign
                .clients
                .pursue(&campaign.book, number, account, Via::Nats)
                .await;
            accepted += usize::from(campaign.book.find(number).is_accepted());
        } else {
            campaign.pursue(number, account, Via::Nats);
        }
    }
    accepted
}

/// An answered request's key with another body: refused without an effect.
pub(super) async fn key_reused(campaign: &Campaign, choice: u64) -> usize {
    let mut dice = Dice::new(choice, "key reused");
    let over_http = |tried: &Try| tried.via == Via::Http && tried.answer == Answer::Accepted;
    let recent = campaign.book.recent(RECENT, |offer| {
        let posted = matches!(offer.what, Offered::Notification { .. } | Offered::Message { .. });
        posted && offer.tries.iter().any(over_http)
    });
    if recent.is_empty() {
        return 0;
    }
    let offer = dice.pick(&recent);
    let what = Offered::KeyReused { of: offer.number };
    let number = campaign.offer(account_of(campaign, offer), Via::Http, what).await;
    campaign.book.find(number).is_answered().into()
}

/// Malformed notifications, and unknown names, of every kind of refusal.
pub(super) async fn poison(campaign: &Campaign, fault: usize, nth: usize) -> usize {
    let id = format!("poison-{fault}");
    let (payload, has_id, reason) = match nth % 8 {
        0 => ("{\"id\": ".to_owned(), false, "malformed"),
        1 => ("[1, 2]".to_owned(), false, "malformed"),
        2 => (
            format!("{{\"id\": \"{id}\", \"agent\": \"coder\"}}"),
            true,
            "invalid_field",
        ),
        3 => (
            format!("{{\"id\": \"{id}\", \"agent\": \"nobody-here\", \"body\": \"x\"}}"),
            true,
            "unknown_agent",
        ),
        4 => (
            format!("{{\"id\": \"{id}\", \"agent\": \"coder\", \"body\": \"a\\u0000b\"}}"),
            true,
            "invalid_field",
        ),
        5 => ("\u{0}\u{1}\u{2}".to_owned(), false, "malformed"),
        6 => ("[".repeat(100_000), false, "malformed"),
        _ => (
            format!(
                "{{\"id\": \"{id}\", \"agent\": \"coder\", \"body\": \"x\", \"message_id\": \"{}\"}}",
                uuid::Uuid::nil()
            ),
            true,
            "message_mismatch",
        ),
    };
    let what = Offered::Poison {
        id: has_id.then(|| id.clone()),
        reason: reason.to_owned(),
    };
    wrong(campaign, nth % crate::plan::ACCOUNTS, what, Bytes::from(payload)).await
}

/// Payloads over a limit of ours.
pub(super) async fn oversize(campaign: &Campaign, fault: usize, what: Oversized) -> usize {
    if what == Oversized::Headers {
        return campaign.clients.too_many_headers(fault).await.into();
    }
    let over_http = what == Oversized::Body;
    let account = fault % crate::plan::ACCOUNTS;
    let id = format!("oversize-{fault}");
    let bytes = if over_http { 2 * 1024 * 1024 } else { 300 * 1024 };
    let payload = format!(
        "{{\"id\": \"{id}\", \"agent\": \"coder\", \"body\": \"{}\"}}",
        "x".repeat(bytes)
    );
    let what = Offered::Poison {
        id: Some(id.clone()),
        reason: "too_large".to_owned(),
    };
    if !over_http {
        return wrong(campaign, account, what, Bytes::from(payload)).await;
    }
    let number = campaign.book.offer(account_id(account), what);
    let sent_at = OffsetDateTime::now_utc();
    let (path, payload) = (
        format!("/api/orgs/{}/notifications", account_id(account)),
        Bytes::from(payload),
    );
    let asking = campaign.clients.request(
        &campaign.book,
        fault,
        account,
        (Method::POST, &path),
        Some((&payload, &id)),
    );
    tried(campaign, number, Via::Http, sent_at, asking.await)
}

async fn wrong(campaign: &Campaign, account: usize, what: Offered, payload: Bytes) -> usize {
    let number = campaign.book.offer(account_id(account), what);
    let sent_at = OffsetDateTime::now_utc();
    let subject = format!("signalbox.notification.{}.{}", account_id(account), TASKS[0]);
    let answer = campaign.clients.publish(subject, payload).await;
    tried(campaign, number, Via::Nats, sent_at, answer)
}

/// The fault hit if it was accepted or refused.
fn tried(campaign: &Campaign, number: usize, via: Via, sent_at: OffsetDateTime, answer: Answer) -> usize {
    let hit = !matches!(answer, Answer::Unknown { .. });
    campaign.book.tried(
        number,
        Try {
            via,
            sent_at,
            ended_at: OffsetDateTime::now_utc(),
            answer,
        },
    );
    hit.into()
}

/// Writes whose client disconnects in the middle, so that the server drops the request; then they are repeated with the same key.
pub(super) async fn clients_gone(campaign: &Campaign, fault: usize, count: usize, choice: u64) -> usize {
    let mut dice = Dice::new(choice, "gone");
    let leaving = (0..count).map(|nth| {
        let account = dice.below(crate::plan::ACCOUNTS);
        let what = Offered::Notification {
            id: format!("gone-{fault}-{nth}"),
            task: Some((*dice.pick(&TASKS)).to_owned()),
            agents: vec![(*dice.pick(&AGENTS)).to_owned()],
            work: Work {
                kind: WorkKind::Reply,
                effect: format!("g{fault:06}-{nth}"),
            },
            mode: QueueMode::Followup,
            author: Author::Ann,
        };
        let after = Duration::from_millis(dice.between(LEAVE_AFTER_MS.0, LEAVE_AFTER_MS.1));
        (account, what, after)
    });
    let leaving: Vec<_> = leaving.collect();
    let all = leaving.into_iter().map(|(account, what, after)| async move {
        let number = campaign.book.offer(account_id(account), what);
        let sent_at = OffsetDateTime::now_utc();
        campaign
            .clients
            .request_and_leave(number, &campaign.book, account, after)
            .await;
        let left = campaign.book.find(number).tries.is_empty();
        if left {
            let why = "the client left".to_owned();
            tried(campaign, number, Via::Http, sent_at, Answer::Unknown { why });
            tokio::time::sleep(PAUSE).await;
        }
        if !campaign.book.find(number).is_answered() {
            campaign.pursue(number, account, Via::Http);
        }
        usize::from(left)
    });
    join_all(all).await.into_iter().sum()
}

fn account_of(campaign: &Campaign, offer: &Offer) -> usize {
    let place = campaign
        .clients
        .tenants
        .iter()
        .position(|tenant| tenant.id == offer.account);
    place.expect("an offer is of an account of the campaign")
}
