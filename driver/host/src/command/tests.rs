//! Tools as they end: by themselves, by a limit, and not at all.

use std::{
    io,
    time::{Duration, Instant},
};

use cistern_types::Bytes;

use super::{
    Command, Error, ResourceLimits,
    output::{OUTPUT_LIMIT, PAGE, output_file},
};
use crate::patience::until_within;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn the_output_of_a_tool_is_kept_and_operands_are_never_options() {
    let output = Command::new("echo", SOON)
        .arg("-n")
        .operand("-e")
        .run(None, &|_| false)
        .unwrap();
    assert_eq!((output.exit, output.stdout.as_str()), (Some(0), "-- -e"));
}

#[test]
fn a_failure_names_program_arguments_exit_and_what_was_written() {
    let command = Command::new("cat", SOON).operand("/does/not/exist");
    let output = command.run(None, &|_| false).unwrap();
    let text = command.failed(&output).to_string();
    assert!(
        text.starts_with("cat /does/not/exist failed with exit code 1: cat:"),
        "{text}"
    );
}

#[test]
fn a_tool_that_hangs_is_killed_and_reaped() {
    let begin = Instant::now();
    let error = Command::new("sleep", Duration::from_millis(50))
        .operand("60")
        .run(None, &|_| false)
        .unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    assert!(begin.elapsed() < SOON);
}

#[test]
fn a_tool_that_must_not_be_killed_ends_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (end, ended) = (folder.path().join("end"), folder.path().join("ended"));
    let script = format!(
        "until [ -e {} ]; do sleep 0.1; done; touch {}",
        end.display(),
        ended.display()
    );
    let error = Command::new("sh", Duration::from_millis(50))
        .option("-c", script)
        .never_killed("a tool that ends")
        .run(None, &|_| false)
        .unwrap_err();
    assert!(matches!(error, Error::StillRuns { .. }), "{error}");
    std::fs::write(&end, "").unwrap();
    assert!(until_within(SOON, || ended.exists(), |exists| *exists));
}

#[test]
fn until_a_tool_that_was_left_has_ended_no_other_one_of_its_name_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let (begun, end) = (folder.path().join("begun"), folder.path().join("end"));
    let script = format!(
        "echo >>{}; until [ -e {} ]; do sleep 0.1; done",
        begun.display(),
        end.display()
    );
    let run = |name: &str, deadline| {
        let tool = Command::new("sh", deadline).option("-c", &script);
        tool.never_killed(name).run(None, &|_| false)
    };
    let begun_are = |count: usize| {
        let is_it = |text: &String| text.lines().count() == count;
        let text = || std::fs::read_to_string(&begun).unwrap_or_default();
        assert!(is_it(&until_within(SOON, text, is_it)), "{}", text());
    };
    for (name, count) in [("one", 1), ("one", 1), ("one", 1), ("other", 2)] {
        let error = run(name, Duration::from_secs(1)).unwrap_err();
        assert!(matches!(error, Error::StillRuns { .. }), "{error}");
        assert!(error.to_string().contains("echo >>"), "{error}");
        begun_are(count);
    }
    std::fs::write(&end, "").unwrap();
    let ended = until_within(SOON, || run("one", SOON), Result::is_ok);
    assert_eq!(ended.unwrap().exit, Some(0));
    begun_are(3);
}

#[test]
fn no_more_output_is_kept_than_the_command_has_room_for() {
    let echo = Command::new("echo", SOON).arg("-n").operand("text");
    let kept = |limit| {
        let output = echo.clone().keeping(Bytes(limit)).run(None, &|_| false);
        output.unwrap().stdout
    };
    assert_eq!((kept(4).as_str(), kept(64).as_str()), ("-- t", "-- text"));
}

#[test]
fn a_tool_that_writes_more_than_is_kept_gets_an_error_and_takes_no_memory_for_it() {
    let zeros = Command::new("dd", SOON)
        .operand("if=/dev/zero")
        .operand("bs=64K")
        .operand("count=1024");
    let output = zeros.run(None, &|_| false).unwrap();
    assert_eq!(output.exit, Some(1), "{}", output.stderr);
    assert_eq!(output.stdout.len() as u64, OUTPUT_LIMIT);
    let file = output_file(1).unwrap();
    assert_eq!(file.metadata().unwrap().len(), PAGE);
    let grown = file.set_len(PAGE + 1).unwrap_err();
    assert_eq!(grown.kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn a_missing_tool_is_an_error_that_says_so() {
    let command = Command::new("no-such-tool", SOON);
    let error = command.run(None, &|_| false).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("no-such-tool could not be run")
    );
}

#[test]
fn output_larger_than_a_pipe_is_read_completely_and_watched_line_by_line() {
    let lines = std::cell::Cell::new(0_u32);
    let watch = |line: &str| {
        lines.set(lines.get() + 1);
        line.ends_with("even")
    };
    let script = "BEGIN { for (i = 0; i < 20000; i++) print i, i % 2 ? \"odd\" : \"even\" > \"/dev/stderr\" }";
    let awk = Command::new("awk", SOON).operand(script);
    let output = awk.run(None, &watch).unwrap();
    assert_eq!((output.exit, lines.get()), (Some(0), 20000));
    assert!(output.stderr.starts_with("1 odd\n3 odd\n"));
    assert!(!output.stderr.contains("even"));
    assert_eq!(output.stderr.len() as u64, OUTPUT_LIMIT);
}

const LIMITS: ResourceLimits = ResourceLimits {
    address_space: Bytes::mib(512),
    cpu: Duration::from_secs(1),
};

#[test]
fn a_tool_that_computes_for_longer_than_it_may_is_ended_before_its_deadline() {
    let endless = Command::new("sha256sum", Duration::from_mins(5)).operand("/dev/zero");
    let output = endless.limited(LIMITS).run(None, &|_| false).unwrap();
    assert_eq!(output.exit, None);
    assert!(output.has_reached_limit(), "{output:?}");
}

#[test]
fn a_tool_gets_no_more_memory_than_it_may_have() {
    let limits = ResourceLimits {
        address_space: Bytes::mib(64),
        ..LIMITS
    };
    // One block of this size is one allocation.
    let greedy = Command::new("dd", SOON)
        .operand("bs=256M")
        .operand("if=/dev/zero");
    let output = greedy
        .clone()
        .limited(limits)
        .run(None, &|_| false)
        .unwrap();
    assert_eq!(output.exit, Some(1));
    assert!(greedy.failed(&output).to_string().starts_with("dd bs=256M"));
}
