//! Entry point of `kubectl cistern`: runs the command and sets the exit code.

use std::process::ExitCode;

use cistern_client::Chain;
use clap::Parser as _;
use kubectl_cistern::{Arguments, FAILED, print_diagnostic, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
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
