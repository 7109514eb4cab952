//! Prometheus' text format, version 0.0.4.
//!
//! Libraries for it keep counters of their own; here all numbers are of one moment, taken from the engine at the scrape.

use std::fmt::Write;

use quire_engine::Histogram;

/// Metrics as text, in families: one name, one kind, one help line.
#[derive(Debug)]
pub(crate) struct Exposition {
    text: String,
    /// What all names begin with, each once.
    prefixes: Vec<&'static str>,
    /// The label that all samples have.
    model: String,
}

impl Exposition {
    /// An empty text. Every metric is written once for each of `prefixes`.
    pub(crate) fn new(prefixes: Vec<&'static str>, model: &str) -> Self {
        Self { text: String::new(), prefixes, model: format!("model_name=\"{}\"", escaped(model)) }
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help, &[("", value)]);
    }

    /// Counters end in `_total`, as Prometheus' clients write them.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help, &[("", value as f64)]);
    }

    /// A metric with one label; `values` are its values there, each `label="value"`.
    pub(crate) fn labelled(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        label: &str,
        values: &[(&str, f64)],
    ) {
        let samples: Vec<_> = values
            .iter()
            .map(|(value, number)| (format!(",{label}=\"{}\"", escaped(value)), *number))
            .collect();
        let samples: Vec<_> = samples.iter().map(|(label, number)| (label.as_str(), *number)).collect();
        self.family(name, kind, help, &samples);
    }

    /// A gauge of 1 that carries facts in its labels.
    pub(crate) fn info(&mut self, name: &str, help: &str, labels: &[(&str, String)]) {
        let labels = labels.iter().fold(String::new(), |mut all, (label, value)| {
            let _ = write!(all, ",{label}=\"{}\"", escaped(value));
            all
        });
        self.family(name, "gauge", help, &[(&labels, 1.0)]);
    }

    /// A histogram; bounds above `max_bound` are left out, since no value lies there.
    pub(crate) fn histogram(&mut self, name: &str, help: &str, values: &Histogram, max_bound: f64) {
        for place in 0..self.prefixes.len() {
            let full = self.head(place, name, "histogram", help);
            let bounds = values.cumulative().filter(|(bound, _)| *bound <= max_bound);
            let model = self.model.clone();
            for (bound, count) in bounds {
                let _ = writeln!(self.text, "{full}_bucket{{{model},le=\"{bound:?}\"}} {count}");
            }
            let (count, sum) = (values.count(), values.sum());
            let _ = writeln!(self.text, "{full}_bucket{{{model},le=\"+Inf\"}} {count}");
            let _ = writeln!(self.text, "{full}_sum{{{model}}} {sum:?}");
            let _ = writeln!(self.text, "{full}_count{{{model}}} {count}");
        }
    }

    /// All that was written.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    fn family(&mut self, name: &str, kind: &str, help: &str, samples: &[(&str, f64)]) {
        for place in 0..self.prefixes.len() {
            let full = self.head(place, name, kind, help);
            for (labels, value) in samples {
                let _ = writeln!(self.text, "{full}{{{}{labels}}} {value:?}", self.model);
            }
        }
    }

    fn head(&mut self, place: usize, name: &str, kind: &str, help: &str) -> String {
        let full = format!("{}{name}", self.prefixes[place]);
        let _ = writeln!(self.text, "# HELP {full} {help}\n# TYPE {full} {kind}");
        full
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prefix_has_its_own_family() {
        let mut text = Exposition::new(vec!["a:", "b:"], "m\"x");
        text.gauge("g", "A gauge.", 0.5);
        text.labelled("c_total", "counter", "A counter.", "why", &[("x", 2.0)]);
        let mut histogram = Histogram::new(&[1.0, 2.0, 5.0]);
        histogram.observe(1.5);
        text.histogram("h", "A histogram.", &histogram, 2.0);
        let text = text.into_text();
        let a: Vec<_> = text.lines().filter(|line| line.contains("a:")).collect();
        assert_eq!(
            a,
            [
                "# HELP a:g A gauge.",
                "# TYPE a:g gauge",
                r#"a:g{model_name="m\"x"} 0.5"#,
                "# HELP a:c_total A counter.",
                "# TYPE a:c_total counter",
                r#"a:c_total{model_name="m\"x",why="x"} 2.0"#,
                "# HELP a:h A histogram.",
                "# TYPE a:h histogram",
                r#"a:h_bucket{model_name="m\"x",le="1.0"} 0"#,
                r#"a:h_bucket{model_name="m\"x",le="2.0"} 1"#,
                r#"a:h_bucket{model_name="m\"x",le="+Inf"} 1"#,
                r#"a:h_sum{model_name="m\"x"} 1.5"#,
                r#"a:h_count{model_name="m\"x"} 1"#,
            ]
        );
        assert_eq!(text.replace("a:", "b:").lines().filter(|line| line.contains("b:")).count(), 2 * a.len());
    }
}
