//! CreateVolume, DeleteVolume: names, sizes of fields, and parameters.

use cistern_crds::{AccessMode, Bytes, PoolNames, Provisioning};

use super::*;

#[test]
fn a_plain_request_becomes_a_volume_with_our_defaults() {
    let wanted = read(|_| {}).unwrap();
    assert_eq!(wanted.name, "pvc-1");
    assert_eq!(
        (wanted.pools, wanted.attributes.provisioning),
        (PoolNames::only("fast"), Provisioning::Thin)
    );
    assert_eq!(wanted.filesystem, Some(FilesystemType::Ext4));
    assert_eq!(wanted.access_modes, [AccessMode::SingleNodeWriter]);
    assert_eq!(wanted.size.chosen, Bytes::gib(1));
    assert_eq!(wanted.claim, None);
}

// Shows: DV-02.
#[test]
fn cv_02_cv_03_gen_04_a_missing_field_is_named() {
    for (field, error) in [
        ("name", read(|r| r.name.clear())),
        (
            "volume_capabilities",
            read(|r| r.volume_capabilities.clear()),
        ),
        // Missing fields are reported before invalid ones.
        (
            "name",
            read(|r| {
                r.name.clear();
                r.volume_capabilities = vec![block()];
            }),
        ),
        (
            "volume_capabilities",
            read(|r| {
                r.volume_capabilities.clear();
                r.parameters = pairs(&[("bogus", "x")]);
            }),
        ),
    ] {
        assert_eq!(error, Err(Error::Missing { field }));
    }
    let id = delete_volume(v1::DeleteVolumeRequest::default());
    assert_eq!(id, Err(Error::Missing { field: "volume_id" }), "DV-02");
}

#[test]
fn fld_12_names_are_any_unicode_but_most_control_characters() {
    let named = |name: &str| read(|r| r.name = name.to_owned());
    for good in [
        "a/b",
        "..",
        "with space",
        "🦀",
        "tab\t",
        "line\n",
        "return\r",
        &"x".repeat(128),
    ] {
        assert_eq!(named(good).unwrap().name, good);
    }
    for (bad, code) in [
        ('\0', 0),
        ('\u{7}', 7),
        ('\u{b}', 0xb),
        ('\u{1f}', 0x1f),
        ('\u{7f}', 0x7f),
        ('\u{85}', 0x85),
    ] {
        assert_eq!(
            named(&format!("a{bad}b")),
            Err(Error::ControlCharacter { code })
        );
    }
}

#[test]
fn fld_14_overlong_strings_and_maps_are_refused_and_the_limit_itself_is_not() {
    assert_eq!(
        read(|r| r.name = "ü".repeat(65)),
        Err(Error::TooLong {
            field: "name",
            limit: 128
        }),
        "bytes, not characters"
    );
    let id = |length: usize| {
        delete_volume(v1::DeleteVolumeRequest {
            volume_id: "x".repeat(length),
            ..v1::DeleteVolumeRequest::default()
        })
    };
    assert!(id(128).is_ok());
    assert!(id(129).is_err());
    let filled = |length: usize| {
        read(|r| {
            let key = "csi.storage.k8s.io/x";
            let left = length - "pool".len() - "fast".len() - key.len();
            r.parameters.insert(key.to_owned(), "v".repeat(left));
        })
    };
    assert!(filled(4096).is_ok());
    assert_eq!(
        filled(4097),
        Err(Error::TooLong {
            field: "parameters",
            limit: 4096
        })
    );
}

#[test]
fn k8s_01_the_claim_is_read_from_the_provisioners_keys_and_only_a_legal_name_counts() {
    let named = |namespace: &str, name: &str| {
        read(|r| {
            r.parameters.extend(pairs(&[
                ("csi.storage.k8s.io/pvc/namespace", namespace),
                ("csi.storage.k8s.io/pvc/name", name),
                ("csi.storage.k8s.io/pv/name", "pvc-1"),
            ]));
        })
    };
    let claim = named("default", "data.web-0").unwrap().claim.unwrap();
    assert_eq!(
        (claim.namespace.as_str(), claim.name.as_str()),
        ("default", "data.web-0")
    );
    for (namespace, name) in [
        ("", "x"),
        ("a/b", "x"),
        ("x", "../../nodes"),
        ("x", "A"),
        ("x", "a-"),
    ] {
        assert_eq!(
            named(namespace, name).unwrap().claim,
            None,
            "{namespace}/{name}"
        );
    }
}

#[test]
fn cv_27_unknown_mutable_parameters_are_refused_by_name() {
    let mutable = read(|r| r.mutable_parameters = pairs(&[("XXX_FakeKey", "x")]));
    let message = mutable.unwrap_err().to_string();
    assert!(message.contains("\"XXX_FakeKey\""), "{message}");
}

#[test]
fn cv_18_mutable_parameters_override_the_parameters() {
    for (class, mutable, expected) in [
        ("thin", "thick", Provisioning::Thick),
        ("thick", "thin", Provisioning::Thin),
    ] {
        let wanted = read(|r| {
            r.parameters = pairs(&[("pool", "fast"), ("provisioning", class)]);
            r.mutable_parameters = pairs(&[("provisioning", mutable)]);
        });
        assert_eq!(wanted.unwrap().attributes.provisioning, expected);
    }
}
