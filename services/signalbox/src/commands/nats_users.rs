//! `signalbox nats-users`: prints the users of a NATS server with their permissions, for the root in the settings. Needs no server.

use std::process::ExitCode;

use contracts::Root;
use messaging::{User, users};
use runtime::Settings;
use serde_json::{Map, json};

use crate::print::{print, print_json};

pub(crate) fn run(json: bool) -> anyhow::Result<ExitCode> {
    let settings = Settings::load()?;
    let root = Root::parse(&settings.nats.root).expect("checked when the settings were read");
    if json {
        let users: Map<_, _> = User::ALL
            .into_iter()
            .map(|user| {
                let users::Permissions { publish, subscribe } = users::permissions(user, &root);
                (
                    user.name().to_owned(),
                    json!({"publish": publish, "subscribe": subscribe}),
                )
            })
            .collect();
        print_json(&users)?;
    } else {
        print(users::config_file(&root).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}
