//! What a load showed, as a picture: of each time, which share of the answers had it within how long.

use quire_scheduler::plot::{Chart, Panel};

use super::report::Measured;

/// Points of a curve, as many as can be told apart.
const MAX_POINTS: usize = 500;

/// The four times of a load, one below the other.
pub(super) fn svg(measured: &Measured, title: String) -> String {
    let panels = vec![
        panel("TTFT", "#1b7f4d", measured.ttfts()),
        panel("TPOT", "#b5541b", measured.tpots()),
        panel("ITL", "#7a4fb5", measured.itls()),
        panel("end to end", "#1f5fa8", measured.e2es()),
    ];
    Chart { title, panels }.svg()
}

fn panel(name: &str, color: &'static str, times_ms: impl Iterator<Item = f64>) -> Panel {
    let mut times: Vec<f64> = times_ms.collect();
    times.sort_by(f64::total_cmp);
    let title = match times.last() {
        Some(most) => format!("{name}: % within, at most {most:.1} ms"),
        None => format!("{name}: none"),
    };
    let share = |index: usize| (index + 1) as f64 / times.len() as f64 * 100.0;
    let stride = times.len().div_ceil(MAX_POINTS).max(1);
    // From the last one down, so that the curve ends at 100 %.
    let mut points: Vec<_> =
        times.iter().enumerate().rev().step_by(stride).map(|(index, &time)| (time, share(index))).collect();
    points.push((0.0, 0.0));
    points.reverse();
    Panel { title, color, unit: "ms", points, limit: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_from_none_to_all() {
        for num in [1, 7, 10_000] {
            let panel = panel("TTFT", "#000000", (0..num).rev().map(f64::from));
            assert!(panel.points.len() <= MAX_POINTS + 1);
            assert_eq!(panel.points.last(), Some(&(f64::from(num - 1), 100.0)));
            assert!(panel.points.is_sorted());
        }
        assert_eq!(panel("TTFT", "#000000", std::iter::empty()).points, [(0.0, 0.0)]);
    }
}
