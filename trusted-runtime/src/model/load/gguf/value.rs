//! Metadata values of GGUF files.

use crate::{Error, model::load::cursor::Cursor};

/// A metadata value. Integers of every width are one variant, floats too.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any integer type.
    Int(i128),
    /// f32 or f64.
    Float(f64),
    /// Boolean.
    Bool(bool),
    /// UTF-8 text.
    Text(String),
    /// Array of integers or booleans.
    Ints(Vec<i64>),
    /// Array of floats.
    Floats(Vec<f64>),
    /// Array of texts.
    Texts(Vec<String>),
}

/// One typed value; the type tags are `enum gguf_metadata_value_type` of the GGUF specification.
pub(super) fn read(c: &mut Cursor<'_>, key: &str) -> Result<Value, Error> {
    let what = format!("metadata key {key:?}");
    let tag = c.u32(&what)?;
    if tag != 9 {
        return scalar(c, tag, &what);
    }
    let element = c.u32(&what)?;
    let width = match element {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10 | 11 | 12 => 8,
        9 => return Err(Error::Model(format!("{}: {what} is an array of arrays", c.file()))),
        other => return Err(unknown_type(c, &what, other)),
    };
    let left = c.remaining() as u64;
    let count = c.count(&format!("length of {what}"), left / width)?;
    Ok(match element {
        8 => {
            let texts: Result<_, Error> = (0..count).map(|_| c.text(&what, left)).collect();
            Value::Texts(texts?)
        }
        6 | 12 => {
            let mut floats = Vec::with_capacity(count);
            for _ in 0..count {
                if let Value::Float(v) = scalar(c, element, &what)? {
                    floats.push(v);
                }
            }
            Value::Floats(floats)
        }
        _ => {
            let mut ints = Vec::with_capacity(count);
            for _ in 0..count {
                ints.push(match scalar(c, element, &what)? {
                    Value::Int(v) => i64::try_from(v).map_err(|_| {
                        Error::Model(format!("{}: {what} holds {v}, expected at most 2^63 - 1", c.file()))
                    })?,
                    Value::Bool(v) => i64::from(v),
                    _ => 0,
                });
            }
            Value::Ints(ints)
        }
    })
}

fn scalar(c: &mut Cursor<'_>, tag: u32, what: &str) -> Result<Value, Error> {
    Ok(match tag {
        0 => Value::Int(i128::from(u8::from_le_bytes(c.array(what)?))),
        1 => Value::Int(i128::from(i8::from_le_bytes(c.array(what)?))),
        2 => Value::Int(i128::from(u16::from_le_bytes(c.array(what)?))),
        3 => Value::Int(i128::from(i16::from_le_bytes(c.array(what)?))),
        4 => Value::Int(i128::from(u32::from_le_bytes(c.array(what)?))),
        5 => Value::Int(i128::from(i32::from_le_bytes(c.array(what)?))),
        6 => Value::Float(f64::from(f32::from_le_bytes(c.array(what)?))),
        7 => match c.array::<1>(what)?[0] {
            0 => Value::Bool(false),
            1 => Value::Bool(true),
            other => return Err(Error::Model(format!("{}: {what} is {other}, expected 0 or 1", c.file()))),
        },
        8 => Value::Text(c.text(what, 1 << 24)?),
        10 => Value::Int(i128::from(u64::from_le_bytes(c.array(what)?))),
        11 => Value::Int(i128::from(i64::from_le_bytes(c.array(what)?))),
        12 => Value::Float(f64::from_le_bytes(c.array(what)?)),
        other => return Err(unknown_type(c, what, other)),
    })
}

fn unknown_type(c: &Cursor<'_>, what: &str, tag: u32) -> Error {
    Error::Model(format!("{}: {what} has value type {tag}, expected 0 to 12", c.file()))
}
