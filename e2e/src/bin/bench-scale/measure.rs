//! Processor time, requests and events between two points in time, and liveness probes.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use cistern_e2e::{
    ControlPlane,
    measure::{cpu_seconds, idle_seconds, metric, milliseconds},
    service::{self, Service},
};
use tokio::time::timeout;

/// Interval of the probes. kubelet probes every 10 s.
const PERIOD: Duration = Duration::from_secs(1);
/// The timeout of the probes in the manifests.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Counters at one point in time.
pub(crate) struct Counters {
    at: Instant,
    cpu: [f64; 3],
    idle: f64,
    requests: [f64; 2],
    /// Events that the operator has written since its start.
    pub(crate) events: f64,
    watch_events: f64,
}

/// What has happened between two points in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    /// Seconds.
    pub(crate) seconds: f64,
    /// Cores of operator, controller and API server.
    pub(crate) cores: [f64; 3],
    /// Cores that nobody used. Without any, the latencies are those of a machine that is too small, or shared.
    pub(crate) idle: f64,
    /// Requests of operator and controller to the API server.
    pub(crate) requests: [f64; 2],
    /// Events that the operator has written.
    pub(crate) events: f64,
    /// Changes that the API server has sent to all watches.
    pub(crate) watch_events: f64,
}

impl Counters {
    /// Reads them now.
    pub(crate) async fn now(
        control_plane: &ControlPlane,
        operator: &Service,
        controller: &Service,
    ) -> Self {
        let apiserver = control_plane.metrics().await;
        let own = async |service: &Service| service.get("/metrics").await.expect("it answers");
        let (operators, controllers) = (own(operator).await, own(controller).await);
        let requests = |text: &str| metric(text, "cistern_api_request_duration_seconds_count", &[]);
        let processes = [operator.process().id(), controller.process().id()];
        let apiservers = control_plane.apiserver().id();
        Self {
            at: Instant::now(),
            cpu: [processes[0], processes[1], apiservers].map(cpu_seconds),
            idle: idle_seconds(),
            requests: [requests(&operators), requests(&controllers)],
            events: metric(&operators, "cistern_operator_events_total", &[]),
            watch_events: metric(&apiserver, "apiserver_watch_events_total", &[]),
        }
    }

    /// Returns what has happened since `before`.
    pub(crate) fn since(&self, before: &Self) -> Passed {
        let seconds = (self.at - before.at).as_secs_f64();
        let cores = |process: usize| (self.cpu[process] - before.cpu[process]) / seconds;
        let requests = |process: usize| self.requests[process] - before.requests[process];
        Passed {
            seconds,
            cores: [cores(0), cores(1), cores(2)],
            idle: (self.idle - before.idle) / seconds,
            requests: [requests(0), requests(1)],
            events: self.events - before.events,
            watch_events: self.watch_events - before.watch_events,
        }
    }
}

/// Milliseconds of the liveness probes of operator and controller.
#[derive(Debug, Default)]
pub(crate) struct Probes([Mutex<Vec<f64>>; 2]);

impl Probes {
    /// Probes both until it is aborted.
    pub(crate) async fn run(self: Arc<Self>, addresses: [std::net::SocketAddr; 2]) {
        let mut ticks = tokio::time::interval(PERIOD);
        loop {
            ticks.tick().await;
            for (samples, address) in self.0.iter().zip(addresses) {
                let started = Instant::now();
                let answer = timeout(PROBE_TIMEOUT, service::get(address, "/healthz")).await;
                let is_alive =
                    matches!(&answer, Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200 "));
                let took = if is_alive {
                    milliseconds(started)
                } else {
                    f64::INFINITY
                };
                samples
                    .lock()
                    .expect("no thread panics while it holds it")
                    .push(took);
            }
        }
    }

    /// The slowest answer of operator and controller in milliseconds, and how many were missing.
    pub(crate) fn worst(&self) -> [(f64, usize); 2] {
        [0, 1].map(|process| {
            let samples = self.0[process]
                .lock()
                .expect("no thread panics while it holds it");
            let missing = samples.iter().filter(|took| took.is_infinite()).count();
            let answered = samples.iter().copied().filter(|took| took.is_finite());
            (answered.fold(0.0, f64::max), missing)
        })
    }
}
