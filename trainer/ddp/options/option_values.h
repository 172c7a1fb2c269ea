// Values that follow from the options of DistributedDataParallel.
#pragma once

#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/ddp_options.h>

namespace narrowcast {

// The version of narrowcast and all options as texts, which ranks compare, with the values that the hook chooses.
std::vector<NamedValue> describe(const DdpOptions& options);

// Whether the hook of these options sends any bucket in a format with blocks.
bool rounds_in_blocks(const DdpOptions& options);

}  // namespace narrowcast
