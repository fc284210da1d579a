//! `signalbox questions`: what agents ask, and answers to it.

use std::process::ExitCode;

use api::{
    questions::{AnswerText, Chosen, NewAnswer, Question, Withdrawal},
    text::Text,
};
use domain::QuestionState;
use serde_json::Value;

use super::{filters, moment};
use crate::{
    cli::{QuestionAnswerArgs, QuestionArgs, QuestionWithdrawArgs, QuestionsArgs, QuestionsCommand, QuestionsFilter},
    client::read_as,
    print::show,
    table::Table,
    text::one_line,
};

const TITLE_CHARS_MAX: usize = 60;

pub(crate) async fn run(args: &QuestionsArgs, json: bool) -> anyhow::Result<ExitCode> {
    match &args.command {
        None => list(&args.filter, json).await,
        Some(QuestionsCommand::List(filter)) => list(filter, json).await,
        Some(QuestionsCommand::Show(args)) => read(args, json).await,
        Some(QuestionsCommand::Answer(args)) => answer(args, json).await,
        Some(QuestionsCommand::Withdraw(args)) => withdraw(args, json).await,
    }
}

fn path<'a>(args: &'a QuestionArgs, rest: &[&'a str]) -> Vec<&'a str> {
    [&["api", "orgs", &args.of.account, "questions", &args.id], rest].concat()
}

async fn list(filter: &QuestionsFilter, json: bool) -> anyhow::Result<ExitCode> {
    let list = &filter.list;
    let state = match filter.all || filter.mine {
        true => None,
        false => Some(filter.state.unwrap_or(QuestionState::Open).as_str()),
    };
    let query = filters([
        ("task", filter.task.as_deref()),
        ("state", state),
        ("mine", filter.mine.then_some("true")),
    ]);
    let path = ["api", "orgs", &list.of.account, "questions"];
    let questions = list.of.access.client()?.list(&path, &query, list.limit.into()).await?;
    show(json, &questions, |questions| table(questions))
}

async fn read(args: &QuestionArgs, json: bool) -> anyhow::Result<ExitCode> {
    let question: Value = args.of.access.client()?.get(&path(args, &[]), &[]).await?;
    show(json, &question, |question| Ok(in_full(&read_as(question)?)))
}

async fn answer(args: &QuestionAnswerArgs, json: bool) -> anyhow::Result<ExitCode> {
    let text = args.text.as_deref().map(AnswerText::parse).transpose();
    let hash = args.arguments_hash.as_deref().map(Text::parse);
    let answer = NewAnswer {
        verdict: args.verdict,
        options: (!args.options.is_empty()).then(|| Chosen(args.options.clone())),
        text: text.map_err(|why| anyhow::anyhow!("text: {why}"))?,
        arguments_hash: hash
            .transpose()
            .map_err(|why| anyhow::anyhow!("arguments-hash: {why}"))?,
        accept_stale: args.accept_stale.then_some(true),
        remember: args.remember.then_some(true),
    };
    let client = args.question.of.access.client()?;
    let question: Value = client.post(&path(&args.question, &["answer"]), &answer).await?;
    show(json, &question, |question| Ok(ended(&read_as(question)?)))
}

async fn withdraw(args: &QuestionWithdrawArgs, json: bool) -> anyhow::Result<ExitCode> {
    let reason = args.reason.as_deref().map(Text::parse).transpose();
    let body = Withdrawal {
        reason: reason.map_err(|why| anyhow::anyhow!("reason: {why}"))?,
    };
    let client = args.question.of.access.client()?;
    let question: Value = client.post(&path(&args.question, &["withdraw"]), &body).await?;
    show(json, &question, |question| Ok(ended(&read_as(question)?)))
}

fn table(questions: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&[
        "QUESTION", "KIND", "STATE", "TASK", "AGENT", "SINCE", "HOLDS UP", "TITLE",
    ]);
    for question in questions {
        let question: Question = read_as(question)?;
        table.row([
            &question.id.to_string(),
            &question.kind,
            &question.state,
            question.task.as_deref().unwrap_or_default(),
            question.agent.as_deref().unwrap_or_default(),
            &moment(Some(question.created_at)),
            &question.held_up.to_string(),
            &one_line(&question.title, TITLE_CHARS_MAX),
        ]);
    }
    Ok(table.render("no questions"))
}

fn ended(question: &Question) -> String {
    let by = question.ended_by.as_ref().map_or("", |by| by.name.as_str());
    let verdict = question
        .verdict
        .as_deref()
        .map_or_else(String::new, |verdict| format!(": {verdict}"));
    format!(
        "question {} is {}, by {}{verdict}",
        question.id,
        question.state,
        one_line(by, 64)
    )
}

/// The command line that answers it.
fn how_to_answer(question: &Question) -> String {
    let of = match question.kind.as_str() {
        "plan" => "--verdict approved|changes|denied [--text 'What to change, or why']".to_owned(),
        "review" => "--verdict approved|changes [--text 'What to change']".to_owned(),
        "tool" => {
            let hash = question.arguments_hash.as_deref().unwrap_or("HASH");
            format!(
                "--verdict approved --arguments-hash {}, or --verdict denied --text 'Why not'",
                one_line(hash, 64)
            )
        }
        _ if question.options.0.is_empty() => "--text 'The answer'".to_owned(),
        _ if question.free_text => "--option ID, or --text 'The answer'".to_owned(),
        _ => "--option ID".to_owned(),
    };
    format!("answer: signalbox questions answer {} {of}\n", question.id)
}

/// Texts of others keep to their lines.
fn in_full(question: &Question) -> String {
    let lines = |text: &str| -> String {
        text.lines()
            .map(|line| format!("  {}\n", one_line(line, 400)))
            .collect()
    };
    let mut text = format!(
        "{} ({}, {}) of {} on {}, since {}\nasked: {}\n{}\n{}",
        question.id,
        question.kind,
        question.state,
        one_line(question.agent.as_deref().unwrap_or("-"), 64),
        one_line(question.task.as_deref().unwrap_or("-"), 64),
        moment(Some(question.created_at)),
        one_line(&question.audience.join(", "), 400),
        one_line(&question.title, 200),
        lines(&question.body),
    );
    if let (Some(tool), Some(arguments), Some(hash)) = (&question.tool, &question.arguments, &question.arguments_hash) {
        text.push_str(&format!("call of {}:\n{}", one_line(tool, 128), lines(arguments)));
        text.push_str(&format!("arguments hash: {}\n", one_line(hash, 64)));
    }
    for choice in &question.options.0 {
        text.push_str(&format!(
            "option {}: {}\n",
            one_line(&choice.id, 64),
            one_line(&choice.label, 200)
        ));
    }
    if question.state == QuestionState::Open.as_str() {
        text.push_str(&how_to_answer(question));
    }
    if question.state != QuestionState::Open.as_str() {
        text.push_str(&ended(question));
        text.push('\n');
        if let Some(answer) = &question.answer {
            if !answer.options.is_empty() {
                text.push_str(&format!("chosen: {}\n", one_line(&answer.options.join(", "), 400)));
            }
            text.push_str(&lines(answer.text.as_deref().unwrap_or_default()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::Cli;

    fn question() -> Value {
        json!({"id": "0190b5a8-0000-7000-8000-000000000001", "kind": "question", "state": "answered", "task": "DEMO-1",
            "session_id": null, "agent_id": null, "agent": "coder", "turn_id": null, "title": "Which\u{1b}[31m one?",
            "body": "Which one?\nIt matters.", "options": [{"id": "a", "label": "The first"}], "multiple": false, "free_text": true,
            "audience": ["role:member"], "plan_revision": null, "created_at": "2026-01-02T03:04:05Z", "lapse_at": null,
            "verdict": null, "answer": {"options": ["a"], "text": "Yes"}, "ended_by": {"kind": "user", "id": "k", "name": "Ann"},
            "ended_at": "2026-01-02T03:05:05Z", "reason": null, "notification_id": "n", "held_up": 2, "a_field": "of a newer server"})
    }

    #[test]
    fn shows_a_question_and_its_answer() {
        let text = in_full(&read_as(&question()).unwrap());
        for part in [
            "coder on DEMO-1",
            "  It matters.",
            "option a: The first",
            "is answered, by Ann",
            "chosen: a",
            "  Yes",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(!text.contains("answer: "), "{text}");
        let open = |kind: &str, hash: Value| {
            let mut open = question();
            for (name, value) in [
                ("state", json!("open")),
                ("kind", json!(kind)),
                ("arguments_hash", hash),
            ] {
                open[name] = value;
            }
            in_full(&read_as(&open).unwrap()).lines().last().unwrap().to_owned()
        };
        let answer = "answer: signalbox questions answer 0190b5a8-0000-7000-8000-000000000001";
        assert_eq!(
            open("question", json!(null)),
            format!("{answer} --option ID, or --text 'The answer'")
        );
        let expected = format!("{answer} --verdict approved --arguments-hash d7, or --verdict denied --text 'Why not'");
        assert_eq!(open("tool", json!("d7")), expected);
        assert!(table(&[question()]).unwrap().contains("answered"));
    }

    #[test]
    fn an_answer_says_something() {
        let check = |line: &str, good: bool| {
            let line = format!("signalbox questions {line}");
            assert_eq!(Cli::try_parse_from(line.split_whitespace()).is_ok(), good, "{line}");
        };
        check("", true);
        check("--mine --account acme", true);
        check("list --state lapsed", true);
        check("--mine --state open", false);
        check("show Q", true);
        check("answer Q", false);
        check("answer Q --text yes", true);
        check("answer Q --verdict approved", true);
        check("answer Q --verdict maybe", false);
        check("answer Q --option a --option b", true);
        check("withdraw Q --reason x", true);
    }
}
