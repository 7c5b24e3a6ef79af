//! Chat templates: Jinja from the model file, run with a fuel limit because files are untrusted.

use crate::Error;
use minijinja::{Environment, ErrorKind, Value, context, syntax::SyntaxConfig};
use std::time::{SystemTime, UNIX_EPOCH};

/// Instructions that one rendering may execute; real templates need some hundred per message.
const FUEL: u64 = 10_000_000;
/// Longest template, bytes.
const LONGEST: usize = 1 << 20;

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

/// The special texts that templates may insert.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpecialTexts {
    pub(crate) bos: String,
    pub(crate) eos: String,
}

impl ChatTemplate {
    /// Compiles `source`; `file` is for messages.
    ///
    /// # Errors
    /// [`Error::Model`] with the reason and the line.
    pub(crate) fn new(file: &str, source: String, special: SpecialTexts) -> Result<Self, Error> {
        if source.len() > LONGEST {
            return Err(Error::Model(format!(
                "{file}: chat template has {} bytes, expected at most {LONGEST}",
                source.len()
            )));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| Error::Bug(format!("template syntax: {e}")))?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
        });
        environment.add_function("strftime_now", |format: String| -> Result<String, minijinja::Error> {
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
            strftime(&format, seconds)
        });
        environment
            .add_template_owned("chat", source)
            .map_err(|e| Error::Model(format!("{file}: chat template: {}", reason(&e))))?;
        Ok(Self { environment, bos: special.bos, eos: special.eos })
    }

    /// The prompt for `messages`, (role, content) each, up to where the assistant speaks.
    ///
    /// # Errors
    /// [`Error::Client`] if the template refuses the messages or runs out of fuel; never quotes them.
    pub fn render(&self, messages: &[(&str, &str)]) -> Result<String, Error> {
        let messages: Vec<Value> = messages.iter().map(|&(role, content)| context! { role, content }).collect();
        let template =
            self.environment.get_template("chat").map_err(|e| Error::Bug(format!("chat template: {}", reason(&e))))?;
        template
            .render(context! {
                messages,
                add_generation_prompt => true,
                bos_token => &self.bos,
                eos_token => &self.eos,
            })
            .map_err(|e| Error::Client(format!("the chat template does not accept the messages: {}", reason(&e))))
    }
}

/// Marks errors that a template raised itself, whose text is the template author's.
const RAISED: &str = "raised: ";

/// Kind and line of an error. Its detail may quote values and is left out, unless the template raised it.
fn reason(e: &minijinja::Error) -> String {
    let line = e.line().map_or(String::new(), |l| format!(" in line {l}"));
    match e.detail().and_then(|d| d.strip_prefix(RAISED)) {
        Some(raised) => raised.chars().take(200).collect(),
        None => format!("{}{line}", e.kind()),
    }
}

/// The UTC date parts that model templates ask for.
fn strftime(format: &str, seconds: u64) -> Result<String, minijinja::Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let (year, month, day) = civil(seconds / 86_400);
    let name = MONTHS[month - 1];
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match letters.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('b') => out.push_str(&name[..3]),
            Some('B') => out.push_str(name),
            Some('H') => out.push_str(&format!("{:02}", seconds / 3600 % 24)),
            Some('M') => out.push_str(&format!("{:02}", seconds / 60 % 60)),
            Some('S') => out.push_str(&format!("{:02}", seconds % 60)),
            Some('%') => out.push('%'),
            _ => {
                let message = format!("{RAISED}strftime_now supports %Y %m %d %b %B %H %M %S %%");
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, message));
            }
        }
    }
    Ok(out)
}

/// Year, month and day of a day number since 1970-01-01.
fn civil(days: u64) -> (u64, usize, u64) {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    (year, month + 1, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Result<ChatTemplate, Error> {
        let special = SpecialTexts { bos: "<s>".to_owned(), eos: "</s>".to_owned() };
        ChatTemplate::new("m.gguf", source.to_owned(), special)
    }

    #[test]
    fn renders_messages_and_python_methods() {
        let t = template(
            "{{ bos_token }}{% for m in messages %}\n{{ m['role'].upper() }}: {{ m.content.strip() }}{{ eos_token }}{% endfor %}\n{% if add_generation_prompt %}A:{% endif %}",
        )
        .unwrap();
        assert_eq!(t.render(&[("user", " hi "), ("bot", "x")]).unwrap(), "<s>USER: hi</s>BOT: x</s>A:");
    }

    /// What the templates of Qwen3 and Gemma 3 use beside loops and conditions.
    #[test]
    fn renders_what_templates_of_other_families_use() {
        let t = template(
            "{%- set ns = namespace(last=messages|length - 1, seen=false) %}\n\
             {%- for m in messages[::-1] %}\n\
             {%- if not ns.seen and m.role == 'user' and not (m.content.startswith('<r>') and m.content.endswith('</r>')) %}\n\
             {%- set ns.seen = true %}{%- set ns.last = (messages|length - 1) - loop.index0 %}\n\
             {%- endif %}{%- endfor %}\n\
             {{- ns.last }}\n\
             {%- for m in messages[1:] %}\n\
             {%- if (m['role'] == 'user') != (loop.index0 % 2 == 1) %}{{ raise_exception('turns') }}{% endif %}\n\
             {{- '|' + m['role'] + ':' + (m['content'] | trim if m['content'] is string else '') }}\n\
             {%- if m.tool_calls %}calls{% endif %}\n\
             {%- if '</t>' in m.content %}{{- '=' + m.content.split('</t>')[-1].lstrip('\\n') }}{% endif %}\n\
             {%- endfor %}\n\
             {%- if enable_thinking is defined and enable_thinking is false %}never{% endif %}",
        )
        .unwrap();
        let messages = [("system", "s"), ("assistant", "<t>x</t>\n\ny"), ("user", " u "), ("assistant", "z")];
        assert_eq!(t.render(&messages).unwrap(), "2|assistant:<t>x</t>\n\ny=y|user:u|assistant:z");
        assert!(t.render(&messages[1..]).unwrap_err().to_string().ends_with("turns"));
    }

    #[test]
    fn refusals_do_not_quote_the_messages() {
        let raised = template("{{ raise_exception('roles must alternate') }}").unwrap();
        let error = raised.render(&[("user", "secret")]).unwrap_err().to_string();
        assert!(error.ends_with("roles must alternate"), "{error}");
        let endless =
            template("{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}");
        let error = endless.unwrap().render(&[("user", "secret")]).unwrap_err().to_string();
        assert!(error.contains("fuel"), "{error}");
        let wrong = template("{{ messages[0].content.secret_method() }}").unwrap();
        let error = wrong.render(&[("user", "secret")]).unwrap_err().to_string();
        assert!(matches!(wrong.render(&[("user", "secret")]), Err(Error::Client(_))) && !error.contains("secret"));
        let error = template("{% for %}").err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.starts_with("m.gguf: chat template: syntax error"), "{error}");
    }

    #[test]
    fn dates() {
        assert_eq!(
            strftime("%d %b %Y %H:%M:%S %B %m %%", 1_709_210_096).unwrap(),
            "29 Feb 2024 12:34:56 February 02 %"
        );
        assert!(strftime("%Q", 0).is_err());
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
    }
}
