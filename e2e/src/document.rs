//! The parts of a Markdown file that tests check: headings, links, and blocks of commands with their output.
//!
//! A comment in the line before a block says how a test treats it: `<!-- clean-up -->` removes what the other
//! blocks made, `<!-- dry run: REASON -->` only asks the API server, and `<!-- not run: REASON -->` is not run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use crate::process::workspace;

/// A Markdown file of the repository.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// Path, relative to the repository.
    pub path: PathBuf,
    /// The anchors of its headings.
    pub anchors: BTreeSet<String>,
    /// The targets of its links and pictures.
    pub links: Vec<Link>,
    /// Its fenced blocks.
    pub blocks: Vec<Block>,
}

/// A link or a picture.
#[derive(Clone, Debug)]
pub struct Link {
    /// Line in the file, counted from 1.
    pub line: usize,
    /// What it points to, as written.
    pub target: String,
}

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Block {
    /// Line of its fence in the file, counted from 1.
    pub line: usize,
    /// The heading above it.
    pub heading: String,
    /// The language behind the fence.
    pub language: String,
    /// Its text.
    pub text: String,
    /// How a test treats it.
    pub treatment: Treatment,
}

/// How a test treats a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Treatment {
    /// Runs it as written.
    #[default]
    Run,
    /// Runs it as written, and also before all others.
    CleanUp,
    /// Runs each line with `--dry-run=server`.
    DryRun {
        /// Why it is not run as written.
        reason: String,
    },
    /// Does not run it.
    NotRun {
        /// Why.
        reason: String,
    },
}

impl Treatment {
    /// Reads a comment. Returns nothing if it says something else.
    fn parse(comment: &str) -> Option<Self> {
        let text = comment.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
        let (kind, reason) = text.split_once(':').unwrap_or((text, ""));
        let reason = reason.trim().to_owned();
        match kind.trim() {
            "clean-up" => Some(Self::CleanUp),
            "dry run" => Some(Self::DryRun { reason }),
            "not run" => Some(Self::NotRun { reason }),
            _ => None,
        }
    }
}

impl Document {
    /// Reads a file of the repository.
    pub fn read(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let file = workspace().join(path);
        let text =
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Self {
        let mut this = Self {
            path: path.to_owned(),
            ..Self::default()
        };
        let mut seen = BTreeMap::new();
        let mut heading: Option<String> = None;
        let mut section = String::new();
        let mut block: Option<Block> = None;
        let mut comment = None;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = 1 + text[..range.start].matches('\n').count();
            match event {
                Event::Html(html) => comment = Treatment::parse(&html).or(comment),
                Event::Start(Tag::CodeBlock(kind)) => {
                    let language = match kind {
                        CodeBlockKind::Fenced(language) => language.to_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    block = Some(Block {
                        line,
                        heading: section.clone(),
                        language,
                        text: String::new(),
                        treatment: comment.take().unwrap_or_default(),
                    });
                }
                Event::End(TagEnd::CodeBlock) => this.blocks.extend(block.take()),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    section = heading.take().unwrap_or_default();
                    this.anchors.insert(anchor(&section, &mut seen));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let target = dest_url.to_string();
                    this.links.push(Link { line, target });
                }
                Event::Text(words) | Event::Code(words) => {
                    if let Some(block) = &mut block {
                        block.text.push_str(&words);
                    } else if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                // Text between a comment and a block: the comment was about something else.
                Event::Start(tag) if tag != Tag::HtmlBlock => comment = None,
                _ => {}
            }
        }
        this
    }
}

/// Returns the anchor of a heading as GitHub and mdBook derive it. A repeated one gets a number.
fn anchor(title: &str, seen: &mut BTreeMap<String, usize>) -> String {
    let anchor: String = title
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then_some(c),
        })
        .collect();
    let count = seen.entry(anchor.clone()).or_insert(0);
    *count += 1;
    match *count {
        1 => anchor,
        again => format!("{anchor}-{}", again - 1),
    }
}
