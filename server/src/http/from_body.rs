//! What routes take out of bodies.

use std::sync::Arc;

use super::body::Body;
use super::caller::Caller;
use super::deadline::Deadline;
use super::error::ApiError;
use super::service::Service;

/// What a route is asked for.
pub(crate) trait FromBody: Sized + Send + 'static {
    /// Takes all that may be said out of a body: what is left nobody knows.
    ///
    /// # Errors
    ///
    /// The first field that is wrong.
    fn take(service: &Service, caller: &Caller, body: &mut Body) -> Result<Self, ApiError>;
}

impl Service {
    /// What the body of a caller asks for, and the deadline that holds for this already. A large body holds up nobody else.
    ///
    /// # Errors
    ///
    /// Those of [`FromBody::take`]; [`Deadline::too_late`]; what nobody knows, for a strict caller; that the server ends.
    pub(crate) async fn read<T: FromBody>(
        self: &Arc<Self>,
        caller: &Caller,
        mut body: Body,
    ) -> Result<(T, Deadline), ApiError> {
        let deadline = Deadline::of(caller, body.came_at())?;
        let (service, caller, place) = (Arc::clone(self), caller.clone(), body.take_place());
        // The rest of the body goes with its place.
        let take = move || {
            let asked = T::take(&service, &caller, &mut body)?;
            service.pass_over(&body.rest(), &caller)?;
            Ok(asked)
        };
        let taken = deadline.within(self.body_work.run(place, take));
        let asked = self.lifecycle.while_open(taken).await?;
        Ok((asked, deadline))
    }
}
