//! Pins: the keys of the other end, named one by one.
//!
//! A pin is SHA-256 over the DER of a SubjectPublicKeyInfo (RFC 7469, section 2.4), so a certificate that is renewed for
//! the same key keeps its pin.

use crate::Error;
use aws_lc_rs::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use std::{fmt, str::FromStr};
use x509_cert::{
    Certificate,
    der::{Decode, Encode},
};

/// SHA-256 of a SubjectPublicKeyInfo; written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin([u8; 32]);

impl Pin {
    /// The pin of a certificate's key.
    ///
    /// # Errors
    /// [`Error::Certificate`] for what is no certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, Error> {
        let malformed = |e: x509_cert::der::Error| Error::Certificate(format!("malformed certificate: {e}"));
        let certificate = Certificate::from_der(certificate).map_err(malformed)?;
        let key = certificate.tbs_certificate().subject_public_key_info().to_der().map_err(malformed)?;
        Ok(Self::of_key(&key))
    }

    /// The pin of a key, given as the DER of its SubjectPublicKeyInfo.
    #[must_use]
    pub fn of_key(key: &[u8]) -> Self {
        let mut out = [0; 32];
        out.copy_from_slice(digest(&SHA256, key).as_ref());
        Self(out)
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Pin {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut out = [0; 32];
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(());
        }
        for (byte, digits) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(drop)?;
            *byte = u8::from_str_radix(digits, 16).map_err(drop)?;
        }
        Ok(Self(out))
    }
}

/// The keys that are let in, beside what the authority demands; none at all is every key that it signed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins(Vec<Pin>);

impl Pins {
    /// From text, with commas between them.
    ///
    /// # Errors
    /// [`Error::Setting`] with the first one that is none.
    pub fn parse(setting: &'static str, text: &str) -> Result<Self, Error> {
        let pin = |text: &str| {
            let expected = "SHA-256 of a public key as 64 hexadecimal digits, several with commas between them";
            text.parse().map_err(|()| Error::Setting { setting, found: text.to_owned(), expected })
        };
        let pins = text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(pin).collect::<Result<Vec<_>, _>>()?;
        // Commas alone are a slip of whoever meant to name one, and would let everybody in.
        if pins.is_empty() && !text.trim().is_empty() {
            return Err(Error::Setting { setting, found: text.to_owned(), expected: "a pin, or nothing at all" });
        }
        Ok(Self(pins))
    }

    /// Whether a key is let in.
    #[must_use]
    pub fn admit(&self, pin: Pin) -> bool {
        self.0.is_empty() || self.0.contains(&pin)
    }

    /// How many are named; 0 lets every key in.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<Pin>> for Pins {
    fn from(pins: Vec<Pin>) -> Self {
        Self(pins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_hexadecimal_and_come_back() {
        let text = "00ff".repeat(16);
        let pin: Pin = text.parse().unwrap();
        assert_eq!(pin.to_string(), text);
        assert_eq!(text.to_uppercase().parse::<Pin>(), Ok(pin));
        for bad in [&text[1..], "", &"zz".repeat(32), &format!("{text}0"), &"\u{e9}".repeat(32), &"+f".repeat(32)] {
            assert!(bad.parse::<Pin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn none_is_everybody_and_a_slip_is_not_none() {
        let [a, b] = ["a1", "b2"].map(|t| t.repeat(32).parse::<Pin>().unwrap());
        assert!(Pins::parse("x", " ").unwrap().admit(a));
        let both = Pins::parse("x", &format!("{a}, {b},")).unwrap();
        assert!(both.len() == 2 && both.admit(a) && both.admit(b));
        let one = Pins::parse("x", &a.to_string()).unwrap();
        assert!(one.admit(a) && !one.admit(b));
        for bad in [",", " , ", "a1", &format!("{a};{b}"), &format!("{a} {b}")] {
            let error = Pins::parse("evaluator.pins", bad).unwrap_err().to_string();
            assert!(error.starts_with("evaluator.pins is "), "{error}");
        }
    }

    #[test]
    fn a_certificate_has_the_pin_of_its_key() {
        let made = rcgen::generate_simple_self_signed(vec!["a".into()]).unwrap();
        use rcgen::PublicKeyData;
        let key = made.signing_key.subject_public_key_info();
        assert_eq!(Pin::of(made.cert.der()).unwrap(), Pin::of_key(&key));
        assert!(Pin::of(&CertificateDer::from(&b"junk"[..])).is_err());
    }
}
