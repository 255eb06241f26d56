//! Runs a control plane with Cistern's custom resources until it is interrupted, for manual tests:
//! `cargo run -p cistern-e2e --bin control-plane`.

use cistern_e2e::ControlPlane;

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "stdout is for the shell to read")]
async fn main() -> std::io::Result<()> {
    let control_plane = ControlPlane::start().await;
    println!("export KUBECONFIG={}", control_plane.kubeconfig().display());
    tokio::signal::ctrl_c().await
}
