//! Whether an image on the disk is the volume's. Pure.

use cistern_crds::{HasImage as _, PoolVolume};
use cistern_host::Owner;
use kube::ResourceExt as _;

use crate::{
    agent::kind::Kind as _,
    image::{Difference, Image, ImageObject},
};

impl ImageObject for PoolVolume {
    fn noun() -> &'static str {
        Self::NOUN
    }

    fn volume(&self) -> String {
        self.name_any()
    }

    fn is_named(&self, owner: &Owner) -> bool {
        owner.volume() == self.metadata.name.as_deref()
    }

    fn is_served_by(&self, image: &Image) -> Result<(), Difference> {
        serves(self, image)
    }
}

/// Checks that the image matches the spec in name, source, size, access type and filesystem. Fails
/// with the first difference.
fn serves(volume: &PoolVolume, image: &Image) -> Result<(), Difference> {
    let spec = &volume.spec;
    let name = volume.metadata.name.clone().unwrap_or_default();
    if image.owner.volume() != Some(&name) {
        return Err(image.differs(
            "owner",
            image.owner.to_string(),
            Owner::Volume(name).to_string(),
        ));
    }
    let expected = spec.content_source.as_ref().map(|source| &source.image);
    if image.source.as_ref() != expected {
        let text = |source: Option<&String>| source.map_or_else(|| "none".to_owned(), Clone::clone);
        return Err(image.differs("source", text(image.source.as_ref()), text(expected)));
    }
    // A larger image is the result of an interrupted growth.
    let granted = volume
        .status
        .as_ref()
        .and_then(|status| status.size.or(status.reserved));
    let expected = granted.unwrap_or(spec.size);
    if image.size < expected {
        return Err(image.differs("size", image.size.to_string(), expected.to_string()));
    }
    let may_be_adopted = spec.adopt_filesystem && volume.filesystem().is_none();
    if may_be_adopted && image.filesystem.is_some() {
        // It was adopted, and the status does not report that yet.
        return Ok(());
    }
    image.holds(
        volume.access_type(),
        volume.filesystem_type(),
        spec.encryption,
    )
}

#[cfg(test)]
mod tests {
    use cistern_crds::{AccessType, Bytes, ContentSource, Reason, SourceKind};

    use super::*;
    use crate::{
        image::is_the_same,
        testing::{image_of_volume, ready_volume, wanted_volume},
    };

    #[test]
    fn every_part_of_an_images_identity_must_agree() {
        let check = |change: fn(&mut Image)| {
            let mut image = image_of_volume();
            change(&mut image);
            let difference = is_the_same(&ready_volume(), &image);
            difference.map_err(|difference| difference.reason())
        };
        let conflict = Err(Reason::IdentityConflict);
        assert_eq!(check(|_| {}), Ok(()));
        let other = |image: &mut Image| image.owner = Owner::Volume("pvc-2".into());
        assert_eq!(check(other), conflict);
        assert_eq!(check(|image| image.source = Some("uid-0".into())), conflict);
        assert_eq!(check(|image| image.size = Bytes::mib(1023)), conflict);
        assert_eq!(
            check(|image| image.access_type = AccessType::Block),
            conflict
        );
        assert_eq!(check(|image| image.filesystem = None), conflict);
        assert_eq!(
            check(|image| image.image.pool_uuid = "other".into()),
            conflict
        );
        // An interrupted growth is no conflict.
        assert_eq!(check(|image| image.size = Bytes::gib(2)), Ok(()));
        let other_filesystem = check(|image| {
            let filesystem = image.filesystem.as_mut().unwrap();
            filesystem.uuid = "33333333-3333-4333-8333-333333333333".into();
        });
        assert_eq!(other_filesystem, Err(Reason::FilesystemConflict));
    }

    #[test]
    fn a_filesystem_in_the_image_of_a_raw_block_volume_is_its_own_if_the_spec_permits_it() {
        let mut volume = ready_volume();
        let filesystem = volume.status.as_mut().unwrap().filesystem.take();
        (volume.spec.access_type, volume.spec.filesystem) = (AccessType::Block, None);
        let image = image_of_volume();
        assert!(is_the_same(&volume, &image).is_err());
        volume.spec.adopt_filesystem = true;
        assert_eq!(is_the_same(&volume, &image), Ok(()));
        let raw = Image {
            access_type: AccessType::Block,
            filesystem: None,
            ..image.clone()
        };
        assert_eq!(is_the_same(&volume, &raw), Ok(()));

        // Once it is reported, the volume has that filesystem and no other.
        volume.status.as_mut().unwrap().filesystem = filesystem;
        assert_eq!(is_the_same(&volume, &image), Ok(()));
        assert!(is_the_same(&volume, &raw).is_err());
        let mut other = image;
        other.filesystem.as_mut().unwrap().uuid = "33333333-3333-4333-8333-333333333333".into();
        assert!(is_the_same(&volume, &other).is_err());
    }

    #[test]
    fn an_image_with_another_source_is_not_adopted() {
        let mut volume = wanted_volume();
        volume.spec.content_source = Some(ContentSource {
            kind: SourceKind::Snapshot,
            name: "snapshot-1".into(),
            image: "uid-0".into(),
            node_name: None,
            snapshot_name: None,
        });
        let mut image = image_of_volume();
        assert!(serves(&volume, &image).is_err());
        image.source = Some("uid-0".into());
        assert_eq!(serves(&volume, &image), Ok(()));
    }

    #[test]
    fn an_image_smaller_than_the_requested_size_is_not_adopted() {
        let mut volume = wanted_volume();
        assert_eq!(serves(&volume, &image_of_volume()), Ok(()));
        volume.spec.size = Bytes::gib(2);
        assert!(serves(&volume, &image_of_volume()).is_err());
    }
}
