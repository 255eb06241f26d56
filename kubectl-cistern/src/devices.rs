//! Which loop device each image has: the kernel of its node knows, and nobody else.

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

/// The container of the node plugin's pods.
const CONTAINER: &str = "driver";
/// Prints each loop device with its file. It says nothing, and fails, where there is none.
const COMMAND: [&str; 3] = [
    "sh",
    "-c",
    "grep -s . /sys/block/loop*/loop/backing_file || true",
];
/// Nodes that are asked at a time.
const AT_ONCE: usize = 8;

/// Asks the node plugins of these nodes. One that does not answer is told of in `unread`.
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
                let what = format!("cannot ask {pod} for the loop devices of {node}");
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

/// Reads lines like `/sys/block/loop7/loop/backing_file:/var/lib/cistern/pools/…/images/<image>`.
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
    fn loop_devices_over_images_are_found_by_the_image_and_others_passed_over() {
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
