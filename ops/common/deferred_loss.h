// A loss that the backward pass computes, as models make it and DistributedDataParallel recognises it.
#pragma once

namespace narrowcast {

// A part of the name of its autograd node. The graph behind the node contains no parameters.
inline constexpr const char* kDeferredLossNode = "DeferredLoss";

}  // namespace narrowcast
