//! How looks are shown.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table, Widget};

use super::look::{Looks, Rates, Stats};

/// Lines above the list of requests.
const HEAD: u16 = 7;

const DIM: Style = Style::new().fg(Color::DarkGray);
const BAD: Style = Style::new().fg(Color::Red);
const LIVE: Style = Style::new().fg(Color::Blue);
const CACHED: Style = Style::new().fg(Color::Cyan);

/// All that is shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Screen {
    /// Where the server listens.
    pub(super) url: String,
    pub(super) looks: Looks,
    /// Why there is nothing new.
    pub(super) lost: Option<String>,
}

impl Screen {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        self.render(frame.area(), frame.buffer_mut());
    }

    /// The whole screen as lines of text, as wide as they are.
    pub(super) fn text(&self) -> String {
        let num_rows = self.looks.last().map_or(0, |look| look.requests.len()) as u16;
        let area = Rect::new(0, 0, 160, HEAD + 1 + num_rows);
        let mut buffer = Buffer::empty(area);
        self.render(area, &mut buffer);
        let line = |y| {
            let symbols = (0..area.width).filter_map(|x| buffer.cell((x, y))).map(|cell| cell.symbol());
            format!("{}\n", symbols.collect::<String>().trim_end())
        };
        (0..area.height).map(line).collect()
    }

    fn render(&self, area: Rect, buffer: &mut Buffer) {
        let [head, list] = Layout::vertical([Constraint::Length(HEAD), Constraint::Min(0)]).areas(area);
        for (y, line) in (head.y..head.bottom()).zip(self.head(head.width)) {
            buffer.set_line(head.x, y, &line, head.width);
        }
        Widget::render(self.requests(), list, buffer);
    }

    fn head(&self, width: u16) -> Vec<Line<'static>> {
        let mut lines = vec![self.title()];
        let Some(look) = self.looks.last() else { return lines };
        let (stats, rates) = (&look.stats, self.looks.rates().unwrap_or_default());
        lines.push(Line::default());
        lines.push(speed(&rates));
        lines.push(times(&rates));
        lines.push(queues(stats));
        lines.push(pool(stats, width));
        lines
    }

    fn title(&self) -> Line<'static> {
        let state = match &self.lost {
            Some(why) => Span::styled(format!("lost, asking again: {why}"), BAD),
            None if self.looks.last().is_none() => Span::styled("connecting", DIM),
            None => Span::styled("q ends", DIM),
        };
        let name = Span::styled("quire top", Style::new().add_modifier(Modifier::BOLD));
        Line::from(vec![name, Span::raw(format!("  {}  ", self.url)), state])
    }

    fn requests(&self) -> Table<'static> {
        let look = self.looks.last();
        let shown = look.map(|look| look.requests.as_slice()).unwrap_or_default();
        let widths = [Constraint::Max(44), Constraint::Length(9), Constraint::Length(9), Constraint::Fill(1)];
        let rows = shown.iter().map(|one| {
            let age = format!("{:.1} s", one.age_s);
            let style = if one.status == "running" { LIVE } else { Style::new() };
            let cells = [one.name(), one.status.clone(), age, one.reason().to_owned()];
            Row::new(cells.map(Cell::from)).style(style)
        });
        let more = look.map_or(0, |look| look.num_requests).saturating_sub(shown.len());
        let why = if more > 0 { format!("why ({more} more)") } else { "why".to_owned() };
        Table::new(rows, widths)
            .header(Row::new(["request".to_owned(), "state".to_owned(), "age".to_owned(), why]).style(DIM))
            .column_spacing(2)
    }
}

fn speed(rates: &Rates) -> Line<'static> {
    named(&[
        ("generation", format!("{:.0} tok/s", rates.generated)),
        ("prompts", format!("{:.0} tok/s", rates.of_prompts)),
        ("steps", format!("{:.1} /s", rates.steps)),
    ])
}

fn times(rates: &Rates) -> Line<'static> {
    let ms = |value: Option<f64>, digits| value.map_or("-".to_owned(), |ms| format!("{ms:.digits$} ms"));
    named(&[
        ("TTFT", ms(rates.ttft_ms, 0)),
        ("TPOT", ms(rates.tpot_ms, 2)),
        ("cache hits", rates.hits.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share))),
    ])
}

fn queues(stats: &Stats) -> Line<'static> {
    named(&[
        ("running", stats.num_running.to_string()),
        ("waiting", stats.num_waiting().to_string()),
        ("swapped", stats.num_swapped.to_string()),
        ("preempted", stats.num_preemptions.to_string()),
    ])
}

/// Names and values in columns.
fn named(values: &[(&'static str, String)]) -> Line<'static> {
    let spans = values.iter().flat_map(|(name, value)| {
        [Span::styled(format!("{name:<11}"), DIM), Span::raw(format!("{value:<14}"))]
    });
    Line::from_iter(spans)
}

/// The KV pool as a bar: what sequences hold, what is kept for its content, what is free.
fn pool(stats: &Stats, width: u16) -> Line<'static> {
    let cells = u64::from(width.saturating_sub(60).clamp(10, 60));
    let all = stats.num_blocks().max(1);
    // Whatever is there shows, be it a sliver.
    let part = |blocks: u64| if blocks == 0 { 0 } else { (blocks * cells / all).max(1) as usize };
    let (live, cached) = (part(stats.num_live_blocks), part(stats.num_cached_blocks));
    let cached = cached.min((cells as usize).saturating_sub(live));
    let free = (cells as usize).saturating_sub(live + cached);
    let numbers = format!(
        "  {} live, {} cached, {} free",
        stats.num_live_blocks, stats.num_cached_blocks, stats.num_free_blocks
    );
    Line::from(vec![
        Span::styled(format!("{:<11}", "KV blocks"), DIM),
        Span::styled("#".repeat(live), LIVE),
        Span::styled("+".repeat(cached), CACHED),
        Span::styled(".".repeat(free), DIM),
        Span::raw(numbers),
    ])
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::look::tests::look;
    use super::*;

    fn screen() -> Screen {
        let mut looks = Looks::default();
        looks.push(look(1000, 0));
        looks.push(look(2000, 100));
        Screen { url: "http://h:1".to_owned(), looks, lost: None }
    }

    #[test]
    fn a_terminal_shows_numbers_and_reasons() {
        let mut terminal = Terminal::new(TestBackend::new(96, 10)).expect("a buffer");
        terminal.draw(|frame| screen().draw(frame)).expect("drawn");
        let lines = plain(terminal.backend().buffer()).join("\n");
        for part in ["100 tok/s", "TTFT       20 ms", "TPOT       5.00 ms", "waiting    2", "swapped    1"] {
            assert!(lines.contains(part), "{part}\n{lines}");
        }
        assert!(lines.contains("##########+++......................."), "{lines}");
        assert!(lines.contains("cmpl-b #1") && lines.contains("waits for blocks: 7 needed"), "{lines}");
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in [(1, 1), (5, 3), (20, 8), (300, 2)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a buffer");
            terminal.draw(|frame| screen().draw(frame)).expect("drawn");
        }
    }

    #[test]
    fn a_server_that_is_lost_is_said() {
        let lost = Screen { lost: Some("refused".to_owned()), ..screen() };
        assert!(lost.text().starts_with("quire top  http://h:1  lost, asking again: refused\n"));
        assert!(Screen::default().text().contains("connecting"));
    }

    fn plain(buffer: &Buffer) -> Vec<String> {
        let area = buffer.area;
        let line =
            |y| (0..area.width).filter_map(|x| buffer.cell((x, y))).map(|cell| cell.symbol()).collect();
        (0..area.height).map(line).collect()
    }
}
