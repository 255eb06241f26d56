//! Metrics of the requests to the API server: number, duration and code.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use http::{Request, Response};
use kube::{Client, Config, client::ClientBuilder};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use tower::{Layer, Service};

/// Upper bounds of the buckets of the duration in seconds.
const BOUNDS: [f64; 8] = [0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0];

/// Measures every request of a client. For a watch, this is the time until its stream begins.
#[derive(Clone, Debug)]
pub struct Requests {
    durations: Family<Labels, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    method: String,
    code: String,
}

impl Requests {
    /// Registers `cistern_api_request_duration_seconds`, by method and HTTP code. A conflict is 409,
    /// and `none` is a request without a response.
    pub fn new(registry: &mut Registry) -> Self {
        let durations: Family<_, _, fn() -> _> =
            Family::new_with_constructor(|| Histogram::new(BOUNDS));
        registry.register_with_unit(
            "cistern_api_request_duration",
            "Duration of requests to the Kubernetes API server, by HTTP method and code",
            Unit::Seconds,
            durations.clone(),
        );
        Self { durations }
    }

    /// Creates a client from the environment or the pod's service account, and counts its requests.
    /// Fails if there is no configuration, or if it is invalid.
    ///
    /// The client repeats no request by itself: each loop tries again, and reports why. kube 5.0 would repeat the
    /// statuses 429, 503 and 504 for almost three minutes, also that of an eviction that a budget does not allow.
    pub async fn connect(self) -> Result<Client, kube::Error> {
        let mut config = Config::infer().await.map_err(kube::Error::InferConfig)?;
        config.default_retry = false;
        Ok(ClientBuilder::try_from(config)?.with_layer(&self).build())
    }

    fn ended(&self, method: String, code: Option<u16>, began: Instant) {
        let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        let duration = self.durations.get_or_create(&Labels { method, code });
        duration.observe(began.elapsed().as_secs_f64());
    }
}

impl<S> Layer<S> for Requests {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed {
            inner,
            requests: self.clone(),
        }
    }
}

/// A service whose requests are timed.
#[derive(Clone, Debug)]
pub struct Observed<S> {
    inner: S,
    requests: Requests,
}

impl<S, Body, Answer> Service<Request<Body>> for Observed<S>
where
    S: Service<Request<Body>, Response = Response<Answer>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.method().to_string();
        let (requests, began) = (self.requests.clone(), Instant::now());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            requests.ended(method, code, began);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use prometheus_client::encoding::text::encode;
    use tower::service_fn;

    use super::*;

    #[tokio::test]
    async fn a_request_is_counted_by_method_and_answer() {
        let mut registry = Registry::default();
        let requests = Requests::new(&mut registry);
        let conflict = async |_: Request<()>| {
            let mut answer = Response::new(());
            *answer.status_mut() = http::StatusCode::CONFLICT;
            Ok::<_, Infallible>(answer)
        };
        let mut service = requests.layer(service_fn(conflict));
        let request = Request::put("/").body(()).unwrap();
        service.call(request).await.unwrap();
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let line = "cistern_api_request_duration_seconds_count{method=\"PUT\",code=\"409\"} 1";
        assert!(text.contains(line), "{text}");
    }
}
