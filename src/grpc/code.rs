//! The codes of gRPC.

use std::fmt;

/// How a gRPC call went. Displays as the specification writes it, for instance `UNAVAILABLE`.
///
/// # Examples
///
/// ```
/// use tower_breaker::grpc::Code;
///
/// let code = Code::from_bytes(b"14");
/// assert_eq!(code, Code::Unavailable);
/// assert_eq!(code.number(), 14);
/// assert_eq!(code.to_string(), "UNAVAILABLE");
/// ```
// Not `#[non_exhaustive]`: the specification has no other codes, and takes every other number for
// `UNKNOWN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// The call succeeded.
    Ok = 0,
    /// The call was cancelled, most often by its caller.
    Cancelled = 1,
    /// The cause of the error is not known.
    Unknown = 2,
    /// The request is wrong, whatever the state of the system.
    InvalidArgument = 3,
    /// The deadline of the call was over before the call had ended.
    DeadlineExceeded = 4,
    /// The requested thing does not exist.
    NotFound = 5,
    /// The thing that the call should create exists already.
    AlreadyExists = 6,
    /// The caller is known, and has no permission for the call.
    PermissionDenied = 7,
    /// A quota or a resource is spent.
    ResourceExhausted = 8,
    /// The system is not in the state that the call needs.
    FailedPrecondition = 9,
    /// The call lost against a concurrent one.
    Aborted = 10,
    /// The request went beyond the valid range.
    OutOfRange = 11,
    /// The server has no such method.
    Unimplemented = 12,
    /// An invariant of the server is broken.
    Internal = 13,
    /// The server cannot be reached, or does not serve at the moment.
    Unavailable = 14,
    /// Data is lost or damaged for ever.
    DataLoss = 15,
    /// The caller has no valid credentials.
    Unauthenticated = 16,
}

impl Code {
    /// All codes, each at the index of its number.
    pub(super) const ALL: [Self; 17] = [
        Code::Ok,
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    /// Reads the value of a `grpc-status` field.
    ///
    /// The numbers 0 to 16 in plain digits are codes. Everything else is [`Code::Unknown`], as in
    /// gRPC clients.
    #[must_use]
    pub fn from_bytes(value: &[u8]) -> Self {
        match *value {
            [digit @ b'0'..=b'9'] => Self::from_number((digit - b'0').into()),
            [b'1', digit @ b'0'..=b'6'] => Self::from_number((10 + digit - b'0').into()),
            _ => Code::Unknown,
        }
    }

    /// Returns the code with this number, or [`Code::Unknown`] if there is none.
    ///
    /// It converts the codes of another library.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_breaker::grpc::Code;
    ///
    /// assert_eq!(Code::from_number(8), Code::ResourceExhausted);
    /// assert_eq!(Code::from_number(-1), Code::Unknown);
    /// ```
    #[must_use]
    pub fn from_number(number: i32) -> Self {
        usize::try_from(number)
            .ok()
            .and_then(|number| Self::ALL.get(number).copied())
            .unwrap_or(Code::Unknown)
    }

    /// Returns the number of the code, as a `grpc-status` field has it.
    #[must_use]
    pub const fn number(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Code::Ok => "OK",
            Code::Cancelled => "CANCELLED",
            Code::Unknown => "UNKNOWN",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_its_number_and_its_name() {
        for (number, code) in (0..).zip(Code::ALL) {
            assert_eq!(code.number(), number);
            assert_eq!(Code::from_number(number), code);
            assert_eq!(Code::from_bytes(number.to_string().as_bytes()), code);
            let spelled = code.to_string().replace('_', "");
            assert_eq!(spelled, format!("{code:?}").to_uppercase());
        }
        assert_eq!(format!("{:>12}", Code::Ok), "          OK");
    }

    #[test]
    fn any_other_number_or_text_is_unknown() {
        for number in [-1, 17, 256, i32::MIN, i32::MAX] {
            assert_eq!(Code::from_number(number), Code::Unknown, "{number}");
        }
        for value in [
            "", "17", "19", "20", "99", "00", "05", "014", "140", "-1", "+1", "1 ", " 1", "1a",
            "/", ":", "1/", "1:", "OK", "\u{663}",
        ] {
            assert_eq!(Code::from_bytes(value.as_bytes()), Code::Unknown, "{value}");
        }
    }
}
