//! The places where lookups of several tables by the same ids leave their distinct keys, by number.

use crate::sync::Mutex;
use mx_rec_kernels::SharedKeys;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

/// Of the process. A place lives as long as an op has it.
static PLACES: LazyLock<Mutex<HashMap<i32, Weak<SharedKeys>>>> = LazyLock::new(Mutex::default);

/// The place with this number.
pub(crate) fn of(number: i32) -> Arc<SharedKeys> {
    let mut places = PLACES.lock();
    if let Some(place) = places.get(&number).and_then(Weak::upgrade) {
        return place;
    }
    places.retain(|_, place| place.strong_count() > 0);
    let place = Arc::new(SharedKeys::default());
    places.insert(number, Arc::downgrade(&place));
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_place_until_nobody_has_it() {
        let (first, second, other) = (of(7), of(7), of(8));
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &other));
        assert_eq!(Arc::strong_count(&first), 2);
        drop((first, second));
        assert_eq!(Arc::strong_count(&of(7)), 1);
        assert!(PLACES.lock().contains_key(&8));
    }
}
