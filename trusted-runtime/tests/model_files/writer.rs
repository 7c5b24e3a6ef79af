//! A GGUF writer, for making bad files.

use std::{collections::BTreeMap, path::Path};
use trusted_runtime::model::load::gguf::{Gguf, Value as Meta};

fn text(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

/// A GGUF file with the metadata of `base` changed by `edit` and the F32 tensors it then lists.
pub(crate) fn gguf(
    base: &Path,
    edit: impl Fn(&mut BTreeMap<String, Meta>, &mut BTreeMap<String, (Vec<usize>, Vec<f32>)>),
) -> Vec<u8> {
    let parsed = Gguf::parse("base", std::fs::read(base).unwrap()).unwrap();
    let mut meta = parsed.metadata().clone();
    let mut tensors: BTreeMap<_, _> = parsed
        .tensors()
        .iter()
        .map(|(name, info)| (name.clone(), (info.shape.clone(), parsed.weights(name).unwrap())))
        .collect();
    edit(&mut meta, &mut tensors);
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((meta.len() as u64).to_le_bytes());
    for (key, value) in &meta {
        text(&mut out, key);
        let array = |out: &mut Vec<u8>, tag: u32, n: usize| {
            out.extend(9u32.to_le_bytes());
            out.extend(tag.to_le_bytes());
            out.extend((n as u64).to_le_bytes());
        };
        match value {
            Meta::Int(v) => {
                out.extend(11u32.to_le_bytes());
                out.extend(i64::try_from(*v).unwrap().to_le_bytes());
            }
            Meta::Float(v) => {
                out.extend(12u32.to_le_bytes());
                out.extend(v.to_le_bytes());
            }
            Meta::Bool(v) => {
                out.extend(7u32.to_le_bytes());
                out.push(u8::from(*v));
            }
            Meta::Text(v) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, v);
            }
            Meta::Ints(v) => {
                array(&mut out, 11, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Meta::Floats(v) => {
                array(&mut out, 12, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Meta::Texts(v) => {
                array(&mut out, 8, v.len());
                v.iter().for_each(|v| text(&mut out, v));
            }
        }
    }
    let mut data = Vec::new();
    for (name, (shape, values)) in &tensors {
        text(&mut out, name);
        out.extend(u32::try_from(shape.len()).unwrap().to_le_bytes());
        shape.iter().rev().for_each(|d| out.extend((*d as u64).to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        values.iter().for_each(|v| data.extend(v.to_le_bytes()));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}
