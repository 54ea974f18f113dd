//! What is negotiated with the kernel when a mount is made; why, the handlers say.

use fuser::{InitFlags, KernelConfig};
use tracing::debug;

use crate::kept::Agreed;

const WANTED: [InitFlags; 6] = [
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
];

pub(super) fn agree(config: &mut KernelConfig) -> Agreed {
    for flag in WANTED {
        if let Err(missing) = config.add_capabilities(flag) {
            debug!(?missing, "kernel lacks a capability");
        }
    }
    let killpriv = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
    // Depth 2, so that the backing directory may lie on an overlay.
    let depth = config.set_max_stack_depth(2);
    let passthrough = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH);
    // What is read ahead and given back: beyond it the kernel asks nothing more for anybody, so it is not for what hangs.
    if let Err(most) = config.set_max_background(u16::MAX) {
        debug!(most, "fewer requests in the background");
    }
    Agreed {
        passthrough: depth.is_ok() && passthrough.is_ok(),
        keeps_xattrs: killpriv.is_ok(),
        asks_again: config.capabilities().contains(InitFlags::FUSE_HAS_RESEND),
    }
}
