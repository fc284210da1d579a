//! Reads the earlier turns from which the contexts of turns are rendered again, for logs and for diffs.

use std::collections::HashSet;

use api::turns::Turn;
use domain::AccountId;
use prompt::Manifest;
use storage::{StorageError, Tx};
use uuid::Uuid;

use crate::{
    replays::store::replay_find,
    turns::{
        sent::{Earlier, PASTS_BYTES_MAX, has_base, manifest_of, past_of},
        store::{Pasts, SpawningTurn, pasts_of, spawning_turns, turn_find},
    },
};

/// Earlier turns that were read.
pub struct EarlierTurns {
    pasts: Pasts,
    spawning: Option<SpawningTurn>,
}

impl EarlierTurns {
    pub fn shown(&self) -> Earlier<'_> {
        Earlier {
            pasts: &self.pasts,
            spawning: self.spawning.as_ref(),
        }
    }
}

/// `turns`: of one conversation. A branch has one session, and so has a replay: the turns that have a base have the same one.
pub async fn earlier_turns(tx: &Tx, account: &AccountId, turns: &[Turn]) -> Result<EarlierTurns, StorageError> {
    let manifests: Vec<Option<Manifest>> = turns.iter().map(manifest_of).collect();
    let mut seen = HashSet::new();
    let pasts = manifests.iter().flatten().flat_map(past_of);
    let pasts: Vec<Uuid> = pasts.filter(|id| seen.insert(*id)).collect();
    let has_base = |manifest: &Option<Manifest>| manifest.as_ref().is_some_and(has_base);
    let based = turns.iter().zip(&manifests).find(|(_, manifest)| has_base(manifest));
    let branch = match based {
        Some((turn, _)) => branch_of(tx, account, turn).await?,
        None => None,
    };
    let branches = branch.into_iter().collect();
    let spawning = spawning_turns(tx, account, branches, PASTS_BYTES_MAX).await?;
    Ok(EarlierTurns {
        pasts: pasts_of(tx, account, pasts, PASTS_BYTES_MAX).await?,
        spawning: spawning.into_values().next(),
    })
}

/// The branch of a turn; of a replay, that of the source turn.
async fn branch_of(tx: &Tx, account: &AccountId, turn: &Turn) -> Result<Option<Uuid>, StorageError> {
    let Some(replay) = turn.replay_id else {
        return Ok(turn.branch_id);
    };
    let Some(replay) = replay_find(tx, account, replay.into()).await? else {
        return Ok(None);
    };
    let source = turn_find(tx, account, replay.shown().source_turn, 0).await?;
    Ok(source.and_then(|source| source.branch_id))
}
