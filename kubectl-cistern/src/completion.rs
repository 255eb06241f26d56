//! Completions for kubectl, which runs the program `kubectl_complete-cistern` to get them. Pure.
//!
//! kubectl passes the words after `kubectl cistern`. The last word is the one to complete. kubectl
//! expects one completion per line, with an optional description after a tab, and a directive in
//! the last line.

use clap::{Arg, Command, CommandFactory as _};

use crate::Arguments;

/// Name under which kubectl looks for the program.
pub const PROGRAM: &str = "kubectl_complete-cistern";
/// Directive: the shell does not complete file names.
const NO_FILES: &str = ":4";
/// Directive: the shell completes file names.
const FILES: &str = ":0";

/// Returns the completions of the last of `words`, in the format of kubectl.
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

/// Returns the command that the words select. If the last of them is an option that takes a value,
/// returns the option, too.
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

/// Returns the option with this long name if it takes a value.
fn long<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.strip_prefix("--")?;
    let mut all = command.get_arguments();
    all.find(|it| it.get_long() == Some(name) && takes_value(it))
}

/// Returns the option with this short name if it takes a value.
fn short<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let mut characters = word.strip_prefix('-')?.chars();
    let name = characters
        .next()
        .filter(|_| characters.as_str().is_empty())?;
    let mut all = command.get_arguments();
    all.find(|it| it.get_short() == Some(name) && takes_value(it))
}

/// Returns whether the option takes its value from the next word.
fn takes_value(argument: &Arg) -> bool {
    argument.get_action().takes_values() && !argument.is_require_equals_set()
}

/// Returns the possible values of an option. If there is no list of them, the shell completes file
/// names.
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

/// Returns the subcommands, and the possible values of positional arguments.
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
        // The value of an option is not a command.
        assert_eq!(complete(&["--context", "top", "stat"]), ["status", ":4"]);
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
