//! Generates attempts from a seed: every route and tool in turn, with foreign names of every kind in every place.

use std::collections::{BTreeMap, BTreeSet};

use contracts::tools::NAMES;
use testkit::{Tenant, tenant::ROLES};

use super::{
    attempt::{Attempt, Door, Draft, Expected},
    names::{escaped, missing, spelled},
    routes::{AGENT_ROUTES, ROUTES, Route, kind_of, kind_within, replace_parameter},
};
use crate::simulation::random::Random;

/// Headers that an attacker might use to pose as another caller.
const HEADERS: &[(&str, &str)] = &[
    ("x-account", "account"),
    ("x-forwarded-user", "account"),
    ("signalbox-account", "account"),
    ("x-openclaw-session-key", "session_key"),
    ("x-openclaw-agent-id", "agent"),
    ("idempotency-key", "idempotency"),
    ("traceparent", "turn"),
];

pub(crate) type Ids = BTreeMap<&'static str, Vec<String>>;

/// Consecutive attempts that differ only in the owner of the named thing. No owner has the same thing for many of them.
const ALIKE: usize = 4;

pub(crate) struct Generator<'a> {
    seed: u64,
    /// The common part of equal attempts.
    random: Random,
    /// The owner of the thing that each attempt names.
    picks: Random,
    attacker: &'a Tenant,
    victim: &'a Tenant,
    /// The victim's names without those that the attacker also has.
    foreign: Ids,
    own: Ids,
    turn: usize,
    /// What is foreign is a person's own in the attacker's account.
    is_within: bool,
}

impl<'a> Generator<'a> {
    pub(crate) fn new(
        seed: u64,
        (attacker, own): (&'a Tenant, &BTreeMap<&'static str, BTreeSet<String>>),
        (victim, theirs): (&'a Tenant, &BTreeMap<&'static str, BTreeSet<String>>),
    ) -> Self {
        let foreign = theirs
            .iter()
            .map(|(kind, ids)| {
                let ids: Vec<String> = ids.difference(&own[kind]).cloned().collect();
                assert!(!ids.is_empty(), "{kind}: nothing that is theirs alone");
                (*kind, ids)
            })
            .collect();
        let own = own
            .iter()
            .map(|(kind, ids)| (*kind, ids.iter().cloned().collect()))
            .collect();
        Generator {
            seed,
            random: Random::new(seed),
            picks: Random::new(!seed),
            attacker,
            victim,
            foreign,
            own,
            turn: 0,
            is_within: false,
        }
    }

    /// Attempts of colleagues at what is a person's own, by the API.
    pub(crate) fn within(
        seed: u64,
        (tenant, own): (&'a Tenant, &BTreeMap<&'static str, BTreeSet<String>>),
        foreign: Ids,
    ) -> Self {
        let own = own.iter();
        Generator {
            seed,
            random: Random::new(seed),
            picks: Random::new(!seed),
            attacker: tenant,
            victim: tenant,
            foreign,
            own: own.map(|(kind, ids)| (*kind, ids.iter().cloned().collect())).collect(),
            turn: 0,
            is_within: true,
        }
    }

    /// The next attempt; rows take turns.
    pub(crate) fn attempt(&mut self) -> Attempt {
        // An agent with its session's key is who it says.
        let agents = if self.is_within { 0 } else { AGENT_ROUTES.len() };
        let rows = ROUTES.len() + agents;
        let frame = self.turn / ALIKE;
        let row = frame % rows;
        self.turn += 1;
        self.random = Random::new(self.seed ^ (frame as u64).wrapping_mul(0xd6e8_feb8_6659_fd93));
        match ROUTES.get(row) {
            Some(route) => self.api(route, row),
            None => self.agent(&AGENT_ROUTES[row - ROUTES.len()], row),
        }
    }

    fn api(&mut self, route: &Route, place: usize) -> Attempt {
        let mut draft = Draft::new(route, place, Door::Api);
        draft.token = self.token();
        let abroad = !self.is_within && self.random.below(2) == 0;
        let mut path = route.path.to_owned();
        // With a foreign account no request succeeds; in the own account, the request must name a foreign thing.
        let names_account = path.contains("{account}");
        if names_account {
            let account = if abroad {
                let account = self.victim.account.clone();
                self.name(&mut draft, &account, true)
            } else {
                self.attacker.account.clone()
            };
            path = path.replace("{account}", &account);
        }
        if let Some(kind) = kind_within(route.path) {
            // What is named within it is foreign in any case.
            let outer = match self.random.below(2) {
                0 => self.own_name(kind),
                _ => {
                    let id = self.any(kind);
                    self.name(&mut draft, &id, true)
                }
            };
            path = replace_parameter(&path, &outer);
        }
        // A person reads what is their own, and a list is of the key's account; there is nothing foreign in the path.
        let mut is_own = (route.path == "/api/me" || route.path.starts_with("/api/me/"))
            && draft.token == self.attacker.keys["person"]
            || (route.method, route.path) == ("GET", "/api/sessions");
        if let Some(kind) = kind_of(route.path) {
            let foreign = abroad || route.queries.is_empty() || self.random.below(3) > 0;
            path = if foreign {
                let id = self.any(kind);
                let id = self.name(&mut draft, &id, true);
                replace_parameter(&path, &id)
            } else {
                let own = self.own_name(kind);
                replace_parameter(&path, &own)
            };
            if foreign {
                draft.expected = Expected::Refused;
            } else {
                is_own = true;
            }
        }
        if (abroad || !names_account) && !is_own {
            draft.expected = Expected::Refused;
        }
        draft.path = path;
        if route.is_upload {
            draft.path.push_str("?name=taken-over");
            draft.body = Some("taken over".to_owned());
        }
        self.more(&mut draft, route);
        draft.attempt()
    }

    fn agent(&mut self, route: &Route, place: usize) -> Attempt {
        let mut draft = Draft::new(route, place, Door::Agent);
        let gateway = self.attacker.keys["gateway"].clone();
        draft.token = if self.random.below(4) == 0 {
            self.token()
        } else {
            gateway
        };
        // A foreign session, or the own session with foreign things.
        let key = if self.random.below(2) == 0 {
            let key = self.picks.pick(&self.foreign["session_key"]).clone();
            draft.expected = Expected::Refused;
            self.name(&mut draft, &key, false)
        } else {
            self.own_name("session_key")
        };
        let key = match self.random.below(4) {
            0 => format!("agent:main:{key}"),
            _ => key,
        };
        draft.headers.push(("x-openclaw-session-key", key));
        draft.path = route.path.to_owned();
        if draft.path.contains("{name}") {
            let tools: Vec<&str> = NAMES.iter().copied().chain(["exec"]).collect();
            let tool = *self.random.pick(&tools);
            draft.path = draft.path.replace("{name}", tool);
        }
        self.more(&mut draft, route);
        if draft.named.is_empty() {
            let key = self.any("call");
            let key = self.name(&mut draft, &key, false);
            draft.headers.push(("idempotency-key", key));
        }
        draft.attempt()
    }

    /// Query, body and headers.
    fn more(&mut self, draft: &mut Draft, route: &Route) {
        if !route.bodies.is_empty() {
            let body = self.random.pick(&route.bodies);
            draft.body = Some(self.filled(draft, &body.template, body.kind, false));
        }
        if !route.queries.is_empty() && (draft.named.is_empty() || self.random.below(3) == 0) {
            let query = self.random.pick(&route.queries);
            let query = self.filled(draft, &query.template, query.kind, true);
            draft.path = format!("{}?{query}", draft.path);
        }
        if draft.named.is_empty() || self.random.below(4) == 0 {
            let headers: Vec<_> = HEADERS
                .iter()
                .filter(|(_, kind)| self.foreign.contains_key(kind))
                .collect();
            let (header, kind) = **self.random.pick(&headers);
            // A request has one session key, and an own session answers to it.
            let is_there = draft.headers.iter().any(|(name, _)| *name == header);
            // A repeated idempotency key belongs to one body; twins use them once more often than attempts.
            let is_of_a_body = header == "idempotency-key" && !draft.named.is_empty();
            if !is_there && !is_of_a_body {
                let id = self.picks.pick(&self.foreign[kind]).clone();
                let id = self.name(draft, &id, false);
                draft.headers.push((header, id));
            }
        }
    }

    fn filled(&mut self, draft: &mut Draft, template: &str, kind: &'static str, is_query: bool) -> String {
        if !template.contains("{any}") {
            return template.to_owned();
        }
        let id = self.any(kind);
        let id = self.name(draft, &id, is_query);
        template.replace("{any}", &id)
    }

    /// Mostly of the kind that fits; else of any kind.
    fn any(&mut self, kind: &'static str) -> String {
        let kinds: Vec<&'static str> = self.foreign.keys().copied().collect();
        let kind = if self.random.below(4) > 0 && self.foreign.contains_key(kind) {
            kind
        } else {
            *self.random.pick(&kinds)
        };
        self.picks.pick(&self.foreign[kind]).clone()
    }

    /// Spells a foreign name, and notes its replacement in the twin.
    fn name(&mut self, draft: &mut Draft, id: &str, is_escaped: bool) -> String {
        let mut spelling = spelled(id, &mut self.random);
        let mut twin = missing(&spelling, &self.victim.account);
        if is_escaped {
            // The same escapes in both.
            let seed = self.random.next();
            spelling = escaped(&spelling, &mut Random::new(seed));
            twin = escaped(&twin, &mut Random::new(seed));
        }
        draft.named.push((spelling.clone(), twin));
        spelling
    }

    fn own_name(&mut self, kind: &str) -> String {
        let ids = self.own.get(kind).unwrap_or_else(|| panic!("tenant.sql has no {kind}"));
        self.random.pick(ids).clone()
    }

    fn token(&mut self) -> String {
        if self.is_within {
            let role = *self
                .random
                .pick(&["person", "person", "person", "member", "publisher", "gateway"]);
            return self.attacker.keys[role].clone();
        }
        match self.random.below(11) {
            0 => String::new(),
            10 => self.attacker.keys["person"].clone(),
            place => self.attacker.keys[ROLES[[0, 0, 0, 0, 1, 1, 2, 3, 4][place - 1]]].clone(),
        }
    }
}
