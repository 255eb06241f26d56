//! Which volumes move together. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cistern_crds::volume::ClaimReference;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;

use crate::cluster::{Cluster, claim_reference, handle};

/// Names of PoolVolumes that have to be on the same node.
pub(crate) type Link = BTreeSet<String>;

/// The PoolVolumes of claims, each `NAME` or `NAMESPACE/NAME`, or the name of a PoolVolume. Fails with what is wrong
/// with each that has none.
pub(crate) fn named(
    cluster: &Cluster,
    namespace: &str,
    texts: &[String],
) -> Result<BTreeSet<String>, Vec<String>> {
    let (mut found, mut wrong) = (BTreeSet::new(), Vec::new());
    for text in texts {
        match one(cluster, namespace, text) {
            Ok(name) => drop(found.insert(name)),
            Err(why) => wrong.push(why),
        }
    }
    if wrong.is_empty() {
        Ok(found)
    } else {
        Err(wrong)
    }
}

fn one(cluster: &Cluster, namespace: &str, text: &str) -> Result<String, String> {
    let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
    let is_it = |it: &&PersistentVolumeClaim| {
        it.name_any() == name && it.namespace().as_deref() == Some(namespace)
    };
    if let Some(claim) = cluster.claims.iter().find(is_it) {
        let volume = volume_of(cluster, claim);
        return volume.ok_or_else(|| {
            format!("claim {namespace}/{name} is not bound to a volume of Cistern")
        });
    }
    if cluster.volumes.iter().any(|it| it.name_any() == text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "there is no claim {namespace}/{name} of a StorageClass of Cistern, and no PoolVolume {text}"
    ))
}

/// The PoolVolume that a claim is bound to.
fn volume_of(cluster: &Cluster, claim: &PersistentVolumeClaim) -> Option<String> {
    let bound = claim.spec.as_ref()?.volume_name.as_deref()?;
    let mut all = cluster.persistent_volumes.values();
    let found = all.find(|it| it.name_any() == bound)?;
    let name = handle(found)?;
    let exists = cluster.volumes.iter().any(|it| it.name_any() == name);
    exists.then(|| name.to_owned())
}

/// The PoolVolumes of all claims that are bound.
pub(crate) fn by_claim(cluster: &Cluster) -> BTreeMap<ClaimReference, String> {
    let claims = cluster.claims.iter();
    let each =
        claims.filter_map(|claim| Some((claim_reference(claim), volume_of(cluster, claim)?)));
    each.collect()
}

/// What pods use together, and what VolumeMoves name together.
pub(crate) fn links(cluster: &Cluster) -> Vec<Link> {
    let volumes = by_claim(cluster);
    let mut of_pods: BTreeMap<(String, String), Link> = BTreeMap::new();
    for (claim, volume) in &volumes {
        for pod in cluster.pods_with(claim) {
            let pod = (claim.namespace.clone(), pod.name_any());
            of_pods.entry(pod).or_default().insert(volume.clone());
        }
    }
    let mut links: Vec<Link> = of_pods.into_values().collect();
    links.extend(cluster.moves.iter().map(|it| {
        let planned = it.plan().map(|plan| plan.together_with);
        let mut link: Link = it.spec.together_with.iter().cloned().collect();
        link.extend(planned.unwrap_or_default());
        link.retain(|name| cluster.volumes.iter().any(|it| it.name_any() == *name));
        link.insert(it.name_any());
        link
    }));
    links
}

/// The volume, and all that are linked with it through others.
pub(crate) fn group_of(name: &str, links: &[Link]) -> BTreeSet<String> {
    let mut group = BTreeSet::from([name.to_owned()]);
    loop {
        let before = group.len();
        for link in links {
            if !link.is_disjoint(&group) {
                group.extend(link.iter().cloned());
            }
        }
        if group.len() == before {
            return group;
        }
    }
}

/// A volume as messages name it: with its claim.
pub(crate) fn shown(cluster: &Cluster, name: &str) -> String {
    let volume = cluster.volumes.iter().find(|it| it.name_any() == name);
    match volume.and_then(|volume| cluster.claim(volume)) {
        Some(claim) => format!("{}/{} (volume {name})", claim.namespace, claim.name),
        None => format!("volume {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(names: &[&str]) -> Link {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_group_has_the_volumes_that_are_linked_through_others() {
        let links = [
            link(&["c", "d"]),
            link(&["b", "c"]),
            link(&["x", "y"]),
            link(&["a", "b"]),
        ];
        assert_eq!(group_of("a", &links), link(&["a", "b", "c", "d"]));
        assert_eq!(group_of("y", &links), link(&["x", "y"]));
        assert_eq!(group_of("z", &links), link(&["z"]));
    }

    #[test]
    fn claims_are_found_with_and_without_namespace_and_volumes_by_name() {
        let mut cluster = crate::testing::cluster();
        cluster.claims[0].spec.as_mut().unwrap().volume_name = Some("pv-pvc-1".to_owned());
        let find = |text: &str| named(&cluster, "shop", &[text.to_owned()]);
        assert_eq!(find("data"), Ok(link(&["pvc-1"])));
        assert_eq!(find("shop/data"), Ok(link(&["pvc-1"])));
        assert_eq!(find("pvc-2"), Ok(link(&["pvc-2"])));
        assert!(find("more").unwrap_err()[0].contains("is not bound"));
        assert!(find("other/data").unwrap_err()[0].contains("there is no claim other/data"));
    }
}
