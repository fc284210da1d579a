//! Questions: what a person, an agent or a rule is asked and answers once. Approvals of plans, of tool calls and of finished work
//! are questions too.

//!
//! | kind | verdicts | also excluded from answering |
//! |---|---|---|
//! | `question` | none: options, text | the agent that asks |
//! | `plan` | `approved`, `changes`, `denied` | who works on the task |
//! | `review` | `approved`, `changes` | who works on the task |
//! | `tool` | `approved`, `denied` | the agent that calls |

use std::{fmt, str::FromStr};

use crate::{AgentId, UserId, string_enum::string_enum};

string_enum! {
    QuestionKind {
        /// An agent asks.
        Question = "question",
        /// An agent's plan awaits approval.
        Plan = "plan",
        /// A task that its agent calls done is reviewed.
        Review = "review",
        /// A tool call awaits approval.
        Tool = "tool",
    }
}

string_enum! {
    QuestionState {
        Open = "open",
        Answered = "answered",
        /// By the asker, or by who may.
        Withdrawn = "withdrawn",
        /// Its time was over.
        Lapsed = "lapsed",
        /// Its task or its session has ended.
        Cancelled = "cancelled",
    }
}

string_enum! {
    /// What was decided. A question of kind `question` is answered by options and text instead.
    Verdict {
        Approved = "approved",
        /// Not like this: the text says what to change.
        Changes = "changes",
        Denied = "denied",
    }
}

impl QuestionKind {
    /// How a question of this kind may be decided. None: it is answered by options and text.
    pub fn verdicts(self) -> &'static [Verdict] {
        match self {
            Self::Question => &[],
            Self::Plan => &[Verdict::Approved, Verdict::Changes, Verdict::Denied],
            Self::Review => &[Verdict::Approved, Verdict::Changes],
            Self::Tool => &[Verdict::Approved, Verdict::Denied],
        }
    }

    /// Whoever works on the task must not decide on its work.
    pub fn excludes_executors(self) -> bool {
        match self {
            Self::Plan | Self::Review => true,
            Self::Question | Self::Tool => false,
        }
    }
}

impl QuestionState {
    pub fn is_open(self) -> bool {
        match self {
            Self::Open => true,
            Self::Answered | Self::Withdrawn | Self::Lapsed | Self::Cancelled => false,
        }
    }
}

/// Longest text of an audience: `agent:` and an id, `user:` and a name.
pub const AUDIENCE_BYTES_MAX: usize = 160;
/// Audiences of one question.
pub const AUDIENCES_MAX: usize = 20;
/// Bytes of a rule's name.
const RULE_BYTES_MAX: usize = 64;

/// Who is asked. Admins may always answer.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Audience {
    User(UserId),
    Agent(AgentId),
    /// A person's orchestrator; none: the account's.
    Orchestrator(Option<UserId>),
    Rule(String),
    Members,
    Admins,
}

impl Audience {
    /// The person who is asked: what an orchestrator is asked, its person may answer.
    pub fn person(&self) -> Option<&UserId> {
        match self {
            Audience::User(user) | Audience::Orchestrator(Some(user)) => Some(user),
            Audience::Orchestrator(None)
            | Audience::Agent(_)
            | Audience::Rule(_)
            | Audience::Members
            | Audience::Admins => None,
        }
    }

    /// Who is asked where nobody is named.
    pub const DEFAULT: Audience = Audience::Members;
    /// A text that names somebody, for schemas.
    pub const PATTERN: &str = "^(user:[a-z0-9][a-z0-9_.-]{0,127}|agent:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\
|orchestrator:[a-z0-9][a-z0-9_.-]{0,127}|rule:[A-Za-z0-9_.-]{1,64}|role:(member|admin))$";
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "names nobody: expected user:{{id}}, agent:{{id}}, orchestrator:{{user}}, orchestrator:org, rule:{{id}}, role:member or role:admin"
)]
pub struct NotAudience;

impl FromStr for Audience {
    type Err = NotAudience;

    fn from_str(text: &str) -> Result<Audience, NotAudience> {
        let (kind, id) = text.split_once(':').ok_or(NotAudience)?;
        let user = || UserId::parse(id).map_err(|_| NotAudience);
        let is_rule = |id: &str| {
            (1..=RULE_BYTES_MAX).contains(&id.len())
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        };
        match (kind, id) {
            ("user", _) => user().map(Audience::User),
            ("agent", _) => AgentId::parse(id).map(Audience::Agent).map_err(|_| NotAudience),
            ("orchestrator", "org") => Ok(Audience::Orchestrator(None)),
            ("orchestrator", _) => user().map(|user| Audience::Orchestrator(Some(user))),
            ("rule", _) if is_rule(id) => Ok(Audience::Rule(id.to_owned())),
            ("role", "member") => Ok(Audience::Members),
            ("role", "admin") => Ok(Audience::Admins),
            _ => Err(NotAudience),
        }
    }
}

impl fmt::Display for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user:{user}"),
            Self::Agent(agent) => write!(f, "agent:{agent}"),
            Self::Orchestrator(Some(user)) => write!(f, "orchestrator:{user}"),
            Self::Orchestrator(None) => f.write_str("orchestrator:org"),
            Self::Rule(rule) => write!(f, "rule:{rule}"),
            Self::Members => f.write_str("role:member"),
            Self::Admins => f.write_str("role:admin"),
        }
    }
}

/// Who wants to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answerer<'a> {
    /// A key of the role admin or member, or the operator.
    Person {
        id: &'a str,
        is_admin: bool,
    },
    Agent(AgentId),
    Rule(&'a str),
    /// A key for programs.
    Service,
}

/// Why somebody may not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotAnswerer {
    NotAsked,
    /// The agent that asks, or whose work is decided on.
    ExecutorExcluded,
}

/// Who is asked, and who must not answer.
#[derive(Clone, Copy, Debug)]
pub struct AskedOf<'a> {
    pub audience: &'a [Audience],
    /// The agent that asks.
    pub asker: Option<AgentId>,
    /// Agents that work on the task, where the kind excludes them.
    pub executors: &'a [AgentId],
}

impl AskedOf<'_> {
    pub fn may_answer(&self, answerer: Answerer<'_>) -> Result<(), NotAnswerer> {
        let is_asked = match answerer {
            Answerer::Person { is_admin: true, .. } => true,
            Answerer::Person { id, is_admin: false } => {
                self.asks(|one| *one == Audience::Members || one.person().is_some_and(|user| user.as_str() == id))
            }
            Answerer::Agent(agent) if self.asker == Some(agent) || self.executors.contains(&agent) => {
                return Err(NotAnswerer::ExecutorExcluded);
            }
            Answerer::Agent(agent) => self.asks(|one| *one == Audience::Agent(agent)),
            Answerer::Rule(rule) => self.asks(|one| matches!(one, Audience::Rule(asked) if asked == rule)),
            Answerer::Service => false,
        };
        if is_asked { Ok(()) } else { Err(NotAnswerer::NotAsked) }
    }

    fn asks(&self, is: impl Fn(&Audience) -> bool) -> bool {
        self.audience.iter().any(is)
    }
}

/// The form of an answer to a question.
#[derive(Clone, Copy, Debug)]
pub struct AnswerForm<'a> {
    pub kind: QuestionKind,
    /// Ids of the options.
    pub options: &'a [&'a str],
    /// More than one option may be chosen.
    pub multiple: bool,
    /// A text may be given instead of an option, or beside it.
    pub free_text: bool,
}

/// An answer, as given.
#[derive(Clone, Copy, Default, Debug)]
pub struct GivenAnswer<'a> {
    pub verdict: Option<Verdict>,
    pub options: &'a [String],
    pub text: Option<&'a str>,
}

/// Why an answer does not fit: the field and what is wrong with it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field}: {what}")]
pub struct InvalidAnswer {
    pub field: &'static str,
    pub what: String,
}

impl AnswerForm<'_> {
    pub fn check(&self, given: GivenAnswer<'_>) -> Result<(), InvalidAnswer> {
        let invalid = |field, what: String| Err(InvalidAnswer { field, what });
        let text = given.text.filter(|text| !text.trim().is_empty());
        let verdicts = self.kind.verdicts();
        if !verdicts.is_empty() {
            let words: Vec<&str> = verdicts.iter().map(|verdict| verdict.as_str()).collect();
            let words = words.join(", ");
            return match given.verdict {
                _ if !given.options.is_empty() => invalid("options", "this question has no options".to_owned()),
                None => invalid("verdict", format!("missing: one of {words}")),
                Some(verdict) if !verdicts.contains(&verdict) => invalid(
                    "verdict",
                    format!("{verdict} is no verdict on a {}: one of {words}", self.kind),
                ),
                Some(Verdict::Changes) if text.is_none() => invalid("text", "missing: say what to change".to_owned()),
                Some(_) => Ok(()),
            };
        }
        if given.verdict.is_some() {
            return invalid(
                "verdict",
                "this question has no verdict: answer with options or text".to_owned(),
            );
        }
        if let Some(unknown) = given.options.iter().find(|id| !self.options.contains(&id.as_str())) {
            let known = if self.options.is_empty() {
                "none".to_owned()
            } else {
                self.options.join(", ")
            };
            return invalid("options", format!("{unknown:?} is none of the options: {known}"));
        }
        let is_repeated = |(at, id): (usize, &String)| given.options[..at].contains(id);
        if given.options.iter().enumerate().any(is_repeated) {
            return invalid("options", "an option is named twice".to_owned());
        }
        if given.options.len() > 1 && !self.multiple {
            return invalid("options", "only one option may be chosen".to_owned());
        }
        if text.is_some() && !self.free_text {
            return invalid("text", "this question is answered by its options alone".to_owned());
        }
        match (given.options, text) {
            ([], None) if self.options.is_empty() => invalid("text", "missing".to_owned()),
            ([], None) if self.free_text => invalid("options", "missing: choose an option, or write a text".to_owned()),
            ([], None) => invalid("options", "missing: choose an option".to_owned()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::string::string_regex;
    use uuid::Uuid;

    use super::*;

    const CODER: AgentId = AgentId(Uuid::from_u128(1));
    const REVIEWER: AgentId = AgentId(Uuid::from_u128(2));

    #[test]
    fn an_audience_is_written_as_it_is_read() {
        let (user, rule) = ("a".repeat(128), "r".repeat(64));
        let longest = [
            format!("user:{user}"),
            format!("rule:{rule}"),
            format!("orchestrator:{user}"),
        ];
        let too_long = longest.each_ref().map(|text| format!("{text}x"));
        for text in [
            "user:ann",
            "agent:00000000-0000-0000-0000-000000000001",
            "orchestrator:org",
            "orchestrator:ann",
            "rule:deploy-window",
            "role:member",
            "role:admin",
        ]
        .into_iter()
        .chain(longest.iter().map(String::as_str))
        {
            assert_eq!(text.parse::<Audience>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "ann",
            "user:",
            "user:A n",
            "agent:coder",
            "rule:",
            "rule:a b",
            "role:owner",
            "role:",
            "user:.ann",
            "rule:ä",
        ]
        .into_iter()
        .chain(too_long.iter().map(String::as_str))
        {
            assert!(text.parse::<Audience>().is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_schemas_allow_names_somebody(text in string_regex(Audience::PATTERN.trim_matches(['^', '$'])).unwrap()) {
            proptest::prop_assert_eq!(text.parse::<Audience>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn only_the_asked_answer() {
        use NotAnswerer::{ExecutorExcluded, NotAsked};
        let check = |audience: &[&str], answerer, expected| {
            let audience: Vec<Audience> = audience.iter().map(|text| text.parse().unwrap()).collect();
            let asked = AskedOf {
                audience: &audience,
                asker: Some(CODER),
                executors: &[],
            };
            assert_eq!(asked.may_answer(answerer), expected, "{audience:?} {answerer:?}");
        };
        let member = Answerer::Person {
            id: "ann",
            is_admin: false,
        };
        let admin = Answerer::Person {
            id: "bob",
            is_admin: true,
        };
        let agent = "agent:00000000-0000-0000-0000-000000000002";
        for audience in [
            &["role:member"][..],
            &["role:admin"],
            &["user:ann"],
            &[agent],
            &["rule:x"],
            &[],
        ] {
            check(audience, admin, Ok(()));
            check(audience, Answerer::Service, Err(NotAsked));
            check(audience, Answerer::Agent(CODER), Err(ExecutorExcluded));
        }
        check(&["role:member"], member, Ok(()));
        check(&["user:ann"], member, Ok(()));
        check(&["user:eve", agent], member, Err(NotAsked));
        check(&["role:admin"], member, Err(NotAsked));
        check(&[agent], Answerer::Agent(REVIEWER), Ok(()));
        check(&["role:member"], Answerer::Agent(REVIEWER), Err(NotAsked));
        check(
            &["agent:00000000-0000-0000-0000-000000000001"],
            Answerer::Agent(CODER),
            Err(ExecutorExcluded),
        );
        check(&["rule:x"], Answerer::Rule("x"), Ok(()));
        check(&["rule:x"], Answerer::Rule("y"), Err(NotAsked));
        let audience = [Audience::Agent(REVIEWER)];
        let asked = AskedOf {
            audience: &audience,
            asker: None,
            executors: &[REVIEWER],
        };
        assert_eq!(asked.may_answer(Answerer::Agent(REVIEWER)), Err(ExecutorExcluded));
        assert_eq!(asked.may_answer(admin), Ok(()));
    }

    #[test]
    fn each_kind_has_its_verdicts() {
        let check = |kind, verdict, text, expected: Option<&str>| {
            let form = AnswerForm {
                kind,
                options: &[],
                multiple: false,
                free_text: true,
            };
            let given = GivenAnswer {
                verdict,
                options: &[],
                text,
            };
            let field = form.check(given).err().map(|error| error.field);
            assert_eq!(field, expected, "{kind} {given:?}");
        };
        use QuestionKind::{Plan, Question, Review, Tool};
        use Verdict::{Approved, Changes, Denied};
        for kind in [Plan, Review, Tool] {
            check(kind, Some(Approved), None, None);
            check(kind, None, Some("fine"), Some("verdict"));
        }
        check(Question, Some(Approved), Some("yes"), Some("verdict"));
        check(Plan, Some(Denied), None, None);
        check(Plan, Some(Changes), Some("smaller"), None);
        check(Plan, Some(Changes), Some(" "), Some("text"));
        check(Review, Some(Denied), None, Some("verdict"));
        check(Review, Some(Changes), None, Some("text"));
        check(Tool, Some(Denied), Some("not now"), None);
        check(Tool, Some(Changes), Some("x"), Some("verdict"));
    }

    #[test]
    fn an_answer_fits_its_question() {
        let check = |options: &[&str], multiple, free_text, chosen: &[&str], text, expected: Option<&str>| {
            let form = AnswerForm {
                kind: QuestionKind::Question,
                options,
                multiple,
                free_text,
            };
            let chosen: Vec<String> = chosen.iter().map(|id| (*id).to_owned()).collect();
            let given = GivenAnswer {
                verdict: None,
                options: &chosen,
                text,
            };
            let field = form.check(given).err().map(|error| error.field);
            assert_eq!(field, expected, "{form:?} {given:?}");
        };
        let ab = &["a", "b"];
        check(&[], false, true, &[], Some("yes"), None);
        check(&[], false, true, &[], None, Some("text"));
        check(&[], false, true, &[], Some("\n"), Some("text"));
        check(&[], false, true, &["a"], None, Some("options"));
        check(ab, false, true, &["a"], None, None);
        check(ab, false, true, &["a"], Some("because"), None);
        check(ab, false, true, &[], Some("neither"), None);
        check(ab, false, true, &[], None, Some("options"));
        check(ab, false, true, &["c"], None, Some("options"));
        check(ab, false, true, &["a", "b"], None, Some("options"));
        check(ab, true, true, &["a", "b"], None, None);
        check(ab, true, true, &["a", "a"], None, Some("options"));
        check(ab, false, false, &[], Some("neither"), Some("text"));
        check(ab, false, false, &["b"], None, None);
    }
}
