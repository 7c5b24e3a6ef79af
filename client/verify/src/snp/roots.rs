//! Whose signature counts for SEV-SNP: AMD's root keys, one for each product.

use super::product::Product;
use super::report::Signer;
use super::x509::{Certificate, X509Error};

/// Roots, and the signing keys below them as far as those are pinned too.
#[derive(Clone, Debug)]
pub struct Roots(Vec<Root>);

/// One product's.
#[derive(Clone, Debug)]
pub struct Root {
    product: Product,
    ark: Certificate,
    /// SEV signing key, above VCEKs, and SEV-VLEK signing key, above VLEKs; those of AMD are pinned.
    pinned: Option<(Certificate, Certificate)>,
}

impl Roots {
    /// AMD's own. Nothing that comes with evidence can take the place of one of these certificates.
    ///
    /// # Errors
    /// [`X509Error`], never for the certificates compiled in, which a test reads.
    pub fn amd() -> Result<Self, X509Error> {
        let mut roots = Vec::new();
        for (product, ark, ask, asvk) in AMD {
            let pinned = Some((Certificate::parse(ask)?, Certificate::parse(asvk)?));
            roots.push(Root { product, ark: Certificate::parse(ark)?, pinned });
        }
        Ok(Self(roots))
    }

    /// Others, DER, for a domain that is not AMD's: told apart by common names of the form `ARK-Milan`. The signing keys
    /// below them come with the evidence.
    ///
    /// # Errors
    /// [`X509Error`]
    pub fn of(certificates: &[Vec<u8>]) -> Result<Self, X509Error> {
        let mut roots = Vec::new();
        for der in certificates {
            let ark = Certificate::parse(der)?;
            let name = ark.common_name();
            let product = Product::ALL
                .into_iter()
                .find(|product| name.strip_prefix("ARK-") == Some(product.name()))
                .unwrap_or(Product::Unknown);
            roots.push(Root { product, ark, pinned: None });
        }
        Ok(Self(roots))
    }

    /// The root of the product.
    #[must_use]
    pub fn root(&self, product: Product) -> Option<&Root> {
        self.0.iter().find(|root| root.product == product)
    }
}

impl Root {
    /// The root itself.
    #[must_use]
    pub fn ark(&self) -> &Certificate {
        &self.ark
    }

    /// The signing key above this signer's: the pinned one, or else the one given.
    ///
    /// # Errors
    /// Why there is none, for a report.
    pub fn intermediate(&self, signer: Signer, given: Option<&[u8]>) -> Result<Certificate, String> {
        match (&self.pinned, signer, given) {
            (Some((ask, _)), Signer::Vcek, _) => Ok(ask.clone()),
            (Some((_, asvk)), Signer::Vlek, _) => Ok(asvk.clone()),
            (None, _, Some(der)) => Certificate::parse(der).map_err(|e| format!("signing key's certificate: {e}")),
            (None, _, None) => Err("no certificate of the signing key came with the evidence".to_owned()),
        }
    }
}

/// A product with the DER of its root, SEV signing key and SEV-VLEK signing key.
type Pinned = (Product, &'static [u8], &'static [u8], &'static [u8]);

/// From AMD's key distribution service: `/vcek/v1/{product}/cert_chain` and `/vlek/v1/{product}/cert_chain`.
const AMD: [Pinned; 3] = [
    (
        Product::Milan,
        include_bytes!("roots/ark-milan.der"),
        include_bytes!("roots/ask-milan.der"),
        include_bytes!("roots/asvk-milan.der"),
    ),
    (
        Product::Genoa,
        include_bytes!("roots/ark-genoa.der"),
        include_bytes!("roots/ask-genoa.der"),
        include_bytes!("roots/asvk-genoa.der"),
    ),
    (
        Product::Turin,
        include_bytes!("roots/ark-turin.der"),
        include_bytes!("roots/ask-turin.der"),
        include_bytes!("roots/asvk-turin.der"),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pinned_signing_key_is_signed_by_its_root_and_by_no_other() {
        let roots = Roots::amd().unwrap();
        for Root { product, ark, pinned } in &roots.0 {
            assert_eq!(ark.common_name(), format!("ARK-{product}"));
            assert!(ark.issued_by(ark), "{product}");
            let (ask, asvk) = pinned.as_ref().unwrap();
            assert_eq!(ask.common_name(), format!("SEV-{product}"));
            assert_eq!(asvk.common_name(), format!("SEV-VLEK-{product}"));
            for other in &roots.0 {
                assert_eq!(ask.issued_by(&other.ark), other.product == *product);
                assert_eq!(asvk.issued_by(&other.ark), other.product == *product);
            }
        }
    }
}
