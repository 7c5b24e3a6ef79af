//! Certificates as AMD issues them: AMD 57230 (VCEK certificate and KDS interface), sections 1 and 3.

use super::product::Product;
use super::tcb::Tcb;
use aws_lc_rs::signature::{RSA_PSS_2048_8192_SHA384, UnparsedPublicKey};
use x509_cert::der::asn1::{AnyRef, BitString, ObjectIdentifier};
use x509_cert::der::{Decode as _, Encode as _, Reader as _, SliceReader};
use x509_cert::spki::AlgorithmIdentifierOwned;
use x509_cert::time::Time;

/// A certificate whose bytes are kept, since those are what is signed.
#[derive(Clone, Debug)]
pub struct Certificate {
    signed: Signed,
    inner: x509_cert::Certificate,
}

/// Why bytes are no certificate or revocation list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum X509Error {
    /// Larger than anything AMD issues.
    #[error("{found} bytes, expected {limit} at most")]
    Size {
        /// Bytes there.
        found: usize,
        /// Bytes read at most.
        limit: usize,
    },
    /// Not DER of the structure.
    #[error("malformed: {0}")]
    Malformed(String),
    /// The two places that name the algorithm do not agree, or name another one.
    #[error("signature algorithm is {0}, expected RSASSA-PSS with SHA-384 in both places")]
    Algorithm(String),
    /// An extension that is not there, or not of its type.
    #[error("extension {0} is missing or malformed")]
    Extension(&'static str),
}

/// Something with a signature behind it: certificate or revocation list.
#[derive(Clone, Debug)]
pub(super) struct Signed {
    /// The bytes that are signed.
    body: Vec<u8>,
    signature: Vec<u8>,
}

/// What the extensions of a VCEK or VLEK certificate say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endorsement {
    /// Without the stepping that older certificates append.
    pub product: Product,
    /// The TCB that the key was derived for.
    pub tcb: Tcb,
    /// The chip, in a VCEK's: 64 bytes, from Turin on 8.
    pub chip: Option<Vec<u8>>,
    /// The provider, in a VLEK's.
    pub provider: Option<String>,
}

impl Certificate {
    /// Largest certificate that is read, in bytes.
    pub const LIMIT: usize = 8 << 10;

    /// # Errors
    /// [`X509Error`], for anything but one DER certificate signed with RSASSA-PSS.
    pub fn parse(der: &[u8]) -> Result<Self, X509Error> {
        let signed = Signed::parse(der, Self::LIMIT)?;
        let inner = x509_cert::Certificate::from_der(der).map_err(malformed)?;
        if inner.tbs_certificate().signature() != inner.signature_algorithm() {
            return Err(X509Error::Algorithm(inner.tbs_certificate().signature().oid.to_string()));
        }
        Ok(Self { signed, inner })
    }

    /// Whether the key in `issuer` signed this and the names agree.
    #[must_use]
    pub fn issued_by(&self, issuer: &Self) -> bool {
        self.inner.tbs_certificate().issuer() == issuer.inner.tbs_certificate().subject() && issuer.signed(&self.signed)
    }

    /// Whether the RSA key in this certificate signed something.
    pub(super) fn signed(&self, signed: &Signed) -> bool {
        UnparsedPublicKey::new(&RSA_PSS_2048_8192_SHA384, self.key()).verify(&signed.body, &signed.signature).is_ok()
    }

    /// The public key: a PKCS#1 structure for RSA, a point for ECDSA.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.inner.tbs_certificate().subject_public_key_info().subject_public_key.raw_bytes()
    }

    /// Subject's common name, empty if it has none.
    #[must_use]
    pub fn common_name(&self) -> String {
        let name = self.inner.tbs_certificate().subject().common_name();
        name.ok().flatten().map(|name| name.value().into_owned()).unwrap_or_default()
    }

    /// Issuer's common name, empty if it has none.
    #[must_use]
    pub fn issuer_name(&self) -> String {
        let name = self.inner.tbs_certificate().issuer().common_name();
        name.ok().flatten().map(|name| name.value().into_owned()).unwrap_or_default()
    }

    /// First and last second of validity, in seconds since 1970.
    #[must_use]
    pub fn validity(&self) -> (u64, u64) {
        let validity = self.inner.tbs_certificate().validity();
        (seconds(validity.not_before), seconds(validity.not_after))
    }

    /// The parsed form.
    pub(super) fn inner(&self) -> &x509_cert::Certificate {
        &self.inner
    }

    /// The extensions of a VCEK's or VLEK's certificate, AMD 57230 table 8.
    ///
    /// # Errors
    /// [`X509Error::Extension`] for one that is not there, twice there, or not of its type.
    pub fn endorsement(&self) -> Result<Endorsement, X509Error> {
        let product = match text(self.required("productName", "1.3.6.1.4.1.3704.1.2")?) {
            Some(name) => product_of(&name),
            None => return Err(X509Error::Extension("productName")),
        };
        let fmc = match self.extension("fmcSPL", "1.3.6.1.4.1.3704.1.3.9")? {
            Some(value) => Some(u8::from_der(value).map_err(|_| X509Error::Extension("fmcSPL"))?),
            None => None,
        };
        let level = |name: &'static str, oid: &str| {
            u8::from_der(self.required(name, oid)?).map_err(|_| X509Error::Extension(name))
        };
        let tcb = Tcb {
            fmc,
            bootloader: level("blSPL", "1.3.6.1.4.1.3704.1.3.1")?,
            tee: level("teeSPL", "1.3.6.1.4.1.3704.1.3.2")?,
            snp: level("snpSPL", "1.3.6.1.4.1.3704.1.3.3")?,
            microcode: level("ucodeSPL", "1.3.6.1.4.1.3704.1.3.8")?,
        };
        // The chip stands there bare, without a type of its own.
        let chip = self.extension("hwID", "1.3.6.1.4.1.3704.1.4")?.map(<[u8]>::to_vec);
        let provider = match self.extension("cspID", "1.3.6.1.4.1.3704.1.5")? {
            Some(value) => Some(text(value).ok_or(X509Error::Extension("cspID"))?),
            None => None,
        };
        Ok(Endorsement { product, tcb, chip, provider })
    }

    fn required(&self, name: &'static str, oid: &str) -> Result<&[u8], X509Error> {
        self.extension(name, oid)?.ok_or(X509Error::Extension(name))
    }

    /// Value of the extension; an error if it is there twice.
    fn extension(&self, name: &'static str, oid: &str) -> Result<Option<&[u8]>, X509Error> {
        let oid = ObjectIdentifier::new(oid).map_err(|_| X509Error::Extension(name))?;
        let mut found = self.inner.tbs_certificate().extensions().into_iter().flatten().filter(|e| e.extn_id == oid);
        let value = found.next().map(|extension| extension.extn_value.as_bytes());
        match found.next() {
            Some(_) => Err(X509Error::Extension(name)),
            None => Ok(value),
        }
    }
}

impl Signed {
    /// Takes a certificate or list apart, RFC 5280 sections 4.1 and 5.1, without looking into the part that is signed.
    pub(super) fn parse(der: &[u8], limit: usize) -> Result<Self, X509Error> {
        if der.len() > limit {
            return Err(X509Error::Size { found: der.len(), limit });
        }
        let mut reader = SliceReader::new(der).map_err(malformed)?;
        let outer: AnyRef<'_> = reader.decode().map_err(malformed)?;
        reader.finish().map_err(malformed)?;
        let mut reader = SliceReader::new(outer.value()).map_err(malformed)?;
        let body: AnyRef<'_> = reader.decode().map_err(malformed)?;
        let algorithm: AlgorithmIdentifierOwned = reader.decode().map_err(malformed)?;
        let signature: BitString = reader.decode().map_err(malformed)?;
        reader.finish().map_err(malformed)?;
        if algorithm.oid != RSASSA_PSS {
            return Err(X509Error::Algorithm(algorithm.oid.to_string()));
        }
        // Lengths have one encoding in DER, so this is what was there.
        let body = body.to_der().map_err(malformed)?;
        Ok(Self { body, signature: signature.raw_bytes().to_vec() })
    }
}

/// RFC 4055 section 1.3. Its parameters need no look: the verification takes SHA-384 with 48 bytes of salt and no other.
const RSASSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");

/// Of a time in a certificate or list.
pub(super) fn seconds(time: Time) -> u64 {
    time.to_unix_duration().as_secs()
}

pub(super) fn malformed(error: impl std::fmt::Display) -> X509Error {
    X509Error::Malformed(error.to_string())
}

/// An IA5String or UTF8String.
fn text(value: &[u8]) -> Option<String> {
    let any = AnyRef::from_der(value).ok()?;
    std::str::from_utf8(any.value()).ok().map(str::to_owned)
}

/// `Milan-B0` and `Milan` are the same product.
fn product_of(name: &str) -> Product {
    let family = name.split_once('-').map_or(name, |(family, _)| family);
    Product::ALL.into_iter().find(|product| product.name() == family).unwrap_or(Product::Unknown)
}
