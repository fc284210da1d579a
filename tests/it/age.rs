//! An installation that has been at work for long, small enough for every run of the tests; `make age` runs the large one.
//! What is judged here is that nothing stops and nothing is left: how fast a busy machine is says nothing.

use std::process::Command;

#[test]
fn a_day_goes_by_in_an_old_installation() {
    let output = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args([
            "age",
            "--sessions",
            "2000",
            "--notifications",
            "20000",
            "--tasks",
            "2000",
        ])
        .args(["--posted", "1000", "--hours", "3", "--limit-ms", "15000"])
        .output()
        .expect("the program runs");
    let (told, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{told}{errors}");
}
