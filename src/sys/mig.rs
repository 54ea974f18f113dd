//! Which instances of a card a MIG device is: the one question to NVML that its wrapper has no call for.

use nvml_wrapper::{Device, Nvml};

/// As the driver numbers them below `/proc/driver/nvidia/capabilities`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instances {
    pub gpu: u32,
    pub compute: u32,
}

/// `None` where the driver does not say.
#[expect(unsafe_code, reason = "nvml-wrapper does not wrap these two calls")]
pub fn instances(nvml: &Nvml, device: &Device<'_>) -> Option<Instances> {
    // SAFETY: needed to ask what the wrapper does not; the handle is used while `device` lives, and so the library it is of.
    let handle = unsafe { device.handle() };
    let (mut gpu, mut compute) = (0, 0);
    let call = nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
    // SAFETY: needed as above; the handle is valid and the place for the answer outlives the call.
    let of_gpu = unsafe { call(handle, &raw mut gpu) };
    let call = nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref().ok()?;
    // SAFETY: as above.
    let of_compute = unsafe { call(handle, &raw mut compute) };
    // 0 is NVML_SUCCESS.
    (of_gpu == 0 && of_compute == 0).then_some(Instances { gpu, compute })
}
