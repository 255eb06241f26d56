//! Loop devices of images, read from sysfs through an exec into the node plugin's pods. No API object
//! records them.

use std::collections::BTreeSet;

use cistern_client::Chain;
use cistern_crds::names::{COMPONENT_LABEL, NODE_COMPONENT};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{AttachParams, ListParams},
};
use tokio::io::AsyncReadExt as _;

use crate::{Connection, Error, volumes::Devices};

/// Container of the node plugin in its pods.
const CONTAINER: &str = "driver";
/// Prints each loop device with its backing file. `grep` fails without output if there is none.
const COMMAND: [&str; 3] = [
    "sh",
    "-c",
    "grep -s . /sys/block/loop*/loop/backing_file || true",
];
/// Maximum number of nodes that are queried at the same time.
const AT_ONCE: usize = 8;

/// Reads the loop devices of these nodes. Nodes that cannot be read are reported in `unread`. Fails
/// if the pods of the node plugin cannot be listed.
pub async fn read(
    connection: &Connection,
    nodes: &BTreeSet<String>,
    unread: &mut Vec<String>,
) -> Result<Devices, Error> {
    let pods: Api<Pod> = connection.in_system();
    let agents = ListParams::default().labels(&format!("{COMPONENT_LABEL}={NODE_COMPONENT}"));
    let agents = connection.list(pods.clone(), agents).await?;
    let asked = agents.iter().filter_map(|pod| {
        let node = pod.spec.as_ref()?.node_name.clone()?;
        nodes.contains(&node).then(|| (node, pod.name_any()))
    });
    let answers = stream::iter(asked.collect::<Vec<_>>())
        .map(|(node, pod)| {
            let pods = &pods;
            async move {
                let what = format!("cannot read the loop devices of {node} from pod {pod}");
                let printed = connection.ask(what, print(pods, &pod)).await;
                (node, printed)
            }
        })
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let mut devices = Devices::new();
    for (node, printed) in answers {
        match printed {
            Ok(printed) => devices.extend(parse(&node, &printed)),
            Err(error) => unread.push(Chain(&error).to_string()),
        }
    }
    Ok(devices)
}

async fn print(pods: &Api<Pod>, pod: &str) -> Result<String, kube::Error> {
    let parameters = AttachParams::default().container(CONTAINER).stderr(false);
    let mut process = pods.exec(pod, COMMAND, &parameters).await?;
    let mut printed = Vec::new();
    if let Some(mut stdout) = process.stdout() {
        let read = stdout.read_to_end(&mut printed).await;
        read.map_err(|error| kube::Error::Service(error.into()))?;
    }
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

/// Parses lines like `/sys/block/loop7/loop/backing_file:/var/lib/cistern/pools/…/images/<image>`.
fn parse(node: &str, printed: &str) -> Devices {
    let device = |line: &str| {
        let (attribute, file) = line.split_once(':')?;
        let name = attribute.strip_prefix("/sys/block/")?.split('/').next()?;
        let (_, image) = file.rsplit_once("/images/")?;
        let key = (node.to_owned(), image.to_owned());
        Some((key, format!("/dev/{name}")))
    };
    printed.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_devices_are_indexed_by_image_and_devices_of_other_files_are_ignored() {
        let printed = "\
/sys/block/loop0/loop/backing_file:/var/lib/snapd/core.snap
/sys/block/loop3/loop/backing_file:/var/lib/cistern/pools/uid-of-fast/images/uid-1
/sys/block/loop12/loop/backing_file:/images/uid-2
something else
";
        let devices = parse("n", printed);
        let of = |image: &str| devices.get(&("n".to_owned(), image.to_owned())).cloned();
        assert_eq!(of("uid-1").as_deref(), Some("/dev/loop3"));
        assert_eq!(of("uid-2").as_deref(), Some("/dev/loop12"));
        assert_eq!(devices.len(), 2);
    }
}
