//! Shows a view of the cluster once, or again after each change.

use crate::{
    Connection, Error, Printer, Verdict, arguments::ListOutput, changes::Changes, cluster::Cluster,
    output::View, print_notes, unreadable::UnreadableObjects,
};

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
    let mut changes = Changes::start(connection);
    loop {
        let (cluster, _) = changes.next().await;
        cluster.unreadable.warn(&warned);
        warned.clone_from(&cluster.unreadable);
        screen.show(&view(&cluster))?;
    }
}
