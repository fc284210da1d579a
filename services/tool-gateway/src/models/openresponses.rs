//! The OpenResponses protocol, as far as a single question needs it: one user message, no tools, no thread, nothing stored, not
//! streamed. The answer is read for its text and its counts.

use base64::{Engine, engine::general_purpose::STANDARD};
use runtime::egress::credential::Credential;
use serde_json::{Map, Value, json};

use super::{
    Answer, Model, Room, Shown,
    exchange::{Failure, too_large},
};
use crate::call::cut;

/// Text of an answer. More is no answer that a tool's result could hold.
const TEXT_BYTES_MAX: usize = 1024 * 1024;
/// The body around it, which escapes it and repeats settings.
const BODY_BYTES_MAX: usize = 4 * TEXT_BYTES_MAX;
/// Text that is handed on; the rest is cut.
const RESULT_BYTES_MAX: usize = 60 * 1024;

/// The body of a request.
pub(crate) fn body(model: &str, text: &str, files: &[Shown]) -> Vec<u8> {
    let mut content = vec![json!({"type": "input_text", "text": text})];
    content.extend(files.iter().map(|file| {
        let data = format!("data:{};base64,{}", file.media_type, STANDARD.encode(&file.content));
        match file.media_type.is_image() {
            true => json!({"type": "input_image", "image_url": data}),
            false => json!({"type": "input_file", "filename": file.name, "file_data": data}),
        }
    }));
    let message = json!({"type": "message", "role": "user", "content": content});
    json!({"model": model, "input": [message], "store": false, "stream": false})
        .to_string()
        .into_bytes()
}

impl Model {
    /// Asks for a text.
    pub(crate) async fn ask(&self, body: Vec<u8>, id: &str, room: &mut Room) -> Result<Answer, Failure> {
        let body = self.post(body, id, BODY_BYTES_MAX, room).await?;
        let read = read(&body, &self.credential).map_err(|no| match no {
            NoText::Failed { class, detail } => self.failed(class, &detail),
            NoText::TooLarge => too_large(&self.name, "more than 1 MiB of text").into(),
        })?;
        let mut result = Map::new();
        result.insert("model".to_owned(), self.name.as_str().into());
        let mut warnings = Vec::new();
        let text = cut(&read.text, RESULT_BYTES_MAX);
        if text.len() < read.text.len() {
            warnings.push(format!(
                "The answer was cut from {} to {} bytes.",
                read.text.len(),
                text.len()
            ));
        }
        if let Some(reason) = read.incomplete {
            warnings.push(format!("The answer is incomplete: {reason}."));
        }
        result.insert("text".to_owned(), text.into());
        if let Some(usage) = &read.usage {
            result.insert("usage".to_owned(), usage.clone());
        }
        if !warnings.is_empty() {
            result.insert("warning".to_owned(), warnings.join(" ").into());
        }
        Ok(Answer {
            result,
            usage: read.usage,
            files: Vec::new(),
        })
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct Read {
    pub text: String,
    /// Why it ends early.
    pub incomplete: Option<String>,
    pub usage: Option<Value>,
}

/// Why an answer has no text.
#[derive(Debug, PartialEq)]
pub(crate) enum NoText {
    Failed { class: &'static str, detail: String },
    TooLarge,
}

/// Reads an answer. Its texts do not repeat the credential. Pure.
pub(crate) fn read(body: &[u8], credential: &Credential) -> Result<Read, NoText> {
    let failed = |class, detail: &str| NoText::Failed {
        class,
        detail: detail.to_owned(),
    };
    let mut answer =
        contracts::json::read(body).map_err(|error| failed("malformed", &format!("the answer is {error}")))?;
    credential.remove_from_json(&mut answer);
    let status = answer["status"].as_str().unwrap_or("completed");
    let error = &answer["error"];
    if error.is_object() || matches!(status, "failed" | "cancelled") {
        let detail = error["message"]
            .as_str()
            .or(error["code"].as_str())
            .unwrap_or("no reason given");
        return Err(failed("failed", detail));
    }
    let incomplete = match status {
        "completed" => None,
        "incomplete" => Some(
            answer["incomplete_details"]["reason"]
                .as_str()
                .unwrap_or("no reason given"),
        ),
        _ => return Err(failed("malformed", "the response is still running")),
    };
    let items = answer["output"].as_array().map_or(&[][..], Vec::as_slice);
    let parts = || {
        let messages = items.iter().filter(|item| item["type"] == "message");
        messages.flat_map(|item| item["content"].as_array().map_or(&[][..], Vec::as_slice))
    };
    let texts = parts()
        .filter(|part| part["type"] == "output_text")
        .filter_map(|part| part["text"].as_str());
    // A server may split the credential over parts.
    let text = credential.remove_from_answer(texts.collect());
    if text.len() > TEXT_BYTES_MAX {
        return Err(NoText::TooLarge);
    }
    if text.trim().is_empty() {
        let refusal = parts().find_map(|part| part["refusal"].as_str());
        return Err(match refusal {
            Some(refusal) => failed("refused", refusal),
            None => failed("malformed", "the answer has no text"),
        });
    }
    Ok(Read {
        text: text.replace('\0', "\u{fffd}"),
        incomplete: incomplete.map(|reason| cut(reason, 100).replace('\0', "\u{fffd}")),
        usage: usage(&answer["usage"]),
    })
}

/// Token counts; none: the model did not count.
pub(crate) fn usage(wire: &Value) -> Option<Value> {
    let names = ["input_tokens", "output_tokens", "total_tokens"];
    let counted = names
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), wire[*name].as_u64()?.into())));
    let counted: Map<String, Value> = counted.collect();
    (!counted.is_empty()).then_some(Value::Object(counted))
}

#[cfg(test)]
mod tests {
    use domain::MediaType;

    use super::*;

    /// The bytes on the wire.
    #[test]
    fn a_request_is_one_message() {
        let files = [
            Shown {
                name: "a.png".to_owned(),
                media_type: MediaType::Png,
                content: b"\x89PNG".to_vec(),
            },
            Shown {
                name: "b \"q\".pdf".to_owned(),
                media_type: MediaType::Pdf,
                content: b"%PDF-".to_vec(),
            },
        ];
        let text = super::super::form(Some("We build a shop."), "Describe it.");
        let expected = concat!(
            r#"{"input":[{"content":[{"text":"[Task Context]\nWe build a shop.\n\n[Request]\nDescribe it.","type":"input_text"},"#,
            r#"{"image_url":"data:image/png;base64,iVBORw==","type":"input_image"},"#,
            r#"{"file_data":"data:application/pdf;base64,JVBERi0=","filename":"b \"q\".pdf","type":"input_file"}],"#,
            r#""role":"user","type":"message"}],"model":"gpt-5","store":false,"stream":false}"#
        );
        assert_eq!(String::from_utf8(body("gpt-5", &text, &files)).unwrap(), expected);
    }

    #[test]
    fn an_answer_does_not_repeat_the_credential() {
        let credential = Credential::new(Some(&"sk-secret-0123".to_owned().into()));
        let text = |text: &str| json!({"type": "output_text", "text": text});
        let answer = |texts: &[&str], reason: &str| {
            let content: Vec<Value> = texts.iter().map(|part| text(part)).collect();
            let body = json!({"status": "incomplete", "incomplete_details": {"reason": reason},
                "output": [{"type": "message", "content": content}]});
            let read = read(body.to_string().as_bytes(), &credential).unwrap();
            (read.text, read.incomplete.unwrap())
        };
        let check = |texts: &[&str], reason: &str, text: &str, told: &str| {
            assert_eq!(answer(texts, reason), (text.to_owned(), told.to_owned()));
        };
        let repeats = "(the text repeats the credential)";
        check(
            &["key sk-secret-0123!"],
            "no sk-secret-0123",
            "key (api_key)!",
            "no (api_key)",
        );
        check(&["key sk-sec", "ret-0123!"], "length", "key (api_key)!", "length");
        check(&["key \\u0073k-secret-0123!"], "sk%2Dsecret-0123", repeats, repeats);
        let at_the_cut = format!("{}sk-secret-0123", "x".repeat(95));
        assert!(!answer(&["x"], &at_the_cut).1.contains("sk-"));
        let refusal = json!({"output": [{"type": "message", "content": [{"refusal": "sk-secret-0123"}]}]});
        let refused = read(refusal.to_string().as_bytes(), &credential);
        assert!(matches!(refused, Err(NoText::Failed { detail, .. }) if detail == "(api_key)"));
    }

    #[test]
    fn an_answer_is_its_text() {
        let answer = |value: Value| read(value.to_string().as_bytes(), &Credential::default());
        let text = |text: &str| json!({"type": "message", "content": [{"type": "output_text", "text": text}]});
        let good = answer(json!({
            "status": "completed",
            "output": [{"type": "reasoning", "content": [{"type": "output_text", "text": "hm"}]}, text("One. "), text("Two.\u{0}")],
            "usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_tokens_details": {}},
        }));
        let expected = Read {
            text: "One. Two.\u{fffd}".to_owned(),
            incomplete: None,
            usage: Some(json!({"input_tokens": 3, "output_tokens": 4, "total_tokens": 7})),
        };
        assert_eq!(good, Ok(expected));
        let incomplete = answer(json!({
            "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [text("One")],
        }));
        assert_eq!(incomplete.unwrap().incomplete.as_deref(), Some("max_output_tokens"));

        let check = |value: Value, class: &str, words: &str| match answer(value.clone()) {
            Err(NoText::Failed { class: found, detail }) => {
                assert!(found == class && detail.contains(words), "{value}: {found} {detail}");
            }
            other => panic!("{value}: {other:?}"),
        };
        check(json!({"error": {"message": "overloaded"}}), "failed", "overloaded");
        check(json!({"status": "failed"}), "failed", "no reason");
        check(json!({"status": "in_progress"}), "malformed", "still running");
        check(json!({"output": []}), "malformed", "no text");
        check(json!({"output": [text(" ")]}), "malformed", "no text");
        check(json!([]), "malformed", "no text");
        check(
            json!({"output": [{"type": "message", "content": [{"type": "refusal", "refusal": "I cannot."}]}]}),
            "refused",
            "I cannot.",
        );
        assert!(matches!(
            read(b"<html>", &Credential::default()),
            Err(NoText::Failed { class: "malformed", .. })
        ));
        assert_eq!(
            answer(json!({"output": [text(&"x".repeat(TEXT_BYTES_MAX + 1))]})),
            Err(NoText::TooLarge)
        );
    }
}
