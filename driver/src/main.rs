//! `cistern-driver`: reads what it is told, runs the mode, and says why it ends.

use std::process::ExitCode;

use cistern_client::{Chain, logging};
use cistern_driver::{
    config::{Config, Mode},
    process,
};
use clap::Parser as _;

fn main() -> ExitCode {
    let config = Config::parse();
    match run(config) {
        Ok(code) => code,
        Err(error) => {
            // Standard error too: the log level may hide it, and it is the last word.
            eprintln!("cistern-driver: {}", Chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run(config: Config) -> process::Result<ExitCode> {
    logging::start(&config.logging)?;
    // Two threads serve; what blocks runs on threads of its own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match config.mode {
            Mode::Controller(options) => process::controller(options).await?,
            Mode::Node(options) => process::node(options).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}
