//! Completion of the plugin's words by kubectl, which asks a program named `kubectl_complete-cistern`. Pure.
//!
//! kubectl passes the words after `kubectl cistern`, of which the last is to be completed, and expects one
//! completion in each line, with its description behind a tab, and then a directive.

use clap::{Arg, Command, CommandFactory as _};

use crate::Arguments;

/// Name under which kubectl looks for the program.
pub const PROGRAM: &str = "kubectl_complete-cistern";
/// Tells kubectl's shell not to complete names of files.
const NO_FILES: &str = ":4";
/// Lets kubectl's shell complete names of files.
const FILES: &str = ":0";

/// Returns the answer to kubectl.
pub fn answer(words: &[String]) -> String {
    let (last, before) = words
        .split_last()
        .map_or(("", words), |(last, before)| (last.as_str(), before));
    let mut root = Arguments::command();
    root.build();
    let (command, option) = position(&root, before);
    let (flag, begun) = match last.split_once('=') {
        Some((flag, begun)) => (long(command, flag), begun),
        None => (None, last),
    };
    if let Some(value_of) = option.or(flag) {
        return of_values(value_of, last, begun);
    }
    let mut lines = if last.starts_with('-') {
        flags(command)
    } else {
        operands(command)
    };
    lines.retain(|line| line.starts_with(last));
    lines.push(NO_FILES.to_owned());
    lines.join("\n") + "\n"
}

/// The command that words select, and the option whose value comes next, if one does.
fn position<'a>(root: &'a Command, words: &[String]) -> (&'a Command, Option<&'a Arg>) {
    let (mut command, mut option) = (root, None);
    for word in words {
        if option.take().is_some() {
            continue;
        }
        if word.starts_with('-') {
            option = long(command, word).or_else(|| short(command, word));
        } else if let Some(next) = command.find_subcommand(word) {
            command = next;
        }
    }
    (command, option)
}

/// The option with this long name, if it takes a value.
fn long<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.strip_prefix("--")?;
    let mut all = command.get_arguments();
    all.find(|it| it.get_long() == Some(name) && takes_value(it))
}

/// The option with this short name, if it takes a value.
fn short<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let mut characters = word.strip_prefix('-')?.chars();
    let name = characters
        .next()
        .filter(|_| characters.as_str().is_empty())?;
    let mut all = command.get_arguments();
    all.find(|it| it.get_short() == Some(name) && takes_value(it))
}

/// Whether a value follows in the next word.
fn takes_value(argument: &Arg) -> bool {
    argument.get_action().takes_values() && !argument.is_require_equals_set()
}

/// The values of an option; the names of files if any text is one.
fn of_values(option: &Arg, last: &str, begun: &str) -> String {
    let values = option.get_possible_values();
    if values.is_empty() {
        return format!("{FILES}\n");
    }
    // With `--option=value`, the whole word is completed.
    let head = last.strip_suffix(begun).unwrap_or_default();
    let mut lines: Vec<String> = values
        .iter()
        .filter(|value| !value.is_hide_set() && value.get_name().starts_with(begun))
        .map(|value| format!("{head}{}", value.get_name()))
        .collect();
    lines.push(NO_FILES.to_owned());
    lines.join("\n") + "\n"
}

fn flags(command: &Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|it| !it.is_hide_set());
    let each = shown.filter_map(|argument| {
        let help = argument.get_help().map(ToString::to_string);
        Some(described("--", argument.get_long()?, help))
    });
    each.collect()
}

/// Subcommands, and the values of operands that have a list of them.
fn operands(command: &Command) -> Vec<String> {
    let commands = command.get_subcommands().filter(|it| !it.is_hide_set());
    let commands = commands.map(|it| {
        let about = it.get_about().map(ToString::to_string);
        described("", it.get_name(), about)
    });
    let values = command
        .get_positionals()
        .flat_map(Arg::get_possible_values)
        .map(|value| value.get_name().to_owned());
    commands.chain(values).collect()
}

fn described(prefix: &str, name: &str, about: Option<String>) -> String {
    match about {
        Some(about) => format!("{prefix}{name}\t{about}"),
        None => format!("{prefix}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Completions without their descriptions.
    fn complete(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let answer = answer(&words);
        let lines = answer.lines().map(|line| line.split('\t').next().unwrap());
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn commands_and_their_subcommands_are_completed() {
        assert_eq!(complete(&["vol"]), ["volumes", ":4"]);
        assert_eq!(complete(&["top", ""])[..2], ["pools", "volumes"]);
        assert_eq!(complete(&["orphans", "re"]), ["reclaim", ":4"]);
        assert!(complete(&[]).contains(&"status".to_owned()));
        assert_eq!(complete(&["completion", "z"]), ["zsh", ":4"]);
    }

    #[test]
    fn flags_are_completed_and_so_are_the_values_of_those_that_have_a_list() {
        assert_eq!(complete(&["volumes", "--so"]), ["--sort", ":4"]);
        assert_eq!(complete(&["pools", "--kubec"]), ["--kubeconfig", ":4"]);
        assert_eq!(complete(&["volumes", "--sort", "si"]), ["size", ":4"]);
        assert_eq!(complete(&["volumes", "--sort=si"]), ["--sort=size", ":4"]);
        assert_eq!(complete(&["pools", "-o", "j"]), ["json", ":4"]);
        // The value of an option is no command.
        assert_eq!(complete(&["--context", "top", "sta"]), ["status", ":4"]);
    }

    #[test]
    fn the_value_of_an_option_without_a_list_may_be_a_file() {
        assert_eq!(complete(&["pools", "--kubeconfig", ""]), [":0"]);
    }

    #[test]
    fn every_completion_has_a_description() {
        let answer = answer(&[String::new()]);
        assert!(
            answer.contains("status\tShow a summary of pools"),
            "{answer}"
        );
    }
}
