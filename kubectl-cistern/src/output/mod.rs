//! Output formats: tables for people, JSON and YAML for programs.
//!
//! *Invariant:* JSON and YAML do not depend on tables. All formats are rendered from one view, whose fields
//! belong to the plugin: camelCase, sizes in bytes, timestamps in RFC 3339.

pub mod bar;
pub mod paint;
pub mod size;
pub mod table;
pub mod terminal;

use std::io;

use clap::ValueEnum;
use serde::Serialize;

pub use self::{
    paint::{Paint, Style},
    size::human,
    table::{Cell, Table},
    terminal::{Terminal, one_line},
};

/// API version of JSON and YAML documents.
pub const API_VERSION: &str = "kubectl.cistern.storage/v1";

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Human-readable table
    #[default]
    Table,
    /// Table with additional columns
    Wide,
    /// For programs
    Json,
    /// For programs
    Yaml,
}

/// A result that can be rendered in every [`Format`].
pub trait View: Serialize {
    /// `kind` of JSON and YAML documents.
    const KIND: &'static str;

    /// Renders the table, which ends with a line break; `wide` adds columns.
    fn text(&self, wide: bool, paint: Paint) -> String;

    /// Returns whether the text begins with a line of headings.
    fn has_headings(&self) -> bool {
        false
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a, V> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    view: &'a V,
}

impl<'a, V: View> Document<'a, V> {
    const fn of(view: &'a V) -> Self {
        Self {
            api_version: API_VERSION,
            kind: V::KIND,
            view,
        }
    }
}

/// Renders a view as JSON without spaces, for the page of `ui`. Fails if the view cannot be
/// serialized.
pub fn compact<V: View>(view: &V) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&Document::of(view))?)
}

/// Renders a view in a format. Without `headings`, the table of a list has no line of headings.
/// Fails if the view cannot be serialized as JSON or YAML.
pub fn render<V: View>(
    view: &V,
    format: Format,
    headings: bool,
    paint: Paint,
) -> io::Result<String> {
    let document = Document::of(view);
    let table = |wide| {
        let text = view.text(wide, paint);
        match text.split_once('\n') {
            Some((_, rest)) if !headings && view.has_headings() => rest.to_owned(),
            Some(_) | None => text,
        }
    };
    match format {
        Format::Table => Ok(table(false)),
        Format::Wide => Ok(table(true)),
        Format::Json => Ok(serde_json::to_string_pretty(&document)? + "\n"),
        Format::Yaml => serde_saphyr::to_string(&document).map_err(io::Error::other),
    }
}

/// Formats a number of things, with a plural in `s`: `1 volume`, `2 volumes`.
pub fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Wraps a text to lines of at most `width` characters, and indents all but the first by `indent` spaces.
/// Words are not split, and line breaks in the text become spaces.
pub fn wrap(text: &str, width: usize, indent: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { break };
        let used = line.chars().count();
        if used == 0 {
            line.push_str(word);
        } else if indent + used + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Greeting {
        first_word: &'static str,
    }

    impl View for Greeting {
        const KIND: &'static str = "Greeting";

        fn text(&self, wide: bool, paint: Paint) -> String {
            let word = paint.of(Style::Good, self.first_word);
            format!("{word}{}\n", if wide { ", world" } else { "" })
        }

        fn has_headings(&self) -> bool {
            self.first_word == "HEADING"
        }
    }

    #[test]
    fn a_list_is_rendered_without_its_headings_and_another_text_in_full() {
        let rendered = |first_word, format| {
            render(&Greeting { first_word }, format, false, Paint::plain()).unwrap()
        };
        assert_eq!(rendered("HEADING", Format::Table), "");
        assert_eq!(rendered("hello", Format::Wide), "hello, world\n");
        assert!(rendered("HEADING", Format::Json).contains("HEADING"));
    }

    #[test]
    fn every_format_has_the_same_content() {
        let greeting = Greeting {
            first_word: "hello",
        };
        let render = |format| render(&greeting, format, true, Paint::plain()).unwrap();
        assert_eq!(render(Format::Table), "hello\n");
        assert_eq!(render(Format::Wide), "hello, world\n");
        let json: serde_json::Value = serde_json::from_str(&render(Format::Json)).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "apiVersion": API_VERSION, "kind": "Greeting", "firstWord": "hello",
            })
        );
        let yaml: serde_json::Value = serde_saphyr::from_str(&render(Format::Yaml)).unwrap();
        assert_eq!(json, yaml);
    }

    #[test]
    fn text_is_wrapped_between_words_and_indented() {
        assert_eq!(wrap("one two  three", 9, 2), "one two\n  three");
        assert_eq!(wrap("immeasurable", 5, 2), "immeasurable");
        assert_eq!(wrap("", 5, 2), "");
    }
}
