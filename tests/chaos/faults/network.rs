//! Faults of one process's connections. The proxies count the hits.

use std::time::Duration;

use testkit::proxy::{NetworkFault, Proxy, Way};
use tokio::time::sleep;

use super::{ms, until};
use crate::{
    campaign::Campaign,
    plan::{Link, NetworkHarm, Process},
};

/// Time limit for the next commit.
const COMMIT_LIMIT: Duration = Duration::from_secs(4);
/// Time limit for the next answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// The commit succeeds and its answer is lost.
pub(super) async fn commit_lost(campaign: &Campaign, process: Process, count: u64) -> usize {
    let service = campaign.system.service(process);
    let _life = service.life().await;
    let proxy = &service.postgres;
    let before = proxy.hits(NetworkFault::LostCommit);
    proxy.lose_commits(count);
    until(COMMIT_LIMIT, || proxy.hits(NetworkFault::LostCommit) >= before + count).await;
    proxy.heal();
    hits_since(proxy, NetworkFault::LostCommit, before)
}

pub(super) async fn harm(campaign: &Campaign, process: Process, link: Link, harm: NetworkHarm) -> usize {
    let service = campaign.system.service(process);
    // Held so that no other fault acts on the process or heals it meanwhile.
    let _life = service.life().await;
    let proxy = service.link(link);
    let kind = kind(harm);
    let before = proxy.hits(kind);
    match harm {
        NetworkHarm::Cut => {
            proxy.cut();
            until(ANSWER_LIMIT, || proxy.hits(kind) > before).await;
        }
        NetworkHarm::CutAnswer { after_bytes } => {
            proxy.cut_after(Way::ToClient, after_bytes);
            until(ANSWER_LIMIT, || proxy.hits(kind) > before).await;
        }
        NetworkHarm::Stall { for_ms } => {
            proxy.stall(&Way::BOTH);
            sleep(ms(for_ms)).await;
        }
        NetworkHarm::Refuse { for_ms } => {
            proxy.refuse();
            proxy.cut();
            sleep(ms(for_ms)).await;
        }
        NetworkHarm::Slow { by_ms, for_ms } => {
            proxy.delay(&Way::BOTH, ms(by_ms));
            sleep(ms(for_ms)).await;
        }
        NetworkHarm::Narrow {
            bytes_per_second,
            for_ms,
        } => {
            proxy.throttle(&Way::BOTH, bytes_per_second);
            sleep(ms(for_ms)).await;
        }
        NetworkHarm::HalfClose => {
            proxy.half_close(Way::ToServer);
            until(ANSWER_LIMIT, || proxy.hits(kind) > before).await;
        }
    }
    proxy.heal();
    hits_since(proxy, kind, before)
}

fn kind(harm: NetworkHarm) -> NetworkFault {
    match harm {
        NetworkHarm::Cut => NetworkFault::Cut,
        NetworkHarm::CutAnswer { .. } => NetworkFault::CutAfter,
        NetworkHarm::Stall { .. } => NetworkFault::Stall,
        NetworkHarm::Refuse { .. } => NetworkFault::Refuse,
        NetworkHarm::Slow { .. } => NetworkFault::Delay,
        NetworkHarm::Narrow { .. } => NetworkFault::Throttle,
        NetworkHarm::HalfClose => NetworkFault::HalfClose,
    }
}

fn hits_since(proxy: &Proxy, kind: NetworkFault, before: u64) -> usize {
    usize::try_from(proxy.hits(kind) - before).unwrap_or(usize::MAX)
}
