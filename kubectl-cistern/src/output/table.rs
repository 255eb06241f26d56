//! Tables of text, in the manner of kubectl: columns below headings, no lines.

use super::{
    paint::{Paint, Tone},
    terminal::one_line,
};
use crate::truth::Truth;

/// Spaces between columns.
const GAP: usize = 3;

/// Rows below headings.
#[derive(Clone, Debug)]
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// One text in a table, of parts in tones of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    parts: Vec<(Tone, String)>,
}

impl Cell {
    /// A text in one tone.
    pub fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self::of(vec![(tone, text.into())])
    }

    /// A text of several parts.
    pub fn of(parts: Vec<(Tone, String)>) -> Self {
        // Here already, so that widths are those of what is shown.
        let shown = |(tone, text): (Tone, String)| (tone, one_line(&text).into_owned());
        Self {
            parts: parts.into_iter().map(shown).collect(),
        }
    }

    /// Whether something may be wrong, in the tone for it.
    pub fn truth(truth: Truth) -> Self {
        let tone = match truth {
            Truth::True => Tone::Good,
            Truth::False => Tone::Bad,
            Truth::Unknown => Tone::Warning,
        };
        Self::new(truth.as_str(), tone)
    }

    fn width(&self) -> usize {
        let parts = self.parts.iter();
        parts.map(|(_, text)| text.chars().count()).sum()
    }

    fn paint(&self, paint: Paint) -> String {
        let parts = self.parts.iter();
        parts.map(|(tone, text)| paint.of(*tone, text)).collect()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

impl Table {
    /// A table without rows.
    pub fn new(headings: &[&'static str]) -> Self {
        Self {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. An empty cell shows as `-`, so that columns can be counted.
    pub fn row(&mut self, cells: Vec<Cell>) {
        let dashed = |cell: Cell| match cell.width() {
            0 => Cell::new("-", Tone::Faint),
            _ => cell,
        };
        self.rows.push(cells.into_iter().map(dashed).collect());
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The text, each row in a line.
    pub fn render(&self, paint: Paint) -> String {
        let heading = |text: &&'static str| Cell::new(*text, Tone::Strong);
        let headings: Vec<Cell> = self.headings.iter().map(heading).collect();
        let lines: Vec<&Vec<Cell>> = std::iter::once(&headings).chain(&self.rows).collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(Cell::width).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..headings.len()).map(width).collect();
        let mut text = String::new();
        for line in &lines {
            let mut gap = 0;
            for (cell, width) in line.iter().zip(&widths) {
                text.push_str(&" ".repeat(gap));
                text.push_str(&cell.paint(paint));
                // Nothing behind the last column, so that lines do not wrap for spaces.
                gap = width.saturating_sub(cell.width()) + GAP;
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["NAME", "SIZE"]);
        table.row(vec!["ünïcode-name".into(), "1Gi".into()]);
        table.row(vec![Cell::new("b", Tone::Bad), "".into()]);
        table
    }

    #[test]
    fn columns_stand_below_their_headings() {
        let text = "NAME           SIZE\nünïcode-name   1Gi\nb              -\n";
        assert_eq!(table().render(Paint::plain()), text);
    }

    #[test]
    fn a_cell_of_somebody_else_makes_no_line_of_its_own() {
        let mut table = Table::new(&["NAME", "SIZE"]);
        table.row(vec!["a\nb\u{7}".into(), "1Gi".into()]);
        let text = "NAME         SIZE\na\\nb\\u0007   1Gi\n";
        assert_eq!(table.render(Paint::plain()), text);
    }

    #[test]
    fn colours_take_no_room() {
        let text = table().render(Paint::coloured());
        assert!(
            text.contains("\u{1b}[31mb\u{1b}[0m              "),
            "{text:?}"
        );
    }
}
