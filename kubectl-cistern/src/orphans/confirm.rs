//! Confirmation prompt of `orphans reclaim`.

use std::io::{BufRead, Write};

use super::Error;
use crate::{confirm::is_typed, output::one_line};

/// Prints what is to be removed and asks the user to type its name. Fails if the answer is not that
/// name, or if the prompt cannot be written or the answer cannot be read.
pub fn confirm(
    what: &str,
    name: &str,
    answers: &mut impl BufRead,
    questions: &mut impl Write,
) -> Result<(), Error> {
    let question = format!(
        "The {} and its data will be removed. This cannot be undone.\n",
        one_line(what),
    );
    if is_typed(&question, name, answers, questions).map_err(Error::Answer)? {
        Ok(())
    } else {
        Err(Error::NotConfirmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{arguments::Selection, orphans::list::choose, testing::cluster};

    #[test]
    fn only_the_whole_name_confirms() {
        let choice = choose(&cluster(), "pvc-lost", &Selection::default()).unwrap();
        let answer = |text: &str| {
            let mut asked = Vec::new();
            let said = confirm(
                &choice.to_string(),
                "pvc-lost",
                &mut text.as_bytes(),
                &mut asked,
            );
            let asked = String::from_utf8(asked).unwrap();
            assert!(asked.contains("volume pvc-lost"), "{asked}");
            said.is_ok()
        };
        assert!(answer("pvc-lost\n"));
        for no in ["", "y\n", "yes\n", "pvc\n", "uid-of-lost\n"] {
            assert!(!answer(no), "{no:?}");
        }
    }
}
