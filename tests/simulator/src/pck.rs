//! The certificate of one platform's quoting key.

use crate::certificate::{Holder, Profile, Use};
use crate::der::{boolean, element, enumerated, integer, octets, sequence};
use crate::{Authority, PlatformSpec, SimulatorError};
use rcgen::CustomExtension;

/// Certifies the platform by the platform authority.
///
/// # Errors
/// [`SimulatorError`] if the certificate cannot be encoded.
pub(crate) fn certify(authority: &Authority, spec: &PlatformSpec) -> Result<Holder, SimulatorError> {
    let profile = Profile {
        name: "Bifrost Simulated PCK Certificate",
        purpose: Use::Signature,
        revocations: "platform.crl",
        extension: Some(CustomExtension::from_oid_content(SGX_EXTENSION, extension(spec))),
    };
    authority.platform_ca.issue(authority.platform_key(&spec.ppid, "pck")?, profile)
}

/// Value of the SGX extension, "Intel SGX PCK Certificate and CRL Profile Specification", SGX extensions.
fn extension(spec: &PlatformSpec) -> Vec<u8> {
    let mut tcb: Vec<_> =
        (1..=16).zip(spec.cpu_svn).map(|(component, svn)| field(&[2, component], integer(svn.into()))).collect();
    tcb.push(field(&[2, 17], integer(spec.pce_svn)));
    tcb.push(field(&[2, 18], octets(&spec.cpu_svn)));
    sequence(&[
        field(&[1], octets(&spec.ppid)),
        field(&[2], sequence(&tcb)),
        field(&[3], octets(&spec.pce_id)),
        field(&[4], octets(&spec.fmspc)),
        field(&[5], enumerated(SCALABLE)),
        field(&[6], octets(&spec.instance)),
        field(
            &[7],
            sequence(&[
                field(&[7, 1], boolean(spec.dynamic_platform)),
                field(&[7, 2], boolean(spec.cached_keys)),
                field(&[7, 3], boolean(spec.smt)),
            ]),
        ),
    ])
}

/// An object identifier below that of the extension, and its value. The arcs are below 128: a byte each.
fn field(arcs: &[u8], value: Vec<u8>) -> Vec<u8> {
    let identifier = [SGX_EXTENSION_DER, arcs].concat();
    sequence(&[element(0x06, &identifier), value])
}

/// The extension, same source.
const SGX_EXTENSION: &[u64] = &[1, 2, 840, 113_741, 1, 13, 1];
/// The same as the content of an OBJECT IDENTIFIER.
const SGX_EXTENSION_DER: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf8, 0x4d, 0x01, 0x0d, 0x01];
/// SGX type of multi-package platforms, same source.
const SCALABLE: u8 = 1;
