//! The text of `docs/custom-resources.md`: every field of every kind, from the schemas of the definitions.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use serde_json::Value;

use crate::{Bytes, definitions, time};

const INTRODUCTION: &str = "\
<!-- Generated from the Rust types: make generate. -->
# Custom resources

Every field of Cistern's kinds: its type, its default, what the API server accepts, and its meaning. `kubectl explain` shows the same.
You write StoragePools, and VolumeMoves if you are an administrator. Cistern writes all other objects: StorageNodes from pools and
nodes, the rest for claims and snapshots.

A quantity is a number of bytes with an optional suffix, such as `512Mi`, `100Gi` or `1.5Ti`. A time has the form of RFC 3339, such as
`2026-01-31T12:00:00Z`. `[]` stands for each item of a list.
[Conditions, reasons and events](conditions.md) lists the values of `type` and `reason` in conditions.
";

/// The page, in Markdown: a section for each kind, with a table of its fields.
pub fn reference_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for definition in definitions() {
        for version in &definition.spec.versions {
            section(&mut page, &definition, version);
        }
    }
    page
}

fn section(
    page: &mut String,
    definition: &CustomResourceDefinition,
    version: &CustomResourceDefinitionVersion,
) {
    let schema = version
        .schema
        .as_ref()
        .and_then(|validation| validation.open_api_v3_schema.as_ref())
        .and_then(|schema| serde_json::to_value(schema).ok())
        .unwrap_or_default();
    let spec = &definition.spec;
    let names = &spec.names;
    let lines = [
        format!("\n## {}\n", names.kind),
        format!("{}\n", text(&schema, "description")),
        format!(
            "`apiVersion: {}/{}`, cluster-scoped. `kubectl get {}`, or `kubectl get {}`.",
            spec.group,
            version.name,
            names.plural,
            names
                .short_names
                .iter()
                .flatten()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", "),
        ),
    ];
    for line in &lines {
        write(page, line);
    }
    let rules = messages(&schema);
    if !rules.is_empty() {
        write(
            page,
            &format!("\nThe API server also checks: {}.", rules.join("; ")),
        );
    }
    write(page, "\n| Field | Type | Default | Accepted | Meaning |");
    write(page, "|---|---|---|---|---|");
    rows(page, "", &schema);
}

/// Writes a row for each property of a schema, and for those below it.
fn rows(page: &mut String, parent: &str, schema: &Value) {
    let required = list(schema, "required");
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let path = if parent.is_empty() {
            name.clone()
        } else {
            format!("{parent}.{name}")
        };
        let is_required = required.iter().any(|it| it.as_str() == Some(name));
        let row = format!(
            "| `{path}` | {} | {} | {} | {} |",
            type_of(property),
            default(property),
            accepted(property, is_required),
            cell(&text(property, "description")),
        );
        write(page, &row);
        rows(page, &path, property);
        if let Some(items) = property.get("items") {
            rows(page, &format!("{path}[]"), items);
        }
    }
}

/// Returns the type of a field in words.
fn type_of(schema: &Value) -> String {
    let items = schema.get("items").map(type_of);
    let values = schema.get("additionalProperties").map(type_of);
    match (text(schema, "type").as_str(), items, values) {
        ("array", Some(items), _) => format!("list of {items}"),
        ("object", _, Some(values)) => format!("map to {values}"),
        ("string", ..) if text(schema, "pattern") == time::PATTERN => "time".to_owned(),
        ("string", ..) if text(schema, "pattern") == Bytes::PATTERN => "quantity".to_owned(),
        (name, ..) => name.to_owned(),
    }
}

fn default(schema: &Value) -> String {
    match schema.get("default") {
        None => String::new(),
        Some(Value::String(value)) if value.is_empty() => "empty".to_owned(),
        Some(Value::String(value)) => format!("`{value}`"),
        Some(Value::Object(_)) => "those of its fields".to_owned(),
        Some(value) => format!("`{value}`"),
    }
}

/// Returns what the API server accepts, apart from the type.
fn accepted(schema: &Value, is_required: bool) -> String {
    let mut parts: Vec<String> = Vec::new();
    if is_required {
        parts.push("required".to_owned());
    }
    let pattern = text(schema, "pattern");
    let values = list(schema, "enum");
    if !values.is_empty() {
        let values = values.iter().filter_map(Value::as_str);
        parts.push(
            values
                .map(|value| format!("`{value}`"))
                .collect::<Vec<_>>()
                .join(", "),
        );
    }
    for (minimum, maximum, unit) in [
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
        ("minProperties", "maxProperties", " entries"),
    ] {
        let (minimum, maximum) = (number(schema, minimum), number(schema, maximum));
        // The length of a quantity or time says nothing to a reader.
        if unit == " characters" && is_named(&pattern) {
            continue;
        }
        match (minimum, maximum) {
            (Some(minimum), Some(maximum)) => parts.push(format!("{minimum} to {maximum}{unit}")),
            (Some(minimum), None) => parts.push(format!("at least {minimum}{unit}")),
            (None, Some(maximum)) => parts.push(format!("at most {maximum}{unit}")),
            (None, None) => {}
        }
    }
    if !pattern.is_empty() && !is_named(&pattern) {
        parts.push(format!("pattern `{}`", pattern.replace('|', r"\|")));
    }
    parts.extend(messages(schema));
    // The items of a list that have no row of their own.
    let items = schema
        .get("items")
        .filter(|items| text(items, "type") != "object");
    let items = items
        .map(|items| accepted(items, false))
        .unwrap_or_default();
    if !items.is_empty() {
        parts.push(format!("each {items}"));
    }
    parts.join("; ")
}

/// Whether the page calls the texts that a pattern matches by the name of their type.
fn is_named(pattern: &str) -> bool {
    [Bytes::PATTERN, time::PATTERN].contains(&pattern)
}

/// Returns the messages of the CEL rules of a schema.
fn messages(schema: &Value) -> Vec<String> {
    let rules = list(schema, "x-kubernetes-validations");
    rules
        .iter()
        .map(|rule| cell(&text(rule, "message")))
        .collect()
}

fn number(schema: &Value, key: &str) -> Option<f64> {
    schema.get(key).and_then(Value::as_f64)
}

fn list<'a>(schema: &'a Value, key: &str) -> &'a [Value] {
    schema
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn text(schema: &Value, key: &str) -> String {
    schema
        .get(key)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// Makes a text fit for the cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', r"\|")
}

fn write(page: &mut String, line: &str) {
    page.push_str(line);
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_quantities_are_named_and_show_no_pattern() {
        let page = reference_page();
        assert!(page.contains("| time |  | required |"), "{page}");
        assert!(page.contains("| quantity |"), "{page}");
        for pattern in [Bytes::PATTERN, time::PATTERN] {
            assert!(!page.contains(&cell(pattern)), "{pattern}");
        }
    }
}
