//! What multiplies: one backend chosen at start, and the matrices it holds in its own form.

use crate::{Error, config::BackendKind};
use kernels::{Inputs, Int8Matrix, MatrixId, PinnedTiles, Ring, Tiling};
use proto::v1::Residency;
use std::{ops::Range, path::PathBuf, sync::Arc};

/// A chosen backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The processor, with the instruction set of the ring.
    Cpu,
}

impl Backend {
    /// Chooses once, at start.
    ///
    /// # Errors
    /// [`Error::Config`] if CUDA is asked for by name; it says what was searched.
    pub fn choose(kind: BackendKind) -> Result<Self, Error> {
        match kind {
            BackendKind::Cpu => Ok(Self::Cpu),
            BackendKind::Auto => {
                tracing::info!("backend auto: this build has no CUDA backend, using cpu ({})", cuda_driver());
                Ok(Self::Cpu)
            }
            BackendKind::Cuda => {
                Err(Error::Config(format!("backend \"cuda\": this build has no CUDA backend ({})", cuda_driver())))
            }
        }
    }

    /// "cpu" or "cuda".
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
        }
    }
}

/// Whether the CUDA driver library is on this machine, and where it was searched.
fn cuda_driver() -> String {
    const LIBRARY: &str = "libcuda.so.1";
    const PLACES: [&str; 5] =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/cuda/compat"];
    let configured = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let places: Vec<PathBuf> = std::env::split_paths(&configured)
        .filter(|p| !p.as_os_str().is_empty())
        .chain(PLACES.iter().map(PathBuf::from))
        .collect();
    match places.iter().map(|p| p.join(LIBRARY)).find(|p| p.exists()) {
        Some(found) => format!("the driver is installed as {}", found.display()),
        None => {
            let list: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
            format!("and {LIBRARY} is in none of {}", list.join(", "))
        }
    }
}

/// A matrix as the backend holds it.
pub struct Matrix {
    id: MatrixId,
    name: String,
    ring: Ring,
    tiling: Tiling,
    form: Form,
}

enum Form {
    /// NTT form; the int8 matrix is gone.
    Pinned(PinnedTiles),
    /// Tiles are encoded when they are used.
    Fallback(Arc<Int8Matrix>),
}

/// Memory that a matrix of this tiling will occupy, in bytes.
pub fn bytes_for(ring: &Ring, tiling: &Tiling, residency: Residency) -> u64 {
    match residency {
        Residency::Pinned => PinnedTiles::bytes_for(ring, tiling) as u64,
        Residency::Fallback | Residency::Unspecified => tiling.rows() as u64 * tiling.cols() as u64,
    }
}

impl Matrix {
    /// Brings an int8 matrix into the form that `residency` asks for.
    ///
    /// # Errors
    /// [`Error::Peer`] if matrix and tiling disagree.
    pub fn new(
        ring: &Ring,
        (id, name): (MatrixId, String),
        tiling: Tiling,
        int8: Int8Matrix,
        residency: Residency,
    ) -> Result<Self, Error> {
        let form = match residency {
            Residency::Pinned => Form::Pinned(PinnedTiles::encode(ring, tiling, &int8)?),
            Residency::Fallback | Residency::Unspecified => Form::Fallback(Arc::new(int8)),
        };
        Ok(Self { id, name, ring: ring.clone(), tiling, form })
    }

    /// Digest of shape and content.
    pub fn id(&self) -> MatrixId {
        self.id
    }

    /// The name its uploader gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The ring of its tiles.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// How it is cut.
    pub fn tiling(&self) -> &Tiling {
        &self.tiling
    }

    /// How it is held.
    pub fn residency(&self) -> Residency {
        match self.form {
            Form::Pinned(_) => Residency::Pinned,
            Form::Fallback(_) => Residency::Fallback,
        }
    }

    /// Memory it occupies.
    pub fn bytes(&self) -> u64 {
        match &self.form {
            Form::Pinned(tiles) => tiles.bytes() as u64,
            Form::Fallback(int8) => int8.data().len() as u64,
        }
    }

    /// The weights themselves, unless they are held in NTT form only.
    pub fn int8(&self) -> Option<&Arc<Int8Matrix>> {
        match &self.form {
            Form::Pinned(_) => None,
            Form::Fallback(int8) => Some(int8),
        }
    }

    /// The useful coefficients of output tiles `tiles` for every vector of `inputs`: `out` is
    /// [vectors][rows of those tiles], values in [0, q).
    ///
    /// # Errors
    /// A [`kernels::Error::Shape`] if a size does not fit.
    pub fn answers(&self, inputs: &Inputs, tiles: Range<usize>, out: &mut [u64]) -> Result<(), kernels::Error> {
        let ring = &self.ring;
        match &self.form {
            Form::Pinned(pinned) => pinned.answers(ring, inputs, tiles, out),
            Form::Fallback(int8) => kernels::answers_on_the_fly(ring, &self.tiling, int8, inputs, tiles, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_by_name_is_refused_and_auto_falls_back() {
        let err = Backend::choose(BackendKind::Cuda).expect_err("no CUDA in this build");
        assert!(
            err.to_string().contains("this build has no CUDA backend (") && err.to_string().contains("libcuda.so.1")
        );
        assert_eq!(Backend::choose(BackendKind::Auto), Ok(Backend::Cpu));
    }
}
