//! Displays an error with all of its sources, each once.

use std::{error::Error, fmt};

/// Displays an error and its sources as one line: `outer: middle: inner`.
///
/// Cistern's errors never print their source, but errors of some libraries do. A source whose text was
/// printed already is skipped.
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Debug for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = self.0.to_string();
        f.write_str(&printed)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            if !printed.contains(&text) {
                write!(f, ": {text}")?;
                printed = text;
            }
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open {0}")]
    struct Outer(&'static str, #[source] Middle);

    #[derive(Debug, thiserror::Error)]
    #[error("library: {0}")]
    struct Middle(#[source] std::io::Error);

    #[test]
    fn every_source_is_printed_once() {
        let error = Outer("pool", Middle(std::io::Error::other("disk on fire")));
        assert_eq!(
            Chain(&error).to_string(),
            "cannot open pool: library: disk on fire"
        );
    }
}
