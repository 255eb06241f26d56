//! An error with all of its sources, each said once.

use std::{error::Error, fmt};

/// Displays an error and its sources as one line: `outer: middle: inner`.
///
/// Our own errors never print their source; some libraries' do, so a source whose text has been
/// said already is passed over.
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Debug for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
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
    fn every_source_is_said_once() {
        let error = Outer("pool", Middle(std::io::Error::other("disk on fire")));
        assert_eq!(
            Chain(&error).to_string(),
            "cannot open pool: library: disk on fire"
        );
    }
}
