//! The proxy's faults on arbitrary bytes, between a client and an echo server.

use std::{io::ErrorKind, time::Duration};

use testkit::{
    NetworkFault, Proxy,
    Way::{self, ToClient, ToServer},
    eventually,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};

/// Short enough to wait for, long enough not to occur by chance.
const MOMENT: Duration = Duration::from_millis(200);

async fn echo() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = copy(&mut read, &mut write).await;
            });
        }
    });
    address
}

async fn through(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

async fn said_back(client: &mut TcpStream, words: &[u8]) {
    client.write_all(words).await.unwrap();
    let mut answer = vec![0; words.len()];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, words);
}

async fn is_reset(client: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    matches!(client.read_to_end(&mut rest).await, Err(error) if error.kind() == ErrorKind::ConnectionReset)
}

#[tokio::test]
async fn passes_everything_and_the_end_too() {
    let proxy = Proxy::start(echo().await).await;
    let mut client = through(&proxy).await;
    let words: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (mut read, mut write) = client.split();
    let mut back = Vec::new();
    let (sent, read) = tokio::join!(
        async {
            write.write_all(&words).await?;
            write.shutdown().await
        },
        read.read_to_end(&mut back)
    );
    sent.unwrap();
    read.unwrap();
    assert!(back == words, "the same bytes, in the same order");
    eventually("the connection is over", || async {
        (proxy.connections() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn holds_one_way_until_healed() {
    for way in Way::BOTH {
        let proxy = Proxy::start(echo().await).await;
        let mut client = through(&proxy).await;
        said_back(&mut client, b"before").await;
        proxy.stall(&[way]);
        assert_eq!(proxy.hits(NetworkFault::Stall), 0, "nothing was held yet");
        client.write_all(b"held").await.unwrap();
        let mut answer = [0; 4];
        timeout(MOMENT, client.read_exact(&mut answer)).await.unwrap_err();
        assert_eq!(proxy.hits(NetworkFault::Stall), 1);
        proxy.heal();
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"held");
    }
}

#[tokio::test]
async fn a_stalled_way_holds_no_more_than_its_buffers() {
    let proxy = Proxy::start(echo().await).await;
    proxy.stall(&[ToServer]);
    let mut client = through(&proxy).await;
    let piece = vec![7; 1 << 20];
    // The kernel has buffers too, of some megabytes.
    let endless = async {
        for _ in 0..256 {
            client.write_all(&piece).await.unwrap();
        }
    };
    timeout(Duration::from_secs(2), endless)
        .await
        .expect_err("its sender has to wait");
}

#[tokio::test]
async fn delays_until_healed() {
    let proxy = Proxy::start(echo().await).await;
    let mut client = through(&proxy).await;
    proxy.delay(&[ToClient], MOMENT);
    let began = Instant::now();
    said_back(&mut client, b"late").await;
    assert!(began.elapsed() >= MOMENT);
    assert_eq!(proxy.hits(NetworkFault::Delay), 1);
    proxy.delay(&[ToServer], Duration::from_secs(3600));
    client.write_all(b"now").await.unwrap();
    eventually("the delay has begun", || async {
        (proxy.hits(NetworkFault::Delay) == 2).then_some(())
    })
    .await;
    proxy.heal();
    let mut answer = [0; 3];
    client.read_exact(&mut answer).await.unwrap();
}

#[tokio::test]
async fn sends_slowly() {
    let proxy = Proxy::start(echo().await).await;
    let mut client = through(&proxy).await;
    proxy.throttle(&[ToServer], 1000);
    let began = Instant::now();
    said_back(&mut client, &[1; 300]).await;
    assert!(began.elapsed() >= MOMENT);
    assert_eq!(proxy.hits(NetworkFault::Throttle), 1);
}

#[tokio::test]
async fn cuts_what_is_open_and_lets_new_ones_in() {
    let proxy = Proxy::start(echo().await).await;
    let mut clients = [through(&proxy).await, through(&proxy).await];
    for client in &mut clients {
        said_back(client, b"before").await;
    }
    assert_eq!(proxy.connections(), 2);
    proxy.cut();
    for client in &mut clients {
        assert!(is_reset(client).await);
    }
    eventually("both are over", || async { (proxy.connections() == 0).then_some(()) }).await;
    assert_eq!(proxy.hits(NetworkFault::Cut), 2);
    said_back(&mut through(&proxy).await, b"after").await;
}

#[tokio::test]
async fn cuts_a_stalled_connection_too() {
    let proxy = Proxy::start(echo().await).await;
    let mut client = through(&proxy).await;
    proxy.stall(&Way::BOTH);
    client.write_all(b"held").await.unwrap();
    eventually("it is held", || async {
        (proxy.hits(NetworkFault::Stall) == 1).then_some(())
    })
    .await;
    proxy.cut();
    assert!(is_reset(&mut client).await);
}

#[tokio::test]
async fn cuts_once_after_a_number_of_bytes() {
    let proxy = Proxy::start(echo().await).await;
    let mut client = through(&proxy).await;
    proxy.cut_after(ToClient, 10);
    said_back(&mut client, b"0123456789").await;
    client.write_all(b"x").await.unwrap();
    assert!(is_reset(&mut client).await);
    assert_eq!(proxy.hits(NetworkFault::CutAfter), 1);
    said_back(&mut through(&proxy).await, &[1; 100]).await;
}

#[tokio::test]
async fn closes_one_way_and_leaves_the_other() {
    let proxy = Proxy::start(echo().await).await;
    let mut client = through(&proxy).await;
    said_back(&mut client, b"before").await;
    proxy.half_close(ToClient);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
    client.write_all(b"nobody listens, nobody refuses").await.unwrap();
    assert_eq!(proxy.connections(), 1);
    assert_eq!(proxy.hits(NetworkFault::HalfClose), 1);
}

#[tokio::test]
async fn resets_new_connections_until_healed() {
    let proxy = Proxy::start(echo().await).await;
    let mut old = through(&proxy).await;
    said_back(&mut old, b"before").await;
    proxy.refuse();
    assert!(is_reset(&mut through(&proxy).await).await);
    assert_eq!(proxy.hits(NetworkFault::Refuse), 1);
    said_back(&mut old, b"still open").await;
    proxy.heal();
    said_back(&mut through(&proxy).await, b"after").await;
}

#[tokio::test]
async fn leads_to_another_server_and_resets_where_there_is_none() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(gone).await;
    assert!(is_reset(&mut through(&proxy).await).await);
    proxy.lead_to(echo().await);
    said_back(&mut through(&proxy).await, b"found").await;
}

#[tokio::test]
async fn ends_with_its_connections() {
    let proxy = Proxy::start(echo().await).await;
    let mut client = through(&proxy).await;
    said_back(&mut client, b"before").await;
    drop(proxy);
    assert!(is_reset(&mut client).await);
}

#[tokio::test]
async fn a_url_keeps_all_but_its_host() {
    let proxy = Proxy::start(([127, 0, 0, 1], 9).into()).await;
    let at = proxy.address();
    for (behind, expected) in [
        ("postgres://u:p@127.0.0.1:5432/db", format!("postgres://u:p@{at}/db")),
        ("nats://127.0.0.1:4222", format!("nats://{at}")),
        (
            "http://localhost/v1/responses?a=b",
            format!("http://{at}/v1/responses?a=b"),
        ),
    ] {
        assert_eq!(proxy.url(behind), expected);
    }
}
