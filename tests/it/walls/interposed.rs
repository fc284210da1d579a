//! A proxy before the database that passes every statement with its values to the [`Trials`] before its execution, and then
//! forwards it unchanged. The service waits meanwhile, so the trial runs on the same rows as the statement.

use std::{collections::HashMap, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
};

use super::trials::{Executed, Trials, renamed};

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const DECLARES: &str = "set_config('signalbox.accounts', '";
/// On a slow machine, trials may hold a statement for longer than the limit for idle transactions.
const IMPATIENT: &str = "idle_in_transaction_session_timeout=30000";
const PATIENT: &str = "idle_in_transaction_session_timeout=00000";

/// Gives the URL of the database through the proxy.
pub(crate) async fn interpose(url: &str, trials: &Arc<Trials>) -> String {
    let mut through = reqwest::Url::parse(url).unwrap();
    let server = (through.host_str().unwrap().to_owned(), through.port().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    through.set_host(Some("127.0.0.1")).unwrap();
    through.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
    let trials = Arc::clone(trials);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(server.clone()).await.unwrap();
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let ((from_client, mut to_client), (mut from_server, to_server)) =
                (client.into_split(), server.into_split());
            // A connection ends when either side closes.
            tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
            let trials = Arc::clone(&trials);
            tokio::spawn(async move { requests(from_client, to_server, &trials).await });
        }
    });
    through.to_string()
}

/// A connection's prepared statements, and the accounts that its transaction declared.
#[derive(Default)]
struct Session {
    role: String,
    declared: String,
    statements: HashMap<Vec<u8>, (String, Vec<u32>)>,
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, trials: &Trials) -> std::io::Result<()> {
    let mut session = Session::default();
    loop {
        let start = renamed(&body(&mut from).await?, IMPATIENT, PATIENT);
        to.write_all(&message(&[], &start)).await?;
        let code = u32::from_be_bytes([start[0], start[1], start[2], start[3]]);
        if code != SSL_REQUEST && code != GSS_REQUEST {
            session.role = role(&start[4..]);
            break;
        }
    }
    loop {
        let kind = from.read_u8().await?;
        let body = body(&mut from).await?;
        match kind {
            b'P' => session.parsed(&body),
            b'B' => trials.hold(session.bound(&body)).await,
            b'Q' => {
                let (sql, _) = text(&body);
                let sql = String::from_utf8_lossy(sql);
                if is_edge(&sql) {
                    session.declared = declared(&sql).to_owned();
                }
                trials.simple(&sql);
            }
            _ => {}
        }
        to.write_all(&message(&[kind], &body)).await?;
    }
}

async fn body(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut body = vec![0; length as usize - 4];
    from.read_exact(&mut body).await?;
    Ok(body)
}

fn message(kind: &[u8], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("a message's length");
    [kind, &length.to_be_bytes(), body].concat()
}

/// Whether a transaction begins or ends here; a declaration ends with it.
fn is_edge(sql: &str) -> bool {
    let words: Vec<String> = sql.split_whitespace().map(str::to_ascii_lowercase).collect();
    match words.first().map(|word| word.trim_end_matches(';')) {
        Some("begin" | "commit") => true,
        Some("rollback") => words.get(1).is_none_or(|word| word != "to"),
        _ => false,
    }
}

/// A transaction declares its accounts in its first statement.
fn declared(sql: &str) -> &str {
    let (_, names) = sql.split_once(DECLARES).unwrap_or_default();
    names.split('\'').next().unwrap_or_default()
}

/// Services name their role in the start-up message.
fn role(parameters: &[u8]) -> String {
    let words = String::from_utf8_lossy(parameters).replace('\0', " ");
    let role = words.split("role=").nth(1).unwrap_or_default();
    role.split_whitespace().next().unwrap_or_default().to_owned()
}

impl Session {
    fn parsed(&mut self, body: &[u8]) {
        let (name, rest) = text(body);
        let (sql, types) = text(rest);
        let types = types[2..]
            .chunks_exact(4)
            .map(|oid| u32::from_be_bytes([oid[0], oid[1], oid[2], oid[3]]))
            .collect();
        let sql = String::from_utf8(sql.to_vec()).expect("SQL is text");
        self.statements.insert(name.to_vec(), (sql, types));
    }

    /// The statement that is about to be executed.
    fn bound(&self, body: &[u8]) -> Executed {
        let (_, rest) = text(body);
        let (name, rest) = text(rest);
        let (sql, types) = self.statements[name].clone();
        let formats = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
        let mut rest = &rest[2 + 2 * formats..];
        let count = u16::from_be_bytes([rest[0], rest[1]]);
        rest = &rest[2..];
        let mut values = Vec::new();
        for _ in 0..count {
            let length = i32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]);
            rest = &rest[4..];
            let value = usize::try_from(length).ok().map(|length| rest[..length].to_vec());
            rest = &rest[value.as_ref().map_or(0, Vec::len)..];
            values.push(value);
        }
        Executed {
            role: self.role.clone(),
            declared: self.declared.clone(),
            sql,
            types,
            values,
        }
    }
}

/// The bytes up to the next zero, and the rest.
fn text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .expect("a text ends with a zero");
    (&bytes[..end], &bytes[end + 1..])
}
