//! Reads the declaration of a StoragePool, and detects errors that its schema does not.

use cistern_crds::{IoLimits, StoragePool};
use kube::core::{DeserializeGuard, Selector};

/// An error in the spec of a StoragePool that its schema does not detect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDeclaration {
    /// This version cannot read the object. Holds the message of the decoder.
    #[error("{0}")]
    Unreadable(String),
    /// A requirement of the node selector, by key and operator, lacks values.
    #[error("nodeSelector: {0} {1} needs values")]
    ValuesMissing(String, String),
    /// A requirement of the node selector, by key and operator, has values that its operator does
    /// not use.
    #[error("nodeSelector: {0} {1} takes no values")]
    ValuesUnexpected(String, String),
    /// A requirement of the node selector, by key and operator, has an unknown operator.
    #[error("nodeSelector: {0} {1} has an unknown operator: use In, NotIn, Exists or DoesNotExist")]
    UnknownOperator(String, String),
    /// The node selector is invalid for another reason. Holds the message of the parser.
    #[error("{0}")]
    Selector(String),
    /// A limit of operations is from before the schema had its bounds.
    #[error(
        "limits.volumeIO.{field} is not from {minimum} to {maximum}",
        minimum = IoLimits::MINIMUM_OPERATIONS,
        maximum = IoLimits::MAXIMUM_OPERATIONS
    )]
    Operations {
        /// Name of the field.
        field: &'static str,
    },
    /// A limit of bytes is from before the schema had its bound.
    #[error("limits.volumeIO.{field} is less than {minimum}", minimum = IoLimits::MINIMUM_BYTES)]
    Bytes {
        /// Name of the field.
        field: &'static str,
    },
}

/// The pool and its node selector. Fails if the pool cannot be read, or if the selector or a limit of I/O is invalid.
pub fn declared(
    pool: &DeserializeGuard<StoragePool>,
) -> Result<(&StoragePool, Selector), InvalidDeclaration> {
    let unreadable = |error: &String| InvalidDeclaration::Unreadable(error.clone());
    let pool = pool.0.as_ref();
    let pool = pool.map_err(|invalid| unreadable(&invalid.error))?;
    let selector = &pool.spec.node_selector;
    for requirement in selector.match_expressions.iter().flatten() {
        let (key, operator) = (requirement.key.clone(), requirement.operator.clone());
        let has_values = requirement.values.as_ref().is_some_and(|it| !it.is_empty());
        match (operator.as_str(), has_values) {
            ("In" | "NotIn", false) => {
                return Err(InvalidDeclaration::ValuesMissing(key, operator));
            }
            ("Exists" | "DoesNotExist", true) => {
                return Err(InvalidDeclaration::ValuesUnexpected(key, operator));
            }
            ("In" | "NotIn", true) | ("Exists" | "DoesNotExist", false) => {}
            _ => return Err(InvalidDeclaration::UnknownOperator(key, operator)),
        }
    }
    let selector = Selector::try_from(selector.clone());
    let selector = selector.map_err(|error| InvalidDeclaration::Selector(error.to_string()))?;
    // A pool that is being deleted comes to no other node.
    if pool.metadata.deletion_timestamp.is_none() {
        check(&pool.spec.limits.volume_io)?;
    }
    Ok((pool, selector))
}

/// Fails if the schema would refuse a limit. The API server keeps one that the object had before, and would refuse
/// every pool of a new StorageNode that contains it.
fn check(limits: &IoLimits) -> Result<(), InvalidDeclaration> {
    let operations = IoLimits::MINIMUM_OPERATIONS..=IoLimits::MAXIMUM_OPERATIONS;
    for (field, limit) in [
        ("readIOPS", limits.read_iops),
        ("writeIOPS", limits.write_iops),
    ] {
        if limit.is_some_and(|limit| !operations.contains(&limit)) {
            return Err(InvalidDeclaration::Operations { field });
        }
    }
    for (field, limit) in [
        ("readBytesPerSecond", limits.read_bytes_per_second),
        ("writeBytesPerSecond", limits.write_bytes_per_second),
    ] {
        if limit.is_some_and(|limit| limit < IoLimits::MINIMUM_BYTES) {
            return Err(InvalidDeclaration::Bytes { field });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cistern_crds::Bytes;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelectorRequirement, Time};

    use super::*;
    use crate::testing;

    fn with_requirement(operator: &str, values: Option<&[&str]>) -> Result<(), InvalidDeclaration> {
        let mut pool = testing::pool("fast", &[]);
        pool.spec.node_selector.match_expressions = Some(vec![LabelSelectorRequirement {
            key: "disk".to_owned(),
            operator: operator.to_owned(),
            values: values.map(|values| values.iter().map(|v| (*v).to_owned()).collect()),
        }]);
        declared(&DeserializeGuard(Ok(pool))).map(drop)
    }

    #[test]
    fn a_selector_that_passes_the_schema_and_makes_no_sense_is_named() {
        assert_eq!(with_requirement("In", Some(&["nvme"])), Ok(()));
        assert_eq!(with_requirement("Exists", None), Ok(()));
        for (operator, values) in [
            ("In", None),
            ("NotIn", Some(&[] as &[&str])),
            ("Exists", Some(&["x"])),
            ("Is", None),
        ] {
            let error = with_requirement(operator, values).unwrap_err();
            assert!(!error.to_string().is_empty(), "{operator}");
        }
    }

    #[test]
    fn an_unknown_operator_is_named_with_and_without_values() {
        for values in [None, Some(&["x"] as &[&str])] {
            let error = with_requirement("Is", values).unwrap_err();
            let named = InvalidDeclaration::UnknownOperator("disk".to_owned(), "Is".to_owned());
            assert_eq!(error, named, "{values:?}");
        }
    }

    #[test]
    fn a_limit_that_the_schema_accepted_before_is_named_unless_the_pool_is_being_deleted() {
        let limited = |change: &dyn Fn(&mut IoLimits)| {
            let mut pool = testing::pool("fast", &[]);
            change(&mut pool.spec.limits.volume_io);
            pool
        };
        let refused = |pool| declared(&DeserializeGuard(Ok(pool))).err();
        let too_few = limited(&|limits| limits.read_bytes_per_second = Some(Bytes(100)));
        let error = refused(too_few.clone()).unwrap();
        let says = "limits.volumeIO.readBytesPerSecond is less than 1Mi";
        assert_eq!(error.to_string(), says);
        let too_many = IoLimits::MAXIMUM_OPERATIONS + 1;
        let too_many = limited(&|limits| limits.write_iops = Some(too_many));
        let error = refused(too_many).unwrap();
        let says = "limits.volumeIO.writeIOPS is not from 10 to 4294967294";
        assert_eq!(error.to_string(), says);
        let allowed = limited(&|limits| {
            limits.read_bytes_per_second = Some(IoLimits::MINIMUM_BYTES);
            limits.write_iops = Some(IoLimits::MAXIMUM_OPERATIONS);
        });
        assert_eq!(refused(allowed), None);
        let mut deleted = too_few;
        deleted.metadata.deletion_timestamp = Some(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(refused(deleted), None);
    }
}
