//! `signalbox nats-users`: prints the users of a NATS server with their permissions, for the root in the settings. Needs no server.

use std::process::ExitCode;

use contracts::Root;
use messaging::{User, users};
use runtime::Settings;
use serde_json::{Map, json};

use crate::print::show;

pub(crate) fn run(json: bool) -> anyhow::Result<ExitCode> {
    let settings = Settings::load()?;
    let root = Root::parse(&settings.nats.root).expect("checked when the settings were read");
    let users = User::ALL.map(|user| {
        let users::Permissions { publish, subscribe, .. } = users::permissions(user, &root);
        let permissions = json!({"publish": publish, "subscribe": subscribe});
        (user.name().to_owned(), permissions)
    });
    let users = Map::from_iter(users);
    show(json, &users, |_| Ok(users::config_file(&root).trim_end().to_owned()))
}
