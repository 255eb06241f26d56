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
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Error, Volumes,
    change::{Change, Step},
};
use crate::objects::nodes::Nodes;

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
        self.change(volume, changes, deadline).await
    }
}

impl Change for AttributeChanges {
    type Desired = VolumeAttributes;
    type Made = ();

    const FIELD: &'static str = "attributes";
    const ASK: &'static str = "the API server to take the new attributes";
    const RESTORE: &'static str = "the API server to take back attributes that were refused";
    const MAKE: &'static str = "change it";

    fn next(&self, volume: &PoolVolume) -> Result<Step<VolumeAttributes, ()>, Error> {
        Ok(match progress(volume, self) {
            ModificationProgress::Done => Step::Done(()),
            ModificationProgress::Leaving => Step::Leaving,
            ModificationProgress::Ask(attributes) => Step::Ask(attributes),
            ModificationProgress::Refused { admitted, why } => {
                let desired = self.apply(admitted);
                let is_ours = desired == volume.spec.attributes;
                Step::Restore {
                    to: admitted,
                    refusal: is_ours.then(|| impossible(volume, desired, why)),
                }
            }
            ModificationProgress::Waits(message) => Step::Wait(message),
        })
    }

    fn check(&self, nodes: &Nodes, volume: &PoolVolume, to: VolumeAttributes) -> Result<(), Error> {
        let spec = &volume.spec;
        let held = nodes.holds(&spec.node_name, &spec.pool_name, to.provisioning);
        held.map_err(|why| impossible(volume, to, why))
    }

    fn current(volume: &PoolVolume) -> VolumeAttributes {
        volume.spec.attributes
    }

    fn patch(to: VolumeAttributes) -> Value {
        json!({"spec": {"attributes": to.merge_patch()}})
    }
}

fn impossible(volume: &PoolVolume, attributes: VolumeAttributes, why: Explanation) -> Error {
    Error::AttributesNotPossible {
        volume: volume.name_any(),
        attributes: Box::new(attributes),
        why,
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
