//! Maps the errors of snapshot metadata to gRPC codes.
//!
//! After every code, a caller resumes a broken stream at its last offset. After UNAVAILABLE it
//! waits first.
#![warn(clippy::wildcard_enum_match_arm)]

use cistern_client::Chain;
use cistern_node::metadata;
use tonic::{Code, Status};

use super::request;
use crate::csi::status::IntoStatus;

impl From<request::Error> for Status {
    fn from(error: request::Error) -> Self {
        let code = match &error {
            request::Error::Field(_) | request::Error::Negative { .. } => Code::InvalidArgument,
            request::Error::OutOfRange { .. } => Code::OutOfRange,
        };
        Self::new(code, Chain(&error).to_string())
    }
}

impl IntoStatus for metadata::Error {
    fn into_status(self) -> Status {
        let error = self;
        let code = match &error {
            metadata::Error::NotFound { .. } => Code::NotFound,
            metadata::Error::NotReady { .. } | metadata::Error::Api { .. } => Code::Unavailable,
            metadata::Error::NotComparable { .. } => Code::InvalidArgument,
            metadata::Error::OutOfRange { .. } => Code::OutOfRange,
            metadata::Error::Image(_) | metadata::Error::Broken(_) => Code::Internal,
        };
        Status::new(code, Chain(&error).to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use cistern_crds::Bytes;
    use cistern_host::image;

    use super::*;

    #[test]
    fn gen_10_smd_11_mda_03_mdd_04_mdd_07_every_error_has_its_code_and_a_message() {
        let snapshot = || "snapshot-1".to_owned();
        for (error, code) in [
            (
                metadata::Error::NotFound {
                    snapshot: snapshot(),
                    node: Some("node-2".to_owned()),
                },
                Code::NotFound,
            ),
            (
                metadata::Error::NotReady {
                    snapshot: snapshot(),
                    why: metadata::NotReady::NotTaken,
                },
                Code::Unavailable,
            ),
            (
                metadata::Error::Api {
                    snapshot: snapshot(),
                    source: io::Error::from(io::ErrorKind::TimedOut).into(),
                },
                Code::Unavailable,
            ),
            (
                metadata::Error::NotComparable {
                    base: snapshot(),
                    target: snapshot(),
                    why: metadata::Incomparable::Volumes,
                },
                Code::InvalidArgument,
            ),
            (
                metadata::Error::OutOfRange {
                    snapshot: snapshot(),
                    from: 2,
                    size: Bytes(1),
                },
                Code::OutOfRange,
            ),
            (
                image::Error::Missing {
                    uid: "uid-1".parse().unwrap(),
                    pool: "fast".to_owned(),
                }
                .into(),
                Code::Internal,
            ),
        ] {
            let status = error.into_status();
            assert_eq!(status.code(), code, "{status}");
            assert!(!status.message().is_empty() && status.details().is_empty());
        }
    }
}
