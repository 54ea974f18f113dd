//! A proxy for plain http that lets nobody through: a registry of https could lead there by a redirect or a token server's
//! address, and `oci-client` would follow.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(super) struct Trap {
    /// As addresses of proxies are written.
    pub(super) address: String,
    caught: Arc<AtomicBool>,
}

impl Trap {
    pub(super) fn set() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = format!("http://{}", listener.local_addr()?);
        let caught = Arc::new(AtomicBool::new(false));
        let ours = caught.clone();
        // Told before the connection is closed, so that whoever sees it closed sees that as well.
        let catch = move || listener.incoming().for_each(|_closed_here| ours.store(true, Ordering::SeqCst));
        std::thread::Builder::new().name("trap".to_owned()).spawn(catch)?;
        Ok(Self { address, caught })
    }

    pub(super) fn has_caught(&self) -> bool {
        self.caught.load(Ordering::SeqCst)
    }
}
