//! Changes the attributes of a volume.
//!
//! ```text
//! spec.attributes ─▶ agent admits ─▶ status.attributes ─▶ AttributesApplied=True: done
//!                    agent refuses ─▶ spec.attributes restored: not possible
//! ```
//!
//! *Invariant:* a refusal is answered only after spec.attributes is restored, so that no agent
//! changes the volume later when there is room (CMV-05). Admitted attributes are never restored:
//! they take effect, or a later request replaces them.

use cistern_crds::{
    AttributeChanges, ConditionType, Explanation, PoolVolume, VolumeAttributes, condition,
};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::Instant;

use super::{Error, Volumes};
use crate::objects::{in_flight::Operation, not_found};

impl Volumes {
    /// Ensures that the changes to a volume's attributes are in force (CMV-07).
    ///
    /// Fails if the agent refuses the attributes or is silent, if the volume is gone, or if a
    /// request to the API server fails. Also fails at the deadline: the state stays as it is, and a
    /// repeated call resumes.
    pub async fn modify(
        &self,
        volume: PoolVolume,
        changes: &AttributeChanges,
        deadline: Instant,
    ) -> Result<(), Error> {
        let id = volume.name_any();
        let modifying =
            async |operation: &mut _| self.apply_changes(volume, changes, operation).await;
        self.objects.run_exclusive(&id, deadline, modifying).await
    }

    async fn apply_changes(
        &self,
        mut volume: PoolVolume,
        changes: &AttributeChanges,
        operation: &mut Operation<PoolVolume>,
    ) -> Result<(), Error> {
        // What the agent wrote before this operation began is not delivered to it.
        volume = self.read_again(&volume).await?;
        // A refusal from before this call may be stale: ask once more.
        let (mut asked, mut refusal) = (false, None);
        loop {
            let next = match progress(&volume, changes) {
                ModificationProgress::Done => return Ok(()),
                ModificationProgress::Leaving => {
                    return Err(not_found::<PoolVolume>(operation.name()).into());
                }
                ModificationProgress::Ask(attributes) => {
                    if let Some(why) = refusal.take() {
                        let volume = volume.name_any();
                        return Err(Error::AttributesNotPossible {
                            volume,
                            attributes: Box::new(attributes),
                            why,
                        });
                    }
                    self.is_held(&volume, attributes)?;
                    asked = true;
                    operation.note("the API server to take the new attributes");
                    self.set_attributes(&volume, attributes).await?
                }
                ModificationProgress::Refused { admitted, why } => {
                    let is_ours = changes.apply(admitted) == volume.spec.attributes;
                    refusal = (asked && is_ours).then_some(why);
                    operation.note("the API server to take back attributes that were refused");
                    self.set_attributes(&volume, admitted).await?
                }
                ModificationProgress::Waits(message) => {
                    asked = true;
                    operation.note(self.waiting_for_node(&volume, "change it", &message));
                    match self.objects.change(&volume, operation).await? {
                        Some(newer) => Some(newer),
                        None => self.objects.find_again(&volume).await?,
                    }
                }
            };
            volume = next.ok_or_else(|| not_found::<PoolVolume>(operation.name()))?;
        }
    }

    /// Fails if the pool of the volume never holds volumes with these attributes.
    fn is_held(&self, volume: &PoolVolume, attributes: VolumeAttributes) -> Result<(), Error> {
        let spec = &volume.spec;
        let nodes = self.objects.nodes();
        let kind = attributes.provisioning;
        nodes
            .holds(&spec.node_name, &spec.pool_name, kind)
            .map_err(|why| Error::AttributesNotPossible {
                volume: volume.name_any(),
                attributes: Box::new(attributes),
                why,
            })
    }

    /// Changes spec.attributes and returns the object, also after a conflicting write.
    async fn set_attributes(
        &self,
        volume: &PoolVolume,
        attributes: VolumeAttributes,
    ) -> Result<Option<PoolVolume>, Error> {
        let (name, from) = (volume.name_any(), volume.spec.attributes);
        tracing::info!(volume = name, %from, to = %attributes, "changing spec.attributes of the volume");
        let change = json!({"spec": {"attributes": attributes.merge_patch()}});
        let changed = self
            .objects
            .patch("change the attributes of", volume, change);
        Ok(changed.await?)
    }
}

/// Progress of a change of attributes.
#[derive(Debug, PartialEq, Eq)]
enum ModificationProgress {
    /// The requested attributes are in force.
    Done,
    /// Deletion of the volume is requested.
    Leaving,
    /// The spec does not request these attributes, or they were restored.
    Ask(VolumeAttributes),
    /// The agent refuses the attributes of the spec.
    Refused {
        /// The attributes that stay in force.
        admitted: VolumeAttributes,
        /// Why the agent refuses.
        why: Explanation,
    },
    /// The agent has not answered yet, or applies the attributes; its message.
    Waits(String),
}

fn progress(volume: &PoolVolume, changes: &AttributeChanges) -> ModificationProgress {
    if volume.spec.deletion_requested {
        return ModificationProgress::Leaving;
    }
    if let Some(why) = volume.refused_modification() {
        let admitted = volume.admitted_attributes();
        return ModificationProgress::Refused { admitted, why };
    }
    let requested = changes.apply(volume.spec.attributes);
    if requested != volume.spec.attributes {
        return ModificationProgress::Ask(requested);
    }
    if volume.has_requested_attributes() {
        return ModificationProgress::Done;
    }
    let conditions = volume.status.as_ref().map(|status| &*status.conditions);
    let applied = condition::find(
        conditions.unwrap_or_default(),
        ConditionType::AttributesApplied,
    );
    ModificationProgress::Waits(applied.map_or_else(String::new, |applied| applied.message.clone()))
}

#[cfg(test)]
mod tests {
    use cistern_crds::{IoLimits, Provisioning, Reason, condition::ConditionUpdate};

    use super::*;
    use crate::testing::{at, ready_volume};

    const THIN: VolumeAttributes = VolumeAttributes {
        provisioning: Provisioning::Thin,
        io_limits: IoLimits::NONE,
    };
    const THICK: VolumeAttributes = VolumeAttributes {
        provisioning: Provisioning::Thick,
        ..THIN
    };

    fn to(attributes: VolumeAttributes) -> AttributeChanges {
        let provisioning = attributes.provisioning.to_string();
        AttributeChanges::parse(&[("provisioning".to_owned(), provisioning)].into()).unwrap()
    }

    /// A volume with admitted attributes, and the condition for generation 2.
    fn volume(
        requested: VolumeAttributes,
        admitted: VolumeAttributes,
        (is_applied, reason): (bool, Reason),
    ) -> PoolVolume {
        let mut volume = ready_volume();
        volume.spec.attributes = requested;
        volume.metadata.generation = Some(2);
        let status = volume.status.as_mut().unwrap();
        status.attributes = Some(admitted);
        let kind = ConditionType::AttributesApplied;
        let update = ConditionUpdate::new(kind, is_applied, reason, "the agent's words");
        condition::set(&mut status.conditions, &update, Some(2), at(0));
        volume
    }

    const APPLIED: (bool, Reason) = (true, Reason::Reconciled);

    #[test]
    fn cmv_07_attributes_in_force_are_not_requested_again() {
        let thin = volume(THIN, THIN, APPLIED);
        assert_eq!(progress(&thin, &to(THIN)), ModificationProgress::Done);
        let nothing = AttributeChanges::default();
        assert_eq!(progress(&thin, &nothing), ModificationProgress::Done);
    }

    #[test]
    fn cmv_08_other_attributes_are_requested_and_waited_for() {
        let thin = volume(THIN, THIN, APPLIED);
        assert_eq!(
            progress(&thin, &to(THICK)),
            ModificationProgress::Ask(THICK)
        );
        let waits = |volume| {
            let progress = progress(&volume, &to(THICK));
            assert!(
                matches!(progress, ModificationProgress::Waits(_)),
                "{progress:?}"
            );
        };
        waits(volume(THICK, THIN, APPLIED));
        waits(volume(THICK, THICK, (false, Reason::Pending)));
        waits(volume(THICK, THICK, (false, Reason::ModificationFailed)));
    }

    #[test]
    fn a_change_in_progress_is_replaced_by_the_former_attributes() {
        for admitted in [THIN, THICK] {
            let failing = volume(THICK, admitted, (false, Reason::ModificationFailed));
            assert_eq!(
                progress(&failing, &to(THIN)),
                ModificationProgress::Ask(THIN)
            );
        }
    }

    #[test]
    fn cmv_05_refused_attributes_are_taken_back_first() {
        for reason in [Reason::NoSpace, Reason::Overcommitted, Reason::PoolClosed] {
            let refused = volume(THICK, THIN, (false, reason));
            for changes in [to(THICK), to(THIN)] {
                let expected = ModificationProgress::Refused {
                    admitted: THIN,
                    why: Explanation::new(reason, "the agent's words"),
                };
                assert_eq!(progress(&refused, &changes), expected);
            }
            // The condition is of an earlier generation.
            let mut again = refused;
            again.metadata.generation = Some(3);
            let progress = progress(&again, &to(THICK));
            assert!(
                matches!(progress, ModificationProgress::Waits(_)),
                "{progress:?}"
            );
        }
    }

    #[test]
    fn a_volume_whose_deletion_is_requested_is_not_found() {
        let mut volume = volume(THIN, THIN, APPLIED);
        volume.spec.deletion_requested = true;
        assert_eq!(progress(&volume, &to(THIN)), ModificationProgress::Leaving);
    }
}
