//! A run as a picture: SVG, written by hand. A few polylines under one axis need no drawing crate, and none that brings
//! fonts with it.

mod chart;

pub use chart::{Chart, Panel};

use crate::simulate::{Point, Timeline};

/// What of a point is drawn, where, and in which colour.
type Curve = (&'static str, &'static str, fn(&Point) -> u32, Option<u32>);

/// Draws what ran, waited and was swapped, the blocks held and the tokens of a step, over time.
pub fn svg(timeline: &Timeline, title: &str) -> String {
    let curves: [Curve; 5] = [
        ("running", "#1b7f4d", |point| point.num_running, None),
        ("waiting", "#b5541b", |point| point.num_waiting, None),
        ("swapped", "#7a4fb5", |point| point.num_swapped, None),
        ("blocks held", "#1f5fa8", |point| point.live_blocks, Some(timeline.total_blocks)),
        ("tokens a step", "#555555", |point| point.num_tokens, None),
    ];
    let panels = curves.into_iter().map(|curve| panel(&timeline.points, curve)).collect();
    Chart { title: title.to_owned(), panels }.svg()
}

fn panel(points: &[Point], (name, color, value, limit): Curve) -> Panel {
    let begin = points.first().map_or(0.0, |point| point.time_s);
    let peak = points.iter().map(value).max().unwrap_or(0);
    let limit = limit.filter(|&limit| limit > 0);
    let told = limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
    Panel {
        title: format!("{name}, at most {peak}{told}"),
        color,
        unit: "s",
        points: points.iter().map(|point| (point.time_s - begin, f64::from(value(point)))).collect(),
        // A limit far above the curve would flatten it, and is only told.
        limit: limit.filter(|&limit| u64::from(limit) <= 2 * u64::from(peak)).map(f64::from),
    }
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
}
