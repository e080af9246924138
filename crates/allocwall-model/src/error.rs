//! Errors that end a command. Each message says in one line what is wrong and what to do. Causes are part of the text and
//! not chained; otherwise a printer that follows the chain would print them twice.

use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("no process {0}: it does not exist or has already exited")]
    NoSuchProcess(i32),
    #[error("not permitted to read process {pid}: {detail}; {mend}")]
    NotPermitted { pid: i32, detail: String, mend: String },
    #[error("cannot start {command}: {cause}")]
    Launch { command: String, cause: std::io::Error },
    #[error("{path}: {cause}")]
    File { path: PathBuf, cause: std::io::Error },
    #[error("{path} is not a usable recording: {detail}")]
    Recording { path: PathBuf, detail: String },
    #[error("{0}")]
    Refused(String),
}
