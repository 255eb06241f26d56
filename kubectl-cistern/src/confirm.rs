//! Confirmation prompt for commands that lose data.

use std::io::{self, BufRead, Write};

use crate::output::one_line;

/// Prints `question`, which lists what is lost, and reads one line. Returns whether the line is
/// `name`, apart from surrounding spaces. Fails if the question cannot be written or the line
/// cannot be read.
pub(crate) fn is_typed(
    question: &str,
    name: &str,
    answers: &mut impl BufRead,
    questions: &mut impl Write,
) -> io::Result<bool> {
    write!(questions, "{question}Type {} to continue: ", one_line(name))?;
    questions.flush()?;
    let mut answer = String::new();
    answers.read_line(&mut answer)?;
    Ok(answer.trim() == name)
}
