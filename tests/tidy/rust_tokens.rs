//! Rust code as tokens, without comments, literals and tests.

/// Whether a token is a name or a keyword.
pub(super) fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
}

/// Names, `::` and single characters of Rust code, without comments and literals.
pub(super) fn rust_tokens(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let first = bytes[at];
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |end| end + 2);
        } else if first == b'"' {
            at += string_length(rest);
        } else if first == b'\'' {
            at += quote_length(rest);
        } else if first.is_ascii_alphabetic() || first == b'_' {
            let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            let length = bytes[at..].iter().take_while(|byte| is_part(byte)).count();
            let hashes = rest[length..]
                .bytes()
                .take_while(|&byte| byte == b'#')
                .count();
            let is_raw = ["r", "br", "b"].contains(&&rest[..length]);
            if is_raw && rest[length + hashes..].starts_with('"') {
                at += length;
                at += match rest[..length].contains('r') {
                    true => raw_length(&rest[length..], hashes),
                    false => string_length(&rest[length..]),
                };
            } else {
                tokens.push(rest[..length].to_owned());
                at += length;
            }
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            at += 2;
        } else {
            if !first.is_ascii_whitespace() && first.is_ascii() {
                tokens.push(char::from(first).to_string());
            }
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    tokens
}

/// The length of a string literal that begins with a quote.
fn string_length(text: &str) -> usize {
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of `#"..."#` with so many signs.
fn raw_length(text: &str, hashes: usize) -> usize {
    let end = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 1;
    text[start..]
        .find(&end)
        .map_or(text.len(), |at| start + at + end.len())
}

/// The length of a character literal, or of the quote that begins a lifetime.
fn quote_length(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => {
            let body = &text[2 + text[2..].chars().next().map_or(0, char::len_utf8)..];
            text.len() - body.len() + body.find('\'').map_or(0, |at| at + 1)
        }
        Some((at, character)) if text[at + character.len_utf8()..].starts_with('\'') => {
            at + character.len_utf8() + 1
        }
        _ => 1,
    }
}

/// Leaves out each item behind `#[cfg(test)]`, or another condition that names tests.
pub(super) fn without_tests(tokens: Vec<String>) -> Vec<String> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at..].starts_with(&["#".to_owned(), "[".to_owned(), "cfg".to_owned()]) {
            let end = closing(&tokens, at + 1);
            let condition = &tokens[at..end];
            let names = |word: &str| condition.iter().any(|token| token == word);
            if names("test") && !names("not") {
                at = item_end(&tokens, end);
                continue;
            }
        }
        kept.push(tokens[at].clone());
        at += 1;
    }
    kept
}

/// Behind the bracket that closes the one at `at`.
fn closing(tokens: &[String], at: usize) -> usize {
    let mut depth = 0;
    for (place, token) in tokens.iter().enumerate().skip(at) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return place + 1;
        }
    }
    tokens.len()
}

/// Behind the item that begins at `at`: its body, or the semicolon or comma that ends it.
fn item_end(tokens: &[String], mut at: usize) -> usize {
    while at < tokens.len() {
        match tokens[at].as_str() {
            ";" | "," => return at + 1,
            "{" => return closing(tokens, at),
            "(" | "[" => at = closing(tokens, at),
            "}" => return at,
            _ => at += 1,
        }
    }
    at
}
