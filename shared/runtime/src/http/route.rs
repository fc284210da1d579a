//! A route, declared once: method, path, handler, and description. The service's router and its OpenAPI document are
//! made of the same routes.

use axum::{
    Router,
    handler::Handler,
    http::Method,
    routing::{MethodFilter, MethodRouter, on},
};

use super::openapi::Operation;

pub struct Route<S> {
    pub method: Method,
    pub path: &'static str,
    /// The noun and the verb of the operation.
    pub(super) name: (&'static str, &'static str),
    /// The first sentence is the operation's summary.
    pub(super) about: String,
    pub(super) describe: Box<dyn Fn(&mut Operation<'_>) + Send + Sync>,
    handler: MethodRouter<S>,
}

impl<S: Clone + Send + Sync + 'static> Route<S> {
    /// `describe` declares the handler's parameters and responses.
    ///
    /// # Panics
    /// For a method that axum does not route.
    pub fn new<H: Handler<M, S>, M: 'static>(
        (method, path): (Method, &'static str),
        handler: H,
        name: (&'static str, &'static str),
        about: impl Into<String>,
        describe: impl Fn(&mut Operation<'_>) + Send + Sync + 'static,
    ) -> Route<S> {
        let filter = MethodFilter::try_from(method.clone()).expect("a method of HTTP");
        Route {
            method,
            path,
            name,
            about: about.into(),
            describe: Box::new(describe),
            handler: on(filter, handler),
        }
    }

    /// A router that serves these routes.
    pub fn router(routes: impl IntoIterator<Item = Route<S>>) -> Router<S> {
        let serve = |router: Router<S>, route: Route<S>| router.route(route.path, route.handler);
        routes.into_iter().fold(Router::new(), serve)
    }
}
