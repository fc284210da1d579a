//! OpenAI's protocol for making images. An image comes as base64, or at an address that is read like any other; it is kept if it is
//! one, whatever the answer says of it.

use std::borrow::Cow;

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Model, Room,
    exchange::{Failure, too_large},
    openresponses::usage,
};

/// What surrounds the images in a body.
const ENVELOPE_BYTES_MAX: usize = 64 * 1024;
/// The longest address of an image.
const URL_BYTES_MAX: usize = 8 * 1024;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The body of a request.
pub(crate) fn body(model: &Model, text: &str, count: usize, size: Option<&str>) -> Vec<u8> {
    let mut body = json!({"model": model.settings.model, "prompt": text, "n": count});
    if let Some(size) = size {
        body["size"] = size.into();
    }
    if let Some(format) = &model.settings.output_format {
        body["output_format"] = format.as_str().into();
    }
    body.to_string().into_bytes()
}

/// An image of an answer.
#[derive(Debug, PartialEq)]
pub(crate) enum Image {
    Content(Vec<u8>),
    At(String),
}

#[derive(Debug, PartialEq)]
pub(crate) struct Made {
    pub images: Vec<Image>,
    pub usage: Option<Value>,
}

/// Why an answer has no images.
#[derive(Debug, PartialEq)]
pub(crate) enum NoImages {
    Malformed(&'static str),
    TooLarge,
}

impl Model {
    /// Asks for images, of so many bytes each.
    pub(crate) async fn paint(
        &self,
        body: Vec<u8>,
        id: &str,
        (count, bytes_max): (usize, usize),
        room: &mut Room,
    ) -> Result<Made, Failure> {
        let encoded_max = bytes_max.div_ceil(3) * 4;
        let body = self
            .post(body, id, count * encoded_max + ENVELOPE_BYTES_MAX, room)
            .await?;
        read(&body, count, bytes_max).map_err(|no| match no {
            NoImages::Malformed(what) => self.failed("malformed", what),
            NoImages::TooLarge => too_large(&self.name, &format!("an image of more than {bytes_max} bytes")).into(),
        })
    }
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    data: Vec<WireImage<'a>>,
    #[serde(default)]
    usage: Option<Value>,
}

#[derive(Deserialize)]
struct WireImage<'a> {
    #[serde(borrow, default)]
    b64_json: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    url: Option<Cow<'a, str>>,
}

/// Reads an answer: at least one image, and no more than were asked for. Pure.
pub(crate) fn read(body: &[u8], count: usize, bytes_max: usize) -> Result<Made, NoImages> {
    if !contracts::json::fits_within(body, 0) {
        return Err(NoImages::Malformed(
            "the answer is nested too deep, or has too many values",
        ));
    }
    // Without a tree of values: the texts are megabytes.
    let wire: Wire<'_> = serde_json::from_slice(body)
        .map_err(|_| NoImages::Malformed("the answer is not JSON with a list of images"))?;
    let images = wire
        .data
        .into_iter()
        .take(count)
        .map(|image| match (image.b64_json, image.url) {
            (Some(text), _) => {
                if text.len() / 4 * 3 > bytes_max + 3 {
                    return Err(NoImages::TooLarge);
                }
                let content = BASE64.decode(text.as_bytes());
                let content = content.map_err(|_| NoImages::Malformed("an image is not base64"))?;
                match content.len() > bytes_max {
                    true => Err(NoImages::TooLarge),
                    false => Ok(Image::Content(content)),
                }
            }
            (None, Some(url)) if url.len() <= URL_BYTES_MAX => Ok(Image::At(url.into_owned())),
            (None, _) => Err(NoImages::Malformed("an image has neither content nor an address")),
        });
    let images = images.collect::<Result<Vec<Image>, NoImages>>()?;
    if images.is_empty() {
        return Err(NoImages::Malformed("the answer has no image"));
    }
    Ok(Made {
        images,
        usage: wire.usage.as_ref().and_then(usage),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_images() {
        let check = |body: Value, expected: Result<Vec<Image>, NoImages>| {
            let read = read(body.to_string().as_bytes(), 2, 6).map(|made| made.images);
            assert_eq!(read, expected, "{body}");
        };
        let content = |content: &[u8]| Image::Content(content.to_vec());
        check(json!({"data": [{"b64_json": "aGVsbG8="}]}), Ok(vec![content(b"hello")]));
        check(json!({"data": [{"b64_json": "aGVsbG8"}]}), Ok(vec![content(b"hello")]));
        check(
            json!({"data": [{"url": "https://h/i.png"}, {"b64_json": "aA==", "revised_prompt": "p"}, {"b64_json": "aQ=="}]}),
            Ok(vec![Image::At("https://h/i.png".to_owned()), content(b"h")]),
        );
        check(
            json!({"data": [{"b64_json": "aGVsbG8h"}]}),
            Ok(vec![content(b"hello!")]),
        );
        check(json!({"data": [{"b64_json": "aGVsbG8hIQ=="}]}), Err(NoImages::TooLarge));
        check(
            json!({"data": [{"b64_json": "a".repeat(400)}]}),
            Err(NoImages::TooLarge),
        );
        let malformed = |what| Err(NoImages::Malformed(what));
        check(
            json!({"data": [{"b64_json": "a b"}]}),
            malformed("an image is not base64"),
        );
        check(
            json!({"data": [{}]}),
            malformed("an image has neither content nor an address"),
        );
        check(json!({"data": []}), malformed("the answer has no image"));
        check(
            json!({"data": "x"}),
            malformed("the answer is not JSON with a list of images"),
        );
        check(json!([]), malformed("the answer is not JSON with a list of images"));
        // Small values cost a hundred times their bytes: none is built. Texts cost theirs.
        let bounded = |body: String| {
            assert_eq!(
                read(body.as_bytes(), 2, 6).map(|made| made.images),
                malformed("the answer is nested too deep, or has too many values"),
            );
        };
        let many = |value: &str| vec![value; contracts::json::VALUES_MAX].join(",");
        bounded(format!("{{\"data\":[{}]}}", many("{}")));
        bounded(format!(
            "{{\"data\":[{{\"b64_json\":\"aA==\"}}],\"usage\":[{}]}}",
            many("0")
        ));
        bounded(format!(
            "{{\"data\":[{{\"b64_json\":\"aA==\",\"more\":[{}]}}]}}",
            many("\"\"")
        ));
        bounded(format!(
            "{{\"data\":[],\"usage\":{}1{}}}",
            "[".repeat(65),
            "]".repeat(65)
        ));
        let image = vec![b'x'; 12_000_000];
        let more = ",[{:\\\"".repeat(1_000_000);
        let long = format!(
            "{{\"data\":[{{\"revised_prompt\":\"{more}\",\"b64_json\":\"{}\"}}]}}",
            BASE64.encode(&image)
        );
        let made = read(long.as_bytes(), 1, image.len()).unwrap();
        assert!(made.images == [Image::Content(image)], "texts of megabytes pass");
        // Escaped, as some write it.
        let escaped = br#"{"data":[{"b64_json":"\u0061A=="}],"usage":{"total_tokens":9}}"#;
        let made = read(escaped, 1, 6).unwrap();
        assert_eq!(
            (made.images, made.usage),
            (vec![content(b"h")], Some(json!({"total_tokens": 9})))
        );
    }
}
