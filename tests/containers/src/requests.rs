//! What each container is: image, command, environment, files. The same as in `docker-compose.yml`, whose files it takes;
//! only what a test does not need is left out (volumes, limits). Postgres waits for its disk: services refuse one that does not.

use std::time::Duration;

use testcontainers::{
    ContainerRequest, GenericImage, ImageExt,
    core::{IntoContainerPort, WaitFor},
};

use crate::{Service, secrets::Secrets};

const LOGINS: &str = include_str!("../../../deploy/postgres/logins.sh");
const NATS: &str = include_str!("../../../deploy/nats/nats.conf");
const NATS_USERS: &str = include_str!("../../../schemas/nats-users.conf");

pub(crate) const NATS_PORT: u16 = 4222;
const POSTGRES_PORT: u16 = 5432;
const DEMO_AGENT_PORT: u16 = 8090;

/// Far longer than a start takes, for a machine that is busy with others.
const START_LIMIT: Duration = Duration::from_secs(180);
/// Of a start, and of one connection in it. An engine would start again a service that gave up; these are looked after by
/// nobody, and on a machine that has no time even a login takes seconds.
const PATIENCE: [(&str, &str); 2] = [
    ("SIGNALBOX__PROCESS__DEPENDENCIES_TIMEOUT_MS", "180000"),
    ("SIGNALBOX__DATABASE__ACQUIRE_TIMEOUT_MS", "20000"),
];
/// The image's own user.
const NOBODY: &str = "65532:65532";

/// Images by name, and what the containers of one installation share.
#[derive(Clone)]
pub(crate) struct Installation {
    /// Of its network, and before the name of each container.
    pub(crate) prefix: String,
    pub(crate) secrets: Secrets,
    pub(crate) postgres_image: String,
    pub(crate) nats_image: String,
    /// Where delivery sends its calls; the demo agent when there is none.
    pub(crate) provider_url: Option<String>,
    /// Further variables of all services.
    pub(crate) environment: Vec<(String, String)>,
}

impl Installation {
    pub(crate) fn container(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    pub(crate) fn postgres(&self) -> ContainerRequest<GenericImage> {
        let password = &self.secrets.password;
        let mut request = image(&self.postgres_image)
            // While the database is being made it listens on its socket only, and says so elsewhere.
            .with_wait_for(WaitFor::message_on_stderr(
                "database system is ready to accept connections",
            ))
            .with_exposed_port(POSTGRES_PORT.tcp())
            .with_cmd(["postgres", "-c", "max_connections=300"])
            .with_user("postgres")
            .with_env_var("POSTGRES_USER", "postgres")
            .with_env_var("POSTGRES_DB", "signalbox")
            .with_env_var("POSTGRES_PASSWORD", password)
            .with_env_var("SIGNALBOX_DATABASE_OWNER", password)
            .with_copy_to("/docker-entrypoint-initdb.d/10-logins.sh", LOGINS.as_bytes().to_vec());
        for service in Service::ALL {
            let name = format!("SIGNALBOX_DATABASE_{}", service.identifier().to_uppercase());
            request = request.with_env_var(name, password);
        }
        self.placed(request, "postgres")
    }

    pub(crate) fn nats(&self) -> ContainerRequest<GenericImage> {
        // Its own folder is a volume where it is deployed; here it goes with the container.
        let settings = NATS.replace("store_dir: /data", "store_dir: /tmp/nats");
        let mut request = image(&self.nats_image)
            .with_wait_for(WaitFor::message_on_stderr("Server is ready"))
            .with_exposed_port(NATS_PORT.tcp())
            .with_cmd(["nats-server", "--config", "/etc/signalbox/nats.conf"])
            .with_user("1000:1000")
            .with_copy_to("/etc/signalbox/nats.conf", settings.into_bytes())
            .with_copy_to("/etc/signalbox/nats-users.conf", NATS_USERS.as_bytes().to_vec());
        let services = Service::ALL.map(Service::identifier);
        for user in services.iter().map(String::as_str).chain(["publisher", "operator"]) {
            let name = format!("SIGNALBOX_NATS_{}", user.to_uppercase());
            request = request.with_env_var(name, &self.secrets.password);
        }
        self.placed(request, "nats")
    }

    pub(crate) fn demo_agent(&self, signalbox: &str) -> ContainerRequest<GenericImage> {
        let listen = format!("0.0.0.0:{DEMO_AGENT_PORT}");
        let request = image(signalbox)
            .with_wait_for(WaitFor::message_on_stdout("the demo agent answers"))
            .with_cmd(["demo-agent".to_owned(), "--listen".to_owned(), listen]);
        self.placed(confined(request), "demo-agent")
    }

    /// As the login that owns the tables and as the operator, which no service is. It runs and ends.
    pub(crate) fn migrate(&self, signalbox: &str, name: &str) -> ContainerRequest<GenericImage> {
        let request = image(signalbox).with_cmd(["migrate"]);
        let request = self.with_stores(confined(request), "signalbox", "operator");
        self.placed(request, name)
    }

    pub(crate) fn service(&self, signalbox: &str, service: Service, name: &str) -> ContainerRequest<GenericImage> {
        let identifier = service.identifier();
        let request = image(signalbox)
            .with_exposed_port(service.port().tcp())
            .with_cmd(["serve", service.name()])
            .with_env_var(
                format!("SIGNALBOX__{}__LISTEN", identifier.to_uppercase()),
                format!("0.0.0.0:{}", service.port()),
            );
        let mut request = self.with_stores(confined(request), &format!("login_{identifier}"), service.name());
        match service {
            Service::Delivery => {
                let demo_agent = || {
                    let host = self.container("demo-agent");
                    format!("http://{host}:{DEMO_AGENT_PORT}/v1/responses")
                };
                let url = self.provider_url.clone().unwrap_or_else(demo_agent);
                request = request
                    .with_env_var("SIGNALBOX__PROVIDERS__DEFAULT__KIND", "openresponses")
                    .with_env_var("SIGNALBOX__PROVIDERS__DEFAULT__MODEL", "demo")
                    .with_env_var("SIGNALBOX__PROVIDERS__DEFAULT__URL", url);
            }
            Service::Orchestrator => {
                request = request.with_env_var("SIGNALBOX_OPERATOR_TOKEN", &self.secrets.operator_token);
            }
            Service::Resolver | Service::ToolGateway => {}
        }
        for (name, value) in &self.environment {
            request = request.with_env_var(name, value);
        }
        self.placed(request, name)
    }

    fn with_stores(
        &self,
        request: ContainerRequest<GenericImage>,
        login: &str,
        user: &str,
    ) -> ContainerRequest<GenericImage> {
        let (password, postgres, nats) = (
            &self.secrets.password,
            self.container("postgres"),
            self.container("nats"),
        );
        let request = PATIENCE
            .into_iter()
            .fold(request, |request, (name, value)| request.with_env_var(name, value));
        request
            .with_env_var("SIGNALBOX__ENVELOPE__KEYS__K1", &self.secrets.envelope_key)
            .with_env_var("SIGNALBOX__TELEMETRY__LOG_FORMAT", "json")
            .with_env_var(
                "DATABASE_URL",
                format!("postgres://{login}:{password}@{postgres}:{POSTGRES_PORT}/signalbox"),
            )
            .with_env_var("NATS_URL", format!("nats://{user}:{password}@{nats}:{NATS_PORT}"))
    }

    /// In the network of this installation, under a name that the others find it by.
    fn placed(&self, request: ContainerRequest<GenericImage>, name: &str) -> ContainerRequest<GenericImage> {
        request
            .with_network(&self.prefix)
            .with_container_name(self.container(name))
            .with_startup_timeout(START_LIMIT)
    }
}

/// As it is deployed.
fn confined(request: impl ImageExt<GenericImage>) -> ContainerRequest<GenericImage> {
    request
        .with_user(NOBODY)
        .with_readonly_rootfs(true)
        .with_cap_drop("ALL")
        .with_security_opt("no-new-privileges:true")
}

fn image(reference: &str) -> GenericImage {
    // A colon before the last slash is a registry's port.
    match reference.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => GenericImage::new(name, tag),
        Some(_) | None => GenericImage::new(reference, "latest"),
    }
}
