//! The figures on a terminal, and as text.

use std::collections::VecDeque;

use indicatif::HumanBytes;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Paragraph, Sparkline};

use super::figures::Figures;

/// Looks that the history remembers.
const PAST: usize = 240;

/// Tokens a second of the last looks.
#[derive(Default)]
pub(super) struct History(VecDeque<u64>);

impl History {
    pub(super) fn push(&mut self, figures: &Figures) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the height of a bar")]
        self.0.push_back((figures.tokens * 10.0).round() as u64);
        if self.0.len() > PAST {
            self.0.pop_front();
        }
    }
}

/// Every figure, a line each.
pub(super) fn text(f: &Figures) -> String {
    lines(f).join("\n")
}

/// One frame.
pub(super) fn draw(frame: &mut Frame<'_>, f: &Figures, history: &History) {
    let alarm = !f.forged.is_empty();
    let [head, bars, body] =
        Layout::vertical([Constraint::Length(3), Constraint::Length(6), Constraint::Min(1)]).areas(frame.area());
    let (title, style) = match (&f.trouble, alarm) {
        (_, true) => (forged(f), Style::new().fg(Color::White).bg(Color::Red).add_modifier(Modifier::BOLD)),
        (Some(trouble), _) => (trouble.clone(), Style::new().fg(Color::Yellow)),
        (None, _) => ("q ends".to_owned(), Style::new()),
    };
    frame.render_widget(Paragraph::new(title).style(style).block(Block::bordered().title("bifrost top")), head);
    let width = usize::from(bars.width.saturating_sub(2));
    let data: Vec<u64> = history.0.iter().copied().skip(history.0.len().saturating_sub(width)).collect();
    let block = Block::bordered().title(format!("tokens a second: {:.1}", f.tokens));
    frame.render_widget(Sparkline::default().data(data).block(block), bars);
    let text: Text<'_> = lines(f).into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title("figures")), body);
}

fn forged(f: &Figures) -> String {
    let checks: Vec<_> = f.forged.iter().map(|(check, n)| format!("{check} {n}")).collect();
    format!("ALARM: forged answers: {}", checks.join(", "))
}

fn lines(f: &Figures) -> Vec<String> {
    let seconds = |s: Option<f64>| match s {
        None => "-".to_owned(),
        Some(s) if s.is_infinite() => "beyond the last bucket".to_owned(),
        Some(s) => format!("<= {s} s"),
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes for people")]
    let bytes = |n: f64| HumanBytes(n.max(0.0) as u64).to_string();
    let mut lines = vec![
        format!("tokens a second       {:.1} made, {:.1} of answered prompts", f.tokens, f.prompt_tokens),
        format!("answers a second      {:.2}", f.answered),
        format!("to the first token    {} (median)", seconds(f.first_token)),
        format!("between tokens        {} (median), {} (p99)", seconds(f.inter_token.0), seconds(f.inter_token.1)),
    ];
    for p in &f.protocols {
        let batch = p.batch.map_or("-".to_owned(), |b| format!("{b:.1}"));
        let (running, waiting, pages) = (p.running, p.waiting, p.pages * 100.0);
        lines.push(format!(
            "{:<21} {running} running, {waiting} waiting, {batch} sequences a pass, {pages:.0} % of the pages",
            p.name
        ));
    }
    lines.push(format!("lanes ready           {}, {:.1} calls a second found too few", f.lanes, f.starved));
    lines.push(format!(
        "link                  {} up, {} down a second, {:.1} calls repeated, evaluator {}",
        bytes(f.bytes_up),
        bytes(f.bytes_down),
        f.retries,
        if f.connected { "connected" } else { "NOT connected" }
    ));
    for e in &f.evaluators {
        lines.push(match e.figures {
            None => format!("evaluator             {}: no answer", e.url),
            Some((resident, jobs, rate)) => {
                let (resident, rate) = (bytes(resident), bytes(rate));
                format!("evaluator             {}: {resident} resident, {jobs:.0} online jobs, {rate} a second", e.url)
            }
        });
    }
    if let Some((running, refused)) = f.proxy {
        lines.push(format!("proxy                 {running} running, {refused:.1} refused a second"));
    }
    lines.push(if f.forged.is_empty() { "alarms                none".into() } else { forged(f) });
    lines.extend(f.trouble.iter().map(|t| format!("trouble               {t}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::figures::{Evaluator, Protocol};
    use ratatui::{Terminal, backend::TestBackend};

    fn figures() -> Figures {
        let protocol = Protocol { name: "masked".into(), running: 4.0, waiting: 2.0, pages: 0.5, batch: Some(3.5) };
        let evaluators = vec![Evaluator { url: "http://e".into(), figures: Some((1024.0, 121.0, 2048.0)) }];
        Figures { protocols: vec![protocol], tokens: 12.25, lanes: 99.0, evaluators, ..Default::default() }
    }

    #[test]
    fn every_figure_has_its_line() {
        let text = text(&figures());
        for line in [
            "masked                4 running, 2 waiting, 3.5 sequences a pass, 50 % of the pages",
            "lanes ready           99, 0.0 calls a second found too few",
            "evaluator             http://e: 1.00 KiB resident, 121 online jobs, 2.00 KiB a second",
            "alarms                none",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_frame_shows_figures_history_and_above_all_alarms() {
        let mut terminal = Terminal::new(TestBackend::new(100, 24)).expect("a terminal");
        let mut history = History::default();
        let shown = |terminal: &Terminal<TestBackend>| {
            terminal.backend().buffer().content().iter().map(|c| c.symbol()).collect::<String>()
        };
        let mut f = figures();
        for _ in 0..PAST + 9 {
            history.push(&f);
        }
        assert_eq!((history.0.len(), history.0[0]), (PAST, 123));
        terminal.draw(|frame| draw(frame, &f, &history)).expect("drawn");
        let screen = shown(&terminal);
        assert!(screen.contains("tokens a second: 12.2") && screen.contains("99, 0.0 calls"), "{screen}");
        assert!(screen.contains('\u{2588}'), "no bars");
        f.forged = vec![("online".into(), 1.0)];
        terminal.draw(|frame| draw(frame, &f, &history)).expect("drawn");
        assert!(shown(&terminal).contains("ALARM: forged answers: online 1"));
    }
}
