//! Secrets of a data directory that the settings leave open: generated once and stored with mode 0600. An emptied file is replaced
//! by a new secret at the next start.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::Context;
use devstack::write_private;
use messaging::callout::Issuer;

pub(super) fn operator_token(data_dir: &Path) -> anyhow::Result<String> {
    kept::<24>(&data_dir.join("operator-token"))
}

/// The key that signs messages. After a change, unread messages in the streams count as forged; rotate it with two keys in the
/// settings instead (docs/runbooks/envelope-keys.md).
pub(super) fn envelope_key(data_dir: &Path) -> anyhow::Result<String> {
    kept::<32>(&data_dir.join("envelope-key"))
}

/// The seeds of the auth callout, by which API keys open NATS: the issuer's and the xkey's.
pub(super) fn callout_seeds(data_dir: &Path) -> anyhow::Result<(String, String)> {
    let (issuer, xkey) = Issuer::generate();
    Ok((
        kept_or(&data_dir.join("nats-issuer-seed"), || Ok(issuer))?,
        kept_or(&data_dir.join("nats-xkey-seed"), || Ok(xkey))?,
    ))
}

/// Hexadecimal characters: the file's content, or as many random ones.
fn kept<const RANDOM_BYTES: usize>(path: &Path) -> anyhow::Result<String> {
    kept_or(path, || {
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random)
            .map_err(|error| anyhow::anyhow!("could not generate {}: {error}", path.display()))?;
        Ok(hex::encode(random))
    })
}

fn kept_or(path: &Path, make: impl FnOnce() -> anyhow::Result<String>) -> anyhow::Result<String> {
    match fs::read_to_string(path) {
        Ok(kept) if !kept.trim().is_empty() => return Ok(kept.trim().to_owned()),
        // The file was emptied to get a new secret.
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
    let secret = make()?;
    write_private(path, format!("{secret}\n").as_bytes())?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn is_made_once_and_kept_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let check = |secret: fn(&Path) -> anyhow::Result<String>, file: &str, bytes: usize| {
            let made = secret(folder.path()).unwrap();
            assert_eq!(made.len(), 2 * bytes);
            assert_eq!(secret(folder.path()).unwrap(), made);
            let path = folder.path().join(file);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            fs::write(&path, "").unwrap();
            assert_ne!(secret(folder.path()).unwrap(), made);
        };
        check(operator_token, "operator-token", 24);
        check(envelope_key, "envelope-key", 32);
    }

    #[test]
    fn seeds_of_the_callout_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (issuer, xkey) = callout_seeds(folder.path()).unwrap();
        assert!(Issuer::from_seeds(&issuer, &xkey).is_ok());
        assert_eq!(callout_seeds(folder.path()).unwrap(), (issuer, xkey));
    }

    #[test]
    fn a_made_key_is_one_that_services_take() {
        let folder = tempfile::tempdir().unwrap();
        let key = envelope_key(folder.path()).unwrap();
        let settings = runtime::Settings::load_from("", [("SIGNALBOX__ENVELOPE__KEYS__UP", key)]).unwrap();
        assert!(settings.envelope.keyring().is_ok());
    }
}
