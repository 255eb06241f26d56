//! Making the custom resource that an image is missing, and waiting until its node has taken it up.
//!
//! *Invariant:* a custom resource whose image is not taken up does not stay: it is withdrawn before
//! anything is reserved for it, or what was made for it goes again.

use std::{fmt::Debug, time::Duration};

use cistern_client::Rejection;
use cistern_crds::{ConditionStatus, ConditionType, Stored, condition};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep};

use super::{Error, list::Choice, reclaim, wish::Wish};
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
    /// Another image is.
    MadeAnew,
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
            Progress::MadeAnew
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
    let (kind, name) = (K::kind(&()), wish.name_any());
    let what = format!("cannot create {kind} {name}");
    let created = connection
        .ask(what, api.create(&PostParams::default(), wish))
        .await;
    let mut object = match created {
        Err(crate::Error::Api { source, .. })
            if Rejection::from(&*source) == Rejection::AlreadyExists =>
        {
            let kind = kind.into_owned();
            return Err(Error::Taken { kind, name }.into());
        }
        created => created?,
    };
    loop {
        let waits_for = match progress(&object, image) {
            Progress::Adopted => return Ok(object),
            Progress::MadeAnew => {
                reclaim::remove(connection, &api, &name, deadline).await?;
                let image = image.to_owned();
                return Err(Error::Gone { image, name }.into());
            }
            Progress::Refused(message) => {
                reclaim::remove(connection, &api, &name, deadline).await?;
                return Err(Error::Refused { name, message }.into());
            }
            Progress::Waits(waits_for) => waits_for,
        };
        if Instant::now() >= deadline {
            // What nobody has promised anything to would only be in the way of the next try.
            if object.reserved().is_none() {
                let soon = Instant::now() + INTERVAL;
                reclaim::remove(connection, &api, &name, soon).await?;
            }
            return Err(Error::Late { name, waits_for }.into());
        }
        sleep(INTERVAL).await;
        object = connection
            .ask(format!("cannot read {kind} {name}"), api.get(&name))
            .await?;
    }
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
        assert_eq!(progress(&adopted, "uid-of-lost"), Progress::MadeAnew);
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
}
