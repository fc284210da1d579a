//! Audits of the accounts of an idle system, over the API. To show that they would find what they are for, a foreign sentence is put into
//! each part of a prompt in turn, by SQL, for the time of an audit.

use std::time::Duration;

use anyhow::{Context, bail};
use api::audit::Audit;
use prompt::{Manifest, manifest::Layer};
use sqlx::Row;
use tokio::time::{Instant, sleep};

use crate::{
    campaign::Campaign,
    plan::account_id,
    records::{Answer, Audited, Planted},
};

const SENTENCE: &str = "What another task was told. ";
const LIMIT: Duration = Duration::from_secs(60);
const AGAIN_AFTER: Duration = Duration::from_millis(250);

pub(crate) async fn audit(campaign: &Campaign, account: usize) -> anyhow::Result<Audited> {
    let mut whole = Audit::default();
    loop {
        let cursor = whole.next_cursor.take().unwrap_or_default();
        whole.add(page(campaign, account, &format!("cursor={cursor}")).await?, usize::MAX);
        if whole.next_cursor.is_none() {
            break;
        }
    }
    let line = |finding: &api::audit::Finding| {
        format!(
            "turn {}, {} of {}: {}: {}",
            finding.turn, finding.part, finding.source, finding.reason, finding.detail
        )
    };
    let audited = Audited {
        account: account_id(account),
        turns: whole.turns,
        violations: whole.violations.iter().map(line).collect(),
        planted: plant(campaign, account).await?,
    };
    Ok(audited)
}

async fn page(campaign: &Campaign, account: usize, query: &str) -> anyhow::Result<Audit> {
    let path = format!("/api/orgs/{}/audit/isolation?{query}", account_id(account));
    let deadline = Instant::now() + LIMIT;
    loop {
        let (answer, body) = campaign.clients.read(&campaign.book, account, &path).await;
        match answer {
            Answer::Accepted => return serde_json::from_value(body).context("an audit"),
            Answer::Refused { status } => bail!("{path}: {status} {body}"),
            Answer::Unknown { why } if Instant::now() > deadline => bail!("{path}: {why}"),
            Answer::Unknown { .. } => sleep(AGAIN_AFTER).await,
        }
    }
}

/// Of the account's turn with the longest manifest.
async fn plant(campaign: &Campaign, account: usize) -> anyhow::Result<Vec<Planted>> {
    const LONGEST: &str = "select id, input, manifest_packed from turn
        where account_id = $1 and state = 'finished' and manifest_packed is not null order by octet_length(manifest_packed) desc limit 1";
    let database = &campaign.system.observer;
    let found = sqlx::query(LONGEST)
        .bind(account_id(account))
        .fetch_optional(database)
        .await?;
    let Some(row) = found else { return Ok(Vec::new()) };
    let (turn, input, packed): (uuid::Uuid, String, Vec<u8>) = (row.get(0), row.get(1), row.get(2));
    let manifest = Manifest::unpacked(&packed).context("a manifest of this version")?;
    let write = async |input: &str| {
        let write = sqlx::query("update turn set input = $3 where account_id = $1 and id = $2");
        write
            .bind(account_id(account))
            .bind(turn)
            .bind(input)
            .execute(database)
            .await
    };
    let mut planted = Vec::new();
    for (place, slice) in manifest.slices(Layer::Input, &input)?.iter().enumerate() {
        let from = slice.text.as_ptr() as usize - input.as_ptr() as usize;
        let size = slice.text.floor_char_boundary(SENTENCE.len());
        // As many bytes, so that all other parts stay in their places.
        let words = &SENTENCE[..size];
        if words == &slice.text[..size] {
            continue;
        }
        write(&format!("{}{words}{}", &input[..from], &input[from + size..])).await?;
        let audit = page(campaign, account, &format!("turn={turn}")).await?;
        let source = slice.part.source.to_string();
        planted.push(Planted {
            place: format!("turn {turn}, part {place}: {source}"),
            is_found: audit
                .violations
                .iter()
                .any(|finding| finding.source == source && finding.reason == "hash_mismatch"),
        });
    }
    write(&input).await?;
    Ok(planted)
}
