//! Logs: one line per event on standard output, for people or as JSON (LOG-02).

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Log options of all binaries.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Log level, or directives as in `info,cistern_node=debug`
    #[arg(
        long,
        env = "LOG_LEVEL",
        default_value = "info,kube_runtime=warn",
        global = true
    )]
    pub log_level: String,

    /// Format of the log lines
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = Format::Text, global = true)]
    pub log_format: Format,
}

/// Format of the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// The log level is invalid.
#[derive(Debug, thiserror::Error)]
#[error("log level {level:?} is invalid: write error, warn, info, debug or trace")]
pub struct Error {
    level: String,
    #[source]
    source: tracing_subscriber::filter::ParseError,
}

/// Starts logging for the whole process. A second call changes nothing. Fails if the log level is
/// invalid.
pub fn start(options: &Options) -> Result<(), Error> {
    let filter = EnvFilter::try_new(&options.log_level).map_err(|source| Error {
        level: options.log_level.clone(),
        source,
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false);
    // Keeps a logger that was installed before.
    let _ = match options.log_format {
        Format::Text => lines.with_ansi(false).try_init(),
        Format::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .try_init(),
    };
    Ok(())
}
