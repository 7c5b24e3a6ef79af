//! Stop texts and stop tokens: what of an answer may be told, and when it ends.

use zeroize::Zeroizing;

/// What ends an answer, as a client asks for it.
#[derive(Default)]
pub(crate) struct StopRules {
    /// Texts, none empty.
    pub(crate) texts: Vec<Zeroizing<String>>,
    /// Tokens.
    pub(crate) token_ids: Vec<u32>,
    /// Whether what ended the answer stays in it.
    pub(crate) include: bool,
    /// The answer is at least so many tokens long.
    pub(crate) min_tokens: usize,
}

/// What ended an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The stop text with this index.
    Text(usize),
    /// This token.
    Token(u32),
}

/// Follows one answer. Holds back every tail that could be the begin of a stop text.
pub(crate) struct StopMatcher {
    rules: StopRules,
    made: usize,
    held: Zeroizing<String>,
}

impl StopMatcher {
    pub(crate) fn new(rules: StopRules) -> Self {
        Self { rules, made: 0, held: Zeroizing::new(String::new()) }
    }

    /// Whether the token `id`, which comes next, ends the answer by itself.
    pub(crate) fn ends(&self, id: u32) -> bool {
        self.made + 1 > self.rules.min_tokens && self.rules.token_ids.contains(&id)
    }

    /// Takes the text that a token completes. Returns the text that can be told now, and what ended the answer.
    ///
    /// The stop text whose last character comes first counts; of those that end together, the longest. So the
    /// answer does not depend on how the text falls into tokens.
    pub(crate) fn push(&mut self, id: u32, text: &str) -> (String, Option<Stopped>) {
        let ends = self.ends(id);
        self.made += 1;
        if ends {
            let mut told = self.finish();
            if self.rules.include {
                told.push_str(text);
            }
            return (told, Some(Stopped::Token(id)));
        }
        if self.rules.texts.is_empty() || self.made < self.rules.min_tokens {
            return (text.to_owned(), None);
        }
        self.held.push_str(text);
        if let Some((begin, end, which)) = self.first_match() {
            let told = self.held[..if self.rules.include { end } else { begin }].to_owned();
            self.held.clear();
            return (told, Some(Stopped::Text(which)));
        }
        let safe = self.held.len() - self.open_tail();
        (self.held.drain(..safe).collect(), None)
    }

    /// The text that is still held when the answer ends in another way.
    pub(crate) fn finish(&mut self) -> String {
        self.held.drain(..).collect()
    }

    /// The text that stop text `which` is.
    pub(crate) fn text(&self, which: usize) -> &str {
        self.rules.texts.get(which).map_or("", |t| t.as_str())
    }

    fn first_match(&self) -> Option<(usize, usize, usize)> {
        let found = self.rules.texts.iter().enumerate();
        let found = found.filter_map(|(i, stop)| self.held.find(stop.as_str()).map(|at| (at, at + stop.len(), i)));
        found.min_by_key(|(begin, end, _)| (*end, *begin))
    }

    /// Length of the longest tail that is the begin of a stop text.
    fn open_tail(&self) -> usize {
        let starts = self.held.char_indices().map(|(at, _)| &self.held[at..]);
        let could_stop = |tail: &&str| self.rules.texts.iter().any(|stop| stop.starts_with(*tail));
        let longest = self.rules.texts.iter().map(|stop| stop.len()).max().unwrap_or(0);
        starts.skip_while(|tail| tail.len() >= longest).find(could_stop).map_or(0, str::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(texts: &[&str], include: bool) -> StopMatcher {
        let texts = texts.iter().map(|t| Zeroizing::new((*t).to_owned())).collect();
        StopMatcher::new(StopRules { texts, include, ..Default::default() })
    }

    /// What is told of `pieces`, and what ended them.
    fn told(m: &mut StopMatcher, pieces: &[&str]) -> (String, Option<Stopped>) {
        let mut all = String::new();
        for piece in pieces {
            let (text, stopped) = m.push(1, piece);
            all.push_str(&text);
            if stopped.is_some() {
                return (all, stopped);
            }
        }
        (all + &m.finish(), None)
    }

    #[test]
    fn every_split_of_a_text_ends_in_the_same_place() {
        let text = "ab\u{20ac}cd END \u{1f980}EN";
        let cuts: Vec<usize> = text.char_indices().map(|(i, _)| i).chain([text.len()]).collect();
        for (stops, include, expected, which) in [
            (&["END"][..], false, "ab\u{20ac}cd ", Some(0)),
            (&["END"], true, "ab\u{20ac}cd END", Some(0)),
            (&["cd END", "D"], false, "ab\u{20ac}", Some(0)),
            (&["xyz", "\u{20ac}c"], false, "ab", Some(1)),
            (&["cd EN", "d"], false, "ab\u{20ac}c", Some(1)),
            (&["\u{1f980}E", "b\u{20ad}"], false, "ab\u{20ac}cd END ", Some(0)),
            (&["ENDE", "\u{1f980}ENN"], false, text, None),
            (&[], false, text, None),
        ] {
            for a in &cuts {
                for b in cuts.iter().filter(|b| *b >= a) {
                    let found = told(&mut matcher(stops, include), &[&text[..*a], &text[*a..*b], "", &text[*b..]]);
                    assert_eq!(found, (expected.to_owned(), which.map(Stopped::Text)), "{stops:?} at {a}, {b}");
                }
            }
        }
    }

    #[test]
    fn only_what_could_begin_a_stop_text_is_held() {
        let mut m = matcher(&["</s>", "\n\n"], false);
        let steps: Vec<String> = ["a", "<", "/", "b", "\n", "c"].iter().map(|t| m.push(0, t).0).collect();
        assert_eq!(steps, ["a", "", "", "</b", "", "\nc"]);
        assert_eq!(m.push(0, "d\n").0, "d");
        assert_eq!(m.finish(), "\n");
    }

    #[test]
    fn tokens_end_an_answer_too_but_nothing_does_before_its_least_length() {
        let rules = || StopRules { token_ids: vec![7], texts: vec![Zeroizing::new("x".into())], ..Default::default() };
        let mut m = StopMatcher::new(rules());
        assert_eq!(m.push(1, "a"), ("a".into(), None));
        assert_eq!(m.push(7, "b"), (String::new(), Some(Stopped::Token(7))));
        let mut m = StopMatcher::new(StopRules { include: true, ..rules() });
        assert_eq!(m.push(7, "b"), ("b".into(), Some(Stopped::Token(7))));
        let mut m = StopMatcher::new(StopRules { min_tokens: 2, ..rules() });
        assert_eq!(m.push(7, "x"), ("x".into(), None));
        assert_eq!(m.push(1, "x"), (String::new(), Some(Stopped::Text(0))));
    }
}
