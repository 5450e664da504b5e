//! Logs: text for people, JSON for programs, both on standard error.

use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// The level cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("`{level}`, want off, error, warn, info, debug, trace, or directives like `weir=debug`")]
pub struct LevelError {
    level: String,
    #[source]
    source: tracing_subscriber::filter::ParseError,
}

/// How and what to log.
#[derive(Debug)]
pub struct Log {
    format: LogFormat,
    filter: EnvFilter,
}

impl Log {
    /// Checks the level.
    pub fn new(format: LogFormat, level: &str) -> Result<Self, LevelError> {
        // The loader's debug output is thousands of lines and about the object, not the node. The
        // API client reports every refused request; the source does so once.
        let plain = level.parse::<tracing::Level>().is_ok();
        let directives = if plain {
            format!("{level},aya=warn,aya_obj=warn,kube_client=off")
        } else {
            level.to_owned()
        };
        let filter = EnvFilter::try_new(directives)
            .map_err(|source| LevelError { level: level.to_owned(), source })?;
        Ok(Self { format, filter })
    }

    /// Starts logging for the life of the process.
    pub fn start(self) {
        let builder = tracing_subscriber::fmt()
            .with_env_filter(self.filter)
            .with_target(false)
            .with_writer(std::io::stderr);
        match self.format {
            LogFormat::Text => builder.with_ansi(false).init(),
            LogFormat::Json => builder.json().flatten_event(true).init(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_directives_are_taken_and_nonsense_is_not() {
        for level in ["off", "info", "TRACE", "warn,weir=debug", "proxy_userspace::gc=trace"] {
            assert!(Log::new(LogFormat::Text, level).is_ok(), "{level}");
        }
        let error = Log::new(LogFormat::Json, "a=b=c").unwrap_err();
        assert!(error.to_string().contains("`a=b=c`, want off"), "{error}");
    }
}
