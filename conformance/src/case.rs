//! Cases as data: a chapter is a TOML file of cases, a case is a list of steps. This file reads and checks them, and derives what
//! a case needs of a driver. What a step does is in `run.rs`.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, ensure};
use serde::{Deserialize, Deserializer, de::Error as _};
use toml::{Table, Value};

use crate::protocol::{Author, AuthorKind, EditOp, Gate, Hello, ItemState, Mode, Running, StopState, Then, Victim};

/// The shipped chapters, in the order of the document.
const SHIPPED: [(&str, &str); 8] = [
    ("followup", include_str!("../cases/followup.toml")),
    ("collect", include_str!("../cases/collect.toml")),
    ("steer", include_str!("../cases/steer.toml")),
    ("inject", include_str!("../cases/inject.toml")),
    ("stop", include_str!("../cases/stop.toml")),
    ("hold", include_str!("../cases/hold.toml")),
    ("edit", include_str!("../cases/edit.toml")),
    ("crash", include_str!("../cases/crash.toml")),
];
const FILE_BYTES_MAX: u64 = 1024 * 1024;
const FILES_MAX: usize = 256;
const STEPS_MAX: usize = 100;
/// The author and the session of a step that names none.
pub const AUTHOR: &str = "ann";
pub const SESSION: &str = "main";
/// What cases need beside modes, operations and features.
const TOOL: &str = "a tool";
const LIMIT: &str = "a limit of the queue";
/// Services; all other authors are persons.
const SERVICES: [&str; 2] = ["ci", "cron"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chapter {
    pub title: String,
    pub about: String,
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    pub about: String,
    pub steps: Vec<Step>,
}

/// A step: its verb with the fields beside it, and the fields that many verbs have.
#[derive(Debug)]
pub struct Step {
    /// As it is written: `send a, mode steer`.
    pub text: String,
    pub action: Action,
    pub common: Common,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Common {
    #[serde(default = "session")]
    pub session: String,
    #[serde(default = "author")]
    pub by: String,
    /// The name of a `queue` step's `keep`; if absent, the current revision.
    pub revision: Option<String>,
    /// The turn that was running then.
    pub turn: Option<String>,
    /// The answer of the driver.
    #[serde(default)]
    pub expect: Expect,
    pub code: Option<String>,
}

const COMMON: [&str; 6] = ["session", "by", "revision", "turn", "expect", "code"];

/// The verbs of steps, each a key of its table with the fields beside it.
macro_rules! actions {
    ($($verb:literal $variant:ident { $($(#[$meta:meta])* $field:ident: $of:ty),* $(,)? })*) => {
        const VERBS: &[&str] = &[$($verb),*];
        #[derive(Debug)]
        pub enum Action { $($variant($variant)),* }
        $(
            #[derive(Debug, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $variant { $($(#[$meta])* pub $field: $of),* }
        )*
        impl Action {
            fn read(verb: &str, table: Table) -> Result<Action, toml::de::Error> {
                match verb {
                    $($verb => table.try_into().map(Action::$variant),)*
                    _ => Err(toml::de::Error::custom("a step without a verb")),
                }
            }
        }
    };
}

actions! {
    // Of the driver.
    "send" Send { send: String, #[serde(default = "followup")] mode: String, r#type: Option<String> }
    // Items until one is refused as `queue_full`.
    "fill" Fill { fill: String }
    // With `expect = "either"`, steps may follow each answer.
    "edit" Edit { edit: String, op: EditOp, #[serde(default)] ok: Vec<Step>, #[serde(default)] conflict: Vec<Step> }
    "order" Order { order: Vec<String> }
    "stop" Stop { stop: Then, #[serde(default = "stopping")] state: StopState }
    "hold" Hold { hold: Running }
    "resume" Resume { resume: Gate }
    "queue" Queue { queue: Vec<String>, running: Option<Vec<String>>, gate: Option<String>, keep: Option<String> }
    "outcome" Outcome { outcome: String, is: ItemState, reason: Option<String> }
    "crash" Crash { crash: Victim }
    // Of the model.
    "call" Call { call: Vec<String> }
    "reply" Reply { reply: String }
    "tool" Tool { tool: bool }
    "fail" Fail { fail: u16 }
    "hang" Hang { hang: bool }
    "closed" Closed { closed: bool }
    "quiet" Quiet { quiet: u64 }
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Step, D::Error> {
        let table = Table::deserialize(deserializer)?;
        let (verb, text) = (verb_of(&table), text_of(&table));
        let (common, own): (Table, Table) = table.into_iter().partition(|(key, _)| COMMON.contains(&key.as_str()));
        let read = || Ok((Action::read(verb, own)?, common.try_into()?));
        let read = read().map_err(|error: toml::de::Error| D::Error::custom(format!("step `{text}`: {error}")));
        let (action, common) = read?;
        Ok(Step { text, action, common })
    }
}

/// Empty for a step without a verb.
fn verb_of(table: &Table) -> &'static str {
    let verb = VERBS.iter().find(|verb| table.contains_key(**verb));
    verb.copied().unwrap_or_default()
}

/// A step in one line, its verb first.
fn text_of(table: &Table) -> String {
    let verb = verb_of(table);
    let part = |(key, value): (&String, &Value)| match value {
        Value::Boolean(true) => key.clone(),
        value => format!("{key} {}", value_text(value)),
    };
    let (first, rest): (Vec<_>, Vec<_>) = table.iter().partition(|(key, _)| *key == verb);
    let parts: Vec<String> = first.into_iter().chain(rest).map(part).collect();
    parts.join(", ")
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Table(step) => format!("({})", text_of(step)),
        Value::Array(values) if values.is_empty() => "nothing".to_owned(),
        Value::Array(values) => values.iter().map(value_text).collect::<Vec<_>>().join(" "),
        Value::Boolean(_) | Value::Float(_) | Value::Datetime(_) => format!("{value:?}"),
    }
}

/// The answer that a step expects of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    #[default]
    Ok,
    Refused,
    Conflict,
    /// Refused or conflict: services differ in which.
    No,
    /// Ok or conflict: a race.
    Either,
}

fn session() -> String {
    SESSION.to_owned()
}

fn author() -> String {
    AUTHOR.to_owned()
}

fn followup() -> String {
    Mode::Followup.word().to_owned()
}

fn stopping() -> StopState {
    StopState::Stopping
}

pub fn author_of(name: &str) -> Author {
    let is_service = SERVICES.contains(&name);
    let kind = if is_service {
        AuthorKind::Service
    } else {
        AuthorKind::Person
    };
    let name = name.to_owned();
    Author { kind, name }
}

/// What a driver may lack, in words: `mode steer`, `feature restart`.
pub type Needs = BTreeSet<String>;

/// What a driver offers.
pub fn offers(hello: &Hello) -> Needs {
    let modes = hello.modes.iter().map(|mode| format!("mode {mode}"));
    let ops = hello.ops.iter().map(|op| format!("operation {op}"));
    let features = hello.features.iter().map(|feature| format!("feature {feature}"));
    let tool = hello.tool.iter().map(|_| TOOL.to_owned());
    let limit = hello.queue_items_max.iter().map(|_| LIMIT.to_owned());
    modes.chain(ops).chain(features).chain(tool).chain(limit).collect()
}

impl Case {
    pub fn needs(&self) -> Needs {
        let mut needs = Needs::new();
        self.steps.iter().for_each(|step| step.needs(&mut needs));
        needs
    }

    fn check(&self) -> anyhow::Result<()> {
        let is_plain = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        ensure!(is_plain(&self.name), "a name has the letters a-z and _ only");
        ensure!((1..=STEPS_MAX).contains(&self.steps.len()), "1 to {STEPS_MAX} steps");
        Ok(())
    }
}

impl Step {
    fn needs(&self, needs: &mut Needs) {
        let word = |word: &str| Some(word.to_owned());
        let own = match &self.action {
            // An unknown mode is sent to be refused.
            Action::Send(step) => Mode::parse(&step.mode).map(|mode| format!("mode {mode}")),
            Action::Edit(step) => {
                step.ok.iter().chain(&step.conflict).for_each(|step| step.needs(needs));
                Some(format!("operation {}", step.op))
            }
            Action::Crash(step) => word(match step.crash {
                Victim::Service => "feature restart",
                Victim::Replica => "feature replicas",
            }),
            Action::Resume(step) => word(match step.resume {
                Gate::Stopped => "operation resume",
                Gate::Pause => "operation hold",
            }),
            Action::Order(_) => word("operation order"),
            Action::Stop(_) => word("operation stop"),
            Action::Hold(_) => word("operation hold"),
            Action::Queue(_) => word("operation queue"),
            Action::Tool(_) => word(TOOL),
            Action::Fill(_) => word(LIMIT),
            Action::Outcome(_) | Action::Call(_) | Action::Reply(_) | Action::Fail(_) => None,
            Action::Hang(_) | Action::Closed(_) | Action::Quiet(_) => None,
        };
        needs.extend(own);
        let Common { by, revision, turn, .. } = &self.common;
        needs.extend(revision.as_ref().and(word("feature revision")));
        needs.extend(revision.as_ref().or(turn.as_ref()).and(word("operation queue")));
        needs.extend(word("feature authors").filter(|_| by != AUTHOR));
    }
}

fn chapter_parse(name: &str, text: &str) -> anyhow::Result<Chapter> {
    let chapter: Chapter = toml::from_str(text).with_context(|| format!("chapter {name}"))?;
    for case in &chapter.cases {
        case.check()
            .with_context(|| format!("case {} of chapter {name}", case.name))?;
    }
    Ok(chapter)
}

/// The chapters of a folder, by file name, or the shipped ones.
pub fn chapters_read(folder: Option<&Path>) -> anyhow::Result<Vec<Chapter>> {
    let shipped = SHIPPED.iter().map(|(name, text)| chapter_parse(name, text));
    let chapters: Vec<Chapter> = match folder {
        None => shipped.collect::<anyhow::Result<_>>()?,
        Some(folder) => folder_read(folder).with_context(|| format!("cases in {}", folder.display()))?,
    };
    let mut names = BTreeSet::new();
    for case in chapters.iter().flat_map(|chapter| &chapter.cases) {
        ensure!(names.insert(&case.name), "two cases have the name {}", case.name);
    }
    Ok(chapters)
}

fn folder_read(folder: &Path) -> anyhow::Result<Vec<Chapter>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            ensure!(paths.len() < FILES_MAX, "more than {FILES_MAX} files");
            let bytes = path.metadata()?.len();
            ensure!(bytes <= FILE_BYTES_MAX, "{} is too large", path.display());
            paths.push(path);
        }
    }
    ensure!(!paths.is_empty(), "no .toml files");
    paths.sort();
    let read = |path: &std::path::PathBuf| chapter_parse(&path.display().to_string(), &fs::read_to_string(path)?);
    paths.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_says_what_it_needs() {
        let text = r#"
            title = "T"
            about = "A"
            [[case]]
            name = "one"
            about = "B"
            steps = [
                { send = "a", mode = "collect", by = "bob" },
                { edit = "a", op = "withdraw", expect = "either", ok = [{ crash = "replica" }] },
                { tool = true },
            ]
        "#;
        let chapter = chapter_parse("t", text).unwrap();
        let needs: Vec<String> = chapter.cases[0].needs().into_iter().collect();
        let expected = "a tool, feature authors, feature replicas, mode collect, operation withdraw";
        assert_eq!(needs.join(", "), expected);
        let text = &chapter.cases[0].steps[1].text;
        assert_eq!(text, "edit a, expect either, ok (crash replica), op withdraw");
    }

    #[test]
    fn a_mistake_in_a_case_is_named() {
        let check = |step: &str, expected: &str| {
            let text = format!("title = 'T'\nabout = 'A'\n[[case]]\nname = 'one'\nabout = 'B'\nsteps = [{step}]");
            let error = format!("{:#}", chapter_parse("t", &text).unwrap_err());
            assert!(error.contains(expected), "{error}");
        };
        check("{ sing = 'a' }", "a step without a verb");
        check("{ send = 'a', mod = 'collect' }", "unknown field `mod`");
        check("{ edit = 'a', op = 'paint' }", "unknown variant `paint`");
        check("", "1 to 100 steps");
    }
}
