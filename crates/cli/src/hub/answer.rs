//! Headers of responses.

use ureq::http::{HeaderMap, Uri};

/// The range and the whole length in a `Content-Range`: `bytes 0-8/1234`. The end is exclusive.
pub fn content_range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    let (range, len) = text(headers, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last, len) = (number(start)?, number(last)?, number(len)?);
    (start <= last && last < len).then_some((start, last + 1, len))
}

/// The whole length in the `Content-Range` of an answer that no byte is in the range:
/// `bytes */1234`.
pub fn unsatisfied(headers: &HeaderMap) -> Option<u64> {
    number(text(headers, "content-range")?.strip_prefix("bytes */")?)
}

/// Seconds in a `Retry-After`; a date there is not read.
pub fn retry_after(headers: &HeaderMap) -> Option<u64> {
    number(text(headers, "retry-after")?)
}

/// A header that is text.
pub fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

/// Scheme, host and port.
pub fn origin(uri: &Uri) -> Option<(String, String, u16)> {
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = match &*scheme {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
    Some((scheme, host, uri.port_u16().unwrap_or(port)))
}

/// The target of a `Location` relative to `from`; none if it is not HTTP, or would leave
/// encryption.
pub fn follow(from: &Uri, location: &str) -> Option<Uri> {
    let scheme = from.scheme_str()?;
    let target = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{}{location}", from.authority()?)
    } else {
        location.to_owned()
    };
    // The fragment is not for servers.
    let uri: Uri = target.split('#').next()?.parse().ok()?;
    let (to, ..) = origin(&uri)?;
    let user = uri.authority()?.as_str().contains('@');
    (!user && (scheme != "https" || to == "https")).then_some(uri)
}

/// The text with all but plain characters as `%` and two digits; slashes too, unless they are kept.
pub fn encoded(text: &str, keep_slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if plain || keep_slashes && byte == b'/' {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ureq::http::HeaderValue;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(
            ureq::http::HeaderName::from_static(name),
            HeaderValue::from_str(value).unwrap(),
        )])
    }

    #[test]
    fn ranges_are_read_or_refused() {
        let range = |value: &str| content_range(&headers("content-range", value));
        assert_eq!(range("bytes 0-8/1234"), Some((0, 9, 1234)));
        assert_eq!(range("bytes 8-8/9"), Some((8, 9, 9)));
        let most = format!("bytes 0-{}/{}", u64::MAX - 1, u64::MAX);
        assert_eq!(range(&most), Some((0, u64::MAX, u64::MAX)));
        for value in [
            "",
            "bytes",
            "bytes 0-8/*",
            "bytes 8-7/9",
            "bytes 0-9/9",
            "bytes +0-8/9",
            "0-8/9",
            "bytes 0-8",
            "bytes -1-8/9",
            "bytes 0-99999999999999999999/9",
            "bytes */9",
        ] {
            assert_eq!(range(value), None, "{value}");
        }
        assert_eq!(unsatisfied(&headers("content-range", "bytes */9")), Some(9));
        assert_eq!(retry_after(&headers("retry-after", "30")), Some(30));
        assert_eq!(retry_after(&headers("retry-after", "Fri, 31 Dec 1999")), None);
    }

    #[test]
    fn redirects_stay_on_the_web_and_encrypted() {
        let from: Uri = "https://hub.co/a/b?c".parse().unwrap();
        let to = |location: &str| follow(&from, location).map(|uri| uri.to_string());
        assert_eq!(to("/x?y#z").as_deref(), Some("https://hub.co/x?y"));
        assert_eq!(to("//cdn.co/x").as_deref(), Some("https://cdn.co/x"));
        assert_eq!(to("https://cdn.co:8443/x").as_deref(), Some("https://cdn.co:8443/x"));
        for location in [
            "",
            "x",
            "http://hub.co/a",
            "file:///etc/passwd",
            "ftp://a/b",
            "https://",
            "https://u@hub.co/",
        ] {
            assert_eq!(to(location), None, "{location}");
        }
        let plain: Uri = "http://127.0.0.1:80/a".parse().unwrap();
        assert_eq!(follow(&plain, "http://b/c").unwrap().to_string(), "http://b/c");
        assert!(follow(&plain, "https://b/c").is_some());
        // Whom the token may be told.
        let same = |one: &str, other: &str| {
            origin(&one.parse().unwrap()) == origin(&other.parse().unwrap())
        };
        assert!(same("https://Hub.co/a", "https://hub.co:443/b"));
        assert!(!same("https://hub.co/a", "https://hub.co:444/a"));
        assert!(!same("https://hub.co/a", "http://hub.co/a"));
        assert!(!same("https://hub.co/a", "https://cdn.hub.co/a"));
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encoded("a b/é?#%", true), "a%20b/%C3%A9%3F%23%25");
    }
}
