//! Curves in panels, one below the other.

use std::fmt::Write as _;

/// The picture's size and margins, in pixels.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = WIDTH - 16.0;
const TOP: f64 = 54.0;
const PANEL: f64 = 110.0;
const GAP: f64 = 42.0;

/// A picture of panels.
///
/// ```
/// use quire_scheduler::plot::{Chart, Panel};
///
/// let points = vec![(0.0, 1.0), (2.5, 4.0), (5.0, 2.0)];
/// let panel = Panel { title: "waiting".into(), color: "#1b7f4d", unit: "s", points, limit: None };
/// let svg = Chart { title: "a run".into(), panels: vec![panel] }.svg();
/// assert!(svg.starts_with("<svg") && svg.contains("<polyline"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What stands above all.
    pub title: String,
    /// The panels, from above.
    pub panels: Vec<Panel>,
}

/// A curve whose value holds until its next point.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// What stands above the curve.
    pub title: String,
    /// The curve's colour, as SVG writes it: `#1b7f4d`.
    pub color: &'static str,
    /// The unit of the axis below.
    pub unit: &'static str,
    /// Where the curve goes: places of at least 0, in order, and values of at least 0.
    pub points: Vec<(f64, f64)>,
    /// A value that is drawn across.
    pub limit: Option<f64>,
}

impl Chart {
    /// The picture as an SVG document.
    pub fn svg(&self) -> String {
        let height = TOP + self.panels.len() as f64 * (PANEL + GAP) + 12.0;
        let mut svg = String::new();
        let _ = writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\" fill=\"#111111\">{}</text>",
            escaped(&self.title)
        );
        for (place, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut svg, TOP + place as f64 * (PANEL + GAP));
        }
        svg.push_str("</svg>\n");
        svg
    }
}

impl Panel {
    /// The panel with its frame, its two axes and its curve.
    fn draw(&self, svg: &mut String, top: f64) {
        let scale = Scale::of(self, top);
        let title = escaped(&self.title);
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\" fill=\"#111111\">{title}</text>", top - 6.0);
        scale.draw_axes(svg, self.unit);
        if let Some(limit) = self.limit {
            let at = scale.y(limit);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\" stroke=\"#c03030\" stroke-dasharray=\"5 4\"/>"
            );
        }
        let _ =
            write!(svg, "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.2\" points=\"", self.color);
        let mut held = None;
        for &(place, value) in &self.points {
            let (x, y) = (scale.x(place), scale.y(value));
            if let Some(held) = held.replace(y) {
                let _ = write!(svg, "{x:.1},{held:.1} ");
            }
            let _ = write!(svg, "{x:.1},{y:.1} ");
        }
        svg.push_str("\"/>\n");
    }
}

/// Where a panel's places and values lie in the picture.
struct Scale {
    /// The last place.
    span: f64,
    /// The value at the panel's upper edge.
    high: f64,
    top: f64,
}

impl Scale {
    fn of(panel: &Panel, top: f64) -> Self {
        let peak = panel.points.iter().map(|point| point.1).chain(panel.limit).fold(0.0, f64::max);
        let span = panel.points.last().map_or(0.0, |point| point.0).max(1e-9);
        Self { span, high: nice_above(if peak > 0.0 { peak } else { 1.0 }), top }
    }

    fn x(&self, place: f64) -> f64 {
        LEFT + place / self.span * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        self.top + PANEL - value / self.high * PANEL
    }

    /// Lines and numbers: three values, and about eight places.
    fn draw_axes(&self, svg: &mut String, unit: &str) {
        for part in 0..=2 {
            let value = self.high * f64::from(part) / 2.0;
            grid_line(svg, (LEFT, self.y(value)), (RIGHT, self.y(value)));
            label(svg, (LEFT - 6.0, self.y(value) + 4.0), "end", &number(value));
        }
        let bottom = self.top + PANEL;
        let tick = nice_above(self.span / 8.0);
        for place in (0..).map(|count| f64::from(count) * tick).take_while(|place| *place <= self.span) {
            grid_line(svg, (self.x(place), self.top), (self.x(place), bottom));
            label(svg, (self.x(place), bottom + 14.0), "middle", &format!("{} {unit}", number(place)));
        }
    }
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
    fn scales_end_at_round_numbers() {
        assert_eq!([0.7, 1.0, 11.0, 21.0, 26.0, 99.0].map(nice_above), [1.0, 1.0, 20.0, 25.0, 50.0, 100.0]);
        assert_eq!([0.0, 2.5, 1000.0].map(number), ["0", "2.5", "1000"]);
    }
}
