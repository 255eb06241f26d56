//! Removes a volume.

use tokio::time::Instant;

use super::{Error, Volumes};

impl Volumes {
    /// Destroys the volume's data and removes its object. Succeeds if the volume does not exist (DV-03),
    /// and finishes an interrupted removal (DV-08).
    ///
    /// Fails if the volume stays in use, if its agent is silent, or if a request to the API server
    /// fails. Also fails at the deadline: the state stays as it is, and a repeated call resumes.
    pub async fn delete(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        let removing = async |operation: &mut _| {
            self.objects.remove(operation).await?;
            self.listing.until_shown(id, false).await;
            Ok(())
        };
        self.objects.run_exclusive(id, deadline, removing).await
    }
}
