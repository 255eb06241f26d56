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
    let mut before = cluster.unread;
    loop {
        let (cluster, notes) = changes.next().await;
        cluster.unreadable.warn(&warned);
        warned.clone_from(&cluster.unreadable);
        // On a terminal, the view has replaced the notes.
        if screen.show(&view(&cluster))? {
            before.clear();
        }
        print_notes(&new_notes(&mut before, notes));
    }
}

/// Returns the notes that are not the ones of the last call. Their first clause tells them apart.
pub(crate) fn new_notes(before: &mut Vec<String>, notes: Vec<String>) -> Vec<String> {
    let clause = |note: &str| note.split(';').next().map(str::to_owned);
    let clauses: Vec<_> = before.iter().map(|note| clause(note)).collect();
    let new = notes.iter().filter(|note| !clauses.contains(&clause(note)));
    let new = new.cloned().collect();
    *before = notes;
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_is_not_live_any_more_is_noted_once() {
        let not_live =
            |kind: &str| format!("{kind} are not live: you may not watch them; ask for the right");
        let denied = "pods are not shown: you may not list them";
        let mut before = vec![denied.to_owned()];
        let both = || vec![format!("{denied}; ask for the right"), not_live("events")];
        assert_eq!(new_notes(&mut before, both()), [not_live("events")]);
        assert!(new_notes(&mut before, both()).is_empty());
        assert!(new_notes(&mut before, Vec::new()).is_empty());
        assert_eq!(new_notes(&mut before, both()).len(), 2);
    }
}
