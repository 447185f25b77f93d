//! The command line.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ipnet::IpNet;
use pepd_admin::wire::{FlowQuery, FlowSort, LinkReport, Phase, Place};
use pepd_config::{Rate, Size};
use serde::Serialize;

use crate::exit;
use crate::leg_spec::{self, LegSpec};

/// A transparent TCP performance enhancing proxy for Linux routers.
///
/// pepd splits each TCP connection that crosses this router between two campuses into two legs,
/// each with a congestion control, buffers and timers of its own. Neither end host notices:
/// each still sees the other's address and port.
#[derive(Debug, Parser)]
#[command(version = env!("PEPD_VERSION"), after_long_help = exit_status())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

fn exit_status() -> String {
    let codes = exit::CODES
        .iter()
        .map(|(code, meaning)| format!("{code} {meaning}"));
    format!("Exit status: {}.", codes.collect::<Vec<_>>().join("; "))
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the helper box until SIGTERM or SIGINT.
    ///
    /// SIGHUP reads the file again: live connections stay as they are, and a file that is wrong
    /// changes nothing. SIGTERM takes no new connections, gives those that there are the time
    /// `[node] drain` to finish, and removes all kernel state; a second one ends at once.
    Run(RunArgs),
    /// Validate a configuration and print what it means: campus, prefixes, next box, leg.
    Check(Check),
    /// Print the kernel state that `run` would install, as nft and ip lines; touch nothing.
    Show(File),
    /// Remove whatever kernel state of pepd is left on this host, as after a crash.
    Down(File),
    /// Look at the kernel and the host, and say what would stop or slow a helper box.
    ///
    /// Each finding comes with the command that cures it. Nothing is changed. Exit status: 1 if
    /// something would stop `run` or end connections in nothing, otherwise 0.
    Doctor(Doctor),
    /// Say how a running daemon is: campus pairs, limits, legs and the rates that are found, peers, counts, advice.
    Status(AskArgs),
    /// Say in a line whether connections are best led to this box, for routing daemons and the like
    /// (docs/cluster.md).
    ///
    /// It is ready while the daemon splits what comes, has room, and reaches two campuses at least.
    /// Exit status: 0 if it is, 1 if it is not, 69 if no daemon answers within two seconds.
    Ready(ReadyArgs),
    /// List the live connections of a running daemon, two lines each: the client with what it
    /// sends and its leg, the server with what it sends and its leg.
    Flows(FlowsArgs),
    /// Show everything about one live connection.
    Flow(FlowArgs),
    /// Watch a running daemon: rates, connections, the legs of one.
    Top(Target),
    /// Have a running daemon read its configuration again; say why, if it refuses.
    Reload(Target),
    /// Have a running daemon route new connections, let those that there are finish, and end.
    ///
    /// With --to they move to another box (docs/move.md), and it ends when they have and nothing comes here any more
    /// that belongs to them.
    Drain(DrainArgs),
    /// Have this program take over from a running daemon of another version; no connection is lost.
    ///
    /// The running pepd becomes the program that is now at its path. Where that does not come up, it
    /// becomes what it was. Exit status: 69 if there is no daemon, or this program cannot take over from
    /// it; 70 if it was begun and the old one goes on; 75 if neither is there any more (docs/upgrade.md).
    Upgrade(UpgradeArgs),
    /// Tell a running daemon what is known of the link under a leg, as a modem's script may.
    ///
    /// While a link is gone, none of the leg's connections is given up; when it is up again, each
    /// goes on at once. Exit status: 69 if there is no such daemon, or no such leg.
    Link(LinkArgs),
    /// Move live connections to another box (docs/move.md): neither of their ends notices.
    ///
    /// Without --campus, --source or IDs all of them. Exit status: 0 also where there is no such connection; 69 if
    /// there is no such daemon, neighbor or campus, or none could be tried; 70 if some stay, or with --dry-run would,
    /// each of which is named with the reason.
    Move(MoveArgs),
    /// Compute what theory expects of a path (docs/model.md): throughput and gain of splitting, the buffer that it
    /// takes, where to put boxes. Nothing is changed.
    ///
    /// A leg is written as `rtt=20ms,loss=1%,rate=50Mbit,window=4MiB,control=cubic`; only `rtt` is needed. `loss` is
    /// of each packet (`1%`) or over time (`0.4/s`), or both (`0.1%+0.4/s`).
    Model(Model),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print a manual page, for `man -l -`.
    Man {
        /// The page.
        #[arg(value_name = "PAGE", value_enum, default_value_t = ManualPage::Pepd)]
        page: ManualPage,
    },
}

/// The manual pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ManualPage {
    /// pepd(1): the command.
    #[value(name = "pepd")]
    Pepd,
    /// pepd.toml(5): the configuration.
    #[value(name = "pepd.toml")]
    PepdToml,
}

/// What `check` looks at.
#[derive(Debug, Args)]
pub struct Check {
    /// The configuration file.
    #[command(flatten)]
    pub file: File,
    /// Print what the file means for every box of the fleet, not only for this one.
    #[arg(long, conflicts_with = "node")]
    pub all: bool,
}

/// The configuration file.
#[derive(Debug, Clone, Args)]
pub struct File {
    /// The configuration file.
    #[arg(
        short = 'c',
        long = "config",
        value_name = "FILE",
        default_value = "/etc/pepd/pepd.toml"
    )]
    pub path: PathBuf,
    /// Which box of the fleet this is, if the file has `[[box]]` entries.
    ///
    /// Without it: `[node] name`, or else the host's name.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// What `run` is told.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// The configuration file.
    #[command(flatten)]
    pub file: File,
    /// The descriptor of what an upgrade hands over: for pepd itself.
    #[arg(long, value_name = "FD", hide = true)]
    pub board: Option<RawFd>,
    /// The descriptor of the program before an upgrade: for pepd itself.
    #[arg(long, value_name = "FD", hide = true, requires = "board")]
    pub former: Option<RawFd>,
    /// The descriptor of the text that its daemon was started with.
    #[arg(long, value_name = "FD", hide = true, requires = "board")]
    pub started: Option<RawFd>,
}

/// What `upgrade` is told.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// The running daemon.
    #[command(flatten)]
    pub target: Target,
    /// Say whether this program can take over what has this layout, and do nothing: for pepd itself.
    #[arg(long, value_name = "LAYOUT", hide = true)]
    pub takes_over: Option<u64>,
}

/// What `doctor` is told.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The configuration file.
    #[command(flatten)]
    pub file: File,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Which running daemon is meant.
#[derive(Debug, Args)]
pub struct Target {
    /// The configuration file of the daemon, which names its socket.
    #[arg(
        short = 'c',
        long = "config",
        value_name = "FILE",
        conflicts_with = "socket"
    )]
    pub config: Option<PathBuf>,
    /// Which box of the fleet it is, if the file has `[[box]]` entries.
    ///
    /// Without it: `[node] name`, or else the host's name.
    #[arg(long, value_name = "NAME", requires = "config")]
    pub node: Option<String>,
    /// The admin socket of the daemon [default: /run/pepd/admin.sock].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl Target {
    /// The daemon's file, given its path.
    pub fn file(&self, path: &Path) -> File {
        File {
            path: path.to_owned(),
            node: self.node.clone(),
        }
    }
}

/// A question without more to it.
#[derive(Debug, Args)]
pub struct AskArgs {
    /// Which daemon.
    #[command(flatten)]
    pub target: Target,
    /// Print the daemon's answer as it is (docs/admin.md).
    #[arg(long)]
    pub json: bool,
}

/// For what it is to be ready.
#[derive(Debug, Args)]
pub struct ReadyArgs {
    /// Which daemon.
    #[command(flatten)]
    pub target: Target,
    /// For the connections that it has, not for new ones: one that drains or is nearly full is. For
    /// VRRP, and whoever else leads all of them away at once.
    #[arg(long)]
    pub live: bool,
    /// For the connections of this campus; given several times, for all of them.
    #[arg(long, value_name = "NAME")]
    pub campus: Vec<String>,
    /// Print the daemon's answer as it is (docs/admin.md).
    #[arg(long)]
    pub json: bool,
}

/// Which flows, in which order.
#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Which daemon.
    #[command(flatten)]
    pub target: Target,
    /// What comes first.
    #[arg(long, value_name = "WHAT", default_value = "goodput", value_parser = sorts())]
    pub sort: FlowSort,
    /// Only connections from or to this campus.
    #[arg(long, value_name = "NAME")]
    pub campus: Option<String>,
    /// Only clients with this address, in this prefix, or with this address and port.
    #[arg(long, value_name = "PLACE")]
    pub client: Option<Place>,
    /// Only servers with this address, in this prefix, or with this address and port.
    #[arg(long, value_name = "PLACE")]
    pub server: Option<Place>,
    /// Only connections of which a direction is in this phase now.
    #[arg(long, value_name = "PHASE", value_parser = phases())]
    pub phase: Option<Phase>,
    /// No more than so many.
    #[arg(long, value_name = "N", default_value_t = FlowQuery::USUAL as u64,
        value_parser = clap::value_parser!(u64).range(1..=FlowQuery::MOST as u64))]
    pub limit: u64,
    /// Print the daemon's answer as it is (docs/admin.md).
    #[arg(long)]
    pub json: bool,
}

impl FlowsArgs {
    /// What the daemon is asked.
    pub fn query(&self) -> FlowQuery {
        FlowQuery {
            campus: self.campus.clone(),
            client: self.client,
            server: self.server,
            end: None,
            phase: self.phase,
            sort: self.sort,
            limit: usize::try_from(self.limit).ok(),
        }
    }
}

fn sorts() -> impl TypedValueParser<Value = FlowSort> {
    let names = FlowSort::ALL.map(|(_, name)| name);
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// The phases as they are written in full.
const PHASES: [(&str, Phase); 3] = [
    ("free", Phase::Free),
    ("starved", Phase::Starved),
    ("backpressured", Phase::Backpressured),
];

/// The phase of this name.
pub fn phase(name: &str) -> Option<Phase> {
    let known = PHASES.iter().find(|(known, _)| *known == name);
    known.map(|(_, phase)| *phase)
}

fn phases() -> impl TypedValueParser<Value = Phase> {
    let names = PHASES.map(|(name, _)| name);
    PossibleValuesParser::new(names)
        .try_map(|name| phase(&name).ok_or_else(|| format!("`{name}` is no phase")))
}

/// What is known of which link.
#[derive(Debug, Args)]
pub struct LinkArgs {
    /// The leg, as the configuration names it.
    #[arg(value_name = "LEG")]
    pub leg: String,
    /// What is known of its link.
    #[arg(value_name = "STATE", value_parser = link_reports())]
    pub report: LinkReport,
    /// With `going-down`: how long it will be gone, such as 10s.
    #[arg(long = "for", value_name = "TIME", value_parser = link_time, allow_hyphen_values = true)]
    pub time: Option<Duration>,
    /// Which daemon.
    #[command(flatten)]
    pub target: Target,
}

/// What becomes of the connections.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The box that they move to, as its `[[neighbor]]` names it.
    #[arg(long, value_name = "NAME")]
    pub to: Option<String>,
    /// Which daemon.
    #[command(flatten)]
    pub target: Target,
}

/// Which connections move, and where to.
#[derive(Debug, Args)]
pub struct MoveArgs {
    /// The other box, as its `[[neighbor]]` names it.
    #[arg(long, value_name = "NAME")]
    pub to: String,
    /// Only those between these campuses, or with an end in this one.
    #[arg(long, value_name = "A:B")]
    pub campus: Option<String>,
    /// Only those of clients in this prefix.
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    pub source: Option<IpNet>,
    /// Only these, by their numbers in the lines of `pepd flows`.
    #[arg(value_name = "ID", value_parser = flow_id)]
    pub flows: Vec<u64>,
    /// Move nothing: ask the other box which it would take.
    #[arg(long)]
    pub dry_run: bool,
    /// Print the daemon's answers as they are (docs/admin.md).
    #[arg(long)]
    pub json: bool,
    /// Which daemon.
    #[command(flatten)]
    pub target: Target,
}

fn prefix(text: &str) -> Result<IpNet, String> {
    let alone = || text.parse::<IpAddr>().map(IpNet::from);
    let net = text.parse().or_else(|_| alone());
    net.map_err(|_| "write a prefix such as 10.1.0.0/24, or an address".to_owned())
}

/// Reads for how long a link will be gone.
fn link_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).ok();
    let time = time.filter(|time| LinkReport::OUTAGE.contains(time));
    time.ok_or_else(|| {
        "a link is gone for a millisecond at least, up to a day: write it with its unit, such as 10s or 2min"
            .to_owned()
    })
}

fn link_reports() -> impl TypedValueParser<Value = LinkReport> {
    let names = LinkReport::ALL.map(LinkReport::name);
    PossibleValuesParser::new(names).try_map(|name| {
        LinkReport::named(&name).ok_or_else(|| format!("`{name}` is no state of a link"))
    })
}

fn flow_id(text: &str) -> Result<u64, &'static str> {
    text.parse()
        .map_err(|_| "an ID is a number, the first in the lines of `pepd flows`")
}

/// One flow.
#[derive(Debug, Args)]
pub struct FlowArgs {
    /// Its ID, as `pepd flows` shows it.
    #[arg(value_name = "ID", value_parser = flow_id)]
    pub id: u64,
    /// Which daemon.
    #[command(flatten)]
    pub target: Target,
    /// Show it again each second until it ends.
    #[arg(long)]
    pub watch: bool,
    /// Print the daemon's answer as it is (docs/admin.md); with --watch, one line each second.
    #[arg(long)]
    pub json: bool,
}

/// What the models are asked.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Model {
    /// Another question.
    #[command(subcommand)]
    pub question: Option<Question>,
    /// The leg from the sender to the box.
    #[arg(long = "in", value_name = "LEG")]
    pub leg_in: Option<LegSpec>,
    /// The leg from the box to the receiver.
    #[arg(long = "out", value_name = "LEG")]
    pub leg_out: Option<LegSpec>,
    /// Take the legs, or the other one beside --in or --out, from what a running daemon measures, of data from campus A to
    /// campus B.
    #[arg(long, value_name = "A:B")]
    pub of: Option<String>,
    /// What both links carry, unless a leg says otherwise, such as 50Mbit.
    #[arg(long, value_name = "RATE", value_parser = leg_spec::rate)]
    pub rate: Option<Rate>,
    /// What the box may hold of the connection, such as 256KiB [default: as much as there is].
    #[arg(long, value_name = "SIZE", value_parser = leg_spec::size)]
    pub buffer: Option<Size>,
    /// What counts as held.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Counts::UnderWay)]
    pub counts: Counts,
    /// Find the smallest buffer for this share of what an unlimited one brings, such as 95%.
    #[arg(long, value_name = "SHARE", value_parser = leg_spec::share, conflicts_with = "buffer")]
    pub target: Option<f64>,
    /// For how many connections memory is said.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// Which daemon, with --of.
    #[command(flatten)]
    pub daemon: Target,
    /// Print JSON; times in seconds, rates in bits per second, sizes in bytes.
    #[arg(long)]
    pub json: bool,
    /// Print a figure: throughput over the loss of the leg to the receiver, and over the buffer.
    #[arg(long, conflicts_with = "json")]
    pub svg: bool,
}

/// What counts against the box's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counts {
    /// What is unread and what is under way to the box: a kernel's receive window.
    UnderWay,
    /// What has arrived: Baccelli et al.
    Arrived,
}

/// The path that boxes are to be put on.
#[derive(Debug, Args)]
pub struct PathArgs {
    /// The file that has the hops (docs/model.md).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON; rates in bits per second.
    #[arg(long)]
    pub json: bool,
    /// Print a figure: throughput over the number of boxes.
    #[arg(long, conflicts_with = "json")]
    pub svg: bool,
}

/// The other questions.
#[derive(Debug, Subcommand)]
pub enum Question {
    /// Where on a path of several hops boxes are worth most.
    Path(PathArgs),
    /// When ACKs that are held during an outage are released, so that their sender does not time
    /// out, and how long an outage may be (docs/hold-acks.md).
    HoldAcks(HoldAcks),
}

/// What is known of the sender whose ACKs are held.
#[derive(Debug, Args)]
pub struct HoldAcks {
    /// How many ACKs there are.
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=MOST_ACKS))]
    pub acks: u32,
    /// How many segments each acknowledges: it can be split into as many ACKs.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=MOST_ACKS))]
    pub segments: u32,
    /// The smoothed round trip, such as 40ms.
    #[arg(long, value_name = "TIME", value_parser = leg_spec::round_trip)]
    pub rtt: Duration,
    /// Its mean deviation [default: 0s, which is safe, with the estimator linux; half the round
    /// trip, as after a first sample, with paper].
    #[arg(long, value_name = "TIME", value_parser = leg_spec::deviation)]
    pub rttvar: Option<Duration>,
    /// How long the link will be gone.
    #[arg(long, value_name = "TIME", value_parser = link_time)]
    pub outage: Duration,
    /// What the sender takes for a sample: the age of a segment, as Linux does, or the time since
    /// the ACK before, as in the paper.
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Estimator::Linux)]
    pub estimator: Estimator,
    /// With linux: for how long the oldest ACK has been held when the link goes [default: 0s].
    #[arg(long, value_name = "TIME", value_parser = leg_spec::held)]
    pub held: Option<Duration>,
    /// Print JSON; times in seconds.
    #[arg(long)]
    pub json: bool,
}

/// The most ACKs of one schedule.
const MOST_ACKS: i64 = pepd_model::hold_acks::MOST_ACKS as i64;

/// How the sender estimates the round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Estimator {
    /// Bhutani's: eq. 1-4.
    Paper,
    /// Linux, and RFC 6298.
    Linux,
}
