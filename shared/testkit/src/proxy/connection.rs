//! One connection through the proxy: two directions, each read and written piece by piece, under the current rules.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    NetworkFault, Rules, Shared, Way,
    postgres::{Answers, Greeting},
    reset,
};

const PIECE_BYTES: usize = 16 * 1024;
/// The interval of a throttled direction.
const THROTTLE_STEP: Duration = Duration::from_millis(50);

/// Why a connection ended before both peers had closed it.
enum Broken {
    Fault(NetworkFault),
    /// A peer ended it: the end was forwarded.
    End,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Broken::End
    }
}

pub(super) async fn carry(mut client: TcpStream, rules: watch::Receiver<Rules>, shared: Arc<Shared>) {
    let upstream = rules.borrow().upstream;
    let mut server = match TcpStream::connect(upstream).await {
        Ok(server) => server,
        Err(_) => return reset(&client),
    };
    // The proxy is not there: what is written goes out.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    shared.open.fetch_add(1, Ordering::Relaxed);
    let outcome = {
        let bare_answers = AtomicU64::new(0);
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let half = |way, from, to| Half {
            way,
            from,
            to,
            rules: rules.clone(),
            shared: &shared,
            bare_answers: &bare_answers,
        };
        let ways = async {
            tokio::try_join!(
                half(Way::ToServer, from_client, to_server).run(),
                half(Way::ToClient, from_server, to_client).run()
            )
        };
        // Dropping either branch loses bytes in flight, as a broken connection does.
        tokio::select! {
            biased;
            broken = until_cut(rules.clone()) => Err(broken),
            ended = ways => ended.map(|_| ()),
        }
    };
    if let Err(broken) = outcome {
        if let Broken::Fault(fault) = broken {
            shared.hit(fault);
        }
        reset(&client);
        reset(&server);
    }
    shared.open.fetch_sub(1, Ordering::Relaxed);
}

async fn until_cut(mut rules: watch::Receiver<Rules>) -> Broken {
    let cuts = rules.borrow().cuts;
    until(&mut rules, |rules| rules.cuts != cuts).await;
    Broken::Fault(NetworkFault::Cut)
}

async fn until(rules: &mut watch::Receiver<Rules>, hold: impl FnMut(&Rules) -> bool) {
    rules
        .wait_for(hold)
        .await
        .map(|_| ())
        .expect("a connection holds a sender of the rules");
}

/// One direction of a connection.
struct Half<'a> {
    way: Way,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    rules: watch::Receiver<Rules>,
    shared: &'a Shared,
    /// How many answers of one byte, without a length, Postgres still owes.
    bare_answers: &'a AtomicU64,
}

impl Half<'_> {
    async fn run(mut self) -> Result<(), Broken> {
        let begun_with = self.rules.borrow().half_closes[self.way as usize];
        let mut closing = self.rules.clone();
        let way = self.way as usize;
        let mut closed = false;
        let mut buffer = vec![0; PIECE_BYTES];
        let mut greeting = Greeting::default();
        let mut answers = Answers::default();
        loop {
            let read = tokio::select! {
                biased;
                // Both are cancel-safe: no byte has been read yet.
                () = until(&mut closing, |rules| rules.half_closes[way] != begun_with), if !closed => {
                    closed = true;
                    self.shared.hit(NetworkFault::HalfClose);
                    self.to.shutdown().await?;
                    continue;
                }
                read = self.from.read(&mut buffer) => read?,
            };
            if read == 0 {
                if !closed {
                    self.to.shutdown().await?;
                }
                return Ok(());
            }
            if closed {
                continue;
            }
            let piece = &buffer[..read];
            if self.shared.speaks_postgres {
                match self.way {
                    Way::ToServer => {
                        self.bare_answers
                            .fetch_add(greeting.requests_in(piece), Ordering::SeqCst);
                    }
                    Way::ToClient => self.without_lost_commit(piece, &mut answers).await?,
                }
            }
            if self.way == Way::ToServer || !self.shared.speaks_postgres {
                self.send(piece).await?;
            }
        }
    }

    /// Forwards the bytes before the answer to a commit that is to be lost, and ends the connection.
    async fn without_lost_commit(&mut self, piece: &[u8], answers: &mut Answers) -> Result<(), Broken> {
        let mut sent = 0;
        let commits = answers.commits_in(piece, self.bare_answers);
        self.shared.count(answers.take_counts());
        for commit in commits {
            if self.shared.loses_commit() {
                self.send(&piece[sent..commit.start]).await?;
                return Err(Broken::Fault(NetworkFault::LostCommit));
            }
            self.send(&piece[sent..commit.end]).await?;
            sent = commit.end;
        }
        self.send(&piece[sent..]).await
    }

    async fn send(&mut self, piece: &[u8]) -> Result<(), Broken> {
        if piece.is_empty() {
            return Ok(());
        }
        self.hold().await;
        self.delay().await;
        let passing = self.shared.spend(self.way, piece.len());
        self.write(&piece[..passing]).await?;
        if passing < piece.len() {
            return Err(Broken::Fault(NetworkFault::CutAfter));
        }
        Ok(())
    }

    async fn hold(&mut self) {
        let way = self.way as usize;
        if self.rules.borrow().stalled[way] {
            self.shared.hit(NetworkFault::Stall);
            until(&mut self.rules, |rules| !rules.stalled[way]).await;
        }
    }

    /// A delay that is removed ends at once.
    async fn delay(&mut self) {
        let way = self.way as usize;
        let delay = self.rules.borrow().delays[way];
        if !delay.is_zero() {
            self.shared.hit(NetworkFault::Delay);
            let healed = until(&mut self.rules, |rules| rules.delays[way].is_zero());
            // A timeout means that the delay has passed.
            let _ = timeout(delay, healed).await;
        }
    }

    async fn write(&mut self, mut piece: &[u8]) -> Result<(), Broken> {
        let way = self.way as usize;
        let mut counted = false;
        while !piece.is_empty() {
            let Some(rate) = self.rules.borrow().bytes_per_second[way] else {
                self.to.write_all(piece).await?;
                break;
            };
            if !counted {
                counted = true;
                self.shared.hit(NetworkFault::Throttle);
            }
            let steps_per_second = 1000 / THROTTLE_STEP.as_millis() as u64;
            let step = usize::try_from(rate.div_ceil(steps_per_second)).unwrap_or(usize::MAX);
            let (now, later) = piece.split_at(step.min(piece.len()));
            self.to.write_all(now).await?;
            piece = later;
            sleep(THROTTLE_STEP).await;
        }
        Ok(())
    }
}
