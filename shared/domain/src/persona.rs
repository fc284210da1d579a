//! Personas: files that say how an agent is to be. A version has files that never change.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{PersonaSlug, PersonaVersionId, string_enum::string_enum};

string_enum! {
    /// Who uses a persona: its maker and the admins, or everybody in the account.
    PersonaVisibility { Private = "private", Shared = "shared" }
}

/// Ranks above all other files of the persona, and below Signalbox's own policy. In any spelling: files are not told apart by case.
const SAFETY: &str = "SAFETY.md";
/// Is part of the instructions while the work is under review.
const REVIEW: &str = "REVIEW.md";

pub const FILES_MAX: usize = 16;
pub const FILE_BYTES_MAX: usize = 32 * 1024;
pub const BYTES_MAX: usize = 64 * 1024;
const SORT_ORDER_MAX: u8 = 99;
const NAME_BYTES_MAX: usize = 67;

/// A file of a persona.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PersonaFile {
    /// Begins with a letter or digit and ends with `.md`; letters, digits, `.`, `_` and `-`.
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.md$"))]
    pub filename: String,
    /// Its place: files are in the order of this number, then of their names. Default 0.
    #[serde(default, alias = "sortOrder", deserialize_with = "sort_order")]
    #[schemars(range(max = SORT_ORDER_MAX))]
    pub sort_order: u8,
    /// At most 32 KiB.
    pub content: String,
}

/// A version of a persona. It never changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PersonaText {
    pub id: PersonaVersionId,
    /// As it was when the version was written.
    pub slug: PersonaSlug,
    pub number: i32,
    pub files: PersonaFiles,
}

impl PersonaFile {
    /// Ranks above the others.
    pub fn is_safety(&self) -> bool {
        self.filename.eq_ignore_ascii_case(SAFETY)
    }

    /// Is shown in reviews only.
    pub fn is_review(&self) -> bool {
        self.filename.eq_ignore_ascii_case(REVIEW)
    }
}

impl PersonaText {
    pub fn has_review(&self) -> bool {
        self.files.as_slice().iter().any(PersonaFile::is_review)
    }
}

/// The files of a version, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<PersonaFile>")]
pub struct PersonaFiles(#[schemars(length(min = 1, max = FILES_MAX))] Vec<PersonaFile>);

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FilesError {
    #[error("a persona has 1 to {FILES_MAX} files, not {0}")]
    Number(usize),
    /// The name is left out: it may be anything.
    #[error(
        "file {0}: a filename is at most {NAME_BYTES_MAX} characters of A-Z, a-z, 0-9, ., _ and -, begins with a letter or digit, and ends with .md"
    )]
    Name(usize),
    #[error("file {0}: another file has this name, if upper and lower case are not told apart")]
    Twice(String),
    #[error("file {0}: {1} bytes; at most {FILE_BYTES_MAX}")]
    Long(String, usize),
    /// A prompt shows one as several characters, beyond the limits.
    #[error("file {0}: the content holds the control character U+{1:04X}; line breaks and tabs are taken")]
    Control(String, u32),
    #[error("the files have {0} bytes together; at most {BYTES_MAX}")]
    LongTogether(usize),
}

/// JSON may write a whole number as `3.0`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number that fits"
)]
fn sort_order<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let number = f64::deserialize(deserializer)?;
    let fits = (0.0..=f64::from(SORT_ORDER_MAX)).contains(&number) && number.fract() == 0.0;
    let what = || {
        serde::de::Error::custom(format!(
            "sort_order: expected a whole number from 0 to {SORT_ORDER_MAX}"
        ))
    };
    fits.then_some(number as u8).ok_or_else(what)
}

fn is_name(name: &str) -> bool {
    let stem = name.strip_suffix(".md").unwrap_or_default();
    let is_part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    name.len() <= NAME_BYTES_MAX && stem.starts_with(|c: char| c.is_ascii_alphanumeric()) && stem.bytes().all(is_part)
}

impl TryFrom<Vec<PersonaFile>> for PersonaFiles {
    type Error = FilesError;

    fn try_from(mut files: Vec<PersonaFile>) -> Result<Self, FilesError> {
        if !(1..=FILES_MAX).contains(&files.len()) {
            return Err(FilesError::Number(files.len()));
        }
        let mut names = BTreeSet::new();
        for (place, file) in files.iter_mut().enumerate() {
            // As Windows ends lines.
            file.content = file.content.replace("\r\n", "\n");
            if !is_name(&file.filename) {
                return Err(FilesError::Name(place + 1));
            }
            let name = || file.filename.clone();
            if !names.insert(file.filename.to_ascii_lowercase()) {
                return Err(FilesError::Twice(name()));
            }
            if file.content.len() > FILE_BYTES_MAX {
                return Err(FilesError::Long(name(), file.content.len()));
            }
            let is_taken = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
            if let Some(control) = file.content.chars().find(|c| !is_taken(c)) {
                return Err(FilesError::Control(name(), control.into()));
            }
        }
        let together = files.iter().map(|file| file.content.len()).sum();
        if together > BYTES_MAX {
            return Err(FilesError::LongTogether(together));
        }
        Ok(PersonaFiles::ordered(files))
    }
}

/// A file as a version was written, perhaps by another version of a service.
#[derive(Deserialize)]
struct StoredFile {
    filename: String,
    sort_order: u8,
    content: String,
}

impl PersonaFiles {
    fn ordered(mut files: Vec<PersonaFile>) -> PersonaFiles {
        files.sort_by(|a, b| (a.sort_order, &a.filename).cmp(&(b.sort_order, &b.filename)));
        PersonaFiles(files)
    }

    /// What was stored, whatever the limits were then. An unknown field is ignored.
    pub fn stored<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<PersonaFiles, D::Error> {
        let files = Vec::<StoredFile>::deserialize(deserializer)?.into_iter();
        let files = files.map(|file| PersonaFile {
            filename: file.filename,
            sort_order: file.sort_order,
            content: file.content,
        });
        Ok(PersonaFiles::ordered(files.collect()))
    }

    pub fn as_slice(&self) -> &[PersonaFile] {
        &self.0
    }

    /// Equal files have equal hashes: a version that would repeat the newest one is not made.
    pub fn hash(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for file in &self.0 {
            digest.update(format!(
                "{} {} {}\n",
                file.filename,
                file.sort_order,
                file.content.len()
            ));
            digest.update(&file.content);
        }
        digest.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(filename: &str, sort_order: u8, content: &str) -> PersonaFile {
        PersonaFile {
            filename: filename.to_owned(),
            sort_order,
            content: content.to_owned(),
        }
    }

    fn files(files: &[(&str, u8)]) -> Result<PersonaFiles, FilesError> {
        let files: Vec<PersonaFile> = files.iter().map(|(name, order)| file(name, *order, "x")).collect();
        files.try_into()
    }

    #[test]
    fn files_are_in_the_order_of_their_numbers_then_of_their_names() {
        let ordered = files(&[("B.md", 0), ("A.md", 7), ("a-9.md", 0), ("C.md", 0)]).unwrap();
        let names: Vec<&str> = ordered.as_slice().iter().map(|file| file.filename.as_str()).collect();
        assert_eq!(names, ["B.md", "C.md", "a-9.md", "A.md"]);
        let same = files(&[("C.md", 0), ("a-9.md", 0), ("A.md", 7), ("B.md", 0)]).unwrap();
        assert_eq!(ordered.hash(), same.hash());
        assert_ne!(ordered.hash(), files(&[("B.md", 0)]).unwrap().hash());
    }

    #[test]
    fn a_filename_is_no_path() {
        for bad in [
            "",
            ".md",
            "../A.md",
            "/A.md",
            "a/b.md",
            ".A.md",
            "A.txt",
            "A.MD",
            "a b.md",
            "ä.md",
            "A.md\n",
            "-.md",
            &format!("{}.md", "a".repeat(65)),
        ] {
            assert_eq!(files(&[("B.md", 0), (bad, 0)]), Err(FilesError::Name(2)), "{bad}");
        }
        let long = format!("{}.md", "a".repeat(64));
        for good in ["A.md", "0.md", "a..b.md", "SAFETY.md", long.as_str()] {
            assert!(files(&[(good, 99)]).is_ok(), "{good}");
        }
    }

    #[test]
    fn lines_end_in_one_way() {
        let files = PersonaFiles::try_from(vec![file("A.md", 0, "a\r\n\r\nb")]).unwrap();
        assert_eq!(files.as_slice()[0].content, "a\n\nb");
    }

    #[test]
    fn what_was_stored_is_read_under_any_limits() {
        let long = "x".repeat(BYTES_MAX + 1);
        let stored = serde_json::json!([
            {"filename": "B.md", "sort_order": 1, "content": long, "of_a_later_version": true},
            {"filename": "A.md", "sort_order": 0, "content": "a\r"},
        ]);
        let files = PersonaFiles::stored(stored).unwrap();
        let names: Vec<&str> = files.as_slice().iter().map(|file| file.filename.as_str()).collect();
        assert_eq!(names, ["A.md", "B.md"]);
    }

    #[test]
    fn a_place_is_a_small_whole_number() {
        let check = |place: &str, expected: Option<u8>| {
            let read = serde_json::from_str(&format!(
                r#"{{"filename": "A.md", "content": "", "sortOrder": {place}}}"#
            ));
            assert_eq!(read.ok().map(|file: PersonaFile| file.sort_order), expected, "{place}");
        };
        check("99", Some(99));
        check("3.0", Some(3));
        check("100", None);
        check("-1", None);
        check("1.5", None);
    }

    #[test]
    fn what_is_too_much_is_named_with_its_limit() {
        let check = |given: Vec<PersonaFile>, expected: &str| {
            assert_eq!(PersonaFiles::try_from(given).unwrap_err().to_string(), expected);
        };
        check(vec![], "a persona has 1 to 16 files, not 0");
        let many = (0..17).map(|n| file(&format!("{n}.md"), 0, "")).collect();
        check(many, "a persona has 1 to 16 files, not 17");
        check(
            vec![file("A.md", 0, ""), file("a.md", 0, "")],
            "file a.md: another file has this name, if upper and lower case are not told apart",
        );
        let long = "x".repeat(FILE_BYTES_MAX + 1);
        check(vec![file("A.md", 0, &long)], "file A.md: 32769 bytes; at most 32768");
        for (bad, named) in [
            ('\0', "0000"),
            ('\u{7f}', "007F"),
            ('\u{1b}', "001B"),
            ('\u{85}', "0085"),
            ('\r', "000D"),
        ] {
            let content = format!("a\n\t{bad}b");
            let what =
                format!("file A.md: the content holds the control character U+{named}; line breaks and tabs are taken");
            check(vec![file("A.md", 0, &content)], &what);
        }
        let most = "x".repeat(FILE_BYTES_MAX);
        let three = ["A.md", "B.md", "C.md"].map(|name| file(name, 0, &most));
        check(three.into(), "the files have 98304 bytes together; at most 65536");
    }
}
