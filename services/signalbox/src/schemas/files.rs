//! A folder of generated files: written where it differs, or compared.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Writes missing and changed files and removes files that are no longer generated; gives its actions by file.
pub(super) fn write(folder: &Path, wanted: &BTreeMap<String, String>) -> anyhow::Result<Vec<String>> {
    let mut written = Vec::new();
    for (name, difference) in differences(folder, wanted)? {
        let path = folder.join(&name);
        if difference == Difference::Stranger {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            written.push(format!("{name} (removed)"));
        } else {
            let parent = path.parent().expect("a file below a folder has a parent");
            fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
            fs::write(&path, &wanted[&name]).with_context(|| format!("cannot write {}", path.display()))?;
            written.push(name);
        }
    }
    Ok(written)
}

/// The differences between folder and code, a line each.
pub(super) fn drift(folder: &Path, wanted: &BTreeMap<String, String>) -> anyhow::Result<Vec<String>> {
    let differences = differences(folder, wanted)?.into_iter();
    let lines = differences.map(|(name, difference)| {
        let what = match difference {
            Difference::Missing => "is missing",
            Difference::Changed => "is out of date",
            Difference::Stranger => "is not generated any more",
        };
        format!("{} {what}", folder.join(name).display())
    });
    Ok(lines.collect())
}

#[derive(PartialEq, Eq)]
enum Difference {
    Missing,
    Changed,
    Stranger,
}

fn differences(folder: &Path, wanted: &BTreeMap<String, String>) -> anyhow::Result<Vec<(String, Difference)>> {
    let mut differences = Vec::new();
    for (name, content) in wanted {
        match read(&folder.join(name))? {
            None => differences.push((name.clone(), Difference::Missing)),
            Some(found) if found != content.as_bytes() => differences.push((name.clone(), Difference::Changed)),
            Some(_) => {}
        }
    }
    let strangers = strangers(folder, wanted)?.into_iter();
    differences.extend(strangers.map(|name| (name, Difference::Stranger)));
    Ok(differences)
}

fn read(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Files of the sub-folders that hold generated files only. The top folder may hold other files.
fn strangers(folder: &Path, wanted: &BTreeMap<String, String>) -> anyhow::Result<Vec<String>> {
    let ours: std::collections::BTreeSet<&str> =
        wanted.keys().filter_map(|name| Some(name.split_once('/')?.0)).collect();
    let mut strangers = Vec::new();
    for sub in ours {
        let path: PathBuf = folder.join(sub);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read {}", path.display()))?;
            let name = format!("{sub}/{}", entry.file_name().to_string_lossy());
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if is_file && !wanted.contains_key(&name) {
                strangers.push(name);
            }
        }
    }
    strangers.sort();
    Ok(strangers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> BTreeMap<String, String> {
        let files = [("messages/a.json", "{}\n"), ("topology.md", "# Streams\n")];
        files.map(|(name, text)| (name.to_owned(), text.to_owned())).into()
    }

    #[test]
    fn what_was_written_is_current() {
        let folder = tempfile::tempdir().unwrap();
        let written = write(folder.path(), &wanted()).unwrap();
        assert_eq!(written, ["messages/a.json", "topology.md"]);
        assert!(drift(folder.path(), &wanted()).unwrap().is_empty());
        assert!(
            write(folder.path(), &wanted()).unwrap().is_empty(),
            "nothing to do the second time"
        );
    }

    #[test]
    fn finds_what_is_missing_changed_or_left_over() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &wanted()).unwrap();
        fs::write(folder.path().join("topology.md"), "# Other\n").unwrap();
        fs::rename(
            folder.path().join("messages/a.json"),
            folder.path().join("messages/b.json"),
        )
        .unwrap();
        fs::write(folder.path().join("NOTES.md"), "somebody's own").unwrap();
        let found = drift(folder.path(), &wanted()).unwrap();
        let found: Vec<&str> = found
            .iter()
            .map(|line| line.strip_prefix(folder.path().to_str().unwrap()).unwrap())
            .collect();
        assert_eq!(
            found,
            [
                "/messages/a.json is missing",
                "/topology.md is out of date",
                "/messages/b.json is not generated any more"
            ]
        );
        assert_eq!(
            write(folder.path(), &wanted()).unwrap(),
            ["messages/a.json", "topology.md", "messages/b.json (removed)"]
        );
        assert!(drift(folder.path(), &wanted()).unwrap().is_empty());
        assert!(folder.path().join("NOTES.md").exists());
    }
}
