//! Layered settings over one table of defaults, which also says what exists and of which type it is.

use crate::Error;
use std::path::Path;
use toml::{Table, Value};

/// A table of settings; every later layer may only replace what the first one has.
pub(super) struct Layers(Table);

impl Layers {
    /// The first layer.
    pub(super) fn defaults(text: &str) -> Result<Self, Error> {
        text.parse().map(Self).map_err(|e| Error::Bug(format!("built-in defaults: {}", one_line(&e))))
    }

    /// Lays a TOML file over the settings.
    pub(super) fn file(&mut self, path: &Path) -> Result<(), Error> {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| Error::Config(format!("{name}: {e}")))?;
        let table: Table = text.parse().map_err(|e| Error::Config(format!("{name}: {}", one_line(&e))))?;
        merge(&mut self.0, table, "", &name.to_string())
    }

    /// Lays every variable that starts with `prefix` over the settings.
    pub(super) fn environment(
        &mut self,
        prefix: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), Error> {
        let paths = paths(&self.0, "");
        for (name, value) in variables {
            let Some(tail) = name.strip_prefix(prefix) else { continue };
            let wanted = tail.to_ascii_lowercase();
            let path = paths.iter().find(|p| p.replace('.', "_") == wanted);
            let path = path.ok_or_else(|| Error::Config(format!("{name} names no setting")))?;
            self.set(path, &value, &name)?;
        }
        Ok(())
    }

    /// Replaces the setting at `path`; `source` names where the value is from.
    pub(super) fn set(&mut self, path: &str, value: &str, source: &str) -> Result<(), Error> {
        let mut keys = path.split('.');
        let first = keys.next().and_then(|key| self.0.get_mut(key));
        let slot = keys.fold(first, |at, key| at.and_then(|v| v.get_mut(key)));
        let slot = slot.ok_or_else(|| Error::Config(format!("{path} names no setting")))?;
        let parsed = match slot {
            Value::Integer(_) => value.parse().ok().map(Value::Integer),
            Value::Boolean(_) => value.parse().ok().map(Value::Boolean),
            Value::String(_) => Some(Value::String(value.to_owned())),
            _ => None,
        };
        let kind = slot.type_str();
        *slot = parsed.ok_or_else(|| Error::Config(format!("{source} is {value:?}, expected {kind}")))?;
        Ok(())
    }

    /// SHA-256 of what the settings are, without those of one host alone.
    pub(super) fn digest(&self) -> [u8; 32] {
        let mut table = self.0.clone();
        for own in ["listen", "port_file", "metrics_listen", "threads"] {
            table.remove(own);
        }
        // Tables are sorted, so the text is the same for the same settings.
        let text = table.to_string();
        let mut out = [0; 32];
        out.copy_from_slice(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes()).as_ref());
        out
    }

    /// The settings as a struct.
    pub(super) fn finish<T: serde::de::DeserializeOwned>(self) -> Result<T, Error> {
        self.0.try_into().map_err(|e| Error::Config(one_line(&e)))
    }
}

fn merge(base: &mut Table, over: Table, at: &str, file: &str) -> Result<(), Error> {
    for (key, value) in over {
        let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        match (base.get_mut(&key), value) {
            (None, _) => return Err(Error::Config(format!("{file}: {path} names no setting"))),
            (Some(Value::Table(base)), Value::Table(over)) => merge(base, over, &path, file)?,
            (Some(slot), value) if slot.same_type(&value) => *slot = value,
            (Some(slot), value) => {
                let (found, expected) = (value.type_str(), slot.type_str());
                return Err(Error::Config(format!("{file}: {path} is of type {found}, expected {expected}")));
            }
        }
    }
    Ok(())
}

/// The dotted paths of all values.
fn paths(table: &Table, at: &str) -> Vec<String> {
    let join = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    let under = |(key, value): (&String, &Value)| match value {
        Value::Table(inner) => paths(inner, &join(key)),
        _ => vec![join(key)],
    };
    table.iter().flat_map(under).collect()
}

fn one_line(e: &toml::de::Error) -> String {
    let text = e.to_string();
    let lines: Vec<_> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    lines.join(" ")
}
