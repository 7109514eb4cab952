//! `--served-model-name A B`, as vLLM takes it.

use std::ffi::OsString;

const FLAG: &str = "--served-model-name";

/// The words of a command line, with the flag in front of each of its names. Behind the model alone: where none stands in
/// front, the last name may be it.
pub(crate) fn spread(words: Vec<OsString>) -> Vec<OsString> {
    let is_flag = |word: &OsString| word.to_str().is_none_or(|word| word.starts_with('-'));
    let has_model =
        words.get(1).is_some_and(|word| word == "serve") && words.get(2).is_some_and(|word| !is_flag(word));
    if !has_model {
        return words;
    }
    let mut num_names = None;
    let mut spread = Vec::with_capacity(words.len());
    for word in words {
        num_names = match num_names {
            _ if word == FLAG => Some(0),
            Some(num) if !is_flag(&word) => Some(num + 1),
            _ => None,
        };
        if num_names.is_some_and(|num| num > 1) {
            spread.push(FLAG.into());
        }
        spread.push(word);
    }
    spread
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread_of(line: &str) -> String {
        let words = spread(line.split_whitespace().map(OsString::from).collect());
        words.join(" ".as_ref()).into_string().expect("text")
    }

    #[test]
    fn each_name_gets_the_flag() {
        assert_eq!(
            spread_of("quire serve m --served-model-name a b c --port 1 x"),
            "quire serve m --served-model-name a --served-model-name b --served-model-name c --port 1 x"
        );
        for line in ["quire serve --served-model-name a m", "quire chat m --served-model-name a b", "quire"] {
            assert_eq!(spread_of(line), line);
        }
    }
}
