//! Colours, where they help and nowhere else.

use std::io::IsTerminal;

use super::terminal::one_line;

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

    /// Whether texts get colours.
    pub const fn has_colours(self) -> bool {
        self.colours
    }

    /// The text, which is part of one line, in a tone.
    pub fn of(self, tone: Tone, text: &str) -> String {
        let text = one_line(text);
        match begin(tone) {
            Some(begin) if self.colours && !text.is_empty() => format!("{begin}{text}{END}"),
            Some(_) | None => text.into_owned(),
        }
    }
}

/// Ends every tone.
const END: &str = "\u{1b}[0m";

/// What begins a tone.
const fn begin(tone: Tone) -> Option<&'static str> {
    match tone {
        Tone::Plain => None,
        Tone::Good => Some("\u{1b}[32m"),
        Tone::Warning => Some("\u{1b}[33m"),
        Tone::Bad => Some("\u{1b}[31m"),
        Tone::Faint => Some("\u{1b}[2m"),
        Tone::Strong => Some("\u{1b}[1m"),
    }
}

/// The sequence of a painter that a text begins with.
pub fn sequence(text: &str) -> Option<&'static str> {
    let tones = [
        Tone::Good,
        Tone::Warning,
        Tone::Bad,
        Tone::Faint,
        Tone::Strong,
    ];
    let mut all = tones.into_iter().filter_map(begin).chain([END]);
    all.find(|sequence| text.starts_with(sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_painter_with_colours_paints() {
        assert_eq!(Paint::plain().of(Tone::Bad, "x"), "x");
        assert_eq!(Paint::coloured().of(Tone::Bad, "x"), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(Paint::coloured().of(Tone::Plain, "x"), "x");
        let hostile = Paint::coloured().of(Tone::Good, "a\u{1b}[31m\nb");
        assert_eq!(hostile, "\u{1b}[32ma\\u001b[31m\\nb\u{1b}[0m");
    }

    #[test]
    fn what_is_no_terminal_gets_no_colours() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Paint::on(&file, false), Paint::plain());
    }
}
