//! The findings of all nodes. Pure.

use serde::{Deserialize, Serialize};

use crate::{
    Verdict,
    output::{Cell, Paint, Style, Table, View, counted, one_line, wrap},
};

/// Maximum number of findings of a node in the table; JSON and YAML have all that the agent lists.
const SHOWN: usize = 20;
/// Characters per line of text.
const WIDTH: usize = 100;

/// What the agents found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The nodes that were asked, by name.
    pub items: Vec<NodeReport>,
    /// The nodes that could not be asked, by name.
    pub not_asked: Vec<NotAsked>,
}

/// What the agent of one node found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Name of the node.
    pub node: String,
    /// Number of pools that were compared.
    pub pools: u64,
    /// Number of PoolVolumes that the API server lists for the node.
    pub volumes: u64,
    /// Number of PoolSnapshots that the API server lists for the node.
    pub snapshots: u64,
    /// Number of images on the disks of the node, with those in the trash.
    pub images: u64,
    /// Number of loop devices of images.
    pub loops: u64,
    /// Number of mounts of volumes.
    pub mounts: u64,
    /// Inconsistencies that the agent lists.
    pub findings: Vec<Finding>,
    /// Number of further findings, which the agent does not list.
    #[serde(default)]
    pub unlisted: u64,
}

/// An inconsistency on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Kind, for programs.
    pub kind: String,
    /// Name or path of the object.
    pub object: String,
    /// Facts and remedy, for people.
    pub message: String,
}

/// A node that could not be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotAsked {
    /// Name of the node.
    pub node: String,
    /// Reason.
    pub message: String,
}

impl NodeReport {
    fn findings(&self) -> u64 {
        let listed = u64::try_from(self.findings.len()).unwrap_or(u64::MAX);
        listed.saturating_add(self.unlisted)
    }

    fn row(&self) -> Vec<Cell> {
        let numbers = [
            self.pools,
            self.volumes,
            self.snapshots,
            self.images,
            self.loops,
            self.mounts,
        ];
        let mut row = vec![Cell::from(self.node.as_str())];
        row.extend(numbers.map(|number| Cell::from(number.to_string())));
        row.push(match self.findings() {
            0 => Cell::new("none", Style::Good),
            count => Cell::new(count.to_string(), Style::Bad),
        });
        row
    }

    fn list(&self, paint: Paint) -> String {
        if self.findings() == 0 {
            return String::new();
        }
        let mut lines = vec![format!(
            "\n{}\n",
            paint.of(Style::Strong, &one_line(&self.node))
        )];
        for finding in self.findings.iter().take(SHOWN) {
            let (kind, object) = (one_line(&finding.kind), one_line(&finding.object));
            let message = wrap(&one_line(&finding.message), WIDTH, 6);
            lines.push(format!("  {kind}: {object}\n      {message}\n"));
        }
        let shown = u64::try_from(self.findings.len().min(SHOWN)).unwrap_or(u64::MAX);
        let more = self.findings().saturating_sub(shown);
        if more > 0 {
            lines.push(format!(
                "  and {more} more: `-o json` has up to 500 of a node\n"
            ));
        }
        lines.concat()
    }
}

impl NotAsked {
    fn text(&self, paint: Paint) -> String {
        let node = paint.of(Style::Strong, &one_line(&self.node));
        let message = wrap(&one_line(&self.message), WIDTH, 6);
        format!("\n{node}\n  not asked\n      {message}\n")
    }
}

impl Report {
    /// Returns the verdict that sets the exit code: 2 if a node could not be asked, or none was; 1 if there are
    /// findings.
    pub fn verdict(&self) -> Verdict {
        if !self.not_asked.is_empty() || self.items.is_empty() {
            Verdict::Failures
        } else if self.items.iter().any(|it| it.findings() > 0) {
            Verdict::Warnings
        } else {
            Verdict::Ok
        }
    }

    fn summary(&self) -> String {
        let asked = counted(self.items.len(), "node");
        let with = self.items.iter().filter(|it| it.findings() > 0).count();
        let findings = match with {
            0 => format!("no findings on {asked}"),
            _ => format!("findings on {with} of {asked}"),
        };
        match self.not_asked.len() {
            0 if self.items.is_empty() => {
                "no node is selected, and nothing was compared".to_owned()
            }
            0 => findings,
            count => format!("{findings}; {} could not be asked", counted(count, "node")),
        }
    }
}

impl View for Report {
    const KIND: &'static str = "NodeFindings";

    fn text(&self, _: bool, paint: Paint) -> String {
        let mut table = Table::new(&[
            "NODE",
            "POOLS",
            "VOLUMES",
            "SNAPSHOTS",
            "IMAGES",
            "LOOPS",
            "MOUNTS",
            "FINDINGS",
        ]);
        for item in &self.items {
            table.row(item.row());
        }
        for NotAsked { node, .. } in &self.not_asked {
            let mut row = vec![Cell::from(node.as_str())];
            row.resize(7, Cell::default());
            row.push(Cell::new("not asked", Style::Bad));
            table.row(row);
        }
        let mut parts = vec![table.render(paint)];
        parts.extend(self.items.iter().map(|item| item.list(paint)));
        parts.extend(self.not_asked.iter().map(|node| node.text(paint)));
        parts.push(format!("\n{}.\n", self.summary()));
        parts.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, findings: usize, unlisted: u64) -> NodeReport {
        let finding = Finding {
            kind: "Stray".to_owned(),
            object: "/a\nb".to_owned(),
            message: "move it away".to_owned(),
        };
        NodeReport {
            node: name.to_owned(),
            pools: 1,
            findings: vec![finding; findings],
            unlisted,
            ..NodeReport::default()
        }
    }

    fn lost() -> NotAsked {
        NotAsked {
            node: "lost".to_owned(),
            message: "no agent is running there".to_owned(),
        }
    }

    #[test]
    fn a_node_that_was_not_asked_outweighs_findings_and_no_node_is_never_clean() {
        let verdict = |items: Vec<NodeReport>, not_asked| Report { items, not_asked }.verdict();
        assert_eq!(verdict(vec![node("a", 0, 0)], vec![]), Verdict::Ok);
        assert_eq!(
            verdict(vec![node("a", 0, 0), node("b", 1, 0)], vec![]),
            Verdict::Warnings
        );
        assert_eq!(
            verdict(vec![node("a", 1, 0)], vec![lost()]),
            Verdict::Failures
        );
        assert_eq!(verdict(vec![], vec![]), Verdict::Failures);
    }

    #[test]
    fn each_node_has_a_row_and_long_lists_of_findings_are_cut() {
        let items = vec![node("clean", 0, 0), node("dirty", 25, 7)];
        let not_asked = vec![lost()];
        let text = Report { items, not_asked }.text(false, Paint::plain());
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["clean", "1", "0", "0", "0", "0", "0", "none"]);
        assert_eq!(lines[2].last(), Some(&"32"));
        assert_eq!(
            lines[3],
            ["lost", "-", "-", "-", "-", "-", "-", "not", "asked"]
        );
        assert_eq!(text.matches("Stray: /a\\nb\n").count(), SHOWN);
        assert!(text.contains("and 12 more") && text.contains("no agent is running there"));
        assert!(
            text.ends_with("\nfindings on 1 of 2 nodes; 1 node could not be asked.\n"),
            "{text}"
        );
    }
}
