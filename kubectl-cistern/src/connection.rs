//! Connection to the API server that the kubeconfig selects.
//!
//! *Invariant:* every request has a deadline.

use std::{fmt::Debug, future::Future, time::Duration};

use cistern_client::Rejection;
use futures::future::LocalBoxFuture;
use kube::{
    Api, Client, Config, Resource,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
    core::DeserializeGuard,
};
use serde::de::DeserializeOwned;

use crate::{Error, arguments, unreadable::parsed};

/// Page size of list requests.
const PAGE: u32 = 500;

/// A connection to the API server.
#[derive(Clone)]
pub struct Connection {
    client: Client,
    proxy_client: Client,
    url: String,
    patience: Duration,
    /// Namespace in which Cistern is installed.
    pub system_namespace: String,
}

impl Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection to {}", self.url)
    }
}

impl Connection {
    /// Creates a client from the flags and the environment. Sends no request. Fails if there is
    /// neither a kubeconfig nor a service account of a pod, or if the kubeconfig or the selected
    /// context cannot be used.
    pub async fn open(flags: &arguments::Connection) -> Result<Self, Error> {
        let mut config = config(flags).await?;
        if let Some(user) = &flags.impersonate {
            config.auth_info.impersonate = Some(user.clone());
        }
        let url = config.cluster_url.to_string();
        let client =
            |config| Client::try_from(config).map_err(|source| Error::Client(Box::new(source)));
        let mut without_retries = config.clone();
        without_retries.default_retry = false;
        Ok(Self {
            client: client(config)?,
            proxy_client: client(without_retries)?,
            url,
            patience: flags.request_timeout,
            system_namespace: flags.system_namespace.clone(),
        })
    }

    /// Returns the URL of the API server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the client. Callers await its requests in [`Self::ask`].
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the client for requests that the API server forwards to a pod. It does not repeat
    /// them: if the pod does not answer, the reason would only come after the request timeout.
    pub fn proxy_client(&self) -> Client {
        self.proxy_client.clone()
    }

    /// Returns the API of a kind in Cistern's namespace.
    pub fn in_system<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client(), &self.system_namespace)
    }

    /// Returns the API of a kind in all namespaces.
    pub fn everywhere<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client())
    }

    /// Awaits a request. `what` describes the request in error messages. Fails if the API server
    /// does not answer before the request timeout, cannot be reached, or returns an error.
    pub async fn ask<T>(
        &self,
        what: impl Into<String>,
        answer: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(self.patience, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(Error::asking(what, &self.url, source)),
            Err(_) => Err(Error::TimedOut {
                what: what.into(),
                after: self.patience,
            }),
        }
    }

    /// Lists all objects that the parameters select, page by page. Fails if the request for a page
    /// fails. The future is boxed because callers run many lists concurrently.
    pub fn list<'a, K>(
        &'a self,
        api: Api<K>,
        parameters: ListParams,
    ) -> LocalBoxFuture<'a, Result<Vec<K>, Error>>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + 'a,
    {
        let what = format!("cannot list {}", K::plural(&()));
        let mut parameters = parameters.limit(PAGE);
        let mut all = Vec::new();
        Box::pin(async move {
            loop {
                let page = self.ask(&what, api.list(&parameters)).await?;
                all.extend(page.items);
                match page.metadata.continue_ {
                    Some(more) if !more.is_empty() => parameters.continue_token = Some(more),
                    Some(_) | None => return Ok(all),
                }
            }
        })
    }

    /// Lists all objects of one of Cistern's kinds, also those that cannot be parsed. Fails with
    /// [`Error::NotInstalled`] if the cluster does not have the kind, and if a request fails.
    pub async fn own<K>(&self) -> Result<Vec<DeserializeGuard<K>>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        match self.list(self.everywhere(), ListParams::default()).await {
            Err(Error::Api { source, .. }) if Rejection::from(&*source) == Rejection::NotFound => {
                Err(Error::NotInstalled {
                    kind: K::kind(&()).into_owned(),
                })
            }
            result => result,
        }
    }

    /// Reads the object of one of Cistern's kinds with this name; `None` if there is none. Fails if it cannot be
    /// parsed, and if the request fails.
    pub async fn find<K>(&self, name: &str) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let what = format!("cannot read {} {name}", K::kind(&()));
        let api = self.everywhere::<DeserializeGuard<K>>();
        let found = self.ask(what, api.get_opt(name)).await?;
        Ok(found.map(parsed).transpose()?)
    }
}

/// Returns the name of the context in use: `--context`, or the current context of the kubeconfig.
/// `None` if there is no readable kubeconfig, as in a pod.
pub fn context(flags: &arguments::Connection) -> Option<String> {
    flags.context.clone().or_else(|| {
        let kubeconfig = match &flags.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        kubeconfig.ok()?.current_context
    })
}

async fn config(flags: &arguments::Connection) -> Result<Config, Error> {
    let options = KubeConfigOptions {
        context: flags.context.clone(),
        ..KubeConfigOptions::default()
    };
    let unusable = |error: kube::config::KubeconfigError| Error::Kubeconfig(Box::new(error));
    match (&flags.kubeconfig, &flags.context) {
        (Some(path), _) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            config.map_err(unusable)
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(unusable),
        (None, None) => Config::infer()
            .await
            .map_err(|error| Error::NoCluster(Box::new(error))),
    }
}
