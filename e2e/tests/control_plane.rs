//! The API server that other tests stand on.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, StorageNode, StoragePool,
    pool::{ImageSource, PoolSource},
    testing::node_pool,
};
use cistern_e2e::{
    ControlPlane, Folder, Process, eventually,
    process::{dying_with_us, workspace},
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::json;

#[tokio::test]
async fn custom_resources_are_served_and_validated() {
    let pools: Api<StoragePool> = Api::all(ControlPlane::shared().await.client());
    let pool = |size: &str| {
        serde_json::from_value::<StoragePool>(json!({
            "apiVersion": "cistern.storage/v1alpha1",
            "kind": "StoragePool",
            "metadata": {"name": "some-pool"},
            "spec": {"nodeSelector": {}, "source": {"image": {"size": size}}},
        }))
        .unwrap()
    };
    let error = pools
        .create(&PostParams::default(), &pool("1Mi"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("at least 1Gi"), "{error}");
    let made = pools
        .create(&PostParams::default(), &pool("4Gi"))
        .await
        .unwrap();
    assert_eq!(made.spec.source.image.unwrap().size, Bytes::gib(4));
}

#[tokio::test]
async fn a_status_has_no_times_and_integers_that_cistern_cannot_read() {
    let nodes: Api<StorageNode> = Api::all(ControlPlane::shared().await.client());
    let node = json!({"apiVersion": "cistern.storage/v1alpha1", "kind": "StorageNode",
        "metadata": {"name": "readable"}, "spec": {"topology": {}}});
    let node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let write = async |status: serde_json::Value| {
        let status = Patch::Merge(json!({"status": status}));
        let parameters = PatchParams::default();
        let written = nodes.patch_status("readable", &parameters, &status).await;
        written.map_err(|error| error.to_string())
    };
    let drift = |since: serde_json::Value| {
        let found = json!({"kind": "Stray", "object": "a", "message": "b", "since": since});
        json!({"drift": [found]})
    };
    for time in [
        json!("2026-01-01T00:00:00x5Z"),
        json!("2026-01-01T00:00:00ZTx"),
        json!("2026-01-01T00:00:00+99:99"),
        json!("2026-02-29T00:00:00Z"),
        json!([]),
        json!(["2026-01-01T00:00:00Z"]),
        json!(1_700_000_000),
    ] {
        let refused = write(drift(time.clone())).await.map(|_| time);
        let error = refused.unwrap_err();
        assert!(error.contains("status.drift[0].since"), "{error}");
    }
    for time in [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.123456Z",
        "2028-02-29T23:59:59.123456789-23:59",
    ] {
        let written = write(drift(json!(time))).await.unwrap();
        let status = written.status.unwrap();
        assert_eq!(
            status.drift[0].since,
            time.parse::<DateTime<Utc>>().unwrap()
        );
    }
    for count in [
        json!(4_294_967_296_u64),
        json!(9_007_199_254_740_993_u64),
        json!(-1),
    ] {
        let refused = write(json!({"unlistedDrift": count})).await.map(|_| count);
        let error = refused.unwrap_err();
        assert!(error.contains("status.unlistedDrift"), "{error}");
    }
    for count in [0, 4_294_967_295] {
        let written = write(json!({"unlistedDrift": count})).await.unwrap();
        assert_eq!(written.status.unwrap().unlisted_drift, count);
    }
}

#[tokio::test]
async fn a_quantity_with_more_than_64_bits_is_read_as_the_largest_size() {
    let client = ControlPlane::shared().await.client();
    let pool = json!({"apiVersion": "cistern.storage/v1alpha1", "kind": "StoragePool",
        "metadata": {"name": "largest"},
        "spec": {"nodeSelector": {}, "source": {"image": {"size": "99Ei"}}}});
    let pool = serde_json::from_value::<DynamicObject>(pool).unwrap();
    let kind = ApiResource::erase::<StoragePool>(&());
    let pools: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    pools.create(&PostParams::default(), &pool).await.unwrap();
    let read: Api<StoragePool> = Api::all(client);
    let read = read.get("largest").await.unwrap();
    assert_eq!(read.spec.source.image.unwrap().size, Bytes(u64::MAX));
}

#[tokio::test]
async fn the_directory_of_a_pool_is_an_absolute_path_and_never_changes() {
    let pools: Api<StoragePool> = Api::all(ControlPlane::shared().await.client());
    let pool = |name: &str, directory: Option<&str>| {
        let mut image = json!({"size": "1Gi"});
        if let Some(directory) = directory {
            image["directory"] = json!(directory);
        }
        serde_json::from_value::<StoragePool>(json!({
            "apiVersion": "cistern.storage/v1alpha1",
            "kind": "StoragePool",
            "metadata": {"name": name},
            "spec": {"nodeSelector": {}, "source": {"image": image}},
        }))
        .unwrap()
    };
    let create = async |name: &str, directory: Option<&str>| {
        let pool = pool(name, directory);
        pools.create(&PostParams::default(), &pool).await
    };
    let too_long = format!("/{}", "d".repeat(512));
    for text in [
        "", "/", "data", "/data/", "//data", "/data/..", "/../data", "/./data", "/a:b", "/a\nb",
        "/a\u{7f}", "/a\u{85}", &too_long,
    ] {
        let refused = create("no-directory", Some(text)).await;
        let error = refused.map(|_| text).unwrap_err().to_string();
        assert!(error.contains("directory"), "{text:?}: {error}");
    }
    for (name, directory) in [
        ("in-data", Some("/data/a b/..c/.d/\u{fc}")),
        ("in-default", None),
    ] {
        let made = create(name, directory).await.unwrap();
        assert_eq!(
            made.spec.source.image.unwrap().directory.as_deref(),
            directory
        );
        for change in [json!("/other"), json!(null)] {
            if directory.is_none() && change.is_null() {
                continue;
            }
            let change = json!({"spec": {"source": {"image": {"directory": change}}}});
            let changed = pools
                .patch(name, &PatchParams::default(), &Patch::Merge(change))
                .await;
            let error = changed.map(|_| name).unwrap_err().to_string();
            assert!(error.contains("directory cannot be changed"), "{error}");
        }
        let grown = json!({"spec": {"source": {"image": {"size": "2Gi"}}}});
        let grown = Patch::Merge(grown);
        pools
            .patch(name, &PatchParams::default(), &grown)
            .await
            .unwrap();
    }
}

/// A StoragePool with this spec, on all nodes.
fn pool_with(name: &str, mut spec: serde_json::Value) -> StoragePool {
    let fields = spec.as_object_mut().unwrap();
    fields.insert("nodeSelector".to_owned(), json!({}));
    serde_json::from_value(json!({
        "apiVersion": "cistern.storage/v1alpha1",
        "kind": "StoragePool",
        "metadata": {"name": name},
        "spec": spec,
    }))
    .unwrap()
}

#[tokio::test]
async fn a_pool_is_a_volume_group_with_a_name_that_lvm_allows() {
    let pools: Api<StoragePool> = Api::all(ControlPlane::shared().await.client());
    let group = |name: &str| json!({"source": {"volumeGroup": {"name": name}}});
    let create = async |name: &str, spec: serde_json::Value| {
        let pool = pool_with(name, spec);
        let made = pools.create(&PostParams::default(), &pool).await;
        made.map_err(|error| error.to_string())
    };
    let longest = "v".repeat(69);
    let too_long = [format!("{longest}v"), format!("{}-", &longest[1..])];
    let [more, hyphen] = &too_long;
    for text in [
        "", ".", "..", "-vg", "a/b", "a b", "\u{fc}", "a\n", more, hyphen,
    ] {
        let error = create("no-group", group(text)).await.unwrap_err();
        assert!(
            error.contains("source.volumeGroup.name"),
            "{text:?}: {error}"
        );
    }
    for (name, group_name) in [
        ("group-1", "vg-data"),
        ("group-2", ".vg_+.0"),
        ("group-3", "..."),
        ("group-4", &longest),
    ] {
        let made = create(name, group(group_name)).await.unwrap();
        let source = made.spec.source;
        assert!(!source.has_images());
        assert_eq!(source.volume_group.unwrap().name, group_name);
    }
}

#[tokio::test]
async fn the_limits_of_io_of_a_pool_are_neither_too_low_nor_too_high() {
    let pools: Api<StoragePool> = Api::all(ControlPlane::shared().await.client());
    let create = async |name: &str, limits: serde_json::Value| {
        let source = json!({"image": {"size": "1Gi"}});
        let spec = json!({"source": source, "limits": {"volumeIO": limits}});
        let pool = pool_with(name, spec);
        let made = pools.create(&PostParams::default(), &pool).await;
        made.map(drop).map_err(|error| error.to_string())
    };
    for (field, value, expected) in [
        ("readBytesPerSecond", json!("100"), "at least 1Mi"),
        ("writeBytesPerSecond", json!("0"), "at least 1Mi"),
        (
            "readIOPS",
            json!(4_294_967_295_u64),
            "less than or equal to",
        ),
        ("writeIOPS", json!(9), "greater than or equal to 10"),
    ] {
        let refused = create("no-io", json!({field: value})).await;
        let error = refused.unwrap_err();
        assert!(error.contains(field) && error.contains(expected), "{error}");
    }
    let lowest = json!({"readBytesPerSecond": "1Mi", "writeIOPS": 10});
    create("little-io", lowest).await.unwrap();
    let highest = json!({"readIOPS": 4_294_967_294_u64});
    create("much-io", highest).await.unwrap();
}

fn replaced_disk() -> serde_json::Value {
    json!({"node": "n", "filesystemUuid": "11111111-1111-4111-8111-111111111111"})
}

/// Fields that no pool has which is a volume group, and what the refusal of each says.
fn refused_of_groups() -> [(&'static str, serde_json::Value, &'static str); 4] {
    [
        ("overcommitPercent", json!(200), "cannot be overcommitted"),
        ("autoscaling", json!({}), "needs usableOnNewNode"),
        (
            "replacedDisks",
            json!([replaced_disk()]),
            "only a pool of images on devices",
        ),
        (
            "reclaimOrphansAfterHours",
            json!(24),
            "orphans in a volume group are not reclaimed",
        ),
    ]
}

#[tokio::test]
async fn a_pool_that_is_a_volume_group_has_only_what_a_volume_group_can_have() {
    let pools: Api<StoragePool> = Api::all(ControlPlane::shared().await.client());
    let with = |field: &str, value: serde_json::Value| {
        let mut spec = json!({"source": {"volumeGroup": {"name": "vg-data"}}});
        spec[field] = value;
        pool_with("only-a-group", spec)
    };
    let both = json!({"volumeGroup": {"name": "vg-data"}, "image": {"size": "1Gi"}});
    let sources = [
        (
            "source",
            both,
            "exactly one of image, device and volumeGroup",
        ),
        (
            "source",
            json!({}),
            "exactly one of image, device and volumeGroup",
        ),
    ];
    for (field, value, expected) in sources.into_iter().chain(refused_of_groups()) {
        let pool = with(field, value);
        let refused = pools.create(&PostParams::default(), &pool).await;
        let error = refused.map(|_| field).unwrap_err().to_string();
        assert!(error.contains(expected), "{field}: {error}");
    }
    let autoscaling = with("autoscaling", json!({"usableOnNewNode": "90Gi"}));
    pools
        .create(&PostParams::default(), &autoscaling)
        .await
        .unwrap();
    for (change, expected) in [
        (json!({"overcommitPercent": 200}), "cannot be overcommitted"),
        (
            json!({"source": {"volumeGroup": {"name": "vg-other"}}}),
            "a pool's volume group cannot be changed",
        ),
        (
            json!({"source": {"volumeGroup": null, "image": {"size": "1Gi"}}}),
            "a pool's kind of source cannot be changed",
        ),
        (
            json!({"source": {"volumeGroup": null, "device": {"paths": ["/dev/a"]}}}),
            "a pool's kind of source cannot be changed",
        ),
    ] {
        let change = Patch::Merge(json!({"spec": change}));
        let changed = pools
            .patch("only-a-group", &PatchParams::default(), &change)
            .await;
        let error = changed.map(|_| expected).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_pool_of_logical_volumes_on_devices_has_only_what_a_volume_group_can_have() {
    let pools: Api<StoragePool> = Api::all(ControlPlane::shared().await.client());
    let refusal = async |field: &str, value: serde_json::Value| {
        let mut spec =
            json!({"source": {"device": {"paths": ["/dev/a"], "engine": "LogicalVolume"}}});
        spec[field] = value;
        let pool = pool_with("logical-volumes", spec);
        let made = pools.create(&PostParams::default(), &pool).await;
        made.err().map(|error| error.to_string())
    };
    for (field, value, expected) in refused_of_groups() {
        let error = refusal(field, value).await.unwrap();
        assert!(error.contains(expected), "{field}: {error}");
    }
    let autoscaling = refusal("autoscaling", json!({"usableOnNewNode": "90Gi"}));
    assert_eq!(autoscaling.await, None);
    // What a pool of images on devices can have, it keeps.
    let images = json!({"source": {"device": {"paths": ["/dev/a"]}}, "overcommitPercent": 200,
        "replacedDisks": [replaced_disk()], "reclaimOrphansAfterHours": 24});
    let images = pool_with("images-on-devices", images);
    let made = pools.create(&PostParams::default(), &images).await.unwrap();
    assert!(made.spec.source.has_images());
}

#[tokio::test]
async fn the_engine_and_the_stripes_of_a_pool_on_devices_do_not_change() {
    let pools: Api<StoragePool> = Api::all(ControlPlane::shared().await.client());
    let create = async |name: &str, engine: Option<&str>, stripes: Option<u32>| {
        let mut device = json!({"paths": ["/dev/a"]});
        if let Some(engine) = engine {
            device["engine"] = json!(engine);
        }
        if let Some(stripes) = stripes {
            device["stripes"] = json!(stripes);
        }
        let pool = json!({"apiVersion": "cistern.storage/v1alpha1", "kind": "StoragePool",
            "metadata": {"name": name}, "spec": {"nodeSelector": {}, "source": {"device": device}}});
        let pool = serde_json::from_value::<DynamicObject>(pool).unwrap();
        let pools: Api<DynamicObject> = Api::all_with(
            ControlPlane::shared().await.client(),
            &ApiResource::erase::<StoragePool>(&()),
        );
        let made = pools.create(&PostParams::default(), &pool).await;
        made.map_err(|error| error.to_string())
    };
    for (engine, stripes, expected) in [
        (Some("Raw"), None, "engine"),
        (Some("LogicalVolume"), Some(1), "stripes"),
        (Some("LogicalVolume"), Some(17), "stripes"),
        (Some("Image"), Some(2), "only logical volumes are striped"),
        (None, Some(2), "only logical volumes are striped"),
    ] {
        let refused = create("no-engine", engine, stripes).await;
        let error = refused.unwrap_err();
        assert!(error.contains(expected), "{engine:?}, {stripes:?}: {error}");
    }
    let change = async |name: &str, device: serde_json::Value| {
        let change = Patch::Merge(json!({"spec": {"source": {"device": device}}}));
        let changed = pools.patch(name, &PatchParams::default(), &change).await;
        changed.map_err(|error| error.to_string())
    };
    let group = Some("LogicalVolume");
    for (name, engine, stripes, changes) in [
        (
            "engine-default",
            None,
            None,
            vec![json!({"engine": "LogicalVolume"})],
        ),
        (
            "engine-linear",
            group,
            None,
            vec![
                json!({"engine": "Image"}),
                json!({"engine": null}),
                json!({"stripes": 2}),
            ],
        ),
        (
            "engine-striped",
            group,
            Some(16),
            vec![json!({"stripes": 2}), json!({"stripes": null})],
        ),
    ] {
        create(name, engine, stripes).await.unwrap();
        for device in changes {
            let error = change(name, device.clone()).await.unwrap_err();
            let expected = "the engine and the stripes of a pool cannot be changed";
            assert!(error.contains(expected), "{name}, {device}: {error}");
        }
        let selector = json!({"paths": null, "selector": {"rotational": false}});
        let changed = change(name, selector).await.unwrap();
        let source = changed.spec.source;
        assert_eq!(source.has_images(), engine.is_none(), "{name}");
        assert_eq!(source.device.unwrap().stripes, stripes, "{name}");
    }
}

#[tokio::test]
async fn the_pools_of_the_examples_are_accepted_with_every_field() {
    let pools: Api<StoragePool> = Api::all(ControlPlane::shared().await.client());
    let strict = PatchParams::apply("examples").dry_run().validation_strict();
    let mut engines = Vec::new();
    for entry in std::fs::read_dir(workspace().join("manifests/examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let objects: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).unwrap();
        for object in objects {
            if object["kind"] != "StoragePool" {
                continue;
            }
            let name = object["metadata"]["name"].as_str().unwrap();
            let applied = pools.patch(name, &strict, &Patch::Apply(&object)).await;
            let accepted = applied.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            engines.push(accepted.spec.source.has_images());
        }
    }
    // Pools of both kinds were found.
    assert!(engines.contains(&true) && engines.contains(&false));
}

#[tokio::test]
async fn a_pool_on_devices_does_not_become_a_volume_group() {
    let pools: Api<StoragePool> = Api::all(ControlPlane::shared().await.client());
    let device = json!({"source": {"device": {"paths": ["/dev/a"]}}});
    let device = pool_with("stays-on-devices", device);
    pools.create(&PostParams::default(), &device).await.unwrap();
    let change = json!({"spec": {"source": {"device": null, "volumeGroup": {"name": "vg"}}}});
    let change = Patch::Merge(change);
    let changed = pools
        .patch("stays-on-devices", &PatchParams::default(), &change)
        .await;
    let error = changed.map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("a pool's kind of source cannot be changed"),
        "{error}"
    );
}

#[tokio::test]
async fn the_pool_of_a_node_can_be_replaced_by_one_of_its_name_in_another_directory() {
    let nodes: Api<StorageNode> = Api::all(ControlPlane::shared().await.client());
    let pool = |uid: &str, directory: Option<&str>| {
        let image = ImageSource {
            size: Bytes::gib(1),
            directory: directory.map(str::to_owned),
        };
        let source = PoolSource {
            image: Some(image),
            ..PoolSource::default()
        };
        json!({"spec": {"topology": {}, "pools": [node_pool("fast", uid, source)]}})
    };
    let mut node = pool("default", None);
    node["apiVersion"] = json!("cistern.storage/v1alpha1");
    node["kind"] = json!("StorageNode");
    node["metadata"] = json!({"name": "successors"});
    let node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    for (uid, directory) in [
        ("in-data", Some("/data")),
        ("in-other", Some("/other")),
        ("default-again", None),
    ] {
        let change = Patch::Merge(pool(uid, directory));
        let changed = nodes
            .patch("successors", &PatchParams::default(), &change)
            .await
            .unwrap();
        let found = &changed.spec.pools[0];
        let found_directory = found.source.image.as_ref().unwrap().directory.as_deref();
        assert_eq!((found.uid.as_str(), found_directory), (uid, directory));
    }
}

#[tokio::test]
async fn tests_share_one_api_server() {
    let (one, other) = (ControlPlane::shared().await, ControlPlane::shared().await);
    assert_eq!(one.kubeconfig(), other.kubeconfig());
    one.client().apiserver_version().await.unwrap();
}

#[tokio::test]
async fn nothing_is_left_of_a_control_plane_whose_test_was_killed() {
    let folder = Folder::new();
    let log = folder.join("log");
    let command = dying_with_us(env!("CARGO_BIN_EXE_control-plane"));
    let mut process = Process::start("control-plane", &log, command);
    let its_folder = eventually("the control plane", Duration::from_mins(5), async || {
        let log = process.log();
        let kubeconfig = log
            .lines()
            .find_map(|l| l.strip_prefix("export KUBECONFIG="));
        kubeconfig
            .and_then(|path| Some(Path::new(path).parent()?.to_owned()))
            .ok_or(log)
    })
    .await;
    assert_eq!(
        processes_that_name(&its_folder).len(),
        2,
        "etcd and kube-apiserver"
    );

    process.kill();
    eventually("its end", Duration::from_mins(2), async || {
        let processes = processes_that_name(&its_folder);
        if processes.is_empty() && !its_folder.exists() {
            Ok(())
        } else {
            Err(format!(
                "processes {processes:?}, folder {}",
                its_folder.display()
            ))
        }
    })
    .await;
}

fn processes_that_name(path: &Path) -> Vec<PathBuf> {
    std::fs::read_dir("/proc")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|process| {
            let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(path.to_str().unwrap())
        })
        .collect()
}
