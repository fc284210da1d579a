//! Declaration of routes. A route is declared once, in the table at the head of its noun: method, path, need, handler and purpose.
//! The handler's parameters and answer supply the rest. Router, permission table ([`Permissions`]) and OpenAPI document are derived
//! from it.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json,
    extract::State,
    handler::Handler,
    http::{Method, StatusCode},
    response::NoContent,
};
use domain::KeyRole;
use runtime::http::openapi::Operation;
use schemars::JsonSchema;

use crate::{
    app::App,
    permission::{Need, permits},
};

/// A noun of the API: its name (the tag of its routes), its description, its routes.
pub struct Noun {
    pub name: &'static str,
    pub about: &'static str,
    pub routes: Vec<Route>,
}

pub struct Route {
    pub need: Need,
    pub http: runtime::http::Route<App>,
}

/// The scope of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// All accounts, or none.
    Operator,
    /// The account in the path.
    Account,
    /// The account of the caller's key.
    Current,
}

impl Scope {
    pub fn of(path: &str, need: Need) -> Scope {
        if need == Need::Operate {
            Scope::Operator
        } else if path.contains("{account}") {
            Scope::Account
        } else {
            Scope::Current
        }
    }
}

impl Route {
    pub fn new<H, M, P>(
        at: (Method, &'static str),
        need: Need,
        handler: H,
        (name, about): ((&'static str, &'static str), &str),
        refusals: &'static [u16],
    ) -> Route
    where
        H: Handler<M, App> + Documented<P>,
        M: 'static,
        P: 'static,
    {
        let about = format!("{about}\n\nFor: {}.", callers(need).join(", "));
        let describe = move |operation: &mut Operation<'_>| {
            H::document(operation);
            operation.refuses(refusals);
        };
        Route {
            need,
            http: runtime::http::Route::new(at, handler, name, about, describe),
        }
    }
}

/// Those who may call the route, from the permissions.
fn callers(need: Need) -> Vec<String> {
    if need == Need::Person {
        return vec!["a member's own keys".to_owned()];
    }
    let roles = KeyRole::ALL
        .iter()
        .filter(|role| permits(**role, need))
        .map(|role| format!("`{role}` keys"));
    std::iter::once("the operator".to_owned()).chain(roles).collect()
}

/// Declares a noun's routes: purpose, method, path, need, handler; and the refusals that its parameters do not imply.
macro_rules! routes {
    ($name:literal: $about:literal; $($(#[doc = $doc:literal])+ $method:ident $path:literal $need:ident => $handler:ident $(or $refusal:literal)*;)+) => {
        pub fn noun() -> $crate::route::Noun {
            use $crate::{permission::Need, route::{Noun, Route}};
            Noun {
                name: $name,
                about: $about,
                routes: vec![$(Route::new(
                    (axum::http::Method::$method, $path),
                    Need::$need,
                    $handler,
                    (($name, stringify!($handler)), concat!($($doc),+)),
                    &[$($refusal),*],
                )),+],
            }
        }
    };
}
pub(crate) use routes;

/// Need and scope of each route, by path.
#[derive(Clone, Debug)]
pub struct Permissions(Arc<HashMap<&'static str, Vec<Permission>>>);

#[derive(Clone, Debug)]
pub struct Permission {
    method: Method,
    pub need: Need,
    pub scope: Scope,
}

impl Permissions {
    pub fn of<'a>(routes: impl IntoIterator<Item = &'a Route>) -> Permissions {
        let mut permissions: HashMap<_, Vec<_>> = HashMap::new();
        for Route { need, http } in routes {
            permissions.entry(http.path).or_default().push(Permission {
                method: http.method.clone(),
                need: *need,
                scope: Scope::of(http.path, *need),
            });
        }
        Permissions(Arc::new(permissions))
    }

    /// `None`: the path does not have the method.
    pub fn find(&self, method: &Method, path: &str) -> Option<&Permission> {
        // The router answers HEAD as GET.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(path)?.iter().find(|known| known.method == method)
    }
}

/// A parameter or an answer of a handler, as the OpenAPI document describes it.
pub trait Described {
    fn describe(operation: &mut Operation<'_>);
}

/// A handler whose parameters and answer are [`Described`].
pub trait Documented<P> {
    fn document(operation: &mut Operation<'_>);
}

macro_rules! documented {
    ($($part:ident)+) => {
        impl<F, R, A, E, $($part),+> Documented<($($part,)+)> for F
        where
            F: Fn($($part),+) -> R,
            R: Future<Output = Result<A, E>>,
            A: Described,
            $($part: Described),+
        {
            fn document(operation: &mut Operation<'_>) {
                $($part::describe(operation);)+
                A::describe(operation);
            }
        }
    };
}
documented!(P1 P2);
documented!(P1 P2 P3);
documented!(P1 P2 P3 P4);
documented!(P1 P2 P3 P4 P5);

impl Described for State<App> {
    fn describe(_: &mut Operation<'_>) {}
}

impl<T: JsonSchema> Described for Json<T> {
    fn describe(operation: &mut Operation<'_>) {
        operation.answers::<T>(StatusCode::OK, "OK");
    }
}

impl Described for NoContent {
    fn describe(operation: &mut Operation<'_>) {
        operation.answers_nothing();
    }
}
