//! The kubectl plugin: what Cistern does in a cluster, what is wrong with it, and what to do.
//!
//! ```text
//! flags ─▶ connection ─▶ cluster (objects, as they were) ─▶ view (pure) ─▶ text, JSON or YAML
//! ```
//!
//! *Invariant:* nothing here changes a cluster but `orphans adopt`, `orphans reclaim` and
//! `forget-node`, and what gives up data asks before. What a person sees is made by a pure function of
//! what was read, and goes through `output/terminal.rs`, which escapes what a terminal would obey.

pub mod arguments;
pub mod cluster;
mod confirm;
pub mod connection;
pub mod devices;
pub mod doctor;
pub mod duration;
pub mod error;
pub mod forget_node;
pub mod logs;
pub mod orphans;
pub mod output;
pub mod pools;
pub mod snapshots;
pub mod status;
#[cfg(test)]
pub(crate) mod testing;
pub mod truth;
pub mod volumes;
pub mod wrong;

use std::io::{self, Write as _};

use chrono::Utc;
use clap::CommandFactory as _;

pub use self::{arguments::Arguments, connection::Connection, error::Error};
use self::{
    arguments::Command,
    cluster::Cluster,
    output::{Format, Paint, Terminal, View, one_line},
    wrong::Severity,
};

/// Who writes, as the API server notes it.
const MANAGER: &str = "kubectl-cistern";

/// Exit code of a command that failed.
pub const FAILED: u8 = 3;

/// What a command that did its work has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Nothing is wrong, or nothing was judged.
    Well,
    /// Somebody should have a look.
    Warnings,
    /// Something is wrong.
    Failures,
}

impl Verdict {
    /// The exit code.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Well => 0,
            Self::Warnings => 1,
            Self::Failures => 2,
        }
    }
}

/// Runs one command.
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
        io::stdout().write_all(&script)?;
        return Ok(Verdict::Well);
    }
    let connection = Connection::open(&arguments.connection).await?;
    match arguments.command {
        Command::Status(flags) => status(&connection, &flags, printer).await,
        Command::Pools(flags) => {
            let cluster = Cluster::own(&connection).await?;
            let view = pools::Pools::of(&cluster, &flags.only);
            printer.print(&view, flags.output.format)
        }
        Command::Volumes(flags) => volumes(&connection, &flags, printer).await,
        Command::Snapshots(flags) => {
            let cluster = Cluster::with_users(&connection).await?;
            tell(&cluster.unread);
            let volume = flags.volume.as_deref();
            let view = snapshots::Origins::of(&cluster, &flags.only, volume, flags.all, Utc::now());
            printer.print(&view, flags.output.format)
        }
        Command::Doctor(flags) => doctor::run(&connection, &flags, printer).await,
        Command::Orphans(flags) => orphans::run(&connection, flags, printer).await,
        Command::ForgetNode(flags) => forget_node::run(&connection, &flags, printer).await,
        Command::Logs(flags) => logs::run(&connection, &flags).await,
        // It needs no cluster.
        Command::Completion { .. } => Ok(Verdict::Well),
    }
}

async fn status(
    connection: &Connection,
    flags: &arguments::Status,
    printer: Printer,
) -> Result<Verdict, Error> {
    let cluster = Cluster::with_users(connection).await?;
    tell(&cluster.unread);
    let view = status::Status::of(&cluster, Utc::now());
    printer.print(&view, flags.output.format)?;
    Ok(match view.worst() {
        Some(Severity::Error) if flags.exit_code => Verdict::Failures,
        Some(Severity::Warning) if flags.exit_code => Verdict::Warnings,
        Some(_) | None => Verdict::Well,
    })
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
    tell(&cluster.unread);
    let namespace = flags.namespace.as_deref();
    let mut view = volumes::Volumes::of(&cluster, &flags.only, namespace, &devices, Utc::now());
    view.sort(flags.sort);
    printer.print(&view, flags.output.format)
}

/// Tells people, beside what is printed, what could not be read.
fn tell(notes: &[String]) {
    for note in notes {
        complain("note", note);
    }
}

/// One line on standard error, behind a word that says what it is.
pub fn complain(what: &str, text: &str) {
    // Nobody listens any more: then nobody needs to know.
    let _ = writeln!(Terminal::stderr(), "{what}: {}", one_line(text));
}

/// Where answers go.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    paint: Paint,
}

impl Printer {
    /// Writes a view.
    pub fn print<V: View>(self, view: &V, format: Format) -> Result<Verdict, Error> {
        let text = output::render(view, format, self.paint)?;
        self.write(&text)?;
        Ok(Verdict::Well)
    }

    /// Writes a text.
    pub fn write(self, text: &str) -> Result<(), Error> {
        let mut stdout = Terminal::stdout(self.paint);
        stdout.write_all(text.as_bytes())?;
        Ok(stdout.flush()?)
    }
}
