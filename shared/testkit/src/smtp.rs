//! A mail server: a program that speaks SMTP, keeps what it takes, and fails as it is told to.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

/// What it does with an e-mail, once it knows for whom that is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    Takes,
    /// Refuses with this code.
    Refuses(u16),
    /// Answers nothing more.
    Hangs,
    /// Closes the connection.
    Drops,
    /// Takes it, and closes the connection before it says so.
    LosesAnswer,
}

/// An e-mail that it has taken.
#[derive(Clone, Debug)]
pub struct Email {
    pub from: String,
    pub to: String,
    /// Headers and text, as they were sent.
    pub data: String,
}

impl Email {
    /// The value of a header, its folded lines joined.
    pub fn header(&self, name: &str) -> Option<String> {
        let headers = self
            .data
            .split("\r\n\r\n")
            .next()
            .unwrap_or_default()
            .replace("\r\n ", " ");
        let found = headers
            .split("\r\n")
            .find_map(|line| line.strip_prefix(&format!("{name}: ")));
        found.map(str::to_owned)
    }

    /// As its reader sees it.
    pub fn text(&self) -> String {
        let text = self.data.split_once("\r\n\r\n").map_or("", |(_, text)| text);
        let bytes = match self.header("Content-Transfer-Encoding").as_deref() {
            Some("quoted-printable") => quoted_printable(text),
            Some("base64") => STANDARD.decode(text.replace("\r\n", "")).expect("base64"),
            _ => text.as_bytes().to_vec(),
        };
        String::from_utf8(bytes).expect("UTF-8")
    }
}

fn quoted_printable(text: &str) -> Vec<u8> {
    let joined = text.replace("=\r\n", "");
    let mut parts = joined.split('=');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).expect("two hexadecimal digits"));
        bytes.extend(&part.as_bytes()[2..]);
    }
    bytes
}

#[derive(Debug)]
struct Told {
    always: Manner,
    /// For the next e-mails, before `always`.
    next: VecDeque<Manner>,
    /// For e-mail to these addresses, before all.
    of: BTreeMap<String, Manner>,
    taken: Vec<Email>,
    asked: usize,
}

#[derive(Debug)]
pub struct MailServer {
    /// For `email.smtp_url`.
    pub url: String,
    told: Mutex<Told>,
}

impl MailServer {
    pub async fn start() -> Arc<MailServer> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("smtp://{}", listener.local_addr().expect("an address"));
        let told = Mutex::new(Told {
            always: Manner::Takes,
            next: VecDeque::new(),
            of: BTreeMap::new(),
            taken: Vec::new(),
            asked: 0,
        });
        let server = Arc::new(MailServer { url, told });
        let listens = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = Arc::clone(&listens);
                // A client that goes away ends its conversation.
                tokio::spawn(async move { server.talk(stream).await });
            }
        });
        server
    }

    /// With all e-mail from now on.
    pub fn always(&self, manner: Manner) {
        self.told.lock().always = manner;
    }

    /// With one e-mail, after those that were told before.
    pub fn once(&self, manner: Manner) {
        self.told.lock().next.push_back(manner);
    }

    /// With all e-mail to this address.
    pub fn with(&self, to: &str, manner: Manner) {
        self.told.lock().of.insert(to.to_owned(), manner);
    }

    /// What it has taken, the oldest first.
    pub fn taken(&self) -> Vec<Email> {
        self.told.lock().taken.clone()
    }

    /// How often it was asked to take an e-mail.
    pub fn asked(&self) -> usize {
        self.told.lock().asked
    }

    fn manner(&self, to: &str) -> Manner {
        let mut told = self.told.lock();
        told.asked += 1;
        let of = told.of.get(to).copied();
        of.or_else(|| told.next.pop_front()).unwrap_or(told.always)
    }

    async fn talk(&self, stream: TcpStream) -> std::io::Result<()> {
        let (reader, mut writer) = stream.into_split();
        let mut lines = BufReader::new(reader).lines();
        writer.write_all(b"220 mail.example ESMTP\r\n").await?;
        let (mut from, mut to, mut manner) = (String::new(), String::new(), Manner::Takes);
        let address = |line: &str| line.split(['<', '>']).nth(1).unwrap_or_default().to_owned();
        while let Some(line) = lines.next_line().await? {
            let verb = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
            match verb.as_str() {
                "EHLO" | "HELO" => writer.write_all(b"250-mail.example\r\n250 8BITMIME\r\n").await?,
                "MAIL" => {
                    from = address(&line);
                    writer.write_all(b"250 OK\r\n").await?;
                }
                "RCPT" => {
                    to = address(&line);
                    manner = self.manner(&to);
                    match manner {
                        Manner::Takes | Manner::LosesAnswer => writer.write_all(b"250 OK\r\n").await?,
                        Manner::Refuses(code) => {
                            // As servers do, it repeats the address.
                            let answer = format!("{code} <{to}> is not taken\r\n");
                            writer.write_all(answer.as_bytes()).await?;
                        }
                        Manner::Hangs => std::future::pending().await,
                        Manner::Drops => return Ok(()),
                    }
                }
                "DATA" => {
                    writer.write_all(b"354 go on\r\n").await?;
                    let mut data = String::new();
                    while let Some(line) = lines.next_line().await?.filter(|line| line != ".") {
                        data.push_str(line.strip_prefix('.').unwrap_or(&line));
                        data.push_str("\r\n");
                    }
                    let (from, to) = (from.clone(), to.clone());
                    self.told.lock().taken.push(Email { from, to, data });
                    if manner == Manner::LosesAnswer {
                        return Ok(());
                    }
                    writer.write_all(b"250 taken\r\n").await?;
                }
                "QUIT" => {
                    writer.write_all(b"221 bye\r\n").await?;
                    return Ok(());
                }
                _ => writer.write_all(b"250 OK\r\n").await?,
            }
        }
        Ok(())
    }
}
