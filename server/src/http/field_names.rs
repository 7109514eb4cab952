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
        let of_error = |(ours, _): &&(&str, &str)| error.param.as_deref() == Some(ours);
        let Some((ours, theirs)) = self.0.iter().find(of_error) else { return error };
        error.param = Some((*theirs).to_owned());
        if let Some(rest) = error.message.strip_prefix(&format!("{ours} ")) {
            error.message = format!("{theirs} {rest}");
        }
        error
    }
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
}
