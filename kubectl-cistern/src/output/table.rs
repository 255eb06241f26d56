//! Text tables in the style of kubectl: aligned columns below headings, without borders.

use super::{
    paint::{Paint, Style},
    terminal::one_line,
};
use crate::condition_state::ConditionState;

/// Spaces between columns.
const GAP: usize = 3;

/// Rows of cells below headings.
#[derive(Clone, Debug)]
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// A table cell of parts, each with a style.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    parts: Vec<(Style, String)>,
}

impl Cell {
    /// Creates a cell with one style.
    pub fn new(text: impl Into<String>, style: Style) -> Self {
        Self::of(vec![(style, text.into())])
    }

    /// Creates a cell of several parts.
    pub fn of(parts: Vec<(Style, String)>) -> Self {
        // The text is escaped here, so that widths are computed from the displayed text.
        let shown = |(style, text): (Style, String)| (style, one_line(&text).into_owned());
        Self {
            parts: parts.into_iter().map(shown).collect(),
        }
    }

    /// Creates a cell with the status of a condition in the matching style.
    pub fn condition(state: ConditionState) -> Self {
        let style = match state {
            ConditionState::True => Style::Good,
            ConditionState::False => Style::Bad,
            ConditionState::Unknown => Style::Warning,
        };
        Self::new(state.as_str(), style)
    }

    fn width(&self) -> usize {
        let parts = self.parts.iter();
        parts.map(|(_, text)| text.chars().count()).sum()
    }

    fn paint(&self, paint: Paint) -> String {
        let parts = self.parts.iter();
        parts.map(|(style, text)| paint.of(*style, text)).collect()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Style::Plain)
    }
}

impl Table {
    /// Creates a table without rows.
    pub fn new(headings: &[&'static str]) -> Self {
        Self {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. An empty cell is displayed as `-`, so that columns can be counted.
    pub fn row(&mut self, cells: Vec<Cell>) {
        let dashed = |cell: Cell| match cell.width() {
            0 => Cell::new("-", Style::Faint),
            _ => cell,
        };
        self.rows.push(cells.into_iter().map(dashed).collect());
    }

    /// Returns whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Renders the table, one line per row.
    pub fn render(&self, paint: Paint) -> String {
        let heading = |text: &&'static str| Cell::new(*text, Style::Strong);
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
                // The last column is not padded, so that trailing spaces do not wrap lines.
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
        table.row(vec![Cell::new("b", Style::Bad), "".into()]);
        table
    }

    #[test]
    fn columns_are_aligned_with_their_headings() {
        let text = "NAME           SIZE\nünïcode-name   1Gi\nb              -\n";
        assert_eq!(table().render(Paint::plain()), text);
    }

    #[test]
    fn line_breaks_in_a_cell_are_escaped() {
        let mut table = Table::new(&["NAME", "SIZE"]);
        table.row(vec!["a\nb\u{7}".into(), "1Gi".into()]);
        let text = "NAME         SIZE\na\\nb\\u0007   1Gi\n";
        assert_eq!(table.render(Paint::plain()), text);
    }

    #[test]
    fn colours_do_not_change_column_widths() {
        let text = table().render(Paint::coloured());
        assert!(
            text.contains("\u{1b}[31mb\u{1b}[0m              "),
            "{text:?}"
        );
    }
}
