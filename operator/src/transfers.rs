//! Permits copies between nodes: an ImageTransfer for each volume that waits for a snapshot of another node, or
//! that moves to another node: in each pass while it is used, and once it is closed.
//!
//! The agent of the source sends only what an ImageTransfer permits, and the agent of the target asks only for
//! that. So a copy is possible from the reservation of the volume, from the snapshot of a pass, or from the closing,
//! until it is made.
//!
//! *Invariant:* an ImageTransfer exists only while its volume waits for it, and names the node that the snapshot is
//! on now. One that names something else is deleted, and created anew.

use cistern_client::{Rejection, writes::delete_exactly};
use cistern_crds::{ImageTransfer, ImageTransferSpec, PoolVolume, TransferPurpose, VolumeMove};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Resource as _};

use crate::{
    Context,
    change::Change,
    cluster_state::ClusterState,
    controller::{Controller, Next},
    creation,
    stored::StoredVolume,
};

/// Why an ImageTransfer is not up to date.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} ImageTransfer {name}")]
pub struct Error {
    verb: &'static str,
    name: String,
    #[source]
    source: kube::Error,
}

/// Creates and deletes ImageTransfers.
#[derive(Debug)]
pub struct TransfersController;

impl Controller for TransfersController {
    type Key = String;
    type Error = Error;
    const NAME: &'static str = "transfers";

    fn keys(&self, context: &Context, change: &Change) -> Vec<String> {
        let (volumes, transfers) = (&context.cluster.volumes, &context.cluster.transfers);
        match change {
            Change::Everything => {
                let mut names = transfers.keys(|_| true);
                names.extend(
                    volumes.keys(|volume| volume.awaits.is_some() || volume.moves.is_some()),
                );
                names.extend(context.cluster.moves.keys(|_| true));
                names
            }
            Change::Volume { name, .. } | Change::Transfer(name) | Change::Move(name) => {
                vec![name.clone()]
            }
            // Its snapshot may be on another node now.
            Change::Snapshot { name, .. } => context.cluster.awaiting(name),
            _ => Vec::new(),
        }
    }

    async fn reconcile(&self, context: &Context, name: &String) -> Result<Next, Error> {
        let cluster = &context.cluster;
        let volume = cluster.volumes.get(name);
        let wanted = volume.and_then(|volume| desired(cluster, name, &volume));
        let found = cluster.transfers.get(name);
        let api = Api::<ImageTransfer>::all(context.client.clone());
        match (wanted, found) {
            (Some(wanted), None) => create(&api, &wanted).await?,
            (Some(wanted), Some(found)) if wanted.spec == found.spec => {}
            // The next reconcile creates it anew, if it is still needed.
            (_, Some(found)) => {
                let deleted = delete_exactly(&api, &*found).await;
                deleted.map_err(|source| failed("delete", name, source))?;
                tracing::info!(volume = name, "deleted the ImageTransfer");
            }
            (None, None) => {}
        }
        Ok(Next::OnChange)
    }
}

/// The ImageTransfer of a volume; None if it needs none.
fn desired(cluster: &ClusterState, name: &str, volume: &StoredVolume) -> Option<ImageTransfer> {
    let move_of = cluster.moves.get(name);
    let spec = restored(cluster, name, volume)
        .or_else(|| moved(name, volume, move_of.as_deref()))
        .or_else(|| passed(name, volume, move_of.as_deref()?))?;
    let mut transfer = ImageTransfer::new(name, spec);
    // Kubernetes deletes it with the volume, also while no operator runs.
    transfer.metadata.owner_references = Some(vec![OwnerReference {
        api_version: PoolVolume::api_version(&()).into_owned(),
        kind: PoolVolume::kind(&()).into_owned(),
        name: name.to_owned(),
        uid: volume.uid.to_string(),
        ..OwnerReference::default()
    }]);
    Some(transfer)
}

/// The copy of the snapshot that a volume waits for; None if it waits for none, or if its snapshot is gone or on its
/// own node.
fn restored(
    cluster: &ClusterState,
    name: &str,
    volume: &StoredVolume,
) -> Option<ImageTransferSpec> {
    let awaits = volume.awaits.as_ref()?;
    let target = &volume.location.as_ref()?.node;
    let snapshot = cluster.snapshots.get(&awaits.snapshot)?;
    let source = &snapshot.location.as_ref()?.node;
    (source != target).then(|| ImageTransferSpec {
        source_node: source.to_string(),
        target_node: target.to_string(),
        snapshot_name: Some(awaits.snapshot.to_string()),
        move_uid: None,
        image: awaits.image.to_string(),
        base_image: None,
        volume_name: name.to_owned(),
        purpose: TransferPurpose::Restore,
    })
}

/// The copy of a volume that moves; None until it is closed.
fn moved(
    name: &str,
    volume: &StoredVolume,
    move_of: Option<&VolumeMove>,
) -> Option<ImageTransferSpec> {
    let declared = volume.moves.as_ref()?;
    let move_of = move_of.filter(|it| it.move_uid() == *declared.uid);
    let prepared = move_of.and_then(|it| it.status.as_ref()?.prepared.clone());
    Some(ImageTransferSpec {
        source_node: volume.location.as_ref()?.node.to_string(),
        target_node: declared.node.to_string(),
        snapshot_name: None,
        move_uid: Some(declared.uid.to_string()),
        image: declared.closed_image.as_ref()?.to_string(),
        base_image: prepared.map(|it| it.image),
        volume_name: name.to_owned(),
        purpose: TransferPurpose::Move,
    })
}

/// A pass of a volume that is used while it moves; None between passes, and once the new node is declared.
fn passed(name: &str, volume: &StoredVolume, move_of: &VolumeMove) -> Option<ImageTransferSpec> {
    let status = move_of.status.as_ref()?;
    let (plan, pass) = (status.plan.as_ref()?, status.copying.as_ref()?);
    let is_here = volume.location.as_ref()?.node.as_ref() == plan.from_node;
    let is_leaving = move_of.metadata.deletion_timestamp.is_some();
    if !is_here || is_leaving || volume.moves.is_some() {
        return None;
    }
    Some(ImageTransferSpec {
        source_node: plan.from_node.clone(),
        target_node: plan.to_node.clone(),
        snapshot_name: Some(pass.snapshot_name.clone()),
        move_uid: Some(move_of.move_uid()),
        image: pass.image.clone()?,
        base_image: pass.base_image.clone(),
        volume_name: name.to_owned(),
        purpose: TransferPurpose::Move,
    })
}

async fn create(api: &Api<ImageTransfer>, transfer: &ImageTransfer) -> Result<(), Error> {
    let ImageTransferSpec {
        volume_name,
        snapshot_name,
        source_node,
        target_node,
        ..
    } = &transfer.spec;
    match api.create(&creation::parameters(), transfer).await {
        Ok(_) => {
            tracing::info!(
                volume = volume_name,
                snapshot = snapshot_name.as_deref(),
                from = source_node,
                to = target_node,
                "created the ImageTransfer"
            );
            Ok(())
        }
        // The cache lags behind.
        Err(error) if Rejection::from(&error) == Rejection::AlreadyExists => Ok(()),
        Err(source) => Err(failed("create", volume_name, source)),
    }
}

fn failed(verb: &'static str, name: &str, source: kube::Error) -> Error {
    let name = name.to_owned();
    Error { verb, name, source }
}
