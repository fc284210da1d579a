//! The four services and their differences in containers.

/// A service, by the name that `signalbox serve` knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Service {
    Resolver,
    Delivery,
    ToolGateway,
    Orchestrator,
}

impl Service {
    pub const ALL: [Service; 4] = [
        Service::Resolver,
        Service::Delivery,
        Service::ToolGateway,
        Service::Orchestrator,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Service::Resolver => "resolver",
            Service::Delivery => "delivery",
            Service::ToolGateway => "tool-gateway",
            Service::Orchestrator => "orchestrator",
        }
    }

    /// Where it listens inside, on all addresses.
    pub(crate) fn port(self) -> u16 {
        match self {
            Service::Orchestrator => 8080,
            Service::ToolGateway => 8081,
            Service::Resolver => 8082,
            Service::Delivery => 8083,
        }
    }

    /// Of its section in the settings, its login of Postgres and its password of NATS.
    pub(crate) fn identifier(self) -> String {
        self.name().replace('-', "_")
    }
}
