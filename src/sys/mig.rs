//! Which instances of a card a MIG device is: the one question to NVML that its wrapper has no call for, so the raw bindings ask it.

use std::ffi::CString;
use std::ptr::null_mut;

use nvml_wrapper_sys::bindings::NvmlLib;
use serde::{Deserialize, Serialize};

use crate::ids::GpuUuid;

/// As the driver numbers them below `/proc/driver/nvidia/capabilities`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instances {
    pub gpu: u32,
    pub compute: u32,
}

/// Of the MIG device of this name; `None` where the driver does not say, or was not initialised.
#[expect(unsafe_code, reason = "the bindings are C's")]
pub fn instances(library: &NvmlLib, uuid: &GpuUuid) -> Option<Instances> {
    let name = CString::new(uuid.as_str()).ok()?;
    let (mut handle, mut gpu, mut compute) = (null_mut(), 0, 0);
    let call = library.nvmlDeviceGetHandleByUUID.as_ref().ok()?;
    // SAFETY: needed to ask what the wrapper does not; the name ends with NUL, and both places outlive the call.
    let of_name = unsafe { call(name.as_ptr(), &raw mut handle) };
    // 0 is NVML_SUCCESS: without it there is no handle.
    if of_name != 0 {
        return None;
    }
    let call = library.nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
    // SAFETY: needed as above; the handle is the library's own, and the place for the answer outlives the call.
    let of_gpu = unsafe { call(handle, &raw mut gpu) };
    let call = library.nvmlDeviceGetComputeInstanceId.as_ref().ok()?;
    // SAFETY: as above.
    let of_compute = unsafe { call(handle, &raw mut compute) };
    (of_gpu == 0 && of_compute == 0).then_some(Instances { gpu, compute })
}
