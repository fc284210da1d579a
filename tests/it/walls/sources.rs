//! The SQL in the services' sources: string literals with a condition on the account. A new one that the walk does not execute is
//! reported here.

use std::path::Path;

use super::conditions::conditions;

/// A literal, and its file.
pub(crate) struct Written {
    pub(crate) file: String,
    pub(crate) sql: String,
}

/// Any whitespace becomes one space.
pub(crate) fn plain(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every such literal of the services and the shared crates.
pub(crate) fn written() -> Vec<Written> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut written = Vec::new();
    for folder in [
        "services",
        "shared/storage/src",
        "shared/runtime/src",
        "shared/messaging/src",
    ] {
        files(&root.join(folder), &mut |path| {
            let file = path.strip_prefix(root).unwrap().display().to_string();
            if file.contains("/tests/") {
                return;
            }
            let text = std::fs::read_to_string(path).unwrap();
            // Tests are at the end of a file.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            written.extend(
                literals(code)
                    .into_iter()
                    .filter(|sql| is_conditional(sql))
                    .map(|sql| Written {
                        file: file.clone(),
                        sql,
                    }),
            );
        });
    }
    written
}

/// Number of queries of the mapper, by file.
pub(crate) fn mapped() -> Vec<(String, usize)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut mapped = Vec::new();
    for folder in ["services", "shared"] {
        files(&root.join(folder), &mut |path| {
            let file = path.strip_prefix(root).unwrap().display().to_string();
            if file.contains("/tests/") || file.contains("testkit") {
                return;
            }
            let text = std::fs::read_to_string(path).unwrap();
            let count = [
                "Entity::find()",
                "Entity::find_by_id(",
                ".update(&**tx)",
                "Entity::update",
                "Entity::delete",
            ]
            .iter()
            .map(|asks| text.matches(asks).count())
            .sum();
            if count > 0 {
                mapped.push((file, count));
            }
        });
    }
    mapped.sort();
    mapped
}

fn is_conditional(text: &str) -> bool {
    // A literal of a macro may end where a name is inserted.
    !conditions(text).is_empty() || text.trim_end().ends_with("account_id =")
}

fn files(folder: &Path, see: &mut impl FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, see);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            see(&path);
        }
    }
}

/// Literals between quotes, outside of comments. No raw literal holds SQL here.
fn literals(code: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let here = &rest[at..];
        if here.starts_with("//") {
            rest = here.find('\n').map_or("", |end| &here[end..]);
        } else if let Some(behind) = here.strip_prefix("'\"'") {
            rest = behind;
        } else if let Some(inside) = here.strip_prefix('"') {
            let mut end = 0;
            let bytes = inside.as_bytes();
            while bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            literals.push(inside[..end].replace("\\\n", "").replace("\\\"", "\""));
            rest = &inside[end + 1..];
        } else {
            rest = &here[1..];
        }
    }
    literals
}

#[test]
fn texts_are_found_and_comments_are_not() {
    let code = r#"
        /// "not this"
        const A: &str = "select \"x\" from y"; // nor "this"
        let b = 'c' == '"' || "z" == d;
    "#;
    assert_eq!(literals(code), ["select \"x\" from y", "z"]);
}
