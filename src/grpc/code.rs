//! The codes of gRPC.

use std::fmt;

/// How a gRPC call went. Displays as the specification spells it, `UNAVAILABLE` for instance.
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
// The specification has no more of them, and takes every other number for `UNKNOWN`: so it is no `#[non_exhaustive]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// The call did what it should.
    Ok = 0,
    /// The call was cancelled, most often by its caller.
    Cancelled = 1,
    /// Nobody knows what went wrong.
    Unknown = 2,
    /// The request is wrong, whatever the state of the system.
    InvalidArgument = 3,
    /// The time was over before the call was.
    DeadlineExceeded = 4,
    /// What was asked for is not there.
    NotFound = 5,
    /// What was to be made is there already.
    AlreadyExists = 6,
    /// The caller is known, and may not do it.
    PermissionDenied = 7,
    /// A quota is spent, or a resource is.
    ResourceExhausted = 8,
    /// The system is not in the state that the call needs.
    FailedPrecondition = 9,
    /// The call lost against another that ran beside it.
    Aborted = 10,
    /// The request went past the end of what there is.
    OutOfRange = 11,
    /// There is no such method.
    Unimplemented = 12,
    /// Something that must hold in the server does not.
    Internal = 13,
    /// The server cannot be reached, or serves nobody now.
    Unavailable = 14,
    /// Data is lost or damaged for good.
    DataLoss = 15,
    /// The caller has no valid credentials.
    Unauthenticated = 16,
}

impl Code {
    /// All of them, each at its number.
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

    /// Reads the value of a `grpc-status` field. As gRPC clients do, it takes everything but the numbers 0 to 16 in plain digits for
    /// [`Code::Unknown`].
    #[must_use]
    pub fn from_bytes(value: &[u8]) -> Self {
        match *value {
            [digit @ b'0'..=b'9'] => Self::from_number((digit - b'0').into()),
            [b'1', digit @ b'0'..=b'6'] => Self::from_number((10 + digit - b'0').into()),
            _ => Code::Unknown,
        }
    }

    /// The code of this number, [`Code::Unknown`] if there is none: as from another library's codes.
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

    /// Its number, as it is in a `grpc-status` field.
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
    fn each_code_stands_at_its_number_and_spells_its_name() {
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
    fn a_number_or_a_text_that_is_no_code_is_unknown() {
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
