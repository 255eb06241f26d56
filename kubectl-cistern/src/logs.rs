//! `logs`: prints the logs of Cistern's pods, optionally only lines about one volume.
//!
//! *Invariant:* a container whose log cannot be read is reported and does not block the others.

use std::io::Write as _;

use cistern_client::Chain;
use cistern_crds::names::COMPONENT_LABEL;
use futures::{AsyncBufReadExt as _, StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, LogParams},
};

use crate::{
    Connection, Verdict, arguments,
    arguments::Component,
    cluster::{Cluster, handle},
    output::{Paint, Terminal},
};

/// Containers whose logs are read concurrently.
const AT_ONCE: usize = 8;

/// Error of `logs`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No pod matches.
    #[error("no pod of Cistern in namespace {namespace} is {wanted}: check --system-namespace")]
    NoPods {
        /// Namespace that was searched.
        namespace: String,
        /// Description of the pods.
        wanted: String,
    },
    /// No log could be read.
    #[error(
        "the log of none of the {count} containers can be read; check that you may get pods/log"
    )]
    Unread {
        /// Number of containers.
        count: usize,
    },
}

/// A container whose log is read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    pod: String,
    container: String,
}

/// Selects containers and log lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LogFilter {
    components: Vec<Component>,
    /// Only this node's node plugin; all nodes if `None`.
    node: Option<String>,
    sidecars: bool,
    /// A line must contain one of these terms; empty selects all lines.
    terms: Vec<String>,
}

/// Prints or follows logs.
pub async fn run(
    connection: &Connection,
    flags: &arguments::Logs,
) -> Result<Verdict, crate::Error> {
    let filter = match &flags.volume {
        None => LogFilter::of(flags),
        Some(name) => {
            let cluster = Cluster::with_users(connection).await?;
            LogFilter::of(flags).for_volume(name, &cluster)
        }
    };
    let pods: Api<Pod> = connection.in_system();
    let labelled = ListParams::default().labels(COMPONENT_LABEL);
    let all = connection.list(pods.clone(), labelled).await?;
    let sources = filter.sources(&all);
    if sources.is_empty() {
        let namespace = connection.system_namespace.clone();
        let wanted = filter.to_string();
        return Err(Error::NoPods { namespace, wanted }.into());
    }
    if flags.follow {
        follow(&pods, &sources, &filter, flags).await
    } else {
        print(connection, &pods, &sources, &filter, flags).await
    }
}

impl LogFilter {
    fn of(flags: &arguments::Logs) -> Self {
        let components = match (&flags.component[..], &flags.volume, &flags.node) {
            ([], Some(_), _) => vec![Component::Controller, Component::Node],
            ([], None, Some(_)) => vec![Component::Node],
            ([], None, None) => Component::ALL.to_vec(),
            (named, ..) => named.to_vec(),
        };
        Self {
            components,
            node: flags.node.clone(),
            sidecars: flags.sidecars,
            terms: Vec::new(),
        }
    }

    /// Restricts the filter to the volume's node and to lines that name the volume, its image or its
    /// PersistentVolume. A volume that no longer exists is searched by `name` on all nodes.
    fn for_volume(mut self, name: &str, cluster: &Cluster) -> Self {
        let volume = cluster.volumes.iter().find(|volume| {
            let claim = cluster.claim(volume);
            let claim = claim.map(|claim| format!("{}/{}", claim.namespace, claim.name));
            let object = cluster.persistent_volume(&volume.name_any());
            volume.name_any() == name
                || claim.as_deref() == Some(name)
                || object.is_some_and(|object| object.name_any() == name)
        });
        let Some(volume) = volume else {
            self.terms = vec![name.to_owned()];
            return self;
        };
        let image = volume
            .status
            .as_ref()
            .and_then(|status| status.image.as_ref());
        let objects = cluster.persistent_volumes.iter();
        let objects = objects.filter(|object| handle(object) == Some(&volume.name_any()));
        self.terms = vec![volume.name_any()];
        self.terms.extend(image.map(|image| image.uid.clone()));
        self.terms.extend(objects.map(kube::ResourceExt::name_any));
        self.terms.sort();
        self.terms.dedup();
        self.node
            .get_or_insert_with(|| volume.spec.node_name.clone());
        self
    }

    fn sources(&self, pods: &[Pod]) -> Vec<Source> {
        let is_wanted = |pod: &&Pod| {
            let label = pod.labels().get(COMPONENT_LABEL);
            let mut components = self.components.iter();
            let component = components.find(|it| Some(it.label()) == label.map(String::as_str));
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            match component {
                Some(Component::Node) => self.node.is_none() || self.node.as_ref() == node,
                Some(Component::Operator | Component::Controller) => true,
                None => false,
            }
        };
        let mut sources: Vec<Source> = pods
            .iter()
            .filter(is_wanted)
            .flat_map(|pod| {
                let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
                let own = |name: &str| matches!(name, "driver" | "operator");
                containers
                    .filter(move |container| self.sidecars || own(&container.name))
                    .map(|container| Source {
                        pod: pod.name_any(),
                        container: container.name.clone(),
                    })
            })
            .collect();
        sources.sort_by(|a, b| (&a.pod, &a.container).cmp(&(&b.pod, &b.container)));
        sources
    }

    fn matches(&self, line: &str) -> bool {
        self.terms.is_empty() || self.terms.iter().any(|word| line.contains(word))
    }
}

impl std::fmt::Display for LogFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let labels: Vec<&str> = self.components.iter().map(|it| it.label()).collect();
        write!(f, "a {}", labels.join(" or "))?;
        match &self.node {
            Some(node) => write!(f, " on node {node}"),
            None => Ok(()),
        }
    }
}

impl Source {
    fn parameters(&self, flags: &arguments::Logs) -> LogParams {
        let seconds = |since: std::time::Duration| since.as_secs().max(1).cast_signed();
        LogParams {
            container: Some(self.container.clone()),
            follow: flags.follow,
            previous: flags.previous,
            since_seconds: flags.since.map(seconds),
            tail_lines: flags.tail,
            // Timestamps are needed to merge the lines of several containers.
            timestamps: !flags.follow,
            ..LogParams::default()
        }
    }
}

/// Lines of one container as timestamp and text.
type Lines = Vec<(String, String)>;

/// Prints existing lines in the order of their timestamps.
async fn print(
    connection: &Connection,
    pods: &Api<Pod>,
    sources: &[Source],
    filter: &LogFilter,
    flags: &arguments::Logs,
) -> Result<Verdict, crate::Error> {
    let read = |source: Source| async move {
        let parameters = source.parameters(flags);
        let what = format!("cannot read the log of {}/{}", source.pod, source.container);
        let log = connection
            .ask(what, pods.logs(&source.pod, &parameters))
            .await;
        (source, log)
    };
    let logs = stream::iter(sources.to_vec()).map(read).buffered(AT_ONCE);
    let logs: Vec<_> = logs.collect().await;
    let mut all = Vec::new();
    let mut unread = 0;
    for (source, log) in logs {
        match log {
            Ok(log) => all.push((source, lines(&log))),
            Err(error) => {
                unread += 1;
                crate::print_notes(&[Chain(&error).to_string()]);
            }
        }
    }
    if all.is_empty() {
        return Err(Error::Unread { count: unread }.into());
    }
    let mut stdout = Terminal::stdout(Paint::plain());
    for line in merged(all, filter, sources.len() > 1) {
        writeln!(stdout, "{line}")?;
    }
    stdout.flush()?;
    Ok(Verdict::Ok)
}

/// Splits the API server's timestamp from each line.
fn lines(log: &str) -> Lines {
    let split = |line: &str| {
        let (time, text) = line.split_once(' ').unwrap_or((line, ""));
        (time.to_owned(), text.to_owned())
    };
    log.lines().map(split).collect()
}

/// Merges the matching lines in the order of their timestamps.
fn merged(logs: Vec<(Source, Lines)>, filter: &LogFilter, named: bool) -> Vec<String> {
    let mut all: Vec<(String, String)> = logs
        .into_iter()
        .flat_map(|(source, lines)| {
            let before = if named {
                source.prefix(filter.sidecars)
            } else {
                String::new()
            };
            let lines = lines.into_iter().filter(|(_, text)| filter.matches(text));
            lines.map(move |(time, text)| (time, format!("{before}{text}")))
        })
        .collect();
    // The sort is stable: lines with equal timestamps keep their order. All timestamps are in UTC.
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all.into_iter().map(|(_, text)| text).collect()
}

impl Source {
    fn prefix(&self, sidecars: bool) -> String {
        if sidecars {
            format!("[{} {}] ", self.pod, self.container)
        } else {
            format!("[{}] ", self.pod)
        }
    }
}

/// Streams lines until the user interrupts the command or every container has ended.
async fn follow(
    pods: &Api<Pod>,
    sources: &[Source],
    filter: &LogFilter,
    flags: &arguments::Logs,
) -> Result<Verdict, crate::Error> {
    let mut streams = Vec::new();
    for source in sources {
        match pods
            .log_stream(&source.pod, &source.parameters(flags))
            .await
        {
            Ok(log) => {
                let before = if sources.len() > 1 {
                    source.prefix(flags.sidecars)
                } else {
                    String::new()
                };
                let lines = log.lines().map_ok(move |line| (before.clone(), line));
                streams.push(lines.boxed_local());
            }
            Err(error) => crate::print_notes(&[format!(
                "cannot follow the log of {}/{}: {}",
                source.pod,
                source.container,
                Chain(&error)
            )]),
        }
    }
    if streams.is_empty() {
        let count = sources.len();
        return Err(Error::Unread { count }.into());
    }
    let mut lines = stream::select_all(streams);
    while let Some(next) = lines.next().await {
        match next {
            Ok((before, line)) if filter.matches(&line) => {
                let mut stdout = Terminal::stdout(Paint::plain());
                writeln!(stdout, "{before}{line}")?;
                stdout.flush()?;
            }
            Ok(_) => {}
            Err(error) => crate::print_notes(&[format!("a log stream ended: {error}")]),
        }
    }
    Ok(Verdict::Ok)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{cluster, object};

    fn pod(name: &str, component: &str, node: &str, containers: &[&str]) -> Pod {
        let containers: Vec<_> = containers
            .iter()
            .map(|name| json!({"name": name}))
            .collect();
        object(json!({
            "metadata": {"name": name, "labels": {COMPONENT_LABEL: component}},
            "spec": {"nodeName": node, "containers": containers},
        }))
    }

    fn pods() -> Vec<Pod> {
        vec![
            pod("node-b", "node", "worker-2", &["driver"]),
            pod("node-a", "node", "worker-1", &["driver"]),
            pod(
                "controller",
                "controller",
                "worker-2",
                &["driver", "provisioner"],
            ),
            pod("operator", "operator", "worker-1", &["operator"]),
            pod("stranger", "web", "worker-1", &["driver"]),
        ]
    }

    fn flags(words: &[&str]) -> arguments::Logs {
        use clap::Parser as _;
        let words = ["kubectl-cistern", "logs"]
            .into_iter()
            .chain(words.iter().copied());
        match crate::Arguments::try_parse_from(words).unwrap().command {
            arguments::Command::Logs(flags) => flags,
            other => panic!("{other:?}"),
        }
    }

    fn names(filter: &LogFilter) -> Vec<String> {
        let sources = filter.sources(&pods()).into_iter();
        sources
            .map(|source| format!("{}/{}", source.pod, source.container))
            .collect()
    }

    #[test]
    fn flags_select_containers() {
        let of = |words: &[&str]| names(&LogFilter::of(&flags(words)));
        assert_eq!(
            of(&[]),
            [
                "controller/driver",
                "node-a/driver",
                "node-b/driver",
                "operator/operator"
            ]
        );
        assert_eq!(of(&["--node=worker-1"]), ["node-a/driver"]);
        assert_eq!(
            of(&["--component=operator,controller"]),
            ["controller/driver", "operator/operator"]
        );
        assert_eq!(
            of(&["--component=controller", "--sidecars"]),
            ["controller/driver", "controller/provisioner"]
        );
        let none = LogFilter::of(&flags(&["--node=worker-3"]));
        assert!(names(&none).is_empty());
        assert_eq!(none.to_string(), "a node on node worker-3");
    }

    #[test]
    fn a_volume_is_searched_on_its_node_by_all_of_its_names() {
        for name in ["pvc-1", "shop/data", "pv-pvc-1"] {
            let filter = LogFilter::of(&flags(&["--volume", name])).for_volume(name, &cluster());
            assert_eq!(names(&filter), ["controller/driver", "node-a/driver"]);
            assert_eq!(filter.terms, ["pv-pvc-1", "pvc-1", "uid-of-pvc-1"]);
            assert!(
                filter.matches("volume=pvc-1 staged") && !filter.matches("volume=pvc-2 staged")
            );
        }
        let gone = LogFilter::of(&flags(&["--volume=pvc-9"])).for_volume("pvc-9", &cluster());
        assert_eq!((gone.node, gone.terms), (None, vec!["pvc-9".to_owned()]));
    }

    #[test]
    fn lines_of_several_containers_are_merged_by_timestamp() {
        let source = |pod: &str| Source {
            pod: pod.to_owned(),
            container: "driver".to_owned(),
        };
        let logs = vec![
            (
                source("a"),
                lines("2026-01-01T00:00:01Z one\n2026-01-01T00:00:03Z three\n"),
            ),
            (source("b"), lines("2026-01-01T00:00:02Z two\n")),
        ];
        let all = merged(logs, &LogFilter::default(), true);
        assert_eq!(all, ["[a] one", "[b] two", "[a] three"]);
    }
}
