//! Cases as data: a chapter is a TOML file of cases, a case is a list of steps. This file reads and checks them, and derives what
//! a case needs of a driver. What a step does is in `run.rs`, what it means for readers in `doc.rs`.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::protocol::{
    Author, AuthorKind, EditOp, Feature, Gate, ItemState, Mode, Op, Running, StopState, Then, Victim,
};

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
const AUTHOR: &str = "ann";
pub const SESSION: &str = "main";
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

/// The steps: the key that tells them apart, and their fields.
macro_rules! steps {
    ($($word:literal $variant:ident { $($(#[$meta:meta])* $field:ident: $of:ty),* $(,)? })*) => {
        #[derive(Debug)]
        pub enum Step { $($variant($variant)),* }
        $(
            #[derive(Debug, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $variant {
                $($(#[$meta])* pub $field: $of,)*
                #[serde(default = "session")]
                pub session: String,
            }
        )*
        impl Step {
            fn read(table: toml::Table) -> anyhow::Result<Step> {
                $(if table.contains_key($word) {
                    return Ok(Step::$variant(table.try_into().context(concat!("a step `", $word, "`"))?));
                })*
                bail!("a step without a verb: {table:?}")
            }
            pub fn session(&self) -> &str {
                match self { $(Step::$variant(step) => &step.session),* }
            }
        }
    };
}

steps! {
    // Of the driver.
    "send" Send {
        send: String,
        #[serde(default = "followup")]
        mode: String,
        #[serde(default = "author")]
        by: String,
        r#type: Option<String>,
        #[serde(default)]
        expect: Expect,
        code: Option<String>,
    }
    // Sends items until one is refused, which must be the one after `queue_items_max`, or sooner where `reserve` items are kept for persons.
    "fill" Fill { fill: String, #[serde(default = "author")] by: String }
    "edit" Edit {
        edit: String,
        op: EditOp,
        #[serde(default = "author")]
        by: String,
        // The name of a `queue` step's `keep`; else the current revision.
        revision: Option<String>,
        turn: Option<String>,
        #[serde(default)]
        expect: Expect,
        code: Option<String>,
        // With `expect = "either"`: what follows each answer.
        #[serde(default)]
        ok: Vec<Step>,
        #[serde(default)]
        conflict: Vec<Step>,
    }
    "order" Order {
        order: Vec<String>,
        #[serde(default = "author")]
        by: String,
        revision: Option<String>,
        #[serde(default)]
        expect: Expect,
        code: Option<String>,
    }
    "stop" Stop {
        stop: Then,
        #[serde(default = "author")]
        by: String,
        turn: Option<String>,
        #[serde(default = "stopping")]
        state: StopState,
    }
    "hold" Hold { hold: Running, #[serde(default = "author")] by: String }
    "resume" Resume { resume: Gate, #[serde(default = "author")] by: String }
    "queue" Queue {
        queue: Vec<String>,
        running: Option<Vec<String>>,
        gate: Option<String>,
        keep: Option<String>,
    }
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
    Author {
        kind: match SERVICES.contains(&name) {
            true => AuthorKind::Service,
            false => AuthorKind::Person,
        },
        name: name.to_owned(),
    }
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Step, D::Error> {
        let table = toml::Table::deserialize(deserializer)?;
        Step::read(table).map_err(|error| D::Error::custom(format!("{error:#}")))
    }
}

/// What a case needs of a driver.
#[derive(Default, Debug)]
pub struct Needs {
    pub modes: BTreeSet<Mode>,
    pub ops: BTreeSet<Op>,
    pub features: BTreeSet<Feature>,
    pub tool: bool,
    pub queue_items_max: bool,
}

impl Case {
    pub fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        self.steps.iter().for_each(|step| needs.add(step));
        needs
    }

    fn check(&self) -> anyhow::Result<()> {
        let is_plain = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        ensure!(is_plain(&self.name), "a name has the letters a-z and _ only");
        ensure!((1..=STEPS_MAX).contains(&self.steps.len()), "1 to {STEPS_MAX} steps");
        Ok(())
    }
}

impl Needs {
    fn add(&mut self, step: &Step) {
        let by = match step {
            Step::Send(Send { mode, by, .. }) => {
                // An unknown mode is sent to be refused.
                self.modes.extend(Mode::parse(mode));
                Some(by)
            }
            Step::Fill(step) => {
                self.queue_items_max = true;
                Some(&step.by)
            }
            Step::Edit(step) => {
                self.ops.insert(step.op.into());
                self.keeps(step.revision.is_some());
                self.ops.extend(step.turn.is_some().then_some(Op::Queue));
                step.ok.iter().chain(&step.conflict).for_each(|step| self.add(step));
                Some(&step.by)
            }
            Step::Order(step) => {
                self.ops.insert(Op::Order);
                self.keeps(step.revision.is_some());
                Some(&step.by)
            }
            Step::Stop(step) => {
                self.ops.insert(Op::Stop);
                self.ops.extend(step.turn.is_some().then_some(Op::Queue));
                Some(&step.by)
            }
            Step::Hold(step) => {
                self.ops.insert(Op::Hold);
                Some(&step.by)
            }
            Step::Resume(step) => {
                self.ops.insert(match step.resume {
                    Gate::Stopped => Op::Resume,
                    Gate::Pause => Op::Hold,
                });
                Some(&step.by)
            }
            Step::Queue(_) => {
                self.ops.insert(Op::Queue);
                None
            }
            Step::Crash(step) => {
                self.features.insert(match step.crash {
                    Victim::Service => Feature::Restart,
                    Victim::Replica => Feature::Replicas,
                });
                None
            }
            Step::Tool(_) => {
                self.tool = true;
                None
            }
            Step::Outcome(_)
            | Step::Call(_)
            | Step::Reply(_)
            | Step::Fail(_)
            | Step::Hang(_)
            | Step::Closed(_)
            | Step::Quiet(_) => None,
        };
        if by.is_some_and(|by| by != AUTHOR) {
            self.features.insert(Feature::Authors);
        }
    }

    fn keeps(&mut self, revision: bool) {
        if revision {
            self.features.insert(Feature::Revision);
            self.ops.insert(Op::Queue);
        }
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
    let chapters: Vec<Chapter> = match folder {
        None => SHIPPED
            .iter()
            .map(|(name, text)| chapter_parse(name, text))
            .collect::<anyhow::Result<_>>()?,
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
            ensure!(
                path.metadata()?.len() <= FILE_BYTES_MAX,
                "{} is too large",
                path.display()
            );
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
        let needs = chapter.cases[0].needs();
        assert_eq!(needs.modes.into_iter().collect::<Vec<_>>(), [Mode::Collect]);
        assert_eq!(needs.ops.into_iter().collect::<Vec<_>>(), [Op::Withdraw]);
        assert_eq!(
            needs.features.into_iter().collect::<Vec<_>>(),
            [Feature::Replicas, Feature::Authors]
        );
        assert!(needs.tool);
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

    #[test]
    fn the_shipped_cases_can_be_read() {
        assert!(
            chapters_read(None)
                .unwrap()
                .iter()
                .all(|chapter| !chapter.cases.is_empty())
        );
    }
}
