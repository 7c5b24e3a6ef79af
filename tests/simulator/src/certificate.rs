//! Certificates of the simulated authority, after the profile of Intel's PCK hierarchy.
//!
//! Source: "Intel SGX PCK Certificate and Certificate Revocation List Profile Specification".

use crate::key::Key;
use crate::{SimulatorError, instant};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, CrlDistributionPoint,
    CustomExtension, DistinguishedName, DnType, IsCa, Issuer, KeyUsagePurpose, PublicKeyData, RevocationReason,
    RevokedCertParams, SerialNumber,
};
use sha2::{Digest, Sha256};

/// A key pair and the certificate over it.
#[derive(Clone)]
pub(crate) struct Holder {
    pub(crate) key: Key,
    params: CertificateParams,
    pub(crate) der: Vec<u8>,
    pub(crate) pem: String,
}

/// What a certificate is for.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    /// Signs certificates; so many more authorities may follow below it.
    Authority(u8),
    /// Signs anything else.
    Signature,
}

/// What changes from one certificate to the next.
pub(crate) struct Profile {
    /// Common name of the subject.
    pub(crate) name: &'static str,
    pub(crate) purpose: Use,
    /// File name of the revocation list that the certificate would be on.
    pub(crate) revocations: &'static str,
    pub(crate) extension: Option<CustomExtension>,
}

impl Holder {
    /// The certificate that is its own issuer.
    ///
    /// # Errors
    /// [`SimulatorError::Certificate`] if it cannot be encoded.
    pub(crate) fn root(key: Key, profile: Profile) -> Result<Self, SimulatorError> {
        let params = profile.params(&key);
        let certificate = params.self_signed(&key)?;
        Ok(Self::new(key, params, &certificate))
    }

    /// A certificate issued by this one.
    ///
    /// # Errors
    /// [`SimulatorError::Certificate`] if it cannot be encoded.
    pub(crate) fn issue(&self, key: Key, profile: Profile) -> Result<Self, SimulatorError> {
        let params = profile.params(&key);
        let certificate = params.signed_by(&key, &self.issuer())?;
        Ok(Self::new(key, params, &certificate))
    }

    /// The list of what this authority has revoked, DER. `number` is the CRL number, big-endian.
    ///
    /// # Errors
    /// [`SimulatorError::Certificate`] if the list ends before it begins.
    pub(crate) fn revocations(
        &self,
        revoked: &[&Holder],
        number: &[u8],
        (issued, until): (u64, u64),
    ) -> Result<Vec<u8>, SimulatorError> {
        let this_update = instant::date(issued)?;
        let revoked_certs = revoked
            .iter()
            .map(|holder| RevokedCertParams {
                serial_number: serial(&holder.key),
                revocation_time: this_update,
                reason_code: Some(RevocationReason::KeyCompromise),
                invalidity_date: None,
            })
            .collect();
        let params = CertificateRevocationListParams {
            this_update,
            next_update: instant::date(until)?,
            crl_number: SerialNumber::from_slice(number),
            issuing_distribution_point: None,
            revoked_certs,
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        Ok(params.signed_by(&self.issuer())?.der().to_vec())
    }

    fn new(key: Key, params: CertificateParams, certificate: &Certificate) -> Self {
        Self { key, params, der: certificate.der().to_vec(), pem: certificate.pem() }
    }

    fn issuer(&self) -> Issuer<'_, &Key> {
        Issuer::from_params(&self.params, &self.key)
    }
}

impl Profile {
    fn params(self, key: &Key) -> CertificateParams {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, self.name);
        subject.push(DnType::OrganizationName, "Bifrost simulator: proves nothing");
        let mut params = CertificateParams::default();
        params.distinguished_name = subject;
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2120, 1, 1);
        params.serial_number = Some(serial(key));
        params.use_authority_key_identifier_extension = true;
        params.crl_distribution_points =
            vec![CrlDistributionPoint { uris: vec![format!("https://simulated.invalid/{}", self.revocations)] }];
        (params.is_ca, params.key_usages) = match self.purpose {
            Use::Authority(below) => (
                IsCa::Ca(BasicConstraints::Constrained(below)),
                vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign],
            ),
            Use::Signature => {
                (IsCa::ExplicitNoCa, vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::ContentCommitment])
            }
        };
        params.custom_extensions.extend(self.extension);
        params
    }
}

/// 16 bytes from the public key, the first of them between 64 and 127: a positive number of constant length.
fn serial(key: &Key) -> SerialNumber {
    let digest = Sha256::digest(key.der_bytes());
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    bytes[0] = bytes[0] & 0x3f | 0x40;
    SerialNumber::from_slice(&bytes)
}
