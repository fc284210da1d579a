//! `signalbox nats-keys`: makes the keys of NATS' auth callout, as lines of an environment. Needs no server; stores nothing.

use std::process::ExitCode;

use messaging::callout::Issuer;
use serde_json::json;

use crate::print::show;

pub(crate) fn run(json: bool) -> anyhow::Result<ExitCode> {
    let (issuer_seed, xkey_seed) = Issuer::generate();
    let (issuer, xkey) = Issuer::from_seeds(&issuer_seed, &xkey_seed)?.public_keys();
    let keys = json!({"issuer": issuer, "xkey": xkey, "issuer_seed": issuer_seed, "xkey_seed": xkey_seed});
    show(json, &keys, |_| {
        Ok(format!(
            "NATS_CALLOUT_ISSUER={issuer}\nNATS_CALLOUT_XKEY={xkey}\nNATS_CALLOUT_ISSUER_SEED={issuer_seed}\n\
             NATS_CALLOUT_XKEY_SEED={xkey_seed}"
        ))
    })
}
