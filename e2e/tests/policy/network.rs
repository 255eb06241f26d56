//! Pods and ports that the network policy covers, as the API server stores it. The network plugin
//! enforces the policy, which is not tested here.

use cistern_crds::names::TRANSFER_PORT;
use serde_json::{Value, json};

use crate::installed::{Installed, ask};

#[tokio::test]
async fn the_network_policies_leave_the_ports_of_metrics_to_prometheus_and_those_of_transfers_to_cistern()
 {
    let cluster = Installed::start_in("storage").await;
    let (admin, namespace) = (&cluster.admin(), cluster.namespace());
    let list = async |group: &str, resource: &str| {
        let path = format!("/apis/{group}/v1/namespaces/{namespace}/{resource}");
        let mut list = ask(admin, "GET", &path, &Value::Null).await.unwrap();
        list["items"].take().as_array().unwrap().clone()
    };
    let policies = list("networking.k8s.io", "networkpolicies").await;
    let [policy, snapshot_metadata, transfers] = &policies[..] else {
        panic!("{policies:?}");
    };
    let spec = &policy["spec"];
    assert_eq!(spec["policyTypes"], serde_json::json!(["Ingress"]));
    let rules = spec["ingress"].as_array().unwrap();
    let from = rules[0]["from"].as_array().unwrap();
    assert!(rules.len() == 1 && from.len() == 1, "{spec}");
    assert!(
        from[0]["namespaceSelector"]["matchLabels"].is_object(),
        "{spec}"
    );
    let open = rules[0]["ports"].as_array().unwrap();
    let is_open = |port: u64| {
        let range = |rule: &Value| {
            let first = rule["port"].as_u64().unwrap();
            first..=rule["endPort"].as_u64().unwrap_or(first)
        };
        open.iter().any(|rule| range(rule).contains(&port))
    };

    let component = |name: &str| json!({"app.kubernetes.io/name": "cistern", "app.kubernetes.io/component": name});
    let (node, controller) = (component("node"), component("controller"));
    let front = &snapshot_metadata["spec"];
    assert_eq!(front["podSelector"]["matchLabels"], controller);
    // The port of the sidecar that asks for a token, to everybody, and no other one.
    let port = json!({"protocol": "TCP", "port": 50051});
    assert_eq!(front["ingress"], json!([{"ports": [port]}]));
    let spec_of_transfers = &transfers["spec"];
    assert_eq!(spec_of_transfers["podSelector"]["matchLabels"], node);
    let rule = &spec_of_transfers["ingress"][0];
    assert_eq!(
        rule["from"],
        json!([{"podSelector": {"matchLabels": node}}, {"podSelector": {"matchLabels": controller}}])
    );
    let of_transfers = &rule["ports"][0]["port"];

    let mut workloads = list("apps", "deployments").await;
    workloads.extend(list("apps", "daemonsets").await);
    assert_eq!(workloads.len(), 3);
    for workload in &workloads {
        let template = &workload["spec"]["template"];
        for (label, value) in spec["podSelector"]["matchLabels"].as_object().unwrap() {
            assert_eq!(&template["metadata"]["labels"][label], value, "{workload}");
        }
        assert_ne!(template["spec"]["hostNetwork"], true, "{workload}");
        let containers = template["spec"]["containers"].as_array().unwrap();
        for port in containers
            .iter()
            .flat_map(|it| it["ports"].as_array().unwrap())
        {
            if port["name"] == TRANSFER_PORT {
                assert_eq!(
                    &template["metadata"]["labels"]["app.kubernetes.io/component"],
                    "node"
                );
                assert_eq!(&port["containerPort"], of_transfers);
                assert!(!is_open(of_transfers.as_u64().unwrap()), "{port}");
            } else {
                assert!(is_open(port["containerPort"].as_u64().unwrap()), "{port}");
            }
        }
    }
}
