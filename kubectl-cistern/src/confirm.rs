//! Asking a person who may lose data.

use std::io::{self, BufRead, Write};

use crate::output::one_line;

/// Writes a question that names what is lost, and asks for a name to be typed. Whether that is what the
/// answer says; nothing else is a yes.
pub(crate) fn is_typed(
    question: &str,
    name: &str,
    answers: &mut impl BufRead,
    questions: &mut impl Write,
) -> io::Result<bool> {
    write!(questions, "{question}Type {} to go on: ", one_line(name))?;
    questions.flush()?;
    let mut answer = String::new();
    answers.read_line(&mut answer)?;
    Ok(answer.trim() == name)
}
