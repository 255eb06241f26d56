//! Shows a view of the cluster once, or again after each change.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    Connection, Error, Printer, Verdict, arguments::ListOutput, cluster::Cluster, output::View,
    print_diagnostic, print_notes, ui::following::Following, unreadable::UnreadableObjects,
};

/// Interval at which `--watch` checks whether the watches received changes. The check sends no
/// request.
const REDRAW: Duration = Duration::from_millis(500);

/// Shows a view of a listed cluster. With `--watch`, watches the cluster and shows the view after
/// each change, until the process is interrupted. Fails if the view cannot be serialized, or if
/// standard output cannot be written.
pub(crate) async fn show<V: View>(
    connection: &Connection,
    cluster: Cluster,
    output: ListOutput,
    printer: Printer,
    view: impl Fn(&Cluster) -> V,
) -> Result<Verdict, Error> {
    print_notes(&cluster.unread);
    let mut warned = cluster.unreadable.clone();
    warned.warn(&UnreadableObjects::default());
    let mut screen = printer.screen(output);
    screen.show(&view(&cluster))?;
    if !output.watch {
        return Ok(Verdict::Ok);
    }
    let following = Following::start(connection, None);
    let (mut seen, mut was_away) = (0, false);
    loop {
        sleep(REDRAW).await;
        let (changes, session) = (following.changes(), following.session());
        if let Some(outage) = session.outage.as_ref().filter(|_| !was_away) {
            print_diagnostic("note", &outage.message);
        }
        was_away = session.outage.is_some();
        if changes != seen && session.listing.is_empty() {
            seen = changes;
            let cluster = following.cluster();
            cluster.unreadable.warn(&warned);
            warned.clone_from(&cluster.unreadable);
            screen.show(&view(&cluster))?;
        }
    }
}
