//! The command line: commands, options and `--help` texts. [`crate::commands`] runs them.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    str::FromStr,
};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, builder::Resettable, error::ErrorKind};
use domain::{
    BranchId, BranchState, QuestionState, QueueMode, ReplayId, ResetInFlight, ResetQueue, SessionId, StopThen,
    Timestamp, TurnId, Verdict,
};
use reqwest::Url;

use crate::client::AccessArgs;

const EXAMPLES: &str = "\
Examples:
  signalbox up --sample examples/notifications.ndjson   everything on this machine, with something to see
  signalbox notify demo DEMO-7 coder 'Tests fail' --wait   ask an agent, from another terminal
  signalbox sessions --task DEMO-7                      what came of it
  signalbox stop SESSION                                end its turn in progress; `resume` continues with what waits
  signalbox reset SESSION --reason 'it is confused'     begin anew, without what its agent was told so far
  signalbox pause --task DEMO-7                         start no turn on it until `signalbox resume --task DEMO-7`
  signalbox queue SESSION                               what waits in it and why; `queue withdraw SESSION ID` and others
  signalbox questions --mine                            what agents ask; `questions answer ID --text 'Use Postgres'`
  signalbox log SESSION                                 what its agent got and did; `diff TURN TURN` compares two turns
  signalbox audit isolation --task DEMO-7               is every byte of its prompts its own?
  signalbox dead list --account demo                    what could not be processed, and why
  signalbox doctor                                      is this installation in order?

Settings: the file signalbox.toml, then the environment (SIGNALBOX__SECTION__KEY, DATABASE_URL, NATS_URL).
Exit codes: 0 done, 1 failed, 2 the command line or a setting was refused.";

/// One live session per (task, agent), one turn at a time in it, and everything on record.
#[derive(Parser, Debug)]
#[command(name = "signalbox", version, about, after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Cli {
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads the command line; prints a refusal or the help, and ends the process.
    pub(crate) fn read() -> Cli {
        Cli::try_parse().unwrap_or_else(|error| match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
            // The usage line of a refusal lists each option that has a value, as if the option were required. A second reading
            // without the environment lists only what is required and what was typed.
            _ => {
                let typed = without_environment(Cli::command()).try_get_matches();
                typed.err().unwrap_or(error).exit()
            }
        })
    }
}

fn without_environment(command: clap::Command) -> clap::Command {
    command
        .mut_args(|argument| argument.env(Resettable::Reset))
        .mut_subcommands(without_environment)
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run all four services in this process, with their own NATS server, Postgres and demo agent
    Up(UpArgs),
    /// Run one service in its own process
    Serve(ServeArgs),
    /// Migrate the database's schema and the streams
    Migrate,
    /// Check the health of this machine's services: code 0 when all services that listen here are ready
    Health(HealthArgs),
    /// Check the settings, Postgres, NATS, the providers and the ports, and say how to fix what is wrong
    Doctor(DoctorArgs),
    /// Create the demo account, publish a file of notifications and show their outcomes
    Sample(SampleArgs),
    /// Run the scripted demo agent by itself, for use without a model
    DemoAgent(DemoAgentArgs),
    /// Send an agent a notification
    Notify(NotifyArgs),
    /// Send an agent a notification that ends its turn in progress and goes before all that wait
    Steer(ItemArgs),
    /// Show sessions, or one of them
    Sessions(SessionsArgs),
    /// Stop the turn in progress of a session
    Stop(StopArgs),
    /// End a session's generation and open the next one, which knows nothing of it; a turn in progress is stopped first
    Reset(ResetArgs),
    /// Pause a session, an agent, a task or the whole account: no turn starts there
    Pause(PauseArgs),
    /// Show what is paused, by whom, why and until when
    Holds(ListArgs),
    /// Release what was paused, and resume a session whose turn was stopped
    Resume(ResumeArgs),
    /// Cancel a task: its turns in progress end, and all that waits is cancelled
    Cancel(CancelArgs),
    /// Give a task to another agent: its turn in progress ends, and what waits for the first waits for the second
    Handover(HandoverArgs),
    /// Show what waits in a session and why, and change it
    Queue(QueueArgs),
    /// Say what moves a task next
    Next(NextArgs),
    /// Show what is said of a task to whoever joins its work, and write it
    Context(ContextArgs),
    /// Show the branches of a task: parts of a turn's work that other sessions do at the same time
    Branches(BranchesArgs),
    /// Show what agents ask, and answer it: questions, and plans that await approval
    Questions(QuestionsArgs),
    /// Show the people of an account; add one with a sign-in link, or remove one
    Members(MembersArgs),
    /// Take the lease of a turn from a replica that gets no further, so that another one carries the turn on
    Release(ReleaseArgs),
    /// Show the turns of sessions, or one turn in full
    Turns(TurnsArgs),
    /// Show what a session's agent got and did, over all generations: in segments that begin where the agent's memory does
    Log(LogArgs),
    /// Show what differs between two turns
    Diff(DiffArgs),
    /// Run a turn again without effects: its tool calls are answered from the record
    Replay(ReplayArgs),
    /// Show the replays of a turn, or one of them
    Replays(ReplaysArgs),
    /// Hold prompts against the rows that they are of
    Audit(AuditArgs),
    /// Show notifications, or one of them
    Notifications(NotificationsArgs),
    /// Say why a notification went where it went: step by step
    Route(RouteArgs),
    /// Show one piece of mail that you wrote or got, with its receipt
    Mail(MailArgs),
    /// Show and redrive messages that could not be processed
    Dead(DeadArgs),
    /// Check a provider's server and the settings that fit it
    Provider(ProviderArgs),
    /// Show which providers take no calls at the moment, and why; try one at once
    Providers(ProvidersArgs),
    /// Print the users of the NATS server and what each may do, for its configuration
    NatsUsers,
    /// Make the keys with which NATS asks who holds an API key, for its environment and the orchestrator's
    NatsKeys,
    /// Write the interface descriptions (JSON Schemas, AsyncAPI, OpenAPI, SQL), or check that it is current
    Schemas(SchemasArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Without URLs, a NATS server and a Postgres of its own are started below the data directory, on free ports. Provider
`default` is a scripted demo agent unless SIGNALBOX__PROVIDERS__DEFAULT__URL (or providers.default.url in signalbox.toml)
is set. Set …__SERVER with it: openai, vllm, ollama, lmstudio, openclaw, or generic (the default) for a server that knows
session keys; and …__MODEL, which is `default` otherwise. There will be an account `demo` with the agents `coder` and
`reviewer`. Once all is ready, {data-dir}/endpoints.json says where everything is; the log is in
{data-dir}/signalbox.log. Ctrl-C ends it and everything it has started.")]
pub(crate) struct UpArgs {
    /// Data directory; only one `up` can use it at a time
    #[arg(long, value_name = "DIR", default_value = ".data")]
    pub(crate) data_dir: PathBuf,
    /// Address of the HTTP API; port 0 picks a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) http: Option<SocketAddr>,
    /// Use this NATS server (2.12 or newer, with JetStream) instead of starting one
    #[arg(long, value_name = "URL")]
    pub(crate) nats_url: Option<String>,
    /// Use this Postgres (15 or newer) instead of starting one; its schema is migrated
    #[arg(long, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// Publish the notifications of this file: a JSON object a line, with `account`, `task` and a notification's fields.
    /// A line waits until the earlier ones of its task have an outcome
    #[arg(long, value_name = "FILE")]
    pub(crate) sample: Option<PathBuf>,
    /// End once everything in the sample has an outcome: with code 0, or 1 if something failed
    #[arg(long)]
    pub(crate) exit_when_idle: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Service {
    Resolver,
    Delivery,
    ToolGateway,
    Orchestrator,
}

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// The service to run
    pub(crate) service: Service,
}

#[derive(Args, Debug)]
pub(crate) struct HealthArgs {
    /// Read this page instead of the services' pages at the addresses of the settings
    pub(crate) url: Option<Url>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Needs an operator's token (SIGNALBOX_OPERATOR_TOKEN) and the URL of a NATS user who may publish (NATS_URL).")]
pub(crate) struct SampleArgs {
    /// A JSON object a line, with `account`, `task` and a notification's fields
    pub(crate) file: PathBuf,
    /// Fail when the sample makes no progress for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) stuck_after_s: u64,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

#[derive(Args, Debug)]
pub(crate) struct DemoAgentArgs {
    /// Address of the agent's HTTP API; port 0 picks a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8090", value_parser = address)]
    pub(crate) listen: SocketAddr,
}

/// `127.0.0.1:8080`, or `localhost:8080`.
fn address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| "expected an address and a port, such as 127.0.0.1:8080".to_owned())
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Data directory of a running `up`, checked when the settings name no servers
    #[arg(long, value_name = "DIR", default_value = ".data")]
    pub(crate) data_dir: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct NotifyArgs {
    #[command(flatten)]
    pub(crate) item: ItemArgs,
    /// How a busy session takes the notification [default: followup]
    ///
    /// followup: the notification waits, and has a turn of its own
    /// collect: the notification waits, and shares one turn with the `collect` notifications next to it in the queue
    /// steer: the turn in progress ends, and the notification goes before all that wait
    /// inject: the turn in progress gets the notification with the next results of its tools
    #[arg(long, value_name = "MODE", verbatim_doc_comment, value_parser = ["followup", "collect", "steer", "inject"])]
    pub(crate) queue_mode: Option<String>,
}

/// A notification without its queue mode.
#[derive(Args, Debug)]
pub(crate) struct ItemArgs {
    /// The account's id
    pub(crate) account: String,
    /// The task's id, or `-` for none
    pub(crate) task: String,
    /// The agent's slug or id
    pub(crate) agent: String,
    /// The notification's body; `-` reads it from standard input
    pub(crate) body: String,
    /// The idempotency key: the same notification again does nothing, and another one with its id is refused
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// The notification's title
    #[arg(long)]
    pub(crate) title: Option<String>,
    /// The notification's type, a word that the agent is shown [default: notification]
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) kind: Option<String>,
    /// Wait for the outcome and print it; code 1 unless it was delivered
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 120, requires = "wait", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// The account that a command is about, and the way to its API.
#[derive(Args, Debug)]
pub(crate) struct AccountArgs {
    /// The account's id
    #[arg(long, default_value = "demo")]
    pub(crate) account: String,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// Options of every list.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Items at most, up to 10,000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) limit: u16,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SessionsArgs {
    /// One session's id
    #[arg(value_parser = session_id)]
    pub(crate) id: Option<String>,
    /// Only sessions of this task
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// Only those of this agent (slug or id)
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// Only open sessions
    #[arg(long)]
    pub(crate) active: bool,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Reads and prints all pages of the log. With --json, each page is a JSON value of its own.")]
pub(crate) struct LogArgs {
    /// The session's id
    #[arg(value_parser = session_id)]
    pub(crate) session: String,
    /// Only this generation
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) generation: Option<u32>,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The turn before
    #[arg(value_parser = turn_id)]
    pub(crate) before: TurnId,
    /// The turn after
    #[arg(value_parser = turn_id)]
    pub(crate) after: TurnId,
    /// Show the texts that differ, too
    #[arg(long)]
    pub(crate) text: bool,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// The turn to run again; it has ended
    #[arg(value_parser = turn_id)]
    pub(crate) turn: TurnId,
    /// The provider to ask, in place of the turn's
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Option<String>,
    /// Build the instructions again from the template of this version. The server has one version, its own; the refusal of
    /// another version names it
    #[arg(long, value_name = "VERSION")]
    pub(crate) profile_version: Option<String>,
    /// Build the instructions again, with the text of this file as the agent's role, up to 16 KiB; `-` reads standard
    /// input
    #[arg(long, value_name = "FILE")]
    pub(crate) role: Option<PathBuf>,
    /// Send the text of this file, up to 192 KiB, as the instructions; `-` reads standard input. Excludes --role and
    /// --profile-version
    #[arg(long, value_name = "FILE", conflicts_with_all = ["role", "profile_version"])]
    pub(crate) instructions: Option<PathBuf>,
    /// Wait for the outcome, and show what differs from the turn
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 120, requires = "wait", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ReplaysArgs {
    #[command(flatten)]
    pub(crate) filter: ReplaysFilter,
    #[command(subcommand)]
    pub(crate) command: Option<ReplaysCommand>,
}

#[derive(Args, Debug)]
pub(crate) struct ReplaysFilter {
    /// The turn that was run again
    #[arg(required = true, value_parser = turn_id)]
    pub(crate) turn: Option<TurnId>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ReplaysCommand {
    /// List the replays of a turn, newest first
    List(ReplaysFilter),
    /// Show one: its state and, when it is over, its outcome and what differs from the turn
    Show(ReplayShowArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ReplayShowArgs {
    /// The replay's id
    #[arg(value_parser = replay_id)]
    pub(crate) id: ReplayId,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    pub(crate) command: AuditCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum AuditCommand {
    /// Prove from rows that every byte of every prompt is of its own task: code 0 if so, or by a policy of the account; 1 if a part is a
    /// violation
    Isolation(IsolationArgs),
}

#[derive(Args, Debug)]
pub(crate) struct IsolationArgs {
    #[command(flatten)]
    pub(crate) scope: AuditScopeArgs,
    /// Only turns that began at this time or later, as in 2026-01-31T18:00:00Z (over HTTP: `from`)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) since: Option<Timestamp>,
    /// Only turns that began before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) until: Option<Timestamp>,
    /// Code 1 also if a part cannot be proven
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

/// What is audited: one of these, or the whole account.
#[derive(Args, Debug, Default)]
#[group(multiple = false)]
pub(crate) struct AuditScopeArgs {
    /// Only turns about this task; excludes --session and --turn
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// Only turns of this generation of a session; excludes --task and --turn
    #[arg(long, value_name = "ID", value_parser = session_id)]
    pub(crate) session: Option<String>,
    /// Only this turn; excludes --task and --session
    #[arg(long, value_name = "ID", value_parser = turn_id)]
    pub(crate) turn: Option<TurnId>,
}

#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    /// The session's id
    #[arg(value_parser = session_id)]
    pub(crate) session: String,
    /// Only this turn; if it is not in progress, nothing is stopped
    #[arg(long, value_name = "ID", value_parser = turn_id)]
    pub(crate) turn: Option<TurnId>,
    /// What happens to the notifications that wait behind it: `hold` keeps them until `resume`, or until a person sends
    /// another one
    #[arg(long, value_name = "hold|continue", default_value_t = StopThen::Hold)]
    pub(crate) then: StopThen,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Messages that the agent posted to the task's thread stay in the thread, and can be shown to the next generation.")]
pub(crate) struct ResetArgs {
    /// The session's id
    #[arg(value_parser = session_id)]
    pub(crate) session: String,
    /// Why, for the session's log
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// What happens to the notifications that wait: `keep` moves them to the next generation
    #[arg(long, value_name = "keep|cancel", default_value_t = ResetQueue::Keep)]
    pub(crate) queue: ResetQueue,
    /// What happens to the notifications of a turn in progress: `requeue` puts them first in the next generation, whose agent is told
    /// that a turn on them was stopped
    #[arg(long, value_name = "cancel|requeue", default_value_t = ResetInFlight::Cancel)]
    pub(crate) in_flight: ResetInFlight,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

/// What a hold covers: one of these.
#[derive(Args, Debug, Default)]
#[group(required = true, multiple = false)]
pub(crate) struct ScopeArgs {
    /// The session's id
    #[arg(value_parser = session_id)]
    pub(crate) session: Option<String>,
    /// A task, with all of its sessions
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// An agent (slug or id), with all of its sessions
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// The whole account
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    pub(crate) scope: ScopeArgs,
    /// Why, for those who find it paused
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// When it ends by itself, as in 2026-01-31T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) until: Option<Timestamp>,
    /// End the turns in progress too, and cancel their notifications; without it they go on to their end
    #[arg(long)]
    pub(crate) stop: bool,
    /// Only say what it would affect
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) scope: ScopeArgs,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// The session's id
    #[arg(value_parser = session_id)]
    pub(crate) session: String,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CancelArgs {
    /// The task's id
    pub(crate) task: String,
    /// Why, for the task's history
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// Only say what would end
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct HandoverArgs {
    /// The task's id
    pub(crate) task: String,
    /// The agent that has it, by id or slug
    pub(crate) from: String,
    /// The agent that gets it
    pub(crate) to: String,
    /// Only say what would follow
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ContextArgs {
    /// The task's id
    pub(crate) task: String,
    /// Write the text of this file as the next version; `-` reads standard input. A text over 64 KiB is refused; of a
    /// shorter text the first 10,000 characters are kept
    #[arg(long, value_name = "FILE")]
    pub(crate) set: Option<PathBuf>,
    /// Write only if this is the newest version; 0: only if there is none
    #[arg(long, value_name = "N", requires = "set", value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) if_version: Option<i32>,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct QueueArgs {
    /// The session's id
    #[arg(required = true, value_parser = session_id)]
    pub(crate) session: Option<String>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
    #[command(subcommand)]
    pub(crate) command: Option<QueueCommand>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum QueueCommand {
    /// Change the text, title or mode of a waiting notification
    Edit(QueueEditArgs),
    /// Withdraw a waiting notification: it is cancelled
    Withdraw(QueueItemArgs),
    /// Put a waiting notification next, behind the steers that wait
    Promote(QueueItemArgs),
    /// Put waiting notifications first, in this order; the others follow as they were
    Order(QueueOrderArgs),
    /// Make a waiting notification a steer: it ends the turn in progress and goes first
    Steer(QueueTurnArgs),
    /// Give a waiting notification to the turn in progress, with the next results of its tools
    Inject(QueueTurnArgs),
}

#[derive(Args, Debug)]
pub(crate) struct QueueItemArgs {
    /// The session's id
    #[arg(value_parser = session_id)]
    pub(crate) session: String,
    /// The notification's id
    pub(crate) notification: String,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

/// A time by RFC 3339.
fn moment(text: &str) -> Result<Timestamp, String> {
    let read = serde_json::from_value(text.into());
    read.map_err(|_| "expected a time such as 2026-01-31T18:00:00Z".to_owned())
}

/// A UUID. The server answers any other text with a 404 without detail, so the text is refused here, with the command that lists
/// the ids: often the text is the id of a task.
fn id<T: FromStr>(text: &str, lists: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("not a UUID: list {lists}"))
}

/// As text, as it stands in a path.
fn session_id(text: &str) -> Result<String, String> {
    id(text, "sessions with `signalbox sessions --task TASK`").map(|id: SessionId| id.to_string())
}

/// As text, as it stands in a path.
fn branch_id(text: &str) -> Result<String, String> {
    id(text, "branches with `signalbox branches TASK`").map(|id: BranchId| id.to_string())
}

fn turn_id(text: &str) -> Result<TurnId, String> {
    id(text, "turns with `signalbox turns --task TASK`")
}

fn replay_id(text: &str) -> Result<ReplayId, String> {
    id(text, "replays with `signalbox replays TURN`")
}

#[derive(Args, Debug)]
pub(crate) struct QueueEditArgs {
    #[command(flatten)]
    pub(crate) item: QueueItemArgs,
    /// The new text
    #[arg(long, required_unless_present_any = ["title", "mode"])]
    pub(crate) body: Option<String>,
    /// The new title
    #[arg(long)]
    pub(crate) title: Option<String>,
    /// The new queue mode: `signalbox notify --help` explains the modes
    #[arg(long, value_name = "followup|collect|steer|inject")]
    pub(crate) mode: Option<QueueMode>,
    /// Only if it still has this revision [default: the present one]
    #[arg(long)]
    pub(crate) revision: Option<i32>,
}

#[derive(Args, Debug)]
pub(crate) struct QueueOrderArgs {
    /// The session's id
    #[arg(value_parser = session_id)]
    pub(crate) session: String,
    /// The notifications' ids
    #[arg(required = true)]
    pub(crate) notifications: Vec<String>,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct QueueTurnArgs {
    #[command(flatten)]
    pub(crate) item: QueueItemArgs,
    /// Only if this turn is in progress
    #[arg(long, value_name = "ID", value_parser = turn_id)]
    pub(crate) turn: Option<TurnId>,
}

#[derive(Args, Debug)]
pub(crate) struct NextArgs {
    /// The task's id; without it, all tasks that have not ended
    pub(crate) task: Option<String>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BranchesArgs {
    #[command(flatten)]
    pub(crate) filter: BranchesFilter,
    #[command(subcommand)]
    pub(crate) command: Option<BranchesCommand>,
}

#[derive(Args, Debug)]
pub(crate) struct BranchesFilter {
    /// The task's id
    #[arg(required = true)]
    pub(crate) task: Option<String>,
    /// Only those in this state
    #[arg(long, value_name = "live|finished|failed|cancelled|expired")]
    pub(crate) state: Option<BranchState>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum BranchesCommand {
    /// List those of a task, newest first
    List(BranchesFilter),
    /// Show one in full, with its result
    Show(BranchArgs),
    /// End one, with all below it: its turn in progress is stopped, and its parent is told
    Cancel(BranchCancelArgs),
}

#[derive(Args, Debug)]
pub(crate) struct BranchArgs {
    /// The branch's id
    #[arg(value_parser = branch_id)]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BranchCancelArgs {
    #[command(flatten)]
    pub(crate) branch: BranchArgs,
    /// For its parent, and for whoever reads the branch
    #[arg(long)]
    pub(crate) reason: Option<String>,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct QuestionsArgs {
    #[command(flatten)]
    pub(crate) filter: QuestionsFilter,
    #[command(subcommand)]
    pub(crate) command: Option<QuestionsCommand>,
}

#[derive(Args, Debug)]
pub(crate) struct QuestionsFilter {
    /// Only those of this task
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// Only those in this state [default: open]
    #[arg(long, value_name = "open|answered|withdrawn|lapsed|cancelled")]
    pub(crate) state: Option<QuestionState>,
    /// In whatever state
    #[arg(long, conflicts_with_all = ["state", "mine"])]
    pub(crate) all: bool,
    /// Only open ones that you may answer
    #[arg(long, conflicts_with = "state")]
    pub(crate) mine: bool,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum QuestionsCommand {
    /// List them, newest first
    List(QuestionsFilter),
    /// Show one in full, with its answer
    Show(QuestionArgs),
    /// Answer one: it is answered once
    Answer(QuestionAnswerArgs),
    /// Withdraw one: whoever asked is told that there is no answer
    Withdraw(QuestionWithdrawArgs),
}

#[derive(Args, Debug)]
pub(crate) struct QuestionArgs {
    /// The question's id
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
#[group(id = "answer", required = true, multiple = true, args = ["verdict", "options", "text"])]
pub(crate) struct QuestionAnswerArgs {
    #[command(flatten)]
    pub(crate) question: QuestionArgs,
    /// The decision on a plan or a tool call
    #[arg(long, value_name = "approved|changes|denied")]
    pub(crate) verdict: Option<Verdict>,
    /// The id of an option; may be repeated
    #[arg(long = "option", value_name = "ID")]
    pub(crate) options: Vec<String>,
    /// The answer in words, or what to change
    #[arg(long)]
    pub(crate) text: Option<String>,
    /// To approve a tool call: its arguments hash, as `questions show` prints it
    #[arg(long, value_name = "HASH")]
    pub(crate) arguments_hash: Option<String>,
    /// Review work that its agent went on with after the review was opened
    #[arg(long)]
    pub(crate) accept_stale: bool,
    /// With an approved tool call: do not ask again for this agent, task and tool
    #[arg(long, requires = "arguments_hash")]
    pub(crate) remember: bool,
}

#[derive(Args, Debug)]
pub(crate) struct QuestionWithdrawArgs {
    #[command(flatten)]
    pub(crate) question: QuestionArgs,
    /// Why, for whoever asked
    #[arg(long)]
    pub(crate) reason: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct TurnsArgs {
    /// One turn's id
    #[arg(value_parser = turn_id)]
    pub(crate) id: Option<TurnId>,
    /// Turns of one session
    #[arg(long, value_name = "ID", value_parser = session_id)]
    pub(crate) session: Option<String>,
    /// Turns of this task's sessions
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// Turns of this agent's sessions (slug or id)
    #[arg(long)]
    pub(crate) agent: Option<String>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Args, Debug)]
pub(crate) struct NotificationsArgs {
    /// One notification's id
    pub(crate) id: Option<String>,
    /// Only notifications about this task
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// Only those for this agent (slug or id)
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// Only notifications in this state
    #[arg(long, value_parser = ["queued", "running", "delivered", "failed", "refused", "cancelled"])]
    pub(crate) state: Option<String>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RouteArgs {
    /// The notification's id; of mail to an agent, `mail:` and the mail's id
    pub(crate) notification: String,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct MailArgs {
    /// The mail's id
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct MembersArgs {
    #[command(flatten)]
    pub(crate) list: ListArgs,
    #[command(subcommand)]
    pub(crate) command: Option<MembersCommand>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum MembersCommand {
    /// List them, by their ids
    List(ListArgs),
    /// Add a person, and print the link by which the person signs in: it works once, for seven days
    Add(MemberAddArgs),
    /// Remove a person: their keys are revoked, and what they did stays under their name
    Remove(MemberArgs),
    /// Print another sign-in link, which ends the one before: for a person who has never signed in, or, with the operator's token,
    /// for anybody
    Link(MemberLinkArgs),
}

#[derive(Args, Debug)]
#[group(id = "who", required = true, multiple = true, args = ["user", "email"])]
pub(crate) struct MemberAddArgs {
    /// The person's name, which others see
    pub(crate) name: String,
    /// Their id for ever [default: what the e-mail address begins with]
    #[arg(long, value_name = "ID")]
    pub(crate) user: Option<String>,
    /// Their e-mail address, by which a removed person returns
    #[arg(long)]
    pub(crate) email: Option<String>,
    /// Whether they administer the account: its settings, keys, agents and members
    #[arg(long)]
    pub(crate) admin: bool,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct MemberArgs {
    /// The person's id
    pub(crate) user: String,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct MemberLinkArgs {
    #[command(flatten)]
    pub(crate) member: MemberArgs,
    /// The person leaves the login that they have, for that of the browser that opens the link, or a new one (as the operator)
    #[arg(long)]
    pub(crate) another_login: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DeadArgs {
    #[command(subcommand)]
    pub(crate) command: DeadCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DeadCommand {
    /// List them, newest first; `--account -` lists those without an account
    List(ListArgs),
    /// Show one in full, with its payload
    Show(DeadOneArgs),
    /// Redrive one, after its cause was removed
    Redrive(DeadOneArgs),
}

#[derive(Args, Debug)]
pub(crate) struct DeadOneArgs {
    /// The message's id, as `signalbox dead list` shows it
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) of: AccountArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ProvidersArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ProvidersCommand>,
    /// The providers that this account's agents name [default: all provider accounts whose calls have failed, for the operator]
    #[arg(long)]
    pub(crate) account: Option<String>,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ProvidersCommand {
    /// Try a provider account at once, after its cause was removed
    Probe {
        /// The provider account: its key as `signalbox providers` shows it
        key: String,
        #[command(flatten)]
        access: AccessArgs,
    },
}

#[derive(Args, Debug)]
pub(crate) struct ProviderArgs {
    #[command(subcommand)]
    pub(crate) command: ProviderCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ProviderCommand {
    /// Run a turn with a tool call, report what the server supports, and print the settings that fit it
    Check(ProviderCheckArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Calls the model a few times, over the URL and with the key of the settings. Code 0 when the settings fit, 1 when they do not or
the server does not answer, 2 when a setting was refused or there is no such provider.")]
pub(crate) struct ProviderCheckArgs {
    /// Name of the provider's entry: `default` for [providers.default]
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct SchemasArgs {
    /// Folder of the descriptions
    #[arg(long, value_name = "DIR", default_value = "schemas")]
    pub(crate) dir: PathBuf,
    /// Write nothing; fail and name the files that are out of date
    #[arg(long)]
    pub(crate) check: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0190b5a8-0000-7000-8000-000000000001";

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_can_be_asked_for_anywhere() {
        for line in [
            "signalbox --json sessions",
            "signalbox sessions --json",
            "signalbox dead list --json",
            "signalbox doctor --json",
            "signalbox migrate --json",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).unwrap().json, "{line}");
        }
    }

    #[test]
    fn an_address_may_have_a_name() {
        for line in ["signalbox up --http 127.0.0.1:0", "signalbox up --http localhost:0"] {
            let Command::Up(up) = Cli::try_parse_from(line.split(' ')).unwrap().command else {
                panic!("{line}");
            };
            assert!(up.http.unwrap().ip().is_loopback(), "{line}");
        }
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        // S stands for an id that is well formed.
        for line in [
            "signalbox",
            "signalbox up --http 8080",
            "signalbox dead",
            "signalbox notify demo T coder hello --timeout 3",
            "signalbox notify demo T coder hello --queue-mode later",
            "signalbox steer demo T coder hello --queue-mode steer",
            "signalbox stop",
            "signalbox stop S --turn nonsense",
            "signalbox stop S --then wait",
            "signalbox resume",
            "signalbox pause",
            "signalbox pause S --task T",
            "signalbox pause --all --until tomorrow",
            "signalbox cancel",
            "signalbox handover",
            "signalbox context",
            "signalbox context T --if-version 3",
            "signalbox queue",
            "signalbox queue edit S n-1",
            "signalbox queue edit S n-1 --mode reject",
            "signalbox queue withdraw S",
            "signalbox queue order S",
            "signalbox release",
            "signalbox sessions --limit 0",
            "signalbox serve",
            "signalbox serve postgres",
            "signalbox health delivery",
            "signalbox log",
            "signalbox log S --generation 0",
            "signalbox diff S",
            "signalbox diff nonsense nonsense",
            "signalbox audit",
            "signalbox audit isolation --task T --session S",
            "signalbox audit isolation --task T --turn S",
            "signalbox audit isolation --session S --turn S",
            "signalbox replay S --instructions a --role b",
            "signalbox replay S --instructions a --profile-version 4",
            "signalbox replays",
            "signalbox replays show",
            "signalbox audit isolation --since yesterday",
            "signalbox audit isolation --until tomorrow",
            "signalbox provider",
            "signalbox provider check",
        ] {
            let words = line.split(' ').map(|word| if word == "S" { ID } else { word });
            assert!(Cli::try_parse_from(words).is_err(), "{line}");
        }
    }

    #[test]
    fn an_id_that_is_none_is_refused_with_the_command_that_lists_ids() {
        let check = |line: &str, list: &str| {
            let refused =
                |id: &str| Cli::try_parse_from(format!("signalbox {line}").replace("ID", id).split(' ')).err();
            assert!(refused(ID).is_none(), "{line}");
            let said = refused("DEMO-7").unwrap().to_string();
            assert!(said.contains(&format!("not a UUID: list {list}`")), "{said}");
        };
        for line in [
            "log ID",
            "reset ID --reason x",
            "stop ID",
            "pause ID",
            "resume ID",
            "release ID",
            "queue ID",
            "queue withdraw ID n-1",
            "queue order ID n-1",
            "sessions ID",
            "turns --session ID",
            "audit isolation --session ID",
        ] {
            check(line, "sessions with `signalbox sessions --task TASK");
        }
        for line in [
            "turns ID",
            "diff ID ID",
            "replay ID",
            "replays ID",
            "audit isolation --turn ID",
        ] {
            check(line, "turns with `signalbox turns --task TASK");
        }
        for line in ["branches show ID", "branches cancel ID"] {
            check(line, "branches with `signalbox branches TASK");
        }
        check("replays show ID", "replays with `signalbox replays TURN");
    }

    #[test]
    fn every_argument_is_explained() {
        fn visit(command: &clap::Command, path: &str) {
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                assert!(argument.get_help().is_some(), "{path} {}", argument.get_id());
            }
            for command in command.get_subcommands() {
                assert!(command.get_about().is_some(), "{path} {}", command.get_name());
                visit(command, &format!("{path} {}", command.get_name()));
            }
        }
        visit(&Cli::command(), "signalbox");
    }

    /// Help texts are literals: they say what the code has.
    #[test]
    fn help_names_the_limits_of_the_code() {
        let help = |command: &str, argument: &str| {
            let cli = Cli::command();
            let command = cli.find_subcommand(command).unwrap();
            let argument = command
                .get_arguments()
                .find(|found| found.get_id() == argument)
                .unwrap();
            argument.get_help().unwrap().to_string()
        };
        let kib = |bytes: usize| format!("{} KiB", bytes / 1024);
        let set = help("context", "set");
        assert!(set.contains(&kib(api::contexts::BODY_BYTES_MAX)), "{set}");
        assert_eq!(domain::task_context::CHARACTERS_MAX, 10_000);
        assert!(set.contains("10,000 characters"), "{set}");
        assert!(help("replay", "role").contains(&kib(domain::replay::ROLE_BYTES_MAX)));
        assert!(help("replay", "instructions").contains(&kib(domain::replay::INSTRUCTIONS_BYTES_MAX)));
        let kind = format!("[default: {}]", contracts::notification::KIND_DEFAULT);
        assert!(help("notify", "kind").contains(&kind));
        let mode = format!("[default: {}]", QueueMode::Followup);
        assert!(help("notify", "queue_mode").contains(&mode));
    }
}
