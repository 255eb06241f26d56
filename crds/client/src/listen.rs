//! Listens at the TCP ports of a process.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;

/// Number of connections that wait until they are accepted, as in the standard library.
const BACKLOG: i32 = 128;

/// Listens at `address`. `[::]` accepts IPv4 connections too, also where `net.ipv6.bindv6only` is set, and is
/// `0.0.0.0` on a host without IPv6. Fails, with an error that names the address, if it is taken or not an address
/// of this host. Panics outside of a tokio runtime.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let opened = match Socket::new(Domain::for_address(address), Type::STREAM, None) {
        Err(_) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            Socket::new(Domain::IPV4, Type::STREAM, None).map(|socket| (socket, address))
        }
        opened => opened.map(|socket| (socket, address)),
    };
    let listening = opened.and_then(|(socket, address)| {
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // A process that starts again does not wait for connections of the last one.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    });
    listening.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn the_unspecified_address_takes_connections_of_both_families() {
        let listener = listen("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            let address = SocketAddr::new(host, port);
            TcpStream::connect(address)
                .await
                .unwrap_or_else(|error| panic!("{address}: {error}"));
        }
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named() {
        let first = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let taken = first.local_addr().unwrap();
        let error = listen(taken).unwrap_err().to_string();
        assert!(error.contains(&taken.to_string()), "{error}");
    }
}
