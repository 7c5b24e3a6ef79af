//! AMD's key distribution service, by a local one that has its moods.

use super::*;
use attest_verify::hex::encode;
use attest_verify::snp::{Product, Signer, Wanted};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;

/// What is answered to one path.
#[derive(Clone)]
enum Mood {
    /// 200 with this body.
    Has(Vec<u8>),
    /// Another status, with a header.
    Status(&'static str, &'static str),
    /// Nothing, ever.
    Silent,
    /// Less than was announced.
    Breaks,
}

/// A service on loopback, with the paths that it was asked for.
struct Service {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Service {
    fn new(answers: impl Fn(&str) -> Mood + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, answers) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(answers));
        let seen = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answers) = (seen.clone(), answers.clone());
                std::thread::spawn(move || {
                    answer(&stream, |path| {
                        seen.lock().unwrap().push(path.to_owned());
                        answers(path)
                    })
                });
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// One request, one answer.
fn answer(mut stream: &TcpStream, mood: impl FnOnce(&str) -> Mood) {
    let mut head = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let line = head.next().unwrap_or_default();
    head.for_each(drop);
    let (status, header, length, body) = match mood(line.split(' ').nth(1).unwrap_or_default()) {
        Mood::Has(body) => ("200 OK", "x-nothing: 0", body.len(), body),
        Mood::Status(status, header) => (status, header, 0, Vec::new()),
        Mood::Breaks => ("200 OK", "x-nothing: 0", 4096, vec![0x30]),
        Mood::Silent => {
            // Until the client has enough of it.
            let _ = stream.read(&mut [0]);
            return;
        }
    };
    let head = format!("HTTP/1.1 {status}\r\n{header}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
}

const VCEK: &[u8] = include_bytes!("../../../verify/testdata/sev-crate/vcek_milan.der");
/// Long enough for whoever answers at all.
const PATIENCE: Duration = Duration::from_secs(2);
const NOBODY: &str = "http://127.0.0.1:1";

/// Of the recorded report, which does not say what chip it is from.
fn wanted(products: &[Product]) -> Wanted {
    let text = include_str!("../../../verify/testdata/sev-crate/report_milan.hex");
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let report: Vec<u8> = text.trim().as_bytes().chunks_exact(2).map(byte).collect();
    Wanted::of(&report, products).unwrap()
}

/// Tag, length, value.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let value = parts.concat();
    [&[tag, 0x82][..], &u16::try_from(value.len()).unwrap().to_be_bytes(), &value]
        .concat()
        .into_iter()
        .enumerate()
        // Short lengths have a short form, and DER no other.
        .filter(|(at, _)| !(value.len() < 128 && (*at == 1 || *at == 2)))
        .map(|(_, byte)| byte)
        .collect()
}

/// A revocation list of nobody's, with an empty signature: RFC 5280 section 5.1.
fn list() -> Vec<u8> {
    // RSASSA-PSS, 1.2.840.113549.1.1.10.
    let pss = der(0x30, &[&der(6, &[&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a]])]);
    let body = der(0x30, &[&der(2, &[&[1]]), &pss, &der(0x30, &[]), &der(0x17, &[b"250101000000Z"])]);
    der(0x30, &[&body, &pss, &der(3, &[&[0]])])
}

/// Has everything for the product with this name.
fn has(product: &'static str) -> impl Fn(&str) -> Mood {
    move |path| match path {
        _ if path == format!("/vcek/v1/{product}/crl") => Mood::Has(list()),
        _ if path.starts_with(&format!("/vcek/v1/{product}/")) && path.contains("?blSPL=") => Mood::Has(VCEK.to_vec()),
        _ => Mood::Status("404 Not Found", "x-nothing: 0"),
    }
}

/// As [`fetch_amd`] with little patience.
fn asked(wanted: &Wanted, endpoints: &[&str]) -> Result<snp::Collateral, CollateralError> {
    let endpoints: Vec<String> = endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect();
    amd(&agent(PATIENCE), wanted, &endpoints)
}

fn whole() -> snp::Collateral {
    snp::Collateral { endorsement: Some(VCEK.to_vec()), revocation: vec![list()] }
}

#[test]
fn amds_certificate_and_list_are_asked_for_by_chip_and_levels_and_taken_as_they_are() {
    let service = Service::new(has("Milan"));
    let wanted = wanted(&[Product::Milan]);
    assert_eq!(fetch_amd(&wanted, &[format!("{}/", service.url)]).unwrap(), whole());
    let [certificate, list] = &service.asked()[..] else { panic!("{:?}", service.asked()) };
    assert!(certificate.starts_with(&format!("/vcek/v1/Milan/{}?blSPL=", encode(&wanted.chip.0))), "{certificate}");
    for level in ["&teeSPL=", "&snpSPL=", "&ucodeSPL="] {
        assert!(certificate.contains(level), "{certificate}");
    }
    assert_eq!(list, "/vcek/v1/Milan/crl");
}

#[test]
fn a_report_that_names_no_product_gets_the_list_of_the_one_that_knows_its_chip() {
    // Every product has a list, whatever the chip.
    let has = has("Genoa");
    let service = Service::new(move |path| if path.ends_with("/crl") { Mood::Has(list()) } else { has(path) });
    assert_eq!(asked(&wanted(&Product::ALL), &[&service.url]).unwrap(), whole());
    let asked: Vec<String> = service
        .asked()
        .iter()
        .map(|path| path.split(['/', '?']).skip(3).take(2).collect::<Vec<_>>().join(" "))
        .collect();
    let chip = encode(&wanted(&[]).chip.0);
    assert_eq!(asked, [format!("Milan {chip}"), format!("Genoa {chip}"), "Genoa crl".into()]);
}

#[test]
fn a_key_of_the_provider_needs_a_list_alone() {
    let service = Service::new(|path| match path {
        "/vlek/v1/Milan/crl" => Mood::Has(list()),
        _ => Mood::Status("404 Not Found", "x-nothing: 0"),
    });
    let wanted = Wanted { signer: Signer::Vlek, ..wanted(&[Product::Milan]) };
    let collateral = asked(&wanted, &[&service.url]).unwrap();
    assert_eq!((collateral.endorsement, collateral.revocation), (None, vec![list()]));
    assert_eq!(service.asked(), ["/vlek/v1/Milan/crl"]);
}

/// Bug report 4: an endpoint that is down, or says nothing of use, does not keep the next one from being asked, and when all
/// are, each is named with what was wrong with it.
#[test]
fn bug_04_every_endpoint_of_amds_is_asked_and_every_failure_is_told() {
    let never = Service::new(has("Milan"));
    let wanted = wanted(&[Product::Milan]);
    type Case = (&'static str, fn(&str) -> Mood, &'static [&'static str]);
    let cases: [Case; 9] = [
        ("no such chip", |_| Mood::Status("404 Not Found", "x-nothing: 0"), &["/vcek/v1/Milan/", "404"]),
        ("too often", |_| Mood::Status("429 Too Many Requests", "retry-after: 10"), &["429", "retry after 10 s"]),
        (
            "too often, by the calendar",
            |_| Mood::Status("429 Too Many Requests", "retry-after: Wed, 01 Jan 2025 00:00:00 GMT"),
            &["429"],
        ),
        ("broken", |_| Mood::Status("503 Service Unavailable", "x-nothing: 0"), &["503"]),
        ("silent", |_| Mood::Silent, &["timeout"]),
        ("a page of a portal", |_| Mood::Has(b"<html>Please log in</html>".to_vec()), &["certificate: malformed"]),
        (
            "a list that is none",
            |path| Mood::Has(if path.ends_with("/crl") { b"none".to_vec() } else { VCEK.to_vec() }),
            &["revocation list: "],
        ),
        ("half of it", |_| Mood::Breaks, &["/vcek/v1/Milan/"]),
        ("too much of it", |_| Mood::Has(vec![0x30; MAX_PART + 1]), &["limit"]),
    ];
    for (what, mood, words) in cases {
        let (bad, good) = (Service::new(mood), Service::new(has("Milan")));
        assert_eq!(asked(&wanted, &[&bad.url, &good.url, &never.url]).as_ref(), Ok(&whole()), "{what}");
        assert!(!bad.asked().is_empty(), "{what}");
        let error = asked(&wanted, &[NOBODY, &bad.url]).unwrap_err();
        let [(first, refused), (second, reason)] = &error.tried[..] else { panic!("{what}: {error}") };
        assert_eq!((first.as_str(), second), (NOBODY, &bad.url), "{what}");
        assert!(refused.contains("refused"), "{what}: {refused}");
        assert!(words.iter().all(|word| reason.contains(word)), "{what}: {reason}");
        let told = error.to_string();
        assert!([NOBODY, &bad.url, refused, reason].iter().all(|part| told.contains(*part)), "{what}: {told}");
        assert!(told.contains(&encode(&wanted.chip.0)) && !told.contains("GMT"), "{what}: {told}");
    }
    assert_eq!(never.asked(), Vec::<String>::new());
}
