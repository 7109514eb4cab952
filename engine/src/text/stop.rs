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

impl StopStrings {
    /// `stops` holds no empty string.
    pub(crate) fn new(stops: Vec<String>, include_in_output: bool) -> Self {
        Self { stops, include_in_output, held: String::new() }
    }

    /// The stop string at a place of the list.
    pub(crate) fn get(&self, index: usize) -> &str {
        &self.stops[index]
    }

    /// Takes the next piece; appends what can be shown to `shown`. The place of the stop string that ends the text, if one
    /// does: then nothing is left. `may_stop` is false before `min_tokens`: nothing ends the text then, but a stop string
    /// may begin.
    pub(crate) fn push(&mut self, piece: &str, may_stop: bool, shown: &mut String) -> Option<usize> {
        if self.stops.is_empty() || piece.is_empty() {
            shown.push_str(piece);
            return None;
        }
        let num_old = self.held.len();
        self.held.push_str(piece);
        let found = if may_stop { self.find(num_old) } else { None };
        let end = match found {
            Some((start, index)) if self.include_in_output => start + self.stops[index].len(),
            Some((start, _)) => start,
            None => self.held.len() - self.live_len(),
        };
        shown.push_str(&self.held[..end]);
        self.held.drain(..end);
        if found.is_some() {
            self.held.clear();
        }
        found.map(|(_, index)| index)
    }

    /// The end: appends what was held back in vain.
    pub(crate) fn flush(&mut self, shown: &mut String) {
        shown.push_str(&self.held);
        self.held.clear();
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
            shown.push(String::new());
            if let Some(index) = stop.push(piece, true, shown.last_mut().unwrap()) {
                return (shown, Some(stop.get(index).to_owned()));
            }
        }
        shown.push(String::new());
        stop.flush(shown.last_mut().unwrap());
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
        let mut push = |piece, may_stop| {
            let mut shown = String::new();
            let index = stop.push(piece, may_stop, &mut shown);
            (shown, index)
        };
        assert_eq!(push("abcd", false), (String::new(), None));
        assert_eq!(push("x", true), ("abcdx".into(), None));
        assert_eq!(push("abcd", false), (String::new(), None));
        assert_eq!(push("e", true), (String::new(), Some(0)));
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
                if let Some(index) = stop.push(piece, true, &mut shown) {
                    reason = Some(stops[index].clone());
                    break;
                }
                let held = &seen[shown.len()..];
                prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held)));
            }
            if reason.is_none() {
                stop.flush(&mut shown);
            }
            prop_assert_eq!((shown, reason), plain(&stops, include, &pieces));
        }
    }
}
