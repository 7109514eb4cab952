//! How many templates of requests are rendered at the same time. They are strangers' programs: those who bring none are not to
//! wait behind them, for a processor or for a thread.

use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Error, Prompt, Result};

/// Templates that may wait for a place.
const MAX_WAITING: usize = 64;

/// Places for templates of requests: one for every four processors.
#[derive(Clone, Debug)]
pub(crate) struct TemplatePlaces {
    /// Those that wait or run.
    queue: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct TemplatePlace(#[expect(dead_code, reason = "dropped")] [OwnedSemaphorePermit; 2]);

impl TemplatePlaces {
    pub(crate) fn new() -> Self {
        let num_places = available_parallelism().map_or(1, |num| num.get().div_ceil(4));
        let semaphore = |num| Arc::new(Semaphore::new(num));
        Self { queue: semaphore(num_places + MAX_WAITING), places: semaphore(num_places) }
    }

    /// Waits for a place, where the prompt needs one.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyTemplates`].
    pub(crate) async fn of_prompt(&self, prompt: &Prompt) -> Result<Option<TemplatePlace>> {
        match prompt {
            Prompt::Chat(chat) if chat.chat_template.is_some() => self.take().await.map(Some),
            _ => Ok(None),
        }
    }

    async fn take(&self) -> Result<TemplatePlace> {
        let full = |_| Error::TooManyTemplates { max_num_waiting: MAX_WAITING };
        let waiting = Arc::clone(&self.queue).try_acquire_owned().map_err(full)?;
        let place = Arc::clone(&self.places).acquire_owned().await;
        Ok(TemplatePlace([waiting, place.expect("nobody closes the semaphore")]))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::{ChatMessage, ChatPrompt};

    /// What comes of a wait that nobody has to wake.
    fn poll<T>(wait: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
        wait.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn take(places: &TemplatePlaces, prompt: &Prompt) -> Poll<Result<Option<TemplatePlace>>> {
        poll(&mut Box::pin(places.of_prompt(prompt)))
    }

    #[test]
    fn templates_of_requests_wait_for_each_other_and_nobody_else_does() {
        let places = TemplatePlaces::new();
        let num_places = places.places.available_permits();
        let plain = Prompt::from(vec![ChatMessage::user("a")]);
        let own = ChatPrompt { chat_template: Some("b".to_owned()), ..ChatPrompt::new(Vec::new()) };
        let own = Prompt::Chat(own);
        let mut taken = Vec::new();
        for _ in 0..num_places {
            let Poll::Ready(Ok(Some(place))) = take(&places, &own) else { panic!("there is a place") };
            taken.push(place);
        }
        assert!(matches!(take(&places, &plain), Poll::Ready(Ok(None))));
        let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| Box::pin(places.of_prompt(&own))).collect();
        assert!(waiting.iter_mut().all(|wait| poll(wait).is_pending()));
        assert!(matches!(take(&places, &own), Poll::Ready(Err(Error::TooManyTemplates { .. }))));
        drop(taken);
        assert!(matches!(poll(&mut waiting[0]), Poll::Ready(Ok(Some(_)))));
    }
}
