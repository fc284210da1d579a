//! One attempt: a request with a foreign name, and its twin, the same request with an unknown name.

use super::{names, routes::Route};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Door {
    /// The orchestrator's API.
    Api,
    /// The tool-gateway's `/agent/*`.
    Agent,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Request {
    pub(crate) door: Door,
    pub(crate) method: &'static str,
    pub(crate) path: String,
    /// Empty: no body.
    pub(crate) token: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<String>,
}

/// The expected answer, beyond equality with the twin's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    /// The request reads a foreign thing: it is not found.
    Refused,
    /// The request names a thing of its own and a foreign one beside it.
    Same,
}

#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// The route or the tool, for counting and for messages of failures.
    pub(crate) row: String,
    /// The index of the row among all rows.
    pub(crate) place: usize,
    pub(crate) request: Request,
    pub(crate) expected: Expected,
    /// The foreign names in the request, as written, each with its replacement in the twin.
    pub(crate) named: Vec<(String, String)>,
}

impl Attempt {
    pub(crate) fn twin(&self) -> Request {
        let mut twin = self.request.clone();
        twin.path = names::replaced(&twin.path, &self.named);
        twin.body = twin.body.map(|body| names::replaced(&body, &self.named));
        for (_, value) in &mut twin.headers {
            *value = names::replaced(value, &self.named);
        }
        twin
    }
}

/// An attempt under construction.
pub(super) struct Draft {
    row: String,
    place: usize,
    door: Door,
    method: &'static str,
    pub(super) path: String,
    pub(super) token: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Option<String>,
    pub(super) expected: Expected,
    pub(super) named: Vec<(String, String)>,
}

impl Draft {
    pub(super) fn new(route: &Route, place: usize, door: Door) -> Draft {
        Draft {
            place,
            row: format!("{} {}", route.method, route.path),
            door,
            method: route.method,
            path: String::new(),
            token: String::new(),
            headers: Vec::new(),
            body: None,
            expected: Expected::Same,
            named: Vec::new(),
        }
    }

    pub(super) fn attempt(mut self) -> Attempt {
        // The longest first: one name may be part of another.
        self.named.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Attempt {
            row: self.row,
            place: self.place,
            request: Request {
                door: self.door,
                method: self.method,
                path: self.path,
                token: self.token,
                headers: self.headers,
                body: self.body,
            },
            expected: self.expected,
            named: self.named,
        }
    }
}
