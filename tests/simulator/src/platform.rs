//! One machine of the simulated kind.

use crate::certificate::Holder;
use crate::key::Key;
use crate::marker::marker;
use crate::{Authority, SimulatorError, pck};

/// What a platform says of itself in its PCK certificate and in the TDX module's part of every report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformSpec {
    /// Family, model, stepping, platform and custom SKU; spells `SIMTDX` by default.
    pub fmspc: [u8; 6],
    /// Provisioning id; spells `BIFROST-SIM-PPID` by default. Platforms of one authority differ in it: keys follow from it.
    pub ppid: [u8; 16],
    /// Platform instance id.
    pub instance: [u8; 16],
    /// Security version numbers of the CPU's components.
    pub cpu_svn: [u8; 16],
    /// Security version number of the provisioning enclave.
    pub pce_svn: u16,
    /// Id of the provisioning enclave.
    pub pce_id: [u8; 2],
    /// Security version number of the quoting enclave.
    pub qe_svn: u16,
    /// Packages can be added; true of every real quote seen.
    pub dynamic_platform: bool,
    /// Root keys are kept by the registration service.
    pub cached_keys: bool,
    /// Hyper-threading is on; true of every real quote seen.
    pub smt: bool,
    /// The TDX module.
    pub module: Module,
}

/// The TDX module as it appears in a TD report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// `TEE_TCB_SVN`: security version of the module, its major version, then those of what lies below.
    pub tcb_svn: [u8; 16],
    /// `MRSEAM`.
    pub measurement: [u8; 48],
    /// `MRSIGNERSEAM`.
    pub signer: [u8; 48],
    /// `SEAMATTRIBUTES`.
    pub attributes: [u8; 8],
}

impl Default for PlatformSpec {
    fn default() -> Self {
        Self {
            fmspc: *b"SIMTDX",
            ppid: *b"BIFROST-SIM-PPID",
            instance: *b"BIFROST-SIM-INST",
            cpu_svn: [2, 2, 2, 2, 3, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0],
            pce_svn: 13,
            pce_id: [0, 0],
            qe_svn: 4,
            dynamic_platform: true,
            cached_keys: false,
            smt: true,
            module: Module::default(),
        }
    }
}

impl Default for Module {
    fn default() -> Self {
        Self {
            tcb_svn: [5, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            measurement: marker("MRSEAM"),
            signer: marker("MRSIGNERSEAM"),
            attributes: [0; 8],
        }
    }
}

/// A platform that an [`Authority`] has certified.
#[derive(Clone)]
pub struct Platform {
    pub(crate) authority: Authority,
    pub(crate) spec: PlatformSpec,
    pub(crate) pck: Holder,
    pub(crate) attestation: Key,
}

impl Platform {
    /// The platform of the default [`PlatformSpec`].
    ///
    /// # Errors
    /// [`SimulatorError`] if its certificate cannot be encoded.
    pub fn new(authority: Authority) -> Result<Self, SimulatorError> {
        Self::certified(authority, PlatformSpec::default())
    }

    /// The platform of this description.
    ///
    /// # Errors
    /// [`SimulatorError`] if its certificate cannot be encoded.
    pub fn certified(authority: Authority, spec: PlatformSpec) -> Result<Self, SimulatorError> {
        let pck = pck::certify(&authority, &spec)?;
        let attestation = authority.platform_key(&spec.ppid, "attestation")?;
        Ok(Self { authority, spec, pck, attestation })
    }

    /// Who certified it.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// What it says of itself.
    #[must_use]
    pub fn spec(&self) -> &PlatformSpec {
        &self.spec
    }

    /// The chain that its quotes carry, PEM: platform, platform authority, root.
    #[must_use]
    pub fn pck_chain(&self) -> String {
        [&self.pck, &self.authority.platform_ca, &self.authority.root].map(|holder| holder.pem.as_str()).concat()
    }
}
