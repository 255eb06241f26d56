//! The vocabulary of statuses and events: condition types, reasons, and reasons of events.
//!
//! *Invariant:* the documentation of each variant has two paragraphs: what the name means, and what to
//! do about it. `docs/conditions.md` is generated from them (`make generate`).

mod condition_reason;
mod condition_type;
mod declaration;
mod event_reason;
mod refusal;

pub use self::{
    condition_reason::Reason, condition_type::ConditionType, event_reason::EventReason,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_states_its_meaning_and_what_to_do() {
        let all = [
            ConditionType::ALL
                .iter()
                .map(|it| (it.as_str(), it.documentation()))
                .collect::<Vec<_>>(),
            Reason::ALL
                .iter()
                .map(|it| (it.as_str(), it.documentation()))
                .collect(),
            EventReason::ALL
                .iter()
                .map(|it| (it.as_str(), it.documentation()))
                .collect(),
        ];
        for (name, documentation) in all.concat() {
            let paragraphs: Vec<_> = documentation.split("\n\n").map(str::trim).collect();
            assert_eq!(paragraphs.len(), 2, "{name}");
            assert!(paragraphs.iter().all(|it| it.ends_with('.')), "{name}");
            // They stand in a table, as plain text.
            assert!(!documentation.contains(['|', '[']), "{name}");
        }
    }
}
