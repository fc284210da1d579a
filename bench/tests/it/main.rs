//! Runs the benchmark with a minimal load: it starts all subjects, finds nothing lost, doubled or out of order, and reports. The
//! figures do not count.

use std::{fs, process::Command};

use serde_json::Value;

#[test]
fn w_is_measured_beside_the_floor() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["live", "--repetitions", "1", "--notifications", "300", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("| live | /s, of floor-2 |"), "{said}");

    let report: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let runs = report["rows"][0]["runs"].as_array().unwrap();
    let who: Vec<&str> = runs.iter().map(|run| run["subject"].as_str().unwrap()).collect();
    assert_eq!(who, ["signalbox", "floor-2", "floor"]);
    for run in runs {
        let figures = &run["figures"];
        assert_eq!(figures["recorded"], 300);
        // CPU time of other processes may be below the kernel's resolution.
        assert!(figures["cpu_ms"]["own"].as_f64().unwrap() > 0.0, "{run}");
        assert!(figures["statements"].as_f64().unwrap() > 0.0, "{run}");
    }
    assert!(!runs[0]["figures"]["top"].as_array().unwrap().is_empty());
}
