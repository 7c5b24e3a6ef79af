//! The one place where errors become gRPC statuses.

use crate::Error;
use tonic::Status;

/// Kind and message of an error, as a peer may know it. Messages never hold a prompt or a token.
pub fn status(error: &Error) -> Status {
    let message = error.to_string();
    match error {
        Error::Client(_) => Status::invalid_argument(message),
        Error::Busy(_) => Status::resource_exhausted(message),
        Error::Evaluator(_) => Status::unavailable(message),
        Error::Config(_) => Status::failed_precondition(message),
        Error::Cancelled => Status::cancelled(message),
        Error::Model(_) | Error::Platform(_) | Error::Bug(_) => Status::internal(message),
    }
}
