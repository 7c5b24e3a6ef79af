//! Prometheus' text format, as far as our daemons write it.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Error;

/// What an answer may have at most.
const MOST: u64 = 4 << 20;

/// Samples of one listener at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Vec<(String, String, f64)>);

impl Samples {
    /// Reads the text; lines that are no samples are skipped.
    pub(super) fn parse(text: &str) -> Self {
        let sample = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            Some((name.to_owned(), labels.trim_end_matches('}').to_owned(), value.parse().ok()?))
        };
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    /// The sum of the samples of `name` whose labels hold `part`.
    pub(super) fn sum(&self, name: &str, part: &str) -> f64 {
        self.0.iter().filter(|(n, labels, _)| n == name && labels.contains(part)).map(|(_, _, v)| v).sum()
    }

    /// The values that label `label` has in the samples of `name`, with their sums.
    pub(super) fn by(&self, name: &str, label: &str) -> Vec<(String, f64)> {
        let mut all: Vec<(String, f64)> = Vec::new();
        for (_, labels, value) in self.0.iter().filter(|(n, ..)| n == name) {
            let of = |pair: &str| pair.strip_prefix(label)?.strip_prefix("=\"")?.strip_suffix('"').map(str::to_owned);
            let Some(key) = labels.split(',').find_map(of) else { continue };
            match all.iter_mut().find(|(k, _)| *k == key) {
                Some((_, sum)) => *sum += value,
                None => all.push((key, *value)),
            }
        }
        all
    }

    /// The value below which the share `q` of what histogram `name` counted since `before` lies: the bound of its bucket.
    pub(super) fn quantile(&self, before: &Self, name: &str, q: f64) -> Option<f64> {
        let bucket = format!("{name}_bucket");
        let mut counts: Vec<(f64, f64)> = self
            .by(&bucket, "le")
            .into_iter()
            .map(|(le, n)| (le.parse().unwrap_or(f64::INFINITY), n - before.sum(&bucket, &format!("le=\"{le}\""))))
            .collect();
        counts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let total = counts.last()?.1;
        (total > 0.0).then(|| counts.iter().find(|(_, n)| *n >= q * total).map_or(f64::INFINITY, |(le, _)| *le))
    }
}

/// Asks for a metrics page.
///
/// # Errors
/// [`Error::Usage`] for another kind of URL, [`Error::Runtime`] when there is no good answer.
pub(super) async fn scrape(url: &str, patience: Duration) -> Result<Samples, Error> {
    let rest = url.strip_prefix("http://");
    let rest = rest.ok_or_else(|| Error::Usage(format!("metrics URL `{url}`: expected http://HOST:PORT/metrics")))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, "metrics"));
    let ask = async {
        let mut stream = TcpStream::connect(host).await?;
        stream.write_all(format!("GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
        let mut text = String::new();
        stream.take(MOST).read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    let no = |why: String| Error::Runtime(format!("no metrics at {url}: {why}"));
    let text = tokio::time::timeout(patience, ask).await.map_err(|_| no("no answer in time".into()))?;
    let text = text.map_err(|e| no(e.to_string()))?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| no("no HTTP".into()))?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status == "200" { Ok(Samples::parse(body)) } else { Err(no(format!("HTTP status {status}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "h_bucket{le=\"0.1\"} 10\nh_bucket{le=\"1\"} 10\nh_bucket{le=\"+Inf\"} 10\n";
    const AFTER: &str = "# TYPE a counter\na{k=\"x\",l=\"1\"} 2\na{k=\"y\"} 3.5\na{k=\"x\"} 1\nb 7\nnonsense\n\
        h_bucket{le=\"0.1\"} 12\nh_bucket{le=\"1\"} 19\nh_bucket{le=\"+Inf\"} 20\n";

    #[test]
    fn samples_are_summed_by_labels() {
        let s = Samples::parse(AFTER);
        assert_eq!((s.sum("a", ""), s.sum("a", "k=\"x\""), s.sum("b", ""), s.sum("c", "")), (6.5, 3.0, 7.0, 0.0));
        assert_eq!(s.by("a", "k"), [("x".to_owned(), 3.0), ("y".to_owned(), 3.5)]);
    }

    #[test]
    fn quantiles_are_of_what_came_in_between() {
        let (before, after) = (Samples::parse(BEFORE), Samples::parse(AFTER));
        assert_eq!(after.quantile(&before, "h", 0.1), Some(0.1));
        assert_eq!(after.quantile(&before, "h", 0.5), Some(1.0));
        assert_eq!(after.quantile(&before, "h", 0.99), Some(f64::INFINITY));
        assert_eq!(after.quantile(&after, "h", 0.5), None);
    }
}
