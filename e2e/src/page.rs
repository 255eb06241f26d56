//! Runs the commands of a document as its reader would, and compares their output with what the document shows.

use std::{
    env, fs,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use crate::{
    Document, cluster,
    document::{Block, Treatment},
    process::{binary, command, run, tool, workspace},
};

/// The time limit of a block. Its commands have shorter ones.
const DEADLINE: Duration = Duration::from_mins(15);

/// A page of commands.
#[derive(Debug)]
pub struct Page {
    document: Document,
    /// `PATH` of its commands: kubectl, and the plugin of this checkout.
    path: String,
    /// Variables that the page asks its reader to set.
    variables: Vec<(String, String)>,
}

impl Page {
    /// Reads a page of the repository.
    pub async fn read(page: &str) -> Self {
        let kubectl = tool("kubectl").await;
        let plugin = binary("kubectl-cistern");
        let folders = [kubectl.parent().unwrap(), plugin.parent().unwrap()];
        let folders = env::join_paths(folders).unwrap();
        Self {
            document: Document::read(page),
            path: format!(
                "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                folders.display()
            ),
            variables: Vec::new(),
        }
    }

    /// Sets a variable for the commands.
    #[must_use]
    pub fn with(mut self, variable: &str, value: &str) -> Self {
        self.variables.push((variable.to_owned(), value.to_owned()));
        self
    }

    /// The headings with blocks of commands, in their order.
    pub fn headings(&self) -> Vec<&str> {
        let blocks = self.document.blocks.iter();
        let mut headings: Vec<&str> = blocks.map(|block| block.heading.as_str()).collect();
        headings.dedup();
        headings
    }

    /// Runs the blocks below one heading.
    ///
    /// # Panics
    /// When there is none.
    pub async fn run_section(&self, heading: &str) {
        let blocks = self.document.blocks.iter();
        let blocks: Vec<&Block> = blocks.filter(|block| block.heading == heading).collect();
        let page = self.document.path.display();
        assert!(!blocks.is_empty(), "{page} has no commands below {heading}");
        self.run_blocks(blocks).await;
    }

    /// Runs the blocks in their order, after the clean-up of an earlier run that has failed.
    pub async fn run(&self) {
        let blocks = &self.document.blocks;
        for block in blocks
            .iter()
            .filter(|it| it.treatment == Treatment::CleanUp)
        {
            self.output(block, &block.text).await;
        }
        self.run_blocks(blocks.iter().collect()).await;
    }

    async fn run_blocks(&self, blocks: Vec<&Block>) {
        let mut output = String::new();
        let mut samples = Vec::new();
        let mut before: Option<&Block> = None;
        for block in blocks {
            match &block.treatment {
                _ if block.language == "text" => {
                    if let Some(printed) = before.filter(|it| only_shows(it)) {
                        output = self.output_like(printed, block, output).await;
                    }
                    self.compare(block, &output);
                    samples.push((block, output.clone()));
                }
                Treatment::Run | Treatment::CleanUp => {
                    output = self.output(block, &block.text).await;
                }
                Treatment::DryRun { reason } => {
                    eprintln!(
                        "{}: asked of the API server only: {reason}",
                        self.place(block)
                    );
                    let text = block.text.replace('\n', " --dry-run=server\n");
                    output = self.output(block, &text).await;
                }
                Treatment::NotRun { reason } => {
                    eprintln!("{}: NOT RUN: {reason}", self.place(block));
                }
            }
            before = Some(block);
        }
        if cluster::writes_samples() {
            self.write(&samples);
        }
    }

    fn place(&self, block: &Block) -> String {
        format!("{}:{}", self.document.path.display(), block.line)
    }

    /// Runs a text in a shell and returns its standard output.
    async fn output(&self, block: &Block, text: &str) -> String {
        let mut shell = command("bash");
        shell
            .args(["-euo", "pipefail", "-c", text])
            .current_dir(workspace())
            .env("PATH", &self.path)
            .envs(self.variables.iter().cloned());
        let ended = run(shell, DEADLINE).await;
        let (output, errors) = (
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr),
        );
        assert!(
            ended.status.success(),
            "{}: the block fails with {}:\n{text}\n{output}{errors}",
            self.place(block),
            ended.status
        );
        output.into_owned()
    }

    /// Runs a block again until its output has the shape of the sample: status follows what has happened
    /// after a while. Returns the last output.
    async fn output_like(&self, block: &Block, sample: &Block, first: String) -> String {
        let started = Instant::now();
        let mut output = first;
        while shape(&sample.text) != shape(&output)
            && !cluster::writes_samples()
            && started.elapsed() < cluster::PATIENCE
        {
            sleep(Duration::from_secs(1)).await;
            output = self.output(block, &block.text).await;
        }
        output
    }

    /// Compares a sample with the output of the block before it.
    fn compare(&self, sample: &Block, output: &str) {
        if !cluster::writes_samples() {
            assert!(
                shape(&sample.text) == shape(output),
                "{}: the output has another shape than this sample; write it again with CISTERN_WRITE_SAMPLES=1:\n{output}",
                self.place(sample)
            );
        }
    }

    /// Replaces the samples of the page with the output, from the last one to the first.
    fn write(&self, samples: &[(&Block, String)]) {
        let file = workspace().join(&self.document.path);
        let text = fs::read_to_string(&file).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        for (block, output) in samples.iter().rev() {
            let length = block.text.lines().count();
            lines.splice(block.line..block.line + length, output.trim_end().lines());
        }
        fs::write(file, lines.join("\n") + "\n").unwrap();
    }
}

/// Returns the words of each line. Numbers, names of nodes and other words that differ between two runs are
/// equal, and so are several such lines in a row.
fn shape(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| {
            line.split_whitespace()
                .map(word)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    lines.dedup();
    lines
}

fn word(word: &str) -> &str {
    let differs = |c: char| c.is_ascii_digit() || "█▒·".contains(c);
    if word.contains(differs) || word.ends_with("-worker") || word.ends_with("-control-plane") {
        "*"
    } else {
        word
    }
}

/// Whether a block shows something and changes nothing.
fn only_shows(block: &Block) -> bool {
    let mut lines = block.text.lines();
    lines.all(|line| {
        ["kubectl get ", "kubectl cistern status"]
            .iter()
            .any(|shown| line.starts_with(shown))
    })
}
