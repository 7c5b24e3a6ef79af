//! The ways of meddling with one answer.

use super::{Path, answer::Answer};
use bytes::{Bytes, BytesMut};
use proto::v1::JobFailure;
use tonic::Status;

/// What is done to an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meddling {
    /// The last byte is cut off.
    Short,
    /// One byte is added.
    Long,
    /// No bytes at all.
    Empty,
    /// Every residue is all ones: not below q.
    OutOfRange,
    /// Bytes of no format.
    Garbage,
    /// The header says another kind of residues.
    WrongKind,
    /// The answer comes twice.
    Twice,
    /// The part is said to hold the next tile or row.
    Shifted,
    /// The part is said to hold more tiles or rows than there are.
    TooMany,
    /// A part of nothing, again and again, instead of the answer.
    Nothing,
    /// The answer is for a job that was never sent.
    AnotherJob,
    /// An answer without a body.
    Bodyless,
    /// A failure of a kind that does not exist.
    UnknownFailure,
    /// The answer never arrives.
    Silence,
    /// The stream ends instead, as if all were well.
    End,
    /// The stream breaks instead.
    Break,
    /// One bit of one number is another.
    Flipped,
    /// The numbers change places.
    Rotated,
    /// The numbers of an earlier answer of the same size.
    Stale,
}

impl Meddling {
    /// Those that break the contract, or withhold an answer.
    pub fn breaches(path: Path) -> Vec<Self> {
        let everywhere = [
            Self::Short,
            Self::Long,
            Self::Empty,
            Self::Twice,
            Self::AnotherJob,
            Self::Bodyless,
            Self::UnknownFailure,
            Self::Silence,
            Self::End,
            Self::Break,
        ];
        // An online answer has no header and no parts, and every word is one.
        let of_residues =
            [Self::OutOfRange, Self::Garbage, Self::WrongKind, Self::Shifted, Self::TooMany, Self::Nothing];
        let mut all = everywhere.to_vec();
        if path != Path::Online {
            all.extend(of_residues);
        }
        all
    }

    /// Those that yield a lawful answer with wrong numbers.
    pub const LIES: [Self; 3] = [Self::Flipped, Self::Rotated, Self::Stale];

    /// What is sent instead of `answer`, whose numbers are `numbers`; `past` are an earlier answer's.
    pub(super) fn apply<A: Answer>(self, answer: &A, numbers: &Bytes, past: &Bytes) -> Told<A> {
        let with = |numbers: Bytes| vec![Ok(answer.with_numbers(numbers))];
        let header = if A::PATH == Path::Online { 0 } else { WIRE_HEADER };
        match self {
            Self::Short => with(numbers.slice(..numbers.len().saturating_sub(1))),
            Self::Long => with([numbers, &[0u8][..]].concat().into()),
            Self::Empty => with(Bytes::new()),
            Self::OutOfRange => {
                let mut ones = BytesMut::from(&numbers[..]);
                ones[header..].fill(0xff);
                with(ones.freeze())
            }
            Self::Garbage => with((0..numbers.len()).map(|i| u8::try_from(i * 151 % 256).unwrap_or(0)).collect()),
            Self::WrongKind => {
                let mut other = BytesMut::from(&numbers[..]);
                other[WIRE_KIND] ^= 3;
                with(other.freeze())
            }
            Self::Twice => vec![Ok(answer.clone()), Ok(answer.clone())],
            Self::Shifted => vec![Ok(answer.with_span(|first, count| (first + 1, count)))],
            Self::TooMany => vec![Ok(answer.with_span(|first, _| (first, u32::MAX)))],
            Self::Nothing => (0..3).map(|_| Ok(answer.with_span(|first, _| (first, 0)))).collect(),
            Self::AnotherJob => vec![Ok(answer.with_job(answer.job() ^ (1 << 40)))],
            Self::Bodyless => vec![Ok(A::bodyless(answer.job()))],
            Self::UnknownFailure => {
                let failure = JobFailure { kind: 99, message: "\u{7}x".repeat(2000) };
                vec![Ok(A::failed(answer.job(), failure))]
            }
            Self::Silence => Vec::new(),
            Self::End => vec![Err(Status::ok("end"))],
            Self::Break => vec![Err(Status::data_loss("meddled with"))],
            Self::Flipped => {
                // Residues and words have their least significant bit first.
                let mut flipped = BytesMut::from(&numbers[..]);
                flipped[header] ^= 1;
                with(flipped.freeze())
            }
            Self::Rotated => {
                // Eight residues fill as many bytes as one has bits.
                let by = if header == 0 { 4 } else { usize::from(numbers[WIRE_BITS]) };
                let mut rotated = BytesMut::from(&numbers[..]);
                let whole = (rotated.len() - header) / by * by;
                rotated[header..header + whole].rotate_left(by);
                with(rotated.freeze())
            }
            Self::Stale => with(past.clone()),
        }
    }
}

/// What is sent for one answer: messages, or nothing more at all after `Err(OK)`.
pub(super) type Told<A> = Vec<Result<A, Status>>;

/// `kernels::wire`: bytes before the residues, and where kind and bits are.
pub(super) const WIRE_HEADER: usize = 16;
const WIRE_KIND: usize = 4;
pub(super) const WIRE_BITS: usize = 5;
