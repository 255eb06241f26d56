//! The checked-in definitions are those that the types give, and accept nothing that the types refuse.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::{fs, path::Path};

use cistern_crds::{
    Bytes, ImageTransfer, PoolReplica, PoolSnapshot, PoolSnapshotGroup, PoolVolume, StorageNode,
    StoragePool, VolumeMove,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, from_value, json};

#[test]
fn checked_in_definitions_are_not_stale() {
    for definition in cistern_crds::definitions() {
        let name = format!("{}.yaml", definition.spec.names.plural);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&name);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let checked_in: Option<CustomResourceDefinition> = serde_saphyr::from_str(&text).ok();
        assert_eq!(
            checked_in,
            Some(definition),
            "{name} is stale: run `make generate`"
        );
    }
}

#[test]
fn checked_in_pages_are_not_stale() {
    for (page, text) in [
        ("conditions.md", cistern_crds::conditions_page()),
        ("custom-resources.md", cistern_crds::reference_page()),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../docs")
            .join(page);
        let checked_in = fs::read_to_string(path).unwrap_or_default();
        assert!(
            checked_in == text,
            "docs/{page} is stale: run `make generate`"
        );
    }
}

#[test]
fn every_string_list_and_map_of_a_spec_or_status_is_bounded() {
    for definition in cistern_crds::definitions() {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        for part in ["spec", "status"] {
            let path = format!("{}.{part}", definition.spec.names.kind);
            unbounded(&path, &schema["openAPIV3Schema"]["properties"][part]);
        }
    }
}

fn unbounded(path: &str, schema: &serde_json::Value) {
    let bounded = |limit: &str| assert!(!schema[limit].is_null(), "{path} has no {limit}");
    match schema["type"].as_str() {
        Some("string") if schema["enum"].is_null() => bounded("maxLength"),
        Some("array") => bounded("maxItems"),
        Some("object") if !schema["additionalProperties"].is_null() => bounded("maxProperties"),
        _ => {}
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        unbounded(&format!("{path}.{name}"), property);
    }
    if !schema["items"].is_null() {
        unbounded(&format!("{path}[]"), &schema["items"]);
    }
}

#[test]
fn every_integer_is_bounded_at_both_ends_by_numbers_that_a_double_holds() {
    for definition in cistern_crds::definitions() {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        unbounded_integers(&definition.spec.names.kind, &schema);
    }
}

/// Looks at every part of a schema, whatever contains it.
fn unbounded_integers(path: &str, part: &serde_json::Value) {
    /// Beyond it, a double does not hold every integer.
    const EXACT: f64 = 9_007_199_254_740_991.0;
    if part["type"] == "integer" {
        for limit in ["minimum", "maximum"] {
            let bound = part[limit].as_f64();
            let is_exact = bound.is_some_and(|bound| bound.abs() <= EXACT);
            assert!(is_exact, "{path}: {limit} is {bound:?}");
        }
    }
    let has_format = part["type"] == "string" && part["format"].is_string();
    assert!(!has_format, "{path}: the API server takes a list for it");
    assert_ne!(part["type"], "number", "{path}: nothing reads fractions");
    for (name, inner) in part.as_object().into_iter().flatten() {
        unbounded_integers(&format!("{path}.{name}"), inner);
    }
    for inner in part.as_array().into_iter().flatten() {
        unbounded_integers(&format!("{path}[]"), inner);
    }
}

#[test]
fn every_object_that_the_schemas_accept_can_be_read() {
    for definition in cistern_crds::definitions() {
        let kind = &definition.spec.names.kind;
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        for number in 0..240 {
            let mut object = example(&schema["openAPIV3Schema"], number);
            object["metadata"] = json!({"name": "n"});
            if let Err(error) = read(kind, object.clone()) {
                panic!("{kind}: {error}: {object:#}");
            }
        }
    }
}

/// Reads an object of a kind.
fn read(kind: &str, object: Value) -> Result<(), serde_json::Error> {
    match kind {
        "StoragePool" => from_value::<StoragePool>(object).map(drop),
        "StorageNode" => from_value::<StorageNode>(object).map(drop),
        "PoolVolume" => from_value::<PoolVolume>(object).map(drop),
        "PoolSnapshot" => from_value::<PoolSnapshot>(object).map(drop),
        "PoolSnapshotGroup" => from_value::<PoolSnapshotGroup>(object).map(drop),
        "VolumeMove" => from_value::<VolumeMove>(object).map(drop),
        "ImageTransfer" => from_value::<ImageTransfer>(object).map(drop),
        "PoolReplica" => from_value::<PoolReplica>(object).map(drop),
        other => panic!("{other} is new"),
    }
}

/// A value that a schema accepts, apart from the lengths of texts and the rules of CEL. Each number gives another one.
fn example(schema: &Value, number: usize) -> Value {
    if schema["nullable"] == true && number % 5 == 1 {
        return Value::Null;
    }
    if let Some(values) = schema["enum"].as_array() {
        return values[number % values.len()].clone();
    }
    match schema["type"].as_str() {
        Some("string") => text(schema["pattern"].as_str(), number).into(),
        Some("integer") => {
            let bound = schema[["minimum", "maximum"][number % 2]].as_f64();
            let bound = format!("{:.0}", bound.unwrap());
            bound.parse::<i64>().unwrap().into()
        }
        Some("boolean") => number.is_multiple_of(2).into(),
        Some("array") => (0..number % 3)
            .map(|index| example(&schema["items"], number / 3 + index))
            .collect(),
        Some("object") => fields(schema, number),
        other => panic!("{other:?} is no type of a field: {schema}"),
    }
}

fn text(pattern: Option<&str>, number: usize) -> &'static str {
    let texts: &[&str] = match pattern {
        Some(Bytes::PATTERN) => &[
            "0",
            "0.000000000000000001Ki",
            "1.5Gi",
            "18446744073709551616",
            "99999999999999999999999999999Ei",
        ],
        Some(pattern) if pattern.contains(":[0-5][0-9]") => &[
            "1000-01-01T00:00:00+23:59",
            "2026-11-29T13:00:00Z",
            "2999-12-31T23:59:59.999999999-23:59",
        ],
        _ => &["", "text", "\u{fc}\0\n"],
    };
    texts[number % texts.len()]
}

/// An object with all fields that it must have, and with some of the others.
fn fields(schema: &Value, number: usize) -> Value {
    let required = schema["required"].as_array();
    let is_required = |name: &String| required.is_some_and(|it| it.iter().any(|it| it == name));
    let properties = schema["properties"].as_object().into_iter().flatten();
    let properties = properties.enumerate().filter(|(index, (name, _))| {
        let is_chosen = number % 4 > 1 || (number + index) % 2 == 1;
        is_required(name) || !number.is_multiple_of(4) && is_chosen
    });
    let mut object: serde_json::Map<String, Value> = properties
        .map(|(index, (name, property))| (name.clone(), example(property, number / 2 + index)))
        .collect();
    if schema["additionalProperties"].is_object() {
        let value = example(&schema["additionalProperties"], number);
        object.insert("key".to_owned(), value);
    }
    object.into()
}

#[test]
fn every_field_has_a_description_for_kubectl_explain() {
    for definition in cistern_crds::definitions() {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        let kind = &definition.spec.names.kind;
        undescribed(kind, &schema["openAPIV3Schema"]);
    }
}

fn undescribed(path: &str, schema: &serde_json::Value) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let description = property["description"].as_str().unwrap_or_default();
        let is_sentence = description.split(' ').count() > 2 && description.contains('.');
        assert!(is_sentence, "{path}: {description:?}");
        let has_link = description.contains("[`") || description.contains("](");
        assert!(!has_link, "{path} has a link of rustdoc: {description}");
        undescribed(&path, property);
    }
    if !schema["items"].is_null() {
        undescribed(&format!("{path}[]"), &schema["items"]);
    }
}
