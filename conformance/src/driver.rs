//! The driver: a child process that answers one line for each line. It is killed when this is dropped.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, bail, ensure};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::protocol::{Answer, Hello, Request, Verb, line_of, line_read};

/// A service may have to start with `hello`, and to start again after a crash.
const START_LIMIT: Duration = Duration::from_secs(180);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const END_LIMIT: Duration = Duration::from_secs(30);

pub struct Driver {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub hello: Hello,
}

impl Driver {
    /// Starts the command, words separated by spaces, and greets it.
    pub async fn start(command: &str, agent_url: &str) -> anyhow::Result<Driver> {
        let mut words = command.split_whitespace();
        let program = words.next().context("the driver's command is empty")?;
        let mut child = Command::new(program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("could not start the driver {program}"))?;
        let requests = child.stdin.take().expect("standard input is piped");
        let answers = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let hello = Hello::default();
        let mut driver = Driver {
            child,
            requests,
            answers,
            hello,
        };
        let request = Request::hello(agent_url);
        driver.hello = match driver.ask(&request).await? {
            Answer::Ok(hello) => serde_json::from_value(hello).context("the answer to hello")?,
            answer => bail!("the driver does not start: {answer}"),
        };
        Ok(driver)
    }

    /// An error means that the driver cannot be used any more: the next line could be the answer to this request.
    pub async fn ask(&mut self, request: &Request) -> anyhow::Result<Answer> {
        let limit = match request.verb {
            Verb::Hello { .. } | Verb::Crash { .. } => START_LIMIT,
            _ => ANSWER_LIMIT,
        };
        let exchange = async {
            let line = line_of(request);
            let written = self.requests.write_all(line.as_bytes()).await;
            written.context("could not write to the driver")?;
            let answer = line_read(&mut self.answers).await?;
            answer.context("the driver has ended")
        };
        let answer = timeout(limit, exchange).await;
        answer.with_context(|| format!("the driver did not answer within {limit:?}"))?
    }

    /// Closes the driver's input and waits for its end.
    pub async fn end(self) -> anyhow::Result<()> {
        let Driver {
            mut child, requests, ..
        } = self;
        drop(requests);
        let ended = timeout(END_LIMIT, child.wait()).await;
        let status = ended.context("the driver did not end with its input")??;
        ensure!(status.success(), "the driver ended with {status}");
        Ok(())
    }
}
