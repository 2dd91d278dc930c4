//! What C callers get from a function of the library: its result, its error, or the message of its
//! panic.

#[expect(dead_code, reason = "this test calls no function of C")]
#[path = "../src/ffi_buffer.rs"]
mod ffi_buffer;

/// Status and text of a call.
fn given(work: impl FnOnce() -> Result<Vec<u8>, String>) -> (i32, String) {
    let (status, bytes) = ffi_buffer::outcome("the work", work);
    (status, String::from_utf8(bytes).expect("text"))
}

#[test]
fn the_message_of_a_panic_reaches_the_caller() {
    type Work = Box<dyn FnOnce() -> Result<Vec<u8>, String>>;
    let row = 7;
    assert_eq!(given(|| Ok(b"bytes".to_vec())), (0, "bytes".to_owned()));
    assert_eq!(
        given(|| Err("an error".to_owned())),
        (1, "an error".to_owned())
    );
    let cases: [(Work, &str); 3] = [
        (Box::new(|| panic!("a plain text")), "a plain text"),
        (
            Box::new(move || panic!("row {row} is gone")),
            "row 7 is gone",
        ),
        (Box::new(|| std::panic::panic_any(5)), "without a message"),
    ];
    for (work, message) in cases {
        let expected = format!("a defect of the plugin: the work panicked: {message}");
        assert_eq!(given(work), (1, expected));
    }
}
