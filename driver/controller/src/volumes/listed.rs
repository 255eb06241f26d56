//! The listed fields of a volume.

use cistern_crds::{Bytes, PoolVolume, health::VolumeProblem};
use kube::ResourceExt as _;

use super::SourceReference;
use crate::objects::listing::Listed;

/// A volume that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVolume {
    /// The volume id: the name of the PoolVolume.
    pub id: Box<str>,
    /// Actual size in bytes.
    pub size: Bytes,
    /// The node that holds it.
    pub node: Box<str>,
    /// The pool that it is in.
    pub pool: Box<str>,
    /// The name of its image; None if the agent has not reported it.
    pub image: Option<Box<str>>,
    /// The problems that its node reports.
    pub problems: Box<[VolumeProblem]>,
    /// Its source, which may no longer exist.
    pub source: Option<SourceReference>,
}

impl Listed for ListedVolume {
    type Object = PoolVolume;

    fn of(volume: &PoolVolume) -> Option<Self> {
        let status = volume.status.as_ref()?;
        let gone = volume.spec.deletion_requested && status.reserved.is_none();
        Some(Self {
            id: volume.name_any().into(),
            size: status.size.filter(|_| !gone)?,
            node: volume.spec.node_name.as_str().into(),
            pool: volume.spec.pool_name.as_str().into(),
            image: status.image.as_ref().map(|image| image.uid.as_str().into()),
            problems: status.problems.as_slice().into(),
            source: volume.spec.content_source.as_ref().map(Into::into),
        })
    }

    fn id(&self) -> &str {
        &self.id
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::PoolVolumeStatus;

    use super::*;
    use crate::testing::{ready_volume, wanted_volume};

    #[test]
    fn lv_02_a_volume_is_listed_from_when_it_can_be_used_until_its_data_is_gone() {
        type Change = fn(&mut PoolVolume, &mut PoolVolumeStatus);
        let life: [(&str, Change, bool); 6] = [
            ("placed", |_, s| *s = PoolVolumeStatus::default(), false),
            ("admitted", |_, s| s.size = None, false),
            ("made", |_, _| {}, true),
            (
                "to be deleted",
                |v, _| v.spec.deletion_requested = true,
                true,
            ),
            (
                "reclaimed",
                |v, s| {
                    v.spec.deletion_requested = true;
                    s.reserved = None;
                },
                false,
            ),
            ("never asked to go", |_, s| s.reserved = None, true),
        ];
        for (stage, change, listed) in life {
            let mut volume = ready_volume();
            let mut status = volume.status.take().unwrap();
            change(&mut volume, &mut status);
            volume.status = Some(status);
            assert_eq!(ListedVolume::of(&volume).is_some(), listed, "{stage}");
        }
        assert_eq!(ListedVolume::of(&wanted_volume()), None);
    }
}
