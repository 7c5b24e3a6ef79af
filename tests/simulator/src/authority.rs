//! Who signs in the simulated world.

use crate::SimulatorError;
use crate::certificate::{Holder, Profile, Use};
use crate::key::Key;
use dcap_qvl::verify::QuoteVerifier;

/// The maker of simulated CPUs: a root, the authority below it that certifies platforms, and the signer of collateral.
///
/// Its private keys protect nothing, which is why they can be cloned and written to files.
#[derive(Clone)]
pub struct Authority {
    seed: [u8; 32],
    pub(crate) root: Holder,
    pub(crate) platform_ca: Holder,
    pub(crate) tcb_signer: Holder,
}

impl Authority {
    /// An authority of its own, with random keys: what it signs is worth nothing to any other.
    ///
    /// # Errors
    /// [`SimulatorError`] if there are no random numbers or a certificate cannot be encoded.
    pub fn new() -> Result<Self, SimulatorError> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(SimulatorError::Random)?;
        Self::from_seed(seed)
    }

    /// The authority that every process agrees on without exchanging files: same keys, same certificates, byte by byte.
    ///
    /// # Errors
    /// [`SimulatorError`] if a certificate cannot be encoded.
    pub fn fixed() -> Result<Self, SimulatorError> {
        Self::from_seed(*FIXED)
    }

    /// The root certificate, DER: what a verifier of simulated evidence trusts.
    #[must_use]
    pub fn root_der(&self) -> &[u8] {
        &self.root.der
    }

    /// A verifier that trusts this authority and nobody else, Intel included. Debugged and service TDs are refused.
    #[must_use]
    pub fn verifier(&self) -> QuoteVerifier {
        QuoteVerifier::new(self.root.der.clone())
    }

    /// Name and content of each file that other programs may want: certificates (DER) and private keys (PKCS #8).
    ///
    /// # Errors
    /// [`SimulatorError::Key`] if a key cannot be encoded.
    pub fn files(&self) -> Result<Vec<(String, Vec<u8>)>, SimulatorError> {
        let mut files = Vec::new();
        for (name, holder) in
            [("root", &self.root), ("platform-ca", &self.platform_ca), ("tcb-signer", &self.tcb_signer)]
        {
            files.push((format!("{name}.der"), holder.der.clone()));
            files.push((format!("{name}.pk8"), holder.key.pkcs8()?));
        }
        Ok(files)
    }

    /// The key pair called `name` of the platform with this provisioning id.
    pub(crate) fn platform_key(&self, ppid: &[u8; 16], name: &str) -> Result<Key, SimulatorError> {
        let ppid: String = ppid.iter().map(|byte| format!("{byte:02x}")).collect();
        Key::derive(&self.seed, &format!("platform-{ppid}-{name}"))
    }

    fn from_seed(seed: [u8; 32]) -> Result<Self, SimulatorError> {
        let profile = |name, purpose| Profile { name, purpose, revocations: "root.crl", extension: None };
        let root = Holder::root(Key::derive(&seed, "root")?, profile("Bifrost Simulated Root CA", Use::Authority(1)))?;
        let platform_ca = root.issue(
            Key::derive(&seed, "platform-ca")?,
            profile("Bifrost Simulated PCK Platform CA", Use::Authority(0)),
        )?;
        let tcb_signer =
            root.issue(Key::derive(&seed, "tcb-signer")?, profile("Bifrost Simulated TCB Signing", Use::Signature))?;
        Ok(Self { seed, root, platform_ca, tcb_signer })
    }
}

/// Known to everybody who can read.
const FIXED: &[u8; 32] = b"bifrost-simulated-tdx-fixed-seed";
