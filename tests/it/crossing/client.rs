//! A client that sends requests byte for byte: it normalizes no path and corrects no header. It is cheap, since it sends tens of
//! thousands.

use std::{
    collections::HashMap,
    io::{Error, ErrorKind, Result},
    sync::Mutex,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use super::{
    attempt::{Door, Request},
    judge::Answer,
};

type Connection = BufReader<TcpStream>;

pub(crate) struct Client {
    /// Host and port.
    doors: HashMap<Door, String>,
    idle: Mutex<HashMap<Door, Vec<Connection>>>,
}

impl Client {
    pub(crate) fn new(doors: [(Door, String); 2]) -> Client {
        Client {
            doors: doors.into(),
            idle: Mutex::default(),
        }
    }

    pub(crate) async fn send(&self, request: &Request) -> Answer {
        let idle = self.idle.lock().unwrap().entry(request.door).or_default().pop();
        if let Some(connection) = idle
            // The server may have closed the idle connection.
            && let Ok(answer) = self.exchange(connection, request).await
        {
            return answer;
        }
        let door = &self.doors[&request.door];
        let connection = BufReader::new(TcpStream::connect(door).await.unwrap());
        connection.get_ref().set_nodelay(true).unwrap();
        let answer = self.exchange(connection, request).await;
        answer.unwrap_or_else(|error| panic!("{request:?}: {error}"))
    }

    async fn exchange(&self, mut connection: Connection, request: &Request) -> Result<Answer> {
        connection
            .write_all(&bytes(request, &self.doors[&request.door]))
            .await?;
        let head = head(&mut connection).await?;
        let status = head[0].split(' ').nth(1).and_then(|status| status.parse().ok());
        let field = |name: &str| {
            head[1..].iter().find_map(|line| {
                let (field, value) = line.split_once(':')?;
                field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        let body = match field("content-length").and_then(|length| length.parse().ok()) {
            Some(length) => exactly(&mut connection, length).await?,
            None if field("transfer-encoding").is_some() => chunks(&mut connection).await?,
            None => Vec::new(),
        };
        if field("connection").is_none_or(|connection| connection != "close") {
            self.idle
                .lock()
                .unwrap()
                .entry(request.door)
                .or_default()
                .push(connection);
        }
        Ok(Answer {
            status: status.ok_or(ErrorKind::InvalidData)?,
            kind: field("content-type").unwrap_or_default(),
            body: String::from_utf8(body).map_err(Error::other)?,
        })
    }
}

fn bytes(request: &Request, host: &str) -> Vec<u8> {
    let mut text = format!("{} {} HTTP/1.1\r\nhost: {host}\r\n", request.method, request.path);
    if !request.token.is_empty() {
        text += &format!("authorization: Bearer {}\r\n", request.token);
    }
    for (name, value) in &request.headers {
        text += &format!("{name}: {value}\r\n");
    }
    if let Some(body) = &request.body {
        text += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    }
    text += "\r\n";
    text += request.body.as_deref().unwrap_or_default();
    text.into_bytes()
}

async fn line(connection: &mut Connection) -> Result<String> {
    let mut line = String::new();
    if connection.read_line(&mut line).await? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

/// The status line and the headers.
async fn head(connection: &mut Connection) -> Result<Vec<String>> {
    let mut head = Vec::new();
    loop {
        let line = line(connection).await?;
        if line.is_empty() {
            return Ok(head);
        }
        head.push(line);
    }
}

async fn exactly(connection: &mut Connection, length: usize) -> Result<Vec<u8>> {
    let mut body = vec![0; length];
    connection.read_exact(&mut body).await?;
    Ok(body)
}

async fn chunks(connection: &mut Connection) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let length = line(connection).await?;
        let length = usize::from_str_radix(&length, 16).map_err(Error::other)?;
        body.extend(exactly(connection, length).await?);
        line(connection).await?;
        if length == 0 {
            return Ok(body);
        }
    }
}
