//! The fuzzer finds a judge's error, stores the input, and tries it first from then on. Its targets are in `fuzz/`.

use std::{
    cell::RefCell,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use testkit::fuzz::Fuzz;

/// In a crate of its own, with a word that triggers the error in every judge below.
fn fuzz(folder: &TempDir) -> Fuzz {
    Fuzz::new("planted", folder.path().to_str().unwrap())
        .seeds(["a.b.c", r#"{"a":[1]}"#])
        .words(&["boom"])
}

fn is_mistaken(input: &[u8]) -> bool {
    input.windows(4).any(|word| word == b"boom")
}

fn kept(folder: &TempDir) -> Vec<Vec<u8>> {
    let files = fs::read_dir(folder.path().join("tests/fuzz/planted"))
        .into_iter()
        .flatten();
    files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
}

/// The panic message of a judge that is wrong about some inputs.
fn complaint(what: &str, change: impl FnOnce(Fuzz) -> Fuzz, judge: impl Fn(&[u8]) -> &'static str) {
    let folder = TempDir::new().unwrap();
    let run = || change(fuzz(&folder)).run(&judge);
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "{what} was not found");
    let inputs = kept(&folder);
    assert!(inputs.len() == 1 && is_mistaken(&inputs[0]), "{what}: {inputs:?}");

    // Once repaired, the next run begins with it.
    let tried = tried(&folder);
    assert_eq!(tried[0], inputs[0], "{what}");
    assert!(tried.len() >= 3_000, "{}", tried.len());
}

/// The inputs of a judge that finds nothing.
fn tried(folder: &TempDir) -> Vec<Vec<u8>> {
    let tried = RefCell::new(Vec::new());
    fuzz(folder).run(|input| {
        tried.borrow_mut().push(input.to_vec());
        "read"
    });
    tried.into_inner()
}

#[test]
fn a_panic_is_found_and_kept() {
    complaint(
        "a panic",
        |fuzz| fuzz,
        |input| {
            assert!(!is_mistaken(input), "planted");
            "read"
        },
    );
}

#[test]
fn memory_and_work_out_of_proportion_are_found_and_kept() {
    let held = |input: &[u8]| {
        let bytes = if is_mistaken(input) { 70 << 20 } else { 16 };
        assert!(vec![0_u8; bytes].len() >= 16);
        "read"
    };
    complaint("memory", |fuzz| fuzz.work_per_byte(1 << 30), held);
    let again_and_again = |input: &[u8]| {
        let rounds = if is_mistaken(input) { 10_000 } else { 1 };
        assert!((0..rounds).all(|_| vec![0_u8; 1024].len() == 1024));
        "read"
    };
    complaint("work", |fuzz| fuzz, again_and_again);
}

#[test]
fn time_out_of_proportion_is_found_and_kept() {
    let slow = |input: &[u8]| {
        // Until the limit of CPU time is exceeded, whatever else the machine does.
        let begun = Instant::now();
        while is_mistaken(input) && begun.elapsed() < Duration::from_secs(5) && spent() {}
        "read"
    };
    complaint("time", |fuzz| fuzz.cpu_time_max(Duration::from_millis(20)), slow);
}

/// Some work that allocates nothing.
fn spent() -> bool {
    (0..10_000_u64).fold(0_u64, |sum, n| std::hint::black_box(sum ^ n)) < u64::MAX
}

#[test]
fn a_run_that_only_meets_refusals_fails() {
    let folder = TempDir::new().unwrap();
    let run = || fuzz(&folder).must_meet(&["read"]).run(|_| "refused");
    assert!(catch_unwind(run).is_err());
    assert_eq!(kept(&folder), Vec::<Vec<u8>>::new());
}

#[test]
fn a_seed_gives_the_same_inputs_again() {
    let folder = TempDir::new().unwrap();
    assert!(tried(&folder) == tried(&folder));
}
