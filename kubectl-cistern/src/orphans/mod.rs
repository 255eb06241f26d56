//! `orphans`: lists, adopts or reclaims images that no custom resource claims.
//!
//! ```text
//! list      orphans as the agents report them
//! adopt     create a custom resource with the image's identity ─▶ the agent adopts the image
//! reclaim   adopt ─▶ spec.deletionRequested ─▶ the agent removes the image ─▶ delete the custom resource
//! ```
//!
//! *Invariant:* the agent removes an image because of `spec.deletionRequested`. Only `reclaim` sets that on
//! an admitted custom resource, and only after the agent has reported this image as the image of the
//! custom resource.

pub mod adopt;
pub mod confirm;
pub mod custom_resource;
pub mod list;
pub mod persistent_volume;
pub mod reclaim;
pub mod unclaimed;

use std::io;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;

use self::{
    custom_resource::CustomResource,
    list::{Orphans, SelectedOrphan},
    unclaimed::{OwnerIndex, OwnersUnknown},
};
use crate::{
    Connection, Printer, Verdict,
    arguments::{
        self, Adopt, OrphanArguments, OrphansCommand, Output, PersistentVolumeAction, Selection,
    },
    cluster::Cluster,
    output::{Terminal, one_line},
    unreadable::UnreadableObjects,
};

/// Error of `orphans`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No orphan has this name.
    #[error("no orphan is called {name:?}: see `kubectl cistern orphans`")]
    Unknown {
        /// Name in the arguments.
        name: String,
    },
    /// Several orphans have this name.
    #[error("{count} orphans are called {name:?}: name the image, or --pool and --node")]
    Ambiguous {
        /// Name in the arguments.
        name: String,
        /// Number of orphans.
        count: usize,
    },
    /// The image has no identity.
    #[error(
        "the image {image} in pool {pool} on {node} has no identity, so no custom resource can claim it: \
        inspect it on the node, and move it away there"
    )]
    NoIdentity {
        /// Name of the image.
        image: String,
        /// Name of the pool.
        pool: String,
        /// Name of the node.
        node: String,
    },
    /// The custom resource of the image is on another node.
    #[error(
        "image {image} on {node} belongs to node {owner}, which has {what}: if the disk has moved, follow \"A disk \
        moves to another machine\" in docs/recovery.md; to give up the image, delete that first"
    )]
    OnOtherNode {
        /// Name of the image.
        image: String,
        /// Node on which the image is.
        node: String,
        /// Identity of the image.
        what: String,
        /// Node of the custom resource.
        owner: String,
    },
    /// A custom resource of this name exists.
    #[error(
        "{kind} {name} already exists with another image: delete it first, or keep this image as an orphan"
    )]
    NameInUse {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
    },
    /// The agent refused the object.
    #[error("{name} is not adopted: {message}; nothing was changed")]
    Refused {
        /// Name of the object.
        name: String,
        /// Message of the agent.
        message: String,
    },
    /// The image no longer existed, and the agent created another.
    #[error(
        "the image {image} no longer exists: {kind} {name} has image {object_image}, and is kept; inspect its data, \
        and set its spec.deletionRequested only if the data is not needed"
    )]
    Gone {
        /// Name of the image.
        image: String,
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// The image of the object.
        object_image: String,
    },
    /// The agent did not admit the object before the timeout.
    #[error(
        "{name} is not adopted, because it waits for its node: {waits_for}; nothing was changed: repeat the command, \
        or see `kubectl cistern status`"
    )]
    TimedOut {
        /// Name of the object.
        name: String,
        /// Message of the condition that the object waits for.
        waits_for: String,
    },
    /// The agent admitted the object, but did not report its image before the timeout.
    #[error(
        "{kind} {name} is admitted and kept, and waits for its node: {waits_for}; see `kubectl cistern status`"
    )]
    Waiting {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// Message of the condition that the object waits for.
        waits_for: String,
    },
    /// The agent did not remove the image before the timeout.
    #[error(
        "{kind} {name} is being removed, and waits for its node: {waits_for}; see `kubectl cistern status`"
    )]
    NotRemoved {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// Message of the condition that the object waits for.
        waits_for: String,
    },
    /// An object owns the volume or snapshot, or waits for it.
    #[error(
        "{kind} {name} is not an orphan: a {owner}, or a claim or VolumeSnapshot that waits for it, owns it, or a \
        VolumeMove moves it; wait until the move has ended, or delete the owner to remove the volume or snapshot"
    )]
    Claimed {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// Kind of the owner.
        owner: &'static str,
    },
    /// The owner cannot be determined.
    #[error("it is unknown whether {kind} {name} is claimed: {why}; nothing was changed")]
    OwnerUnknown {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
        /// Why the owners are not known.
        why: OwnersUnknown,
    },
    /// The volume is being removed.
    #[error("PoolVolume {name} is being removed: nothing was changed")]
    Deleting {
        /// Name of the object.
        name: String,
    },
    /// The snapshot has its image and needs no adoption.
    #[error(
        "PoolSnapshot {name} has its image: create a VolumeSnapshotContent whose snapshotHandle is {name}"
    )]
    HasImage {
        /// Name of the object.
        name: String,
    },
    /// The user did not confirm.
    #[error("not confirmed: nothing was changed (--yes skips the prompt)")]
    NotConfirmed,
    /// Reading from standard input failed.
    #[error("the answer cannot be read: nothing was changed (--yes skips the prompt)")]
    Answer(#[source] io::Error),
    /// No class names the Secret of an encrypted volume.
    #[error(
        "volume {name} is encrypted, and its PersistentVolume has to name the Secret with the key: no PersistentVolume \
        was made; set --storage-class to the class of the volume, which names the Secret"
    )]
    SecretUnknown {
        /// Name of the volume.
        name: String,
    },
    /// The class names the Secret of an encrypted volume by its claim.
    #[error(
        "StorageClass {class} names the Secret with the key of a volume by {template:?}: no PersistentVolume was made; \
        set --claim to the claim of the volume"
    )]
    SecretOfClaim {
        /// Name of the class.
        class: String,
        /// Value of its parameter.
        template: String,
    },
    /// The class names the Secret of an encrypted volume by what this command does not know.
    #[error(
        "StorageClass {class} names the Secret with the key of a volume by {template:?}, which this command cannot \
        resolve: no PersistentVolume was made; set --storage-class to a class that names the Secret itself"
    )]
    SecretTemplate {
        /// Name of the class.
        class: String,
        /// Value of its parameter.
        template: String,
    },
    /// The value of --claim is invalid.
    #[error("invalid --claim {claim:?}: the format is NAMESPACE/NAME")]
    Claim {
        /// Value of the flag.
        claim: String,
    },
}

/// Runs a subcommand; the default is `list`. Fails with an [`Error`] if the orphan cannot be
/// adopted or reclaimed, if a request fails, or if the output cannot be written.
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

/// Object that a name selects.
enum Target {
    /// An image without a custom resource.
    Image(SelectedOrphan),
    /// An unclaimed custom resource.
    Object(CustomResource),
}

async fn list(
    connection: &Connection,
    only: &Selection,
    output: Output,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let cluster = Cluster::own(connection).await?;
    cluster.unreadable.warn(&UnreadableObjects::default());
    let known = OwnerIndex::read(connection).await?;
    let now = chrono::Utc::now();
    let mut view = Orphans::of(&cluster, only, now);
    view.unclaimed = known.unclaimed(&cluster, only, now);
    view.unread = known.unread().map(ToString::to_string).collect();
    printer.print(&view, output.format)
}

async fn choose(
    connection: &Connection,
    orphan: &OrphanArguments,
) -> Result<(Cluster, Target), crate::Error> {
    let cluster = Cluster::with_users(connection).await?;
    cluster.require_all_data()?;
    cluster.unreadable.warn(&UnreadableObjects::default());
    let target = match list::choose(&cluster, &orphan.name, &orphan.only) {
        Ok(choice) => Target::Image(choice),
        Err(Error::Unknown { name }) => {
            let known = OwnerIndex::read(connection).await?;
            let object = known.choose(&cluster, &name, &orphan.only)?;
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
    let (cluster, target) = choose(connection, &flags.orphan).await?;
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
    let timeout = flags.orphan.timeout;
    match &target {
        Target::Image(choice) => {
            reclaim::reclaim(connection, &cluster, choice, timeout).await?;
        }
        Target::Object(object) => {
            // The object may have been claimed during the prompt.
            let known = OwnerIndex::read(connection).await?;
            known.choose(&cluster, &name, &flags.orphan.only)?;
            reclaim::remove_object(connection, object, timeout).await?;
        }
    }
    printer.write(&format!("{} is removed\n", one_line(&what)))?;
    Ok(Verdict::Ok)
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
    let (cluster, target) = choose(connection, &flags.orphan).await?;
    let timeout = flags.orphan.timeout;
    let mut classes = cluster.classes.iter();
    let wanted = persistent_volume::Wanted {
        class_name: &flags.storage_class,
        class: classes.find(|class| class.name_any() == flags.storage_class),
        claim: claim.as_ref(),
    };
    if flags.persistent_volume != PersistentVolumeAction::None {
        let object = match &target {
            Target::Image(choice) => CustomResource::of(choice, &cluster),
            Target::Object(object) => object.clone(),
        };
        if let CustomResource::Volume(volume) = object {
            persistent_volume::of(&volume, wanted)?;
        }
        if wanted.class.is_none() && !wanted.class_name.is_empty() {
            let name = wanted.class_name;
            crate::print_notes(&[format!(
                "Cistern has no StorageClass {name}: mount options of it are missing"
            )]);
        }
    }
    let volume = match target {
        Target::Object(object) => {
            crate::print_notes(&[format!("{} has its image", unclaimed::describe(&object))]);
            unclaimed::as_volume(object)?
        }
        Target::Image(choice) => {
            let adopted = adopt::adopt(connection, &cluster, &choice, timeout).await?;
            let (kind, name) = (adopted.kind(), adopted.name());
            crate::print_notes(&[format!("{choice} is adopted as {kind} {name}")]);
            let CustomResource::Volume(volume) = adopted else {
                return Ok(Verdict::Ok);
            };
            volume
        }
    };
    let manifest = || persistent_volume::of(&volume, wanted);
    match flags.persistent_volume {
        PersistentVolumeAction::None => {}
        PersistentVolumeAction::Print => print_manifest(&manifest()?, printer)?,
        PersistentVolumeAction::Create => {
            persistent_volume::create(connection, &cluster, &manifest()?).await?;
        }
    }
    Ok(Verdict::Ok)
}

fn print_manifest(manifest: &PersistentVolume, printer: Printer) -> Result<(), crate::Error> {
    let text = serde_saphyr::to_string(manifest).map_err(io::Error::other);
    printer.write(&text.map_err(crate::Error::Rendering)?)
}
