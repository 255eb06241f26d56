//! The checked-in definitions are those that the types give.

use std::{fs, path::Path};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

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
