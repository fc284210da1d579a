//! `signalbox route`: why a notification went where it went.

use std::process::ExitCode;

use api::notifications::RouteStep;
use serde_json::Value;

use crate::{cli::RouteArgs, client::read_as, print::show, table::Table, text::one_line};

const TEXT_CHARS_MAX: usize = 120;

pub(crate) async fn run(args: &RouteArgs, json: bool) -> anyhow::Result<ExitCode> {
    let path = [
        "api",
        "orgs",
        &args.of.account,
        "notifications",
        &args.notification,
        "route",
    ];
    let steps: Vec<Value> = args.of.access.client()?.get(&path, &[]).await?;
    show(json, &steps, |steps| table(steps))
}

fn table(steps: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&["STEP", "RESULT", "BECAUSE"]);
    for step in steps {
        let step: RouteStep = read_as(step)?;
        table.row([
            &step.step,
            &one_line(&step.result, TEXT_CHARS_MAX),
            &one_line(&step.because, TEXT_CHARS_MAX),
        ]);
    }
    Ok(table.render("no steps"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_a_step_a_line() {
        let steps = [json!({"step": "refused", "result": "refused", "because": "unknown\nagent"})];
        let expected = "STEP     RESULT   BECAUSE\nrefused  refused  unknown agent\n";
        assert_eq!(table(&steps).unwrap(), expected);
    }
}
