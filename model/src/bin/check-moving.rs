//! Checks the model, and prints the number of states.
//!
//! ```text
//! check-moving                  the quick scenarios and the thorough ones
//! check-moving mutations        for each guard, the steps to a failure without it: model/counterexamples.md
//! ```

use std::{error::Error, io::Write, time::Instant};

use cistern_model::{mutation::Mutation, protocol::Protocol, scenario::Scenario};
use stateright::{Checker as _, Model as _};

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    match std::env::args().nth(1).as_deref() {
        None => {
            let all = Scenario::QUICK.into_iter().chain(Scenario::THOROUGH);
            for scenario in all {
                check(&mut out, scenario)?;
            }
            Ok(())
        }
        Some("mutations") => {
            write!(out, "{}", cistern_model::mutation::page(Mutation::all())?)?;
            Ok(())
        }
        Some(other) => Err(format!("unknown command {other}: check-moving [mutations]").into()),
    }
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
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        let last = *path.last_state();
        for step in path.into_actions() {
            writeln!(out, "  {step:?}")?;
        }
        writeln!(out, "  {last:?}")?;
        return Err(format!("{name}: it does not hold that {property}").into());
    }
    Ok(())
}
