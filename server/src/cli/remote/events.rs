//! Server-sent events.

/// Events out of the bytes of a body.
#[derive(Debug, Default)]
pub(crate) struct Events {
    rest: Vec<u8>,
    /// Whether `[DONE]` has come.
    pub(crate) is_done: bool,
}

impl Events {
    /// Takes bytes as they come, and hands on the data of each event that is whole.
    ///
    /// # Errors
    ///
    /// Those of `note`.
    pub(crate) fn take<E>(
        &mut self,
        bytes: &[u8],
        mut note: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.rest.extend_from_slice(bytes);
        let mut begin = 0;
        while let Some(length) = self.rest[begin..].windows(2).position(|window| window == b"\n\n") {
            let event = &self.rest[begin..begin + length];
            match event.strip_prefix(b"data: ") {
                Some(b"[DONE]") => self.is_done = true,
                Some(data) => note(data)?,
                None => {}
            }
            begin += length + 2;
        }
        self.rest.drain(..begin);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn events_are_found_however_bytes_are_cut() {
        let body = b"data: a\n\n: nothing\n\ndata: b\n\ndata: [DONE]\n\n";
        for cut in 0..body.len() {
            let (mut events, mut seen) = (Events::default(), Vec::new());
            for part in [&body[..cut], &body[cut..]] {
                let Ok(()) = events.take(part, |data| {
                    seen.push(data.to_vec());
                    Ok::<_, Infallible>(())
                });
            }
            assert_eq!((seen, events.is_done), (vec![b"a".to_vec(), b"b".to_vec()], true), "{cut}");
        }
    }
}
