//! The schema of the selector of a pool's nodes.
//!
//! *Invariant:* every text, list and map in it has a bound.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Schema of a LabelSelector with bounds, which the schema published by Kubernetes lacks.
pub(super) fn selector_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": {
                "description": "Labels that a node must have, each with this value.",
                "type": "object",
                "maxProperties": 32,
                "additionalProperties": {"type": "string", "maxLength": 63},
            },
            "matchExpressions": {
                "description": "Requirements that a node's labels must all meet.",
                "type": "array",
                "maxItems": 32,
                "items": requirement_schema(),
            },
        },
    })
}

fn requirement_schema() -> Schema {
    json_schema!({
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": {
                "description": "Key of the label.",
                "type": "string",
                "maxLength": 317,
            },
            "operator": {
                "description": "Relation of the label to the values: In, NotIn, Exists or DoesNotExist.",
                "type": "string",
                "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
            },
            "values": {
                "description": "Values for In and NotIn; empty for Exists and DoesNotExist.",
                "type": "array",
                "maxItems": 256,
                "items": {"type": "string", "maxLength": 63},
            },
        },
    })
}
