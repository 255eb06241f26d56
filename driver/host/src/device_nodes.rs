//! The nodes of the devices of volumes that are bind-mounted: raw block volumes, staged and published.

use std::{io, path::Path};

use crate::{
    id::Uid,
    mount_target::MountTarget,
    system::{self, DeviceNumber, Mount, System},
    volume_device,
};

/// Lists the mounts of the nodes of a volume, which this number identifies, as far as this process
/// sees: at staging and target paths, and where kubelet bind-mounts a target again for its pod.
pub(crate) fn nodes_of(system: &dyn System, number: DeviceNumber) -> io::Result<Vec<Mount>> {
    let nodes = nodes_among(system, &system.mounts()?, |found| found == number)?;
    Ok(nodes.into_iter().map(|(_, mount)| mount).collect())
}

/// Returns the mounts that can be nodes of volumes, each with the number that identifies its volume. Does not open those of
/// other volumes than the wanted ones.
pub(crate) fn nodes_among(
    system: &dyn System,
    mounts: &[Mount],
    is_wanted: impl Fn(DeviceNumber) -> bool,
) -> io::Result<Vec<(DeviceNumber, Mount)>> {
    let mut all = Vec::new();
    for mount in mounts {
        // Filters by name first: the filesystem of another mount may hang.
        let Some(number) = named_device(system, mount)?.filter(|number| is_wanted(*number)) else {
            continue;
        };
        // Opens it through its directory: the full path may exceed the limit of the kernel.
        let node = MountTarget::open(system, &mount.mount_point);
        match node.and_then(|node| node.device()) {
            Ok(device) if device == Some(number) => {
                all.push((number, mount.clone()));
            }
            Ok(_) => {}
            Err(error) if is_no_directory(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Returns the number that identifies the volume whose node is mounted, judged by the name of the node.
pub(crate) fn named_device(system: &dyn System, mount: &Mount) -> io::Result<Option<DeviceNumber>> {
    let named = node_name(&mount.root).and_then(|name| system::node_number(&name));
    let device = named.map(|device| system.beneath(device)).transpose()?;
    match device {
        Some(device) if volume_device::is_possible(system, device)? => Ok(Some(device)),
        Some(_) | None => Ok(None),
    }
}

/// Returns the name of the mounted file, even if it was removed.
fn node_name(root: &Path) -> Option<String> {
    let text = root.to_str()?;
    let text = text.strip_suffix("//deleted").unwrap_or(text);
    let (_, name) = text.rsplit_once('/')?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Whether a node of an image's device is at a staging path, not at a target path.
pub(crate) fn is_staging(node: &Mount, image: &Uid) -> bool {
    node.mount_point.file_name() == Some(image.as_ref())
}

/// Whether a path does not exist.
pub(crate) fn is_no_directory(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_recognized_by_its_name_even_when_it_was_removed() {
        let name = |root: &str| node_name(Path::new(root));
        assert_eq!(name("/loop5").as_deref(), Some("loop5"));
        assert_eq!(name("/var/lib/cistern/dev/7-5").as_deref(), Some("7-5"));
        assert_eq!(name("/7-5//deleted").as_deref(), Some("7-5"));
        assert_eq!(name("/"), None);
    }
}
