//! Writers for standard output and standard error. All output of the plugin goes through them,
//! except the completion script and the messages of the argument parser.
//!
//! *Invariant:* output contains no control characters except line breaks, tabs, the plugin's
//! colours, and the sequences that clear the screen for `--watch`. Nodes write messages and logs.
//! An attacker who controls a node could otherwise move the cursor, hide lines or answer prompts in
//! place of the user.

use std::{
    borrow::Cow,
    io::{self, StderrLock, StdoutLock, Write},
};

use super::paint::{self, Paint};

/// A writer that escapes control characters. Each write must contain whole characters.
#[derive(Debug)]
pub struct Terminal<W> {
    inner: W,
    paint: Paint,
}

impl Terminal<StdoutLock<'static>> {
    /// Returns standard output. It passes the escape sequences of colours only if the painter has
    /// colours.
    pub fn stdout(paint: Paint) -> Self {
        Self::new(io::stdout().lock(), paint)
    }
}

impl Terminal<StderrLock<'static>> {
    /// Returns standard error, without colours.
    pub fn stderr() -> Self {
        Self::new(io::stderr().lock(), Paint::plain())
    }
}

impl<W: Write> Terminal<W> {
    /// Wraps a writer.
    pub const fn new(inner: W, paint: Paint) -> Self {
        Self { inner, paint }
    }

    /// Clears the screen and the scrollback, and moves the cursor to the top. Fails if the inner
    /// writer fails.
    pub fn clear(&mut self) -> io::Result<()> {
        self.inner.write_all(b"\x1b[H\x1b[2J\x1b[3J")
    }
}

impl<W: Write> Write for Terminal<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(buffer);
        let safe = escaped(&text, |rest| match rest.chars().next() {
            Some('\n' | '\t') => 1,
            _ if self.paint.has_colours() => paint::sequence(rest).map_or(0, str::len),
            _ => 0,
        });
        self.inner.write_all(safe.as_bytes())?;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Escapes a text from the cluster for one line of output, including line breaks and tabs.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| 0)
}

/// Escapes a text as in JSON, so that JSON and YAML documents stay valid. `kept` returns the number of bytes
/// at the start of its argument that are not escaped.
fn escaped(text: &str, kept: impl Fn(&str) -> usize) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let mut length = character.len_utf8();
        if is_obeyed(character) {
            match kept(rest) {
                0 => safe.push_str(&escape(character)),
                kept => {
                    safe.push_str(rest.get(..kept).unwrap_or_default());
                    length = kept;
                }
            }
        } else {
            safe.push(character);
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    Cow::Owned(safe)
}

fn escape(character: char) -> String {
    match character {
        '\n' => "\\n".to_owned(),
        '\t' => "\\t".to_owned(),
        other => format!("\\u{:04x}", u32::from(other)),
    }
}

/// Returns whether a terminal interprets a character instead of displaying it: controls (C0, DEL, C1), line
/// separators, and bidirectional controls. All are below U+10000.
fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Style;

    const HOSTILE: &str = "a\u{1b}]0;title\u{7}\u{1b}[2J\r\u{9b}31m\u{7f}\u{202e}b";
    const SHOWN: &str = "a\\u001b]0;title\\u0007\\u001b[2J\\u000d\\u009b31m\\u007f\\u202eb";

    fn written(text: &str, paint: Paint) -> String {
        let mut terminal = Terminal::new(Vec::new(), paint);
        write!(terminal, "{text}").unwrap();
        terminal.flush().unwrap();
        String::from_utf8(terminal.inner).unwrap()
    }

    #[test]
    fn control_characters_are_escaped() {
        for paint in [Paint::plain(), Paint::coloured()] {
            assert_eq!(written(HOSTILE, paint), SHOWN);
        }
        assert_eq!(one_line(HOSTILE), SHOWN);
        assert_eq!(one_line("a\n\tb"), "a\\n\\tb");
    }

    #[test]
    fn line_breaks_tabs_and_unicode_letters_are_not_escaped() {
        let text = "├─ ünïcode\t█ 日本\n";
        assert_eq!(written(text, Paint::plain()), text);
    }

    #[test]
    fn only_the_colours_of_the_plugin_are_not_escaped() {
        let painted = Paint::coloured().of(Style::Bad, "x");
        assert_eq!(written(&painted, Paint::coloured()), painted);
        assert_eq!(written(&painted, Paint::plain()), "\\u001b[31mx\\u001b[0m");
    }

    #[test]
    fn an_escaped_json_document_has_the_same_value() {
        let document = serde_json::to_string(HOSTILE).unwrap();
        let shown = written(&document, Paint::plain());
        assert!(!shown.contains(is_obeyed), "{shown:?}");
        let read: String = serde_json::from_str(&shown).unwrap();
        assert_eq!(read, HOSTILE);
    }
}
