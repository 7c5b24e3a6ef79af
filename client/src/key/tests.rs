use std::os::unix::fs::PermissionsExt;

use attest::{Domain, Hardware};
use tempfile::TempDir;

use super::*;

/// Another world, whose keys are test keys.
struct Toy;

impl Domain for Toy {
    const MODE: &'static str = "toy";
    const TAG: &'static [u8] = b"toy";
    const ALPN: &'static [u8] = b"toy/1";
    const EXPORTER: &'static [u8] = b"EXPORTER-toy";
    const RELEASE: &'static [u8] = b"toy/release";
    const BANNER: Option<&'static str> = Some("TOY");
}

impl attest_verify::Anchor for Toy {}

impl Trust for Toy {
    const TEST_KEYS: bool = true;
}

const NOW: u64 = 1_700_000_000;

fn order() -> Order {
    Order {
        tenant: "acme".into(),
        key_id: "k-1".into(),
        created: NOW,
        expires_at: NOW + 60,
        params_digest: Some(attest_verify::hex::Hex([7; 32])),
        test: false,
    }
}

/// A key file with `change` made to its text, and the folder it lives in.
fn file(order: &Order, change: impl Fn(&str) -> String) -> (TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("acme.key");
    draw(&path, order).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, change(&text)).unwrap();
    (dir, path)
}

#[test]
fn what_is_drawn_is_loaded_and_nobody_else_can_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("acme.key");
    let digest = draw(&path, &order()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let key = TenantKey::<Hardware>::load(&path, NOW).unwrap();
    assert_eq!((key.tenant(), key.key_id(), key.expires_at()), ("acme", "k-1", NOW + 60));
    assert_eq!((key.params_digest(), key.admission().digest()), (order().params_digest, digest.0));
    assert_eq!(key.into_secrets(None).admission().digest(), digest.0);
    let error = draw(&path, &order()).unwrap_err().to_string();
    assert!(error.contains("exists"), "a key is never written over: {error}");
    assert_eq!(TenantKey::<Hardware>::load(&path, NOW).ok().map(|key| key.admission().digest()), Some(digest.0));
}

#[test]
fn a_key_without_parameters_leaves_them_to_the_release() {
    let (_dir, path) = file(&Order { params_digest: None, ..order() }, str::to_owned);
    assert!(TenantKey::<Hardware>::load(&path, NOW).ok().unwrap().params_digest().is_none());
}

#[test]
fn keys_that_are_not_whole_or_not_right_are_refused_by_field() {
    let without = |field: &'static str| {
        move |text: &str| text.lines().filter(|line| !line.starts_with(field)).map(|line| format!("{line}\n")).collect()
    };
    let change = |from: &'static str, to: &'static str| move |text: &str| text.replacen(from, to, 1);
    type Change = Box<dyn Fn(&str) -> String>;
    let cases: [(Change, &str); 17] = [
        (Box::new(|_: &str| String::new()), "version is missing, expected 1"),
        (Box::new(without("tenant")), "tenant is missing, expected a name"),
        (Box::new(without("key_id")), "key_id is missing"),
        (Box::new(without("created")), "created is missing"),
        (Box::new(without("expires_at")), "expires_at is missing, expected seconds since 1970"),
        (Box::new(without("test")), "test is missing, expected true or false"),
        (Box::new(without("root")), "root is missing, expected 64 hexadecimal digits"),
        (Box::new(|text: &str| text[..text.len() - 20].to_owned()), "expected 64 hexadecimal digits"),
        (Box::new(|text: &str| text.replace("root = \"", "root = \"zz")), "root is 66 characters, expected 64"),
        (Box::new(change("version = 1", "version = 2")), "version is 2, expected 1"),
        (Box::new(change("tenant = \"acme\"", "tenant = \"../x\"")), "tenant is \"../x\", expected 1 to 64 letters"),
        (Box::new(change("key_id = \"k-1\"", "key_id = \"\"")), "key_id is \"\", expected"),
        (
            Box::new(change("params_digest = \"07", "params_digest = \"")),
            "params_digest is 31 bytes of hexadecimal, expected 32",
        ),
        (Box::new(change("expires_at = ", "expires_at = -")), "line 6, expires_at: "),
        (Box::new(change("test = false", "test = 0")), "line 8, test: invalid type"),
        (Box::new(change("created", "kreated")), "unknown field `kreated`"),
        (Box::new(change("test = false", "test = true")), "test is true, expected false"),
    ];
    for (change, says) in cases {
        let (_dir, path) = file(&order(), &change);
        let root = std::fs::read_to_string(&path).unwrap();
        let root = root
            .lines()
            .find_map(|line| line.strip_prefix("root = \""))
            .map(|root| root[..16.min(root.len())].to_owned());
        let error = TenantKey::<Hardware>::load(&path, NOW).err().unwrap_or_else(|| panic!("taken, not {says}"));
        assert_eq!(error.verdict_code(), 2);
        let error = error.to_string();
        assert!(error.contains("acme.key: ") && error.contains(says), "{says} is not in: {error}");
        assert!(root.is_none_or(|root| !error.contains(&root)), "the root is shown: {error}");
    }
}

#[test]
fn bug_20_keys_that_others_can_read_are_refused() {
    for mode in [0o640, 0o604, 0o660, 0o602, 0o610] {
        let (_dir, path) = file(&order(), str::to_owned);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = TenantKey::<Hardware>::load(&path, NOW).err().unwrap().to_string();
        assert!(error.contains(&format!("mode is {mode:03o}, expected 600")), "{error}");
    }
    let (dir, path) = file(&order(), str::to_owned);
    for path in [dir.path().to_owned(), path.with_extension("absent")] {
        assert!(TenantKey::<Hardware>::load(&path, NOW).is_err(), "{}", path.display());
    }
    let (_dir, path) = file(&order(), |text| text.to_owned() + &"# more\n".repeat(1000));
    assert!(TenantKey::<Hardware>::load(&path, NOW).err().unwrap().to_string().contains("expected 4096 at most"));
}

#[test]
fn expired_keys_and_keys_of_another_world_are_refused() {
    let (_dir, path) = file(&order(), str::to_owned);
    assert!(TenantKey::<Hardware>::load(&path, NOW + 59).is_ok());
    let error = TenantKey::<Hardware>::load(&path, NOW + 60).err().unwrap().to_string();
    assert!(error.contains("expires_at is 2023-11-14T22:14:20Z, expected later than 2023-11-14T22:14:20Z"), "{error}");
    let error = TenantKey::<Toy>::load(&path, NOW).err().unwrap().to_string();
    assert!(error.contains("test is false, expected true"), "{error}");
    let (_dir, path) = file(&Order { test: true, ..order() }, str::to_owned);
    assert!(TenantKey::<Toy>::load(&path, NOW).is_ok());
    assert!(TenantKey::<Hardware>::load(&path, NOW).is_err());
}

#[test]
fn names_are_checked_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    for name in ["", "-a", ".a", "a.", "a b", "a/b", "ä", &"a".repeat(65)] {
        let error = draw(&path, &Order { tenant: name.into(), ..order() }).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{name}");
    }
    assert!(!path.exists());
    assert!(draw(&path, &Order { key_id: "2026-12-01-0a".into(), ..order() }).is_ok());
}
