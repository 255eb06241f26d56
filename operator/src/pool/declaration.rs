//! Reads the declaration of a StoragePool, and detects errors that its schema does not.

use cistern_crds::StoragePool;
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
}

/// The pool and its node selector. Fails if the pool cannot be read, or if the selector is invalid.
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
    Ok((pool, selector))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

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
}
