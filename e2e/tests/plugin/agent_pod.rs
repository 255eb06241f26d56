//! The agent as a pod that the API server can reach: no kubelet runs here.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use cistern_crds::names::{COMPONENT_LABEL, NODE_COMPONENT};
use cistern_e2e::objects::write_status;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use crate::{Node, create};

/// The address of this machine. The API server refuses to connect to a pod on the loopback address.
fn own_address() -> IpAddr {
    // Selects a route and sends nothing; the address is one for documentation.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("203.0.113.1:9").unwrap();
    socket.local_addr().unwrap().ip()
}

/// Lets the API server reach the agent as the pod `agent` of a namespace.
pub(super) async fn agent_as_pod(node: &Node, namespace: &str) {
    let listener = TcpListener::bind((own_address(), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let agent = node.driver.node().http();
    tokio::spawn(async move {
        while let Ok((mut caller, _)) = listener.accept().await {
            tokio::spawn(async move {
                // An agent that does not run refuses the connection.
                let Ok(mut agent) = TcpStream::connect(agent).await else {
                    return;
                };
                // A caller that goes away is no error.
                let _ = tokio::io::copy_bidirectional(&mut caller, &mut agent).await;
            });
        }
    });
    let spec = json!({"metadata": {"name": namespace}});
    create(&node.all::<Namespace>(), spec).await;
    let pods: Api<Pod> = Api::namespaced(node.client.clone(), namespace);
    running_agent(&pods, ("agent", node.name.as_str()), address, true).await;
}

/// Creates the running pod of an agent at an address. The pair is the name of the pod and that of its node.
pub(super) async fn running_agent(
    pods: &Api<Pod>,
    (name, node): (&str, &str),
    address: SocketAddr,
    is_ready: bool,
) {
    let ports = json!([{"name": "metrics", "containerPort": address.port()}]);
    let labels = json!({COMPONENT_LABEL: NODE_COMPONENT, "app.kubernetes.io/name": "cistern"});
    let pod = json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "driver", "image": "x", "ports": ports}],
        },
    });
    create(pods, pod).await;
    let ip = address.ip().to_string();
    let ready = if is_ready { "True" } else { "False" };
    let status = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": ready}]});
    write_status(pods, name, status).await;
}
