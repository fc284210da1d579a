//! Results of cases, as a table for people and as JSON for programs.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::protocol::words;

words! {
    Verdict {
        Pass = "pass",
        Fail = "fail",
        /// It failed as the driver had declared.
        Differs = "differs",
        NotSupported = "not supported",
    }
}

#[derive(Debug, Serialize)]
pub struct CaseResult {
    pub name: String,
    pub verdict: Verdict,
    /// Why it did not pass.
    pub detail: String,
    pub elapsed_ms: u128,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub driver: String,
    pub counts: BTreeMap<Verdict, usize>,
    pub cases: Vec<CaseResult>,
}

impl Report {
    pub fn new(driver: &str, cases: Vec<CaseResult>) -> Report {
        let count = |verdict| cases.iter().filter(|case| case.verdict == verdict).count();
        let counts = Verdict::ALL.iter().map(|verdict| (*verdict, count(*verdict))).collect();
        let driver = driver.to_owned();
        Report { driver, counts, cases }
    }

    pub fn has_failed(&self) -> bool {
        self.counts[&Verdict::Fail] > 0
    }

    pub fn table(&self) -> String {
        let widths = self.cases.iter().map(|case| case.name.len());
        let width = widths.max().unwrap_or_default();
        let mut text = format!("{:width$}  {:13}  {:>7}  WHY\n", "CASE", "RESULT", "MS");
        for CaseResult {
            name,
            verdict,
            elapsed_ms,
            detail,
        } in &self.cases
        {
            let line = format!("{name:width$}  {verdict:13}  {elapsed_ms:>7}  {detail}");
            text += line.trim_end();
            text += "\n";
        }
        let counts = self.counts.iter().map(|(verdict, count)| format!("{count} {verdict}"));
        text + &format!("{}: {}\n", self.driver, counts.collect::<Vec<_>>().join(", "))
    }
}
