//! The crate's interface without the feature `load`: there is no control.

use std::time::Duration;

use crate::{Counts, Error, Name, NetworkNamespace, Order, Use};

/// Tells whether this program was built with the control.
pub const IS_BUILT: bool = false;

/// A registered control: there is none.
#[derive(Debug)]
pub struct Control {
    name: Name,
}

impl Control {
    /// Returns the name that sockets know it by (`TCP_CONGESTION`).
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Tells whether an earlier daemon left it.
    pub fn is_adopted(&self) -> bool {
        false
    }

    /// Takes hold of what it is told and what it counts: nothing.
    ///
    /// # Errors
    /// Never.
    pub fn steering(&self) -> Result<Option<Steering>, Error> {
        Ok(None)
    }
}

/// The control of a leg whose rate is found: there is none.
#[derive(Debug)]
pub enum Steering {}

impl Steering {
    /// Has the control do something else from now on.
    ///
    /// # Errors
    /// Never: there is none.
    pub fn set(&self, _order: &Order) -> Result<(), Error> {
        match *self {}
    }

    /// Returns what the control has counted.
    ///
    /// # Errors
    /// Never: there is none.
    pub fn counts(&self) -> Result<Vec<Counts>, Error> {
        match *self {}
    }

    /// Waits until something is sent.
    pub fn wait(&self, _longest: Duration) {
        match *self {}
    }
}

/// Checks whether this kernel takes the program; changes nothing.
///
/// # Errors
/// [`Error::NotBuilt`].
pub fn probe() -> Result<(), Error> {
    Err(Error::NotBuilt)
}

/// Makes the control of a leg available to sockets in `namespace`.
///
/// # Errors
/// [`Error::NotBuilt`].
pub fn register(_namespace: NetworkNamespace, _leg: u8, _of: Use) -> Result<Control, Error> {
    Err(Error::NotBuilt)
}

/// Removes what a killed daemon has left in `namespace`, and says what that was.
///
/// # Errors
/// [`Error::NotBuilt`] if there is something.
pub fn remove_left(namespace: NetworkNamespace) -> Result<Vec<Name>, Error> {
    if namespace.registered().is_empty() {
        Ok(Vec::new())
    } else {
        Err(Error::NotBuilt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_says_how_to_get_it_and_what_else_there_is() {
        let namespace = NetworkNamespace::new(7);
        let error = register(namespace, 0, Use::GivenRate).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("--features fixed-rate"), "{error}");
        assert!(error.contains("congestion = \"bbr\""), "{error}");
        assert_eq!(probe().unwrap_err().to_string(), error);
    }
}
