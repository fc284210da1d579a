//! Fuzzes what strangers send: the arguments of models against every tool's schema, the headers of agents, files, and the answers of
//! external models.

use axum::http::{HeaderMap, HeaderValue};
use domain::MediaType;
use runtime::egress::credential::Credential;
use serde_json::Value;
use testkit::{
    fuzz::Fuzz,
    tools::{arguments, named},
};

use crate::{
    arguments::Schema,
    http,
    models::{images, openresponses},
};

const BYTES_MAX: usize = contracts::tool::ARGUMENTS_BYTES_MAX;

#[test]
fn tool_arguments() {
    let definitions = contracts::tools::all();
    let tools: Vec<Schema> = definitions
        .iter()
        .map(|tool| Schema::compile(&tool.parameters))
        .collect();
    let id = |_: &str, of| named(of, "PROJ-7", "coder");
    let said = definitions
        .iter()
        .flat_map(|tool| [true, false].map(|also| arguments(tool, |_| also, id, "done").to_string()));
    // Common misspellings of models, and an empty text.
    let misspelt = [r#"{"task_id":"PROJ-7","message_limit":5,"activityLimit":null}"#, ""];
    let names: Vec<&'static str> = definitions
        .iter()
        .flat_map(|tool| tool.parameters["properties"].as_object().expect("an object").keys())
        .map(|name| &*name.clone().leak())
        .collect();
    Fuzz::new("tool_arguments", env!("CARGO_MANIFEST_DIR"))
        .seeds(misspelt.map(str::to_owned).into_iter().chain(said))
        .words(&names)
        .words(&["taskId", "assigned", "in_progress", "done", "archived"])
        .flood(BYTES_MAX)
        // Every tool reads each input.
        .work_per_byte(256 * tools.len() as u64)
        .must_meet(&["read", "invalid_arguments", "too large"])
        .run(|input| {
            let Ok(text) = std::str::from_utf8(input) else {
                return "not text";
            };
            let mut class = if text.len() > BYTES_MAX - 64 {
                "too large"
            } else {
                "invalid_arguments"
            };
            for tool in &tools {
                match tool.read(text, BYTES_MAX - 64) {
                    Ok(read) => {
                        let written = Value::Object(read.clone()).to_string();
                        assert!(tool.read(&written, 2 * BYTES_MAX).is_ok(), "what was read reads back");
                        class = "read";
                    }
                    // The error goes into the model's context, so its size is bounded.
                    Err(answer) => assert!(
                        answer.message.len() + answer.hint.len() < 16 * 1024,
                        "{}",
                        answer.message.len()
                    ),
                }
            }
            class
        });
}

#[test]
fn agent_headers() {
    let key = "task:proj-7:agent:0190b5a8-0000-7000-8000-000000000001:acme:v2";
    Fuzz::new("agent_headers", env!("CARGO_MANIFEST_DIR"))
        .seeds([
            key.to_owned(),
            format!("agent:main:{key}"),
            key.to_uppercase(),
            "Bearer sbx_a_b_c_d".to_owned(),
        ])
        .words(&["agent:", "AGENT:", ":v1", "Bearer ", "bearer\t", "sbx_"])
        .must_meet(&["read", "refused"])
        .run(|input| {
            let Ok(value) = HeaderValue::from_bytes(input) else {
                return "no header";
            };
            let headers = HeaderMap::from_iter([(axum::http::header::AUTHORIZATION, value.clone())]);
            let _ = http::bearer(&headers);
            match value.to_str().ok().and_then(http::session_key) {
                Some(key) => {
                    assert_eq!(http::session_key(&key.to_string()), Some(key));
                    "read"
                }
                None => "refused",
            }
        });
}

/// A file's type says what its bytes are, and a text is one.
#[test]
fn media_types() {
    Fuzz::new("media_types", env!("CARGO_MANIFEST_DIR"))
        .seeds(["\u{feff}text", "<svg/>", "%PDF-1.7", "GIF89a", "RIFF____WEBPVP8 ", ""].map(str::to_owned))
        .words(&["\u{0}", "\u{1b}", "PNG\r\n\u{1a}\n", "GIF8", "WEBP", "%PDF-"])
        .must_meet(&["text", "image", "none"])
        .run(|input| match MediaType::of(input) {
            None => "none",
            Some(MediaType::Text) => {
                assert!(std::str::from_utf8(input).is_ok_and(|text| !text.contains('\0')));
                "text"
            }
            Some(MediaType::Pdf) => "file",
            Some(_) => "image",
        });
}

#[test]
fn image_answers() {
    const BYTES_MAX: usize = 64;
    let answers = [
        r#"{"data": [{"b64_json": "aGVsbG8="}, {"b64_json": "aA"}], "usage": {"total_tokens": 9}}"#,
        r#"{"data": [{"url": "https://example.com/a.png", "b64_json": null}]}"#,
        r#"{"error": {"message": "no"}}"#,
    ];
    Fuzz::new("image_answers", env!("CARGO_MANIFEST_DIR"))
        .seeds(answers.map(str::to_owned))
        .words(&["data", "b64_json", "url", "====", "AAAA", "\\u0041"])
        .flood(4 * BYTES_MAX)
        .must_meet(&["images", "malformed"])
        .run(|input| match images::read(input, 2, BYTES_MAX) {
            Ok(made) => {
                assert!((1..=2).contains(&made.images.len()));
                for image in &made.images {
                    assert!(!matches!(image, images::Image::Content(content) if content.len() > BYTES_MAX));
                }
                "images"
            }
            Err(images::NoImages::Malformed(_)) => "malformed",
            Err(images::NoImages::TooLarge) => "too large",
        });
}

#[test]
fn model_answers() {
    let answers = [
        r#"{"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}]}"#,
        r#"{"status": "incomplete", "incomplete_details": {"reason": "length"}, "output": [], "usage": {"input_tokens": 1}}"#,
        r#"{"status": "failed", "error": {"code": "x", "message": "no"}}"#,
    ];
    Fuzz::new("model_answers", env!("CARGO_MANIFEST_DIR"))
        .seeds(answers.map(str::to_owned))
        .words(&[
            "output",
            "output_text",
            "refusal",
            "completed",
            "in_progress",
            "\\u0000",
        ])
        .must_meet(&["text", "failed"])
        .run(|input| match openresponses::read(input, &Credential::default()) {
            Ok(read) => {
                assert!(!read.text.trim().is_empty() && !read.text.contains('\0'));
                "text"
            }
            Err(openresponses::NoText::Failed { detail, .. }) => {
                assert!(detail.len() <= 1024, "{}", detail.len());
                "failed"
            }
            Err(openresponses::NoText::TooLarge) => "too large",
        });
}
