//! `make run` compiles a subset of the crates of `make test`. A crate with different features would be compiled twice, with all its
//! dependents. The test compares `cargo tree`; to fix a difference, add the feature in `services/signalbox/Cargo.toml`.

use std::{collections::BTreeSet, env, process::Command};

/// The crates of a build, each with its features.
fn crates(build: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .args([
            "tree",
            "--offline",
            "--locked",
            "--prefix",
            "none",
            "--format",
            "{p} [{f}]",
        ])
        .args(build)
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    tree.lines()
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}

#[test]
fn the_program_alone_has_the_features_that_it_has_with_the_tests() {
    let program = crates(&["--package", "signalbox", "--edges", "no-dev"]);
    let tests = crates(&["--workspace", "--features", "system-tests/chaos"]);
    assert!(program.len() > 100 && program.len() < tests.len());
    let differ: Vec<&String> = program.difference(&tests).collect();
    assert!(differ.is_empty(), "compiled again with other features: {differ:#?}");
}
