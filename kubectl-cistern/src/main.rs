//! `kubectl cistern`: starts, and says how it went by its exit code.

use std::process::ExitCode;

use cistern_client::Chain;
use clap::Parser as _;
use kubectl_cistern::{Arguments, FAILED, complain, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(message) => {
            // Whoever asked for the help may have closed the pipe.
            let _ = message.print();
            return ExitCode::from(if message.use_stderr() { FAILED } else { 0 });
        }
    };
    match run(arguments).await {
        Ok(verdict) => ExitCode::from(verdict.exit_code()),
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            complain("error", &Chain(&error).to_string());
            ExitCode::from(FAILED)
        }
    }
}
