//! Making the custom resource that an image is missing, and waiting until its node has taken it up.
//!
//! *Invariant:* nothing here removes data. A custom resource whose image is not taken up is withdrawn
//! before its agent has admitted it: each write names the version that it was made from, which was not
//! admitted. One that is admitted stays, whatever has become of it.

use std::{fmt::Debug, time::Duration};

use cistern_client::Rejection;
use cistern_crds::{
    ConditionStatus, ConditionType, Stored, condition,
    removal::{self, Step},
};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep};

use super::{Error, list::Choice, reclaim::take, wish::Wish};
use crate::{Connection, cluster::Cluster};

/// How often a node's answer is looked for.
pub(super) const INTERVAL: Duration = Duration::from_millis(300);

/// A kind that can be adopted.
pub(super) trait Adoptable: Stored + Clone + Debug + Serialize + DeserializeOwned {}

impl<K: Stored + Clone + Debug + Serialize + DeserializeOwned> Adoptable for K {}

/// Makes the custom resource of the image and gives it as its node has taken it up.
pub async fn adopt(
    connection: &Connection,
    cluster: &Cluster,
    choice: &Choice,
    patience: Duration,
) -> Result<Wish, crate::Error> {
    let deadline = Instant::now() + patience;
    Ok(match Wish::of(choice, cluster) {
        Wish::Volume(volume) => {
            let volume = taken_up(connection, &*volume, &choice.image, deadline).await?;
            Wish::Volume(Box::new(volume))
        }
        Wish::Snapshot(snapshot) => {
            let snapshot = taken_up(connection, &*snapshot, &choice.image, deadline).await?;
            Wish::Snapshot(Box::new(snapshot))
        }
    })
}

/// Where an object stands on its way to its image.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    /// The image is the object's.
    Adopted,
    /// Another image is: this one.
    MadeAnew(String),
    /// The agent will not have it.
    Refused(String),
    /// It waits for this.
    Waits(String),
}

fn progress<K: Stored>(object: &K, image: &str) -> Progress {
    if let Some(known) = object.image() {
        return if known.uid == image {
            Progress::Adopted
        } else {
            Progress::MadeAnew(known.uid.clone())
        };
    }
    let said = |kind| condition::find(object.conditions(), kind);
    match said(ConditionType::Admitted) {
        Some(admitted)
            if admitted.status == ConditionStatus::False.as_str()
                && object.reserved().is_none() =>
        {
            Progress::Refused(admitted.message.clone())
        }
        Some(_) | None => Progress::Waits(match said(ConditionType::Ready) {
            Some(ready) => ready.message.clone(),
            None => format!("the agent of {} has not answered yet", object.node_name()),
        }),
    }
}

pub(super) async fn taken_up<K: Adoptable>(
    connection: &Connection,
    wish: &K,
    image: &str,
    deadline: Instant,
) -> Result<K, crate::Error> {
    let api: Api<K> = connection.everywhere();
    let (kind, name) = (K::kind(&()).into_owned(), wish.name_any());
    let mut object = create(connection, &api, wish).await?;
    loop {
        let is_late = Instant::now() >= deadline;
        let failure = match progress(&object, image) {
            Progress::Adopted => return Ok(object),
            Progress::MadeAnew(made) => {
                let image = image.to_owned();
                return Err(Error::Gone {
                    image,
                    kind,
                    name,
                    made,
                }
                .into());
            }
            Progress::Waits(waits_for) if is_late && object.reserved().is_some() => {
                return Err(Error::Pending {
                    kind,
                    name,
                    waits_for,
                }
                .into());
            }
            Progress::Refused(message) => Some(Error::Refused {
                name: name.clone(),
                message,
            }),
            Progress::Waits(waits_for) if is_late => Some(Error::Late {
                name: name.clone(),
                waits_for,
            }),
            Progress::Waits(_) => None,
        };
        match failure {
            // What nobody has admitted would only be in the way of the next try.
            Some(failure) => {
                if is_withdrawn(connection, &api, &object).await? {
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
    wish: &K,
) -> Result<K, crate::Error> {
    let (kind, name) = (K::kind(&()).into_owned(), wish.name_any());
    let what = format!("cannot create {kind} {name}");
    let created = connection
        .ask(what, api.create(&PostParams::default(), wish))
        .await;
    match created {
        Err(error) if error.rejection() == Some(Rejection::AlreadyExists) => {
            Err(Error::Taken { kind, name }.into())
        }
        created => created,
    }
}

/// Removes an object that its agent has not admitted, step by step; false where it was changed
/// meanwhile and has to be looked at again.
async fn is_withdrawn<K: Adoptable>(
    connection: &Connection,
    api: &Api<K>,
    object: &K,
) -> Result<bool, crate::Error> {
    let what = || format!("cannot withdraw {} {}", K::kind(&()), object.name_any());
    let mut current = object.clone();
    loop {
        let Some(step) = withdrawal(&current) else {
            return Ok(false);
        };
        if matches!(step, Step::Await | Step::Held) {
            return Ok(true);
        }
        match take(connection, api, &current, step, what()).await {
            Ok(Some(left)) => current = left,
            Ok(None) => return Ok(true),
            Err(error) if error.rejection() == Some(Rejection::Conflict) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// The next step to withdraw an object. None for one that is admitted: it may have an image.
fn withdrawal<K: Stored>(object: &K) -> Option<Step> {
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
    fn an_object_is_adopted_once_its_agent_names_the_image() {
        let adopted = cluster().volumes[0].clone();
        assert_eq!(progress(&adopted, "uid-of-pvc-1"), Progress::Adopted);
        let other = Progress::MadeAnew("uid-of-pvc-1".to_owned());
        assert_eq!(progress(&adopted, "uid-of-lost"), other);
    }

    #[test]
    fn until_then_it_waits_unless_it_is_refused() {
        let silent = waiting(json!({"conditions": []}));
        assert!(matches!(progress(&silent, "i"), Progress::Waits(_)));
        let no = condition(
            "Admitted",
            "False",
            "IdentityConflict",
            "its size is another",
        );
        let refused = waiting(json!({"conditions": [no]}));
        assert_eq!(
            progress(&refused, "i"),
            Progress::Refused("its size is another".to_owned())
        );
        // Something is reserved: so it may be about to be taken up.
        let admitted = waiting(json!({"reserved": "1Gi", "conditions": [no]}));
        assert!(matches!(progress(&admitted, "i"), Progress::Waits(_)));
    }

    #[test]
    fn an_admitted_object_is_never_withdrawn() {
        let mut volume = waiting(json!({"conditions": []}));
        assert_eq!(withdrawal(&volume), Some(Step::Ask));
        volume.spec.deletion_requested = true;
        assert_eq!(withdrawal(&volume), Some(Step::Delete));
        for is_asked in [false, true] {
            let mut admitted = waiting(json!({"reserved": "1Gi", "conditions": []}));
            admitted.spec.deletion_requested = is_asked;
            assert_eq!(withdrawal(&admitted), None);
        }
    }
}
