//! The definition of each container: image, command, environment, files, as in `docker-compose.yml` and with its files, without
//! what a test does not need (volumes, limits). Postgres waits for its disk: services refuse a server that does not.

use std::time::Duration;

use testcontainers::{
    ContainerRequest, CopyTargetOptions, GenericImage, ImageExt,
    core::{CmdWaitFor, ExecCommand, IntoContainerPort, WaitFor},
};

use crate::{Service, secrets::Secrets};

const LOGINS: &str = include_str!("../../../deploy/postgres/logins.sh");
const NATS: &str = include_str!("../../../deploy/nats/nats.conf");
pub(crate) const NATS_USERS: &str = include_str!("../../../schemas/nats-users.conf");
const COMPOSE: &str = include_str!("../../../docker-compose.yml");

pub(crate) const NATS_PORT: u16 = 4222;
/// Keys of the auth callout, public and secret: the same in every test.
const CALLOUT_ISSUER: (&str, &str) = (
    "ACFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVYYOU",
    "SAAACAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAKM5I",
);
const CALLOUT_XKEY: (&str, &str) = (
    "XDHI2OWRZS3DH3D3ODAXQFFFY5XM2AUWQUCQ2NCHIW5ALBYOLB6VSWAL",
    "SXAAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAT5QQ",
);
const POSTGRES_PORT: u16 = 5432;
const DEMO_AGENT_PORT: u16 = 8090;

/// Far longer than a start takes, for a busy machine.
const START_LIMIT: Duration = Duration::from_secs(180);
/// Limits of a service's start, and of one connection attempt in it. An engine would restart a failed service; here nothing does,
/// and on a slow machine even a login takes seconds.
const PATIENCE: [(&str, &str); 2] = [
    ("SIGNALBOX__PROCESS__DEPENDENCIES_TIMEOUT_MS", "180000"),
    ("SIGNALBOX__DATABASE__ACQUIRE_TIMEOUT_MS", "20000"),
];
/// The image's own user.
const NOBODY: &str = "65532:65532";

/// The names of images, and the values that the containers of one installation share.
#[derive(Clone)]
pub(crate) struct Installation {
    /// The name of its network, and the prefix of each container's name.
    pub(crate) prefix: String,
    pub(crate) secrets: Secrets,
    pub(crate) postgres_image: String,
    pub(crate) nats_image: String,
    /// The server's users, as `schemas/nats-users.conf` has them.
    pub(crate) nats_users: String,
    /// The URL that delivery calls; without one, the demo agent.
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
            // While Postgres creates the database, it listens on its socket only and logs this line on standard output.
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
        // Its folder is a volume in a deployment; here it is removed with the container.
        let settings = NATS.replace("store_dir: /data", "store_dir: /tmp/nats");
        let mut request = image(&self.nats_image)
            .with_wait_for(WaitFor::message_on_stderr("Server is ready"))
            .with_exposed_port(NATS_PORT.tcp())
            .with_cmd(["sh".to_owned(), "-c".to_owned(), nats_command()])
            .with_user("1000:1000")
            .with_copy_to("/etc/signalbox/nats.conf", settings.into_bytes())
            .with_copy_to(
                CopyTargetOptions::new("/etc/signalbox/nats-users.conf").with_mode(0o666),
                self.nats_users.clone().into_bytes(),
            );
        let services = Service::ALL.map(Service::identifier);
        for user in services.iter().map(String::as_str).chain(["publisher", "operator"]) {
            let name = format!("SIGNALBOX_NATS_{}", user.to_uppercase());
            request = request.with_env_var(name, &self.secrets.password);
        }
        let request = request
            .with_env_var("SIGNALBOX_NATS_CALLOUT_ISSUER", CALLOUT_ISSUER.0)
            .with_env_var("SIGNALBOX_NATS_CALLOUT_XKEY", CALLOUT_XKEY.0);
        self.placed(request, "nats")
    }

    pub(crate) fn demo_agent(&self, signalbox: &str) -> ContainerRequest<GenericImage> {
        let listen = format!("0.0.0.0:{DEMO_AGENT_PORT}");
        let request = image(signalbox)
            .with_wait_for(WaitFor::message_on_stdout("the demo agent answers"))
            .with_cmd(["demo-agent".to_owned(), "--listen".to_owned(), listen]);
        self.placed(confined(request), "demo-agent")
    }

    /// Runs as the login that owns the tables and as NATS user `operator`, which no service uses, and exits.
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
                request = request
                    .with_env_var("SIGNALBOX_OPERATOR_TOKEN", &self.secrets.operator_token)
                    .with_env_var("SIGNALBOX__ORCHESTRATOR__CALLOUT_ISSUER_SEED", CALLOUT_ISSUER.1)
                    .with_env_var("SIGNALBOX__ORCHESTRATOR__CALLOUT_XKEY_SEED", CALLOUT_XKEY.1);
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

    /// In the network of this installation, under the name that other containers use.
    fn placed(&self, request: ContainerRequest<GenericImage>, name: &str) -> ContainerRequest<GenericImage> {
        request
            .with_network(&self.prefix)
            .with_container_name(self.container(name))
            .with_startup_timeout(START_LIMIT)
    }
}

/// Restarts the server whenever it is stopped in order. The store is in a folder with the account's name: the lines of
/// `docker-compose.yml` rename it, and for users without accounts it is renamed back.
fn nats_command() -> String {
    let lines = COMPOSE.split_once("chown 1000:1000 /data\n").map(|(_, rest)| rest);
    let lines = lines
        .and_then(|rest| rest.split_once("    volumes:"))
        .map(|(lines, _)| lines);
    let renamed = lines.expect("docker-compose.yml renames what NATS has stored");
    let renamed = renamed.replace("$$", "$").replace("/data", "/tmp/nats");
    format!(
        r#"store() (
    if grep -q ^accounts /etc/signalbox/nats-users.conf; then
        {renamed}
    else
        cd /tmp/nats/jetstream 2>/dev/null || exit 0
        if [ -d SIGNALBOX ]; then mv SIGNALBOX '$G'; fi
    fi
)
while store && nats-server --config /etc/signalbox/nats.conf --pid /tmp/nats.pid; do :; done"#
    )
}

/// In the container of NATS.
pub(crate) fn replace_nats_users(users: &str) -> ExecCommand {
    let script = r#"printf %s "$1" >/etc/signalbox/nats-users.conf; kill -INT "$(cat /tmp/nats.pid)""#;
    ExecCommand::new(["sh", "-ec", script, "sh", users]).with_cmd_ready_condition(CmdWaitFor::exit_code(0))
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
