//! Colours, where they help and nowhere else.

use std::io::IsTerminal;

/// What a text tells, beside its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing.
    #[default]
    Plain,
    /// All is well.
    Good,
    /// Somebody should have a look.
    Warning,
    /// Something is wrong.
    Bad,
    /// Beside the point.
    Faint,
    /// A heading.
    Strong,
}

/// Whether to paint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    colours: bool,
}

impl Paint {
    /// Without colours.
    pub const fn plain() -> Self {
        Self { colours: false }
    }

    /// With colours.
    pub const fn coloured() -> Self {
        Self { colours: true }
    }

    /// With colours on a terminal, unless somebody wants none.
    pub fn on(stream: &impl IsTerminal, no_color: bool) -> Self {
        Self {
            colours: !no_color && stream.is_terminal(),
        }
    }

    /// The text in a tone.
    pub fn of(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => None,
            Tone::Good => Some("32"),
            Tone::Warning => Some("33"),
            Tone::Bad => Some("31"),
            Tone::Faint => Some("2"),
            Tone::Strong => Some("1"),
        };
        match code {
            Some(code) if self.colours && !text.is_empty() => {
                format!("\u{1b}[{code}m{text}\u{1b}[0m")
            }
            Some(_) | None => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_painter_with_colours_paints() {
        assert_eq!(Paint::plain().of(Tone::Bad, "x"), "x");
        assert_eq!(Paint::coloured().of(Tone::Bad, "x"), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(Paint::coloured().of(Tone::Plain, "x"), "x");
    }

    #[test]
    fn what_is_no_terminal_gets_no_colours() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Paint::on(&file, false), Paint::plain());
    }
}
