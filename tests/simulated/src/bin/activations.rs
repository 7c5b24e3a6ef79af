//! What must pass no wire and what may: `activations MODEL PROMPT ID,ID..` runs MODEL over the chat PROMPT and an answer's
//! token ids inside this process, as a runtime would. It prints three lines: the prompt's token ids; the beginnings of what went
//! into and came out of every linear layer, in each form that a runtime holds it in; the beginnings of the rows of weights.

#![forbid(unsafe_code)]

use kernels::{pack::Int8Matrix, words::pack};
use std::{collections::BTreeSet, error::Error, sync::Arc, sync::Mutex};
use trusted_runtime::{
    linear::{Call, Linear, LinearId, integer, local::LocalLinear},
    model::{self, Weights},
    planner::{self, Plan},
};

/// Bytes of a beginning.
const LENGTH: usize = 32;

/// Linear layers that remember what went in and what came out.
struct Recorder {
    linear: LocalLinear,
    plan: Arc<Plan>,
    seen: Mutex<BTreeSet<Vec<u8>>>,
}

impl Recorder {
    fn keep(&self, bytes: impl IntoIterator<Item = u8>) {
        let bytes: Vec<u8> = bytes.into_iter().take(LENGTH).collect();
        if telling(&bytes) {
            self.seen.lock().expect("no panic while held").insert(bytes);
        }
    }

    /// A vector of activations.
    fn floats(&self, values: &[f32]) {
        self.keep(values.iter().flat_map(|x| x.to_le_bytes()));
    }

    /// The same as integers: as they are, in the low halves and quarters of their words, and modulo t as they would travel
    /// without a mask.
    fn integers(&self, values: &[i32], log2_t: u32) {
        self.keep(values.iter().flat_map(|x| x.to_le_bytes()));
        self.keep(values.iter().flat_map(|x| [x.to_le_bytes()[0], x.to_le_bytes()[1]]));
        self.keep(values.iter().map(|x| x.to_le_bytes()[0]));
        let t = u32::MAX >> (u32::BITS - log2_t);
        let mut packed = Vec::new();
        pack(log2_t, &values.iter().map(|x| x.cast_unsigned() & t).collect::<Vec<_>>(), &mut packed);
        self.keep(packed);
    }
}

impl Linear for Recorder {
    fn apply(
        &self,
        call: &Call,
        id: LinearId,
        xs: &[f32],
        vectors: usize,
        ys: &mut [f32],
    ) -> Result<(), trusted_runtime::Error> {
        self.linear.apply(call, id, xs, vectors, ys)?;
        let m = self.plan.matrix(id)?;
        let (cols, rows) = (m.matrix.int8.cols(), m.matrix.rows);
        let ints = integer::quantize(m, xs, vectors)?;
        for (x, y) in xs.chunks_exact(cols).zip(ys.chunks_exact(rows)) {
            self.floats(x);
            self.floats(y);
        }
        for x in ints.ints.chunks_exact(cols) {
            self.integers(x, m.log2_t);
            self.integers(&product(&m.matrix.int8, x), m.log2_t);
        }
        Ok(())
    }
}

/// As many products as a beginning holds; below t/2 by the plan.
fn product(matrix: &Int8Matrix, x: &[i32]) -> Vec<i32> {
    let dot = |row: usize| matrix.row(row).iter().zip(x).map(|(w, x)| i32::from(*w) * x).sum();
    (0..matrix.rows().min(LENGTH)).map(dot).collect()
}

/// What has few different bytes is found anywhere.
fn telling(bytes: &[u8]) -> bool {
    bytes.len() == LENGTH && bytes.iter().collect::<BTreeSet<_>>().len() > LENGTH / 4
}

fn hex<'a>(all: impl IntoIterator<Item = &'a Vec<u8>>) -> String {
    let one = |bytes: &Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    all.into_iter().map(one).collect::<Vec<_>>().join(" ")
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [source, prompt, answer] = &args[..] else { return Err("MODEL PROMPT ID,ID..".into()) };
    let loaded = model::load(source, Weights::W8, &|_, _, _| {})?;
    let chat = loaded.chat.as_ref().ok_or("a model with a chat template")?;
    let mut tokens = loaded.tokenizer.encode(&chat.render(&[("user", prompt)])?);
    println!("{tokens:?}");
    tokens.extend(answer.split(',').filter(|id| !id.is_empty()).map(str::parse::<u32>).collect::<Result<Vec<_>, _>>()?);
    let ring = planner::choose_ring(&loaded.linears)?;
    let plan = Arc::new(planner::plan(&ring, loaded.linears)?);
    let recorder = Recorder { linear: LocalLinear::new(ring, plan.clone(), 1)?, plan, seen: Mutex::default() };
    let (mut cache, mut logits) = (loaded.model.new_cache(), Vec::new());
    loaded.model.forward(&recorder, &Call::default(), &tokens, &mut cache, &mut logits)?;
    println!("{}", hex(&recorder.seen.into_inner()?));
    let bytes = |row: &[i8]| row.iter().take(LENGTH).map(|w| w.cast_unsigned()).collect::<Vec<_>>();
    let matrices = recorder.plan.matrices.iter().map(|m| &m.matrix.int8);
    let rows = matrices.flat_map(|m| (0..m.rows()).map(|row| bytes(m.row(row)))).filter(|row| telling(row));
    println!("{}", hex(&rows.collect::<BTreeSet<_>>()));
    Ok(())
}
