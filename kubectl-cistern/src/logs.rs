//! `logs`: of Cistern's own pods, also only what has to do with one volume.
//!
//! *Invariant:* a container that gives no log is told of and keeps nobody from reading the others.

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

/// Containers whose logs are asked for at a time.
const AT_ONCE: usize = 8;

/// Why there are no logs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No pod is as asked for.
    #[error(
        "no pod of Cistern in namespace {namespace} is {wanted}: is it the right --system-namespace?"
    )]
    NoPods {
        /// Where it was looked.
        namespace: String,
        /// What was looked for.
        wanted: String,
    },
    /// No container has given anything.
    #[error("none of the {count} containers gives its log; may you get pods/log?")]
    Unread {
        /// How many were asked.
        count: usize,
    },
}

/// A container whose log is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    pod: String,
    container: String,
}

/// Which containers, and which of their lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    components: Vec<Component>,
    /// Node plugins elsewhere are not wanted.
    node: Option<String>,
    sidecars: bool,
    /// A line has one of these; all lines where there is none.
    words: Vec<String>,
}

/// Prints logs.
pub async fn run(
    connection: &Connection,
    flags: &arguments::Logs,
) -> Result<Verdict, crate::Error> {
    let wanted = match &flags.volume {
        None => Wanted::of(flags),
        Some(name) => {
            let cluster = Cluster::with_users(connection).await?;
            Wanted::of(flags).about(name, &cluster)
        }
    };
    let pods: Api<Pod> = connection.in_system();
    let labelled = ListParams::default().labels(COMPONENT_LABEL);
    let all = connection.list(pods.clone(), labelled).await?;
    let sources = wanted.sources(&all);
    if sources.is_empty() {
        let namespace = connection.system_namespace.clone();
        let wanted = wanted.to_string();
        return Err(Error::NoPods { namespace, wanted }.into());
    }
    if flags.follow {
        follow(&pods, &sources, &wanted, flags).await
    } else {
        print(connection, &pods, &sources, &wanted, flags).await
    }
}

impl Wanted {
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
            words: Vec::new(),
        }
    }

    /// Only what has to do with a volume: on its node, and in lines that name it, its image or its
    /// PersistentVolume. One that is gone is looked for by its name, everywhere.
    fn about(mut self, name: &str, cluster: &Cluster) -> Self {
        let volume = cluster.volumes.iter().find(|volume| {
            let claim = cluster.claim(volume);
            let claim = claim.map(|claim| format!("{}/{}", claim.namespace, claim.name));
            let object = cluster.persistent_volume(&volume.name_any());
            volume.name_any() == name
                || claim.as_deref() == Some(name)
                || object.is_some_and(|object| object.name_any() == name)
        });
        let Some(volume) = volume else {
            self.words = vec![name.to_owned()];
            return self;
        };
        let image = volume
            .status
            .as_ref()
            .and_then(|status| status.image.as_ref());
        let objects = cluster.persistent_volumes.iter();
        let objects = objects.filter(|object| handle(object) == Some(&volume.name_any()));
        self.words = vec![volume.name_any()];
        self.words.extend(image.map(|image| image.uid.clone()));
        self.words.extend(objects.map(kube::ResourceExt::name_any));
        self.words.sort();
        self.words.dedup();
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

    fn wants(&self, line: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| line.contains(word))
    }
}

impl std::fmt::Display for Wanted {
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
            // To put lines of several containers in order.
            timestamps: !flags.follow,
            ..LogParams::default()
        }
    }
}

/// Lines of one container: when each was written, and what.
type Lines = Vec<(String, String)>;

/// Prints what there is, in the order in which it was written.
async fn print(
    connection: &Connection,
    pods: &Api<Pod>,
    sources: &[Source],
    wanted: &Wanted,
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
                crate::tell(&[Chain(&error).to_string()]);
            }
        }
    }
    if all.is_empty() {
        return Err(Error::Unread { count: unread }.into());
    }
    let mut stdout = Terminal::stdout(Paint::plain());
    for line in merged(all, wanted, sources.len() > 1) {
        writeln!(stdout, "{line}")?;
    }
    stdout.flush()?;
    Ok(Verdict::Well)
}

/// Lines with the moment that the API server has put before each.
fn lines(log: &str) -> Lines {
    let split = |line: &str| {
        let (time, text) = line.split_once(' ').unwrap_or((line, ""));
        (time.to_owned(), text.to_owned())
    };
    log.lines().map(split).collect()
}

/// The lines that are wanted, in the order in which they were written.
fn merged(logs: Vec<(Source, Lines)>, wanted: &Wanted, named: bool) -> Vec<String> {
    let mut all: Vec<(String, String)> = logs
        .into_iter()
        .flat_map(|(source, lines)| {
            let before = if named {
                source.prefix(wanted.sidecars)
            } else {
                String::new()
            };
            let lines = lines.into_iter().filter(|(_, text)| wanted.wants(text));
            lines.map(move |(time, text)| (time, format!("{before}{text}")))
        })
        .collect();
    // Stable: lines of the same moment stay as they were written. The moments are all in UTC.
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

/// Prints lines as they come, until somebody has seen enough or every container has ended.
async fn follow(
    pods: &Api<Pod>,
    sources: &[Source],
    wanted: &Wanted,
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
            Err(error) => crate::tell(&[format!(
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
            Ok((before, line)) if wanted.wants(&line) => {
                let mut stdout = Terminal::stdout(Paint::plain());
                writeln!(stdout, "{before}{line}")?;
                stdout.flush()?;
            }
            Ok(_) => {}
            Err(error) => crate::tell(&[format!("a log ends: {error}")]),
        }
    }
    Ok(Verdict::Well)
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

    fn names(wanted: &Wanted) -> Vec<String> {
        let sources = wanted.sources(&pods()).into_iter();
        sources
            .map(|source| format!("{}/{}", source.pod, source.container))
            .collect()
    }

    #[test]
    fn flags_say_whose_logs_are_wanted() {
        let of = |words: &[&str]| names(&Wanted::of(&flags(words)));
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
        let none = Wanted::of(&flags(&["--node=worker-3"]));
        assert!(names(&none).is_empty());
        assert_eq!(none.to_string(), "a node on node worker-3");
    }

    #[test]
    fn a_volume_is_looked_for_where_it_is_by_every_name_that_it_has() {
        for name in ["pvc-1", "shop/data", "pv-pvc-1"] {
            let wanted = Wanted::of(&flags(&["--volume", name])).about(name, &cluster());
            assert_eq!(names(&wanted), ["controller/driver", "node-a/driver"]);
            assert_eq!(wanted.words, ["pv-pvc-1", "pvc-1", "uid-of-pvc-1"]);
            assert!(wanted.wants("volume=pvc-1 staged") && !wanted.wants("volume=pvc-2 staged"));
        }
        let gone = Wanted::of(&flags(&["--volume=pvc-9"])).about("pvc-9", &cluster());
        assert_eq!((gone.node, gone.words), (None, vec!["pvc-9".to_owned()]));
    }

    #[test]
    fn lines_of_several_containers_stand_in_the_order_in_which_they_were_written() {
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
        let all = merged(logs, &Wanted::default(), true);
        assert_eq!(all, ["[a] one", "[b] two", "[a] three"]);
    }
}
