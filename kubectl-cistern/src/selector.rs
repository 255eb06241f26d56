//! Parses label selectors in the syntax of kubectl: `app=db,tier!=cache,zone in (a, b),!temporary`.
//! Pure.

use kube::core::{Expression, Selector};

/// Why a label selector is malformed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A list of values is not closed.
    #[error("`{0}` lacks the closing parenthesis")]
    Unclosed(String),
    /// A list of values follows no operator.
    #[error("`{0}` has neither `in` nor `notin`")]
    NoOperator(String),
    /// A requirement names no label.
    #[error("a label has no name")]
    NoName,
    /// A text contains characters that no label has.
    #[error("`{0}` is neither a name nor a value of a label")]
    Characters(String),
}

/// Parses a label selector. Fails if a requirement is malformed.
pub fn parse(text: &str) -> Result<Selector, SelectorError> {
    let requirements = requirements(text);
    requirements
        .into_iter()
        .map(|part| expression(part.trim()))
        .collect()
}

/// Splits a selector at the commas outside of parentheses.
fn requirements(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let is_separator = |character: char| {
        match character {
            '(' => depth = depth.saturating_add(1),
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    };
    text.split(is_separator).collect()
}

fn expression(text: &str) -> Result<Expression, SelectorError> {
    if let Some(absent) = text.strip_prefix('!') {
        return Ok(Expression::DoesNotExist(key(absent)?));
    }
    if let Some((left, list)) = text.split_once('(') {
        let list = list
            .strip_suffix(')')
            .ok_or_else(|| SelectorError::Unclosed(text.to_owned()))?;
        let values = list.split(',').map(value).collect::<Result<_, _>>()?;
        return match left.trim().rsplit_once(char::is_whitespace) {
            Some((name, "in")) => Ok(Expression::In(key(name)?, values)),
            Some((name, "notin")) => Ok(Expression::NotIn(key(name)?, values)),
            Some(_) | None => Err(SelectorError::NoOperator(text.to_owned())),
        };
    }
    if let Some((name, other)) = text.split_once("!=") {
        return Ok(Expression::NotEqual(key(name)?, value(other)?));
    }
    let equal = text.split_once("==").or_else(|| text.split_once('='));
    match equal {
        Some((name, other)) => Ok(Expression::Equal(key(name)?, value(other)?)),
        None => Ok(Expression::Exists(key(text)?)),
    }
}

fn key(text: &str) -> Result<String, SelectorError> {
    match value(text)? {
        empty if empty.is_empty() => Err(SelectorError::NoName),
        name => Ok(name),
    }
}

fn value(text: &str) -> Result<String, SelectorError> {
    let text = text.trim();
    let is_allowed = |it: char| it.is_ascii_alphanumeric() || "-_./".contains(it);
    if text.chars().all(is_allowed) {
        Ok(text.to_owned())
    } else {
        Err(SelectorError::Characters(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::core::SelectorExt as _;

    use super::*;

    #[test]
    fn a_selector_means_what_it_means_to_kubectl() {
        let labels = BTreeMap::from(
            [("app", "db"), ("example.com/zone", "a")]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        let matches = |text: &str| parse(text).unwrap().matches(&labels);
        for yes in [
            "app",
            "app=db",
            "app == db",
            "app!=web",
            "other!=x",
            "!other",
            "app in (web, db)",
            "app notin (web),other notin (x)",
            "example.com/zone in (a,b),app=db",
        ] {
            assert!(matches(yes), "{yes}");
        }
        for no in [
            "other",
            "app=web",
            "app!=db",
            "!app",
            "app in (web)",
            "app=db,other",
            "app=",
        ] {
            assert!(!matches(no), "{no}");
        }
    }

    #[test]
    fn a_selector_that_makes_no_sense_is_refused() {
        for bad in [
            "",
            "a,,b",
            "=x",
            "app in (a",
            "app of (a)",
            "(a)",
            "a b",
            "!",
            "app=a b",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
