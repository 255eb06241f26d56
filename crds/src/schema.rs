//! Changes the generated schemas as the API server needs them.
//!
//! *Invariant:* the API server accepts no integer and no time that the type of its field cannot hold. A node may write the statuses
//! of its objects, and one integer that is too large makes an object that no process can read.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use crate::{bounds, time};

/// Bound of the types of 64 bits: the largest integer up to which a double, the type of a bound, holds each one. As a double, the
/// maximum of these types is one more than 64 bits with a sign hold, and the API server then refuses every value of the field.
const EXACT: f64 = 9_007_199_254_740_991.0;

/// Bounds integers by their types: the API server accepts their formats with any number of digits. Replaces the format of times by a
/// pattern: with a format, it accepts a list in place of a text. Removes the formats of Rust's unsigned integers, about which it
/// warns.
pub(crate) fn suit_api_server(schema: &mut JSONSchemaProps) {
    if let Some((least, greatest)) = schema.format.as_deref().and_then(range) {
        // A field may have narrower bounds of its own.
        schema.minimum = Some(schema.minimum.map_or(least, |own| own.max(least)));
        schema.maximum = Some(schema.maximum.map_or(greatest, |own| own.min(greatest)));
    }
    schema.format.take_if(|format| format.starts_with("uint"));
    let is_time = schema.format.take_if(|format| format == "date-time");
    if is_time.is_some() {
        schema.max_length = i64::try_from(bounds::TIME).ok();
        schema.pattern = Some(time::PATTERN.to_owned());
    }
    let properties = schema.properties.iter_mut();
    properties
        .flat_map(|properties| properties.values_mut())
        .for_each(suit_api_server);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        suit_api_server(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        suit_api_server(values);
    }
}

/// The least and the greatest value of the Rust type to which schemars gives this format. None if it is no integer, or is one of 8
/// or 16 bits, which schemars bounds.
fn range(format: &str) -> Option<(f64, f64)> {
    match format {
        "int32" => Some((i32::MIN.into(), i32::MAX.into())),
        "uint32" => Some((0.0, u32::MAX.into())),
        "int64" | "int" => Some((-EXACT, EXACT)),
        "uint64" | "uint" => Some((0.0, EXACT)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use chrono::{DateTime, Utc};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use schemars::{JsonSchema, SchemaGenerator};
    use serde_json::json;

    use super::*;
    use crate::{StorageNodeStatus, definitions};

    /// The least and the greatest value that a schema accepts.
    type Bounds = [Option<f64>; 2];

    const OF_U32: Bounds = [Some(0.0), Some(4_294_967_295.0)];

    /// What the schema of a type becomes.
    fn suited<T: JsonSchema>() -> JSONSchemaProps {
        let schema = T::json_schema(&mut SchemaGenerator::default());
        let mut schema: JSONSchemaProps = serde_json::from_value(schema.to_value()).unwrap();
        suit_api_server(&mut schema);
        schema
    }

    fn bounds_of(schema: &JSONSchemaProps) -> Bounds {
        [schema.minimum, schema.maximum]
    }

    fn of_type<T: JsonSchema>() -> Bounds {
        bounds_of(&suited::<T>())
    }

    #[test]
    fn every_integer_type_has_bounds_that_both_it_and_a_double_can_hold() {
        for (found, expected) in [
            (of_type::<u8>(), [0.0, 255.0]),
            (of_type::<u16>(), [0.0, 65_535.0]),
            (of_type::<u32>(), [0.0, 4_294_967_295.0]),
            (of_type::<u64>(), [0.0, EXACT]),
            (of_type::<usize>(), [0.0, EXACT]),
            (of_type::<i8>(), [-128.0, 127.0]),
            (of_type::<i16>(), [-32_768.0, 32_767.0]),
            (of_type::<i32>(), [-2_147_483_648.0, 2_147_483_647.0]),
            (of_type::<i64>(), [-EXACT, EXACT]),
            (of_type::<isize>(), [-EXACT, EXACT]),
        ] {
            assert_eq!(found, expected.map(Some));
        }
        assert_eq!(of_type::<bool>(), [None, None]);
        assert_eq!(of_type::<String>(), [None, None]);
    }

    #[test]
    fn a_field_keeps_bounds_that_are_narrower_than_its_type_and_no_wider_ones() {
        let bounded = |minimum: f64, maximum: f64| {
            let mut schema = JSONSchemaProps {
                format: Some("uint32".to_owned()),
                minimum: Some(minimum),
                maximum: Some(maximum),
                ..JSONSchemaProps::default()
            };
            suit_api_server(&mut schema);
            assert_eq!(schema.format, None);
            bounds_of(&schema)
        };
        assert_eq!(bounded(3.0, 50.0), [Some(3.0), Some(50.0)]);
        assert_eq!(bounded(-1.0, 4_294_967_296.0), OF_U32);
    }

    #[test]
    fn integers_in_lists_and_maps_are_bounded() {
        let Some(JSONSchemaPropsOrArray::Schema(items)) = suited::<Vec<u32>>().items else {
            panic!("a list has a schema of its items");
        };
        assert_eq!(bounds_of(&items), OF_U32);
        let map = suited::<BTreeMap<String, u32>>();
        let Some(JSONSchemaPropsOrBool::Schema(values)) = map.additional_properties else {
            panic!("a map has a schema of its values");
        };
        assert_eq!(bounds_of(&values), OF_U32);
    }

    #[test]
    fn a_time_has_a_pattern_and_no_format_with_which_a_list_is_accepted() {
        for schema in [suited::<DateTime<Utc>>(), suited::<Time>()] {
            assert_eq!(schema.type_.as_deref(), Some("string"));
            assert_eq!((schema.format, schema.max_length), (None, Some(40)));
            assert_eq!(schema.pattern.as_deref(), Some(time::PATTERN));
        }
    }

    #[test]
    fn a_node_cannot_write_an_integer_that_makes_its_storage_node_unreadable() {
        let with = |drift: u64| json!({"unlistedDrift": drift});
        let read = serde_json::from_value::<StorageNodeStatus>;
        assert!(read(with(4_294_967_295)).is_ok());
        assert!(read(with(4_294_967_296)).is_err());
        let mut definitions = definitions().into_iter();
        let node = definitions.find(|it| it.spec.names.kind == "StorageNode");
        let schema = json!(node.unwrap().spec.versions[0].schema);
        let status = &schema["openAPIV3Schema"]["properties"]["status"]["properties"];
        let maximum = status["unlistedDrift"]["maximum"].as_f64();
        assert_eq!(maximum, Some(4_294_967_295.0));
    }
}
