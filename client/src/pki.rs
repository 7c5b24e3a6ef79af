//! `bifrost pki`: an offline authority for the link between runtime and evaluator.
//!
//! Keys are ECDSA P-256. The authority signs leaves and nothing below them, each for one role: a runtime's certificate
//! cannot be an evaluator's. Clients never trust this authority; what they trust is evidence.

mod authority;
mod files;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use identity::{Leaf, Pin, leaf::written};
use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use zeroize::Zeroizing;

use crate::Error;
use crate::cli::{InitArgs, IssueArgs, LinkRole, PkiCommand, RequestArgs, ShowArgs};
use authority::Authority;

/// Runs `bifrost pki`.
///
/// # Errors
/// [`Error::File`] with the file at fault, [`Error::Usage`] for names that are none.
pub fn run(command: &PkiCommand) -> Result<ExitCode, Error> {
    let now = SystemTime::now();
    let report = match command {
        PkiCommand::Init(args) => init(args, now),
        PkiCommand::Issue(args) => issue(args, now),
        PkiCommand::Request(args) => request(args),
        PkiCommand::Show(args) => show(args, now),
    }?;
    print!("{report}");
    Ok(ExitCode::SUCCESS)
}

/// Makes an authority that counts from `now` on; the text says what was made.
///
/// # Errors
/// [`Error::File`] if there is one already, or it cannot be written.
pub fn init(args: &InitArgs, now: SystemTime) -> Result<String, Error> {
    let made = Authority::make(&args.dir, days(args.days), now)?;
    Ok(format!(
        "authority   {}\nvalid until {}\npin         {}\nKeep {} on a machine without a network; runtimes and evaluators get {} only.\n",
        made.cert.display(),
        written(made.leaf.not_after),
        made.leaf.pin,
        made.key.display(),
        made.cert.display(),
    ))
}

/// Signs a certificate; the text says what was made.
///
/// # Errors
/// [`Error::File`] for an authority that cannot be used, a request that is none, or files that exist.
pub fn issue(args: &IssueArgs, now: SystemTime) -> Result<String, Error> {
    let authority = Authority::read(&args.dir, now)?;
    let mut params = params(args.role, &args.name)?;
    let wanted = now + days(args.days);
    let until = wanted.min(authority.leaf.not_after);
    (params.not_before, params.not_after) = (authority::offset(now - SLACK)?, authority::offset(until)?);
    params.use_authority_key_identifier_extension = true;
    let out = args.out.as_deref().unwrap_or(&args.dir);
    let (cert, key) = (out.join(format!("{}.pem", args.role.name())), out.join(format!("{}.key", args.role.name())));
    let mut report = String::new();
    let signed = if let Some(csr) = &args.csr {
        files::absent(&[&cert], args.replace)?;
        let text = files::text(csr)?;
        let request = CertificateSigningRequestParams::from_pem(&text)
            .map_err(|e| Error::file(csr, format!("not a signed certificate request: {e}")))?;
        authority.sign(&params, &request.public_key)?
    } else {
        files::absent(&[&cert, &key], args.replace)?;
        let pair = KeyPair::generate().map_err(|e| Error::Platform(format!("new key: {e}")))?;
        let signed = authority.sign(&params, &pair)?;
        // The key first: whoever watches both files takes them once they fit together.
        files::write(&key, Zeroizing::new(pair.serialize_pem()).as_bytes())?;
        report = format!("key         {}\n", key.display());
        signed
    };
    files::write(&cert, signed.pem().as_bytes())?;
    let leaf = Leaf::parse(signed.der()).map_err(|e| Error::file(&cert, e))?;
    report += &format!("certificate {}\n{}", cert.display(), described(&leaf, now));
    if until < wanted {
        report += "It ends with its authority, earlier than asked for; make a new authority.\n";
    }
    Ok(report)
}

/// Makes a key and a request for its certificate; the text says what was made.
///
/// # Errors
/// [`Error::File`] for files that exist or cannot be written.
pub fn request(args: &RequestArgs) -> Result<String, Error> {
    let (csr, key) =
        (args.out.join(format!("{}.csr", args.role.name())), args.out.join(format!("{}.key", args.role.name())));
    files::absent(&[&csr, &key], args.replace)?;
    let pair = KeyPair::generate().map_err(|e| Error::Platform(format!("new key: {e}")))?;
    let made = params(args.role, &args.name)?.serialize_request(&pair).and_then(|made| made.pem());
    let made = made.map_err(|e| Error::Platform(format!("request: {e}")))?;
    files::write(&key, Zeroizing::new(pair.serialize_pem()).as_bytes())?;
    files::write(&csr, made.as_bytes())?;
    let pin = Pin::of_key(&pair.subject_public_key_info());
    Ok(format!(
        "key         {}\nrequest     {}\npin         {pin}\nHave it signed: bifrost pki issue AUTHORITY --role {} --csr FILE --name HOST; compare the pin that it prints.\n",
        key.display(),
        csr.display(),
        args.role.name(),
    ))
}

/// What the certificates in a file say.
///
/// # Errors
/// [`Error::File`] for a file without any.
pub fn show(args: &ShowArgs, now: SystemTime) -> Result<String, Error> {
    let text = files::text(&args.file)?;
    let found = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|e| Error::file(&args.file, format!("malformed PEM: {e}")))?;
    if found.is_empty() {
        return Err(Error::file(&args.file, "no certificate in it, expected PEM \"CERTIFICATE\""));
    }
    let one = |der| Ok(described(&Leaf::parse(der).map_err(|e| Error::file(&args.file, e))?, now));
    Ok(found.iter().map(one).collect::<Result<Vec<_>, Error>>()?.join("\n"))
}

/// What a certificate for `names` in `role` has in common with every other.
fn params(role: LinkRole, names: &[String]) -> Result<CertificateParams, Error> {
    for name in names {
        let good = rustls::pki_types::ServerName::try_from(name.as_str()).is_ok();
        if !good {
            return Err(Error::Usage(format!("--name is {name:?}, expected a DNS name or an address without a port")));
        }
    }
    let mut params = CertificateParams::new(names).map_err(|e| Error::Usage(format!("--name: {e}")))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("bifrost {}", role.name()));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match role {
        LinkRole::Runtime => ExtendedKeyUsagePurpose::ClientAuth,
        LinkRole::Evaluator => ExtendedKeyUsagePurpose::ServerAuth,
    }];
    Ok(params)
}

fn described(leaf: &Leaf, now: SystemTime) -> String {
    let list = |items: Vec<String>| if items.is_empty() { "-".to_owned() } else { items.join(", ") };
    let usages = match &leaf.usages {
        Some(usages) => list(usages.iter().map(ToString::to_string).collect()),
        None if leaf.authority => "signing certificates".into(),
        None => "any".into(),
    };
    let state = match leaf.check_time(now) {
        Ok(()) => "",
        Err(_) if now < leaf.not_before => "  NOT YET VALID",
        Err(_) => "  EXPIRED",
    };
    format!(
        "subject     {}\nnames       {}\nusage       {usages}\nvalid from  {}\nvalid until {}{state}\npin         {}\n",
        leaf.subject,
        list(leaf.names.clone()),
        written(leaf.not_before),
        written(leaf.not_after),
        leaf.pin,
    )
}

fn days(n: u32) -> Duration {
    Duration::from_secs(u64::from(n) * 86_400)
}

/// Clocks of a deployment differ by less.
const SLACK: Duration = Duration::from_secs(300);

/// The two files of an authority in `dir`.
fn paths(dir: &Path) -> (PathBuf, PathBuf) {
    (dir.join("ca.pem"), dir.join("ca.key"))
}
