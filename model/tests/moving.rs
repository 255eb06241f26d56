//! The protocol holds in every interleaving, and each of its guards is needed.

use cistern_model::{mutation::Mutation, protocol::Protocol, scenario::Scenario};
use stateright::{Checker as _, Model as _};

#[test]
fn every_property_holds_in_every_interleaving_of_the_quick_scenarios() {
    for scenario in Scenario::QUICK {
        let name = scenario.name;
        let checker = Protocol::new(scenario)
            .checker()
            .threads(2)
            .spawn_bfs()
            .join();
        eprintln!("{name}: {} states", checker.unique_state_count());
        checker.assert_properties();
    }
}

#[test]
fn without_any_guard_a_property_fails_as_written_down() {
    let written = include_str!("../counterexamples.md");
    for mutation in Mutation::all() {
        let found = mutation.counterexample();
        let steps = found.unwrap_or_else(|| panic!("nothing fails without {:?}", mutation.guard));
        let section = mutation.section(&steps);
        let is_written = written.contains(&section);
        assert!(
            is_written,
            "make check-moving writes another counterexample: {section}"
        );
    }
}
