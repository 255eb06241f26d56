//! Creates the missing custom resource of an image and waits until its agent adopts the image.
//!
//! *Invariant:* this module removes no data. It deletes a custom resource whose image is not adopted only
//! before the agent admits it: each write names the resource version it is based on, which was not
//! admitted. An admitted custom resource is always kept.

use std::{fmt::Debug, time::Duration};

use cistern_client::Rejection;
use cistern_crds::{
    ConditionStatus, ConditionType, HasImage, condition,
    removal::{self, RemovalStep},
};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep};

use super::{Error, custom_resource::CustomResource, list::SelectedOrphan, reclaim::execute};
use crate::{Connection, cluster::Cluster};

/// Interval at which the custom resource is polled.
pub(super) const INTERVAL: Duration = Duration::from_millis(300);

/// A kind that can be adopted.
pub(super) trait Adoptable: HasImage + Clone + Debug + Serialize + DeserializeOwned {}

impl<K: HasImage + Clone + Debug + Serialize + DeserializeOwned> Adoptable for K {}

/// Creates the custom resource of the image and returns it once the agent has adopted the image.
/// Fails if an object of this name exists, if the agent refuses it, if the image no longer exists,
/// if the agent does not adopt it before the timeout, or if a request fails.
pub async fn adopt(
    connection: &Connection,
    cluster: &Cluster,
    choice: &SelectedOrphan,
    timeout: Duration,
) -> Result<CustomResource, crate::Error> {
    let deadline = Instant::now() + timeout;
    Ok(match CustomResource::of(choice, cluster) {
        CustomResource::Volume(volume) => {
            let volume = adopt_until(connection, &*volume, &choice.image, deadline).await?;
            CustomResource::Volume(Box::new(volume))
        }
        CustomResource::Snapshot(snapshot) => {
            let snapshot = adopt_until(connection, &*snapshot, &choice.image, deadline).await?;
            CustomResource::Snapshot(Box::new(snapshot))
        }
    })
}

/// Progress of an adoption.
#[derive(Debug, PartialEq, Eq)]
enum AdoptionProgress {
    /// The agent has adopted the image.
    Adopted,
    /// The object has another image, with this name.
    OtherImage(String),
    /// The agent refuses the object, with this message.
    Refused(String),
    /// The agent has not decided yet, for this reason.
    Waits(String),
}

fn adoption_progress<K: HasImage>(object: &K, image: &str) -> AdoptionProgress {
    if let Some(known) = object.image() {
        return if known.uid == image {
            AdoptionProgress::Adopted
        } else {
            AdoptionProgress::OtherImage(known.uid.clone())
        };
    }
    let said = |kind| condition::find(object.conditions(), kind);
    match said(ConditionType::Admitted) {
        Some(admitted)
            if admitted.status == ConditionStatus::False.as_str()
                && object.reserved().is_none() =>
        {
            AdoptionProgress::Refused(admitted.message.clone())
        }
        Some(_) | None => AdoptionProgress::Waits(match said(ConditionType::Ready) {
            Some(ready) => ready.message.clone(),
            None => format!("the agent of {} has not reported yet", object.node_name()),
        }),
    }
}

/// Creates the object and returns it once the agent has adopted the image. If that fails before the
/// admission, removes the object again. Fails in the same cases as [`adopt`].
pub(super) async fn adopt_until<K: Adoptable>(
    connection: &Connection,
    desired: &K,
    image: &str,
    deadline: Instant,
) -> Result<K, crate::Error> {
    let api: Api<K> = connection.everywhere();
    let (kind, name) = (K::kind(&()).into_owned(), desired.name_any());
    let mut object = create(connection, &api, desired).await?;
    loop {
        let is_late = Instant::now() >= deadline;
        let failure = match adoption_progress(&object, image) {
            AdoptionProgress::Adopted => return Ok(object),
            AdoptionProgress::OtherImage(object_image) => {
                let image = image.to_owned();
                return Err(Error::Gone {
                    image,
                    kind,
                    name,
                    object_image,
                }
                .into());
            }
            AdoptionProgress::Waits(waits_for) if is_late && object.reserved().is_some() => {
                return Err(Error::Waiting {
                    kind,
                    name,
                    waits_for,
                }
                .into());
            }
            AdoptionProgress::Refused(message) => Some(Error::Refused {
                name: name.clone(),
                message,
            }),
            AdoptionProgress::Waits(waits_for) if is_late => Some(Error::TimedOut {
                name: name.clone(),
                waits_for,
            }),
            AdoptionProgress::Waits(_) => None,
        };
        match failure {
            // An object that is not admitted would only block the next attempt.
            Some(failure) => {
                if remove_unadmitted(connection, &api, &object).await? {
                    return Err(failure.into());
                }
            }
            None => sleep(INTERVAL).await,
        }
        object = connection
            .ask(format!("cannot read {kind} {name}"), api.get(&name))
            .await?;
    }
}

async fn create<K: Adoptable>(
    connection: &Connection,
    api: &Api<K>,
    desired: &K,
) -> Result<K, crate::Error> {
    let (kind, name) = (K::kind(&()).into_owned(), desired.name_any());
    let what = format!("cannot create {kind} {name}");
    let created = connection
        .ask(what, api.create(&PostParams::default(), desired))
        .await;
    match created {
        Err(error) if error.rejection() == Some(Rejection::AlreadyExists) => {
            Err(Error::NameInUse { kind, name }.into())
        }
        created => created,
    }
}

/// Removes an object that its agent has not admitted. Returns false if the object changed in the meantime
/// and must be read again.
async fn remove_unadmitted<K: Adoptable>(
    connection: &Connection,
    api: &Api<K>,
    object: &K,
) -> Result<bool, crate::Error> {
    let what = || format!("cannot remove {} {}", K::kind(&()), object.name_any());
    let mut current = object.clone();
    loop {
        let Some(step) = next_removal_step(&current) else {
            return Ok(false);
        };
        if matches!(step, RemovalStep::Await | RemovalStep::Held) {
            return Ok(true);
        }
        match execute(connection, api, &current, step, what()).await {
            Ok(Some(left)) => current = left,
            Ok(None) => return Ok(true),
            Err(error) if error.rejection() == Some(Rejection::Conflict) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Returns the next step to remove an object; `None` if it is admitted, because it may have an image.
fn next_removal_step<K: HasImage>(object: &K) -> Option<RemovalStep> {
    object.reserved().is_none().then(|| removal::next(object))
}

#[cfg(test)]
mod tests {
    use cistern_crds::PoolVolume;
    use serde_json::json;

    use super::*;
    use crate::testing::{cluster, condition, object};

    fn waiting(status: serde_json::Value) -> PoolVolume {
        let mut volume = cluster().volumes[0].clone();
        volume.status = Some(object(status));
        volume
    }

    #[test]
    fn an_image_is_adopted_once_the_agent_reports_it() {
        let adopted = cluster().volumes[0].clone();
        assert_eq!(
            adoption_progress(&adopted, "uid-of-pvc-1"),
            AdoptionProgress::Adopted
        );
        let other = AdoptionProgress::OtherImage("uid-of-pvc-1".to_owned());
        assert_eq!(adoption_progress(&adopted, "uid-of-lost"), other);
    }

    #[test]
    fn an_object_without_image_waits_unless_the_agent_refuses_it() {
        let silent = waiting(json!({"conditions": []}));
        assert!(matches!(
            adoption_progress(&silent, "i"),
            AdoptionProgress::Waits(_)
        ));
        let no = condition(
            "Admitted",
            "False",
            "IdentityConflict",
            "its size is another",
        );
        let refused = waiting(json!({"conditions": [no]}));
        assert_eq!(
            adoption_progress(&refused, "i"),
            AdoptionProgress::Refused("its size is another".to_owned())
        );
        // It has a reservation, so the agent may be adopting the image.
        let admitted = waiting(json!({"reserved": "1Gi", "conditions": [no]}));
        assert!(matches!(
            adoption_progress(&admitted, "i"),
            AdoptionProgress::Waits(_)
        ));
    }

    #[test]
    fn an_admitted_object_is_never_withdrawn() {
        let mut volume = waiting(json!({"conditions": []}));
        assert_eq!(next_removal_step(&volume), Some(RemovalStep::Ask));
        volume.spec.deletion_requested = true;
        assert_eq!(next_removal_step(&volume), Some(RemovalStep::Delete));
        for is_asked in [false, true] {
            let mut admitted = waiting(json!({"reserved": "1Gi", "conditions": []}));
            admitted.spec.deletion_requested = is_asked;
            assert_eq!(next_removal_step(&admitted), None);
        }
    }
}
