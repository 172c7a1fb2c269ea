// Memory that messages are encoded into and received in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include <narrowcast/export.h>

namespace narrowcast::engine {

// `bytes` of uninitialised uint8 from LibTorch's CPU allocator, 1-D, aligned to 64
// bytes at least. A large buffer is aligned to, and asks the kernel for, huge
// pages: encoder, network and decoder all walk through it, and with small pages a
// virtual machine spent 8% of a quantised step on address translation. To be kept
// from step to step: fresh pages cost more than the network.
NARROWCAST_EXPORT at::Tensor allocate_message_buffer(int64_t bytes);

}  // namespace narrowcast::engine
