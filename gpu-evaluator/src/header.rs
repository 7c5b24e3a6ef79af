//! The door for matrix headers: protobuf in, a checked specification out.

use crate::{Error, rings::Rings};
use kernels::{MatrixId, Ring, Tiling};
use proto::v1::{MatrixHeader, Residency};

/// Longest name of a matrix, in bytes.
const MAX_NAME: usize = 128;

/// A checked [`MatrixHeader`].
#[derive(Clone)]
pub struct MatrixSpec {
    /// Digest that the content must have.
    pub id: MatrixId,
    /// For logs and metrics.
    pub name: String,
    /// The ring of its tiles.
    pub ring: Ring,
    /// Shape and cut, fitting the ring.
    pub tiling: Tiling,
    /// How the runtime would like it held.
    pub wish: Residency,
}

impl MatrixSpec {
    /// Checks a header against the rings there are and the size limit.
    ///
    /// # Errors
    /// [`Error::Peer`] naming the field, what was found and what is allowed.
    pub fn parse(header: &MatrixHeader, rings: &Rings, max_bytes: u64) -> Result<Self, Error> {
        let bad = |what: String| Err(Error::Peer(what));
        let id = parse_id(&header.matrix_id)?;
        let name = &header.name;
        if name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return bad(format!("matrix name of {} bytes, allowed are {MAX_NAME} printable ones", name.len()));
        }
        let bytes = u64::from(header.rows) * u64::from(header.cols);
        if bytes > max_bytes {
            return bad(format!(
                "matrix {name:?} of {}x{} is {bytes} bytes, the limit is {max_bytes}",
                header.rows, header.cols
            ));
        }
        let ring = rings.find(&header.params_id).map_err(|e| Error::Peer(format!("matrix {name:?}: {e}")))?.clone();
        let [rows, cols, tile_rows, tile_cols] =
            [header.rows, header.cols, header.tile_rows, header.tile_cols].map(|x| x as usize);
        let tiling = Tiling::new(rows, cols, tile_rows, tile_cols, ring.n())
            .map_err(|e| Error::Peer(format!("matrix {name:?}: {e}")))?;
        let Ok(wish) = Residency::try_from(header.residency) else {
            return bad(format!("matrix {name:?}: residency is {}, allowed are 0 to 2", header.residency));
        };
        Ok(Self { id, name: name.clone(), ring, tiling, wish })
    }

    /// Size of the int8 matrix.
    pub fn int8_bytes(&self) -> usize {
        self.tiling.rows() * self.tiling.cols()
    }
}

/// A matrix id from its wire form.
///
/// # Errors
/// [`Error::Peer`] if it is not 32 bytes.
pub fn parse_id(bytes: &[u8]) -> Result<MatrixId, Error> {
    let id = bytes.try_into().map_err(|_| Error::Peer(format!("matrix id of {} bytes, expected 32", bytes.len())))?;
    Ok(MatrixId(id))
}

/// The first eight bytes of an id in hexadecimal, for messages.
pub fn short(id: &MatrixId) -> String {
    hex(&id.0[..8])
}

/// Lowercase hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
