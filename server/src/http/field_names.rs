//! Fields of requests that the engine knows by other names.

use super::error::ApiError;

/// What a client has called what the engine calls otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldNames(Vec<(&'static str, &'static str)>);

impl FieldNames {
    /// The engine's `ours` comes from the client's `theirs`.
    pub(crate) fn add(&mut self, ours: &'static str, theirs: &'static str) {
        self.0.push((ours, theirs));
    }

    /// The error as the client can read it: about the field that it wrote.
    pub(crate) fn translate(&self, mut error: ApiError) -> ApiError {
        for (ours, theirs) in &self.0 {
            // A name of several words is no word of a sentence.
            if ours.contains('_') {
                error.message = with_name(&error.message, ours, theirs);
            }
        }
        let of_error = |(ours, _): &&(&str, &str)| error.param.as_deref() == Some(ours);
        let Some((ours, theirs)) = self.0.iter().find(of_error) else { return error };
        error.param = Some((*theirs).to_owned());
        if let Some(rest) = error.message.strip_prefix(&format!("{ours} ")) {
            error.message = format!("{theirs} {rest}");
        }
        error
    }
}

/// The text with `theirs` wherever `ours` stands as a name of its own.
fn with_name(text: &str, ours: &str, theirs: &str) -> String {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let (mut written, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find(ours) {
        let (before, from) = rest.split_at(start);
        let after = &from[ours.len()..];
        let is_name = !before.ends_with(is_of_name) && !after.starts_with(is_of_name);
        written.push_str(before);
        written.push_str(if is_name { theirs } else { ours });
        rest = after;
    }
    written + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_about_the_field_that_the_client_wrote() {
        let mut names = FieldNames::default();
        names.add("logprobs", "top_logprobs");
        let error = names.translate(ApiError::bad_field("logprobs", "logprobs is 21: expected at most 20"));
        assert_eq!(error, ApiError::bad_field("top_logprobs", "top_logprobs is 21: expected at most 20"));
        let other = ApiError::bad_field("n", "n is 0: expected 1 to 16384");
        assert_eq!(names.translate(other.clone()), other);
    }

    #[test]
    fn a_name_of_several_words_is_translated_wherever_it_stands() {
        let mut names = FieldNames::default();
        names.add("structured_outputs", "guided_regex");
        let error = ApiError::bad_field(
            "bad_words",
            "bad_words, structured_outputs together forbid: structured_outputs_x",
        );
        let expected = "bad_words, guided_regex together forbid: structured_outputs_x";
        assert_eq!(names.translate(error), ApiError::bad_field("bad_words", expected));
    }
}
