//! The HTTP server of the page.
//!
//! *Invariant:* every request passes [`guard`]. Its host must be loopback, so that no other site
//! can reach the server through a DNS name of that site. Its method must be GET or HEAD. Its path
//! must contain the token, so that other users of the machine cannot read the cluster. The page
//! loads nothing from other hosts.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, uri::Authority},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::get,
};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use super::{
    documents::{Document, Documents, Kind},
    page::FILES,
};

/// Headers of all responses.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
        base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// The secret part of the URL.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Creates a token with 122 random bits.
    pub fn random() -> Self {
        Self(Uuid::new_v4().simple().to_string())
    }

    /// Returns the token as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares in constant time, so that response times reveal nothing about the token.
    fn is(&self, other: &str) -> bool {
        self.0.as_bytes().ct_eq(other.as_bytes()).into()
    }
}

/// Returns the routes of the server.
pub fn router(token: Token, documents: Arc<Documents>) -> Router {
    Router::new()
        .route("/{token}/", get(async || file("")))
        .route("/{token}/{name}", get(named))
        .with_state(documents)
        .layer(middleware::from_fn_with_state(token, guard))
}

/// Rejects requests that violate the invariant of this module, and adds [`HEADERS`] to all
/// responses.
async fn guard(State(token): State<Token>, request: Request, next: Next) -> Response {
    let known = request.uri().path().split('/').nth(1);
    let mut response = if !is_loopback(&request) {
        let text = "open the URL that kubectl cistern ui has printed, on this machine\n";
        (StatusCode::MISDIRECTED_REQUEST, text).into_response()
    } else if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let allow = [(header::ALLOW, "GET, HEAD")];
        (
            StatusCode::METHOD_NOT_ALLOWED,
            allow,
            "the page is read-only\n",
        )
            .into_response()
    } else if known.is_some_and(|known| token.is(known)) {
        next.run(request).await
    } else {
        let text =
            "open the whole URL that kubectl cistern ui has printed; a new start has a new one\n";
        (StatusCode::NOT_FOUND, text).into_response()
    };
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns whether the Host header, and the host of the request line if it has one, are loopback.
/// The port is not checked, because a tunnel may use another one.
fn is_loopback(request: &Request) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    let host = Authority::try_from(host.as_bytes());
    let hosts = [host.ok().as_ref(), request.uri().authority()].map(|host| {
        let host = host.map(|host| (host.host(), host.as_str().contains('@')));
        host.map(|host| matches!(host, ("127.0.0.1" | "localhost" | "[::1]", false)))
    });
    matches!(hosts, [Some(true), None | Some(true)])
}

/// Serves a document or a file.
async fn named(
    State(documents): State<Arc<Documents>>,
    Path((_, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let document = match name.as_str() {
        "session.json" => documents.session(),
        "status.json" => documents.get(Kind::Status).await,
        "volumes.json" => documents.get(Kind::Volumes).await,
        "snapshots.json" => documents.get(Kind::Snapshots).await,
        other => return file(other),
    };
    match document {
        Ok(document) => answer(&document, headers.get(header::IF_NONE_MATCH)),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Returns a response with the document, or without a body if the client already has the document.
fn answer(document: &Document, known: Option<&HeaderValue>) -> Response {
    let tag = (header::ETAG, document.tag.as_str());
    if known.is_some_and(|known| known == document.tag.as_str()) {
        return (StatusCode::NOT_MODIFIED, [tag]).into_response();
    }
    let media_type = (header::CONTENT_TYPE, "application/json");
    ([tag, media_type], Body::from(document.body.clone())).into_response()
}

fn file(name: &str) -> Response {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => ([(header::CONTENT_TYPE, file.media_type)], file.content).into_response(),
        None => (StatusCode::NOT_FOUND, "there is no such file\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt as _;

    use super::*;
    use crate::ui::following::Following;

    const GOOD: &str = "0123";

    /// Sends a request to the router, without a server.
    async fn ask(method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        let documents = Documents::of(Following::of_cluster(crate::testing::cluster()));
        let router = router(Token(GOOD.to_owned()), Arc::new(documents));
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        router.oneshot(request).await.unwrap()
    }

    #[tokio::test]
    async fn the_host_must_be_loopback() {
        for host in ["127.0.0.1:80", "localhost:8080", "[::1]:1", "localhost"] {
            let answer = ask("GET", "/0123/", &[("host", host)]).await;
            assert_eq!(answer.status(), StatusCode::OK, "{host}");
        }
        let others = [
            "evil.example:80",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil",
            "",
            "10.0.0.1",
        ];
        for host in others {
            let answer = ask("GET", "/0123/", &[("host", host)]).await;
            assert_eq!(answer.status(), StatusCode::MISDIRECTED_REQUEST, "{host}");
        }
        let two = [("host", "localhost"), ("host", "evil.example")];
        for headers in [&[][..], &two] {
            let answer = ask("GET", "/0123/", headers).await;
            assert_eq!(answer.status(), StatusCode::MISDIRECTED_REQUEST);
        }
        let absolute = "http://evil.example/0123/";
        let answer = ask("GET", absolute, &[("host", "localhost")]).await;
        assert_eq!(answer.status(), StatusCode::MISDIRECTED_REQUEST);
    }

    #[tokio::test]
    async fn nothing_is_served_without_the_token() {
        for path in [
            "/",
            "/0124/",
            "/012/",
            "/01234/status.json",
            "//0123/",
            "/status.json",
        ] {
            let answer = ask("GET", path, &[("host", "localhost")]).await;
            assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
        }
        assert_ne!(Token::random().as_str(), Token::random().as_str());
    }

    #[tokio::test]
    async fn only_get_and_head_are_allowed() {
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
            let answer = ask(method, "/0123/status.json", &[("host", "localhost")]).await;
            assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED, "{method}");
        }
        let answer = ask("HEAD", "/0123/status.json", &[("host", "localhost")]).await;
        assert_eq!(answer.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn every_answer_has_the_policy_and_allows_no_other_origin() {
        for (path, host) in [
            ("/0123/", "localhost"),
            ("/0123/x", "localhost"),
            ("/", "evil"),
        ] {
            let answer = ask("GET", path, &[("host", host), ("origin", "http://evil")]).await;
            let value = |name| answer.headers().get(name).map(|it| it.to_str().unwrap());
            let policy = value("content-security-policy").unwrap();
            assert!(
                policy.starts_with("default-src 'none'; script-src 'self'"),
                "{policy}"
            );
            assert!(
                !policy.contains("unsafe") && !policy.contains('*'),
                "{policy}"
            );
            assert_eq!(value("cache-control"), Some("no-store"));
            assert_eq!(value("referrer-policy"), Some("no-referrer"));
            assert_eq!(value("access-control-allow-origin"), None);
        }
    }

    #[tokio::test]
    async fn an_unchanged_document_is_not_sent_again() {
        for name in ["session", "status", "volumes", "snapshots"] {
            let path = format!("/0123/{name}.json");
            let first = ask("GET", &path, &[("host", "localhost")]).await;
            assert_eq!(first.status(), StatusCode::OK);
            let tag = first.headers().get("etag").unwrap().to_str().unwrap();
            let known = [("host", "localhost"), ("if-none-match", tag)];
            let again = ask("GET", &path, &known).await;
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{name}");
        }
    }
}
