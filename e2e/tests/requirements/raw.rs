//! Calls by method path, with bytes that no generated client would send.

use prost::bytes::{Buf as _, BufMut as _};
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Channel,
};

/// Calls `/csi.v1.<method>`, as in `Identity/Probe`, and returns the bytes of the answer.
pub(crate) async fn call(
    channel: &Channel,
    method: &str,
    message: impl Into<Vec<u8>>,
) -> Result<Vec<u8>, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = format!("/csi.v1.{method}").parse().unwrap();
    let request = Request::new(message.into());
    Ok(client.unary(request, path, Bytes).await?.into_inner())
}

struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}
