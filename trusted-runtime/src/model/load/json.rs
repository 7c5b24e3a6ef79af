//! The sizes of a model from Hugging Face's config.json.

use crate::{
    Error,
    model::{config::ModelConfig, family::Architecture, rotary::Stretch},
};
use serde_json::Value;

/// An object of config.json; errors name the file and the field.
pub(crate) struct Field<'a> {
    file: &'a str,
    object: &'a Value,
}

impl<'a> Field<'a> {
    pub(crate) fn new(file: &'a str, object: &'a Value) -> Self {
        Self { file, object }
    }

    /// Name of the file.
    pub(crate) fn file(&self) -> &'a str {
        self.file
    }

    /// The value of `key`, null if it is absent.
    pub(crate) fn get(&self, key: &str) -> &'a Value {
        &self.object[key]
    }

    /// A text, if there is one.
    pub(crate) fn optional_text(&self, key: &str) -> Option<&'a str> {
        self.object[key].as_str()
    }

    /// The error about `key` being something else than `expected`.
    pub(crate) fn wrong<T>(&self, key: &str, expected: &str) -> Result<T, Error> {
        let found = match &self.object[key] {
            Value::Null => "missing".to_owned(),
            Value::Array(_) | Value::Object(_) => "not a single value".to_owned(),
            value => value.to_string().chars().take(100).collect(),
        };
        Err(Error::Model(format!("{}: field {key} is {found}, expected {expected}", self.file)))
    }

    pub(crate) fn size(&self, key: &str) -> Result<usize, Error> {
        match self.object[key].as_u64().and_then(|v| usize::try_from(v).ok()) {
            Some(v) => Ok(v),
            None => self.wrong(key, "a non-negative integer"),
        }
    }

    pub(crate) fn size_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        if self.object[key].is_null() { Ok(default) } else { self.size(key) }
    }

    pub(crate) fn float(&self, key: &str) -> Result<f64, Error> {
        match self.object[key].as_f64() {
            Some(v) => Ok(v),
            None => self.wrong(key, "a number"),
        }
    }

    pub(crate) fn float_or(&self, key: &str, default: f64) -> Result<f64, Error> {
        if self.object[key].is_null() { Ok(default) } else { self.float(key) }
    }

    /// Refuses any value of `key` but those in `allowed` and absence.
    pub(crate) fn only(&self, key: &str, allowed: &[&str]) -> Result<(), Error> {
        match &self.object[key] {
            Value::Null => Ok(()),
            Value::String(s) if allowed.contains(&s.as_str()) => Ok(()),
            _ => self.wrong(key, &allowed.join(" or ")),
        }
    }

    /// Refuses `key` unless it is absent or `expected`.
    pub(crate) fn flag(&self, key: &str, expected: bool) -> Result<(), Error> {
        match &self.object[key] {
            Value::Null => Ok(()),
            Value::Bool(b) if *b == expected => Ok(()),
            _ => self.wrong(key, &expected.to_string()),
        }
    }

    /// Refuses `key` unless it is absent or null.
    pub(crate) fn absent(&self, key: &str) -> Result<(), Error> {
        if self.object[key].is_null() { Ok(()) } else { self.wrong(key, "none") }
    }

    /// The `layer_types`, if they are listed.
    ///
    /// # Errors
    /// [`Error::Model`] for one that is not in `allowed`.
    pub(crate) fn layer_types(&self, allowed: &[&str]) -> Result<Option<Vec<&'a str>>, Error> {
        let Some(listed) = self.object["layer_types"].as_array() else { return Ok(None) };
        let kind = |v: &'a Value| match v.as_str().filter(|kind| allowed.contains(kind)) {
            Some(kind) => Ok(kind),
            None => Err(Error::Model(format!(
                "{}: field layer_types holds {v}, expected {}",
                self.file,
                allowed.join(" or ")
            ))),
        };
        listed.iter().map(kind).collect::<Result<_, _>>().map(Some)
    }

    /// A number as f32.
    #[expect(clippy::cast_possible_truncation, reason = "the forward pass is f32")]
    pub(crate) fn narrow(&self, key: &str) -> Result<f32, Error> {
        self.float(key).map(|v| v as f32)
    }

    /// The name that some files give.
    pub(crate) fn name(&self) -> String {
        self.optional_text("_name_or_path").filter(|n| !n.is_empty()).unwrap_or("unnamed").to_owned()
    }

    /// Whether the LM head is the token embedding; `default` is what the family's own configurations leave out.
    pub(crate) fn tied_head(&self, default: bool) -> bool {
        self.object["tie_word_embeddings"].as_bool().unwrap_or(default)
    }

    /// The sizes by the names that Llama introduced and its successors kept; rotary base 0.
    pub(crate) fn sizes(&self, architecture: Architecture) -> Result<ModelConfig, Error> {
        let (d_model, heads) = (self.size("hidden_size")?, self.size("num_attention_heads")?);
        Ok(ModelConfig {
            architecture,
            name: self.name(),
            layers: self.size("num_hidden_layers")?,
            d_model,
            d_ff: self.size("intermediate_size")?,
            heads,
            kv_heads: self.size_or("num_key_value_heads", heads)?,
            head_dim: self.size_or("head_dim", d_model / heads.max(1))?,
            context: self.size("max_position_embeddings")?,
            vocab: self.size("vocab_size")?,
            norm_epsilon: self.narrow("rms_norm_eps")?,
            rope_base: 0.0,
            tied_head: self.tied_head(false),
            parameters: 0,
        })
    }

    /// The rotary positions of all layers: `rope_theta` and `rope_scaling`, or both in `rope_parameters`, as
    /// Transformers 5 writes them.
    pub(crate) fn rope(&self, default_base: f64) -> Result<Rope<'a>, Error> {
        match self.get("rope_parameters") {
            Value::Null => {
                let base = self.float_or("rope_theta", default_base)?;
                Rope::new(self.file, self.get("rope_scaling"), base)
            }
            both => Rope::new(self.file, both, default_base),
        }
    }
}

/// Rotary positions as config.json describes them.
pub(crate) struct Rope<'a> {
    /// Base of the frequencies.
    pub(crate) base: f64,
    rule: &'a str,
    parameters: Field<'a>,
}

impl<'a> Rope<'a> {
    /// `scaling` holds the rule, its parameters, and the base if that is not `base`; null for no rule.
    pub(crate) fn new(file: &'a str, scaling: &'a Value, base: f64) -> Result<Self, Error> {
        let parameters = Field::new(file, scaling);
        let rule = ["rope_type", "type"].into_iter().find_map(|key| scaling[key].as_str());
        let absent = if scaling.is_null() { "default" } else { "none" };
        Ok(Self { base: parameters.float_or("rope_theta", base)?, rule: rule.unwrap_or(absent), parameters })
    }

    /// # Errors
    /// [`Error::Model`] for any rule, as `expected` says.
    pub(crate) fn unknown<T>(&self, expected: &str) -> Result<T, Error> {
        Err(Error::Model(format!(
            "{}: rope_scaling {:?} is not supported, expected {expected}",
            self.parameters.file, self.rule
        )))
    }

    /// # Errors
    /// [`Error::Model`] for any rule at all.
    pub(crate) fn unscaled(&self) -> Result<f64, Error> {
        if self.rule == "default" { Ok(self.base) } else { self.unknown("none") }
    }

    /// The divisor of all frequencies: 1, or that of `rope_type: linear`.
    ///
    /// # Errors
    /// [`Error::Model`] for any other rule, or for a factor below 1.
    pub(crate) fn linear(&self) -> Result<f64, Error> {
        match self.rule {
            "default" => Ok(1.0),
            "linear" => match self.parameters.float("factor")? {
                factor if factor >= 1.0 && factor.is_finite() => Ok(factor),
                _ => self.parameters.wrong("factor", "a number of at least 1"),
            },
            _ => self.unknown("linear"),
        }
    }

    /// None, or the parameters of `rope_type: llama3`.
    ///
    /// # Errors
    /// [`Error::Model`] for any other rule, or for parameters that make no sense.
    pub(crate) fn llama3(&self) -> Result<Option<Stretch>, Error> {
        match self.rule {
            "default" => return Ok(None),
            "llama3" => {}
            _ => return self.unknown("llama3"),
        }
        let s = &self.parameters;
        let (factor, low, high) = (s.float("factor")?, s.float("low_freq_factor")?, s.float("high_freq_factor")?);
        let original = s.float("original_max_position_embeddings")?;
        if !(factor >= 1.0 && low > 0.0 && high > low && original >= 1.0 && factor.is_finite() && high.is_finite()) {
            return Err(Error::Model(format!(
                "{}: rope_scaling factor {factor}, low {low}, high {high}, original {original}: expected factor >= 1 and 0 < low < high",
                s.file
            )));
        }
        Ok(Some(Stretch { factor, low, high, original }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::family;
    use serde_json::json;

    fn llama() -> Value {
        json!({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": 160, "max_position_embeddings": 256, "vocab_size": 260, "rms_norm_eps": 1e-5})
    }

    fn refusal(base: &Value, key: &str, value: Value) -> String {
        let mut j = base.clone();
        j[key] = value;
        family::from_json(&Field::new("c.json", &j)).map(|_| ()).map_err(|e| e.to_string()).err().unwrap_or_default()
    }

    #[test]
    fn errors_name_file_and_field() {
        let with = |key: &str, value: Value| refusal(&llama(), key, value);
        assert_eq!(with("hidden_size", json!(64)), "");
        assert_eq!(
            with("model_type", json!("mamba")),
            "c.json: unknown architecture \"mamba\", expected one of: llama, qwen3, gemma3_text, gpt2"
        );
        assert_eq!(
            with("model_type", Value::Null),
            "c.json: field model_type is missing, expected llama, qwen3, gemma3_text, gpt2"
        );
        assert_eq!(with("hidden_size", json!(-1)), "c.json: field hidden_size is -1, expected a non-negative integer");
        assert_eq!(with("hidden_act", json!("relu")), "c.json: field hidden_act is \"relu\", expected silu");
        assert_eq!(with("attention_bias", json!(true)), "c.json: field attention_bias is true, expected false");
        assert_eq!(with("num_key_value_heads", json!(3)), "c.json: 4 heads do not divide among 3 key/value heads");
        assert_eq!(with("vocab_size", json!(0)), "c.json: vocab is 0, expected 1 to 16777216");
        assert_eq!(with("num_attention_heads", json!(0)), "c.json: heads is 0, expected 1 to 16777216");
        assert_eq!(with("rms_norm_eps", json!("x")), "c.json: field rms_norm_eps is \"x\", expected a number");
    }

    #[test]
    fn gemma_is_refused_where_it_computes_something_else() {
        let gemma = json!({"model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 1, "num_hidden_layers": 2, "intermediate_size": 160, "max_position_embeddings": 256,
            "vocab_size": 260, "rms_norm_eps": 1e-6, "sliding_window": 8, "head_dim": 32});
        let with = |key: &str, value: Value| refusal(&gemma, key, value);
        assert_eq!(with("hidden_activation", json!("gelu_pytorch_tanh")), "");
        assert_eq!(with("rope_scaling", json!({"rope_type": "linear", "factor": 8.0})), "");
        assert_eq!(
            with("rope_scaling", json!({"rope_type": "linear", "factor": 0.5})),
            "c.json: field factor is 0.5, expected a number of at least 1"
        );
        assert_eq!(
            with("hidden_activation", json!("gelu")),
            "c.json: field hidden_activation is \"gelu\", expected gelu_pytorch_tanh"
        );
        assert_eq!(
            with("final_logit_softcapping", json!(30.0)),
            "c.json: field final_logit_softcapping is 30.0, expected none"
        );
        assert_eq!(
            with("use_bidirectional_attention", json!(true)),
            "c.json: field use_bidirectional_attention is true, expected false"
        );
        assert_eq!(with("sliding_window", json!(0)), "c.json: sliding_window is 0, expected at least 1");
        assert_eq!(with("layer_types", json!(["full_attention"])), "c.json: 1 layers are described, expected 2");
        assert_eq!(
            with("layer_types", json!(["full_attention", "chunked_attention"])),
            "c.json: field layer_types holds \"chunked_attention\", expected sliding_attention or full_attention"
        );
        let local = json!({"rope_type": "yarn", "rope_theta": 1e4});
        assert_eq!(
            with(
                "rope_parameters",
                json!({"full_attention": {"rope_theta": 1e6, "rope_type": "default"}, "sliding_attention": local})
            ),
            "c.json: rope_scaling \"yarn\" is not supported, expected none"
        );
        assert_eq!(
            with("vision_config", json!({"hidden_size": 1})),
            "c.json: field vision_config is not a single value, expected none (images are not supported)"
        );
    }

    #[test]
    fn rotary_rules_are_read_in_both_spellings() {
        let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192});
        let mut old = json!({"rope_theta": 500_000.0, "rope_scaling": scaling});
        let mut new = json!({"rope_parameters": scaling});
        new["rope_parameters"]["rope_theta"] = json!(500_000.0);
        let factors = |j: &Value| {
            let rope = Field::new("c.json", j).rope(10_000.0).unwrap();
            (rope.base, rope.llama3().map(|s| s.map(|s| s.factors(rope.base, 128))).map_err(|e| e.to_string()))
        };
        assert_eq!(factors(&old), factors(&new));
        assert_eq!(factors(&old).1.unwrap().unwrap()[63], 8.0);
        assert_eq!(factors(&json!({})), (10_000.0, Ok(None)));
        old["rope_scaling"]["factor"] = json!(0.5);
        assert!(factors(&old).1.unwrap_err().contains("expected factor >= 1"));
        old["rope_scaling"]["rope_type"] = json!("yarn");
        assert_eq!(factors(&old).1.unwrap_err(), "c.json: rope_scaling \"yarn\" is not supported, expected llama3");
        assert_eq!(
            refusal(&llama(), "rope_scaling", json!({"type": "dynamic", "factor": 2.0})),
            "c.json: rope_scaling \"dynamic\" is not supported, expected llama3"
        );
    }
}
