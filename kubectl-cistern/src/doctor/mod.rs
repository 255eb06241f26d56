//! `doctor`: checks an installation and suggests fixes.
//!
//! ```text
//! facts.rs lists objects ─▶ each other module checks some of them (pure) ─▶ checks ─▶ text
//! ```
//!
//! *Invariant:* a check whose objects cannot be read is a warning and never passes.

pub mod classes;
pub mod definitions;
pub mod encryption;
pub mod facts;
pub mod manifests;
pub mod nodes;
pub mod objects;
pub mod parts;
pub mod permissions;
pub mod policies;
pub mod registration;
pub mod report;
pub mod snapshots;
pub mod unclaimed;
mod used;
pub mod versions;
pub mod workloads;

use self::{facts::Facts, report::Report};
use crate::{Connection, Error, Printer, Verdict, arguments};

/// Checks the installation, prints the report and returns its verdict. Fails like [`read`], and if
/// the output cannot be written.
pub async fn run(
    connection: &Connection,
    flags: &arguments::Doctor,
    printer: Printer,
) -> Result<Verdict, Error> {
    let report = read(connection).await?;
    printer.print(&report, flags.output.format)?;
    Ok(report.verdict())
}

/// Checks the installation. Fails if the API server does not answer, or if a request fails in a way
/// that no check reports.
pub async fn read(connection: &Connection) -> Result<Report, Error> {
    let facts = Facts::read(connection).await?;
    let mut checks = examine(&facts);
    checks.extend(objects::examine(connection).await?);
    checks.extend(permissions::examine(connection).await?);
    Ok(Report { checks })
}

/// Runs all checks that need only the facts.
fn examine(facts: &Facts) -> Vec<report::Check> {
    let mut checks = vec![versions::server(&facts.server_version)];
    checks.extend(definitions::examine(facts));
    checks.push(policies::examine(facts));
    checks.extend(registration::examine(facts));
    checks.extend(workloads::examine(facts));
    checks.push(parts::versions(facts));
    checks.extend(nodes::examine(facts));
    checks.extend(classes::examine(facts));
    checks.extend(encryption::examine(facts));
    checks.extend(snapshots::examine(facts));
    checks
}
