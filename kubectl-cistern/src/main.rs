//! Entry point of `kubectl cistern`: runs the command and sets the exit code. If the program is
//! started as `kubectl_complete-cistern`, it prints completions for kubectl instead.

use std::{env, path::Path, process::ExitCode};

use cistern_client::Chain;
use clap::Parser as _;
use kubectl_cistern::{Arguments, FAILED, completion, print, print_diagnostic, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut words = env::args_os().map(|word| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_default();
    if Path::new(&program).file_name() == Some(completion::PROGRAM.as_ref()) {
        let words: Vec<String> = words.collect();
        // The shell may have closed the pipe.
        let _ = print(&completion::answer(&words));
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(message) => {
            // The reader of the help text may have closed the pipe.
            let _ = message.print();
            return ExitCode::from(if message.use_stderr() { FAILED } else { 0 });
        }
    };
    match run(arguments).await {
        Ok(verdict) => ExitCode::from(verdict.exit_code()),
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            print_diagnostic("error", &Chain(&error).to_string());
            ExitCode::from(FAILED)
        }
    }
}
