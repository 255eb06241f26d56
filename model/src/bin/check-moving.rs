//! Checks the model, and prints the number of states.
//!
//! ```text
//! check-moving [NAME]           all scenarios, or those whose names contain NAME
//! check-moving mutations        for each guard, the steps to a failure without it: model/counterexamples.md
//! ```

use std::{error::Error, io::Write, time::Instant};

use cistern_model::{mutation, mutation::Mutation, protocol::Protocol, scenario::Scenario};
use stateright::{Checker as _, Model as _};

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    let wanted = std::env::args().nth(1).unwrap_or_default();
    if wanted == "mutations" {
        write!(out, "{}", mutation::page(Mutation::all())?)?;
        return Ok(());
    }
    let all = Scenario::QUICK.into_iter().chain(Scenario::THOROUGH);
    let mut chosen = all
        .filter(|scenario| scenario.name.contains(&wanted))
        .peekable();
    if chosen.peek().is_none() {
        return Err(format!("no scenario is named {wanted}").into());
    }
    chosen.try_for_each(|scenario| check(&mut out, scenario))
}

/// Fails with the steps to a state in which a property does not hold.
fn check(out: &mut impl Write, scenario: Scenario) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let name = scenario.name;
    let checker = Protocol::new(scenario).checker();
    let checker = checker.threads(2).spawn_bfs().join();
    writeln!(
        out,
        "{name}: {} states, {} of them different, {} steps deep, in {:.1?}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        started.elapsed()
    )?;
    let found = checker.discoveries();
    for property in checker.model().properties() {
        let is_failure = property.expectation.discovery_is_failure();
        match found.get(property.name) {
            Some(path) if is_failure => {
                for step in path.clone().into_actions() {
                    writeln!(out, "  {step:?}")?;
                }
                writeln!(out, "  {:?}", path.last_state())?;
                return Err(format!("{name}: it does not hold that {}", property.name).into());
            }
            None if !is_failure => {
                return Err(format!("{name}: it is never reached that {}", property.name).into());
            }
            Some(_) | None => {}
        }
    }
    Ok(())
}
