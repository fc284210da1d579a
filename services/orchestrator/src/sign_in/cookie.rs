//! Cookies of browsers that are signed in, or on their way to be. They are read below `/c`, `/sign-in` and `/sign-out` only; the API takes bearers
//! only, and so has no surface for requests of other sites.

use axum::http::{HeaderMap, HeaderValue, Uri, header};

use super::secret::Secret;

/// Which cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cookie {
    /// Of a browser that is signed in.
    Session,
    /// Of a browser that is on its way to a provider and back.
    Flow,
}

/// The form of cookies at this installation's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cookies {
    /// Over TLS: no other host, port or path sets them (`__Host-`).
    Secure,
    /// On this machine without TLS, for browsers that take no `Secure` there.
    Local,
}

impl Cookies {
    /// At an address; none where neither TLS nor the machine itself keeps them secret.
    pub fn of(base_url: &str) -> Option<Cookies> {
        let uri: Uri = base_url.parse().ok()?;
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        match uri.scheme_str()? {
            "https" => Some(Cookies::Secure),
            "http" if is_loopback => Some(Cookies::Local),
            _ => None,
        }
    }

    fn name(self, cookie: Cookie) -> &'static str {
        match (self, cookie) {
            (Self::Secure, Cookie::Session) => "__Host-signalbox",
            (Self::Secure, Cookie::Flow) => "__Host-signalbox-flow",
            (Self::Local, Cookie::Session) => "signalbox-local",
            (Self::Local, Cookie::Flow) => "signalbox-local-flow",
        }
    }

    /// The cookie's secret. One that is sent twice is none: somebody else may have set one of them.
    pub fn read(self, headers: &HeaderMap, cookie: Cookie) -> Option<Secret> {
        let name = self.name(cookie);
        let all = headers.get_all(header::COOKIE).iter();
        let mut found = all
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .filter(|(known, _)| *known == name);
        let (_, value) = found.next()?;
        found.next().is_none().then(|| Secret::parse(value)).flatten()
    }

    pub fn set(self, cookie: Cookie, secret: &Secret, seconds: i64) -> HeaderValue {
        self.value(cookie, secret.expose(), seconds)
    }

    pub fn clear(self, cookie: Cookie) -> HeaderValue {
        self.value(cookie, "", 0)
    }

    fn value(self, cookie: Cookie, value: &str, seconds: i64) -> HeaderValue {
        let secure = if self == Self::Secure { "; Secure" } else { "" };
        let name = self.name(cookie);
        let text = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
        HeaderValue::try_from(text).expect("visible ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_for_tls_and_for_this_machine() {
        let check = |url: &str, expected: Option<Cookies>| assert_eq!(Cookies::of(url), expected, "{url}");
        check("https://signalbox.example.com", Some(Cookies::Secure));
        check("http://127.0.0.1:8080", Some(Cookies::Local));
        check("http://[::1]:8080", Some(Cookies::Local));
        check("http://localhost:8080", Some(Cookies::Local));
        check("http://signalbox.example.com", None);
        check("http://10.0.0.1", None);
        check("", None);
    }

    #[test]
    fn a_cookie_reads_back_and_is_read_once() {
        let secret = Secret::random().unwrap();
        for cookies in [Cookies::Secure, Cookies::Local] {
            let set = cookies.set(Cookie::Session, &secret, 60);
            let set = set.to_str().unwrap();
            assert_eq!(set.contains("; Secure"), cookies == Cookies::Secure);
            assert!(
                set.contains("; HttpOnly; SameSite=Lax") && set.contains("; Path=/;"),
                "{set}"
            );
            let pair = set.split(';').next().unwrap();
            let check = |sent: &[String], found: bool| {
                let mut headers = HeaderMap::new();
                for sent in sent {
                    headers.append(header::COOKIE, sent.parse().unwrap());
                }
                let read = cookies.read(&headers, Cookie::Session);
                assert_eq!(
                    read.is_some_and(|read| read.expose() == secret.expose()),
                    found,
                    "{sent:?}"
                );
            };
            check(&[pair.to_owned()], true);
            check(&[format!("a=b; {pair}; c")], true);
            check(&[format!("{pair}; {pair}")], false);
            check(&[pair.to_owned(), pair.to_owned()], false);
            check(&[format!("x{pair}")], false);
            check(&[format!("{pair}0")], false);
            check(&[], false);
        }
    }
}
