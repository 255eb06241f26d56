//! `ui`: serves a live page with pools, nodes, volumes, snapshots and problems to a browser on this machine.
//!
//! ```text
//! API server ─ watches ─▶ following ─▶ views of the commands ─▶ documents (JSON, ETag) ─▶ server ─▶ page
//! ```
//!
//! *Invariant:* `ui` only reads. The page shows the JSON of `status`, `volumes` and `snapshots`,
//! and nothing else from the cluster. The server listens on loopback only, and serves only requests
//! whose URL contains its token.

pub mod browser;
pub mod documents;
pub mod following;
pub mod page;
pub mod server;
pub mod watched;

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use cistern_client::{Chain, shutdown};
use cistern_crds::StoragePool;
use tokio::net::TcpListener;

use self::{documents::Documents, following::Following, server::Token};
use crate::{Connection, Error, Printer, Verdict, arguments, print_diagnostic};

/// Serves the page until SIGINT or SIGTERM. Fails if the user may not list StoragePools, if Cistern
/// is not installed, if the port is in use, or if the URL cannot be printed.
pub async fn run(
    connection: &Connection,
    context: Option<String>,
    flags: arguments::Ui,
    printer: Printer,
) -> Result<Verdict, Error> {
    let ended = shutdown::requested().map_err(Error::Signals)?;
    // This request fails for a wrong kubeconfig, denied access or a missing installation, before
    // the server starts.
    connection.own::<StoragePool>().await?;
    let listener = listen(flags).await?;
    let address = listener.local_addr().map_err(Error::Serving)?;
    let token = Token::random();
    let url = format!("http://{address}/{}/", token.as_str());
    let following = Following::start(connection, context);
    let router = server::router(token, Arc::new(Documents::of(following)));
    printer.write(&format!("{url}\n"))?;
    print_diagnostic(
        "note",
        "open this URL in a browser on this machine; everyone who knows it can read what you may read; Ctrl-C ends",
    );
    // The file is removed when this is dropped, at the end.
    let _opened = flags.open.then(|| {
        browser::open(&url).map_err(|error| {
            let error = Chain(&error);
            print_diagnostic("note", &format!("no browser was started: {error}"));
        })
    });
    tokio::select! {
        served = axum::serve(listener, router) => served.map_err(Error::Serving)?,
        () = ended => {}
    }
    Ok(Verdict::Ok)
}

async fn listen(flags: arguments::Ui) -> Result<TcpListener, Error> {
    let address: SocketAddr = if flags.ipv6 {
        (Ipv6Addr::LOCALHOST, flags.port).into()
    } else {
        (Ipv4Addr::LOCALHOST, flags.port).into()
    };
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| Error::Listen { address, source })
}
