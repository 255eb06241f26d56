//! Everything that is measured at one size.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use cistern_e2e::{
    ControlPlane, Operator, Replica,
    measure::{cpu_seconds, peak, percentile, resident},
    service::Service,
};

use crate::{
    Options,
    agents::Agents,
    etcd::Database,
    fill::{self, POOLS},
    lag::Lag,
    load::{Load, Outcome},
    measure::{Counters, Passed, Probes},
    report::Row,
};

/// How long a process may work after its start before it is measured regardless.
const SETTLED: Duration = Duration::from_mins(4);
/// A process that uses less of a core is settled.
const QUIET: f64 = 0.05;
const MEBIBYTE: f64 = 1_048_576.0;

/// The size of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) nodes: usize,
    pub(crate) volumes: usize,
}

impl Size {
    pub(crate) const fn new(nodes: usize, volumes: usize) -> Self {
        Self { nodes, volumes }
    }

    /// Parses `NODESxVOLUMES`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (nodes, volumes) = text.split_once('x')?;
        let size = Self::new(nodes.parse().ok()?, volumes.parse().ok()?);
        (size.nodes > 0 && size.volumes > 0).then_some(size)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.nodes, self.volumes)
    }
}

/// What the objects cost before anything happens to them.
struct Filled {
    /// Volumes created in a second.
    rate: f64,
    /// Bytes in etcd of a PoolVolume and its PersistentVolume.
    bytes: f64,
    /// The same with the old versions of their creation.
    bytes_before_compaction: f64,
    /// The whole database after the compaction.
    database: Database,
}

/// Grows the cluster from the size before, and measures it.
pub(crate) async fn measure(
    control_plane: &ControlPlane,
    before: Size,
    size: Size,
    options: &Options,
) -> Vec<Row> {
    eprintln!("--- {size}");
    let client = control_plane.client();
    fill::nodes(&client, before.nodes..size.nodes).await;
    let lag = Arc::new(Lag::default());
    // It creates the StorageNodes, and is then out of the way of the writes.
    let operator = Operator::start(control_plane).await;
    let agents = Agents::new(client.clone(), Arc::clone(&lag), size.nodes).await;
    operator.finish().await;
    let filled = fill(control_plane, before, size).await;
    agents.report().await;

    let agents = Arc::new(agents);
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(Arc::clone(&lag).follow(client));
    tasks.spawn(Arc::clone(&agents).follow());
    let starting = Instant::now();
    let operator = Operator::start(control_plane).await;
    let ready = starting.elapsed().as_secs_f64();
    let mut replica = Replica::start(control_plane).await;
    let probes = Arc::new(Probes::default());
    let addresses = [operator.service().http(), replica.service().http()];
    tasks.spawn(Arc::clone(&probes).run(addresses));
    let settled = settle(operator.service(), &lag, size).await;

    tasks.spawn(Arc::clone(&agents).heartbeats());
    let start = Counters::now(control_plane, operator.service(), replica.service()).await;
    tokio::time::sleep(options.duration / 2).await;
    let idle = Counters::now(control_plane, operator.service(), replica.service()).await;
    let names = (before.volumes..size.volumes).map(fill::volume_name);
    let load = Load::new(control_plane, &replica, size, names.collect()).await;
    let outcome = load.run(options.rate, options.duration).await;
    let end = Counters::now(control_plane, operator.service(), replica.service()).await;

    let mut rows = vec![
        Row::new("operator: ready after its start, s", ready, "").growing(),
        Row::new("operator: settled after it was ready, s", settled, "").growing(),
        Row::new("events until it has settled", start.events, ""),
    ];
    let services = [operator.service(), replica.service()];
    rows.extend(processes(&services, &idle.since(&start), &end.since(&idle)));
    rows.extend(calls(&outcome, &lag.samples(), &end.since(&idle)));
    rows.extend(liveness(&probes));
    rows.extend(database(&filled));
    let failures = agents.failures();
    rows.push(Row::new(
        "writes of agents that failed",
        failures as f64,
        "0",
    ));
    tasks.shutdown().await;
    replica.service().stop().await;
    operator.finish().await;
    rows
}

async fn fill(control_plane: &ControlPlane, before: Size, size: Size) -> Filled {
    let empty = Database::compacted(control_plane).await;
    let client = control_plane.client();
    let rate = fill::volumes(&client, before.volumes..size.volumes, size.nodes).await;
    let written = Database::now(control_plane).await;
    let database = Database::compacted(control_plane).await;
    let added = (size.volumes - before.volumes) as f64;
    Filled {
        rate,
        bytes: (database.used - empty.used) / added,
        bytes_before_compaction: (written.used - empty.used) / added,
        database,
    }
}

/// Waits until all capacity objects exist and the operator is quiet; returns the seconds, or infinity if it does not
/// become quiet.
async fn settle(operator: &Service, lag: &Lag, size: Size) -> f64 {
    let (started, process) = (Instant::now(), operator.process().id());
    let mut used = cpu_seconds(process);
    while started.elapsed() < SETTLED {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = cpu_seconds(process);
        let cores = (now - used) / 2.0;
        used = now;
        let objects = lag.objects();
        if objects >= size.nodes * POOLS.len() && cores < QUIET {
            return started.elapsed().as_secs_f64();
        }
        eprintln!("the operator settles: {cores:.2} cores, {objects} capacity objects");
    }
    f64::INFINITY
}

fn processes(services: &[&Service; 2], idle: &Passed, loaded: &Passed) -> Vec<Row> {
    let [operator, controller] = services.map(|service| service.process().id());
    vec![
        Row::new("operator: cores, heartbeats only", idle.cores[0], "").growing(),
        Row::new("operator: cores, load", loaded.cores[0], "<= 0.5"),
        Row::new("controller: cores, load", loaded.cores[1], ""),
        Row::new("API server: cores, load", loaded.cores[2], ""),
        Row::new("machine: idle cores, load", loaded.idle, ""),
        Row::new("operator: memory, MiB", resident(operator), "<= 256").growing(),
        Row::new("operator: peak memory, MiB", peak(operator), "<= 256").growing(),
        Row::new("controller: memory, MiB", resident(controller), "<= 128").growing(),
        Row::new("controller: peak memory, MiB", peak(controller), "<= 128").growing(),
        Row::new(
            "operator: requests a second, load",
            loaded.requests[0] / loaded.seconds,
            "",
        ),
        Row::new(
            "controller: requests a second, load",
            loaded.requests[1] / loaded.seconds,
            "",
        ),
        Row::new(
            "events a second, heartbeats only",
            idle.events / idle.seconds,
            "",
        ),
        Row::new("events a second, load", loaded.events / loaded.seconds, ""),
        Row::new(
            "watch events a second of the API server, load",
            loaded.watch_events / loaded.seconds,
            "",
        ),
    ]
}

fn calls(outcome: &Outcome, lag: &[f64], loaded: &Passed) -> Vec<Row> {
    let of = |samples: &[f64], percent| {
        if samples.is_empty() {
            f64::NAN
        } else {
            percentile(samples, percent)
        }
    };
    let volumes = outcome.created.len() as f64;
    let cpu = |process: usize| loaded.cores[process] * loaded.seconds * 1000.0 / volumes;
    let failed: usize = outcome.failed.values().sum();
    vec![
        Row::new(
            "CreateVolume p50, ms",
            of(&outcome.created, 50),
            "<= 2x the small one",
        ),
        Row::new("CreateVolume p99, ms", of(&outcome.created, 99), ""),
        Row::new("DeleteVolume p50, ms", of(&outcome.deleted, 50), ""),
        Row::new("DeleteVolume p99, ms", of(&outcome.deleted, 99), ""),
        Row::new("created a second", volumes / loaded.seconds, ""),
        Row::new("calls that failed", failed as f64, "0"),
        Row::new("capacity lag p50, ms", of(lag, 50), "<= 1000"),
        Row::new("capacity lag p99, ms", of(lag, 99), "<= 1000"),
        Row::new("capacity lag, longest, ms", of(lag, 100), ""),
        // Unlike the cores, comparable also where the machine is too slow for the rate.
        Row::new(
            "operator: CPU per volume made and deleted, ms",
            cpu(0),
            "<= 50 at ten a second",
        )
        .growing(),
        Row::new(
            "controller: CPU per volume made and deleted, ms",
            cpu(1),
            "",
        )
        .growing(),
        Row::new(
            "operator: requests per volume made and deleted",
            loaded.requests[0] / volumes,
            "",
        ),
        Row::new(
            "controller: requests per volume made and deleted",
            loaded.requests[1] / volumes,
            "",
        ),
    ]
}

fn liveness(probes: &Probes) -> Vec<Row> {
    let [operator, controller] = probes.worst();
    vec![
        Row::new("operator: slowest liveness probe, ms", operator.0, "< 5000"),
        Row::new(
            "controller: slowest liveness probe, ms",
            controller.0,
            "< 5000",
        ),
        Row::new(
            "probes without an answer in 5 s",
            (operator.1 + controller.1) as f64,
            "0",
        ),
    ]
}

fn database(filled: &Filled) -> Vec<Row> {
    vec![
        Row::new("volumes created a second while filling", filled.rate, ""),
        Row::new(
            "etcd: bytes per PoolVolume and PersistentVolume",
            filled.bytes,
            "",
        ),
        Row::new(
            "etcd: the same before compaction",
            filled.bytes_before_compaction,
            "",
        ),
        Row::new(
            "etcd: database in use, MiB",
            filled.database.used / MEBIBYTE,
            "",
        )
        .growing(),
        Row::new("etcd: file, MiB", filled.database.file / MEBIBYTE, "").growing(),
    ]
}
