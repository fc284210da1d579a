//! Checks which features the server behind a provider's entry supports: a turn with a tool call, each round as delivery
//! would send it; then the result is handed back in each other way to continue a turn.
//!
//! The check writes nothing and sends none of Signalbox's data. Three random codes show what the model received: only a
//! model that still has the first round can repeat its code.

mod way;

use std::time::Duration;

use serde::Serialize;
use serde_json::{json, value::to_raw_value};
use storage::session::items_join::Notes;
use uuid::Uuid;

use self::way::Way;
use crate::{
    providers::{
        CallInput, Continuation, Driver, DriverError, FailureClass, ProviderCall, ProviderError, ProviderKind,
        ProviderSettings, Reconciled, Server, SessionCheck, Thread, ToolDefinition,
    },
    store::{
        claim::ToolResult,
        journal::{Call, Journal, NO_PLACE, Round},
    },
    turn::{
        resume::{Contents, call_input},
        settle::round,
    },
};

/// Maximum number of calls that reach the model: two rounds with the configured settings, one more first round, and
/// four more second rounds.
pub const CALLS_MAX: usize = 7;

const FUNCTION: &str = "code_of_colour";

/// The result of the check.
#[derive(Debug, Serialize)]
pub struct Report {
    /// A whole turn succeeded with the configured settings.
    pub fits: bool,
    pub findings: Vec<Finding>,
    /// Lines of the entry with which a whole turn succeeded. Empty if there are none.
    pub settings: Vec<String>,
}

/// One feature of a server.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub what: &'static str,
    pub seen: Seen,
    /// The reason. A server's own text in it is bounded and does not contain our credential.
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    Yes,
    No,
    /// The model did not do what the check needed.
    NotSeen,
}

/// Runs the check. Fails when no driver can be built from the settings.
pub async fn check(settings: &ProviderSettings) -> Result<Report, DriverError> {
    let mut check = Check::of(settings);
    let configured = Way::of(settings);
    for way in [configured].into_iter().chain(Way::all(settings.kind)) {
        let is_known =
            |tried: &Tried| tried.way.is_like(way) || tried.way.continuation == way.continuation && tried.fits();
        if check.tried.iter().any(is_known) {
            continue;
        }
        let went = check.turn(way).await?;
        check.tried.push(Tried { way, went });
        if check.no_way_left {
            break;
        }
    }
    let look_up = check.look_up().await?;
    Ok(check.report(look_up))
}

struct Tried {
    way: Way,
    /// The reason why a turn failed in this way.
    went: Result<(), String>,
}

impl Tried {
    fn fits(&self) -> bool {
        self.went.is_ok()
    }
}

/// A first round that ended with calls of the function.
#[derive(Clone)]
struct Opening {
    way: Way,
    call: ProviderCall,
    round: Round,
}

struct Check<'a> {
    settings: &'a ProviderSettings,
    /// The codes in the instructions, in the turn's own input, and in the function's result.
    instructions_code: String,
    input_code: String,
    result_code: String,
    input: String,
    openings: Vec<Opening>,
    tried: Vec<Tried>,
    calls: u32,
    /// First rounds without a call of the function, and the reasons.
    unopened: Vec<(Way, Seen, String)>,
    /// No other way can succeed.
    no_way_left: bool,
    has_obeyed: bool,
    /// The largest number of text pieces in one answer.
    pieces: usize,
}

impl Check<'_> {
    fn of(settings: &ProviderSettings) -> Check<'_> {
        let code = || Uuid::new_v4().simple().to_string()[..8].to_owned();
        let input_code = code();
        let input = format!(
            "This is a test of the connection. The first code is {input_code}. Call the function whose name ends with {FUNCTION}, \
             once, with the colour blue: its result holds the second code. Then answer with both codes."
        );
        Check {
            settings,
            instructions_code: code(),
            input_code,
            result_code: code(),
            input,
            openings: Vec::new(),
            tried: Vec::new(),
            calls: 0,
            unopened: Vec::new(),
            no_way_left: false,
            has_obeyed: false,
            pieces: 0,
        }
    }

    /// Runs a turn in this way; reuses the first round of another way if it would be the same.
    async fn turn(&mut self, way: Way) -> Result<Result<(), String>, DriverError> {
        if let Some((.., why)) = self.unopened.iter().find(|(unopened, ..)| unopened.has_words_of(way)) {
            return Ok(Err(why.clone()));
        }
        let driver = Driver::new(&way.settings(self.settings))?;
        let is_whole = way.continuation == Continuation::Whole;
        let known = self
            .openings
            .iter()
            .find(|opening| is_whole || !way.server.has_openai_fields() && opening.way.has_words_of(way));
        let opening = match known.cloned() {
            Some(opening) => opening,
            None => match self.open(&driver, way).await {
                Ok(opening) => opening,
                Err(why) => return Ok(Err(why)),
            },
        };
        if way.continuation == Continuation::Response && opening.round.response_id.is_none() {
            return Ok(Err("the server names no response".to_owned()));
        }
        Ok(self.close(&driver, way, opening).await)
    }

    async fn open(&mut self, driver: &Driver, way: Way) -> Result<Opening, String> {
        let parameters = json!({"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"],
            "additionalProperties": false});
        let call = ProviderCall {
            turn_id: Uuid::new_v4(),
            attempt: self.number(),
            session_key: fresh_key(),
            after: None,
            instructions: Some(format!("End your last answer with the code {}.", self.instructions_code).into()),
            input: CallInput::Message(self.input.clone()),
            tools: [ToolDefinition {
                name: FUNCTION.to_owned(),
                description: "Gives the code of a colour.".to_owned(),
                parameters: to_raw_value(&parameters).expect("JSON values always serialise"),
            }]
            .into(),
            traceparent: None,
        };
        let answer = match driver.call(&call, |_| {}).await {
            Ok(answer) => answer,
            Err(error) => {
                // Another wording may lack the part that was refused here.
                self.no_way_left = error.class != FailureClass::BadRequest;
                let why = words(&error);
                self.unopened.push((way, Seen::No, why.clone()));
                return Err(why);
            }
        };
        if answer.calls.is_empty() {
            self.no_way_left = true;
            let hint = match self.settings.kind {
                ProviderKind::OpenClaw => "; the gateway offers functions only with tools.toolSearch = false",
                ProviderKind::OpenResponses => "",
            };
            let why = format!("the model answered without calling the function{hint}");
            self.unopened.push((way, Seen::NotSeen, why.clone()));
            return Err(why);
        }
        let opening = Opening {
            way,
            call,
            round: round(&answer, NO_PLACE),
        };
        self.openings.push(opening.clone());
        Ok(opening)
    }

    async fn close(&mut self, driver: &Driver, way: Way, opening: Opening) -> Result<(), String> {
        let results: Vec<ToolResult> = opening.round.calls.iter().map(|call| self.result(call)).collect();
        let journal = Journal {
            rounds: vec![opening.round],
        };
        let (input, after) = call_input(&Contents {
            head: None,
            past: &[],
            input: &self.input,
            context: None,
            journal: &journal,
            results: &results,
            notes: &Notes::default(),
            found_by: way.continuation,
        });
        let call = ProviderCall {
            attempt: self.number(),
            session_key: match way.continuation {
                Continuation::Key => opening.call.session_key.clone(),
                // With the same key, a server that continues by key would still have the first round.
                Continuation::Response | Continuation::Whole => fresh_key(),
            },
            after,
            input,
            ..opening.call
        };
        let mut pieces = 0;
        let answer = driver
            .call(&call, |_| pieces += 1)
            .await
            .map_err(|error| words(&error))?;
        self.pieces = self.pieces.max(pieces);
        self.has_obeyed |= answer.text.contains(&self.instructions_code);
        let has = |code: &str| answer.text.contains(code);
        match (answer.calls.is_empty(), has(&self.input_code), has(&self.result_code)) {
            (true, true, true) => Ok(()),
            (false, ..) => Err("the model called the function again instead of answering".to_owned()),
            (true, false, true) => Err("the model no longer knew the turn's first round".to_owned()),
            (true, _, false) => Err("the model did not get the function's result, or did not repeat it".to_owned()),
        }
    }

    fn number(&mut self) -> u32 {
        self.calls += 1;
        self.calls
    }

    fn result(&self, call: &Call) -> ToolResult {
        ToolResult {
            ends_with: None,
            ordinal: call.ordinal,
            result: json!({"second_code": self.result_code}).to_string(),
        }
    }

    /// Whether the server's record shows the outcome of a call.
    async fn look_up(&self) -> Result<Option<Finding>, DriverError> {
        let keeps = |opening: &&Opening| opening.way.server == Server::Generic || opening.way.thread != Thread::None;
        let Some(opening) = self.openings.iter().find(keeps) else {
            return Ok(None);
        };
        let why = match self.settings.kind {
            ProviderKind::OpenClaw => {
                let driver = Driver::new(self.settings)?;
                match driver.session_check(&opening.call).await {
                    SessionCheck::Confirmed => None,
                    SessionCheck::NotChecked { reason } => Some(reason),
                    SessionCheck::RanElsewhere { asked, observed } => {
                        let observed = observed.unwrap_or_else(|| "another".to_owned());
                        Some(format!("asked for session {asked}, the gateway ran {observed}"))
                    }
                }
            }
            ProviderKind::OpenResponses => {
                let way = Way {
                    server: Server::OpenAi,
                    thread: Thread::Durable,
                    continuation: Continuation::Response,
                };
                let response_id = opening.round.response_id.clone();
                let lost = opening.call.lost(response_id, Duration::ZERO);
                match Driver::new(&way.settings(self.settings))?.reconcile(&lost).await {
                    Reconciled::Ran(_) => None,
                    Reconciled::Failed(error) | Reconciled::Unreachable(error) => Some(words(&error)),
                    Reconciled::Unknown { reason } => Some(reason.to_owned()),
                    Reconciled::DidNotRun | Reconciled::StillRunning => {
                        Some("the server's record does not have the answer".to_owned())
                    }
                }
            }
        };
        Ok(Some(Finding::of("looks up a lost call", why.map_or(Ok(()), Err))))
    }

    fn report(self, look_up: Option<Finding>) -> Report {
        let finding = |what, seen, detail: &str| Finding {
            what,
            seen,
            detail: detail.to_owned(),
        };
        let (seen, why) = match self.unopened.last() {
            Some((_, seen, why)) if self.openings.is_empty() => (*seen, why.clone()),
            _ => (Seen::Yes, String::new()),
        };
        // An error is no answer; an answer without a call is one.
        let mut findings = match seen {
            Seen::No => vec![finding("answers", seen, &why)],
            Seen::Yes | Seen::NotSeen => vec![
                finding("answers", Seen::Yes, ""),
                finding("calls functions", seen, &why),
            ],
        };
        let rounds = [
            ("continues by session key", Continuation::Key),
            ("continues by response id", Continuation::Response),
            ("continues with the whole turn", Continuation::Whole),
        ];
        if !self.openings.is_empty() {
            let seen = |is: bool| if is { Seen::Yes } else { Seen::NotSeen };
            findings.push(finding("follows instructions", seen(self.has_obeyed), ""));
            let pieces = match self.settings.stream {
                true => format!("text came in {} pieces", self.pieces),
                false => "not asked for: stream = false".to_owned(),
            };
            findings.push(finding("streams", seen(self.pieces > 1), &pieces));
            for (what, continuation) in rounds {
                let mut tried = self.tried.iter().filter(|tried| tried.way.continuation == continuation);
                // The last one: a second way like it is tried only after the first failed.
                findings.extend(tried.next_back().map(|tried| Finding::of(what, tried.went.clone())));
            }
        }
        findings.extend(look_up);
        let fitting = self.tried.iter().find(|tried| tried.fits());
        if let Some(Tried { went: Err(why), .. }) = self.tried.first()
            && fitting.is_some()
        {
            findings.insert(0, finding("works as set", Seen::No, why));
        }
        Report {
            fits: self.tried.first().is_some_and(Tried::fits),
            findings,
            settings: fitting.map_or_else(Vec::new, |tried| tried.way.lines(self.settings.kind)),
        }
    }
}

impl Finding {
    fn of(what: &'static str, went: Result<(), String>) -> Finding {
        let seen = if went.is_ok() { Seen::Yes } else { Seen::No };
        Finding {
            what,
            seen,
            detail: went.err().unwrap_or_default(),
        }
    }
}

fn fresh_key() -> String {
    format!("signalbox:check:{}", Uuid::new_v4())
}

fn words(error: &ProviderError) -> String {
    format!("{}: {}", error.class, error.detail)
}
