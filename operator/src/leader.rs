//! Leader election: only the replica that holds the Lease `cistern-operator` runs the controllers.
//! The others watch the cluster and wait until the Lease is released or expires.
//!
//! *Invariant:* every write to the Lease carries the resourceVersion that was read, so the API
//! server rejects one of two concurrent writes. A leader stops its controllers [`RENEW_DEADLINE`]
//! after it began to send the last renewal that succeeded; another replica takes the Lease
//! [`DURATION`] after it has seen that renewal. Each replica uses its own monotonic clock, and no
//! wall clocks are compared.

use std::{error::Error, time::Duration};

use cistern_client::{Chain, Rejection, http::Readiness, writes::patch_guarded};
use cistern_crds::names;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, ResourceExt as _, api::PostParams};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::Stop;

/// Name of the Lease, and of its check in `/readyz`.
const NAME: &str = "cistern-operator";
/// How long the Lease is valid after a renewal.
const DURATION: Duration = Duration::from_secs(15);
/// How long a leader continues without a renewal. The difference to [`DURATION`] is the time that a
/// write may still be on its way.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How often the leader renews, and how often the others read it.
const PERIOD: Duration = Duration::from_secs(2);
/// Timeout of one request to the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// Error of a Lease read or write.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("cannot {0} Lease {NAME}")]
    Refused(&'static str, #[source] Box<kube::Error>),
    #[error("no answer within {} s", REQUEST_TIMEOUT.as_secs())]
    Late,
}

/// One replica that takes part in the election.
#[derive(Debug)]
pub struct Candidate {
    leases: Api<Lease>,
    identity: String,
    readiness: Readiness,
    leading: Gauge,
}

/// The Lease as this replica holds it.
#[derive(Debug)]
struct HeldLease {
    lease: Lease,
    /// When the last renewal began.
    renewed: Instant,
}

/// Last seen version of another replica's Lease, and since when it is unchanged.
#[derive(Debug, Default)]
struct LeaseObservation {
    version: Option<String>,
    since: Option<Instant>,
}

impl Candidate {
    /// Creates a candidate. `identity` is unique among the running replicas: the name of the pod.
    /// `leading` is 1 while this replica leads, and otherwise 0.
    pub fn new(
        client: Client,
        namespace: &str,
        identity: &str,
        readiness: &Readiness,
        leading: Gauge,
    ) -> Self {
        readiness.wait_for(NAME, "the Lease has not been read yet");
        Self {
            leases: Api::namespaced(client, namespace),
            identity: identity.to_owned(),
            readiness: readiness.clone(),
            leading,
        }
    }

    /// Runs `work` while this replica leads, and returns when `work` ends, which it does after
    /// `stop`. If the Lease is lost, cancels `work` and waits for the Lease again.
    pub async fn lead(&self, stop: Stop, work: impl AsyncFn()) {
        loop {
            let term = tokio::select! {
                term = self.acquire() => term,
                () = stop.clone() => return,
            };
            tracing::info!(identity = self.identity, "this replica leads");
            self.leading.set(1);
            let is_lost = tokio::select! {
                // If both are ready, the loss of the Lease takes precedence.
                biased;
                () = self.renew_until_lost(term) => true,
                () = work() => false,
            };
            self.leading.set(0);
            if !is_lost {
                self.release().await;
                return;
            }
        }
    }

    /// Waits until this replica holds the Lease.
    async fn acquire(&self) -> HeldLease {
        let mut seen = LeaseObservation::default();
        loop {
            let attempt = timeout(REQUEST_TIMEOUT, self.attempt(&mut seen)).await;
            match attempt.unwrap_or(Err(LeaseError::Late)) {
                Ok(term) => {
                    self.readiness.done(NAME);
                    if let Some(term) = term {
                        return term;
                    }
                }
                Err(error) => {
                    let error = Chain(&error).to_string();
                    tracing::warn!(error, "the Lease cannot be acquired, it is tried again");
                    self.readiness.wait_for(NAME, error);
                }
            }
            sleep(PERIOD).await;
        }
    }

    /// Takes the Lease if it is free; `None` if another replica holds it.
    async fn attempt(&self, seen: &mut LeaseObservation) -> Result<Option<HeldLease>, LeaseError> {
        let renewed = Instant::now();
        let found = self.leases.get_opt(NAME).await;
        let found = found.map_err(|error| LeaseError::Refused("read", Box::new(error)))?;
        let taken = match &found {
            None => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(NAME.to_owned()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(self.taken(None)),
                };
                self.leases.create(&PostParams::default(), &lease).await
            }
            Some(lease) => {
                let unchanged = seen.unchanged(lease, renewed);
                if !is_free(lease.spec.as_ref(), &self.identity, unchanged) {
                    return Ok(None);
                }
                let change = json!({"spec": self.taken(lease.spec.as_ref())});
                patch_guarded(&self.leases, lease, names::OPERATOR_MANAGER, change).await
            }
        };
        match taken {
            Ok(lease) => Ok(Some(HeldLease { lease, renewed })),
            // Another replica was faster.
            Err(error)
                if matches!(
                    Rejection::from(&error),
                    Rejection::Conflict | Rejection::AlreadyExists
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(LeaseError::Refused("take", Box::new(error))),
        }
    }

    /// Spec of the Lease once this replica has taken it.
    fn taken(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let holder = before.and_then(|spec| spec.holder_identity.as_ref());
        let transitions = before.and_then(|spec| spec.lease_transitions);
        let is_transition = holder.is_none_or(|holder| *holder != self.identity);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: Some(now()),
            renew_time: Some(now()),
            lease_transitions: Some(
                transitions.map_or(0, |count| count.saturating_add(i32::from(is_transition))),
            ),
            ..LeaseSpec::default()
        }
    }

    /// Renews the Lease until it is lost.
    async fn renew_until_lost(&self, mut term: HeldLease) {
        loop {
            sleep(PERIOD).await;
            let deadline = term.renewed + RENEW_DEADLINE;
            let answer_by = deadline.min(Instant::now() + REQUEST_TIMEOUT);
            let renewal = timeout_at(answer_by, self.renew(&term)).await;
            let error: Box<dyn Error> = match renewal {
                Ok(Ok(Some(renewed))) => {
                    term = renewed;
                    continue;
                }
                Ok(Ok(None)) => {
                    tracing::warn!("another replica holds the Lease: this replica no longer leads");
                    return;
                }
                Ok(Err(error)) => Box::new(error),
                Err(_) => Box::new(LeaseError::Late),
            };
            let error = Chain(error.as_ref()).to_string();
            if Instant::now() >= deadline {
                tracing::warn!(error, "the Lease expires: this replica no longer leads");
                return;
            }
            tracing::warn!(error, "the Lease cannot be renewed, it is tried again");
        }
    }

    /// Renews the Lease; `None` if this replica no longer holds it.
    async fn renew(&self, term: &HeldLease) -> Result<Option<HeldLease>, LeaseError> {
        let failed = |source| LeaseError::Refused("renew", Box::new(source));
        let renewed = Instant::now();
        let change = json!({"spec": {"renewTime": now()}});
        let manager = names::OPERATOR_MANAGER;
        let written = patch_guarded(&self.leases, &term.lease, manager, change.clone()).await;
        let lease = match written {
            Ok(lease) => lease,
            // The Lease has changed: by an earlier renewal whose response was lost, or by another
            // replica.
            Err(error) if Rejection::from(&error) == Rejection::Conflict => {
                let found = self.leases.get_opt(NAME).await.map_err(failed)?;
                let Some(found) = found.filter(|found| self.holds(found)) else {
                    return Ok(None);
                };
                let again = patch_guarded(&self.leases, &found, manager, change).await;
                again.map_err(failed)?
            }
            Err(error) if Rejection::from(&error) == Rejection::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        Ok(Some(HeldLease { lease, renewed }))
    }

    fn holds(&self, lease: &Lease) -> bool {
        let holder = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.as_ref());
        holder == Some(&self.identity)
    }

    /// Releases the Lease, so that another replica takes over immediately. If the API server does
    /// not answer, the Lease expires.
    async fn release(&self) {
        let release = async {
            let found = self.leases.get_opt(NAME).await?;
            if let Some(lease) = found.filter(|lease| self.holds(lease)) {
                let change = json!({"spec": {"holderIdentity": null}});
                patch_guarded(&self.leases, &lease, names::OPERATOR_MANAGER, change).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match timeout(REQUEST_TIMEOUT, release).await {
            Ok(Ok(())) => tracing::info!("the Lease is released"),
            Ok(Err(error)) => {
                tracing::warn!(error = %Chain(&error), "the Lease is not released, it expires");
            }
            Err(_) => tracing::warn!("the Lease is not released, it expires"),
        }
    }
}

impl LeaseObservation {
    /// For how long this replica has seen the Lease unchanged.
    fn unchanged(&mut self, lease: &Lease, now: Instant) -> Duration {
        let version = lease.resource_version();
        let since = self.since.filter(|_| self.version == version);
        let since = since.unwrap_or(now);
        *self = Self {
            version,
            since: Some(since),
        };
        now.saturating_duration_since(since)
    }
}

/// Whether `identity` may take a Lease that has not changed for so long.
fn is_free(spec: Option<&LeaseSpec>, identity: &str, unchanged: Duration) -> bool {
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
    match holder {
        None | Some("") => true,
        // This pod after a restart of its container.
        Some(holder) if holder == identity => true,
        Some(_) => {
            let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
            let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
            unchanged >= seconds.map_or(DURATION, Duration::from_secs)
        }
    }
}

/// For display only; no decision depends on it.
fn now() -> MicroTime {
    MicroTime(Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(version: &str) -> Lease {
        Lease {
            metadata: ObjectMeta {
                resource_version: Some(version.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(held_by("other")),
        }
    }

    fn held_by(holder: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_released_or_expired_or_this_pods_own() {
        let seconds = Duration::from_secs;
        let free = |spec: Option<&LeaseSpec>, wait| is_free(spec, "me", seconds(wait));
        assert!(free(None, 0) && free(Some(&LeaseSpec::default()), 0));
        assert!(free(Some(&held_by("")), 0) && free(Some(&held_by("me")), 0));
        let other = held_by("other");
        assert!(!free(Some(&other), 14) && free(Some(&other), 15));
    }

    #[test]
    fn a_lease_expires_only_when_this_replica_has_seen_no_change_for_its_whole_duration() {
        let start = Instant::now();
        let after = |wait| start + Duration::from_secs(wait);
        let mut seen = LeaseObservation::default();
        assert_eq!(seen.unchanged(&lease("1"), after(0)).as_secs(), 0);
        assert_eq!(seen.unchanged(&lease("1"), after(9)).as_secs(), 9);
        assert_eq!(seen.unchanged(&lease("2"), after(11)).as_secs(), 0);
        assert_eq!(seen.unchanged(&lease("2"), after(20)).as_secs(), 9);
    }

    #[test]
    fn a_leader_stops_before_its_lease_expires() {
        assert!(RENEW_DEADLINE + REQUEST_TIMEOUT < DURATION);
        assert!(PERIOD + REQUEST_TIMEOUT < RENEW_DEADLINE);
    }
}
