// The options of DistributedDataParallel as texts, which ranks compare.
#pragma once

#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/ddp_options.h>

namespace narrowcast {

// The version of narrowcast and all options, with the values that the hook chooses filled in.
std::vector<NamedValue> describe(const DdpOptions& options);

}  // namespace narrowcast
