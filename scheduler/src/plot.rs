//! A run as a picture: SVG, written by hand. A few polylines under one time axis need no drawing crate, and none that
//! brings fonts with it.

use std::fmt::Write as _;

use crate::simulate::{Point, Timeline};

/// The picture's size and margins, in pixels.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 54.0;
const PANEL: f64 = 110.0;
const GAP: f64 = 42.0;

/// One curve over time.
struct Panel {
    title: &'static str,
    color: &'static str,
    value: fn(&Point) -> u32,
    /// Drawn across, if there is such a limit.
    limit: Option<u32>,
}

/// Draws what ran, waited and was swapped, the blocks held and the tokens of a step, over time.
pub fn svg(timeline: &Timeline, title: &str) -> String {
    let panels = [
        Panel { title: "running", color: "#1b7f4d", value: |point| point.num_running, limit: None },
        Panel { title: "waiting", color: "#b5541b", value: |point| point.num_waiting, limit: None },
        Panel { title: "swapped", color: "#7a4fb5", value: |point| point.num_swapped, limit: None },
        Panel {
            title: "blocks held",
            color: "#1f5fa8",
            value: |point| point.live_blocks,
            limit: Some(timeline.total_blocks),
        },
        Panel { title: "tokens a step", color: "#555555", value: |point| point.num_tokens, limit: None },
    ];
    let height = TOP + panels.len() as f64 * (PANEL + GAP) + 12.0;
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\" fill=\"#111111\">{}</text>",
        escaped(title)
    );
    for (place, panel) in panels.iter().enumerate() {
        draw(&mut svg, timeline, panel, TOP + place as f64 * (PANEL + GAP));
    }
    svg.push_str("</svg>\n");
    svg
}

/// A panel with its frame, its two axes and its curve.
fn draw(svg: &mut String, timeline: &Timeline, panel: &Panel, top: f64) {
    let points = &timeline.points;
    let values = || points.iter().map(panel.value);
    let peak = values().max().unwrap_or(0);
    // A limit far above the curve would flatten it, and is only told.
    let limit = panel.limit.filter(|&limit| limit > 0);
    let drawn_limit = limit.filter(|&limit| u64::from(limit) <= 2 * u64::from(peak));
    let high = nice_above(f64::from(peak.max(drawn_limit.unwrap_or(0)).max(1)));
    let begin = points.first().map_or(0.0, |point| point.time_s);
    let span = points.last().map_or(0.0, |point| point.time_s - begin).max(1e-9);
    let (right, bottom) = (WIDTH - RIGHT, top + PANEL);
    let x = |time_s: f64| LEFT + (time_s - begin) / span * (right - LEFT);
    let y = |value: f64| bottom - value / high * PANEL;
    let told = limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\" fill=\"#111111\">{}, at most {peak}{told}</text>",
        top - 6.0,
        panel.title
    );
    for part in 0..=2 {
        let value = high * f64::from(part) / 2.0;
        grid_line(svg, (LEFT, y(value)), (right, y(value)));
        label(svg, (LEFT - 6.0, y(value) + 4.0), "end", &number(value));
    }
    let tick = nice_above(span / 8.0);
    for time in (0..).map(|count| f64::from(count) * tick).take_while(|time| *time <= span) {
        grid_line(svg, (x(begin + time), top), (x(begin + time), bottom));
        label(svg, (x(begin + time), bottom + 14.0), "middle", &format!("{} s", number(time)));
    }
    if let Some(limit) = drawn_limit {
        let at = y(f64::from(limit));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#c03030\" stroke-dasharray=\"5 4\"/>"
        );
    }
    let _ = write!(svg, "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.2\" points=\"", panel.color);
    let mut held = None;
    for (point, value) in points.iter().zip(values()) {
        let (x, y) = (x(point.time_s), y(f64::from(value)));
        // A value holds until the next step.
        if let Some(held) = held.replace(y) {
            let _ = write!(svg, "{x:.1},{held:.1} ");
        }
        let _ = write!(svg, "{x:.1},{y:.1} ");
    }
    svg.push_str("\"/>\n");
}

fn grid_line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#e4e4e4\"/>"
    );
}

fn label(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"10\" fill=\"#666666\">{text}</text>"
    );
}

/// The least of 1, 2, 2.5, 5 and 10 times a power of ten that is not below `value`.
fn nice_above(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|nice| *nice >= value * (1.0 - 1e-12)).unwrap_or(value)
}

/// Without digits that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_curve_for_each_panel_whatever_the_run() {
        for num_points in [0, 1, 2, 500] {
            let mut timeline = Timeline::new(100);
            for step in 0..num_points {
                let point = Point { time_s: f64::from(step), live_blocks: step % 100, ..Point::default() };
                timeline.push(|| point);
            }
            let svg = svg(&timeline, "a < b & c");
            assert_eq!(svg.matches("<polyline").count(), 5);
            assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!([0.7, 1.0, 11.0, 21.0, 26.0, 99.0].map(nice_above), [1.0, 1.0, 20.0, 25.0, 50.0, 100.0]);
        assert_eq!([0.0, 2.5, 1000.0].map(number), ["0", "2.5", "1000"]);
    }
}
