//! An old installation, small enough for every test run; `make age` runs the large one. The test checks that no work stops and that
//! no expired row stays. It does not check speed.

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
