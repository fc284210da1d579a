//! `signalbox log`: what a session's agent got and did, page by page.

use std::process::ExitCode;

use api::log::Log;
use serde_json::Value;

use super::filters;
use crate::{
    cli::LogArgs,
    client::read_as,
    print::{print, print_json},
    text::lines,
};

pub(crate) async fn run(args: &LogArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let path = [
        "api",
        "orgs",
        args.of.account.as_str(),
        "sessions",
        &args.session,
        "log",
    ];
    let generation = args.generation.map(|generation| generation.to_string());
    let mut cursor: Option<String> = None;
    loop {
        let query = filters([("generation", generation.as_deref()), ("cursor", cursor.as_deref())]);
        let page: Value = client.get(&path, &query).await?;
        let mut log: Log = read_as(&page)?;
        cursor = log.next_cursor.take();
        // Printed at once: a log may be long.
        match json {
            true => print_json(&page)?,
            false => print(&lines(&log.text()))?,
        }
        if cursor.is_none() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}
