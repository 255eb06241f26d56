//! The kubectl plugin. It shows the state of Cistern in a cluster, reports problems, and repairs some.
//!
//! ```text
//! flags ─▶ connection ─▶ cluster (listed objects) ─▶ view (pure) ─▶ text, JSON or YAML
//!                            └─ ui: the same, watched ─▶ view (pure) ─▶ JSON ─▶ page in a browser
//! ```
//!
//! *Invariant:* only `orphans adopt`, `orphans reclaim`, `cordon`, `uncordon`, `move`, `standby`, `promote`,
//! `drain`, `replace-disk` and `forget-node` change the cluster. Commands that lose data of a volume ask for
//! confirmation; only `orphans reclaim` can skip it, with `--yes`. Every view is a pure function of the listed
//! objects. All text from the cluster goes through `output/terminal.rs`, which escapes control characters.
//! The page of `ui` shows it as text, never as HTML.

mod access;
pub mod age;
pub mod agents;
pub mod arguments;
mod changes;
pub mod cluster;
pub mod completion;
pub mod condition_state;
mod confirm;
pub mod connection;
pub mod cordon;
pub mod devices;
pub mod discover;
pub mod doctor;
pub mod drain;
pub mod error;
pub mod forget_node;
pub mod fsck;
pub mod issues;
mod list;
pub mod moving;
pub mod orphans;
pub mod output;
pub mod pools;
pub mod replace_disk;
pub mod screen;
pub mod selector;
pub mod snapshots;
pub mod standby;
pub mod status;
pub mod storage_pool;
pub mod support_bundle;
#[cfg(test)]
pub(crate) mod testing;
pub mod top;
pub mod transfers;
pub mod ui;
pub mod unreadable;
pub mod volumes;

use std::io::{self, Write as _};

use chrono::Utc;
use cistern_crds::{PoolVolume, StorageNode, StoragePool, volume::ClaimReference};
use clap::CommandFactory as _;

pub use self::{arguments::Arguments, connection::Connection, error::Error};
use self::{
    arguments::{Command, ListOutput},
    cluster::Cluster,
    issues::Severity,
    output::{Format, Paint, Terminal, View, one_line},
    screen::Screen,
};

/// Field manager of the plugin's writes.
const MANAGER: &str = "kubectl-cistern";

/// Exit code of a command that failed.
pub const FAILED: u8 = 3;

/// Result of a command that succeeded. It determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// No problem was found, or the command does not report problems in its exit code.
    Ok,
    /// The command found warnings, or `fsck` inconsistencies, but no errors.
    Warnings,
    /// The command found at least one error, or `fsck` could not ask a node.
    Failures,
}

impl Verdict {
    /// Returns the exit code of the process, 0 to 2. A command that fails exits with [`FAILED`].
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warnings => 1,
            Self::Failures => 2,
        }
    }
}

/// Runs the command that the arguments select. Fails if no cluster is configured, if a request
/// fails, if the command fails, or if its output cannot be written.
pub async fn run(arguments: Arguments) -> Result<Verdict, Error> {
    let no_color = arguments.no_color.is_some_and(|value| !value.is_empty());
    let printer = Printer {
        paint: Paint::on(&io::stdout(), no_color),
    };
    if let Command::Completion { shell } = arguments.command {
        let mut script = Vec::new();
        clap_complete::generate(
            shell,
            &mut Arguments::command(),
            "kubectl-cistern",
            &mut script,
        );
        io::stdout().write_all(&script).map_err(Error::Output)?;
        return Ok(Verdict::Ok);
    }
    let connection = Connection::open(&arguments.connection).await?;
    match arguments.command {
        Command::Status(flags) => status(&connection, &flags, printer).await,
        Command::Pools(flags) => pools(&connection, &flags, printer).await,
        Command::Volumes(flags) => volumes(&connection, &flags, printer).await,
        Command::Snapshots(flags) => snapshots(&connection, &flags, printer).await,
        Command::Transfers(flags) => transfers(&connection, &flags, printer).await,
        Command::Discover(flags) => discover::run(&connection, &flags, printer).await,
        Command::Top(flags) => top::run(&connection, &flags, printer).await,
        Command::Ui(flags) => {
            let context = connection::context(&arguments.connection);
            ui::run(&connection, context, flags, printer).await
        }
        Command::Fsck(flags) => fsck::run(&connection, &flags, printer).await,
        Command::Doctor(flags) => doctor::run(&connection, &flags, printer).await,
        Command::SupportBundle(flags) => support_bundle::run(&connection, &flags, printer).await,
        Command::Orphans(flags) => orphans::run(&connection, flags, printer).await,
        Command::Cordon(flags) => {
            cordon::run(&connection, &flags.pool, &flags.node, true, printer).await
        }
        Command::Uncordon(flags) => {
            cordon::run(&connection, &flags.pool, &flags.node, false, printer).await
        }
        Command::Move(flags) => moving::run(&connection, &flags, printer).await,
        Command::Standby(flags) => standby::run(&connection, &flags, printer).await,
        Command::Promote(flags) => standby::promote::run(&connection, &flags, printer).await,
        Command::Drain(flags) => drain::run(&connection, &flags, printer).await,
        Command::ReplaceDisk(flags) => replace_disk::run(&connection, &flags, printer).await,
        Command::ForgetNode(flags) => forget_node::run(&connection, &flags, printer).await,
        // Handled above, without a cluster.
        Command::Completion { .. } => Ok(Verdict::Ok),
    }
}

async fn status(
    connection: &Connection,
    flags: &arguments::Status,
    printer: Printer,
) -> Result<Verdict, Error> {
    let cluster = Cluster::with_users(connection).await?;
    if flags.watch {
        let output = ListOutput {
            output: flags.output,
            no_headers: false,
            watch: true,
        };
        let view = |cluster: &Cluster| status::Status::of(cluster, Utc::now());
        return list::show(connection, cluster, output, printer, view).await;
    }
    print_notes(&cluster.unread);
    let view = status::Status::of(&cluster, Utc::now());
    printer.print(&view, flags.output.format)?;
    Ok(match view.worst() {
        Some(Severity::Error) if flags.exit_code => Verdict::Failures,
        Some(Severity::Warning) if flags.exit_code => Verdict::Warnings,
        Some(_) | None => Verdict::Ok,
    })
}

async fn pools(
    connection: &Connection,
    flags: &arguments::Pools,
    printer: Printer,
) -> Result<Verdict, Error> {
    let view = |cluster: &Cluster| pools::Pools::of(cluster, &flags.only, flags.selector.as_ref());
    let cluster = Cluster::own(connection).await?;
    let unreadable = &cluster.unreadable;
    unreadable.refuse::<StoragePool>(flags.only.pool.as_deref())?;
    unreadable.refuse::<StorageNode>(flags.only.node.as_deref())?;
    list::show(connection, cluster, flags.output, printer, view).await
}

async fn volumes(
    connection: &Connection,
    flags: &arguments::Volumes,
    printer: Printer,
) -> Result<Verdict, Error> {
    let mut cluster = Cluster::with_users(connection).await?;
    let mut devices = volumes::Devices::new();
    if flags.devices {
        let nodes = cluster
            .volumes
            .iter()
            .map(|volume| volume.spec.node_name.clone());
        let nodes = match &flags.only.node {
            Some(node) => [node.clone()].into(),
            None => nodes.collect(),
        };
        devices = devices::read(connection, &nodes, &mut cluster.unread).await?;
    }
    let view = |cluster: &Cluster| {
        let namespace = flags.namespace.as_deref();
        let mut view = volumes::Volumes::of(cluster, &flags.only, namespace, &devices, Utc::now());
        if let Some(selector) = &flags.selector {
            let claims = cluster.claims_with(selector);
            let is_selected = |claim: &ClaimReference| claims.contains(claim);
            view.items
                .retain(|volume| volume.claim.as_ref().is_some_and(is_selected));
        }
        view.sort(flags.sort);
        view
    };
    list::show(connection, cluster, flags.output, printer, view).await
}

async fn snapshots(
    connection: &Connection,
    flags: &arguments::Snapshots,
    printer: Printer,
) -> Result<Verdict, Error> {
    let view = |cluster: &Cluster| {
        let volume = flags.volume.as_deref();
        snapshots::Origins::of(cluster, &flags.only, volume, flags.all, Utc::now())
    };
    let cluster = Cluster::with_users(connection).await?;
    let unreadable = &cluster.unreadable;
    unreadable.refuse::<PoolVolume>(flags.volume.as_deref())?;
    list::show(connection, cluster, flags.output, printer, view).await
}

async fn transfers(
    connection: &Connection,
    flags: &arguments::Transfers,
    printer: Printer,
) -> Result<Verdict, Error> {
    let view = |cluster: &Cluster| transfers::Transfers::of(cluster, &flags.only, Utc::now());
    let cluster = Cluster::with_users(connection).await?;
    list::show(connection, cluster, flags.output, printer, view).await
}

/// Prints notes to standard error.
fn print_notes(notes: &[String]) {
    for note in notes {
        print_diagnostic("note", note);
    }
}

/// Prints a text without colours to standard output. Fails if standard output cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    Terminal::stdout(Paint::plain()).write_all(text.as_bytes())
}

/// Prints one line to standard error, with the prefix `what`.
pub fn print_diagnostic(what: &str, text: &str) {
    // Standard error may be closed; there is nowhere else to report that.
    let _ = writeln!(Terminal::stderr(), "{what}: {}", one_line(text));
}

/// Prints results to standard output, with colours if it is a terminal and they are not disabled.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    paint: Paint,
}

impl Printer {
    /// Prints a view in a format and returns [`Verdict::Ok`]. Fails if the view cannot be
    /// serialized, or if standard output cannot be written.
    pub fn print<V: View>(self, view: &V, format: Format) -> Result<Verdict, Error> {
        let text = output::render(view, format, true, self.paint).map_err(Error::Rendering)?;
        self.write(&text)?;
        Ok(Verdict::Ok)
    }

    /// Returns the screen of a list command, which `--watch` updates.
    pub const fn screen(self, output: ListOutput) -> Screen {
        Screen::new(self.paint, output)
    }

    /// Prints a text and flushes it. Fails if standard output cannot be written.
    pub fn write(self, text: &str) -> Result<(), Error> {
        let mut stdout = Terminal::stdout(self.paint);
        let written = stdout.write_all(text.as_bytes());
        written.and_then(|()| stdout.flush()).map_err(Error::Output)
    }
}
