//! Stop strings: found across tokens, never shown by half.

/// Looks for stop strings in a text that arrives in pieces.
///
/// After each piece the earliest match counts, and among those at one place the one listed first. A match must end in
/// the new piece. Text is held back only while it is the beginning of some stop string.
#[derive(Debug)]
pub(crate) struct StopStrings {
    stops: Vec<String>,
    include_in_output: bool,
    /// The end of the text so far that a stop string may begin with.
    held: String,
}

/// What a piece of text led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StopOutcome {
    /// More text to show, perhaps none.
    Text(String),
    /// The last text to show, and the stop string that was met.
    Stopped {
        /// The text, with the stop string only where it is to be included.
        text: String,
        /// Its place in the list.
        index: usize,
    },
}

impl StopStrings {
    /// `stops` holds no empty string.
    pub(crate) fn new(stops: Vec<String>, include_in_output: bool) -> Self {
        Self { stops, include_in_output, held: String::new() }
    }

    /// The stop string at a place of the list.
    pub(crate) fn get(&self, index: usize) -> &str {
        &self.stops[index]
    }

    /// Takes the next piece. `may_stop` is false before `min_tokens`: then nothing ends the text, but a stop string
    /// may begin.
    pub(crate) fn push(&mut self, piece: &str, may_stop: bool) -> StopOutcome {
        let num_old = self.held.len();
        self.held.push_str(piece);
        if may_stop && let Some((start, index)) = self.find(num_old) {
            let end = start + self.stops[index].len();
            self.held.truncate(if self.include_in_output { end } else { start });
            return StopOutcome::Stopped { text: std::mem::take(&mut self.held), index };
        }
        let held = self.held.split_off(self.held.len() - self.live_len());
        StopOutcome::Text(std::mem::replace(&mut self.held, held))
    }

    /// The end: what was held back in vain.
    pub(crate) fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The earliest match that ends after the first `num_old` bytes.
    fn find(&self, num_old: usize) -> Option<(usize, usize)> {
        let earliest = |stop: &String| {
            let mut matches = self.held.char_indices().map(|(start, _)| start);
            matches
                .find(|&start| start + stop.len() > num_old && self.held[start..].starts_with(stop.as_str()))
        };
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| Some((earliest(stop)?, index)));
        found.min()
    }

    /// Length of the longest end of the text that a stop string begins with.
    fn live_len(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0).saturating_sub(1);
        let starts = self.held.char_indices().map(|(start, _)| start);
        let mut ends =
            starts.skip_while(|start| self.held.len() - start > longest).map(|start| &self.held[start..]);
        ends.find(|end| self.stops.iter().any(|stop| stop.len() > end.len() && stop.starts_with(end)))
            .map_or(0, str::len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], include: bool, pieces: &[&str]) -> (Vec<String>, Option<String>) {
        let mut stop = StopStrings::new(stops.iter().map(|&stop| stop.to_owned()).collect(), include);
        let mut shown = Vec::new();
        for piece in pieces {
            match stop.push(piece, true) {
                StopOutcome::Text(text) => shown.push(text),
                StopOutcome::Stopped { text, index } => {
                    shown.push(text);
                    return (shown, Some(stop.get(index).to_owned()));
                }
            }
        }
        shown.push(stop.flush());
        (shown, None)
    }

    #[test]
    fn br_25_the_head_of_a_stop_string_is_not_shown() {
        let (shown, reason) = run(&["DEFGHIJ"], false, &["ABC", "DEF", "GHI", "J"]);
        assert_eq!((shown.concat().as_str(), reason.as_deref()), ("ABC", Some("DEFGHIJ")));
        let (shown, reason) = run(&["DEFGHIJ"], false, &["ABC", "DEF", "GHI"]);
        assert_eq!((shown.concat().as_str(), reason), ("ABCDEFGHI", None));
        assert_eq!(shown, ["ABC", "", "", "DEFGHI"]);
        let (shown, _) = run(&["DEFGHIJ"], true, &["ABC", "DEF", "GHIJK"]);
        assert_eq!(shown.concat(), "ABCDEFGHIJ");
    }

    #[test]
    fn the_earliest_match_wins_then_the_first_listed() {
        assert_eq!(
            run(&["STOP", "END"], false, &["xxENDyySTOP"]),
            (vec!["xx".to_owned()], Some("END".to_owned()))
        );
        assert_eq!(run(&["ab", "abc"], false, &["xabc"]).1.as_deref(), Some("ab"));
        assert_eq!(run(&["abc", "ab"], false, &["xabc"]).1.as_deref(), Some("abc"));
    }

    #[test]
    fn nothing_stops_before_it_may_but_a_stop_string_may_begin() {
        let mut stop = StopStrings::new(vec!["abcde".into(), "cd".into()], false);
        assert_eq!(stop.push("abcd", false), StopOutcome::Text(String::new()));
        assert_eq!(stop.push("x", true), StopOutcome::Text("abcdx".into()));
        assert_eq!(stop.push("abcd", false), StopOutcome::Text(String::new()));
        assert_eq!(stop.push("e", true), StopOutcome::Stopped { text: String::new(), index: 0 });
    }

    /// The rule in plain words: after each piece look through all the text.
    fn plain(stops: &[String], include: bool, pieces: &[String]) -> (String, Option<String>) {
        let mut text = String::new();
        for piece in pieces {
            text.push_str(piece);
            let found =
                stops.iter().enumerate().filter_map(|(i, stop)| Some((text.find(stop.as_str())?, i))).min();
            if let Some((start, index)) = found {
                text.truncate(start + if include { stops[index].len() } else { 0 });
                return (text, Some(stops[index].clone()));
            }
        }
        (text, None)
    }

    proptest! {
        /// The text shown and the reason equal those of the plain search, and what is held back is the beginning of a
        /// stop string.
        #[test]
        fn equals_a_search_of_the_whole_text(
            stops in proptest::collection::vec("[abé]{1,4}", 0..4),
            pieces in proptest::collection::vec("[abé🙂]{0,3}", 0..12),
            include: bool,
        ) {
            let mut stop = StopStrings::new(stops.clone(), include);
            let (mut shown, mut seen, mut reason) = (String::new(), String::new(), None);
            for piece in &pieces {
                seen.push_str(piece);
                match stop.push(piece, true) {
                    StopOutcome::Text(text) => {
                        shown.push_str(&text);
                        let held = &seen[shown.len()..];
                        prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held)));
                    }
                    StopOutcome::Stopped { text, index } => {
                        shown.push_str(&text);
                        reason = Some(stops[index].clone());
                        break;
                    }
                }
            }
            if reason.is_none() {
                shown.push_str(&stop.flush());
            }
            prop_assert_eq!((shown, reason), plain(&stops, include, &pieces));
        }
    }
}
