//! The sizes of a model from Hugging Face's config.json.

use crate::{
    Error,
    model::{
        config::{Architecture, ModelConfig},
        frequencies,
    },
};
use serde_json::Value;

/// An object of config.json; errors name the file and the field.
pub(super) struct Field<'a> {
    file: &'a str,
    object: &'a Value,
}

impl<'a> Field<'a> {
    pub(super) fn new(file: &'a str, object: &'a Value) -> Self {
        Self { file, object }
    }

    fn wrong<T>(&self, key: &str, expected: &str) -> Result<T, Error> {
        let found = match &self.object[key] {
            Value::Null => "missing".to_owned(),
            Value::Array(_) | Value::Object(_) => "not a single value".to_owned(),
            value => value.to_string().chars().take(100).collect(),
        };
        Err(Error::Model(format!("{}: field {key} is {found}, expected {expected}", self.file)))
    }

    fn size(&self, key: &str) -> Result<usize, Error> {
        match self.object[key].as_u64().and_then(|v| usize::try_from(v).ok()) {
            Some(v) => Ok(v),
            None => self.wrong(key, "a non-negative integer"),
        }
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        if self.object[key].is_null() { Ok(default) } else { self.size(key) }
    }

    fn float(&self, key: &str) -> Result<f64, Error> {
        match self.object[key].as_f64() {
            Some(v) => Ok(v),
            None => self.wrong(key, "a number"),
        }
    }

    fn float_or(&self, key: &str, default: f64) -> Result<f64, Error> {
        if self.object[key].is_null() { Ok(default) } else { self.float(key) }
    }

    /// Refuses any value of `key` but those in `allowed` and absence.
    fn only(&self, key: &str, allowed: &[&str]) -> Result<(), Error> {
        match &self.object[key] {
            Value::Null => Ok(()),
            Value::String(s) if allowed.contains(&s.as_str()) => Ok(()),
            _ => self.wrong(key, &allowed.join(" or ")),
        }
    }

    /// Refuses `key` unless it is absent or `expected`.
    fn flag(&self, key: &str, expected: bool) -> Result<(), Error> {
        match &self.object[key] {
            Value::Null => Ok(()),
            Value::Bool(b) if *b == expected => Ok(()),
            _ => self.wrong(key, &expected.to_string()),
        }
    }
}

/// Reads and checks the configuration.
///
/// # Errors
/// [`Error::Model`] naming the file and the field.
pub(super) fn config(file: &str, json: &Value) -> Result<ModelConfig, Error> {
    let f = Field::new(file, json);
    let architecture = match json["model_type"].as_str() {
        Some(name) => Architecture::parse(file, name)?,
        None => return f.wrong("model_type", Architecture::SUPPORTED),
    };
    let name = json["_name_or_path"].as_str().filter(|n| !n.is_empty()).unwrap_or("unnamed").to_owned();
    let tied_head = |default: bool| json["tie_word_embeddings"].as_bool().unwrap_or(default);
    #[expect(clippy::cast_possible_truncation, reason = "the forward pass is f32")]
    let narrow = |v: f64| v as f32;
    let config = match architecture {
        Architecture::Llama => {
            f.only("hidden_act", &["silu"])?;
            f.flag("attention_bias", false)?;
            f.flag("mlp_bias", false)?;
            let (d_model, heads) = (f.size("hidden_size")?, f.size("num_attention_heads")?);
            ModelConfig {
                architecture,
                name,
                layers: f.size("num_hidden_layers")?,
                d_model,
                d_ff: f.size("intermediate_size")?,
                heads,
                kv_heads: f.size_or("num_key_value_heads", heads)?,
                head_dim: f.size_or("head_dim", d_model / heads.max(1))?,
                context: f.size("max_position_embeddings")?,
                vocab: f.size("vocab_size")?,
                norm_epsilon: narrow(f.float("rms_norm_eps")?),
                rope_base: f.float_or("rope_theta", 10_000.0)?,
                tied_head: tied_head(false),
                parameters: 0,
            }
        }
        Architecture::Gpt2 => {
            f.only("activation_function", &["gelu_new", "gelu_pytorch_tanh"])?;
            f.flag("scale_attn_weights", true)?;
            f.flag("scale_attn_by_inverse_layer_idx", false)?;
            let (d_model, heads) = (f.size("n_embd")?, f.size("n_head")?);
            ModelConfig {
                architecture,
                name,
                layers: f.size("n_layer")?,
                d_model,
                d_ff: f.size_or("n_inner", 4 * d_model)?,
                heads,
                kv_heads: heads,
                head_dim: d_model / heads.max(1),
                context: f.size("n_positions")?,
                vocab: f.size("vocab_size")?,
                norm_epsilon: narrow(f.float("layer_norm_epsilon")?),
                rope_base: 0.0,
                tied_head: tied_head(true),
                parameters: 0,
            }
        }
    };
    config.check(file)?;
    Ok(config)
}

/// Divisors of the rotary frequencies: none, or Llama 3's long-context rule (`rope_type: llama3`): wavelengths beyond
/// `original / low` are stretched by `factor`, those below `original / high` kept, those between interpolated.
///
/// # Errors
/// [`Error::Model`] for any other rule, or for parameters that make no sense.
pub(super) fn rope_factors(f: &Field<'_>, c: &ModelConfig) -> Result<Option<Vec<f32>>, Error> {
    let scaling = &f.object["rope_scaling"];
    if scaling.is_null() {
        return Ok(None);
    }
    let kind = scaling["rope_type"].as_str().or_else(|| scaling["type"].as_str()).unwrap_or("none");
    if kind == "default" {
        return Ok(None);
    }
    if kind != "llama3" || c.architecture != Architecture::Llama {
        return Err(Error::Model(format!("{}: rope_scaling {kind:?} is not supported, expected llama3", f.file)));
    }
    let s = Field::new(f.file, scaling);
    let (factor, low, high) = (s.float("factor")?, s.float("low_freq_factor")?, s.float("high_freq_factor")?);
    let original = s.float("original_max_position_embeddings")?;
    if !(factor >= 1.0 && low > 0.0 && high > low && original >= 1.0 && factor.is_finite() && high.is_finite()) {
        return Err(Error::Model(format!(
            "{}: rope_scaling factor {factor}, low {low}, high {high}, original {original}: expected factor >= 1 and 0 < low < high",
            f.file
        )));
    }
    let divisor = |frequency: f64| {
        let turns = original * frequency / std::f64::consts::TAU;
        let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        1.0 / ((1.0 - smooth) / factor + smooth)
    };
    #[expect(clippy::cast_possible_truncation, reason = "GGUF stores these factors as f32")]
    let factors = frequencies(c.rope_base, c.head_dim).into_iter().map(|f| divisor(f) as f32).collect();
    Ok(Some(factors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn llama() -> Value {
        json!({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": 160, "max_position_embeddings": 256, "vocab_size": 260, "rms_norm_eps": 1e-5})
    }

    #[test]
    fn errors_name_file_and_field() {
        let with = |key: &str, value: Value| {
            let mut j = llama();
            j[key] = value;
            config("c.json", &j).map(|_| ()).map_err(|e| e.to_string()).err().unwrap_or_default()
        };
        assert_eq!(with("hidden_size", json!(64)), "");
        assert_eq!(
            with("model_type", json!("mamba")),
            "c.json: unknown architecture \"mamba\", expected one of: llama, gpt2"
        );
        assert_eq!(with("model_type", Value::Null), "c.json: field model_type is missing, expected llama, gpt2");
        assert_eq!(with("hidden_size", json!(-1)), "c.json: field hidden_size is -1, expected a non-negative integer");
        assert_eq!(with("hidden_act", json!("relu")), "c.json: field hidden_act is \"relu\", expected silu");
        assert_eq!(with("attention_bias", json!(true)), "c.json: field attention_bias is true, expected false");
        assert_eq!(with("num_key_value_heads", json!(3)), "c.json: 4 heads do not divide among 3 key/value heads");
        assert_eq!(with("vocab_size", json!(0)), "c.json: vocab is 0, expected 1 to 16777216");
        assert_eq!(with("num_attention_heads", json!(0)), "c.json: heads is 0, expected 1 to 16777216");
        assert_eq!(with("rms_norm_eps", json!("x")), "c.json: field rms_norm_eps is \"x\", expected a number");
    }

    #[test]
    fn llama3_scaling_keeps_short_waves_and_stretches_long_ones() {
        let mut j = llama();
        j["head_dim"] = json!(128);
        j["rope_theta"] = json!(500_000.0);
        j["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192});
        let c = config("c.json", &j).unwrap();
        let factors = rope_factors(&Field::new("c.json", &j), &c).unwrap().unwrap();
        assert_eq!((factors.len(), factors[0], factors[63]), (64, 1.0, 8.0));
        assert!(factors.windows(2).all(|w| w[0] <= w[1]) && factors.iter().any(|f| *f > 1.1 && *f < 7.9));
        j["rope_scaling"]["rope_type"] = json!("yarn");
        let error = rope_factors(&Field::new("c.json", &j), &c).unwrap_err().to_string();
        assert_eq!(error, "c.json: rope_scaling \"yarn\" is not supported, expected llama3");
    }
}
