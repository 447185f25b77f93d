//! The crate's interface without the feature `load`: there is no control.

use crate::{Error, Name, NetworkNamespace};

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
}

/// Checks whether this kernel takes the program; changes nothing.
///
/// # Errors
/// [`Error::NotBuilt`].
pub fn probe() -> Result<(), Error> {
    Err(Error::NotBuilt)
}

/// Makes the control available to sockets under `name`.
///
/// # Errors
/// [`Error::NotBuilt`].
pub fn register(_name: &Name) -> Result<Control, Error> {
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
        let name = NetworkNamespace::new(7).name(0);
        let error = register(&name).unwrap_err().to_string();
        assert!(error.contains("--features fixed-rate"), "{error}");
        assert!(error.contains("congestion = \"bbr\""), "{error}");
        assert_eq!(probe().unwrap_err().to_string(), error);
    }
}
