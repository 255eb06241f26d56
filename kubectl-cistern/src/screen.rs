//! Shows the view of a command on standard output: once, or again after each change.

use std::io::{self, IsTerminal as _, Write as _};

use crate::{
    Error,
    arguments::ListOutput,
    output::{Format, Paint, Terminal, View, render},
};

/// Standard output of a command that may show its view again.
#[derive(Debug)]
pub struct Screen {
    paint: Paint,
    output: ListOutput,
    shown: Option<String>,
}

impl Screen {
    /// Creates a screen that has shown no view yet.
    pub const fn new(paint: Paint, output: ListOutput) -> Self {
        Self {
            paint,
            output,
            shown: None,
        }
    }

    /// Shows a view, unless its text is the same as before. With `--watch` on a terminal, it
    /// replaces the text before. Returns whether it has cleared the terminal. Fails if the view
    /// cannot be serialized, or if standard output cannot be written.
    pub fn show<V: View>(&mut self, view: &V) -> Result<bool, Error> {
        let format = self.output.output.format;
        let text = render(view, format, !self.output.no_headers, self.paint);
        let text = text.map_err(Error::Rendering)?;
        if self.shown.as_ref() == Some(&text) {
            return Ok(false);
        }
        self.write(&text).map_err(Error::Output)?;
        self.shown = Some(text);
        Ok(self.clears())
    }

    fn clears(&self) -> bool {
        self.output.watch && io::stdout().is_terminal()
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut stdout = Terminal::stdout(self.paint);
        if self.clears() {
            stdout.clear()?;
        } else if self.shown.is_some() {
            stdout.write_all(separator(self.output.output.format).as_bytes())?;
        }
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

/// Returns the separator of two views, if standard output is not a terminal.
const fn separator(format: Format) -> &'static str {
    match format {
        Format::Table | Format::Wide => "\n",
        Format::Json => "",
        Format::Yaml => "---\n",
    }
}
