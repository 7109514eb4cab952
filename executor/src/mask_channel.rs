//! How masks come to the worker's thread, which waits for them in the middle of a step.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::{ExecutorError, TokenMasks};

enum Message {
    Masks { step: u64, masks: TokenMasks },
    GiveUp,
}

/// The engine's end. When it is dropped, the worker waits no more.
#[derive(Debug)]
pub(crate) struct MaskSender(Sender<Message>);

/// The worker's end.
#[derive(Debug)]
pub(crate) struct MaskReceiver(Receiver<Message>);

/// Both ends.
pub(crate) fn mask_channel() -> (MaskSender, MaskReceiver) {
    let (sender, receiver) = channel();
    (MaskSender(sender), MaskReceiver(receiver))
}

impl MaskSender {
    /// Masks of a step; those of one step come before those of a later one.
    pub(crate) fn send(&self, step: u64, masks: TokenMasks) -> Result<(), ExecutorError> {
        let gone = |_| ExecutorError::Stopped { reason: "its thread has ended".to_owned() };
        self.0.send(Message::Masks { step, masks }).map_err(gone)
    }

    /// Tells the worker that the masks it waits for will not come.
    pub(crate) fn give_up(&self) {
        let _ = self.0.send(Message::GiveUp);
    }
}

impl MaskReceiver {
    /// Waits for the masks of a step; `None` where they will not come. Those of earlier steps, which failed before they
    /// were looked at, are passed over.
    pub(crate) fn wait_for(&self, step: u64) -> Option<TokenMasks> {
        loop {
            match self.0.recv().ok()? {
                Message::Masks { step: of, masks } if of == step => return Some(masks),
                Message::Masks { step: of, .. } if of < step => {}
                _ => return None,
            }
        }
    }

    /// Forgets what has come.
    pub(crate) fn clear(&self) {
        while self.0.try_recv().is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_come_to_their_step_or_not_at_all() {
        let (sender, receiver) = mask_channel();
        sender.send(1, TokenMasks::default()).unwrap();
        sender.send(3, TokenMasks::default()).unwrap();
        assert!(receiver.wait_for(3).is_some(), "step 1 was never looked at");
        sender.give_up();
        assert!(receiver.wait_for(4).is_none());
        sender.give_up();
        receiver.clear();
        sender.send(5, TokenMasks::default()).unwrap();
        assert!(receiver.wait_for(5).is_some());
        drop(sender);
        assert!(receiver.wait_for(6).is_none());
    }
}
