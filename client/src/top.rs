//! `bifrost top`: what the daemons are doing, live, from the figures that they show to Prometheus.

mod figures;
mod scrape;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};

use crate::Error;
use crate::cli::TopArgs;
use crate::report::print;
use figures::{Figures, Look};
use scrape::scrape;

/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at the keyboard.
const KEYS: Duration = Duration::from_millis(50);

/// Shows the figures until `q`, Ctrl-C, or, with `--once` or without a terminal, once.
///
/// # Errors
/// [`Error::Usage`] for a URL that is no `http://HOST:PORT/PATH`, [`Error::Runtime`] when the runtime's metrics cannot be
/// had, [`Error::Platform`] when the terminal fails.
pub async fn run(args: &TopArgs) -> Result<ExitCode, Error> {
    let first = look(args).await?;
    let every = Duration::from_secs(args.every);
    if args.once || !std::io::stdout().is_terminal() {
        tokio::time::sleep(every).await;
        let figures = Figures::between(&first, &look(args).await?);
        print(&format!("{}\n", view::text(&figures)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut terminal = ratatui::init();
    let shown = show(args, first, every, &mut terminal).await;
    ratatui::restore();
    shown.map(|()| ExitCode::SUCCESS)
}

async fn show(
    args: &TopArgs,
    mut last: Look,
    every: Duration,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Platform(format!("terminal: {error}"));
    let mut history = view::History::default();
    let mut figures = Figures::default();
    loop {
        terminal.draw(|frame| view::draw(frame, &figures, &history)).map_err(failed)?;
        let until = Instant::now() + every;
        while Instant::now() < until {
            let key = tokio::task::block_in_place(|| event::poll(KEYS)).map_err(failed)?;
            if key && is_end(&event::read().map_err(failed)?) {
                return Ok(());
            }
        }
        match look(args).await {
            Ok(next) => {
                figures = Figures::between(&last, &next);
                last = next;
            }
            Err(error) => figures.trouble = Some(error.to_string()),
        }
        history.push(&figures);
    }
}

fn is_end(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let interrupted = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    interrupted || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

/// One look at everybody. An evaluator or proxy that does not answer is shown as such; without the runtime there is
/// nothing to show.
async fn look(args: &TopArgs) -> Result<Look, Error> {
    let at = Instant::now();
    let runtime = scrape(&args.runtime, PATIENCE).await?;
    let mut evaluators = Vec::new();
    for url in &args.evaluator {
        evaluators.push((url.clone(), scrape(url, PATIENCE).await.ok()));
    }
    let proxy = match &args.proxy {
        Some(url) => scrape(url, PATIENCE).await.ok(),
        None => None,
    };
    Ok(Look { at, runtime, evaluators, proxy })
}
