//! Lists of the API server, page by page.

use std::fmt::Debug;

use kube::{Api, api::ListParams};
use serde::de::DeserializeOwned;

/// Maximum number of objects in one page of a list.
const PAGE: u32 = 500;

/// Visits every object that the parameters select. Fails if the API server refuses a page.
pub async fn each<K>(
    api: &Api<K>,
    parameters: ListParams,
    mut visit: impl FnMut(K),
) -> Result<(), kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut parameters = parameters.limit(PAGE);
    loop {
        let page = api.list(&parameters).await?;
        page.items.into_iter().for_each(&mut visit);
        match page.metadata.continue_ {
            Some(more) if !more.is_empty() => parameters.continue_token = Some(more),
            Some(_) | None => return Ok(()),
        }
    }
}
