//! Background load: a few notifications in progress at any time, over NATS alone, so that it does not matter which service is
//! stopped.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    bus::Bus,
    town::{ACCOUNT, notification},
};

const UNDER_WAY_MAX: usize = 6;
const TASKS: usize = 6;
/// While a service is stopped no notification ends; then those in progress are dropped from the count, and more are published.
const QUIET_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Load {
    stop: CancellationToken,
    publishing: JoinHandle<BTreeMap<String, Vec<String>>>,
}

impl Load {
    pub(crate) async fn start(bus: Bus) -> Load {
        let stop = CancellationToken::new();
        let mut ended = bus.listen(&format!("signalbox.event.{ACCOUNT}.*.turn.finished")).await;
        let stopped = stop.clone();
        let publishing = tokio::spawn(async move {
            let mut published: BTreeMap<String, Vec<String>> = BTreeMap::new();
            let (mut count, mut under_way) = (0_usize, 0_usize);
            while !stopped.is_cancelled() {
                while under_way < UNDER_WAY_MAX {
                    let (id, task) = (format!("load-{count}"), format!("L-{}", count % TASKS));
                    bus.publish(ACCOUNT, &task, &notification(&id)).await;
                    published.entry(task).or_default().push(id);
                    count += 1;
                    under_way += 1;
                }
                match timeout(QUIET_MAX, ended.next()).await {
                    Ok(_) => under_way = under_way.saturating_sub(1),
                    Err(_) => under_way = 0,
                }
            }
            published
        });
        Load { stop, publishing }
    }

    /// Published notifications, by task.
    pub(crate) async fn stop(self) -> BTreeMap<String, Vec<String>> {
        self.stop.cancel();
        self.publishing.await.unwrap()
    }
}
