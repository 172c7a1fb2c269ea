// What models and DistributedDataParallel both use of a loss whose backward pass computes it.
#pragma once

namespace narrowcast {

// A part of the name of its autograd node. The graph behind the node contains no parameters.
inline constexpr const char* kDeferredLossNode = "DeferredLoss";

}  // namespace narrowcast
