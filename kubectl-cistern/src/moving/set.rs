//! Which volumes move together. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cistern_crds::{PoolVolume, volume::ClaimReference};
use kube::ResourceExt as _;

use crate::cluster::{Cluster, claim_reference};

/// Names of PoolVolumes that have to be on the same node.
pub(crate) type Link = BTreeSet<String>;
/// Names of PoolVolumes, by claim.
pub(crate) type Volumes = BTreeMap<ClaimReference, String>;

/// The PoolVolumes of claims, each `NAME` or `NAMESPACE/NAME`, or the name of a PoolVolume. Fails with what is wrong
/// with each that has none.
pub(crate) fn named(
    cluster: &Cluster,
    namespace: &str,
    texts: &[String],
) -> Result<BTreeSet<String>, Vec<String>> {
    let (mut found, mut wrong) = (BTreeSet::new(), Vec::new());
    let volumes = by_claim(cluster);
    for text in texts {
        match one(cluster, &volumes, namespace, text) {
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

fn one(
    cluster: &Cluster,
    volumes: &Volumes,
    namespace: &str,
    text: &str,
) -> Result<String, String> {
    let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
    let claim = ClaimReference {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let mut claims = cluster.claims.iter().map(claim_reference);
    if claims.any(|it| it == claim) {
        return volumes.get(&claim).cloned().ok_or_else(|| {
            format!("claim {namespace}/{name} is not bound to a volume of Cistern")
        });
    }
    if cluster.volume(text).is_some() {
        return Ok(text.to_owned());
    }
    Err(format!(
        "there is no claim {namespace}/{name} of a StorageClass of Cistern, and no PoolVolume {text}"
    ))
}

/// The PoolVolumes of all claims that are bound.
pub(crate) fn by_claim(cluster: &Cluster) -> Volumes {
    let names: BTreeSet<String> = cluster.volumes.iter().map(PoolVolume::name_any).collect();
    let bound = cluster.persistent_volumes.iter();
    let bound = bound.filter(|(handle, _)| names.contains(*handle));
    let bound: BTreeMap<String, &String> = bound
        .map(|(handle, object)| (object.name_any(), handle))
        .collect();
    let each = cluster.claims.iter().filter_map(|claim| {
        let volume = bound.get(claim.spec.as_ref()?.volume_name.as_deref()?)?;
        Some((claim_reference(claim), (*volume).clone()))
    });
    each.collect()
}

/// What pods use together.
pub(crate) fn of_pods(cluster: &Cluster, volumes: &Volumes) -> Vec<Link> {
    let mut of_pods: BTreeMap<(String, String), Link> = BTreeMap::new();
    for (claim, volume) in volumes {
        for pod in cluster.pods_with(claim) {
            let pod = (claim.namespace.clone(), pod.name_any());
            of_pods.entry(pod).or_default().insert(volume.clone());
        }
    }
    of_pods.into_values().collect()
}

/// What pods use together, and what VolumeMoves name together.
pub(crate) fn links(cluster: &Cluster, volumes: &Volumes) -> Vec<Link> {
    let mut links = of_pods(cluster, volumes);
    links.extend(cluster.moves.iter().map(|it| {
        let planned = it.plan().map(|plan| plan.together_with);
        let mut link: Link = it.spec.together_with.iter().cloned().collect();
        link.extend(planned.unwrap_or_default());
        link.retain(|name| cluster.volume(name).is_some());
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

/// The volumes `left`, grouped by what links them, also through others.
pub(crate) fn groups(mut left: BTreeSet<String>, links: &[Link]) -> Vec<BTreeSet<String>> {
    let mut groups = Vec::new();
    while let Some(name) = left.first() {
        let mut group = group_of(name, links);
        group.retain(|it| left.contains(it));
        left.retain(|it| !group.contains(it));
        groups.push(group);
    }
    groups
}

/// A volume as messages name it: with its claim.
pub(crate) fn shown(cluster: &Cluster, name: &str) -> String {
    match cluster
        .volume(name)
        .and_then(|volume| cluster.claim(volume))
    {
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
