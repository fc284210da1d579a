//! What people and programs of an account ask of running services: over the API with a person's own key, and on NATS with keys of the
//! account. The account has a thousand members and is filled directly; nothing else is asked meanwhile.

use std::time::Duration;

use anyhow::{Context, bail};
use async_nats::ConnectOptions;
use futures::{StreamExt, TryStreamExt, stream};
use hyper::Method;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::time::{Instant, sleep};

use crate::{
    client::Caller,
    figures::{Latency, histogram},
    stage::Stage,
    started::Started,
    stored::insert,
    subject::OPERATOR_TOKEN,
    work::{People, Work, account},
};

/// Keys that connect to NATS in turn: one key has at most 64 connections.
const KEYS: u32 = 20;
const TOPICS: u32 = 20;
const POLL: Duration = Duration::from_millis(5);

impl People {
    fn at_once(self) -> usize {
        match self {
            Self::Inbox | Self::Board | Self::Memory => 1,
            Self::Callout => 16,
        }
    }

    fn statements(self) -> &'static [&'static str] {
        match self {
            Self::Inbox => &[MAIL],
            Self::Board => &BOARD,
            Self::Memory => &[MEMORY],
            Self::Callout => &[],
        }
    }
}

/// Tasks that wait for one.
const WAITING: u32 = 32;

/// The members but the one who asks, who is added over the API.
const MEMBERS: [&str; 2] = [
    "insert into member (account_id, user_id, name, role)
        select account.id, 'm' || n, 'Member ' || n, 'member' from account, generate_series(1, 999) as n",
    "insert into orchestrator_identity (account_id, user_id, name, handle) select account_id, user_id, 'Agent', user_id from member",
];
/// 10,000 to the one who asks, ten to each of the others; the newest last.
const MAIL: &str = "\
insert into mail (account_id, id, from_user, from_name, to_user, to_address, content, message_type, why, thread_id, created_at, surface_at)
    select account.id, mail.id, 'm1', 'Member 1', to_user, '@user:' || to_user, repeat('please look into it, ', 10), 'message', 'addressed',
        mail.id, at, at
    from account, lateral (
        select pg_temp.id_of(at) as id, to_user, at from (
            select to_user, now() - interval '10 days' + n * interval '1 minute' as at from (
                select n, 'ann' as to_user from generate_series(1, 10000) as n
                union all select n, 'm' || m from generate_series(1, 10) as n, generate_series(1, 999) as m) as each
            order by n) as mail
        offset 0) as mail";
const MEMORY: &str = "\
insert into memory (account_id, id, owner, key, category, content, relevance, touched_at, fades_at, created_at)
    select account_id, pg_temp.id_of(at), 'user:' || user_id, 'fact ' || n, 'general',
        'Of topic' || n % {topics} || ': ' || repeat('the tests of service ' || n || ' run on Mondays, ', 6), 1, at, at + interval '229 days', at
    from (select account_id, user_id from member union all select id, 'ann' from account) as owner,
        generate_series(1, 200) as n, lateral (select now() - n * interval '1 hour' as at) as moment";
/// Tasks on the board of the one who asks; for each wait others' tasks, which an agent begins when they are free.
const BOARD: [&str; 4] = [
    "insert into task (account_id, id, display_id, title, status, board)
        select account.id, 'b-' || b, 'b-' || b, 'Before others', 'in_progress', 'user:ann'
        from account, generate_series(0, {asked} - 1) as b",
    "insert into task (account_id, id, display_id, title, status, board)
        select account.id, 'w-' || w, 'w-' || w, 'After another', 'blocked', 'user:m' || w % 999 + 1
        from account, generate_series(0, {asked} * {waiting} - 1) as w",
    "insert into task_assignee (account_id, task_id, agent_id)
        select task.account_id, task.id, agent.id from task join agent on agent.account_id = task.account_id where task.status = 'blocked'",
    "insert into task_dependency (account_id, task_id, blocked_by_task_id, created_at)
        select account.id, 'w-' || w, 'b-' || w / {waiting}, now() from account, generate_series(0, {asked} * {waiting} - 1) as w",
];

/// None while a turn is in progress. A freed task has one session, with one turn.
const DONE: &str = "\
select /* bench */ case when bool_and(phase = 'idle') then count(*) filter (where task_id is not null and turn_count > 0) else 0 end
from session";

/// Fills the run's only account.
pub(crate) async fn fill(observer: &PgPool, work: &Work, people: People) -> anyhow::Result<()> {
    let statements = MEMBERS.iter().chain(people.statements()).map(|statement| {
        statement
            .replace("{asked}", &work.notifications.to_string())
            .replace("{waiting}", &WAITING.to_string())
            .replace("{topics}", &TOPICS.to_string())
    });
    insert(observer, statements).await
}

/// Asks as often as the work has notifications. Gives the duration of one, and how many a second there were.
pub(crate) async fn ask(
    stage: &Stage,
    started: &Started,
    work: &Work,
    people: People,
) -> anyhow::Result<(Latency, f64)> {
    let asker = Asker::new(stage, started, work, people).await?;
    let mut histogram = histogram();
    let begun = Instant::now();
    let mut answers = stream::iter(0..work.notifications)
        .map(|number| asker.ask(people, number))
        .buffer_unordered(people.at_once());
    while let Some(took) = answers.try_next().await? {
        histogram.record(u64::try_from(took.as_micros()).context("a duration")?)?;
    }
    let per_s = f64::from(work.notifications) / begun.elapsed().as_secs_f64();
    Ok((Latency::of(&histogram), per_s))
}

struct Asker<'a> {
    stage: &'a Stage,
    api: String,
    caller: Caller,
    account: String,
    /// The person's own; for NATS, those of the account.
    keys: Vec<String>,
    limit: Duration,
}

impl Asker<'_> {
    async fn new<'a>(stage: &'a Stage, started: &Started, work: &Work, people: People) -> anyhow::Result<Asker<'a>> {
        let mut asker = Asker {
            stage,
            api: started.address_of("orchestrator")?,
            caller: Caller::new(1),
            account: account(0),
            keys: Vec::new(),
            limit: work.limit,
        };
        asker.keys = match people {
            People::Inbox | People::Board | People::Memory => vec![asker.signed_in().await?],
            People::Callout => asker.keys_of_account().await?,
        };
        Ok(asker)
    }

    async fn ask(&self, people: People, number: u32) -> anyhow::Result<Duration> {
        match people {
            People::Inbox => {
                let count = self.get("/api/me/inbox/count", "\"more\":true").await?;
                let page = self.get("/api/me/inbox", "\"id\":\"ann\"").await?;
                Ok(count.max(page))
            }
            People::Board => {
                let path = format!("/api/sessions/orchestrator:ann/tasks/b-{number}");
                let done = json!({"status": "done"});
                let took = self.own(Method::PUT, &path, &done, "\"status\":\"done\"").await?;
                self.until_done(number + 1).await?;
                Ok(took)
            }
            People::Memory => {
                let path = format!("/api/me/memories?query=topic{}", number % TOPICS);
                self.get(&path, "\"matched\":true").await
            }
            People::Callout => self.connect(number).await,
        }
    }

    async fn get(&self, path: &str, part: &str) -> anyhow::Result<Duration> {
        self.own(Method::GET, path, &Value::Null, part).await
    }

    /// A request with the person's key, whose answer must have this part. Gives its duration.
    async fn own(&self, method: Method, path: &str, body: &Value, part: &str) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let answer = self.request(method, path, &self.keys[0], body).await?;
        let took = begun.elapsed();
        if memchr::memmem::find(&answer, part.as_bytes()).is_none() {
            bail!("{path} answered {}", String::from_utf8_lossy(&answer));
        }
        Ok(took)
    }

    async fn request(&self, method: Method, path: &str, key: &str, body: &Value) -> anyhow::Result<bytes::Bytes> {
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into(),
        };
        let answer = self.caller.ask(method, &format!("{}{path}", self.api), key, body).await;
        answer.with_context(|| path.to_owned())
    }

    /// The agent of each freed task has been told and has done its turn; no other turn is in progress.
    async fn until_done(&self, moves: u32) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.limit;
        loop {
            let done: i64 = sqlx::query_scalar(DONE)
                .fetch_one(&self.stage.observer)
                .await
                .context("could not count turns of freed tasks")?;
            if done >= i64::from(moves * WAITING) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "{done} agents have done their turn {:?} after {moves} moves",
                    self.limit
                );
            }
            sleep(POLL).await;
        }
    }

    /// From the connection until the server has let the client in.
    async fn connect(&self, number: u32) -> anyhow::Result<Duration> {
        let key = &self.keys[(number % KEYS) as usize];
        let address = format!("nats://127.0.0.1:{}", self.stage.nats.port());
        let begun = Instant::now();
        ConnectOptions::with_user_and_password(self.account.clone(), key.clone())
            .connect(address)
            .await
            .context("a key was not let in")?;
        Ok(begun.elapsed())
    }

    /// Adds a member, who signs in by the link. Gives their key.
    async fn signed_in(&self) -> anyhow::Result<String> {
        let new = json!({"user_id": "ann", "name": "Ann", "role": "member", "invite": true});
        let made = self
            .operator(&format!("/api/orgs/{}/members", self.account), &new)
            .await?;
        let link = made["link"]["sign_in_link"].as_str().context("no link")?;
        let path = &link[link.find("/sign-in/").context("no link")?..];
        let signed_in = self.operator(path, &Value::Null).await?;
        text(&signed_in["key"]["key"])
    }

    async fn keys_of_account(&self) -> anyhow::Result<Vec<String>> {
        let mut keys = Vec::new();
        for number in 0..KEYS {
            let new = json!({"name": format!("Program {number}"), "role": "service"});
            let made = self.operator(&format!("/api/orgs/{}/keys", self.account), &new).await?;
            keys.push(text(&made["key"])?);
        }
        Ok(keys)
    }

    async fn operator(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let answer = self.request(Method::POST, path, OPERATOR_TOKEN, body).await?;
        serde_json::from_slice(&answer).with_context(|| path.to_owned())
    }
}

fn text(key: &Value) -> anyhow::Result<String> {
    key.as_str().map(str::to_owned).context("an answer without a key")
}
