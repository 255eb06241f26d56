//! Checks that the installed CRDs match this version of the plugin. Pure.

use std::collections::BTreeSet;

use cistern_crds::enumeration::first_names;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use serde_json::Value;

use super::{facts::Facts, report::Check};

const DEFINITIONS: &str = "definitions";
const APPLY: &str = "kubectl apply --server-side -k manifests/crds";
/// Checks the CRDs.
pub fn examine(facts: &Facts) -> Vec<Check> {
    match &facts.definitions {
        Ok(found) => definitions(found),
        Err(error) => vec![Check::unread(DEFINITIONS, error)],
    }
}

fn definitions(found: &[CustomResourceDefinition]) -> Vec<Check> {
    let mut checks = Vec::new();
    let all = cistern_crds::definitions();
    for wanted in &all {
        let name = wanted.name_any();
        match found
            .iter()
            .find(|definition| definition.name_any() == name)
        {
            None => {
                let message = format!("{name} is missing");
                checks.push(Check::fail(DEFINITIONS, message, APPLY));
            }
            Some(found) => checks.extend(definition(wanted, found)),
        }
    }
    if checks.is_empty() {
        let message = format!("all {} are those of this version", all.len());
        checks.push(Check::ok(DEFINITIONS, message));
    }
    checks
}

/// Checks one CRD: it is established, stores only the current version, and has the same fields.
fn definition(
    wanted: &CustomResourceDefinition,
    found: &CustomResourceDefinition,
) -> Option<Check> {
    let name = wanted.name_any();
    if !is_established(found) {
        let see = format!("kubectl describe crd {name}");
        return Some(Check::fail(
            DEFINITIONS,
            format!("{name} is not served yet"),
            see,
        ));
    }
    let version = wanted
        .spec
        .versions
        .iter()
        .find(|version| version.storage)?;
    let stored = found
        .status
        .as_ref()
        .and_then(|status| status.stored_versions.as_ref());
    let old: Vec<&String> = stored
        .into_iter()
        .flatten()
        .filter(|it| **it != version.name)
        .collect();
    if let [first, ..] = old[..] {
        let message = format!("objects of {name} may still be stored as {first}");
        let action = format!(
            "rewrite them as {}, then remove {first} from status.storedVersions",
            version.name
        );
        return Some(Check::warn(DEFINITIONS, message, action));
    }
    let (ours, theirs) = (fields(wanted, &version.name), fields(found, &version.name));
    let missing: Vec<&String> = ours.difference(&theirs).collect();
    let more: Vec<&String> = theirs.difference(&ours).collect();
    match (&missing[..], &more[..]) {
        ([_, ..], _) => {
            let message = format!(
                "{name} is older than this plugin: it lacks {}",
                first_names(missing.iter(), 1)
            );
            Some(Check::fail(DEFINITIONS, message, APPLY))
        }
        ([], [_, ..]) => {
            let message = format!(
                "{name} is newer than this plugin: it has {}",
                first_names(more.iter(), 1)
            );
            Some(Check::warn(
                DEFINITIONS,
                message,
                "use the plugin of that version",
            ))
        }
        ([], []) => None,
    }
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let status = definition.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|it| it.type_ == "Established" && it.status == "True")
}

/// Returns the paths of all fields in a version of a CRD.
fn fields(definition: &CustomResourceDefinition, version: &str) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    let mut versions = definition.spec.versions.iter();
    let version = versions.find(|it| it.name == version);
    let schema = version.and_then(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref());
    if let Some(schema) = schema.and_then(|schema| serde_json::to_value(schema).ok()) {
        collect("", &schema, &mut fields);
    }
    fields
}

fn collect(path: &str, schema: &Value, fields: &mut BTreeSet<String>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let path = format!("{path}.{name}");
        collect(&path, property, fields);
        fields.insert(path);
    }
    if let Some(items) = schema.get("items") {
        collect(&format!("{path}[]"), items, fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::CheckOutcome;

    fn served() -> Vec<CustomResourceDefinition> {
        let mut all = cistern_crds::definitions();
        for definition in &mut all {
            let status = serde_json::json!({
                "storedVersions": ["v1alpha1"],
                "conditions": [{"type": "Established", "status": "True"}],
            });
            definition.status = serde_json::from_value(status).unwrap();
        }
        all
    }

    fn outcomes(found: &[CustomResourceDefinition]) -> Vec<(CheckOutcome, String)> {
        let checks = definitions(found).into_iter();
        checks.map(|check| (check.outcome, check.message)).collect()
    }

    #[test]
    fn the_definitions_of_this_version_pass() {
        let expected = (
            CheckOutcome::Ok,
            "all 8 are those of this version".to_owned(),
        );
        assert_eq!(outcomes(&served()), [expected]);
    }

    #[test]
    fn a_definition_that_is_missing_or_not_served_fails() {
        let mut found = served();
        let gone = found.remove(0).name_any();
        found[0].status = None;
        let pending = found[0].name_any();
        assert_eq!(
            outcomes(&found),
            [
                (CheckOutcome::Fail, format!("{gone} is missing")),
                (CheckOutcome::Fail, format!("{pending} is not served yet")),
            ]
        );
    }

    /// Returns the definition with changed status properties.
    fn with_status(
        definition: &CustomResourceDefinition,
        change: fn(&mut Value),
    ) -> CustomResourceDefinition {
        let mut value = serde_json::to_value(definition).unwrap();
        let schema = &mut value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        change(&mut schema["properties"]["status"]["properties"]);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_older_schema_fails_and_a_newer_one_is_a_warning() {
        let mut found = served();
        found[0] = with_status(&found[0], |status| {
            status.as_object_mut().unwrap().remove("largestVolume");
        });
        let [(CheckOutcome::Fail, message)] = &outcomes(&found)[..] else {
            panic!("{found:?}");
        };
        assert!(
            message.contains("it lacks .status.largestVolume"),
            "{message}"
        );
        let mut found = served();
        found[0] = with_status(&found[0], |status| {
            status["tomorrow"] = serde_json::json!({"type": "string"});
        });
        let [(CheckOutcome::Warn, message)] = &outcomes(&found)[..] else {
            panic!("{found:?}");
        };
        assert!(message.contains("it has .status.tomorrow"), "{message}");
    }
}
