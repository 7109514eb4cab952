//! `quire top`: what a server is doing, in a terminal.

mod look;
mod view;
mod watch;

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use self::view::Screen;
use self::watch::{News, watch};
use super::model::runtime;
use super::remote::{Client, ClientError, Site};
use crate::error::{Error, Result};

/// How often keys are looked for.
const KEY_PERIOD: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    site: Site,
    /// Prints one look as text, and ends.
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(args: &TopArgs) -> Result<()> {
    let client = args.site.client()?;
    let screen = Screen { url: args.site.url.to_string(), ..Screen::default() };
    if args.once {
        return runtime()?.block_on(once(client, screen));
    }
    let mut terminal = ratatui::try_init().map_err(Error::Terminal)?;
    let shown = runtime()?.block_on(show(client, screen, &mut terminal));
    ratatui::restore();
    shown
}

/// Two looks, since what happens in a second shows between two.
async fn once(client: Client, mut screen: Screen) -> Result<()> {
    let failed = |error: ClientError| Error::Server { reason: error.to_string() };
    let mut num_looks = 0;
    watch::looks(&client, |look| {
        screen.looks.push(look);
        num_looks += 1;
        num_looks < 2
    })
    .await
    .map_err(failed)?;
    io::stdout().write_all(screen.text().as_bytes()).map_err(Error::Stdout)
}

/// Shows what comes, until a key ends it.
async fn show(client: Client, mut screen: Screen, terminal: &mut DefaultTerminal) -> Result<()> {
    let (sender, mut news) = mpsc::channel(4);
    tokio::spawn(watch(client, sender));
    let mut keys = tokio::time::interval(KEY_PERIOD);
    loop {
        terminal.draw(|frame| screen.draw(frame)).map_err(Error::Terminal)?;
        tokio::select! {
            Some(news) = news.recv() => screen.take(news),
            _ = keys.tick() => if is_ended().map_err(Error::Terminal)? { return Ok(()) },
        }
    }
}

/// Whether somebody pressed q, Escape or Ctrl-C.
fn is_ended() -> io::Result<bool> {
    while event::poll(Duration::ZERO)? {
        if let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let is_interrupt =
                key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if is_interrupt || [KeyCode::Char('q'), KeyCode::Esc].contains(&key.code) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

impl Screen {
    fn take(&mut self, news: News) {
        match news {
            News::Look(look) => {
                // Between looks with a gap nothing is known.
                if self.lost.take().is_some() {
                    self.looks.clear();
                }
                self.looks.push(*look);
            }
            News::Lost(why) => self.lost = Some(why),
        }
    }
}
