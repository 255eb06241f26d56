//! Styles text with terminal colours.

use std::io::IsTerminal;

use super::terminal::one_line;

/// Style of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Default colour.
    #[default]
    Plain,
    /// A good state.
    Good,
    /// A state that needs attention.
    Warning,
    /// A bad state.
    Bad,
    /// Secondary information.
    Faint,
    /// A heading.
    Strong,
}

/// Applies styles, or leaves text plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    colours: bool,
}

impl Paint {
    /// Returns a painter without colours.
    pub const fn plain() -> Self {
        Self { colours: false }
    }

    /// Returns a painter with colours.
    #[cfg(test)]
    pub const fn coloured() -> Self {
        Self { colours: true }
    }

    /// Returns a painter with colours if `stream` is a terminal and colours are not disabled.
    pub fn on(stream: &impl IsTerminal, no_color: bool) -> Self {
        Self {
            colours: !no_color && stream.is_terminal(),
        }
    }

    /// Returns whether the painter has colours.
    pub const fn has_colours(self) -> bool {
        self.colours
    }

    /// Applies a style to a text, and escapes its control characters and line breaks.
    pub fn of(self, style: Style, text: &str) -> String {
        let text = one_line(text);
        match begin(style) {
            Some(begin) if self.colours && !text.is_empty() => format!("{begin}{text}{END}"),
            Some(_) | None => text.into_owned(),
        }
    }
}

/// Escape sequence that ends every style.
const END: &str = "\u{1b}[0m";

/// Returns the escape sequence that begins a style.
const fn begin(style: Style) -> Option<&'static str> {
    match style {
        Style::Plain => None,
        Style::Good => Some("\u{1b}[32m"),
        Style::Warning => Some("\u{1b}[33m"),
        Style::Bad => Some("\u{1b}[31m"),
        Style::Faint => Some("\u{1b}[2m"),
        Style::Strong => Some("\u{1b}[1m"),
    }
}

/// Returns the escape sequence at the start of a text, if it is one that the painter writes.
pub fn sequence(text: &str) -> Option<&'static str> {
    let styles = [
        Style::Good,
        Style::Warning,
        Style::Bad,
        Style::Faint,
        Style::Strong,
    ];
    let mut all = styles.into_iter().filter_map(begin).chain([END]);
    all.find(|sequence| text.starts_with(sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_painter_with_colours_styles_text() {
        assert_eq!(Paint::plain().of(Style::Bad, "x"), "x");
        assert_eq!(
            Paint::coloured().of(Style::Bad, "x"),
            "\u{1b}[31mx\u{1b}[0m"
        );
        assert_eq!(Paint::coloured().of(Style::Plain, "x"), "x");
        let hostile = Paint::coloured().of(Style::Good, "a\u{1b}[31m\nb");
        assert_eq!(hostile, "\u{1b}[32ma\\u001b[31m\\nb\u{1b}[0m");
    }

    #[test]
    fn output_to_a_file_has_no_colours() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Paint::on(&file, false), Paint::plain());
    }
}
