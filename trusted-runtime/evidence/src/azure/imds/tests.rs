use super::*;
use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread::{self, JoinHandle},
};

/// Answers one request with `answer`, and returns what was asked.
fn host(answer: String) -> (Imds, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let asked = thread::spawn(move || {
        let mut peer = listener.accept().unwrap().0;
        let asked = request(&mut peer);
        peer.write_all(answer.as_bytes()).unwrap();
        asked
    });
    (Imds::at(base, Duration::from_secs(30)), asked)
}

fn request(peer: &mut TcpStream) -> String {
    let mut text = String::new();
    let mut byte = [0];
    loop {
        assert_eq!(peer.read(&mut byte).unwrap(), 1, "{text}");
        text.push(char::from(byte[0]));
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .to_lowercase()
            .split("content-length: ")
            .nth(1)
            .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
        if body.len() == length {
            return text;
        }
    }
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn a_td_report_goes_and_a_quote_comes() {
    for quote in ["-_8A", "-_8A_w", "-_8A_w=="] {
        let (imds, asked) = host(ok(&format!("{{\"quote\":\"{quote}\"}}")));
        assert_eq!(imds.td_quote(&[0xfb, 0xff, 0, 0xff]).unwrap(), BASE64.decode(quote).unwrap());
        let asked = asked.join().unwrap();
        assert!(asked.starts_with("POST /acc/tdquote HTTP/1.1\r\n"), "{asked}");
        assert!(asked.to_lowercase().contains("\r\nmetadata: true\r\n"), "{asked}");
        assert!(asked.contains("\"report\": \"-_8A_w\""), "{asked}");
    }
}

#[test]
fn certificates_come_as_one_text_in_pem() {
    let answer = r#"{"vcekCert":"-----BEGIN A\n","tcbm":"00","certificateChain":"-----BEGIN B\n"}"#;
    let (imds, asked) = host(ok(answer));
    assert_eq!(imds.certificates().unwrap(), b"-----BEGIN A\n-----BEGIN B");
    let asked = asked.join().unwrap();
    assert!(asked.starts_with("GET /metadata/THIM/amd/certification HTTP/1.1\r\n"), "{asked}");
    assert!(asked.to_lowercase().contains("\r\nmetadata: true\r\n"), "{asked}");
}

#[test]
fn every_other_answer_is_an_error_that_names_the_place() {
    for (answer, says) in [
        ("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".to_owned(), "503"),
        ("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".to_owned(), "302"),
        (ok("{}"), "missing field `quote`"),
        (ok("{\"quote\":\"+\"}"), "quote: Invalid"),
        (ok(&format!("{{\"quote\":\"{}\"}}", "A".repeat(3 << 20))), "limit"),
    ] {
        let (imds, asked) = host(answer);
        let text = imds.td_quote(&[1]).unwrap_err();
        assert!(text.starts_with("http://127.0.0.1:") && text.contains("/acc/tdquote: "), "{text}");
        assert!(text.contains(says), "{says}: {text}");
        drop(asked);
    }
}

#[test]
fn a_host_that_never_answers_and_one_that_is_not_there_are_errors() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", silent.local_addr().unwrap());
    let text = Imds::at(base.clone(), Duration::from_millis(50)).td_quote(&[1]).unwrap_err();
    assert!(text.contains("timeout"), "{text}");
    drop(silent);
    let text = Imds::at(base, Duration::from_secs(30)).certificates().unwrap_err();
    assert!(text.contains("refused"), "{text}");
}
