//! Age: an old installation, planted by SQL, and one day in it. The clock is simulated by shortening the retention times: each hour
//! as many rows expire as in an hour. Meanwhile sweeps, lists, turns and closings run in one account that has nearly all rows and
//! in another that has few. No statement may take longer than the limit, no expired row may stay, and the other account must not be
//! slowed. Only this test judges by time.

mod day;
mod plant;
mod posted;

use std::{fs, process::ExitCode, time::Duration};

use anyhow::Context;
use sqlx::AssertSqlSafe;
use tempfile::TempDir;

use crate::{arguments::AgeArguments, provider::Pace, recovery::bench::Bench, recovery::measured::Measured};

/// A fast provider: its delay is not part of the measurement.
const PACE: Pace = Pace {
    think_ms: (20, 40),
    think_long_ms: (20, 40),
};

/// Retention starts longer than the age of any row, so that only the simulated day expires rows. A queue may hold all that is
/// posted.
const SETTINGS: &str = "
[resolver]
queue_items_max = 1000000
closed_sessions_days = 32
refused_days = 32
[orchestrator]
answers_kept_hours = 49
accepted_kept_hours = 193
dead_letters_kept_days = 92
mail_kept_days = 367
";

#[expect(clippy::print_stdout, reason = "the figures are what the program is for")]
pub(crate) async fn run(arguments: &AgeArguments) -> anyhow::Result<ExitCode> {
    let directory = TempDir::with_prefix("signalbox-age-")?;
    let bench = Box::pin(Bench::open_with(directory.path(), PACE, 1, SETTINGS)).await?;
    let mut measured = Measured::default();
    measured.note_load("before");
    let planted = plant::plant(&bench, arguments).await?;
    measured.note(format!("planted within {} s", planted.as_secs()));
    let limit = Duration::from_millis(arguments.limit_ms);
    let log = watch(&bench, limit).await?;
    let mut broken = Box::pin(day::go_by(&bench, arguments, &mut measured)).await?;
    broken.extend(slow_statements(
        &fs::read_to_string(log).context("could not read the log of Postgres")?,
    ));
    measured.note_load("after");
    bench.system.stop().await?;
    print!("{measured}");
    for line in &broken {
        println!("BROKEN: {line}");
    }
    Ok(if broken.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Makes the server log statements that take longer, with their role. Gives the log file.
async fn watch(bench: &Bench, limit: Duration) -> anyhow::Result<std::path::PathBuf> {
    for setting in [
        format!("alter system set log_min_duration_statement = {}", limit.as_millis()),
        "alter system set log_line_prefix = '%a|'".to_owned(),
        "select pg_reload_conf()".to_owned(),
    ] {
        sqlx::query(AssertSqlSafe(setting))
            .execute(&bench.system.observer)
            .await
            .context("could not have slow statements written down")?;
    }
    let log = bench.system.server_logs.get("postgres");
    log.cloned().context("Postgres writes a log")
}

/// Statements of services; this program's own queries are not counted.
fn slow_statements(log: &str) -> Vec<String> {
    let of_services = log.lines().filter(|line| line.starts_with("signalbox-"));
    let slow = of_services.filter(|line| line.contains("duration: "));
    slow.map(|line| {
        format!(
            "a statement took too long: {}",
            line.chars().take(400).collect::<String>()
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::slow_statements;

    #[test]
    fn only_services_statements_count() {
        let log = "signalbox-resolver|LOG:  duration: 1234.5 ms  execute s1: delete\n|LOG:  duration: 9000 ms\n\
                   signalbox-delivery|LOG:  something else\n";
        let found = slow_statements(log);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("execute s1: delete"));
    }
}
