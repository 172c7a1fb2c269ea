// How a rank that has failed leaves its node.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <narrowcast/export.h>

namespace narrowcast {
namespace NARROWCAST_EXPORT node {

// Call it when this rank leaves the group after a failure: ranks of its node that wait for it in the node's memory
// fail, also while this process lives on. Does not wait for them. Does nothing if the group's nodes were never
// searched.
void leave_nodes(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace node
}  // namespace narrowcast
