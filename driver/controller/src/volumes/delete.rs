//! Removing a volume.

use tokio::time::Instant;

use super::{Error, Volumes};

impl Volumes {
    /// Has the volume's data destroyed and its object removed. A volume that is not there is fine
    /// (DV-03), and one that was half removed is removed (DV-08).
    ///
    /// When the deadline comes first, everything stays as it is and a repeat goes on with it.
    pub async fn delete(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        let removing = async |attention: &mut _| {
            self.objects.remove(attention).await?;
            self.listing.until_shown(id, false).await;
            Ok(())
        };
        self.objects.attending(id, deadline, removing).await
    }
}
