//! Replays: which turns may be run again. `storage::session::replay_begin` makes them, delivery runs them.

pub mod http;
pub mod store;

use domain::{ReplaySpec, replay::PROVIDER_BYTES_MAX};
use prompt::PROFILE_VERSION;
use runtime::http::Problem;
use storage::session::replay_begin::ReplayCount;

use crate::settings::{OrchestratorSettings, Providers};
use store::Source;

/// Why a turn is not run again. Pure.
pub fn refused(source: &Source, spec: &ReplaySpec, providers: &Providers) -> Option<Problem> {
    let refuse = |code, what: &str| Some(Problem::unprocessable(code, what));
    if source.is_replay {
        return refuse(
            "turn_is_replay",
            "the turn is a replay: replay the turn that it ran again",
        );
    }
    if !source.is_over {
        return refuse("turn_in_progress", "the turn has not ended");
    }
    if !source.is_whole {
        return refuse(
            "texts_not_kept",
            "the turn cannot be run again: its texts are no longer kept, or an older version wrote them",
        );
    }
    if !source.has_agent {
        return refuse("agent_removed", "the turn's agent was removed");
    }
    let name = spec.provider.as_ref().unwrap_or(&source.provider);
    match providers.find(name) {
        Some(provider) if provider.has_effects() => refuse(
            "provider_has_effects",
            "agents of this provider have tools of their own: running the turn again would have effects",
        ),
        None if !providers.are_unknown() => {
            refuse("unknown_provider", &format!("the settings have no provider {name:?}"))
        }
        Some(_) | None => None,
    }
}

/// What is wrong with a request. Pure.
pub fn misspecified(spec: &ReplaySpec) -> Option<Problem> {
    let refuse = |detail: String| Some(Problem::unprocessable("invalid_field", detail));
    let is_name = |name: &String| !name.trim().is_empty() && name.len() <= PROVIDER_BYTES_MAX;
    if !spec.provider.as_ref().is_none_or(is_name) {
        return refuse(format!("provider: 1-{PROVIDER_BYTES_MAX} bytes that are not blank"));
    }
    let (field, what) = spec.profile.as_ref()?.refused(PROFILE_VERSION)?;
    refuse(format!("profile.{field}: {what}"))
}

/// When a replay that is over may make room for one.
const AGAIN_S: u32 = 5;

/// Whether there are as many replays as there may be. Pure.
pub fn too_many(count: ReplayCount, settings: &OrchestratorSettings) -> Option<Problem> {
    let (in_flight_max, of_turn_max) = (
        settings.replays_in_flight_account_max.get(),
        settings.replays_per_turn_max.get(),
    );
    if count.of_turn >= i64::from(of_turn_max) {
        let what = format!(
            "the turn has {} replays; at most {of_turn_max} are kept (replays_per_turn_max), each until closed sessions of its age are removed",
            count.of_turn
        );
        return Some(Problem::conflict("replays_of_turn", what));
    }
    (count.in_flight >= i64::from(in_flight_max)).then(|| {
        let what = format!(
            "{} replays are in progress; at most {in_flight_max} may be (replays_in_flight_account_max): try again when one has ended",
            count.in_flight
        );
        let problem = Problem::new(axum::http::StatusCode::TOO_MANY_REQUESTS, "too_many_replays");
        problem.detail(what).retry_after_s(AGAIN_S)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_again_without_effects_is_refused() {
        let source = || Source {
            task: None,
            agent_id: domain::AgentId(uuid::Uuid::nil()),
            provider: "default".to_owned(),
            is_replay: false,
            is_over: true,
            is_whole: true,
            has_agent: true,
        };
        let providers = r#"{"default": {}, "own": {"effects": "own"}}"#;
        let providers: Providers = serde_json::from_str(providers).unwrap();
        let check = |source: Source, provider: Option<&str>, expected: Option<&str>| {
            let spec = ReplaySpec {
                provider: provider.map(str::to_owned),
                profile: None,
            };
            let problem = refused(&source, &spec, &providers);
            assert_eq!(problem.as_ref().map(Problem::code), expected, "{source:?} {provider:?}");
        };
        check(source(), None, None);
        check(source(), Some("own"), Some("provider_has_effects"));
        check(source(), Some("none"), Some("unknown_provider"));
        let with = |change: fn(&mut Source)| {
            let mut source = source();
            change(&mut source);
            source
        };
        check(with(|source| source.is_replay = true), None, Some("turn_is_replay"));
        check(with(|source| source.is_over = false), None, Some("turn_in_progress"));
        check(with(|source| source.is_whole = false), None, Some("texts_not_kept"));
        check(with(|source| source.has_agent = false), None, Some("agent_removed"));
        let own = with(|source| source.provider = "own".to_owned());
        check(own.clone(), None, Some("provider_has_effects"));
        check(own, Some("default"), None);
    }
}
