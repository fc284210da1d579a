//! Lists the steps of the schema: each SQL file in `src/migrations`, by its name.

use std::{env, fmt::Write, fs, path::Path};

fn main() {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("src/migrations");
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(&folder).expect("the folder of the migrations");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
    files.sort();
    let mut list = String::from("&[");
    for file in files {
        let name = file.file_stem().expect("a name").to_string_lossy();
        write!(list, "({name:?}, include_str!({file:?})),").expect("writing to a string does not fail");
    }
    list.push(']');
    let to = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("steps.rs");
    fs::write(to, list).expect("the list can be written");
}
