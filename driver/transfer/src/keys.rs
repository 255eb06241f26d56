//! Key pairs of Ed25519 (RFC 8032). The public key has the form in which TLS sends it (RFC 7250).

use std::{fmt, str::FromStr, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls::{
    crypto::ring::sign::any_eddsa_type,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};

use crate::Error;

/// The beginning of every public key of Ed25519 as a SubjectPublicKeyInfo (RFC 8410); 32 bytes follow.
const PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
const LENGTH: usize = 44;

/// The key pair of this process. The private key is only in its memory.
#[derive(Clone)]
pub struct KeyPair {
    pub(crate) certified: Arc<CertifiedKey>,
    public: PublicKey,
}

impl KeyPair {
    /// Makes a new key pair. Fails if the kernel has no random bytes.
    pub fn generate() -> Result<Self, Error> {
        let random = ring::rand::SystemRandom::new();
        let document = ring::signature::Ed25519KeyPair::generate_pkcs8(&random)
            .map_err(|_| Error::Key("make a key pair"))?;
        let private = PrivatePkcs8KeyDer::from(document.as_ref().to_vec());
        let signing = any_eddsa_type(&private).map_err(|_| Error::Key("read the key pair"))?;
        let public = signing
            .public_key()
            .ok_or(Error::Key("read the public key"))?;
        let public = PublicKey::from_der(&public).map_err(|_| Error::Key("read the public key"))?;
        let certificate = CertificateDer::from(public.0.to_vec());
        Ok(Self {
            certified: Arc::new(CertifiedKey::new(vec![certificate], signing)),
            public,
        })
    }

    /// The key that is published.
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyPair").field(&self.public).finish()
    }
}

/// The public key of a node: as text, the Base64 of its SubjectPublicKeyInfo.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; LENGTH]);

/// A text that is no public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not the Base64 of an Ed25519 public key (SubjectPublicKeyInfo)")]
pub struct InvalidKey;

impl PublicKey {
    /// Reads a SubjectPublicKeyInfo; fails if it is not one of Ed25519.
    pub(crate) fn from_der(bytes: &[u8]) -> Result<Self, InvalidKey> {
        let bytes: [u8; LENGTH] = bytes.try_into().map_err(|_| InvalidKey)?;
        if bytes.starts_with(&PREFIX) {
            return Ok(Self(bytes));
        }
        Err(InvalidKey)
    }
}

impl FromStr for PublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Self::from_der(&STANDARD.decode(text).map_err(|_| InvalidKey)?)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_survives_its_text_and_every_key_pair_differs() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let text = one.public().to_string();
        assert_eq!(text.parse(), Ok(one.public()));
        assert_ne!(one.public(), other.public());
        assert_eq!(format!("{one:?}"), format!("KeyPair({text})"));
    }

    #[test]
    fn other_texts_are_no_keys() {
        let of_p256 = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        let short = STANDARD.encode(PREFIX);
        for text in ["", "?", "AAAA", &short, of_p256] {
            assert_eq!(text.parse::<PublicKey>(), Err(InvalidKey), "{text}");
        }
    }
}
