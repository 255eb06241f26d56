//! `orphans`: images that nobody claims. They are listed, taken back, or removed.
//!
//! ```text
//! list      what the agents say of them
//! adopt     custom resource with the image's identity ─▶ the agent takes the image up
//! reclaim   adopt ─▶ spec.deletionRequested ─▶ the agent removes the image ─▶ custom resource goes
//! ```
//!
//! *Invariant:* an image is removed by its agent for `spec.deletionRequested`. Only `reclaim` writes
//! that to a custom resource that an agent has admitted, and only once the agent has said that it is
//! this image that the custom resource stands for.

pub mod adopt;
pub mod confirm;
pub mod list;
pub mod persistent_volume;
pub mod reclaim;
pub mod unclaimed;
pub mod wish;

use std::io;

use self::{
    list::{Choice, Orphans},
    unclaimed::Known,
    wish::Wish,
};
use crate::{
    Connection, Printer, Verdict,
    arguments::{self, Adopt, Chosen, OrphansCommand, Output, PersistentVolumeWish, Selection},
    cluster::Cluster,
    output::{Terminal, one_line},
};

/// Why nothing was done, or not all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is called so.
    #[error("no orphan is called {name:?}: see `kubectl cistern orphans`")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// Several are called so.
    #[error("{count} orphans are called {name:?}: name the image, or --pool and --node")]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// How many there are.
        count: usize,
    },
    /// The image does not say what it is.
    #[error(
        "the image {image} in pool {pool} on {node} does not say what it is, so nothing can claim it: \
         look at it on the node, and move it away there"
    )]
    Nameless {
        /// The image.
        image: String,
        /// Its pool.
        pool: String,
        /// Its node.
        node: String,
    },
    /// Its custom resource is on another node.
    #[error(
        "image {image} on {node} belongs to node {owner}, which has {what}: give the node its old name, or move the disk back; to give up the image, delete that first"
    )]
    Elsewhere {
        /// The image.
        image: String,
        /// The node that it lies on.
        node: String,
        /// What it says that it is.
        what: String,
        /// The node that it belongs to.
        owner: String,
    },
    /// Somebody else has the name.
    #[error(
        "{kind} {name} exists already, with another image: it has to go first, or this image stays as it is"
    )]
    Taken {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
    },
    /// The node does not take it.
    #[error("{name} is not taken up: {message}; nothing was changed")]
    Refused {
        /// Name of the object.
        name: String,
        /// The agent's words.
        message: String,
    },
    /// The image was gone.
    #[error(
        "the image {image} was gone by now: {kind} {name} stands for image {made}, and is kept; look at what is in it, and set its spec.deletionRequested only if that is not needed"
    )]
    Gone {
        /// The image.
        image: String,
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// The image of the object.
        made: String,
    },
    /// The node is slow, or away, and has promised nothing.
    #[error(
        "{name} is not taken up, because it waits for its node: {waits_for}; nothing was changed: repeat the command, or see `kubectl cistern status`"
    )]
    Late {
        /// Name of the object.
        name: String,
        /// What it waits for.
        waits_for: String,
    },
    /// The node has admitted the object, and is slow, or away.
    #[error(
        "{kind} {name} is admitted and kept, and waits for its node: {waits_for}; see `kubectl cistern status`"
    )]
    Pending {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// What it waits for.
        waits_for: String,
    },
    /// The node has not removed the image yet.
    #[error(
        "{kind} {name} is being removed, and waits for its node: {waits_for}; see `kubectl cistern status`"
    )]
    NotRemoved {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// What it waits for.
        waits_for: String,
    },
    /// Something of Kubernetes stands for it, or waits for it.
    #[error(
        "{kind} {name} is no orphan: a {owner} or what it is made for stands for it; delete that, and the volume or snapshot goes with it"
    )]
    Claimed {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// The kind that stands for it.
        owner: &'static str,
    },
    /// Nobody can tell whether something stands for it.
    #[error("nobody knows whether {kind} {name} is claimed: {why}; nothing was changed")]
    NotKnown {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// It is being removed.
    #[error("PoolVolume {name} is being removed: nothing was changed")]
    Leaving {
        /// Its name.
        name: String,
    },
    /// A snapshot that has its image.
    #[error(
        "PoolSnapshot {name} has its image: create a VolumeSnapshotContent whose snapshotHandle is {name}"
    )]
    HasImage {
        /// Its name.
        name: String,
    },
    /// Nobody has said yes.
    #[error("not confirmed: nothing was changed (--yes goes without asking)")]
    NotConfirmed,
    /// The answer cannot be read.
    #[error("the answer cannot be read: nothing was changed (--yes goes without asking)")]
    Answer(#[source] io::Error),
    /// A claim that is none.
    #[error("--claim is {claim:?}: write NAMESPACE/NAME")]
    Claim {
        /// What was written.
        claim: String,
    },
}

/// Runs one of the commands.
pub async fn run(
    connection: &Connection,
    flags: arguments::Orphans,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    match flags.command {
        None => list(connection, &flags.only, flags.output, printer).await,
        Some(OrphansCommand::List(flags)) => {
            list(connection, &flags.only, flags.output, printer).await
        }
        Some(OrphansCommand::Adopt(flags)) => adopt(connection, &flags, printer).await,
        Some(OrphansCommand::Reclaim(flags)) => reclaim(connection, &flags, printer).await,
    }
}

/// What is meant by a name.
enum Target {
    /// An image without custom resource.
    Image(Choice),
    /// A custom resource that nobody claims.
    Object(Wish),
}

async fn list(
    connection: &Connection,
    only: &Selection,
    output: Output,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let cluster = Cluster::own(connection).await?;
    let known = Known::read(connection).await?;
    let now = chrono::Utc::now();
    let mut view = Orphans::of(&cluster, only, now);
    view.unclaimed = known.unclaimed(&cluster, only, now);
    view.unread = known.unread().map(str::to_owned).collect();
    printer.print(&view, output.format)
}

async fn choose(
    connection: &Connection,
    chosen: &Chosen,
) -> Result<(Cluster, Target), crate::Error> {
    let cluster = Cluster::with_users(connection).await?;
    let target = match list::choose(&cluster, &chosen.name, &chosen.only) {
        Ok(choice) => Target::Image(choice),
        Err(Error::Unknown { name }) => {
            let known = Known::read(connection).await?;
            let object = known.choose(&cluster, &name, &chosen.only)?;
            Target::Object(object.ok_or(Error::Unknown { name })?)
        }
        Err(error) => return Err(error.into()),
    };
    Ok((cluster, target))
}

async fn reclaim(
    connection: &Connection,
    flags: &arguments::Reclaim,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let (cluster, target) = choose(connection, &flags.chosen).await?;
    let (what, name) = match &target {
        Target::Image(choice) => (choice.to_string(), choice.identity.name.clone()),
        Target::Object(object) => (unclaimed::describe(object), object.name()),
    };
    if !flags.yes {
        confirm::confirm(
            &what,
            &name,
            &mut io::stdin().lock(),
            &mut Terminal::stderr(),
        )?;
    }
    let patience = flags.chosen.timeout;
    match &target {
        Target::Image(choice) => {
            reclaim::reclaim(connection, &cluster, choice, patience).await?;
        }
        Target::Object(object) => {
            // Somebody may have claimed it while the question stood.
            let known = Known::read(connection).await?;
            known.choose(&cluster, &name, &flags.chosen.only)?;
            reclaim::remove_object(connection, object, patience).await?;
        }
    }
    printer.write(&format!("{} is removed\n", one_line(&what)))?;
    Ok(Verdict::Well)
}

async fn adopt(
    connection: &Connection,
    flags: &Adopt,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let claim = flags
        .claim
        .as_deref()
        .map(persistent_volume::parse_claim)
        .transpose()?;
    let (cluster, target) = choose(connection, &flags.chosen).await?;
    let patience = flags.chosen.timeout;
    let volume = match target {
        Target::Object(object) => {
            crate::tell(&[format!("{} has its image", unclaimed::describe(&object))]);
            unclaimed::as_volume(object)?
        }
        Target::Image(choice) => {
            let adopted = adopt::adopt(connection, &cluster, &choice, patience).await?;
            let (kind, name) = (adopted.kind(), adopted.name());
            crate::tell(&[format!("{choice} is taken up again as {kind} {name}")]);
            let Wish::Volume(volume) = adopted else {
                return Ok(Verdict::Well);
            };
            volume
        }
    };
    let class = &flags.storage_class;
    let manifest = persistent_volume::of(&volume, class, claim.as_ref());
    match flags.persistent_volume {
        PersistentVolumeWish::None => {}
        PersistentVolumeWish::Print => {
            let text = serde_saphyr::to_string(&manifest).map_err(io::Error::other)?;
            printer.write(&text)?;
        }
        PersistentVolumeWish::Create => {
            persistent_volume::create(connection, &cluster, &manifest).await?;
        }
    }
    Ok(Verdict::Well)
}
