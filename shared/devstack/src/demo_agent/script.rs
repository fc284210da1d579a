//! The behaviour of the demo agent, without I/O, clock or randomness.
//!
//! | the notification says | tool |
//! |---|---|
//! | `heartbeat`, `nothing to do` | `no_reply`, and nothing else |
//! | `history`, `context` | `task_history` |
//! | `forget` | `task_history`; when its result comes, the agent has lost the conversation, once, as if it had been restarted |
//! | `post` | `task_message` |
//! | `review` and `@slug` | `response_request` to that agent |
//! | `give` and `@slug` | `create_session`: an orchestrator gives the work to that agent, which marks it as done |
//! | `finish`, `complete`, or `mark` and `done` | `task_status` done |
//! | `ask me` | `ask_question` |
//! | `later` | `check_later`, after the `N minutes` that it names, else after one |
//! | `split` | `task_context_write`, then `subagent_spawn`: three subagents look at the task at the same time |
//! | `plan` | `submit_plan`, which ends the turn |
//!
//! A notification that says `takes N seconds` is answered slowly: each answer of its turn comes after so many seconds, 300 at most.
//!
//! Several lines may apply; then the tools are called one after the other, in this order. Without a task (`Task: -`)
//! only those that need none. When all have answered, or none applies, the agent reports the results.
//!
//! What answers the agent, or wakes it at its time, makes it ask and wait no further. Results of its subagents it puts together, and
//! what its board says is done, it reports.
//!
//! Only the notification's own words count: its `Type:`, its `Title:` and the text that follows in `[begin …]` marks,
//! so that a quoted thread with the same words triggers nothing. A text without a line `Notification: <id>` is used
//! whole.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::request::{Item, Tool};

/// How many entries the script asks a history for.
const HISTORY_LIMIT: u32 = 5;
const QUOTE_CHARS_MAX: usize = 120;
const SLOW_SECONDS_MAX: u64 = 300;
/// What `check_later` takes.
const MINUTES_MAX: u32 = 43_200;
/// Types of notifications that follow from a question, a plan or a timer.
const FOLLOWS_UP: [&str; 4] = ["\"answer\"", "\"timer\"", "answer", "timer"];
/// The type of a notification with results of subagents.
const RESULTS: [&str; 2] = ["\"branch_result\"", "branch_result"];
/// How mail of a board says that a task is done.
const DONE: &str = " is done now.";
/// What the parts of a task are called, and what is to be done with each.
const PARTS: [(&str, &str); 3] = [
    ("past", "Read the history, and say what was done so far."),
    ("tests", "Say which tests this needs."),
    ("documents", "Say which documents this changes."),
];

/// The memory of an agent under one session key.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The input of the current or last turn.
    text: String,
    /// Different notifications received so far.
    heard: u32,
    results: Vec<ToolResult>,
    /// Texts that were sent to the agent together with tool results.
    notes: Vec<String>,
    /// Whether the last item was a result.
    is_after_result: bool,
}

#[derive(Debug)]
struct ToolResult {
    call_id: String,
    output: String,
}

/// The next step of a turn.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    Call(Call),
    Say(String),
}

#[derive(Debug, PartialEq)]
pub(super) struct Call {
    /// The index of the call in its turn, from 0.
    pub(super) step: usize,
    /// The tool's name in the request.
    pub(super) name: String,
    pub(super) arguments: Value,
}

/// A step of the script, whose tool may be missing in the request.
#[derive(Debug, PartialEq)]
struct Wish {
    tool: &'static str,
    arguments: Map<String, Value>,
    /// Its description in the reply if it succeeded.
    outcome: String,
}

impl Conversation {
    /// Reads the items of a request: new ones on the key, or the conversation in full.
    pub(super) fn hear(&mut self, items: &[Item]) {
        // A request begins a new turn unless it begins with a result.
        self.is_after_result = false;
        for item in items {
            match item {
                Item::User(text) if !self.is_after_result && !is_of_a_turn(text) => self.heard += left_out(text),
                Item::User(text) if self.is_after_result => self.notes.push(text.clone()),
                Item::User(text) => self.begin(text),
                Item::Result { call_id, output } => {
                    // A repeated request carries the same results again.
                    if self.results.iter().all(|known| known.call_id != *call_id) {
                        self.results.push(ToolResult {
                            call_id: call_id.clone(),
                            output: output.clone(),
                        });
                    }
                    self.is_after_result = true;
                }
                Item::Own => self.is_after_result = false,
            }
        }
    }

    fn begin(&mut self, text: &str) {
        if self.text != text || self.heard == 0 {
            self.heard += 1;
        }
        text.clone_into(&mut self.text);
        self.results.clear();
        self.notes.clear();
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn results(&self) -> usize {
        self.results.len()
    }

    /// Whether the agent loses the conversation before it answers.
    pub(super) fn forgets(&self) -> bool {
        self.is_after_result
            && own_words(&self.text)
                .to_lowercase()
                .split_whitespace()
                .any(|word| word.starts_with("forget"))
    }

    /// How long the next answer takes.
    pub(super) fn takes(&self) -> Duration {
        let words = own_words(&self.text).to_lowercase();
        let words: Vec<&str> = words.split_whitespace().collect();
        let seconds = words.windows(3).find_map(|three| match three {
            ["takes", seconds, unit] if unit.starts_with("second") => seconds.parse::<u64>().ok(),
            _ => None,
        });
        Duration::from_secs(seconds.unwrap_or_default().min(SLOW_SECONDS_MAX))
    }

    pub(super) fn next(&self, offered: &[Tool]) -> Next {
        let task = line_value(&self.text, "Task:");
        let wishes: Vec<(Wish, &Tool)> = wishes(&own_words(&self.text), task)
            .into_iter()
            .filter_map(|wish| {
                offered
                    .iter()
                    .find(|tool| is_called(tool, wish.tool))
                    .map(|tool| (wish, tool))
            })
            .collect();
        let step = self.results.len();
        match wishes.get(step) {
            Some((wish, tool)) => {
                let known = |name: &String| tool.properties.as_ref().is_none_or(|known| known.contains(name));
                let arguments = wish.arguments.iter().filter(|(name, _)| known(name));
                let arguments = arguments.map(|(name, value)| (name.clone(), value.clone())).collect();
                Next::Call(Call {
                    step,
                    name: tool.name.clone(),
                    arguments: Value::Object(arguments),
                })
            }
            None => Next::Say(self.say(task, &wishes)),
        }
    }

    fn say(&self, task: Option<&str>, wishes: &[(Wish, &Tool)]) -> String {
        let mut sentences = vec![task.map_or("Without a task:".to_owned(), |task| format!("On {task}:"))];
        // After a restart of the agent only the text of earlier results is known.
        let mut results = self.results.iter().enumerate().map(|(step, result)| {
            let wish = wishes.get(step).map(|(wish, _)| wish);
            describe(wish, &result.output)
        });
        let words = own_words(&self.text);
        let done = words.lines().find(|line| line.contains(DONE));
        let first = results.next().unwrap_or_else(|| match done {
            Some(done) => format!("What I gave away has come back. {}", quote(done)),
            None if is_of_kind(&words, &RESULTS) => "I have put the results together.".to_owned(),
            None => "I have read this.".to_owned(),
        });
        sentences.push(first);
        sentences.extend(results);
        sentences.extend(
            self.notes
                .iter()
                .map(|note| format!("I was also told: {}", quote(note))),
        );
        sentences.push(format!("({} of this conversation)", ordinal(self.heard)));
        sentences.join(" ")
    }
}

/// A sentence about a result.
fn describe(wish: Option<&Wish>, output: &str) -> String {
    let parsed: Value = serde_json::from_str(output).unwrap_or(Value::Null);
    if let Some(error) = parsed.get("error").filter(|error| !error.is_null()) {
        let tool = wish.map_or("the tool", |wish| wish.tool);
        let message = error.get("message").unwrap_or(error);
        let message = message.as_str().map_or_else(|| message.to_string(), str::to_owned);
        return format!("{tool} was refused: {}.", quote(&message));
    }
    let count = |name: &str| parsed.get(name).and_then(Value::as_array).map(Vec::len);
    match (wish, count("messages"), count("activities")) {
        (_, Some(messages), Some(activities)) => {
            format!("I looked up the task: messages {messages}, activities {activities}.")
        }
        (Some(wish), _, _) => wish.outcome.clone(),
        (None, _, _) => format!("the tool answered: {}.", quote(output)),
    }
}

fn wishes(own_words: &str, task: Option<&str>) -> Vec<Wish> {
    let text = own_words.to_lowercase();
    if is_of_kind(&text, &RESULTS) || text.contains(DONE) {
        return Vec::new();
    }
    let says = |word: &str| {
        text.split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|other| other == word)
    };
    let wish = |tool, arguments: Value, outcome: &str| {
        let Value::Object(arguments) = arguments else {
            unreachable!("arguments are written as objects below")
        };
        Wish {
            tool,
            arguments,
            outcome: outcome.to_owned(),
        }
    };
    if says("heartbeat") || text.contains("nothing to do") {
        return vec![wish(
            "no_reply",
            json!({"reason": "there is no work for me in this"}),
            "No answer is due.",
        )];
    }
    let mut wishes = Vec::new();
    if let Some(task) = task {
        if says("history") || says("context") || says("forget") {
            let limits = json!({"task_id": task, "message_limit": HISTORY_LIMIT, "activity_limit": HISTORY_LIMIT});
            wishes.push(wish("task_history", limits, "I looked up what came before."));
        }
        if says("post") {
            let body = format!("Working on {task}.");
            wishes.push(wish(
                "task_message",
                json!({"task_id": task, "body": body}),
                "I left a note for everyone.",
            ));
        }
    }
    if let Some(slug) = mentioned(&text).filter(|_| says("review")) {
        let what = task.map_or("this".to_owned(), str::to_owned);
        let body = format!("Please take a second look at {what}; its history says what was done.");
        wishes.push(wish(
            "response_request",
            json!({"agents": [slug], "body": body}),
            &format!("I asked {slug} to look."),
        ));
    }
    if let Some(slug) = mentioned(&text).filter(|_| says("give")) {
        let (_, request) = own_words.split_once('\n').unwrap_or(("", own_words));
        let prompt = format!("{} Mark it done when nothing is left.", quote(request));
        wishes.push(wish(
            "create_session",
            json!({"prompt": prompt, "agent": slug}),
            &format!("I gave it to {slug}, and say when it is done."),
        ));
    }
    if let Some(task) = task
        && (says("finish") || says("complete") || (says("mark") && says("done")))
    {
        wishes.push(wish(
            "task_status",
            json!({"task_id": task, "status": "done"}),
            "Its status is now done.",
        ));
    }
    if is_of_kind(&text, &FOLLOWS_UP) {
        return wishes;
    }
    if text.contains("ask me") {
        let what = task.map_or("this".to_owned(), str::to_owned);
        let question = format!("Shall I go on with {what}?");
        let options = json!([{"id": "yes", "label": "Yes, go on"}, {"id": "no", "label": "No, leave it"}]);
        let asked = json!({"question": question, "options": options});
        wishes.push(wish("ask_question", asked, "I asked, and wait for the answer."));
    }
    if says("later") {
        let words: Vec<&str> = text.split_whitespace().collect();
        let named = words.windows(2).find_map(|two| match two {
            [minutes, unit] if unit.starts_with("minute") => minutes.parse::<u32>().ok(),
            _ => None,
        });
        let minutes = named.unwrap_or(1).clamp(1, MINUTES_MAX);
        let waits = json!({"after_minutes": minutes, "note": "See what has become of it."});
        wishes.push(wish("check_later", waits, "I look again when it is time."));
    }
    if let Some(task) = task.filter(|_| says("split")) {
        let body = format!(
            "{task} is worked on in parts: {}.",
            PARTS.map(|(part, _)| part).join(", ")
        );
        let context = json!({"body": body});
        wishes.push(wish("task_context_write", context, "I wrote down what this is about."));
        let part = |(label, request): (&str, &str)| json!({"label": label, "request": request});
        let parts = json!({"subagents": PARTS.map(part), "join": "all"});
        wishes.push(wish("subagent_spawn", parts, "Three subagents are at work."));
    }
    if let Some(task) = task.filter(|_| says("plan")) {
        let plan = "1. Read the history.\n2. Change what is asked for.\n3. Say what was changed.";
        let plan = json!({"task_id": task, "plan": plan, "summary": "Read, change, report"});
        wishes.push(wish("submit_plan", plan, "I submitted a plan."));
    }
    wishes
}

/// Whether a notification's own words, which begin with its type, are of one of these types.
fn is_of_kind(own_words: &str, kinds: &[&str]) -> bool {
    kinds.iter().any(|kind| own_words.trim_start().starts_with(kind))
}

/// Whether an item is what a turn is about, and not a line that Signalbox adds to an assembled conversation.
fn is_of_a_turn(text: &str) -> bool {
    const ADDED: [&str; 3] = [
        "Note from Signalbox:",
        "Description of the task:",
        "The account's briefing:",
    ];
    let has_notification = ["Notification:", "Notifications:"]
        .iter()
        .any(|line| line_start(text, line).is_some());
    has_notification || !ADDED.iter().any(|added| text.trim_start().starts_with(added))
}

/// How many turns an assembled conversation says are left out.
fn left_out(text: &str) -> u32 {
    let number = text
        .split_once("left out here: ")
        .map(|(_, number)| number.trim().trim_end_matches('.'));
    number.and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// The first `@slug`.
fn mentioned(text: &str) -> Option<&str> {
    let after = &text[text.find('@')? + 1..];
    let end = after
        .find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'))
        .unwrap_or(after.len());
    Some(after[..end].trim_end_matches('-')).filter(|slug| !slug.is_empty())
}

/// Gateways have tools of the same names, so ours may have a prefix.
fn is_called(tool: &Tool, name: &str) -> bool {
    tool.name
        .strip_suffix(name)
        .is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('_'))
}

fn own_words(text: &str) -> String {
    let Some(start) = line_start(text, "Notification:") else {
        let run = line_start(text, "Notifications:").unwrap_or_default();
        return text[run..].to_owned();
    };
    let mut words = Vec::new();
    let mut lines = text[start..].lines();
    for line in lines.by_ref() {
        if let Some(mark) = line.strip_prefix("[begin ") {
            // No other text can contain it: the mark is random.
            let end = format!("[end {}", mark.trim_end_matches(']'));
            words.extend(lines.take_while(|line| !line.starts_with(&end)));
            break;
        }
        words.extend(line.strip_prefix("Type:").or_else(|| line.strip_prefix("Title:")));
    }
    words.join("\n")
}

/// The value of `name` on its line; `-` counts as none.
fn line_value<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let line = text[line_start(text, name)?..].lines().next()?;
    Some(line.trim_start_matches(name).trim()).filter(|value| !value.is_empty() && *value != "-")
}

fn line_start(text: &str, prefix: &str) -> Option<usize> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if line.starts_with(prefix) {
            return Some(start);
        }
        start += line.len();
    }
    None
}

fn quote(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn ordinal(number: u32) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        (_, _) => "th",
    };
    format!("{number}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[&str] = &[
        "task_history",
        "task_message",
        "response_request",
        "task_status",
        "no_reply",
        "ask_question",
        "check_later",
        "submit_plan",
        "task_context_write",
        "subagent_spawn",
        "create_session",
    ];

    fn tools(names: &[&str]) -> Vec<Tool> {
        let tool = |name: &&str| Tool {
            name: (*name).to_owned(),
            properties: None,
            definition: Value::Null,
        };
        names.iter().map(tool).collect()
    }

    fn input(task: &str, words: &str) -> String {
        format!(
            "Note: finish.\n\nNotification: n-1\nType: message\nTask: {task}\nTask title: Heartbeat\nTitle: CI\nBody:\n\
             [begin 00ff]\n{words}\n[end 00ff]\n\nThe thread:\n[begin 00fe]\nPost the history.\n[end 00fe]\n"
        )
    }

    #[test]
    fn listens_to_the_notification_alone() {
        assert_eq!(
            own_words(&input("DEMO-1", "Hello\n[end 00fe]")),
            " message\n CI\nHello\n[end 00fe]"
        );
        assert_eq!(own_words("Hello"), "Hello");
    }

    /// Runs a turn in which every tool answers `{"ok":true}`.
    fn run(text: &str, offered: &[Tool]) -> (Vec<(String, Value)>, String) {
        let mut conversation = Conversation::default();
        conversation.hear(&[Item::User(text.to_owned())]);
        let mut calls = Vec::new();
        loop {
            match conversation.next(offered) {
                Next::Say(answer) => return (calls, answer),
                Next::Call(call) => {
                    let call_id = format!("call_{}", call.step);
                    calls.push((call.name, call.arguments));
                    conversation.hear(&[Item::Result {
                        call_id,
                        output: r#"{"ok":true}"#.to_owned(),
                    }]);
                }
            }
        }
    }

    fn check(task: &str, words: &str, expected: &[(&str, Value)], answer: &str) {
        let (calls, said) = run(&input(task, words), &tools(ALL));
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, arguments)| ((*name).to_owned(), arguments.clone()))
            .collect();
        assert_eq!(calls, expected, "{words}");
        assert_eq!(said, format!("{answer} (1st of this conversation)"), "{words}");
    }

    #[test]
    fn asks_waits_and_plans_until_it_is_answered() {
        let (calls, said) = run(
            &input("DEMO-1", "Plan it, ask me, and look later, in 5 minutes."),
            &tools(ALL),
        );
        let names: Vec<&str> = calls.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["ask_question", "check_later", "submit_plan"]);
        assert_eq!(calls[0].1["question"], "Shall I go on with DEMO-1?");
        assert_eq!(calls[1].1["after_minutes"], 5);
        assert!(said.contains("I asked, and wait for the answer."), "{said}");
        let answered =
            input("DEMO-1", "Ann: yes. Ask me later about the plan.").replace("Type: message", "Type: \"answer\"");
        assert_eq!(run(&answered, &tools(ALL)).0, []);
    }

    #[test]
    fn splits_a_task_in_three_and_puts_the_results_together() {
        let (calls, said) = run(&input("DEMO-1", "Split it."), &tools(ALL));
        let names: Vec<&str> = calls.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["task_context_write", "subagent_spawn"]);
        let parts = calls[1].1["subagents"].as_array().unwrap();
        assert_eq!((parts.len(), &parts[0]["label"]), (3, &json!("past")));
        assert!(said.contains("Three subagents are at work."), "{said}");
        // A part is work as any other, and is not split again.
        let names: Vec<String> = parts
            .iter()
            .flat_map(|part| run(&input("DEMO-1", part["request"].as_str().unwrap()), &tools(ALL)).0)
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["task_history"]);
        let results = input("DEMO-1", "1. \"past\" (coder): finished\n> Split it, read the history.")
            .replace("Type: message", "Type: \"branch_result\"");
        let (calls, said) = run(&results, &tools(ALL));
        assert_eq!(calls, []);
        assert!(said.contains("I have put the results together."), "{said}");
    }

    #[test]
    fn is_as_slow_as_the_notification_says() {
        let check = |words: &str, seconds: u64| {
            let mut conversation = Conversation::default();
            conversation.hear(&[Item::User(input("DEMO-1", words))]);
            assert_eq!(conversation.takes(), Duration::from_secs(seconds), "{words}");
        };
        check("This takes 60 seconds.", 60);
        check("It takes 1 second, then post.", 1);
        check("It takes 9999 seconds.", SLOW_SECONDS_MAX);
        check("It takes some seconds.", 0);
        check("60 seconds", 0);
    }

    #[test]
    fn calls_the_tools_that_a_notification_asks_for() {
        let history = || {
            (
                "task_history",
                json!({"task_id": "DEMO-1", "message_limit": 5, "activity_limit": 5}),
            )
        };
        let done = || ("task_status", json!({"task_id": "DEMO-1", "status": "done"}));
        check("DEMO-1", "Tests fail on main", &[], "On DEMO-1: I have read this.");
        check(
            "DEMO-1",
            "Read the history first.",
            &[history()],
            "On DEMO-1: I looked up what came before.",
        );
        check(
            "DEMO-1",
            "Mark it done.",
            &[done()],
            "On DEMO-1: Its status is now done.",
        );
        check(
            "DEMO-1",
            "Please finish.",
            &[done()],
            "On DEMO-1: Its status is now done.",
        );
        check("DEMO-1", "Not completely.", &[], "On DEMO-1: I have read this.");
        check(
            "DEMO-1",
            "Look at the context, post a note and complete it.",
            &[
                history(),
                (
                    "task_message",
                    json!({"task_id": "DEMO-1", "body": "Working on DEMO-1."}),
                ),
                done(),
            ],
            "On DEMO-1: I looked up what came before. I left a note for everyone. Its status is now done.",
        );
        let body = "Please take a second look at DEMO-1; its history says what was done.";
        let review = ("response_request", json!({"agents": ["reviewer"], "body": body}));
        check(
            "DEMO-1",
            "Get a review from @reviewer.",
            &[review],
            "On DEMO-1: I asked reviewer to look.",
        );
        let nothing = || ("no_reply", json!({"reason": "there is no work for me in this"}));
        check("-", "Heartbeat", &[nothing()], "Without a task: No answer is due.");
        check(
            "DEMO-1",
            "There is nothing to do; mark it done.",
            &[nothing()],
            "On DEMO-1: No answer is due.",
        );
    }

    #[test]
    fn an_orchestrator_gives_work_away_and_reports_its_end() {
        let prompt = "CI Give the notes to @coder. Mark it done when nothing is left.";
        let given = ("create_session", json!({"prompt": prompt, "agent": "coder"}));
        let said = "Without a task: I gave it to coder, and say when it is done.";
        check("-", "Give the notes to @coder.", &[given], said);
        let done = ("task_status", json!({"task_id": "DEMO-1", "status": "done"}));
        let (calls, _) = run(&input("DEMO-1", prompt), &tools(&["task_status"]));
        assert_eq!(calls, [(done.0.to_owned(), done.1)]);
        check(
            "-",
            "Task DEMO-1 (\"Give @coder\") is done now. Moved by \"Coder\".",
            &[],
            "Without a task: What I gave away has come back. Task DEMO-1 (\"Give @coder\") is done now. Moved by \"Coder\".",
        );
    }

    #[test]
    fn needs_a_task_for_what_is_about_a_task() {
        check(
            "-",
            "Post the history and mark it done.",
            &[],
            "Without a task: I have read this.",
        );
    }

    #[test]
    fn takes_a_text_without_any_form_as_it_is() {
        let (calls, said) = run("What is the history of this?", &tools(ALL));
        assert_eq!(calls, []);
        assert_eq!(said, "Without a task: I have read this. (1st of this conversation)");
    }

    #[test]
    fn keeps_to_the_tools_and_properties_on_offer() {
        let words = input("DEMO-1", "Look at the context and mark it done.");
        let (calls, _) = run(&words, &tools(&["task_status"]));
        assert_eq!(calls.len(), 1);
        let mut prefixed = tools(&["mytask_status", "signalbox_task_status"]);
        prefixed[1].properties = Some(vec!["status".to_owned()]);
        let (calls, _) = run(&words, &prefixed);
        assert_eq!(calls, [("signalbox_task_status".to_owned(), json!({"status": "done"}))]);
    }

    #[test]
    fn says_what_the_tools_returned() {
        let mut conversation = Conversation::default();
        let text = input("DEMO-1", "Look at the history and finish.");
        conversation.hear(&[Item::User(text.clone())]);
        let history = r#"{"task":{},"messages":[{},{}],"activities":[{}]}"#;
        conversation.hear(&[Item::Result {
            call_id: "a".to_owned(),
            output: history.to_owned(),
        }]);
        // Repeated after a lost response.
        conversation.hear(&[Item::Result {
            call_id: "a".to_owned(),
            output: history.to_owned(),
        }]);
        let refused = r#"{"error":{"code":"closed","message":"task closed"}}"#;
        conversation.hear(&[
            Item::Result {
                call_id: "b".to_owned(),
                output: refused.to_owned(),
            },
            Item::User("Hurry up".to_owned()),
        ]);
        let said = "On DEMO-1: I looked up the task: messages 2, activities 1. task_status was refused: task closed. \
                    I was also told: Hurry up (1st of this conversation)";
        assert_eq!(conversation.next(&tools(ALL)), Next::Say(said.to_owned()));

        conversation.hear(&[Item::User(input("DEMO-1", "Thanks"))]);
        let said = "On DEMO-1: I have read this. (2nd of this conversation)".to_owned();
        assert_eq!(conversation.next(&tools(ALL)), Next::Say(said));
    }

    #[test]
    fn finds_its_place_in_a_conversation_that_is_sent_in_full() {
        let result = |call_id: &str| Item::Result {
            call_id: call_id.to_owned(),
            output: "{}".to_owned(),
        };
        let mut conversation = Conversation::default();
        let (first, second) = (
            input("DEMO-1", "history"),
            input("DEMO-1", "Look at the context and finish."),
        );
        conversation.hear(&[
            Item::User(first),
            Item::Own,
            result("a"),
            Item::Own,
            Item::User(second),
            Item::Own,
            result("b"),
        ]);
        let Next::Call(call) = conversation.next(&tools(ALL)) else {
            panic!("one more tool is to be called")
        };
        assert_eq!((call.step, call.name.as_str()), (1, "task_status"));
    }

    #[test]
    fn counts_the_turns_of_an_assembled_conversation() {
        let mut conversation = Conversation::default();
        let added = [
            "Note from Signalbox: earlier turns of this conversation that are left out here: 7.\n",
            "Note from Signalbox: this turn ended without an answer: aborted.\n",
            "\nDescription of the task:\n[begin 0]\nMend it.\n[end 0]\n",
        ]
        .map(|text| Item::User(text.to_owned()));
        let [left_out, ended, description] = added;
        conversation.hear(&[
            left_out,
            Item::User(input("DEMO-1", "history")),
            Item::Own,
            Item::User(input("DEMO-1", "Look at the context")),
            ended,
            description,
            Item::User(input("DEMO-1", "Thanks")),
        ]);
        let said = "On DEMO-1: I have read this. (10th of this conversation)".to_owned();
        assert_eq!(conversation.next(&tools(ALL)), Next::Say(said));
    }

    #[test]
    fn goes_on_after_forgetting_everything() {
        let mut conversation = Conversation::default();
        conversation.hear(&[Item::Result {
            call_id: "a".to_owned(),
            output: "42".to_owned(),
        }]);
        let said = "Without a task: the tool answered: 42. (0th of this conversation)".to_owned();
        assert_eq!(conversation.next(&tools(ALL)), Next::Say(said));
    }
}
