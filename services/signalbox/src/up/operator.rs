//! The operator's token of a data directory: the one in the settings, else one that is made once and kept there.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::Context;

use crate::endpoints::write_private;

const FILE: &str = "operator-token";
const RANDOM_BYTES: usize = 24;

pub(super) fn token(data_dir: &Path) -> anyhow::Result<String> {
    let path = data_dir.join(FILE);
    match fs::read_to_string(&path) {
        Ok(kept) if !kept.trim().is_empty() => return Ok(kept.trim().to_owned()),
        // Emptied by somebody who wants a new one.
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| anyhow::anyhow!("no randomness for a token: {error}"))?;
    let token = hex::encode(random);
    write_private(&path, format!("{token}\n").as_bytes())?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn is_made_once_and_kept_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let made = token(folder.path()).unwrap();
        assert_eq!(made.len(), 2 * RANDOM_BYTES);
        assert_eq!(token(folder.path()).unwrap(), made);
        let path = folder.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "").unwrap();
        assert_ne!(token(folder.path()).unwrap(), made);
    }
}
