//! Runs commands in containers.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::AttachParams};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::Cluster;

/// Half of [`super::PATIENCE`] or less, so that a wait runs a command again if its connection was lost.
const DEADLINE: Duration = Duration::from_mins(2);

impl Cluster {
    /// Runs a command in a container and returns its output, as an error if the command failed.
    pub async fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        command: &[&str],
    ) -> Result<String, String> {
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        let parameters = AttachParams::default().container(container);
        let run = async {
            let mut process = pods.exec(pod, command.iter().copied(), &parameters).await?;
            let (stdout, stderr) = (process.stdout(), process.stderr());
            let status = process.take_status();
            let (mut printed, complaints) = tokio::join!(text(stdout), text(stderr));
            printed.push_str(&complaints);
            let status = match status {
                Some(status) => status.await,
                None => None,
            };
            process
                .join()
                .await
                .map_err(|error| kube::Error::Service(error.into()))?;
            Ok::<_, kube::Error>((status, printed))
        };
        match tokio::time::timeout(DEADLINE, run).await {
            Ok(Ok((Some(status), printed))) if status.status.as_deref() == Some("Success") => {
                Ok(printed)
            }
            Ok(Ok((status, printed))) => Err(format!(
                "{command:?} in {pod}: {}\n{printed}",
                status.and_then(|status| status.message).unwrap_or_default()
            )),
            Ok(Err(error)) => Err(format!("{command:?} in {pod}: {error}")),
            Err(_) => Err(format!(
                "{command:?} in {pod} took longer than {} s",
                DEADLINE.as_secs()
            )),
        }
    }
}

async fn text(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // Output that precedes a broken connection is still useful.
        let _ = stream.read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
